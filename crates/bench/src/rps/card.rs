//! The way from the clients to the servers: two cards with a cable, or a veth pair.

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use nearfar_experiment::{BoxError, Change, Resources};
use nearfar_machine::{CpuId, CpuSet, Irq, Machine, queue_of};
use nearfar_proc::{child, cpu_counts};

use super::namespace::{Namespace, cannot_make, ip};
use super::rss::Rss;

const INTERFACES: &str = "/sys/class/net";

/// Interfaces with addresses, the clients' one in a namespace.
pub(super) struct Link {
    /// Of the servers.
    pub(super) interface: String,
    pub(super) server: Ipv4Addr,
    pub(super) client: Ipv4Addr,
    /// The interrupts of each queue of the servers' card; none for a veth pair.
    pub(super) queues: BTreeMap<u32, Vec<Irq>>,
    pub(super) namespace: Namespace,
    /// How the card chooses queues, or why that is unknown.
    pub(super) rss: Result<Rss, String>,
    client_irqs: Vec<Irq>,
    /// The clients' card, to be brought back.
    moved: Option<String>,
}

impl Link {
    /// Moves the clients' card to a namespace and gives both cards addresses.
    pub(super) fn cards(
        server: &str,
        client: &str,
        resources: &mut Resources,
    ) -> Result<Self, BoxError> {
        unused(client)?;
        let (own, other) = addresses()?;
        let irqs_of_client = irqs(client);
        resources.moved_interface(client)?;
        resources.network_address(server, own)?;
        let namespace = Namespace::new().map_err(cannot_make)?;
        ip(&["link", "set", "dev", client, "netns", &namespace.name()])?;
        let mut link = Self {
            interface: server.to_owned(),
            server: own,
            client: other,
            queues: BTreeMap::new(),
            namespace,
            rss: Err("it was not asked".to_owned()),
            client_irqs: Vec::new(),
            moved: Some(client.to_owned()),
        };
        link.start_client(client)?;
        // Drivers request a queue's interrupt, and name it, when the interface starts.
        link.queues = named(&irqs(server))?;
        let of_client = named(&irqs_of_client)?;
        link.client_irqs = of_client.into_values().flatten().collect();
        link.rss = rss(server).map_err(|error| error.to_string());
        Ok(link)
    }

    /// Makes a veth pair. It ends with the namespace that has one of its ends.
    pub(super) fn veth() -> Result<Self, BoxError> {
        let (server, client) = addresses()?;
        let pid = std::process::id();
        let (interface, peer) = (format!("nf{pid}"), format!("nfc{pid}"));
        let namespace = Namespace::new().map_err(cannot_make)?;
        ip(&[
            "link",
            "add",
            &interface,
            "type",
            "veth",
            "peer",
            "name",
            &peer,
            "netns",
            &namespace.name(),
        ])?;
        ip(&["address", "add", &format!("{server}/24"), "dev", &interface])?;
        ip(&["link", "set", "dev", &interface, "up"])?;
        let link = Self {
            interface,
            server,
            client,
            queues: BTreeMap::new(),
            namespace,
            rss: Err("a veth pair has no queues that are chosen by a hash".to_owned()),
            client_irqs: Vec::new(),
            moved: None,
        };
        link.start_client(&peer)?;
        Ok(link)
    }

    fn start_client(&self, client: &str) -> Result<(), BoxError> {
        let namespace = &self.namespace;
        namespace.ip(&["link", "set", "dev", "lo", "up"])?;
        namespace.ip(&[
            "address",
            "add",
            &format!("{}/24", self.client),
            "dev",
            client,
        ])?;
        namespace.ip(&["link", "set", "dev", client, "up"])
    }

    /// Gives each queue's interrupt a CPU, the transmit queue as well, and the client's interrupts one of the clients' CPUs.
    pub(super) fn spread(&self, cpus: &[CpuId], clients: &CpuSet) -> Vec<Change> {
        let mut changes = Vec::new();
        let has_xps = self.queues.len() > 1;
        for ((&queue, irqs), &cpu) in self.queues.iter().zip(cpus.iter().cycle()) {
            changes.extend(
                irqs.iter()
                    .map(|&irq| affinity(irq, CpuSet::from_iter([cpu]))),
            );
            if has_xps {
                changes.push(Change::Xps {
                    interface: self.interface.clone(),
                    queue,
                    cpus: CpuSet::from_iter([cpu]),
                });
            }
        }
        changes.extend(self.quiet(clients));
        changes
    }

    /// Puts the interrupts of the clients' card on the clients' CPUs.
    pub(super) fn quiet(&self, clients: &CpuSet) -> Vec<Change> {
        let irqs = self.client_irqs.iter();
        irqs.map(|&irq| affinity(irq, clients.clone())).collect()
    }

    /// Gives the packets that the servers' end of a veth pair receives to these CPUs.
    pub(super) fn steer(&self, cpus: CpuSet) -> Change {
        Change::Rps {
            interface: self.interface.clone(),
            queue: 0,
            cpus,
        }
    }

    /// Packets that the servers' interface dropped or missed so far.
    pub(super) fn dropped(&self) -> u64 {
        let statistics = Path::new(INTERFACES)
            .join(&self.interface)
            .join("statistics");
        let count = |name: &str| {
            let text = fs::read_to_string(statistics.join(name)).ok()?;
            text.trim().parse::<u64>().ok()
        };
        let names = [
            "rx_dropped",
            "tx_dropped",
            "rx_missed_errors",
            "rx_fifo_errors",
        ];
        names.into_iter().filter_map(count).sum()
    }

    /// Brings the clients' card back before the namespace ends, which the kernel would do later.
    pub(super) fn end(self) -> Result<(), BoxError> {
        let here = std::process::id().to_string();
        match &self.moved {
            Some(card) => self
                .namespace
                .ip(&["link", "set", "dev", card, "netns", &here]),
            None => Ok(()),
        }
    }
}

/// An interface by its name or PCI address.
pub(super) fn interface(machine: &Machine, name: &str) -> Result<String, String> {
    let networks = machine.networks.get().map_or(&[][..], Vec::as_slice);
    let address = name.parse().ok();
    let found = networks
        .iter()
        .find(|it| it.name == name || (address.is_some() && it.device == address));
    found.map(|it| it.name.clone()).ok_or_else(|| {
        let names: Vec<&str> = networks.iter().map(|it| it.name.as_str()).collect();
        match names.is_empty() {
            true => "this machine has no network card".to_owned(),
            false => format!(
                "no network card of this name; there are: {}",
                names.join(", ")
            ),
        }
    })
}

/// An interface that can be taken away without cutting a connection.
fn unused(name: &str) -> Result<(), BoxError> {
    let cannot =
        |reason: String| format!("cannot use {name} as the clients' card: {reason}").into();
    if Path::new(INTERFACES).join(name).join("master").exists() {
        return Err(cannot("it belongs to a bridge or bond".to_owned()));
    }
    let shown = child::output(
        "ip",
        &[
            "-oneline", "address", "show", "dev", name, "scope", "global",
        ],
    )?;
    match shown
        .split_whitespace()
        .skip_while(|word| !word.starts_with("inet"))
        .nth(1)
    {
        Some(address) => Err(cannot(format!("it has the address {address}"))),
        None => Ok(()),
    }
}

/// Two addresses of a network of 198.18.0.0/15, which is kept for benchmarks, that this machine has no address of.
fn addresses() -> Result<(Ipv4Addr, Ipv4Addr), BoxError> {
    let taken = child::output(
        "ip",
        &["-oneline", "-4", "address", "show", "to", "198.18.0.0/15"],
    )?;
    let [.., first] = std::process::id().to_be_bytes();
    let networks = (0..=u8::MAX).map(|step| first.wrapping_add(step));
    let is_free = |network: &u8| !taken.contains(&format!(" 198.18.{network}."));
    let network = networks.into_iter().find(is_free);
    let network = network.ok_or("this machine has addresses of all networks of 198.18.0.0/16")?;
    let address = |host| Ipv4Addr::new(198, 18, network, host);
    Ok((address(1), address(2)))
}

fn affinity(irq: Irq, cpus: CpuSet) -> Change {
    Change::InterruptAffinity {
        irq,
        cpus,
        near: None,
        name: None,
    }
}

/// The interrupts of an interface's PCI function; of a virtio device, those of its parent.
fn irqs(interface: &str) -> Vec<Irq> {
    let device = Path::new(INTERFACES).join(interface).join("device");
    let directories: [PathBuf; 2] = [device.join("msi_irqs"), device.join("../msi_irqs")];
    let found = directories
        .iter()
        .find_map(|directory| fs::read_dir(directory).ok());
    let names = found
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name());
    names
        .filter_map(|name| name.to_str()?.parse().ok().map(Irq))
        .collect()
}

/// Those of queues, by queue.
fn named(irqs: &[Irq]) -> Result<BTreeMap<u32, Vec<Irq>>, BoxError> {
    let mut queues: BTreeMap<u32, Vec<Irq>> = BTreeMap::new();
    let is_wanted = |label: &str| {
        label
            .parse()
            .is_ok_and(|number| irqs.contains(&Irq(number)))
    };
    for (label, row) in cpu_counts::interrupts(is_wanted)? {
        if let (Some(queue), Ok(irq)) = (queue_of(&row.name), label.parse()) {
            queues.entry(queue).or_default().push(Irq(irq));
        }
    }
    Ok(queues)
}

fn rss(interface: &str) -> Result<Rss, BoxError> {
    let host_key = fs::read_to_string("/proc/sys/net/core/netdev_rss_key").unwrap_or_default();
    let printed = child::output("ethtool", &["--show-rxfh", interface])?;
    Ok(Rss::parse(&printed, &host_key)?)
}

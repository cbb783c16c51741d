//! The way from the clients to the servers: two cards with a cable, or a veth pair. A thread of this process holds the network
//! namespace of the clients, so that it never outlives the process.
//!
//! Receive side scaling: which queue of a card a connection's packets come in by, as `ethtool -x` and the hash of Toeplitz tell.
//!
//! ```text
//!  RX flow hash indirection table for eth1 with 8 RX ring(s):
//!      0:      0     0     1     1
//!  RSS hash key:
//!  6d:5a:56:da:...
//!  RSS hash function:
//!      toeplitz: on
//! ```
//!
//! Documentation/networking/scaling.rst; the hash is that of Microsoft's RSS specification, over addresses and ports.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;

use nearfar_experiment::{BoxError, Change, Resources};
use nearfar_machine::{CpuId, CpuSet, Irq, Machine, queue_of};
use nearfar_proc::{child, cpu_counts};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

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
        ip(&format!("link set dev {client} netns {}", namespace.name()))?;
        let mut link = Self::new(server.to_owned(), (own, other), namespace);
        link.moved = Some(client.to_owned());
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
        let name = namespace.name();
        ip(&format!(
            "link add {interface} type veth peer name {peer} netns {name}"
        ))?;
        ip(&format!("address add {server}/24 dev {interface}"))?;
        ip(&format!("link set dev {interface} up"))?;
        let link = Self::new(interface, (server, client), namespace);
        link.start_client(&peer)?;
        Ok(link)
    }

    /// Without queues, as a veth pair.
    fn new(
        interface: String,
        (server, client): (Ipv4Addr, Ipv4Addr),
        namespace: Namespace,
    ) -> Self {
        Self {
            interface,
            server,
            client,
            queues: BTreeMap::new(),
            namespace,
            rss: Err("a veth pair has no queues that are chosen by a hash".to_owned()),
            client_irqs: Vec::new(),
            moved: None,
        }
    }

    fn start_client(&self, client: &str) -> Result<(), BoxError> {
        let (namespace, address) = (&self.namespace, self.client);
        namespace.ip("link set dev lo up")?;
        namespace.ip(&format!("address add {address}/24 dev {client}"))?;
        namespace.ip(&format!("link set dev {client} up"))
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
            Some(card) => {
                let words = format!("link set dev {card} netns {here}");
                self.namespace.ip(&words)
            }
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

/// A network namespace, empty but for what is moved into it.
pub(super) struct Namespace {
    file: File,
    /// Of the thread that made it.
    thread: i32,
    holder: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Namespace {
    /// Makes one.
    ///
    /// # Errors
    /// Where the kernel refuses: without CAP_SYS_ADMIN.
    pub(super) fn new() -> io::Result<Self> {
        let (made, answer) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let thread = std::thread::Builder::new().name("nearfar-netns".to_owned());
        let handle = thread.spawn(move || {
            // SAFETY: gives the calling thread, which runs nothing else, another network namespace.
            let answer = match unsafe { libc::unshare(libc::CLONE_NEWNET) } {
                0 => File::open("/proc/thread-self/ns/net"),
                _ => Err(io::Error::last_os_error()),
            };
            let thread = rustix::thread::gettid().as_raw_nonzero().get();
            let is_made = made.send(answer.map(|file| (file, thread))).is_ok();
            if is_made {
                let _ = ended.recv();
            }
        })?;
        let (file, thread) = answer.recv().map_err(io::Error::other)??;
        Ok(Self {
            file,
            thread,
            holder: Some((end, handle)),
        })
    }

    /// What `ip link set DEVICE netns` takes.
    pub(super) fn name(&self) -> String {
        self.thread.to_string()
    }

    /// Moves the calling thread into it.
    pub(super) fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(
            self.file.as_fd(),
            Some(LinkNameSpaceType::Network),
        )?)
    }

    /// Lets what `command` starts run in it.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub(super) fn start_in(&self, command: &mut Command) -> io::Result<()> {
        let file = self.file.try_clone()?;
        // SAFETY: between fork and exec only a system call is made that is async-signal-safe (signal-safety(7)).
        unsafe {
            command.pre_exec(move || {
                let namespace = Some(LinkNameSpaceType::Network);
                Ok(move_into_link_name_space(file.as_fd(), namespace)?)
            });
        }
        Ok(())
    }

    /// Runs `ip` in it.
    fn ip(&self, words: &str) -> Result<(), BoxError> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.enter()?;
                ip(words)
            });
            thread.join().map_err(|_| "a thread panicked")?
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Some((end, handle)) = self.holder.take() {
            drop(end);
            let _ = handle.join();
        }
    }
}

/// The error where there is none.
pub(super) fn cannot_make(error: io::Error) -> BoxError {
    let reason = nearfar_proc::error_text(&error);
    format!("cannot make a network namespace: {reason}; it takes root").into()
}

/// Runs `ip` of iproute2 with these words; no name of an interface has blanks.
pub(super) fn ip(words: &str) -> Result<(), BoxError> {
    let words: Vec<&str> = words.split(' ').collect();
    Ok(child::output("ip", &words).map(drop)?)
}

/// Shorter keys do not cover addresses and ports: 12 bytes and the 4 of the window.
const MIN_KEY_BYTES: usize = 16;
/// More entries than any card's table has; a bound on what hostile text allocates.
const MAX_ENTRIES: usize = 1 << 16;
/// Ports of a client are taken from here on: below are those of services, above those that the kernel gives.
const FIRST_PORT: u16 = 10_000;
const LAST_PORT: u16 = 32_000;

/// How a card chooses queues.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rss {
    /// A queue for each value of the hash's last bits.
    table: Vec<u32>,
    key: Vec<u8>,
}

/// Why a connection's queue is unknown.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RssError {
    #[error("the card shows no indirection table")]
    NoTable,
    #[error("the card does not say its hash key")]
    NoKey,
    #[error("the card hashes by {0}, not by toeplitz")]
    Function(String),
}

impl Rss {
    /// Reads what `ethtool -x` prints. `host_key` stands for the key of a driver that does not say it:
    /// `/proc/sys/net/core/netdev_rss_key`, of which drivers take the first bytes.
    ///
    /// # Errors
    /// When the table is missing, the key is neither there nor given, or another hash is used.
    pub fn parse(text: &str, host_key: &str) -> Result<Self, RssError> {
        let mut lines = text.lines();
        let (mut table, mut key, mut function) = (Vec::new(), None, None);
        while let Some(line) = lines.next() {
            let line = line.trim();
            match line {
                "RSS hash key:" => key = lines.next().and_then(hexadecimal),
                _ if line.ends_with(": on") => function = line.strip_suffix(": on"),
                _ => table.extend(entries(line)),
            }
            table.truncate(MAX_ENTRIES);
        }
        if table.is_empty() {
            return Err(RssError::NoTable);
        }
        if let Some(other) = function.filter(|it| *it != "toeplitz") {
            return Err(RssError::Function(other.chars().take(32).collect()));
        }
        let is_long = |key: &Vec<u8>| key.len() >= MIN_KEY_BYTES && key.iter().any(|&it| it != 0);
        let key = key
            .filter(is_long)
            .or_else(|| hexadecimal(host_key).filter(is_long));
        Ok(Self {
            table,
            key: key.ok_or(RssError::NoKey)?,
        })
    }

    /// The queue of the packets from `source` to `destination`.
    pub fn queue(&self, source: SocketAddrV4, destination: SocketAddrV4) -> u32 {
        let hash = toeplitz(&self.key, &tuple(source, destination));
        self.table[hash as usize % self.table.len()]
    }

    /// Ports of `source` whose packets come in by the queue, lowest first.
    pub fn ports(
        &self,
        source: SocketAddrV4,
        destination: SocketAddrV4,
        queue: u32,
    ) -> impl Iterator<Item = u16> {
        (FIRST_PORT..LAST_PORT).filter(move |&port| {
            let source = SocketAddrV4::new(*source.ip(), port);
            self.queue(source, destination) == queue
        })
    }
}

/// The queues of a row: `8: 0 0 1 1`.
fn entries(line: &str) -> Vec<u32> {
    let Some((first, queues)) = line.split_once(':') else {
        return Vec::new();
    };
    let queues = queues
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>();
    match first.parse::<u32>() {
        Ok(_) => queues.unwrap_or_default(),
        Err(_) => Vec::new(),
    }
}

/// `6d:5a:56`.
fn hexadecimal(line: &str) -> Option<Vec<u8>> {
    let byte = |text| u8::from_str_radix(text, 16).ok();
    line.trim().split(':').map(byte).collect()
}

/// What is hashed: both addresses, then both ports, each most significant byte first.
fn tuple(source: SocketAddrV4, destination: SocketAddrV4) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&source.ip().octets());
    bytes[4..8].copy_from_slice(&destination.ip().octets());
    bytes[8..10].copy_from_slice(&source.port().to_be_bytes());
    bytes[10..].copy_from_slice(&destination.port().to_be_bytes());
    bytes
}

/// For each bit that is set in the input, the 32 bits of the key from there on.
fn toeplitz(key: &[u8], input: &[u8]) -> u32 {
    let bit = |bytes: &[u8], at: usize| {
        bytes
            .get(at / 8)
            .is_some_and(|it| it & (0x80 >> (at % 8)) != 0)
    };
    let mut window = u32::from_be_bytes([key[0], key[1], key[2], key[3]]);
    let mut hash = 0;
    for at in 0..input.len() * 8 {
        if bit(input, at) {
            hash ^= window;
        }
        window = window << 1 | u32::from(bit(key, at + 32));
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "6d:5a:56:da:25:5b:0e:c2:41:67:25:3d:43:a3:8f:b0:d0:ca:2b:cb:ae:7b:30:b4:77:cb:2d:a3:80:30:f2:0c:6a:42:b7:3b:be:ac:01:fa";

    fn printed(key: &str, function: &str) -> String {
        format!(
            "RX flow hash indirection table for eth1 with 4 RX ring(s):\n    0:      0     1     2     3\n    \
             4:      0     1     2     3\nRSS hash key:\n{key}\nRSS hash function:\n    toeplitz: {function}\n    crc32: off\n"
        )
    }

    /// The vectors of Microsoft's specification.
    #[test]
    fn the_hash_is_that_of_the_specification() {
        for (source, destination, expected) in [
            ("66.9.149.187:2794", "161.142.100.80:1766", 0x51cc_c178),
            ("199.92.111.2:14230", "65.69.140.83:4739", 0xc626_b0ea),
            ("24.19.198.95:12898", "12.22.207.184:38024", 0x5c2b_394a),
        ] {
            let input = tuple(source.parse().unwrap(), destination.parse().unwrap());
            assert_eq!(toeplitz(&hexadecimal(KEY).unwrap(), &input), expected);
        }
    }

    #[test]
    fn ports_lead_to_the_queue_that_is_asked_for() {
        let rss = Rss::parse(&printed(KEY, "on"), "").unwrap();
        let (source, destination) = (
            "198.18.0.2:0".parse().unwrap(),
            "198.18.0.1:6379".parse().unwrap(),
        );
        for queue in 0..4 {
            let ports: Vec<u16> = rss.ports(source, destination, queue).take(3).collect();
            assert_eq!(ports.len(), 3);
            let of = |port| SocketAddrV4::new(*source.ip(), port);
            assert!(
                ports
                    .iter()
                    .all(|&port| rss.queue(of(port), destination) == queue)
            );
        }
        assert_eq!(rss.ports(source, destination, 4).count(), 0);
    }

    #[test]
    fn a_driver_without_a_key_has_the_kernels() {
        let unsaid = printed("Operation not supported", "on");
        assert_eq!(Rss::parse(&unsaid, "00:00:00\n"), Err(RssError::NoKey));
        assert_eq!(
            Rss::parse(&unsaid, KEY),
            Rss::parse(&printed(KEY, "on"), "")
        );
        assert_eq!(Rss::parse("", KEY), Err(RssError::NoTable));
        let other = printed(KEY, "off").replace("crc32: off", "crc32: on");
        assert_eq!(
            Rss::parse(&other, KEY),
            Err(RssError::Function("crc32".into()))
        );
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in "(RSS hash key:\n|[0-9]{1,4}:( [0-9]{1,12}){0,9}\n|.{0,20}\n|([0-9a-f]{2}:){0,50}0\n){0,6}", key: String) {
            if let Ok(rss) = Rss::parse(&text, &key) {
                rss.queue("1.2.3.4:5".parse().unwrap(), "6.7.8.9:10".parse().unwrap());
            }
        }
    }
}

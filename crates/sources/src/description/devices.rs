//! From the keys of a description to host bridges, PCI devices, network devices, NVMe subsystems and interrupts.

use std::collections::BTreeMap;

use nearfar_machine::{
    AnaState, CpuSet, FirmwareLocality, FirmwareSource, HostBridge, Interrupt, IoPolicy, Irq,
    Known, Machine, Managed, NetworkDevice, NodeId, NvmeController, NvmeNamespace, NvmePath,
    NvmeSubsystem, PciAddress, PciDevice, ReceiveQueue, RootBus, TransmitQueue,
};
use toml::Spanned;

use super::keys::{
    ControllerEntry, CpuCount, Description, KernelNode, NicEntry, NvmeEntry, PciEntry,
};
use super::{BECAUSE, Faults};
use crate::error::TextError;
use crate::value::ValueError;

/// What devices are that a description does not name closer: those an emulated machine has.
const NIC: (&str, u32, &str) = ("8086:10c9", 0x02_00_00, "igb");
const NVME: (&str, u32, &str) = ("1b36:0010", 0x01_08_02, "nvme");
/// The lowest interrupt that message-signalled devices get on x86; the legacy ones are below.
const FIRST_IRQ: u32 = 24;
/// How many queues and paths all devices together may have.
const MOST: u32 = 65_536;

pub(super) fn add(
    file: &Description,
    machine: &mut Machine,
    faults: &Faults<'_>,
) -> Result<(), TextError> {
    let mut devices = Devices {
        machine,
        faults,
        bridges: BTreeMap::new(),
        pci: BTreeMap::new(),
        interrupts: Vec::new(),
        left: MOST,
    };
    devices.bridges(file)?;
    for entry in &file.pci {
        devices.generic(entry)?;
    }
    let mut networks = BTreeMap::new();
    for entry in &file.nic {
        let network = devices.network(entry.get_ref());
        let network = network.map_err(|problem| faults.at(entry, "nic", problem))?;
        if networks.insert(network.name.clone(), network).is_some() {
            return Err(faults.at(entry, "nic", "there are two of this name"));
        }
    }
    let mut subsystems = Vec::new();
    let mut controllers = 0;
    for (at, entry) in file.nvme.iter().enumerate() {
        subsystems.push(devices.subsystem(entry, at, &mut controllers)?);
    }
    let Devices {
        bridges,
        pci,
        interrupts,
        ..
    } = devices;
    if bridges.is_empty() && pci.is_empty() && networks.is_empty() && subsystems.is_empty() {
        return Ok(());
    }
    machine.host_bridges = Known::Yes(bridges.into_values().map(|(bridge, _)| bridge).collect());
    machine.pci = Known::Yes(pci.into_values().collect());
    machine.networks = Known::Yes(networks.into_values().collect());
    machine.nvme = Known::Yes(subsystems);
    machine.interrupts = match interrupts.is_empty() {
        true => Known::no("the description gives no queue_cpus"),
        false => Known::Yes(interrupts),
    };
    Ok(())
}

/// What the kernel says of a device's node.
type KernelSays = Known<Option<NodeId>>;

struct Devices<'a> {
    machine: &'a Machine,
    faults: &'a Faults<'a>,
    /// Host bridges, with the node that the kernel gives the devices below.
    bridges: BTreeMap<RootBus, (HostBridge, KernelSays)>,
    pci: BTreeMap<PciAddress, PciDevice>,
    interrupts: Vec<Interrupt>,
    /// How many more queues and paths there may be.
    left: u32,
}

/// Where a device is, as an entry says it.
struct DevicePlace<'a> {
    bridge: Option<&'a str>,
    address: Option<&'a str>,
    id: Option<&'a str>,
    driver: Option<&'a str>,
    node: &'a Option<KernelNode>,
}

impl Devices<'_> {
    fn node(&self, number: u32) -> Result<NodeId, ValueError> {
        let node = NodeId(number);
        match self.machine.node(node) {
            Some(_) => Ok(node),
            None => Err(contradiction(format!("node {number} is not described"))),
        }
    }

    /// The kernel's node: a node, none, or unknown.
    fn kernel_node(&self, entry: &KernelNode) -> Result<KernelSays, ValueError> {
        match entry {
            KernelNode::Node(number) => self.node(*number).map(|node| Known::Yes(Some(node))),
            KernelNode::Word(word) if word == "none" => Ok(Known::Yes(None)),
            KernelNode::Word(word) if word == "unknown" => {
                Ok(Known::no("the description says \"unknown\""))
            }
            KernelNode::Word(word) => {
                let wanted = "a node: a number, \"none\" or \"unknown\"";
                Err(ValueError::malformed(word, wanted))
            }
        }
    }

    /// Counts queues or paths.
    fn take(&mut self, count: u32) -> Result<(), ValueError> {
        let left = self.left.checked_sub(count);
        self.left = left.ok_or_else(|| {
            ValueError::faulty(format!("more than {MOST} queues and paths in all"))
        })?;
        Ok(())
    }

    fn bridges(&mut self, file: &Description) -> Result<(), TextError> {
        for spanned in &file.bridge {
            let entry = spanned.get_ref();
            let fail = |problem| self.faults.at(spanned, "bridge", problem);
            let root: RootBus = entry
                .root
                .parse()
                .map_err(|it| fail(ValueError::Address(it)))?;
            let said = entry.node.as_ref().map(|node| self.kernel_node(node));
            let said = said.transpose().map_err(fail)?;
            let firmware = entry.firmware_node.map(|node| self.node(node));
            let firmware = firmware.transpose().map_err(fail)?;
            let same = || said.as_ref()?.get().copied().flatten();
            let firmware = firmware.or_else(same);
            let online = |node: &NodeId| self.machine.node(*node).is_some_and(|node| node.online);
            let kernel = said.unwrap_or_else(|| Known::Yes(firmware.filter(online)));
            let locality = firmware.map(|node| FirmwareLocality {
                domain: node.0,
                node,
                told_by: FirmwareSource::Described,
                evidence: format!("{}: [[bridge]] {root}", self.faults.place()),
            });
            let bridge = HostBridge {
                root,
                firmware: Known::Yes(locality),
            };
            if self.bridges.insert(root, (bridge, kernel)).is_some() {
                let problem = format!("there are two with root {root}");
                return Err(self.faults.at(spanned, "bridge", problem));
            }
        }
        Ok(())
    }

    fn generic(&mut self, spanned: &Spanned<PciEntry>) -> Result<(), TextError> {
        let entry = spanned.get_ref();
        let class = entry.class.strip_prefix("0x").unwrap_or(&entry.class);
        let place = DevicePlace {
            bridge: entry.bridge.as_deref(),
            address: Some(&entry.address),
            id: Some(&entry.id),
            driver: entry.driver.as_deref(),
            node: &entry.node,
        };
        let class = u32::from_str_radix(class, 16).ok();
        let class = class.filter(|class| class >> 24 == 0);
        let add = |devices: &mut Self| {
            let class = class
                .ok_or_else(|| ValueError::malformed(&entry.class, "a class like \"0x020000\""))?;
            let parent = entry.parent.as_deref().map(str::parse).transpose()?;
            let address = devices.device(&place, (&entry.id, class, ""))?;
            if let Some(device) = devices.pci.get_mut(&address) {
                device.parent = parent;
                device.name.clone_from(&entry.name);
            }
            Ok(())
        };
        add(self).map_err(|problem: ValueError| self.faults.at(spanned, "pci", problem))
    }

    /// Puts a device on its root bus, or finds the `[[pci]]` entry that describes it.
    fn device(
        &mut self,
        place: &DevicePlace<'_>,
        usual: (&str, u32, &str),
    ) -> Result<PciAddress, ValueError> {
        let address: Option<PciAddress> = place.address.map(str::parse).transpose()?;
        if let Some(known) = address.filter(|address| self.pci.contains_key(address)) {
            return match (usual.2, place.id) {
                ("", _) => Err(contradiction(format!("there are two devices at {known}"))),
                (_, Some(_)) => Err(contradiction(format!(
                    "{known} has its id in a [[pci]] entry already"
                ))),
                _ => Ok(known),
            };
        }
        let root: RootBus = match (place.bridge, address) {
            (Some(bridge), _) => bridge.parse()?,
            (None, Some(address)) => address.into(),
            (None, None) => return Err(contradiction("either `bridge` or `address` is wanted")),
        };
        let kernel = match (place.node, self.bridges.get(&root)) {
            (Some(node), _) => self.kernel_node(node)?,
            (None, Some((_, node))) => node.clone(),
            (None, None) => {
                return Err(contradiction(format!("no [[bridge]] has root \"{root}\"")));
            }
        };
        let free = || {
            let at = |device| PciAddress {
                domain: root.domain,
                bus: root.bus,
                device,
                function: 0,
            };
            let mut all = (1..32).map(at);
            all.find(|address| !self.pci.contains_key(address))
        };
        let full = || contradiction(format!("bus {root} is full: give an `address`"));
        let address = address.or_else(free).ok_or_else(full)?;
        let id = place.id.unwrap_or(usual.0);
        let number = |text| u16::from_str_radix(text, 16).ok();
        let numbers = id.split_once(':');
        let numbers = numbers.and_then(|(vendor, device)| number(vendor).zip(number(device)));
        let (vendor, device) =
            numbers.ok_or_else(|| ValueError::malformed(id, "an id like \"8086:10c9\""))?;
        let usual_driver = Some(usual.2).filter(|driver| !driver.is_empty());
        let device = PciDevice {
            vendor,
            device,
            class: usual.1,
            driver: place.driver.or(usual_driver).map(str::to_owned),
            node: kernel,
            ..PciDevice::unknown(address, root, BECAUSE)
        };
        self.pci.insert(address, device);
        Ok(address)
    }

    fn node_of(&self, address: PciAddress) -> KernelSays {
        let device = self.pci.get(&address);
        device.map_or_else(|| Known::no(BECAUSE), |device| device.node.clone())
    }

    fn network(&mut self, entry: &NicEntry) -> Result<NetworkDevice, ValueError> {
        let place = DevicePlace {
            bridge: entry.bridge.as_deref(),
            address: entry.address.as_deref(),
            id: entry.id.as_deref(),
            driver: entry.driver.as_deref(),
            node: &entry.node,
        };
        let address = self.device(&place, NIC)?;
        let queues = entry.queues.unwrap_or(1);
        self.take(queues)?;
        let masks = |lists: &Option<Vec<String>>, key: &str| match lists {
            Some(lists) if lists.len() != queues as usize => Err(contradiction(format!(
                "{key} has {} lists for {queues} queues",
                lists.len()
            ))),
            Some(lists) => {
                let lists = lists.iter();
                let sets = lists.map(|list| Ok(Known::Yes(CpuSet::parse_list(list)?)));
                sets.collect()
            }
            None => {
                let unknown = Known::no(format!("the description gives no {key}"));
                Ok(vec![unknown; queues as usize])
            }
        };
        let (xps, rps) = (masks(&entry.xps, "xps")?, masks(&entry.rps, "rps")?);
        let queue_cpus = entry.queue_cpus.as_deref().unwrap_or_default();
        if queue_cpus.len() > queues as usize {
            return Err(contradiction(format!(
                "queue_cpus has more entries than there are queues ({queues})"
            )));
        }
        for (queue, cpus) in (0..).zip(queue_cpus) {
            self.interrupt(&entry.name, address, queue, cpus)?;
        }
        let transmit = (0..)
            .zip(xps)
            .map(|(queue, xps)| TransmitQueue { queue, xps });
        let receive = (0..)
            .zip(rps)
            .map(|(queue, rps)| ReceiveQueue { queue, rps });
        Ok(NetworkDevice {
            name: entry.name.clone(),
            device: Some(address),
            mac: None,
            node: self.node_of(address),
            transmit: transmit.collect(),
            receive: receive.collect(),
        })
    }

    fn interrupt(
        &mut self,
        name: &str,
        device: PciAddress,
        queue: u32,
        cpus: &CpuCount,
    ) -> Result<(), ValueError> {
        let affinity = match cpus {
            CpuCount::Count(cpu) => CpuSet::parse_list(&cpu.to_string())?,
            CpuCount::List(list) => CpuSet::parse_list(list)?,
        };
        if let Some(stray) = affinity.iter().find(|&cpu| self.machine.cpu(cpu).is_none()) {
            let problem = format!("queue_cpus: CPU {stray} is in no node");
            return Err(contradiction(problem));
        }
        let irq = Irq(FIRST_IRQ + self.interrupts.len() as u32);
        self.interrupts.push(Interrupt {
            name: format!("{name}-TxRx-{queue}"),
            device: Some(device),
            device_unknown_reason: None,
            queue: Some(queue),
            // With one CPU to choose from, the controller uses that one.
            effective: match affinity.len() {
                1 => Known::Yes(affinity.clone()),
                _ => Known::no(BECAUSE),
            },
            affinity: Known::Yes(affinity),
            managed: Known::Yes(Managed {
                managed: false,
                evidence: "queue_cpus of the description".to_owned(),
            }),
            ..Interrupt::unknown(irq, BECAUSE)
        });
        Ok(())
    }

    fn subsystem(
        &mut self,
        spanned: &Spanned<NvmeEntry>,
        at: usize,
        before: &mut usize,
    ) -> Result<NvmeSubsystem, TextError> {
        let entry = spanned.get_ref();
        let faults = self.faults;
        let fail = |problem: ValueError| faults.at(spanned, "nvme", problem);
        let mut controllers = Vec::new();
        for described in &entry.controllers {
            controllers.push(self.controller(described, *before).map_err(fail)?);
            *before += 1;
        }
        let count = entry.namespaces.unwrap_or(1);
        self.take(count.saturating_mul(controllers.len().max(1) as u32))
            .map_err(fail)?;
        let states = entry.controllers.iter().map(|it| it.ana.as_deref());
        let states: Vec<_> = states.collect();
        let name = entry.name.clone();
        Ok(NvmeSubsystem {
            name: name.unwrap_or_else(|| format!("nvme-subsys{at}")),
            nqn: entry.nqn.clone(),
            model: entry.model.clone(),
            iopolicy: match &entry.iopolicy {
                Some(word) => Known::Yes(IoPolicy::from(word.as_str())),
                None => Known::no("the description gives no iopolicy"),
            },
            namespaces: (1..=count)
                .map(|number| namespace(at, number, &controllers, &states))
                .collect(),
            controllers,
        })
    }

    fn controller(
        &mut self,
        entry: &ControllerEntry,
        number: usize,
    ) -> Result<NvmeController, ValueError> {
        let transport = entry.transport.as_deref().unwrap_or("pcie");
        let place = DevicePlace {
            bridge: entry.bridge.as_deref(),
            address: entry.address.as_deref(),
            id: entry.id.as_deref(),
            driver: None,
            node: &entry.node,
        };
        let device = (transport == "pcie")
            .then(|| self.device(&place, NVME))
            .transpose()?;
        let name = entry.name.clone();
        Ok(NvmeController {
            name: name.unwrap_or_else(|| format!("nvme{number}")),
            state: Known::Yes(entry.state.clone().unwrap_or_else(|| "live".to_owned())),
            transport: Known::Yes(transport.to_owned()),
            device,
            node: match (device, &entry.node) {
                (Some(device), _) => self.node_of(device),
                (None, Some(node)) => self.kernel_node(node)?,
                (None, None) => Known::Yes(None),
            },
            queues: Known::from_option(entry.queues, || "the description gives no queues"),
        })
    }
}

/// A namespace with a path through each controller, named as the kernel does.
fn namespace(
    subsystem: usize,
    number: u32,
    controllers: &[NvmeController],
    ana: &[Option<&str>],
) -> NvmeNamespace {
    let path = |(at, controller): (usize, &NvmeController)| {
        let index = controller
            .name
            .trim_start_matches(|c: char| !c.is_ascii_digit());
        let name = match controllers.len() {
            1 => format!("{}n{number}", controller.name),
            _ => format!("nvme{subsystem}c{index}n{number}"),
        };
        let state = ana.get(at).copied().flatten().unwrap_or("optimized");
        NvmePath {
            name,
            controller: controller.name.clone(),
            ana_state: Known::Yes(AnaState::from(state)),
            numa_nodes: None,
            queue_depth: None,
        }
    };
    let name = match controllers {
        [only] => format!("{}n{number}", only.name),
        _ => format!("nvme{subsystem}n{number}"),
    };
    NvmeNamespace {
        name,
        paths: controllers.iter().enumerate().map(path).collect(),
        paths_unknown_reason: None,
    }
}

fn contradiction(problem: impl Into<String>) -> ValueError {
    ValueError::faulty(problem)
}

//! The CPUs of the queues of a network interface.

use nearfar_machine::{CpuSet, Machine, NetworkDevice, PciAddress};
use serde::{Deserialize, Serialize};

use super::{ChangeError, Kind, Meaning, check_interface};
use crate::change::{Change, Owner, Planned};
use crate::export::Writing;
use crate::owner::Seen;
use crate::system::{System, first_line};

/// `/sys/class/net/IF/queues/tx-N/xps_cpus`, a CPU mask.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Xps {
    /// Interface.
    pub interface: String,
    /// Transmit queue.
    pub queue: u32,
}

/// `/sys/class/net/IF/queues/rx-N/rps_cpus`, a CPU mask.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rps {
    /// Interface.
    pub interface: String,
    /// Receive queue.
    pub queue: u32,
}

/// Both directions, which differ in names.
trait Queue: Sized {
    /// The begin of the queue's directory.
    const DIRECTION: &str;
    const FILE: &str;
    const FEATURE: &str;

    fn new(interface: String, queue: u32) -> Self;
    fn id(&self) -> (&str, u32);
    /// The CPUs in a machine's description.
    fn cpus<'a>(&self, network: &'a NetworkDevice) -> Option<&'a CpuSet>;
}

impl Queue for Xps {
    const DIRECTION: &str = "tx";
    const FILE: &str = "xps_cpus";
    const FEATURE: &str = "XPS";

    fn new(interface: String, queue: u32) -> Self {
        Self { interface, queue }
    }

    fn id(&self) -> (&str, u32) {
        (&self.interface, self.queue)
    }

    fn cpus<'a>(&self, network: &'a NetworkDevice) -> Option<&'a CpuSet> {
        let mut queues = network.transmit.iter();
        queues.find(|it| it.queue == self.queue)?.xps.get()
    }
}

impl Queue for Rps {
    const DIRECTION: &str = "rx";
    const FILE: &str = "rps_cpus";
    const FEATURE: &str = "RPS";

    fn new(interface: String, queue: u32) -> Self {
        Self { interface, queue }
    }

    fn id(&self) -> (&str, u32) {
        (&self.interface, self.queue)
    }

    fn cpus<'a>(&self, network: &'a NetworkDevice) -> Option<&'a CpuSet> {
        let mut queues = network.receive.iter();
        queues.find(|it| it.queue == self.queue)?.rps.get()
    }
}

impl<Q: Queue> Kind for Q {
    fn at(path: &[&str]) -> Option<Self> {
        let ["sys", "class", "net", interface, "queues", queue, _] = path else {
            return None;
        };
        let number = queue.strip_prefix(Q::DIRECTION)?.strip_prefix('-')?;
        Some(Q::new((*interface).to_owned(), number.parse().ok()?))
    }

    fn path(&self) -> String {
        let (interface, queue) = self.id();
        let (direction, file) = (Q::DIRECTION, Q::FILE);
        format!("/sys/class/net/{interface}/queues/{direction}-{queue}/{file}")
    }

    fn check(&self) -> Result<(), ChangeError> {
        check_interface(self.id().0)
    }

    fn check_value(&self, _: &Planned, _: &str) -> Result<(), ChangeError> {
        Ok(())
    }

    fn meaning(&self, text: &str) -> Option<Meaning> {
        let cpus = CpuSet::parse_mask(text).ok().map(Meaning::Cpus);
        cpus.filter(|_| !text.is_empty())
    }

    fn in_file(&self, value: &str, current: &str) -> String {
        let cpus = CpuSet::parse_list(value);
        cpus.map_or(String::new(), |cpus| cpus.to_mask(width(current)))
    }

    fn shown(&self, text: &str) -> String {
        match self.meaning(text) {
            Some(Meaning::Cpus(cpus)) if cpus.is_empty() => "none".to_owned(),
            Some(Meaning::Cpus(cpus)) => cpus.to_string(),
            _ => text.to_owned(),
        }
    }

    fn subject(&self, _: &Change) -> String {
        let (interface, queue) = self.id();
        format!("{interface} {}-{queue} {}", Q::DIRECTION, Q::FEATURE)
    }

    fn before(&self, machine: &Machine) -> Option<String> {
        let network = machine.network(self.id().0)?;
        Some(self.cpus(network)?.to_mask(machine.mask_width()))
    }

    fn owner(&self, machine: &Machine) -> Option<Owner> {
        let network = machine.network(self.id().0)?;
        let function = network.device.map(|it| Owner::of_function(machine, it));
        Some(Owner {
            mac: network.mac.clone(),
            ..function.unwrap_or_default()
        })
    }

    fn observe(&self, system: &dyn System, expected: &Owner, _: bool) -> Seen {
        let path = format!("/sys/class/net/{}", self.id().0);
        let links = [path.clone(), format!("{path}/device")].map(|link| system.link(&link));
        let mut found = links.iter().flatten();
        let device = found.find_map(|link| PciAddress::innermost(link));
        let has_no_device = device.is_none() && links[0].is_ok();
        let mac = expected.mac.as_ref();
        let mac = mac.and_then(|_| first_line(system, &format!("{path}/address")));
        Seen {
            has_no_device,
            ..Seen::of(Owner {
                device,
                mac,
                ..Owner::default()
            })
        }
    }

    fn is_identified(&self, expected: &Owner, seen: &Owner) -> bool {
        expected.device.is_some() && seen.device.is_some()
            || expected.mac.is_some() && seen.mac.is_some()
    }

    fn gone(&self) -> &'static str {
        "there is no such queue, or the device has only one"
    }

    // The queue's own event comes before udev renames the interface; "move" is the renaming.
    fn udev(&self, writing: &Writing<'_>) -> String {
        let (interface, queue) = self.id();
        let (direction, file) = (Q::DIRECTION, Q::FILE);
        let (below, value) = (writing.below_device(), &writing.value);
        format!(
            "ACTION==\"add|change|move\", SUBSYSTEM==\"net\", KERNEL==\"{interface}\"{below}, \
             ATTR{{queues/{direction}-{queue}/{file}}}=\"{value}\"\n"
        )
    }
}

/// How many CPUs a mask has room for, to the hex digit.
fn width(mask: &str) -> u32 {
    let (first, words) = match mask.trim().split_once(',') {
        Some((first, rest)) => (first, rest.split(',').count()),
        None => (mask.trim(), 0),
    };
    let bits = first
        .len()
        .saturating_mul(4)
        .saturating_add(words.saturating_mul(32));
    bits.min(nearfar_machine::MAX_NUMBER as usize) as u32
}

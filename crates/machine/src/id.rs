//! Numbers that must not be mixed: a node is not a CPU, an interrupt is neither.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::set::{MAX_NUMBER, SetError};

/// Interrupts are rarely members of sets, and architectures number them as they like (ia64 and Xen far above 65535); no
/// kernel has a number with the sign bit.
const IRQ_MAX: u32 = i32::MAX as u32;

/// A number that can be a member of an [`IdSet`](crate::IdSet).
pub trait Id: Copy + Ord + fmt::Debug {
    /// What a member is called in messages: "CPU", "node".
    const NOUN: &'static str;
    fn from_number(number: u32) -> Self;
    fn number(self) -> u32;
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $noun:literal, $highest:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl<'de> Deserialize<'de> for $name {
            /// Foreign data: a number that no set could hold is an error here rather than a panic there.
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                match u32::deserialize(deserializer)? {
                    number @ 0..=$highest => Ok(Self(number)),
                    number => Err(serde::de::Error::custom(SetError::TooHigh { noun: $noun, number: number.into() })),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl Id for $name {
            const NOUN: &'static str = $noun;
            fn from_number(number: u32) -> Self {
                Self(number)
            }
            fn number(self) -> u32 {
                self.0
            }
        }
    };
}

id!(
    /// A memory node, by the kernel's number (`/sys/devices/system/node/nodeN`).
    NodeId,
    "node",
    MAX_NUMBER
);
id!(
    /// A logical CPU, by the kernel's number (`/sys/devices/system/cpu/cpuN`).
    CpuId,
    "CPU",
    MAX_NUMBER
);
id!(
    /// An interrupt, by the kernel's number (`/proc/irq/N`).
    Irq,
    "interrupt",
    IRQ_MAX
);

/// How far a node's memory is from another node's CPUs, as ACPI's SLIT counts it: 10 is local,
/// 20 is "twice as far", 255 is "cannot be reached".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Distance(pub u32);

impl Distance {
    /// The distance of a node to itself (`LOCAL_DISTANCE` in include/linux/topology.h).
    pub const LOCAL: Self = Self(10);
    /// What the kernel assumes between nodes when the firmware says nothing (`REMOTE_DISTANCE`).
    pub const REMOTE: Self = Self(20);
    /// ACPI's mark for "no path between these two" (ACPI 6.5, 5.2.17).
    pub const UNREACHABLE: Self = Self(255);
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The address of a PCI function: `domain:bus:device.function`, as in `0000:3b:00.1`.
///
/// Domains have 16 bits on real host bridges and 32 bits on virtual ones (Intel VMD, Hyper-V).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PciAddress {
    /// PCI segment; the kernel prints four or more hex digits.
    pub domain: u32,
    /// Bus within the domain.
    pub bus: u8,
    /// Device on the bus, 0 to 31.
    pub device: u8,
    /// Function of the device, 0 to 7.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (domain, bus) = (self.domain, self.bus);
        write!(
            f,
            "{domain:04x}:{bus:02x}:{:02x}.{:x}",
            self.device, self.function
        )
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a PCI address: expected domain:bus:device.function in hex, such as 0000:3b:00.0"
)]
pub struct PciAddressError {
    text: String,
}

impl FromStr for PciAddress {
    type Err = PciAddressError;

    /// Accepts what the kernel prints and lspci's short form without the domain (`3b:00.0`).
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_pci(text).ok_or_else(|| PciAddressError {
            text: text.chars().take(64).collect(),
        })
    }
}

impl PciAddress {
    /// The innermost PCI function in a path below `/sys/devices`.
    pub fn innermost(path: &str) -> Option<Self> {
        // With its domain, as the kernel writes it: parts such as `1:0.0` are something else.
        path.rsplit('/')
            .filter(|part| part.len() >= 12)
            .find_map(|part| part.parse().ok())
    }
}

fn parse_pci(text: &str) -> Option<PciAddress> {
    let (rest, function) = text.rsplit_once('.')?;
    let mut parts = rest.rsplit(':');
    let device = hex(parts.next()?, 2)?;
    let bus = hex(parts.next()?, 2)?;
    let domain = parts.next().map_or(Some(0), |domain| hex(domain, 8))?;
    if parts.next().is_some() || device > 31 {
        return None;
    }
    let function = hex(function, 1).filter(|&function| function < 8)?;
    Some(PciAddress {
        domain,
        bus: bus as u8,
        device: device as u8,
        function: function as u8,
    })
}

fn hex(text: &str, most_digits: usize) -> Option<u32> {
    let plain = !text.is_empty()
        && text.len() <= most_digits
        && text.bytes().all(|b| b.is_ascii_hexdigit());
    plain.then(|| u32::from_str_radix(text, 16).ok())?
}

/// A root bus: a host bridge's domain and first bus number, `0000:20`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RootBus {
    pub domain: u32,
    /// The bridge's first bus.
    pub bus: u8,
}

impl fmt::Display for RootBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}", self.domain, self.bus)
    }
}

impl FromStr for RootBus {
    type Err = PciAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // A root bus is the first part of the addresses on it, so the same rules hold.
        let address: PciAddress = format!("{text}:00.0").parse()?;
        Ok(address.into())
    }
}

/// The bus of a function, taken for its root bus.
impl From<PciAddress> for RootBus {
    fn from(address: PciAddress) -> Self {
        Self {
            domain: address.domain,
            bus: address.bus,
        }
    }
}

/// Stored as the text that `Display` writes and `FromStr` reads.
macro_rules! stored_as_text {
    ($($name:ident),*) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = Cow::<str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}

stored_as_text!(PciAddress, RootBus);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_of_real_and_virtual_host_bridges() {
        for text in ["0000:3b:00.0", "10000:e1:00.7", "ffffffff:ff:1f.7"] {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), text);
        }
        assert_eq!(
            "3b:00.1".parse::<PciAddress>().unwrap().to_string(),
            "0000:3b:00.1"
        );
    }

    #[test]
    fn numbers_that_no_set_holds_are_refused_when_read() {
        assert_eq!(
            serde_json::from_str::<CpuId>("65535").unwrap(),
            CpuId(65_535)
        );
        let error = serde_json::from_str::<NodeId>("65536")
            .unwrap_err()
            .to_string();
        assert!(error.contains("node 65536 is above 65535"), "{error}");
        assert!(serde_json::from_str::<Irq>("65536").is_ok());
    }

    #[test]
    fn what_is_not_a_pci_address_says_so() {
        for text in [
            "",
            ".",
            ":",
            "0000:3b:00",
            "0000:3b:20.0",
            "0000:3b:00.8",
            "+1:00.0",
            "0:0:0:0.0",
            "100000000:00:00.0",
            "ä:00.0",
        ] {
            let error = text.parse::<PciAddress>().unwrap_err();
            assert!(error.to_string().contains("PCI address"), "{text}");
        }
    }
}

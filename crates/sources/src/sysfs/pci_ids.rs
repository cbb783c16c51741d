//! Names of PCI devices and classes from the public pci.ids data (Debian package `pci.ids`, part of hwdata elsewhere).
//!
//! ```text
//! 1b36  Red Hat, Inc.            a vendor
//! <TAB>0010  QEMU NVM Express Controller      its device
//! C 01  Mass storage controller  a class
//! <TAB>08  Non-Volatile memory controller     its subclass
//! ```
//!
//! The file has some 36,000 lines, so it is only read for those who show names, in one pass, without keeping it.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};

use nearfar_machine::{Machine, PciDevice};

/// Where distributions keep the file.
const PLACES: [&str; 3] = [
    "/usr/share/misc/pci.ids",
    "/usr/share/hwdata/pci.ids",
    "/usr/share/pci.ids",
];
/// Far above the 1.4 MiB of the real file.
const LARGEST: u64 = 32 << 20;

/// Fills in the names of a machine's PCI devices, where this system has the pci.ids file.
///
/// Names are the same everywhere, so this system's file serves machines read from anywhere.
pub(crate) fn add_names(machine: &mut Machine) {
    if let Some(file) = PLACES.iter().find_map(|place| File::open(place).ok()) {
        let ids = BufReader::new(file.take(LARGEST));
        name(machine.pci.items_mut(), ids);
    }
}

/// Fills in names from the content of a pci.ids file. What the source itself named keeps its name, what the file does not
/// have stays without one.
fn name(devices: &mut [PciDevice], ids: impl BufRead) {
    let names = Names::read(devices, ids);
    for device in devices.iter_mut().filter(|device| device.is_identified()) {
        let vendor = names.vendors.get(&device.vendor);
        let model = names.devices.get(&(device.vendor, device.device));
        let name = vendor.map(|vendor| match model {
            Some(model) => format!("{vendor} {model}"),
            None => format!("{vendor} device {:04x}", device.device),
        });
        device.name = device.name.take().or(name);
        let kind = device.class_code() as u16;
        let base_class = || names.classes.get(&(kind | 0xff));
        let class = names.classes.get(&kind).or_else(base_class);
        device.class_name = device.class_name.take().or_else(|| class.cloned());
    }
}

/// The names that are wanted, as far as they were found. A base class stands as its `ff` subclass.
#[derive(Default)]
struct Names {
    vendors: HashMap<u16, String>,
    devices: HashMap<(u16, u16), String>,
    classes: HashMap<u16, String>,
}

/// What the indented lines that follow belong to.
enum Section {
    Vendor(u16),
    Class(u8),
    Other,
}

impl Names {
    fn read(devices: &[PciDevice], mut ids: impl BufRead) -> Self {
        let vendors: HashSet<u16> = devices.iter().map(|device| device.vendor).collect();
        let models = devices.iter().map(|it| (it.vendor, it.device));
        let models: HashSet<(u16, u16)> = models.collect();
        let mut names = Self::default();
        let mut section = Section::Other;
        let mut line = Vec::new();
        while matches!(ids.read_until(b'\n', &mut line), Ok(1..)) {
            match line.as_slice() {
                [b'\t', b'\t', ..] | [b'#', ..] => {}
                [b'\t', entry @ ..] => match section {
                    Section::Vendor(vendor) => {
                        if let Some((device, name)) = split(entry, 4)
                            && models.contains(&(vendor, device))
                        {
                            names.devices.insert((vendor, device), name);
                        }
                    }
                    Section::Class(base) => {
                        if let Some((sub, name)) = split(entry, 2) {
                            names.classes.insert(u16::from(base) << 8 | sub, name);
                        }
                    }
                    Section::Other => {}
                },
                [b'C', b' ', entry @ ..] => {
                    section = Section::Other;
                    if let Some((base, name)) = split(entry, 2) {
                        names.classes.insert(base << 8 | 0xff, name);
                        section = Section::Class(base as u8);
                    }
                }
                entry => {
                    section = Section::Other;
                    if let Some((vendor, name)) = split(entry, 4)
                        && vendors.contains(&vendor)
                    {
                        names.vendors.insert(vendor, name);
                        section = Section::Vendor(vendor);
                    }
                }
            }
            line.clear();
        }
        names
    }
}

/// `1b36  Red Hat, Inc.` as number and name.
fn split(entry: &[u8], digits: usize) -> Option<(u16, String)> {
    let (number, name) = entry.split_at_checked(digits)?;
    let is_plain = number.iter().all(u8::is_ascii_hexdigit);
    let number = std::str::from_utf8(number).ok().filter(|_| is_plain)?;
    let name = String::from_utf8_lossy(name);
    let is_spaced = name.starts_with(' ');
    let name = name.trim();
    let is_name = is_spaced && !name.is_empty();
    let number = u16::from_str_radix(number, 16).ok().filter(|_| is_name)?;
    Some((number, name.to_owned()))
}

#[cfg(test)]
mod tests {
    use nearfar_machine::PciAddress;

    use super::*;

    fn device(vendor: u16, device: u16, class: u32) -> PciDevice {
        let address: PciAddress = "0000:01:00.0".parse().unwrap();
        PciDevice {
            vendor,
            device,
            class,
            ..PciDevice::unknown(address, address.into(), "left out")
        }
    }

    const IDS: &str = "# comment\n1b36  Red Hat, Inc.\n\t0010  NVMe\n\t\t1af4 1100  a subsystem\n8086  Intel\n\t0010  wrong\n\
                   C 01  Mass storage controller\n\t08  Non-Volatile memory controller\n\t\t02  NVM Express\nC 02  Network\n";

    #[test]
    fn devices_get_vendor_model_and_class() {
        let mut devices = [
            device(0x1b36, 0x10, 0x010802),
            device(0x8086, 0x11, 0x028000),
            device(0xdead, 1, 0xff0000),
        ];
        name(&mut devices, IDS.as_bytes());
        let names = devices.map(|device| (device.name, device.class_name));
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(
            names[0],
            (
                some("Red Hat, Inc. NVMe"),
                some("Non-Volatile memory controller")
            )
        );
        assert_eq!(names[1], (some("Intel device 0011"), some("Network")));
        assert_eq!(names[2], (None, None));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            name(&mut [device(1, 2, 3)], bytes.as_slice());
        }
    }
}

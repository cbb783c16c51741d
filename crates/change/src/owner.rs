//! Whose a setting is: what an interrupt's number, an interface's name or a subsystem's name stands for now, and whether
//! that is what it stood for when the plan was made or the value was written.
//!
//! ```text
//! interrupt 42   /sys/kernel/irq/42/actions, else the directories in /proc/irq/42    eth0-TxRx-3
//!                /sys/bus/pci/devices/ADDRESS/msi_irqs/42                            0000:3b:00.0
//! eth0           /sys/class/net/eth0 -> .../0000:3b:00.0/net/eth0
//! nvme-subsys0   /sys/class/nvme-subsystem/nvme-subsys0/subsysnqn
//! 0000:3b:00.0   its vendor and device
//! process 4711   /proc/4711/stat: when it began
//! ```
//!
//! The kernel gives these numbers and names in the order in which drivers ask, so after a reboot, a hot plug or a new
//! binding of a driver they may be another device's. A field that one side does not have is not compared.

mod checks;

use std::collections::BTreeSet;

use nearfar_machine::{Irq, PROC_IRQ_FILES, PciAddress};
use nearfar_placement::change::{Change, Owner, Planned, ProcessIdentity};
use nearfar_proc::{Stat, tasks};

use crate::setting::Setting;
use crate::system::{System, first_line};

pub(crate) use checks::check;

/// The owner of a setting as the system shows it.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) owner: Owner,
    /// Whether no PCI function has it; otherwise a missing one is unknown.
    has_no_device: bool,
    /// Whether no process has the number.
    has_no_process: bool,
}

/// A setting that is another's now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mismatch {
    pub(crate) was: String,
    pub(crate) now: String,
    /// Whether the interrupt is another PCI function's. What was written to it went with the one it had: an interrupt
    /// that is given out again begins with the default affinity.
    pub(crate) is_given_out_again: bool,
    /// Whether the device is the same, and only the interrupt's handlers call themselves otherwise: an interface was
    /// renamed, or the driver uses its interrupts in another order.
    pub(crate) only_handlers: bool,
    /// Whether a process has ended, and no other has its number.
    pub(crate) is_ended: bool,
}

/// The owner that a plan expects.
pub(crate) fn expected(planned: &Planned) -> Owner {
    let owner = planned.owner.clone().unwrap_or_default();
    match &planned.change {
        Change::InterruptAffinity { name, .. } => Owner {
            handlers: name.clone(),
            ..owner
        },
        _ => owner,
    }
}

/// Looks at what a setting stands for. `expected` says what to look for first; a tree may lack any file.
pub(crate) fn observe(
    system: &dyn System,
    setting: &Setting,
    expected: &Owner,
    tree: bool,
) -> Seen {
    let seen = match setting {
        Setting::InterruptAffinity { irq } => interrupt(system, *irq, expected.device, tree),
        Setting::Xps { interface, .. } | Setting::Rps { interface, .. } => {
            network(system, interface, expected)
        }
        Setting::NvmeIoPolicy { subsystem } => {
            let nqn = first_line(
                system,
                &format!("/sys/class/nvme-subsystem/{subsystem}/subsysnqn"),
            );
            Seen {
                owner: Owner {
                    nqn,
                    ..Owner::default()
                },
                ..Seen::default()
            }
        }
        Setting::DeviceNode { device } => Seen {
            owner: Owner {
                device: Some(*device),
                ..Owner::default()
            },
            ..Seen::default()
        },
        Setting::TaskMemory { pid } if !tree => process(system, *pid),
        Setting::Sysctl { .. }
        | Setting::SchedulerDebug { .. }
        | Setting::Cpuset { .. }
        | Setting::CpusetMemory { .. }
        | Setting::TaskMemory { .. } => Seen::default(),
    };
    let pci_id = seen.owner.device.and_then(|device| pci_id(system, device));
    Seen {
        owner: Owner {
            pci_id,
            ..seen.owner
        },
        ..seen
    }
}

/// Whether what was seen is another owner than the one expected.
pub(crate) fn mismatch(expected: &Owner, seen: &Seen) -> Option<Mismatch> {
    fn differ<T: PartialEq>(one: &Option<T>, other: &Option<T>) -> bool {
        matches!((one, other), (Some(one), Some(other)) if one != other)
    }
    let now = &seen.owner;
    let other_device =
        differ(&expected.device, &now.device) || (expected.device.is_some() && seen.has_no_device);
    let other_handlers = match (&expected.handlers, &now.handlers) {
        (Some(was), Some(now)) => handlers(was) != handlers(now),
        _ => false,
    };
    let other_names = differ(&expected.pci_id, &now.pci_id)
        || differ(&expected.nqn, &now.nqn)
        || differ(&expected.mac, &now.mac);
    let other_process = match (&expected.process, &now.process) {
        (Some(was), Some(now)) => was.start_ticks != now.start_ticks,
        (Some(_), None) => seen.has_no_process,
        (None, _) => false,
    };
    (other_device || other_handlers || other_names || other_process).then(|| Mismatch {
        was: described(expected, &Seen::default()),
        now: described(now, seen),
        is_given_out_again: other_device && expected.handlers.is_some(),
        only_handlers: expected.device.is_some() && !other_device && !other_names,
        is_ended: other_process && seen.has_no_process,
    })
}

/// The names of an interrupt's handlers; `/proc/interrupts` and sysfs give them in the order they came.
fn handlers(names: &str) -> BTreeSet<&str> {
    names
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .collect()
}

/// `eth0-TxRx-3 of 0000:3b:00.0 (8086:1592)`.
fn described(owner: &Owner, seen: &Seen) -> String {
    if let Some(ProcessIdentity { start_ticks, name }) = &owner.process {
        return format!("{name} (began at clock tick {start_ticks})");
    }
    if seen.has_no_process {
        return "no process".to_owned();
    }
    let device = match (owner.device, &owner.pci_id) {
        (Some(device), Some(id)) => Some(format!("{device} ({id})")),
        (Some(device), None) => Some(device.to_string()),
        (None, _) => seen.has_no_device.then(|| "no PCI device".to_owned()),
    };
    let handlers = owner.handlers.as_deref().map(|names| {
        if names.trim().is_empty() {
            "no handler"
        } else {
            names
        }
    });
    let names = [handlers, owner.nqn.as_deref(), owner.mac.as_deref()]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>();
    match (names.is_empty(), device) {
        (true, device) => device.unwrap_or_else(|| "unknown".to_owned()),
        (false, Some(device)) => format!("{} of {device}", names.join(" ")),
        (false, None) => names.join(" "),
    }
}

fn interrupt(system: &dyn System, irq: Irq, expected: Option<PciAddress>, tree: bool) -> Seen {
    let directory = format!("/proc/irq/{irq}");
    let actions = system.read(&format!("/sys/kernel/irq/{irq}/actions"));
    let handlers = match (actions, system.list(&directory)) {
        (Ok(bytes), _) => Some(String::from_utf8_lossy(&bytes).trim().to_owned()),
        (Err(_), Ok(mut names)) => {
            names.retain(|name| !PROC_IRQ_FILES.contains(&name.as_str()));
            Some(names.join(",")).filter(|names| !tree || !names.is_empty())
        }
        (Err(_), Err(_)) => None,
    };
    let (device, has_no_device) =
        match expected.map(|expected| device_of(system, irq, expected, tree)) {
            None | Some(Of::Unknown) => (None, false),
            Some(Of::Device(device)) => (Some(device), false),
            Some(Of::NoDevice) => (None, true),
        };
    Seen {
        owner: Owner {
            handlers,
            device,
            ..Owner::default()
        },
        has_no_device,
        ..Seen::default()
    }
}

enum Of {
    Device(PciAddress),
    NoDevice,
    Unknown,
}

/// The function that has an interrupt: mostly the expected one, else whichever lists it.
fn device_of(system: &dyn System, irq: Irq, expected: PciAddress, tree: bool) -> Of {
    let lists = |device: &str| system.list(&format!("/sys/bus/pci/devices/{device}/msi_irqs"));
    let number = irq.to_string();
    let address = expected.to_string();
    let listed = lists(&address);
    let line = || first_line(system, &format!("/sys/bus/pci/devices/{address}/irq"));
    match &listed {
        Ok(messages) if messages.contains(&number) => return Of::Device(expected),
        // The directory is only there while messages are in use; some trees were gathered without.
        Err(_) if tree => return Of::Unknown,
        Err(_) if line().as_deref() == Some(&number) => return Of::Device(expected),
        _ => {}
    }
    let Ok(devices) = system.list("/sys/bus/pci/devices") else {
        return Of::Unknown;
    };
    let owner = devices
        .iter()
        .find(|device| lists(device).is_ok_and(|messages| messages.contains(&number)));
    owner
        .and_then(|device| device.parse().ok())
        .map_or(Of::NoDevice, Of::Device)
}

fn network(system: &dyn System, interface: &str, expected: &Owner) -> Seen {
    let path = format!("/sys/class/net/{interface}");
    let links = [path.clone(), format!("{path}/device")].map(|link| system.link(&link));
    let device = links
        .iter()
        .flatten()
        .find_map(|link| PciAddress::innermost(link));
    let has_no_device = device.is_none() && links[0].is_ok();
    let mac = expected
        .mac
        .as_ref()
        .and_then(|_| first_line(system, &format!("{path}/address")));
    Seen {
        owner: Owner {
            device,
            mac,
            ..Owner::default()
        },
        has_no_device,
        ..Seen::default()
    }
}

fn process(system: &dyn System, pid: i32) -> Seen {
    let stat = match system.read(&format!("/proc/{pid}/stat")) {
        Ok(stat) => stat,
        Err(error) => {
            return Seen {
                has_no_process: tasks::is_gone(&error),
                ..Seen::default()
            };
        }
    };
    let process = Stat::parse_with_name(&stat).map(|(stat, name)| ProcessIdentity {
        start_ticks: stat.id.start,
        name: name.to_text(),
    });
    Seen {
        owner: Owner {
            process,
            ..Owner::default()
        },
        ..Seen::default()
    }
}

fn pci_id(system: &dyn System, device: PciAddress) -> Option<String> {
    let number = |file: &str| {
        let text = first_line(system, &format!("/sys/bus/pci/devices/{device}/{file}"))?;
        u16::from_str_radix(text.trim_start_matches("0x"), 16).ok()
    };
    Some(format!(
        "{:04x}:{:04x}",
        number("vendor")?,
        number("device")?
    ))
}

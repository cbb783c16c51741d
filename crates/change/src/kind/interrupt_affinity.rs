use std::io;

use nearfar_machine::{CpuSet, Irq, Machine, NetworkDevice, PROC_IRQ_FILES, PciAddress};
use nearfar_proc::error_text;
use serde::{Deserialize, Serialize};

use super::{ChangeError, Kind, Meaning, check_interface, cpu_list};
use crate::change::{Change, Owner, Planned};
use crate::export::Writing;
use crate::outcome::Effective;
use crate::owner::Seen;
use crate::system::{System, first_line, text};

/// `/proc/irq/N/smp_affinity_list`, a CPU list.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InterruptAffinity {
    /// The interrupt.
    pub irq: Irq,
}

impl Kind for InterruptAffinity {
    fn at(path: &[&str]) -> Option<Self> {
        let ["proc", "irq", irq, _] = path else {
            return None;
        };
        Some(Self {
            irq: Irq(irq.parse().ok()?),
        })
    }

    fn path(&self) -> String {
        format!("/proc/irq/{}/smp_affinity_list", self.irq)
    }

    fn check(&self) -> Result<(), ChangeError> {
        Ok(())
    }

    fn check_value(&self, _: &Planned, value: &str) -> Result<(), ChangeError> {
        ChangeError::unless(!value.is_empty(), || {
            format!("interrupt {} would have no CPU to serve it", self.irq)
        })
    }

    fn meaning(&self, text: &str) -> Option<Meaning> {
        cpu_list(text)
    }

    fn subject(&self, change: &Change) -> String {
        match change {
            Change::InterruptAffinity {
                irq,
                name: Some(name),
                ..
            } => format!("interrupt {irq} ({name})"),
            _ => format!("interrupt {}", self.irq),
        }
    }

    fn before(&self, machine: &Machine) -> Option<String> {
        let affinity = machine.interrupt(self.irq)?.affinity.get();
        affinity.map(CpuSet::to_string)
    }

    fn owner(&self, machine: &Machine) -> Option<Owner> {
        let interrupt = machine.interrupt(self.irq)?;
        let device = interrupt.device?;
        let interface = interface(machine, device, &interrupt.name).map(|it| it.name.clone());
        Some(Owner {
            interface,
            controller: controller(machine, device),
            ..Owner::of_function(machine, device)
        })
    }

    fn owner_in_plan(&self, planned: &Planned) -> Owner {
        let owner = planned.owner.clone().unwrap_or_default();
        match &planned.change {
            Change::InterruptAffinity { name, .. } => Owner {
                handlers: name.clone(),
                ..owner
            },
            _ => owner,
        }
    }

    fn observe(&self, system: &dyn System, expected: &Owner, tree: bool) -> Seen {
        let irq = self.irq;
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
        let (device, has_no_device) = match expected
            .device
            .map(|expected| device_of(system, irq, expected, tree))
        {
            None | Some(Of::Unknown) => (None, false),
            Some(Of::Device(device)) => (Some(device), false),
            Some(Of::NoDevice) => (None, true),
        };
        Seen {
            has_no_device,
            ..Seen::of(Owner {
                handlers,
                device,
                ..Owner::default()
            })
        }
    }

    fn is_identified(&self, expected: &Owner, seen: &Owner) -> bool {
        expected.handlers.is_some() && seen.handlers.is_some()
    }

    fn gone(&self) -> &'static str {
        "there is no such interrupt (any more)"
    }

    // `irq_set_affinity` (kernel/irq/proc.c): EIO, since Linux 6.11 EPERM, for interrupts the kernel manages.
    fn is_kept(&self, error: &io::Error) -> Option<String> {
        let is_kept = matches!(error.raw_os_error(), Some(libc::EIO | libc::EPERM));
        is_kept.then(|| {
            let error = error_text(error);
            format!("the kernel manages this interrupt itself ({error})")
        })
    }

    fn refused(&self, error: &io::Error) -> &'static str {
        match error.raw_os_error() {
            Some(libc::ENOSPC) => " (no interrupt vector left on any CPU of the plan's list)",
            Some(libc::ERANGE | libc::EOVERFLOW) => " (there is no such CPU)",
            Some(libc::EINVAL) => " (none of these CPUs is online)",
            _ => "",
        }
    }

    fn effective(&self, system: &dyn System, now: &str) -> Option<Effective> {
        let irq = self.irq;
        let path = format!("/proc/irq/{irq}/effective_affinity_list");
        let unknown = |reason: String| Some(Effective::NotKnown { reason });
        let cpus = match text(system, &path) {
            Ok(list) => list.trim().to_owned(),
            Err(error) => return unknown(format!("{path}: {}", error_text(&error))),
        };
        match (CpuSet::parse_list(&cpus), CpuSet::parse_list(now)) {
            (Ok(set), _) if set.is_empty() => {
                unknown(format!("{path} is empty: the interrupt is not in use"))
            }
            (Ok(set), Ok(wanted)) if set.is_subset(&wanted) => Some(Effective::Now { cpus }),
            (Ok(_), _) => Some(Effective::WithTheNextInterrupt { cpus }),
            (Err(error), _) => unknown(format!("{path}: {error}")),
        }
    }

    /// Waits for the device that has the interrupt: drivers agree on no form of a handler's name (`i40e-eth0-TxRx-1`,
    /// `virtio0-input.1`), so the plan says which it is. Network drivers ask for their interrupts when the interface is brought
    /// up, without an event of udev: the `change` event serves, for `udevadm trigger` after that.
    fn udev(&self, writing: &Writing<'_>) -> String {
        let Some(name) = lookup_name(&writing.planned.change) else {
            return writing.left_out_line(NO_NAME);
        };
        let Owner {
            interface,
            controller,
            device,
            ..
        } = writing.owner();
        let interface = interface.filter(|name| check_interface(name).is_ok());
        let controller = controller.filter(|name| is_controller(name));
        let event = match (interface, controller, device) {
            (Some(name), ..) => {
                format!(
                    "ACTION==\"add|change|move\", SUBSYSTEM==\"net\", KERNEL==\"{name}\"{}",
                    writing.below_device()
                )
            }
            (None, Some(name), _) => {
                format!(
                    "ACTION==\"add|change\", SUBSYSTEM==\"nvme\", KERNEL==\"{name}\"{}",
                    writing.below_device()
                )
            }
            // Interrupts are there when the driver is: "bind" (since Linux 4.14) comes after "add".
            (None, None, Some(device)) => {
                format!("ACTION==\"bind|change\", SUBSYSTEM==\"pci\", KERNEL==\"{device}\"")
            }
            (None, None, None) => {
                return writing.left_out_line(
                    "the plan does not say which device has it; see --format systemd",
                );
            }
        };
        // $$ and %% are udev's way to write $ and %.
        let command = put_by_name(name, &writing.value, device)
            .replace('%', "%%")
            .replace('$', "$$");
        format!("{event}, RUN+=\"/bin/sh -c '{command}'\"\n")
    }

    fn command(&self, writing: &Writing<'_>) -> Result<String, &'static str> {
        let name = lookup_name(&writing.planned.change).ok_or(NO_NAME)?;
        Ok(put_by_name(name, &writing.value, writing.owner().device))
    }
}

const NO_NAME: &str =
    "interrupt numbers change at every boot, and the plan gives no name to look it up by";

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

/// The interface of a function. Where it has several, the one that the handler names: `eth1-TxRx-0`.
fn interface<'a>(
    machine: &'a Machine,
    device: PciAddress,
    handler: &str,
) -> Option<&'a NetworkDevice> {
    let networks = machine.networks.get()?;
    let of_device = || {
        networks
            .iter()
            .filter(|network| network.device == Some(device))
    };
    let is_named = |network: &&NetworkDevice| {
        handler
            .split(['-', ':', '@', ' '])
            .any(|word| word == network.name)
    };
    of_device().find(is_named).or_else(|| of_device().next())
}

fn controller(machine: &Machine, device: PciAddress) -> Option<String> {
    let mut controllers = machine
        .nvme
        .get()?
        .iter()
        .flat_map(|subsystem| &subsystem.controllers);
    controllers
        .find(|controller| controller.device == Some(device))
        .map(|controller| controller.name.clone())
}

/// The name by which an interrupt can be found again after a boot, where it is fit for that: the last word of its line
/// in /proc/interrupts, unless several handlers share the line.
fn lookup_name(change: &Change) -> Option<&str> {
    let Change::InterruptAffinity {
        name: Some(name), ..
    } = change
    else {
        return None;
    };
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._:@-".contains(&b);
    ((1..=128).contains(&name.len()) && name.bytes().all(plain)).then_some(name)
}

/// A shell command, without any quotation mark, that finds the interrupt whose line in /proc/interrupts ends with the
/// name ("7:" is its first word) and gives it to these CPUs. Names such as `virtio0-input.0` are numbered again at every
/// boot: where the device is known, the interrupt has to be one of its messages.
fn put_by_name(name: &str, cpus: &str, device: Option<PciAddress>) -> String {
    let of_device = device.map_or_else(String::new, |device| {
        let messages = format!("/sys/bus/pci/devices/{device}/msi_irqs");
        format!(" && {{ [ ! -d {messages} ] || [ -e {messages}/${{irq%:}} ]; }}")
    });
    format!(
        "set -f; while read -r irq rest; do last=; for last in $rest; do :; done; if [ x$last = x{name} ]{of_device}; \
         then echo {cpus} > /proc/irq/${{irq%:}}/smp_affinity_list; fi; done < /proc/interrupts"
    )
}

fn is_controller(name: &str) -> bool {
    let digits = name.strip_prefix("nvme").unwrap_or_default();
    (1..=10).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit())
}

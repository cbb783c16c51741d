//! What the number or name in a change stands for: what `apply` compares before it writes, and what exported rules wait
//! for.

use nearfar_machine::{Machine, NetworkDevice, PciAddress};

use super::choice::subsystem;
use super::network;
use crate::change::{Change, Owner, ProcessIdentity};

/// The owner of what a change writes to; `None` if the machine does not have it.
pub(super) fn of(machine: &Machine, change: &Change) -> Option<Owner> {
    let owner = match change {
        Change::InterruptAffinity { irq, .. } => {
            let interrupts = machine.interrupts.get()?;
            let index = interrupts
                .binary_search_by_key(irq, |interrupt| interrupt.irq)
                .ok()?;
            let interrupt = &interrupts[index];
            let device = interrupt.device?;
            let interface =
                interface(machine, device, &interrupt.name).map(|network| network.name.clone());
            Owner {
                interface,
                controller: controller(machine, device),
                ..function(machine, device)
            }
        }
        Change::Xps { interface, .. } | Change::Rps { interface, .. } => {
            let network = network(machine, interface)?;
            let function = network
                .device
                .map(|device| function(machine, device))
                .unwrap_or_default();
            Owner {
                mac: network.mac.clone(),
                ..function
            }
        }
        Change::NvmeIoPolicy {
            subsystem: name, ..
        } => Owner {
            nqn: subsystem(machine, name)?.nqn.clone(),
            ..Owner::default()
        },
        Change::DeviceNode { device, .. } => function(machine, *device),
        Change::TaskMemory { pid, .. } => {
            let tasks = machine.tasks.get()?;
            let task = tasks.iter().find(|task| task.pid == *pid)?;
            Owner {
                process: Some(ProcessIdentity {
                    start_ticks: *task.start.get()?,
                    name: task.name.clone(),
                }),
                ..Owner::default()
            }
        }
        Change::Sysctl { .. }
        | Change::SchedulerDebug { .. }
        | Change::Cpuset { .. }
        | Change::CpusetMemory { .. } => {
            return None;
        }
    };
    (owner != Owner::default()).then_some(owner)
}

fn function(machine: &Machine, address: PciAddress) -> Owner {
    let id = machine
        .pci_device(address)
        .filter(|device| device.is_identified())
        .map(|device| format!("{:04x}:{:04x}", device.vendor, device.device));
    Owner {
        device: Some(address),
        pci_id: id,
        ..Owner::default()
    }
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

//! Carrying a plan out on the description of a machine.

use nearfar_change::{Change, Plan};
use nearfar_machine::{Known, Machine, NetworkDevice};

use super::list;

/// The machine after every change of the plan, each taking effect at once.
pub fn after(machine: &Machine, plan: &Plan) -> Machine {
    let mut machine = machine.clone();
    plan.changes
        .iter()
        .for_each(|planned| change(&mut machine, &planned.change));
    machine
}

fn change(machine: &mut Machine, change: &Change) {
    match change {
        Change::InterruptAffinity { irq, cpus, .. } => {
            let interrupt = list(&mut machine.interrupts)
                .iter_mut()
                .find(|interrupt| interrupt.irq == *irq)
                .unwrap();
            interrupt.affinity = Known::Yes(cpus.clone());
            // The controller takes one of them.
            interrupt.effective = Known::Yes(cpus.lowest(1));
        }
        Change::Xps {
            interface,
            queue,
            cpus,
        } => {
            network(machine, interface)
                .transmit
                .iter_mut()
                .find(|transmit| transmit.queue == *queue)
                .unwrap()
                .xps = Known::Yes(cpus.clone());
        }
        Change::Rps {
            interface,
            queue,
            cpus,
        } => {
            network(machine, interface)
                .receive
                .iter_mut()
                .find(|receive| receive.queue == *queue)
                .unwrap()
                .rps = Known::Yes(cpus.clone());
        }
        Change::NvmeIoPolicy { subsystem, policy } => {
            let found = list(&mut machine.nvme)
                .iter_mut()
                .find(|found| found.name == *subsystem)
                .unwrap();
            found.iopolicy = Known::Yes(policy.clone());
        }
        Change::DeviceNode { device, node, .. } => {
            let found = list(&mut machine.pci)
                .iter_mut()
                .find(|found| found.address == *device)
                .unwrap();
            found.node = Known::Yes(Some(*node));
            for controller in list(&mut machine.nvme)
                .iter_mut()
                .flat_map(|subsystem| &mut subsystem.controllers)
            {
                if controller.device == Some(*device) {
                    controller.node = Known::Yes(Some(*node));
                }
            }
        }
        Change::Sysctl { value, .. } => {
            machine.settings.numa_balancing = Known::Yes(value.parse().unwrap())
        }
        // No audit rule is about the others, so no plan has them.
        other => unreachable!("{other:?}"),
    }
}

fn network<'m>(machine: &'m mut Machine, interface: &str) -> &'m mut NetworkDevice {
    list(&mut machine.networks)
        .iter_mut()
        .find(|network| network.name == *interface)
        .unwrap()
}

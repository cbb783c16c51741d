//! udev rules, which act whenever a device appears: at boot, and when one is plugged in later.

use nearfar_machine::PciAddress;
use nearfar_placement::change::{Change, Owner, Plan};

use super::{Writing, explained, heading, lookup_name, put_by_name, writings};
use crate::setting::check_interface;

const INSTALL: &str = "#
# Install: save as /etc/udev/rules.d/99-nearfar.rules, then
#     udevadm control --reload
#     udevadm trigger --action=change -s net -s nvme -s nvme-subsystem -s pci
# Interrupts are no devices of udev's, and their numbers change at every boot: they are looked up by the name of their
# handler when the device that has them appears. A network driver asks for them when its interface comes up, which udev
# does not see: trigger the event again then, or use the unit of --format systemd.
# Settings of the kernel (sysctl) belong into /etc/sysctl.d and are comments here.
";

/// The plan as udev rules. What udev cannot do is a comment that says why.
pub fn udev(plan: &Plan) -> String {
    let mut text = format!(
        "{}{INSTALL}",
        heading(plan, "Memory placement when devices appear")
    );
    for writing in &writings(plan) {
        text.push('\n');
        text.push_str(&explained(writing, act));
    }
    text
}

fn act(writing: &Writing<'_>) -> String {
    let value = &writing.value;
    match &writing.planned.change {
        Change::InterruptAffinity { .. } => interrupt(writing),
        // The queue's own event comes before udev renames the interface; "move" is the renaming.
        Change::Xps {
            interface, queue, ..
        } => queue_rule(writing, interface, &format!("tx-{queue}/xps_cpus")),
        Change::Rps {
            interface, queue, ..
        } => queue_rule(writing, interface, &format!("rx-{queue}/rps_cpus")),
        Change::NvmeIoPolicy { subsystem, .. } => {
            // The number of a subsystem is given out in the order in which disks answer; its NQN is its own.
            let plain = |b: u8| b.is_ascii_alphanumeric() || b".:_-".contains(&b);
            let nqn = owner(writing)
                .nqn
                .filter(|nqn| !nqn.is_empty() && nqn.bytes().all(plain));
            let which = nqn.map_or_else(
                || format!("KERNEL==\"{subsystem}\""),
                |nqn| format!("ATTR{{subsysnqn}}==\"{nqn}\""),
            );
            format!(
                "ACTION==\"add|change\", SUBSYSTEM==\"nvme-subsystem\", {which}, ATTR{{iopolicy}}=\"{value}\"\n"
            )
        }
        Change::DeviceNode { device, .. } => {
            format!(
                "ACTION==\"add\", SUBSYSTEM==\"pci\", KERNEL==\"{device}\", ATTR{{numa_node}}=\"{value}\"\n"
            )
        }
        Change::SchedulerDebug { .. }
        | Change::Cpuset { .. }
        | Change::CpusetMemory { .. }
        // Left out before ([`super::writing`]).
        | Change::TaskMemory { .. } => format!(
            "# left out: no event of udev is about it: {} = {value}\n",
            writing.file
        ),
        Change::Sysctl { name, .. } => {
            format!("# left out: for /etc/sysctl.d/99-nearfar.conf: {name} = {value}\n")
        }
    }
}

fn owner(writing: &Writing<'_>) -> Owner {
    writing.planned.owner.clone().unwrap_or_default()
}

/// The device above the one that the event is about: names are given out in the order in which devices appear.
fn below(device: Option<PciAddress>) -> String {
    device.map_or_else(String::new, |device| format!(", KERNELS==\"{device}\""))
}

fn queue_rule(writing: &Writing<'_>, interface: &str, attribute: &str) -> String {
    let (below, value) = (below(owner(writing).device), &writing.value);
    format!(
        "ACTION==\"add|change|move\", SUBSYSTEM==\"net\", KERNEL==\"{interface}\"{below}, \
         ATTR{{queues/{attribute}}}=\"{value}\"\n"
    )
}

/// Waits for the device that has the interrupt: drivers agree on no form of a handler's name (`i40e-eth0-TxRx-1`,
/// `virtio0-input.1`), so the plan says which it is. Network drivers ask for their interrupts when the interface is brought
/// up, without an event of udev: the `change` event serves, for `udevadm trigger` after that.
fn interrupt(writing: &Writing<'_>) -> String {
    let left_out = |reason: &str| {
        format!(
            "# left out: {} <- {}: {reason}\n",
            writing.file, writing.value
        )
    };
    let Some(name) = lookup_name(&writing.planned.change) else {
        return left_out(
            "interrupt numbers change at every boot, and the plan gives no name to look it up by",
        );
    };
    let Owner {
        interface,
        controller,
        device,
        ..
    } = owner(writing);
    let interface = interface.filter(|name| check_interface(name).is_ok());
    let controller = controller.filter(|name| is_controller(name));
    let event = match (interface, controller, device) {
        (Some(name), ..) => {
            format!(
                "ACTION==\"add|change|move\", SUBSYSTEM==\"net\", KERNEL==\"{name}\"{}",
                below(device)
            )
        }
        (None, Some(name), _) => {
            format!(
                "ACTION==\"add|change\", SUBSYSTEM==\"nvme\", KERNEL==\"{name}\"{}",
                below(device)
            )
        }
        // Interrupts are there when the driver is: "bind" (since Linux 4.14) comes after "add".
        (None, None, Some(device)) => {
            format!("ACTION==\"bind|change\", SUBSYSTEM==\"pci\", KERNEL==\"{device}\"")
        }
        (None, None, None) => {
            return left_out("the plan does not say which device has it; see --format systemd");
        }
    };
    // $$ and %% are udev's way to write $ and %.
    let command = put_by_name(name, &writing.value, device)
        .replace('%', "%%")
        .replace('$', "$$");
    format!("{event}, RUN+=\"/bin/sh -c '{command}'\"\n")
}

fn is_controller(name: &str) -> bool {
    let digits = name.strip_prefix("nvme").unwrap_or_default();
    (1..=10).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit())
}

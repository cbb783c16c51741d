//! udev rules, which act whenever a device appears: at boot, and when one is plugged in later.

use nearfar_placement::change::{Change, Plan};

use super::{Writing, explained, heading, lookup_name, put_by_name, writings};

const INSTALL: &str = "#
# Install: save as /etc/udev/rules.d/99-nearfar.rules, then
#     udevadm control --reload && udevadm trigger --action=change --subsystem-match=nvme-subsystem --subsystem-match=net
# Interrupts are no devices of udev's, and their numbers change at every boot: they are looked up by the name of their
# handler when their network interface or disk controller appears, as far as the name tells which that is.
# Settings of the kernel (sysctl) belong into /etc/sysctl.d and are comments here.
";

/// The plan as udev rules. What udev cannot do is a comment that says why.
pub fn udev(plan: &Plan) -> String {
    let mut text = format!("{}{INSTALL}", heading(plan, "Memory placement when devices appear"));
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
        Change::Xps { interface, queue, .. } => queue_rule(interface, &format!("tx-{queue}/xps_cpus"), value),
        Change::Rps { interface, queue, .. } => queue_rule(interface, &format!("rx-{queue}/rps_cpus"), value),
        Change::NvmeIoPolicy { subsystem, .. } => format!(
            "ACTION==\"add|change\", SUBSYSTEM==\"nvme-subsystem\", KERNEL==\"{subsystem}\", \
             ATTR{{iopolicy}}=\"{value}\"\n"
        ),
        Change::DeviceNode { device, .. } => {
            format!("ACTION==\"add\", SUBSYSTEM==\"pci\", KERNEL==\"{device}\", ATTR{{numa_node}}=\"{value}\"\n")
        }
        Change::Sysctl { name, .. } => format!("# left out: for /etc/sysctl.d/99-nearfar.conf: {name} = {value}\n"),
    }
}

fn queue_rule(interface: &str, attribute: &str, value: &str) -> String {
    format!(
        "ACTION==\"add|change|move\", SUBSYSTEM==\"net\", KERNEL==\"{interface}\", \
         ATTR{{queues/{attribute}}}=\"{value}\"\n"
    )
}

/// Handlers are named after their interface (`eth0-TxRx-1`) or controller (`nvme0q0`), which is then the device to wait
/// for. Network drivers ask for their interrupts when the interface is brought up, which udev is not told: hence the
/// `change` event, for `udevadm trigger` after that.
fn interrupt(writing: &Writing<'_>) -> String {
    let left_out = |because: &str| format!("# left out: {} <- {}: {because}\n", writing.file, writing.value);
    let Some(name) = lookup_name(&writing.planned.change) else {
        return left_out("interrupt numbers change at every boot, and the plan gives no name to look it up by");
    };
    let digits = |rest: &str| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit());
    let nvme = name.strip_prefix("nvme").and_then(|rest| rest.split_once('q')).filter(|(it, _)| digits(it));
    let device = match (nvme, name.split_once('-')) {
        (Some((number, _)), _) => format!("SUBSYSTEM==\"nvme\", KERNEL==\"nvme{number}\""),
        (None, Some((interface, _))) if !interface.contains([':', '@']) && interface.len() <= 15 => {
            format!("SUBSYSTEM==\"net\", KERNEL==\"{interface}\"")
        }
        _ => return left_out("its name does not tell which device to wait for; see --format systemd"),
    };
    // $$ and %% are udev's way to write $ and %.
    let command = put_by_name(name, &writing.value).replace('%', "%%").replace('$', "$$");
    format!("ACTION==\"add|change|move\", {device}, RUN+=\"/bin/sh -c '{command}'\"\n")
}

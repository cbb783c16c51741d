//! A systemd service that makes the changes at every boot, after the devices have appeared.

use nearfar_placement::change::{Change, Plan};

use super::{Writing, explained, heading, lookup_name, put_by_name, writings};

const UNIT: &str = "#
# Install: save as /etc/systemd/system/nearfar-placement.service, then
#     systemctl daemon-reload && systemctl enable nearfar-placement.service
# Each line is tried; the leading - lets the others go on where one is refused (journalctl -u nearfar-placement).
# irqbalance moves interrupts again unless it is configured not to (IRQBALANCE_BANNED_CPULIST, --banirq) or stopped.

[Unit]
Description=Memory placement from a nearfar plan
# Network drivers ask for their interrupts when the interface comes up: after network.target.
After=systemd-udev-settle.service network.target irqbalance.service
Wants=systemd-udev-settle.service

[Service]
Type=oneshot
RemainAfterExit=yes
";

const INSTALL: &str = "
[Install]
WantedBy=multi-user.target
";

/// The plan as a oneshot service. Interrupts get other numbers at every boot: they are looked up by the name of their
/// handler in /proc/interrupts, and those without a name that can be looked up are left out with a comment.
pub fn systemd(plan: &Plan) -> String {
    let mut text = format!("{}{UNIT}", heading(plan, "Memory placement at every boot"));
    let lines: Vec<String> = writings(plan)
        .iter()
        .map(|writing| explained(writing, line))
        .collect();
    if !lines.iter().any(|line| line.contains("\nExecStart=")) {
        // systemd refuses a service without a command.
        text.push_str("# Nothing of the plan can be kept over a boot.\nExecStart=/bin/true\n");
    }
    text.extend(lines);
    text.push_str(INSTALL);
    text
}

fn line(writing: &Writing<'_>) -> String {
    match command(writing) {
        Ok(command) => format!("ExecStart=-/bin/sh -c \"{}\"\n", escaped(&command)),
        Err(reason) => format!(
            "# left out: {} <- {}: {reason}\n",
            writing.file, writing.value
        ),
    }
}

fn command(writing: &Writing<'_>) -> Result<String, &'static str> {
    match &writing.planned.change {
        Change::InterruptAffinity { .. } => {
            let name = lookup_name(&writing.planned.change)
                .ok_or("interrupt numbers change at every boot, and the plan gives no name to look it up by")?;
            let device = writing
                .planned
                .owner
                .as_ref()
                .and_then(|owner| owner.device);
            Ok(put_by_name(name, &writing.value, device))
        }
        // systemd keeps the value where it starts the unit again, and enables the cpuset controller for it.
        Change::CpusetMemory { group, .. } if unit_of(group).is_some() => {
            let unit = unit_of(group).unwrap_or_default();
            let value = &writing.value;
            Ok(format!(
                "systemctl set-property --runtime '{unit}' AllowedMemoryNodes={value}"
            ))
        }
        _ => Ok(format!("echo '{}' > '{}'", writing.value, writing.file)),
    }
}

/// The unit that a control group is of; none for the groups that the unit makes below its own.
fn unit_of(group: &str) -> Option<&str> {
    let name = group.rsplit('/').next()?;
    let is_unit = [".service", ".scope", ".slice", ".socket", ".mount", ".swap"]
        .iter()
        .any(|kind| name.ends_with(kind));
    is_unit.then_some(name)
}

/// Text inside double quotes of a unit file, where systemd itself takes `$` and `%` (systemd.service(5)).
fn escaped(command: &str) -> String {
    command
        .replace('\\', r"\\")
        .replace('"', "\\\"")
        .replace('%', "%%")
        .replace('$', "$$")
}

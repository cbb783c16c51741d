//! A systemd service that makes the changes at every boot, after the devices have appeared.

use super::{Writing, explained, heading, writings};
use crate::change::Plan;

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
    match writing.setting.kind().command(writing) {
        Ok(command) => format!("ExecStart=-/bin/sh -c \"{}\"\n", escaped(&command)),
        Err(reason) => writing.left_out_line(reason),
    }
}

/// Text inside double quotes of a unit file, where systemd itself takes `$` and `%` (systemd.service(5)).
fn escaped(command: &str) -> String {
    command
        .replace('\\', r"\\")
        .replace('"', "\\\"")
        .replace('%', "%%")
        .replace('$', "$$")
}

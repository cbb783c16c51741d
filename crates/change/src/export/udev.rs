//! udev rules, which act whenever a device appears: at boot, and when one is plugged in later.

use super::{explained, heading, writings};
use crate::change::Plan;

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
        text.push_str(&explained(writing, |it| it.setting.kind().udev(it)));
    }
    text
}

//! A plan as text that a person reads, keeps and runs without nearfar: a shell script for now, a systemd unit or udev
//! rules for every boot.
//!
//! A plan is foreign input here too. Changes that [`check`](crate::check()) would refuse are left out with a comment;
//! names and values that pass consist of characters that mean nothing to a shell, systemd or udev, and are quoted all
//! the same; free text (reasons, old values) appears in comments only, on one line, as printable ASCII.

mod bind;
mod script;
mod systemd;
mod udev;

use nearfar_machine::PciAddress;
use nearfar_placement::change::{Change, PLAN_FORMAT, Plan, Planned};

use crate::check::check_planned;
use crate::setting::{Setting, mask_width};

pub use bind::{UnitBinding, UnitBindingError, UnitPolicy, unit_drop_in};
pub use script::script;
pub use systemd::systemd;
pub use udev::udev;

/// A comment on why a change is not exported.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct LeftOut(String);

type Exported<'a> = Result<Writing<'a>, LeftOut>;

/// A change as a write.
struct Writing<'a> {
    planned: &'a Planned,
    file: String,
    value: String,
}

impl Writing<'_> {
    /// The lines that say why, without a comment sign.
    fn reasons(&self) -> Vec<String> {
        let was = match &self.planned.before {
            Some(before) => comment(before),
            None => "not seen when the plan was made".to_owned(),
        };
        vec![
            format!(
                "{}: {}",
                comment(&self.planned.rule),
                comment(&self.planned.reason)
            ),
            format!("was: {was}"),
        ]
    }

    /// What is left to the reader: whether a device may lose its driver for a moment takes a look at who uses it,
    /// which `nearfar apply` takes and a script at boot does not.
    fn rebinding(&self) -> Vec<String> {
        let Change::DeviceNode { device, rebind, .. } = &self.planned.change else {
            return Vec::new();
        };
        let driver = rebind.as_deref().unwrap_or("DRIVER");
        let echo = |verb: &str| format!("echo {device} > /sys/bus/pci/drivers/{driver}/{verb}");
        vec![
            "This taints the kernel, and a bound driver keeps the node it was bound with. When nothing uses the device:"
                .to_owned(),
            format!("    {} && {}", echo("unbind"), echo("bind")),
        ]
    }

    /// The value before, if it is fit to be written back.
    fn before(&self) -> Option<&str> {
        let before = self.planned.before.as_deref()?.trim();
        let plain = |b: u8| b.is_ascii_alphanumeric() || b" \t,._-".contains(&b);
        (!before.is_empty() && before.bytes().all(plain)).then_some(before)
    }
}

/// What a unit or a rules file holds for a change: the reasons as comments, then what acts; for one that cannot be
/// exported only the comment on why not.
fn explained(exported: &Exported<'_>, act: impl FnOnce(&Writing<'_>) -> String) -> String {
    let writing = match exported {
        Ok(writing) => writing,
        Err(left_out) => return format!("# {left_out}\n"),
    };
    let reasons = writing.reasons().into_iter().chain(writing.rebinding());
    let comments: String = reasons.map(|line| format!("# {line}\n")).collect();
    comments + &act(writing)
}

/// The plan's changes in order.
fn writings(plan: &Plan) -> Vec<Exported<'_>> {
    plan.changes
        .iter()
        .zip(1..)
        .map(|(planned, number)| writing(plan, planned, number))
        .collect()
}

fn writing<'a>(plan: &Plan, planned: &'a Planned, number: usize) -> Exported<'a> {
    let left_out =
        |reason: String| LeftOut(format!("left out: change {number}: {}", comment(&reason)));
    if plan.plan_format != PLAN_FORMAT {
        return Err(left_out(format!(
            "plan format {}, this version knows {PLAN_FORMAT}",
            plan.plan_format
        )));
    }
    check_planned(planned).map_err(|error| left_out(error.to_string()))?;
    let value = match &planned.change {
        Change::InterruptAffinity { cpus, .. } => cpus.to_string(),
        Change::Xps { cpus, .. } | Change::Rps { cpus, .. } => {
            cpus.to_mask(planned.before.as_deref().map_or(1, mask_width))
        }
        Change::NvmeIoPolicy { policy, .. } => policy.to_string(),
        Change::DeviceNode { node, .. } => node.to_string(),
        Change::Sysctl { value, .. } | Change::SchedulerDebug { value, .. } => value.clone(),
        Change::Cpuset { cpus, .. } => cpus.to_string(),
        Change::CpusetMemory { nodes, .. } => nodes.to_string(),
        Change::TaskMemory { pid, .. } => {
            return Err(left_out(format!(
                "memory of process {pid}: the process ends with this boot, and no file moves its pages; use nearfar \
                 apply, or prefer to keep a service near its memory"
            )));
        }
    };
    Ok(Writing {
        planned,
        file: Setting::of(&planned.change).path(),
        value,
    })
}

/// Foreign text as a part of one comment line. Newlines would end the comment, and a backslash at the end of one joins
/// the next line to it in systemd and udev.
fn comment(text: &str) -> String {
    const LONGEST: usize = 300;
    let plain = |c: char| match c {
        '\\' => '/',
        ' '..='~' => c,
        _ if c.is_whitespace() || c.is_control() => ' ',
        _ => '?',
    };
    let one_line: String = text.trim().chars().take(LONGEST).map(plain).collect();
    match text.trim().chars().nth(LONGEST) {
        Some(_) => format!("{one_line}..."),
        None => one_line,
    }
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

/// The name of a host in a comment.
fn host(name: Option<&str>) -> String {
    name.map_or_else(|| "a host that is not named".to_owned(), comment)
}

/// The first lines of every export.
fn heading(plan: &Plan, what: &str) -> String {
    let host = host(plan.host.as_deref());
    format!(
        "# {what} for {host}\n# Written by nearfar {} from a plan; see docs/plan.md.\n",
        env!("CARGO_PKG_VERSION")
    )
}

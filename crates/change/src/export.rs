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

use crate::change::{Change, Owner, PLAN_FORMAT, Plan, Planned};
use crate::check::check_planned;
use crate::kind::Setting;

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
pub(crate) struct Writing<'a> {
    pub(crate) planned: &'a Planned,
    pub(crate) setting: Setting,
    pub(crate) file: String,
    pub(crate) value: String,
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

    /// What the plan says of whose the setting is.
    pub(crate) fn owner(&self) -> Owner {
        self.planned.owner.clone().unwrap_or_default()
    }

    /// For a udev rule: the device above the one that the event is about, as names are given out in the order in which devices
    /// appear.
    pub(crate) fn below_device(&self) -> String {
        let device = self.owner().device;
        device.map_or_else(String::new, |device| format!(", KERNELS==\"{device}\""))
    }

    /// The comment on why it does not act.
    pub(crate) fn left_out_line(&self, reason: &str) -> String {
        format!("# left out: {} <- {}: {reason}\n", self.file, self.value)
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
    let setting = Setting::of(&planned.change);
    if let Some(reason) = setting.kind().not_exported() {
        return Err(left_out(reason));
    }
    let before = planned.before.as_deref().unwrap_or("0");
    let value = setting.kind().in_file(&planned.change.value(), before);
    Ok(Writing {
        planned,
        file: setting.path(),
        setting,
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

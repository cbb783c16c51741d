//! A plan as text that a person reads, keeps and runs without nearfar: a shell script for now; for every boot a systemd unit, which makes
//! the changes after the devices have appeared, or udev rules, which act whenever one appears.
//!
//! A plan is foreign input here too. Changes that [`check`](crate::check()) would refuse are left out with a comment;
//! names and values that pass consist of characters that mean nothing to a shell, systemd or udev, and are quoted all
//! the same; free text (reasons, old values) appears in comments only, on one line, as printable ASCII.
//!
//! A drop-in of systemd that gives a unit a NUMA policy: it is in force from the next start of the unit (systemd.exec(5)).

use nearfar_machine::{CpuSet, Known, Machine, NodeId, NodeSet, shell_quoted};
use nearfar_proc::service::Service;

use crate::apply::ApplyError;
use crate::change::{Change, Owner, PLAN_FORMAT, Plan, Planned, check_planned};
use crate::kind::Setting;
use crate::system::{System, Target};

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

const USAGE: &str = r#"#
# Usage: sh FILE           makes the changes
#        sh FILE --undo    puts back what was there when the plan was made
# NEARFAR_ROOT=DIR works on the files below DIR instead of the live system. Interrupt numbers hold until the next boot.
# Exit status: 0 done, 2 wrong usage, 3 the system refused at least one change; the others are made.
# Unlike nearfar apply this keeps no journal and does not notice what has changed since the plan was made.
set -eu

root=${NEARFAR_ROOT:-}
status=0

# put FILE VALUE; a plan without changes calls it nowhere.
# shellcheck disable=SC2317,SC2329
put() {
    if printf '%s\n' "$2" > "$root$1"; then
        printf '%s <- %s\n' "$1" "$2"
    else
        printf '%s: %s was refused\n' "$1" "$2" >&2
        status=3
    fi
}
"#;

const LEFT_OUT: &str = "    printf 'a change is left out; %s says why\\n' \"$0\" >&2\n";

const END: &str = r#"
case ${1-} in
    '') make ;;
    --undo) undo ;;
    *)
        printf 'usage: %s [--undo]\n' "$0" >&2
        exit 2
        ;;
esac
exit "$status"
"#;

/// The plan as a shell script (POSIX, no tool but the shell). Each write is commented with its reason and the value it
/// replaces; a change that cannot be exported is a comment that says why.
pub fn script(plan: &Plan) -> String {
    let writings = writings(plan);
    let mut text = format!(
        "#!/bin/sh\n{}{USAGE}",
        heading(plan, "Puts what is far near")
    );
    text.push_str("\nmake() {\n    :\n");
    for writing in &writings {
        text.push_str(&make(writing));
    }
    text.push_str("}\n\nundo() {\n    :\n");
    for writing in writings.iter().rev() {
        text.push_str(&undo(writing));
    }
    text.push_str("}\n");
    for left in &plan.left_alone {
        let (subject, reason) = (comment(&left.subject), comment(&left.reason));
        text.push_str(&format!("# Left alone: {subject}: {reason}\n"));
    }
    text.push_str(END);
    text
}

fn make(writing: &Exported<'_>) -> String {
    let writing = match writing {
        Ok(writing) => writing,
        // Only as a comment: the text of a plan is no shell's.
        Err(left_out) => return format!("    # {left_out}\n{LEFT_OUT}"),
    };
    let mut text = String::new();
    for reason in writing.reasons() {
        text.push_str(&format!("    # {reason}\n"));
    }
    text.push_str(&format!(
        "    put {} {}\n",
        shell_quoted(&writing.file),
        shell_quoted(&writing.value)
    ));
    for line in writing.rebinding() {
        text.push_str(&format!("    # {line}\n"));
    }
    text
}

fn undo(writing: &Exported<'_>) -> String {
    let Ok(writing) = writing else {
        return String::new();
    };
    let Some(before) = writing.before() else {
        return format!("    # {}: the value before is not known\n", writing.file);
    };
    format!(
        "    put {} {}\n",
        shell_quoted(&writing.file),
        shell_quoted(before)
    )
}

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

const INSTALL_SECTION: &str = "
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
    text.push_str(INSTALL_SECTION);
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

const HOW_TO_INSTALL: &str = "#
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
        "{}{HOW_TO_INSTALL}",
        heading(plan, "Memory placement when devices appear")
    );
    for writing in &writings(plan) {
        text.push('\n');
        text.push_str(&explained(writing, |it| it.setting.kind().udev(it)));
    }
    text
}

/// Where systemd looks for unit files, the first that has one first (systemd.unit(5)).
const PLACES: [&str; 13] = [
    "/etc/systemd/system.control",
    "/run/systemd/system.control",
    "/run/systemd/transient",
    "/run/systemd/generator.early",
    "/etc/systemd/system",
    "/etc/systemd/system.attached",
    "/run/systemd/system",
    "/run/systemd/system.attached",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
    "/run/systemd/generator.late",
];

/// Where the memory of a unit's processes comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnitPolicy {
    /// From the node only.
    Bind,
    /// From the node, and from others where that has none left.
    Preferred,
    /// From the node that a task runs on; its CPUs are those of the node.
    Local,
    /// From the nodes in turn, page by page; the CPUs stay as they are.
    Interleave,
}

/// Which unit is to be on which node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnitBinding {
    pub unit: String,
    /// One, or for [`UnitPolicy::Interleave`] those that take turns.
    pub nodes: NodeSet,
    pub policy: UnitPolicy,
}

/// Why there is no drop-in.
#[derive(Debug, thiserror::Error)]
pub enum UnitBindingError {
    #[error(
        "{0:.64?} is not the name of a service such as redis.service: systemd starts only services with a NUMA policy"
    )]
    NotAService(String),
    #[error("there is no unit {0}: no file of that name in {places}, and no task runs in it", places = PLACES.join(", "))]
    NoUnit(String),
    #[error("unit {unit} is masked ({file} is empty or a link to /dev/null): it is never started")]
    Masked { unit: String, file: String },
    #[error("there is no node {node} with memory; nodes with memory: {known}")]
    NoNode { node: NodeId, known: NodeSet },
    #[error("node {0} has no CPUs: with the policy local its tasks could not run there")]
    NoCpus(NodeId),
}

/// The drop-in. `target` is where unit files are looked for; without one, as for a snapshot, only tasks tell of a unit.
///
/// # Errors
/// When there is no such unit or node, or the target cannot be opened.
pub fn unit_drop_in(
    machine: &Machine,
    target: Option<&Target>,
    binding: &UnitBinding,
) -> Result<String, ApplyError> {
    check_name(&binding.unit)?;
    let system = target.map(Target::system).transpose()?;
    let system = system.as_ref().map(|it| it as &dyn System);
    let found = found(machine, system, &binding.unit)?;
    let known = machine.nodes_with_memory();
    if let Some(node) = binding.nodes.difference(&known).first() {
        return Err(UnitBindingError::NoNode { node, known }.into());
    }
    let is_near = |node| binding.nodes.contains(node);
    let cpus = machine
        .cpus
        .iter()
        .filter(|cpu| cpu.is_online() && cpu.node.is_some_and(is_near));
    let cpus: CpuSet = cpus.map(|cpu| cpu.id).collect();
    if let (true, UnitPolicy::Local, Some(node)) =
        (cpus.is_empty(), binding.policy, binding.nodes.first())
    {
        return Err(UnitBindingError::NoCpus(node).into());
    }
    Ok(drop_in_heading(machine, binding, &found) + &section(binding, &cpus))
}

/// As systemd takes the name of a unit (unit_name_is_valid() in src/basic/unit-name.c). It becomes part of a path.
fn check_name(unit: &str) -> Result<(), UnitBindingError> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-@:\\".contains(&b);
    let name = unit.strip_suffix(".service").unwrap_or_default();
    let good = !name.is_empty()
        && unit.len() <= 255
        && unit.bytes().all(plain)
        && !name.starts_with(['.', '@']);
    good.then_some(())
        .ok_or_else(|| UnitBindingError::NotAService(unit.to_owned()))
}

/// Where the unit was seen, in words.
fn found(
    machine: &Machine,
    system: Option<&dyn System>,
    unit: &str,
) -> Result<String, UnitBindingError> {
    if let Some(system) = system
        && let Some(file) = unit_file(system, unit)?
    {
        return Ok(format!("its file is {file}"));
    }
    let runs = |group: &&String| Service::of(group).is_some_and(|it| it.name == unit);
    let groups = |tasks: &Vec<nearfar_machine::Task>| {
        let mut groups = tasks.iter().filter_map(|task| task.group.get());
        groups.find(runs).cloned()
    };
    match (machine.tasks.as_ref().map(groups), system) {
        (Known::Yes(Some(group)), _) => Ok(format!("it runs in control group {group}")),
        (_, Some(_)) => Err(UnitBindingError::NoUnit(unit.to_owned())),
        (_, None) => Ok("whether there is one is unknown: the source has no unit files".to_owned()),
    }
}

fn unit_file(system: &dyn System, unit: &str) -> Result<Option<String>, UnitBindingError> {
    // An instance has the file of its template, unless it has one of its own anywhere.
    let template = unit
        .split_once('@')
        .map(|(prefix, _)| format!("{prefix}@.service"));
    let mut names = std::iter::once(unit).chain(template.as_deref());
    let Some(file) = names.find_map(|name| first_file(system, name)) else {
        return Ok(None);
    };
    let is_empty = || system.read(&file).is_ok_and(|content| content.is_empty());
    match system.link(&file).is_ok_and(|to| to == "/dev/null") || is_empty() {
        true => {
            let unit = unit.to_owned();
            Err(UnitBindingError::Masked { unit, file })
        }
        false => Ok(Some(file)),
    }
}

/// The file of this name that systemd takes.
fn first_file(system: &dyn System, name: &str) -> Option<String> {
    let has_it = |place: &&&str| {
        let names = system.list(place).unwrap_or_default();
        names.iter().any(|it| it == name)
    };
    let place = PLACES.iter().find(has_it)?;
    Some(format!("{place}/{name}"))
}

fn drop_in_heading(machine: &Machine, binding: &UnitBinding, found: &str) -> String {
    let UnitBinding { unit, nodes, .. } = binding;
    let (host, found) = (host(machine.origin.host.as_deref()), comment(found));
    let directory = format!("/etc/systemd/system/{unit}.d");
    // Of what the name of a unit can have, a shell takes only the backslash for something else.
    let unit = match unit.contains('\\') {
        true => format!("'{unit}'"),
        false => unit.clone(),
    };
    let (on, now) = match binding.policy {
        UnitPolicy::Interleave => (
            format!("with memory of nodes {nodes} in turn"),
            "The memory that it has\n# already stays where it is.\n".to_owned(),
        ),
        policy => {
            // A cpuset would forbid the other nodes.
            let only = match policy {
                UnitPolicy::Bind => format!("#     nearfar apply --cpuset-mems {unit}={nodes}\n"),
                _ => String::new(),
            };
            (
                format!("on node {nodes}"),
                format!(
                    "While the unit runs, as root:\n{only}\
                     #     nearfar apply --memory {unit} --to-node {nodes}\n"
                ),
            )
        }
    };
    format!(
        "# {unit} {on}, for {host}\n\
         # Written by nearfar {version}; see docs/plan.md. The unit:\n\
         # {found}.\n\
         #\n\
         # Install: save as {directory}/50-nearfar-numa.conf, then\n\
         #     systemctl daemon-reload && systemctl restart {unit}\n\
         # Remove: delete that file, then the same two commands.\n\
         # systemd sets the policy when it starts the unit. {now}\n",
        version = env!("CARGO_PKG_VERSION"),
    )
}

fn section(binding: &UnitBinding, cpus: &CpuSet) -> String {
    let node = &binding.nodes;
    if binding.policy == UnitPolicy::Interleave {
        return format!(
            "[Service]\n# Memory of these nodes in turn, page by page, from whichever has some left; CPUs as before.\n\
             NUMAPolicy=interleave\nNUMAMask={node}\n\
             # A program can choose another policy. This it cannot exceed (systemd.resource-control(5)):\n\
             # AllowedMemoryNodes={node}\n"
        );
    }
    let policy = match binding.policy {
        UnitPolicy::Bind => format!(
            "# Memory of node {node} only. Where it has none left, the kernel kills a process of the unit although other nodes\n\
             # may have memory: --policy preferred takes that instead.\n\
             NUMAPolicy=bind\nNUMAMask={node}\n"
        ),
        UnitPolicy::Preferred => format!(
            "# Memory of node {node}; of other nodes where it has none left.\nNUMAPolicy=preferred\nNUMAMask={node}\n"
        ),
        UnitPolicy::Local | UnitPolicy::Interleave => {
            "# Memory of the node that a task runs on; of other nodes where it has none left.\nNUMAPolicy=local\n".to_owned()
        }
    };
    let affinity = match (cpus.is_empty(), binding.policy) {
        (true, _) => {
            format!("# Node {node} has no CPUs: which CPUs the unit runs on stays as it is.\n")
        }
        (_, UnitPolicy::Local) => format!("# The CPUs of node {node}.\nCPUAffinity={cpus}\n"),
        _ => format!("# The CPUs of the nodes of NUMAMask=, {cpus}.\nCPUAffinity=numa\n"),
    };
    let allowed = match cpus.is_empty() {
        true => String::new(),
        false => format!("# AllowedCPUs={cpus}\n"),
    };
    format!(
        "[Service]\n{policy}{affinity}\
         # A program can choose another policy and other CPUs. These two it cannot exceed (systemd.resource-control(5)):\n\
         {allowed}# AllowedMemoryNodes={node}\n"
    )
}

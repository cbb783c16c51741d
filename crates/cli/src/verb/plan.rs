//! `nearfar plan`: the changes that would fix what the audit found, shown or written down; and its options about memory and control groups,
//! which `apply` takes, too.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use nearfar_change::export::{self, UnitBinding, UnitPolicy};
use nearfar_change::{
    ApplyError, CpusetMemoryRequest, GroupMoveRequest, MoveRequest, MoveRequestError,
    Plan as Changes, Target,
};
use nearfar_machine::{
    IoPolicy, Known, Machine, NodeId, NodeSet, PciAddress, SourceKind, alternatives,
};
use nearfar_placement::audit::{self, AuditOptions};
use nearfar_placement::plan::{self, PlanOptions, of_changes};
use nearfar_placement::tasks::{self, Filter, TaskPlacement};
use nearfar_sources::{TaskScope, Want};

use crate::args::{self, Colour, SourceArgs, group_names, one_of, option_words, seconds_or_zero};
use crate::failure::{Failure, Outcome, input};
use crate::output;
use crate::recorded::add_measured;
use crate::verb::apply::by_who_has_to_act;

/// Show the changes that would fix what the audit finds
///
/// The JSON form is what `nearfar apply FILE` takes. The script, the systemd unit and the udev rules are for reading
/// and keeping: what apply writes is gone with the next boot.
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar plan\n  nearfar plan --format json > plan.json && nearfar apply \
                             plan.json\n  nearfar plan --format script > near.sh\n  nearfar plan --memory 4711 \
                             --to-node 1 --format json > move.json\n  nearfar plan --memory redis.service \
                             --to-node 1\n  nearfar plan --bind-unit redis.service --to-node 1 --format systemd"
)]
pub struct Plan {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    choice: ChoiceArgs,
    #[command(flatten)]
    unit: UnitArgs,
    /// How the plan is shown
    #[arg(long, value_enum, default_value_t = PlanFormat::Table, value_name = "FORMAT")]
    format: PlanFormat,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PlanFormat {
    /// For people
    Table,
    /// For `nearfar apply`
    Json,
    /// A shell script that makes the changes, with --undo
    Script,
    /// A systemd unit that makes them at each boot
    Systemd,
    /// udev rules that make them when a device appears
    Udev,
}

/// What a plan may contain.
#[derive(Args, Clone)]
pub struct ChoiceArgs {
    /// Fix only what this audit rule finds (may be repeated)
    #[arg(long = "rule", value_name = "RULE")]
    rules: Vec<String>,
    /// Change only what belongs to this device: a PCI address, eth0, vda, nvme0 (may be repeated)
    #[arg(long = "device", value_name = "DEVICE")]
    devices: Vec<String>,
    /// Do not change what belongs to this device (may be repeated)
    #[arg(long = "not-device", value_name = "DEVICE")]
    not_devices: Vec<String>,
    /// Also override the node of devices that the kernel puts on none: the last resort. It taints the kernel, and the
    /// driver has to be bound again, which stops the device for a moment
    #[arg(long)]
    override_device_node: bool,
    /// Set this I/O policy on NVMe subsystems that have an audit finding: numa, round-robin or queue-depth (since
    /// Linux 6.11). No policy is best for every load: measure
    #[arg(long, value_name = "POLICY", value_parser = ["numa", "round-robin", "queue-depth"])]
    iopolicy: Option<String>,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    group: GroupArgs,
}

/// The options that choose among what an audit finds.
const AUDITED: [&str; 5] = [
    "rules",
    "devices",
    "not_devices",
    "override_device_node",
    "iopolicy",
];

/// The rule whose fixes move memory. Only where it is named are processes read: that stops the mmap(2) of each for a moment.
const MEMORY_RULE: &str = "task-memory-far";

impl ChoiceArgs {
    /// Fails for a rule that does not exist; the machine need not be known.
    pub fn check_rules(&self) -> Outcome {
        plan::check_rules(&self.rules).map_err(Failure::input)
    }

    /// What has to be read of the machine.
    pub fn want(&self) -> Want {
        match self.memory.needs_groups() {
            true => want_groups(),
            false => super::audit::wanted(self.task_scope()),
        }
    }

    fn task_scope(&self) -> TaskScope {
        match self.rules.iter().any(|rule| rule == MEMORY_RULE) {
            true => TaskScope::All,
            false => TaskScope::None,
        }
    }

    /// Whether one process is meant, by its number.
    pub fn names_process(&self) -> bool {
        self.memory.names_process()
    }

    /// Whether moves of memory were asked for, also where none is needed.
    pub fn is_about_memory(&self) -> bool {
        self.memory.is_given() || self.rules.iter().any(|rule| rule == MEMORY_RULE)
    }

    /// Audits the machine and plans within the choice. `target`: what has the files of the machine.
    pub fn plan(&self, machine: &Machine, target: Option<&Target>) -> Result<Changes, Failure> {
        let asked_for = self.memory.plan(machine);
        if let Some(plan) = asked_for.or_else(|| self.group.plan(machine, target)) {
            return plan;
        }
        let options = PlanOptions {
            device_node_override: self.override_device_node,
            rules: (!self.rules.is_empty()).then(|| self.rules.clone()),
            devices: devices(machine, &self.devices)?,
            not_devices: functions(machine, &self.not_devices)?,
            iopolicy: self.iopolicy.as_deref().map(IoPolicy::from),
        };
        options.check(machine).map_err(Failure::input)?;
        let audit = audit::audit(machine, &AuditOptions::default());
        let mut plan = plan::plan(machine, &audit, &options);
        if machine.origin.kind == SourceKind::Live {
            nearfar_change::check_processes(&mut plan);
        }
        nearfar_change::check_cpusets(&mut plan, target)
            .map_err(super::apply::by_who_has_to_act)?;
        Ok(plan)
    }
}

/// The control groups of tasks, without their memory.
fn want_groups() -> Want {
    Want {
        task_memory: false,
        min_task_bytes: 0,
        ..super::audit::wanted(TaskScope::All)
    }
}

/// The PCI functions that options name; `None` where no device is named.
pub fn devices(machine: &Machine, names: &[String]) -> Result<Option<Vec<PciAddress>>, Failure> {
    (!names.is_empty())
        .then(|| functions(machine, names))
        .transpose()
}

/// The PCI functions behind the names of devices. An address that the machine does not have is left to
/// [`PlanOptions::check`], which knows those it has.
fn functions(machine: &Machine, names: &[String]) -> Result<Vec<PciAddress>, Failure> {
    let one = |name: &String| match (name.parse::<PciAddress>(), machine.functions_named(name)) {
        (Ok(address), _) => Ok(vec![address]),
        (Err(_), found) if !found.is_empty() => Ok(found),
        (Err(_), _) => Err(input!(
            "there is no device {name:?}; {}; any other has a PCI address (lspci)",
            nearfar_machine::alternatives(name, &machine.device_names())
        )),
    };
    names
        .iter()
        .map(one)
        .collect::<Result<Vec<_>, _>>()
        .map(|found| found.concat())
}

impl Plan {
    /// Fails for a rule that does not exist.
    pub fn check_rules(&self) -> Outcome {
        self.choice.check_rules()
    }

    /// Reads, audits, plans, prints.
    pub fn run(self, colour: Colour) -> Outcome {
        if self.unit.is_given() && self.format != PlanFormat::Systemd {
            return Err(input!(
                "--bind-unit prints a drop-in of systemd and has no other format: add --format systemd"
            ));
        }
        let target = match (self.source.source.is_empty(), &self.source.root) {
            (false, _) => None,
            (true, Some(root)) => Some(Target::tree(root.clone(), None)),
            (true, None) => Some(Target::live(None)),
        };
        let (want, target) = match self.unit.is_given() {
            true => (want_groups(), target.as_ref()),
            false => (self.choice.want(), target.as_ref()),
        };
        let mut machine = self.source.read(want)?;
        add_measured(&mut machine);
        let to = self.choice.memory.to_node.as_ref();
        if let Some(text) = self.unit.drop_in(&machine, target, to) {
            return output::print(&text?);
        }
        let plan = self.choice.plan(&machine, target)?;
        output::print(&match self.format {
            PlanFormat::Table => {
                nearfar_report::plan::document(&plan).to_text(&output::style(colour))
            }
            PlanFormat::Json => {
                output::json(super::apply::PLAN_SCHEMA, Some(&machine.origin), &plan)?
            }
            PlanFormat::Script => export::script(&plan),
            PlanFormat::Systemd => export::systemd(&plan),
            PlanFormat::Udev => export::udev(&plan),
        })
    }
}

/// Where changes are made: the running system, or a directory tree.
#[derive(Args, Clone)]
pub struct TargetArgs {
    /// Change the files below this directory instead of the running system
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Where the journal is kept [default: /var/lib/nearfar, below --root where that is given]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Wait this long for another nearfar that is changing the same system
    #[arg(long, value_name = "SECONDS", value_parser = seconds_or_zero)]
    pub wait: Option<f64>,
}

impl TargetArgs {
    /// The same in the words of `nearfar-change`.
    pub fn target(&self) -> nearfar_change::Target {
        match self.root.clone() {
            Some(root) => nearfar_change::Target::tree(root, self.state.clone()),
            None => nearfar_change::Target::live(self.state.clone()),
        }
    }

    /// The same for a verb that only looks at what was made: a directory that was named has to be there.
    ///
    /// # Errors
    /// When it is not.
    pub fn existing(&self) -> Result<nearfar_change::Target, Failure> {
        for (option, directory) in [("--root", &self.root), ("--state", &self.state)] {
            let Some(directory) = directory else { continue };
            let seen = std::fs::metadata(directory)
                .with_context(|| format!("{option} {}", directory.display()));
            if !seen.map_err(Failure::Input)?.is_dir() {
                return Err(input!("{option} {}: not a directory", directory.display()));
            }
        }
        Ok(self.target())
    }

    /// The options as they are typed, each with a space before it: for commands that are shown.
    pub fn words(&self) -> String {
        let given = [("--root", &self.root), ("--state", &self.state)].into_iter();
        let given =
            given.filter_map(|(option, directory)| Some((option, directory.clone()?.into())));
        let words = option_words(given).map(|word| format!(" {}", crate::shell::word(&word)));
        words.collect()
    }

    /// How long to wait for the lock.
    pub fn wait(&self) -> Option<std::time::Duration> {
        self.wait.map(std::time::Duration::from_secs_f64)
    }
}

/// Which memory is to go where.
#[derive(Args, Clone)]
struct MemoryArgs {
    /// Move the memory of this process (a number), or of the processes of this control group and of those below it, or of
    /// this unit (redis.service), and change nothing else
    #[arg(long, value_name = "TARGET", value_parser = target, requires = "to_node", group = "to_node_of",
          conflicts_with_all = AUDITED)]
    memory: Option<MemoryTarget>,
    /// The node for the memory; with --policy interleave a list such as 0,2-3, or all
    #[arg(long, value_name = "NODES", requires = "to_node_of", value_parser = nodes_or_all)]
    to_node: Option<ToNodes>,
    /// Move only what is on these nodes, such as 0,2-3 [default: all but --to-node]
    #[arg(long, value_name = "LIST", requires = "memory", value_parser = NodeSet::parse_list)]
    from_node: Option<NodeSet>,
    /// Also move the pages that other processes use, such as those of libraries
    #[arg(long, requires = "memory")]
    shared: bool,
}

/// Whose memory moves.
#[derive(Clone)]
enum MemoryTarget {
    Process(i32),
    /// A control group or a unit.
    Group(String),
}

fn target(text: &str) -> Result<MemoryTarget, String> {
    match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => args::pid(text).map(MemoryTarget::Process),
        false => Ok(MemoryTarget::Group(text.to_owned())),
    }
}

/// `--to-node`.
#[derive(Clone)]
enum ToNodes {
    /// With memory.
    All,
    These(NodeSet),
}

fn nodes_or_all(text: &str) -> Result<ToNodes, String> {
    match NodeSet::parse_list(text) {
        _ if text == "all" => Ok(ToNodes::All),
        Ok(nodes) if !nodes.is_empty() => Ok(ToNodes::These(nodes)),
        _ => Err("a node, or a list of nodes such as 0,2-3, or all, is expected".to_owned()),
    }
}

impl ToNodes {
    /// The nodes of this machine.
    fn of(&self, machine: &Machine) -> NodeSet {
        match self {
            Self::These(nodes) => nodes.clone(),
            Self::All => machine.nodes_for_any(),
        }
    }

    /// The node, where only one can be meant.
    fn one(&self) -> Result<NodeId, Failure> {
        let one = |nodes: &NodeSet| nodes.iter().next().filter(|_| nodes.len() == 1);
        match self {
            Self::These(nodes) => one(nodes),
            Self::All => None,
        }
        .ok_or_else(|| {
            input!(
                "--to-node takes one node; several are for plan --bind-unit UNIT --policy interleave"
            )
        })
    }
}

impl MemoryArgs {
    fn is_given(&self) -> bool {
        self.memory.is_some()
    }

    /// Whether one process is meant, by its number.
    fn names_process(&self) -> bool {
        matches!(self.memory, Some(MemoryTarget::Process(_)))
    }

    /// Whether the control groups of tasks have to be read.
    fn needs_groups(&self) -> bool {
        matches!(self.memory, Some(MemoryTarget::Group(_)))
    }

    /// The plan that moves the memory, where that was asked for.
    fn plan(&self, machine: &Machine) -> Option<Result<Changes, Failure>> {
        let (target, to) = (self.memory.as_ref()?, self.to_node.as_ref()?);
        Some(to.one().and_then(|to| match target {
            MemoryTarget::Process(pid) => self.of_process(machine, *pid, to),
            MemoryTarget::Group(group) => self.of_group(machine, group, to),
        }))
    }

    fn of_process(&self, machine: &Machine, pid: i32, to: NodeId) -> Result<Changes, Failure> {
        if machine.origin.kind != SourceKind::Live {
            return Err(input!(
                "cannot move the memory of process {pid}: --memory is for the running system"
            ));
        }
        let request = MoveRequest {
            pid,
            from: self.from(machine, to),
            to,
            shared: self.shared,
        };
        let planned = nearfar_change::planned_move(machine, &request).map_err(failure)?;
        Ok(of_changes(machine, vec![planned]))
    }

    fn of_group(&self, machine: &Machine, group: &str, to: NodeId) -> Result<Changes, Failure> {
        if machine.origin.kind != SourceKind::Live {
            return Err(input!(
                "cannot move the memory of control group {group:?}: --memory is for the running system"
            ));
        }
        let request = GroupMoveRequest {
            group: group.to_owned(),
            pids: processes(machine, group)?,
            from: self.from(machine, to),
            to,
            shared: self.shared,
        };
        let (changes, left_alone) =
            nearfar_change::planned_group_move(machine, &request).map_err(failure)?;
        Ok(Changes {
            left_alone,
            ..of_changes(machine, changes)
        })
    }

    fn from(&self, machine: &Machine, to: NodeId) -> NodeSet {
        let others = || machine.nodes_for_any().difference(&NodeSet::single(to));
        self.from_node.clone().unwrap_or_else(others)
    }
}

/// The processes of a control group and of those below it.
fn processes(machine: &Machine, group: &str) -> Result<Vec<i32>, Failure> {
    if group.trim_matches('/').is_empty() {
        return Err(input!(
            "{group:?} is the root, every process of the system is below it; name a group"
        ));
    }
    let filter = Filter {
        group: Some(group.to_owned()),
        ..Filter::default()
    };
    let found = match tasks::tasks(machine, &filter, None) {
        Known::Yes(found) => found.tasks,
        Known::No { unknown_reason } => {
            return Err(input!("the tasks are unknown: {unknown_reason}"));
        }
    };
    // A manager of a user, or a container, can have a unit with the name of one of the system.
    let groups: BTreeSet<&str> = found
        .iter()
        .filter_map(|task| group_of(task, group))
        .collect();
    if groups.len() > 1 {
        let groups: Vec<&str> = groups.into_iter().collect();
        return Err(input!(
            "several control groups have the name {group:?}: {}; give the path of one",
            groups.join(", ")
        ));
    }
    let mut pids: Vec<i32> = found.iter().map(|task| task.pid).collect();
    pids.sort_unstable();
    match pids.is_empty() {
        true => Err(input!(
            "no process is in control group {group:?}; {}",
            alternatives(group, &group_names(machine))
        )),
        false => Ok(pids),
    }
}

/// The group by which a task is in what was named.
fn group_of<'a>(task: &'a TaskPlacement, named: &'a str) -> Option<&'a str> {
    let path = task.group.get()?;
    match tasks::is_below(path, named) {
        true => Some(named),
        false => nearfar_proc::service::Service::of(path).map(|it| it.group),
    }
}

fn failure(error: MoveRequestError) -> Failure {
    by_who_has_to_act(ApplyError::Memory(error))
}

/// What a control group is to get.
#[derive(Args, Clone)]
struct GroupArgs {
    /// Let this control group, or this unit (redis.service), have memory on these nodes only, such as redis.service=1, and
    /// change nothing else. The kernel moves what its tasks have elsewhere
    #[arg(long, value_name = "GROUP=NODES", value_parser = group_and_nodes, conflicts_with_all = AUDITED,
          conflicts_with = "to_node_of")]
    cpuset_mems: Option<(String, NodeSet)>,
}

/// What a unit is to get from its next start.
#[derive(Args)]
struct UnitArgs {
    /// Print a drop-in of systemd that starts this unit on --to-node (with --format systemd)
    #[arg(long, value_name = "UNIT", requires = "to_node", group = "to_node_of", conflicts_with_all = AUDITED)]
    bind_unit: Option<String>,
    /// Where the memory of the unit comes from
    #[arg(long, value_parser = one_of(POLICIES), value_name = "POLICY", requires = "bind_unit", default_value = "bind")]
    policy: UnitPolicy,
}

/// Where the memory of a unit can come from.
const POLICIES: &[(&str, &str, UnitPolicy)] = &[
    ("bind", "The node only", UnitPolicy::Bind),
    (
        "preferred",
        "The node, and others where it has none left",
        UnitPolicy::Preferred,
    ),
    (
        "local",
        "The node that a task runs on; its CPUs are those of --to-node",
        UnitPolicy::Local,
    ),
    (
        "interleave",
        "Each of the nodes of --to-node, a list or \"all\", page by page in turn: for what tasks of all nodes use alike",
        UnitPolicy::Interleave,
    ),
];

impl GroupArgs {
    /// The plan that changes the nodes of a group, where that was asked for. Without a target there are no files to read.
    fn plan(&self, machine: &Machine, target: Option<&Target>) -> Option<Result<Changes, Failure>> {
        let (group, nodes) = self.cpuset_mems.clone()?;
        let Some(target) = target else {
            return Some(Err(input!(
                "cannot read control group {group:?}: --cpuset-mems is for the running system, or a tree with --root"
            )));
        };
        let request = CpusetMemoryRequest { group, nodes };
        let planned = nearfar_change::planned_cpuset_memory(machine, target, &request);
        let planned = planned.map_err(by_who_has_to_act);
        Some(planned.map(|planned| of_changes(machine, vec![planned])))
    }
}

impl UnitArgs {
    /// Whether a unit is to be bound.
    fn is_given(&self) -> bool {
        self.bind_unit.is_some()
    }

    /// The drop-in for a unit, where that was asked for.
    fn drop_in(
        &self,
        machine: &Machine,
        target: Option<&Target>,
        to: Option<&ToNodes>,
    ) -> Option<Result<String, Failure>> {
        let (unit, to) = (self.bind_unit.clone()?, to?);
        let nodes = match self.policy {
            UnitPolicy::Interleave => {
                let nodes = Some(to.of(machine)).filter(|nodes| nodes.len() > 1);
                nodes.ok_or_else(|| {
                    let place = &machine.origin.place;
                    input!(
                        "--policy interleave needs two nodes with memory or more, and none or one is known of {place}"
                    )
                })
            }
            _ => to.one().map(NodeSet::single),
        };
        Some(nodes.and_then(|nodes| {
            let policy = self.policy;
            let binding = UnitBinding {
                unit,
                nodes,
                policy,
            };
            export::unit_drop_in(machine, target, &binding).map_err(by_who_has_to_act)
        }))
    }
}

/// `redis.service=1`, `system.slice/db=0,2-3`.
fn group_and_nodes(text: &str) -> Result<(String, NodeSet), String> {
    let (group, nodes) = text
        .rsplit_once('=')
        .ok_or("a control group and its nodes are expected, such as redis.service=1")?;
    let nodes = NodeSet::parse_list(nodes).map_err(|error| error.to_string())?;
    match nodes.is_empty() {
        true => Err(format!(
            "control group {group:?} would have no node to have memory on"
        )),
        false => Ok((group.to_owned(), nodes)),
    }
}

//! `nearfar plan`: the changes that would fix what the audit found, shown or written down.

mod group;
mod memory;

use std::path::PathBuf;

use anyhow::{Context as _, anyhow};
use clap::{Args, ValueEnum};
use nearfar_change::Plan as Changes;
use nearfar_change::{Target, export};
use nearfar_machine::{IoPolicy, Machine, PciAddress, SourceKind};
use nearfar_placement::audit::{self, AuditOptions};
use nearfar_placement::plan::{self, PlanOptions};
use nearfar_sources::{TaskScope, Want};

use crate::args::{Colour, SourceArgs, seconds_or_zero};
use crate::failure::{Failure, Outcome};
use crate::output;
use group::{GroupArgs, UnitArgs};
use memory::MemoryArgs;

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
        (Err(_), _) => Err(Failure::input(anyhow::anyhow!(
            "there is no device {name:?}; {}; any other has a PCI address (lspci)",
            nearfar_machine::alternatives(name, &machine.device_names())
        ))),
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
            return Err(Failure::Input(anyhow!(
                "--bind-unit prints a drop-in of systemd and has no other format: add --format systemd"
            )));
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
        let machine = self.source.read(want)?;
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
                return Err(Failure::Input(anyhow!(
                    "{option} {}: not a directory",
                    directory.display()
                )));
            }
        }
        Ok(self.target())
    }

    /// The options as they are typed, each with a space before it: for commands that are shown.
    pub fn words(&self) -> String {
        let given = [("--root", &self.root), ("--state", &self.state)].into_iter();
        let given = given.filter_map(|(option, directory)| Some((option, directory.as_ref()?)));
        given
            .map(|(option, directory)| {
                format!(" {option} {}", crate::shell::word(directory.as_os_str()))
            })
            .collect()
    }

    /// How long to wait for the lock.
    pub fn wait(&self) -> Option<std::time::Duration> {
        self.wait.map(std::time::Duration::from_secs_f64)
    }
}

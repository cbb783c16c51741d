//! `nearfar plan`: the changes that would fix what the audit found, shown or written down.

mod memory;

use std::path::PathBuf;

use anyhow::{Context as _, anyhow};
use clap::{Args, ValueEnum};
use nearfar_apply::export;
use nearfar_machine::{IoPolicy, Machine, PciAddress, SourceKind};
use nearfar_placement::audit::{self, AuditOptions};
use nearfar_placement::change::Plan as Changes;
use nearfar_placement::plan::{self, PlanOptions};
use nearfar_sources::TaskScope;

use crate::args::{Colour, SourceArgs};
use crate::failure::{Failure, Outcome};
use crate::output;
use memory::MemoryArgs;

/// Show the changes that would fix what the audit finds, without making them
///
/// The JSON form is what `nearfar apply FILE` takes. The script, the systemd unit and the udev rules are for reading
/// and keeping: what apply writes is gone with the next boot.
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar plan\n  nearfar plan --format json > plan.json && nearfar apply \
                             plan.json\n  nearfar plan --format script > near.sh\n  nearfar plan --task-memory \
                             4711 --to-node 1 --format json > move.json"
)]
pub struct Plan {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    choice: ChoiceArgs,
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
    /// Set this I/O policy on NVMe subsystems that have an audit finding: numa, round-robin or queue-depth.
    /// No policy is best for every load: measure
    #[arg(long, value_name = "POLICY", value_parser = ["numa", "round-robin", "queue-depth"])]
    iopolicy: Option<String>,
    #[command(flatten)]
    memory: MemoryArgs,
}

/// The rule whose fixes move memory. Only where it is named are processes read: that stops the mmap(2) of each for a moment.
const MEMORY_RULE: &str = "task-memory-far";

impl ChoiceArgs {
    /// Which processes have to be read.
    pub fn task_scope(&self) -> TaskScope {
        match self.rules.iter().any(|rule| rule == MEMORY_RULE) {
            true => TaskScope::All,
            false => TaskScope::None,
        }
    }

    /// Whether moves of memory were asked for, also where none is needed.
    pub fn is_about_memory(&self) -> bool {
        self.memory.is_given() || self.rules.iter().any(|rule| rule == MEMORY_RULE)
    }

    /// Audits the machine and plans within the choice.
    pub fn plan(&self, machine: &Machine) -> Result<Changes, Failure> {
        if let Some(plan) = self.memory.plan(machine) {
            return plan;
        }
        let options = PlanOptions {
            device_node_override: self.override_device_node,
            rules: (!self.rules.is_empty()).then(|| self.rules.clone()),
            devices: (!self.devices.is_empty())
                .then(|| functions(machine, &self.devices))
                .transpose()?,
            not_devices: functions(machine, &self.not_devices)?,
            iopolicy: self.iopolicy.as_deref().map(IoPolicy::from),
        };
        options.check(machine).map_err(Failure::input)?;
        let audit = audit::audit(machine, &AuditOptions::default());
        let mut plan = plan::plan(machine, &audit, &options);
        if machine.origin.kind == SourceKind::Live {
            nearfar_apply::check_processes(&mut plan);
        }
        Ok(plan)
    }
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
    /// Reads, audits, plans, prints.
    pub fn run(self, colour: Colour) -> Outcome {
        let machine = self
            .source
            .read(super::audit::wanted(self.choice.task_scope()))?;
        let plan = self.choice.plan(&machine)?;
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
    /// Wait this many seconds for another nearfar that is changing the same system
    #[arg(long, value_name = "SECONDS")]
    pub wait: Option<u32>,
}

impl TargetArgs {
    /// The same in the words of `nearfar-apply`.
    pub fn target(&self) -> nearfar_apply::Target {
        match self.root.clone() {
            Some(root) => nearfar_apply::Target::tree(root, self.state.clone()),
            None => nearfar_apply::Target::live(self.state.clone()),
        }
    }

    /// The same for a verb that only looks at what was made: a directory that was named has to be there.
    ///
    /// # Errors
    /// When it is not.
    pub fn existing(&self) -> Result<nearfar_apply::Target, Failure> {
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
        self.wait
            .map(|seconds| std::time::Duration::from_secs(seconds.into()))
    }
}

//! `nearfar audit`: findings by severity, and what the rules check.

mod explain;

use clap::{Args, ValueEnum};
use nearfar_lab::shell;
use nearfar_placement::audit::{self, Severity};
use nearfar_placement::plan::{self, PlanOptions};
use nearfar_sources::{TaskScope, Want};

use crate::args::{Colour, Format, FormatArgs, SourceArgs, TaskArgs};
use crate::failure::{Failure, Outcome};
use crate::output;

/// Report what is far, with evidence, cost and fix
///
/// A rule that could not be checked says why.
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar audit\n  nearfar audit --fail-on warning && echo all near\n  \
                             nearfar audit --rule interrupt-far --device eth0 --all\n  nearfar audit --explain interrupt-far\n  \
                             nearfar audit --source customer.nearfar --format json"
)]
pub struct Audit {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    tasks: TaskArgs,
    #[command(flatten)]
    format: FormatArgs,
    /// Report only what this rule finds (may be repeated)
    #[arg(long = "rule", value_name = "RULE")]
    rules: Vec<String>,
    /// Report only what is found about this device: a PCI address, eth0, vda, nvme0 (may be repeated)
    #[arg(long = "device", value_name = "DEVICE")]
    devices: Vec<String>,
    /// Show each finding with its evidence, also those that say the same of many queues or devices
    #[arg(long)]
    all: bool,
    /// Explain this rule instead: what it compares, costs, fixes, and its limits. Without RULE, list all rules
    #[arg(long, value_name = "RULE", conflicts_with_all = ["source", "root", "fake", "pid", "no_tasks", "rules",
          "devices", "all", "fail_on"])]
    explain: Option<Option<String>>,
    /// Exit with 1 when there is a finding of this severity or a higher one
    #[arg(long, value_enum, value_name = "SEVERITY")]
    fail_on: Option<FailOn>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FailOn {
    /// Worth knowing, costs nothing by itself
    Fact,
    /// May cost, depending on the load
    Notice,
    /// Costs whenever the device or task is used
    Warning,
    /// The configuration cannot work as intended
    Critical,
}

impl From<FailOn> for Severity {
    fn from(fail_on: FailOn) -> Self {
        match fail_on {
            FailOn::Fact => Self::Fact,
            FailOn::Notice => Self::Notice,
            FailOn::Warning => Self::Warning,
            FailOn::Critical => Self::Critical,
        }
    }
}

/// What an audit has to read.
pub fn wanted(tasks: TaskScope) -> Want {
    Want {
        tasks,
        ..Want::audit()
    }
}

impl Audit {
    /// Fails for a rule that does not exist; the machine need not be known.
    pub fn check_rules(&self) -> Outcome {
        plan::check_rules(&self.rules).map_err(Failure::input)
    }

    /// Reads, audits, prints.
    pub fn run(self, colour: Colour) -> Outcome {
        if let Some(rule) = &self.explain {
            return explain::print(rule.as_deref(), self.format.format, colour);
        }
        let machine = self.source.read(wanted(self.tasks.scope()))?;
        let options = PlanOptions {
            rules: (!self.rules.is_empty()).then_some(self.rules),
            devices: super::plan::devices(&machine, &self.devices)?,
            ..PlanOptions::default()
        };
        options.check(&machine).map_err(Failure::input)?;
        let audited = audit::AuditOptions {
            source: shell::words(self.source.words()),
            ..Default::default()
        };
        let audit = audit::audit(&machine, &audited);
        let audit = plan::narrow(&machine, audit, &options);
        output::print(&match self.format.format {
            Format::Table => {
                let devices = self.devices.iter();
                let devices = devices.flat_map(|device| ["--device".into(), device.into()]);
                let words = shell::words(self.source.words().into_iter().chain(devices));
                let mut document =
                    nearfar_report::audit::document(&machine, &audit, self.all, &words);
                document.emulated(machine.origin.emulation.as_ref());
                document.to_text(&output::style(colour))
            }
            Format::Json => output::json("audit/1", Some(&machine.origin), &audit)?,
        })?;
        let threshold = self.fail_on.map(Severity::from);
        match threshold.is_some_and(|threshold| {
            audit
                .findings
                .iter()
                .any(|finding| finding.severity >= threshold)
        }) {
            true => Err(Failure::AskedToFail),
            false => Ok(()),
        }
    }
}

//! `nearfar audit`: findings by severity, and what the rules check (`--explain`).

use clap::{Args, ValueEnum};
use nearfar_lab::shell;
use nearfar_machine::Machine;
use nearfar_placement::audit::{self, RULES, Rule, Severity, rule, unknown_rule};
use nearfar_placement::plan::{self, PlanOptions};
use nearfar_report::audit::CheckStatus;
use nearfar_sources::{TaskScope, Want};
use serde::Serialize;

use crate::args::{Colour, Format, FormatArgs, SourceArgs, TaskArgs, one_of};
use crate::failure::{Failure, Outcome, input};
use crate::output::{self, under};
use crate::recorded::add_measured;

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
    /// How the findings are printed
    #[arg(long, value_enum, default_value_t = AuditFormat::Table, value_name = "FORMAT")]
    format: AuditFormat,
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
    /// Exit with 1 when there is a finding of this severity or a higher one [default with --format nagios: warning]
    #[arg(long, value_parser = one_of(SEVERITIES), value_name = "SEVERITY")]
    fail_on: Option<Severity>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum AuditFormat {
    /// For people
    Table,
    /// For programs; documented in docs/json.md
    Json,
    /// A line for monitoring and node health scripts; the exit code is 0, 1 (warning), 2 (critical) or 3 (unknown)
    Nagios,
}

impl AuditFormat {
    /// As other verbs have it.
    fn usual(self) -> Option<FormatArgs> {
        let format = match self {
            Self::Table => Format::Table,
            Self::Json => Format::Json,
            Self::Nagios => return None,
        };
        Some(FormatArgs { format })
    }
}

/// What --fail-on takes.
const SEVERITIES: &[(&str, &str, Severity)] = &[
    (
        "fact",
        "Worth knowing, costs nothing by itself",
        Severity::Fact,
    ),
    (
        "notice",
        "May cost, depending on the load",
        Severity::Notice,
    ),
    (
        "warning",
        "Costs whenever the device or task is used",
        Severity::Warning,
    ),
    (
        "critical",
        "The configuration cannot work as intended",
        Severity::Critical,
    ),
];

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
        let format = match (self.format.usual(), &self.explain) {
            (Some(format), None) => format,
            (None, None) => return self.check(),
            (Some(format), Some(rule)) => return explain(rule.as_deref(), &format, colour),
            (None, Some(_)) => return Err(input!("--explain has no line for --format nagios")),
        };
        let (machine, audit) = self.audit()?;
        let document = || {
            let devices = self.devices.iter();
            let devices = devices.flat_map(|device| ["--device".into(), device.into()]);
            let words = shell::words(self.source.words().into_iter().chain(devices));
            let mut document = nearfar_report::audit::document(&machine, &audit, self.all, &words);
            document.emulated(machine.origin.emulation.as_ref());
            document
        };
        format.print(colour, "audit/1", Some(&machine.origin), &audit, document)?;
        let mut severities = audit.findings.iter().map(|finding| finding.severity);
        Failure::on(severities.any(|it| self.fail_on.is_some_and(|threshold| it >= threshold)))
    }

    fn audit(&self) -> Result<(Machine, audit::Audit), Failure> {
        let mut machine = self.source.read(wanted(self.tasks.scope()))?;
        add_measured(&mut machine);
        let options = PlanOptions {
            rules: (!self.rules.is_empty()).then(|| self.rules.clone()),
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
        Ok((machine, audit))
    }

    /// The plugin interface of Nagios: whatever the audit ends with is a line and one of four exit codes.
    fn check(&self) -> Outcome {
        let threshold = self.fail_on.unwrap_or(Severity::Warning);
        let (status, says) = match self.audit() {
            Ok((_, audit)) => nearfar_report::audit::check(&audit, threshold),
            // What is behind a vertical bar is performance data.
            Err(failure) => (CheckStatus::Unknown, failure.message().replace('|', "/")),
        };
        let line = format!("NUMA {status} - {}\n", says.replace('\n', "; "));
        output::print(&output::cleaned(&line))?;
        match status {
            CheckStatus::Ok => Ok(()),
            _ => Err(Failure::Answered(status as u8)),
        }
    }
}

/// docs/audit.md of this version.
const PAGE: &str = include_str!("../../../../docs/audit.md");

#[derive(Serialize)]
struct Explained {
    rule: &'static Rule,
    /// Markdown.
    text: &'static str,
    docs: String,
}

/// Prints the section of a rule, or the list of rules.
fn explain(id: Option<&str>, format: &FormatArgs, colour: Colour) -> Outcome {
    let Some(id) = id else {
        let document = || nearfar_report::explain::rules(RULES);
        return format.print(
            colour,
            "explain-rules/1",
            None,
            &under("rules", RULES),
            document,
        );
    };
    let rule = rule(id).ok_or_else(|| Failure::Input(anyhow::Error::msg(unknown_rule(id))))?;
    let text = section(PAGE, rule.id).unwrap_or(rule.explanation);
    let docs = format!("docs/audit.md#{}", rule.id);
    let explained = Explained { rule, text, docs };
    let document = || nearfar_report::explain::rule(rule, text);
    format.print(colour, "explain/1", None, &explained, document)
}

/// What stands below the heading `## ID`, up to the next one.
fn section<'a>(page: &'a str, id: &str) -> Option<&'a str> {
    page.split("\n## ")
        .skip(1)
        .find_map(|part| part.strip_prefix(id)?.strip_prefix('\n'))
        .map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_has_a_section_of_its_own() {
        for rule in RULES {
            let text = section(PAGE, rule.id)
                .unwrap_or_else(|| panic!("docs/audit.md has no section {}", rule.id));
            assert!(
                text.len() > 60 && text.starts_with('*') && !text.contains("\n## "),
                "{}: {text}",
                rule.id
            );
        }
        assert_eq!(section(PAGE, "interrupt"), None);
        assert_eq!(section(PAGE, ""), None);
    }
}

//! One thing that an audit found.

use nearfar_change::{Change, DistanceChange};
use nearfar_machine::{Distance, PciAddress};
use serde::Serialize;

use super::rules;
use crate::tasks::Remedy;

/// How much a finding matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing, costs nothing by itself.
    Fact,
    /// May cost, depending on the load.
    Notice,
    /// Costs whenever the device or task is used.
    Warning,
    /// The configuration cannot work as meant.
    Critical,
}

impl std::fmt::Display for Severity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Fact => "fact",
            Self::Notice => "notice",
            Self::Warning => "warning",
            Self::Critical => "critical",
        })
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Evidence {
    /// The file that was read, or the source and what says it there.
    pub file: String,
    pub value: String,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Finding {
    pub rule: &'static str,
    /// How much it matters here.
    pub severity: Severity,
    /// What it is about: "interrupt 42 (nvme0q3)".
    pub subject: String,
    /// What is wrong, in short sentences with the figures.
    pub message: String,
    pub evidence: Vec<Evidence>,
    /// The distance now and after the fix, where it is about one.
    pub cost: Option<DistanceChange>,
    /// The change that fixes it, where nearfar has one.
    pub fix: Option<Change>,
    /// What the operator can do, or must know first.
    pub advice: Option<String>,
    /// What is right for a task whose memory is far, where enough is known of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<Remedy>,
    /// The rule's explanation: "docs/audit.md#rule-id".
    pub docs: String,
    /// The PCI function it is about, where it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<PciAddress>,
}

impl Finding {
    /// A finding of a rule, with the rule's severity.
    pub(crate) fn new(
        rule: &'static str,
        subject: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            rule,
            severity: rules::rule(rule).map_or(Severity::Notice, |rule| rule.severity),
            subject: subject.into(),
            message: message.into(),
            evidence: Vec::new(),
            cost: None,
            fix: None,
            advice: None,
            remedy: None,
            docs: format!("docs/audit.md#{rule}"),
            device: None,
        }
    }

    pub(crate) fn severity(mut self, severity: Severity) -> Self {
        self.severity = severity;
        self
    }

    pub(crate) fn evidence(mut self, file: impl Into<String>, value: impl Into<String>) -> Self {
        let evidence = Evidence {
            file: file.into(),
            value: value.into(),
        };
        // A description says two things with one key.
        if !self.evidence.contains(&evidence) {
            self.evidence.push(evidence);
        }
        self
    }

    pub(crate) fn cost(mut self, now: Option<Distance>, after: Option<Distance>) -> Self {
        self.cost = Some(DistanceChange { now, after });
        self
    }

    pub(crate) fn fix(mut self, change: Change) -> Self {
        self.fix = Some(change);
        self
    }

    pub(crate) fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    pub(crate) fn device(mut self, device: PciAddress) -> Self {
        self.device = Some(device);
        self
    }
}

//! What has to be asked for so that a plan has changes.

use nearfar_machine::{IoPolicy, Machine};

use super::{PlanOptions, plan};
use crate::audit::Audit;

/// What a plan needs in addition to the findings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needs {
    Nothing,
    /// `device_node_override`
    DeviceNodeOverride,
    /// `iopolicy`: round-robin, to be compared.
    IoPolicy,
}

/// The least that has to be asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proposal {
    /// The rule to name; `None` where all rules together give changes.
    pub rule: Option<String>,
    pub needs: Needs,
}

/// How to get changes for what a rule found, or any rule; `None` where nothing does. Some changes are planned only where their
/// rule is named.
pub fn proposal(machine: &Machine, audit: &Audit, rule: Option<&str>) -> Option<Proposal> {
    let options = PlanOptions {
        rules: rule.map(|rule| vec![rule.to_owned()]),
        ..PlanOptions::default()
    };
    let overriding = PlanOptions {
        device_node_override: true,
        ..options.clone()
    };
    let policy = PlanOptions {
        iopolicy: Some(IoPolicy::RoundRobin),
        ..options.clone()
    };
    let mut ways = [
        (Needs::Nothing, options),
        (Needs::DeviceNodeOverride, overriding),
        (Needs::IoPolicy, policy),
    ]
    .into_iter();
    let found = ways.find(|(_, options)| !plan(machine, audit, options).changes.is_empty());
    match (found, rule) {
        (Some((needs, _)), rule) => Some(Proposal {
            rule: rule.map(str::to_owned),
            needs,
        }),
        (None, None) => {
            let fixed = audit.findings.iter().filter(|it| it.fix.is_some());
            let mut rules = fixed.map(|finding| finding.rule);
            rules.find_map(|rule| proposal(machine, audit, Some(rule)))
        }
        (None, Some(_)) => None,
    }
}

//! What to do after a checkup: commands that can be pasted as they are.

use super::Checkup;
use crate::unbound;

/// A command and what it is for.
pub(crate) struct Step {
    pub(crate) command: String,
    pub(crate) does: &'static str,
}

/// The commands, with the arguments that choose the machine of this checkup.
pub(crate) fn steps(checkup: &Checkup) -> Vec<Step> {
    let step = |command: &str, does| Step {
        command: on_this_machine(checkup, command),
        does,
    };
    let (audit, mut steps) = (&checkup.audit, Vec::new());
    if !audit.findings.is_empty() {
        steps.push(step(
            "nearfar audit",
            "every finding with its evidence and what would fix it",
        ));
    }
    if audit.findings.iter().any(|finding| finding.fix.is_some()) {
        steps.push(step(
            "nearfar plan",
            "the changes that fix them; nothing is changed before nearfar apply",
        ));
    }
    if checkup.unbound.get().is_some_and(unbound::is_slower) {
        let does = "how to keep a task on its node, and release it while that is full";
        steps.push(Step {
            command: "nearfar prefer --help".to_owned(),
            does,
        });
    }
    steps.push(step("nearfar topo", "the whole machine"));
    steps
}

/// A command for the machine of this checkup: `nearfar plan --source 'customer 3.nearfar'`.
pub(crate) fn on_this_machine(checkup: &Checkup, command: &str) -> String {
    let source = &checkup.made.source;
    if source.is_empty() {
        command.to_owned()
    } else {
        format!("{command} {source}")
    }
}

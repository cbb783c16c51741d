//! What to do after a checkup: commands that can be pasted as they are.

use nearfar_machine::{Machine, SourceKind};
use nearfar_placement::audit::{Audit, pasteable};
use nearfar_placement::plan::{Needs, Proposal, proposal};

use super::{Checkup, one_node};
use crate::unbound;

/// The machine of the gallery that has tasks, interrupts and disks that are far.
const EXAMPLE: &str = "database-host";

/// A command and what it is for.
pub(crate) struct Step {
    pub(crate) command: String,
    pub(crate) does: &'static str,
}

/// The commands, with the arguments that choose the machine of this checkup.
pub(crate) fn steps(checkup: &Checkup) -> Vec<Step> {
    let step = |command: &str, does| {
        let command = pasteable(command, &checkup.made.source)?;
        Some(Step { command, does })
    };
    let (audit, mut steps) = (&checkup.audit, Vec::new());
    if !audit.findings.is_empty() {
        steps.extend(step(
            "nearfar audit",
            "every finding with its evidence and what would fix it",
        ));
    }
    steps.extend(plan_step(
        &checkup.machine,
        audit,
        None,
        &checkup.made.source,
    ));
    if checkup.unbound.get().is_some_and(unbound::is_slower) {
        let does = "how to keep a task on its node, and release it while that is full";
        steps.push(Step {
            command: "nearfar prefer --help".to_owned(),
            does,
        });
    }
    let machine = &checkup.machine;
    let is_live = machine.origin.kind == SourceKind::Live;
    if is_live && checkup.is_one_node() && one_node::caches(machine).len() > 1 {
        steps.extend(step(
            "nearfar bench latency --what transfer",
            "the time of a cache line from CPU to CPU, behind one cache and behind two",
        ));
    }
    steps.extend(step("nearfar topo", "the whole machine"));
    if is_live && checkup.is_one_node() {
        steps.extend(elsewhere());
    }
    steps
}

/// The command that plans what a rule found, or all rules, with the options that its changes need; `None` where there are no
/// changes, and where the machine came from standard input, which cannot be read again. `source`: the arguments that choose
/// the machine.
pub(crate) fn plan_command(
    machine: &Machine,
    audit: &Audit,
    rule: Option<&str>,
    source: &str,
) -> Option<String> {
    plan_step(machine, audit, rule, source).map(|step| step.command)
}

fn plan_step(machine: &Machine, audit: &Audit, rule: Option<&str>, source: &str) -> Option<Step> {
    let Proposal { rule, needs } = proposal(machine, audit, rule)?;
    let (option, does) = match needs {
        Needs::Nothing => (
            "",
            "the changes that fix them; nothing is changed before nearfar apply",
        ),
        Needs::DeviceNodeOverride => (
            " --override-device-node",
            "the last resort, with what it costs: it taints the kernel and stops the device for a moment",
        ),
        Needs::IoPolicy => (
            " --iopolicy round-robin",
            "what another policy would be; measure both under the real load before nearfar apply",
        ),
    };
    let rule = rule.map_or_else(String::new, |rule| format!(" --rule {rule}"));
    let command = pasteable(&format!("nearfar plan{rule}{option}"), source)?;
    Some(Step { command, does })
}

/// What there is to see on machines with several nodes, on one that has a single one.
fn elsewhere() -> [Step; 3] {
    let example = |verb: &str, does| Step {
        command: format!("nearfar {verb} --source {EXAMPLE}"),
        does,
    };
    [
        example(
            "tasks",
            "on a described machine of two nodes: tasks far from their memory",
        ),
        example(
            "plan",
            "and what would bring interrupts, queues and I/O near",
        ),
        Step {
            command: "nearfar lab run --machine two-node -- nearfar checkup --probe 0".to_owned(),
            does: "boots a guest of two nodes and checks it",
        },
    ]
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

//! The rules by name. docs/audit.md has a section for each; a test compares them.

use nearfar_machine::near_match;
use serde::Serialize;

use super::Severity;

/// What a rule looks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Rule {
    pub id: &'static str,
    pub title: &'static str,
    /// The severity its findings usually have.
    pub severity: Severity,
    /// What it compares, in a sentence or two.
    pub explanation: &'static str,
}

/// The rules that compare nodes, with nothing to compare where there is one.
pub(super) const AMONG_NODES: &[&str] = &[
    "device-without-node",
    "flat-distances",
    "distances-lie",
    "task-memory-far",
    "task-far-from-device",
    "cpuset-disjoint",
    "node-nearly-full",
    "huge-pages-elsewhere",
    "no-card-on-node",
];

/// Every rule, in the order in which findings of one severity are listed.
pub static RULES: &[Rule] = &[
    Rule {
        id: "device-without-node",
        title: "device without a node",
        severity: Severity::Warning,
        explanation: "On a machine with several nodes the kernel has no node (-1) for a device that is in use, so drivers \
                      place its queues, memory and interrupts without regard to distance.",
    },
    Rule {
        id: "firmware-node-offline",
        title: "device on a node that is not online",
        severity: Severity::Warning,
        explanation: "The firmware puts the device's host bridge on a node that the kernel has not brought online, so \
                      the kernel has no node for the device.",
    },
    Rule {
        id: "device-node-differs",
        title: "kernel and firmware disagree on a device's node",
        severity: Severity::Notice,
        explanation: "The kernel's node of a device is not the one the firmware gives its host bridge: a user has \
                      overridden it, or a driver filled it in.",
    },
    Rule {
        id: "interrupt-far",
        title: "interrupt served far from its device",
        severity: Severity::Warning,
        explanation: "The CPU that serves a queue's interrupt is further from the device than a usable CPU that serves \
                      none of the device's queues.",
    },
    Rule {
        id: "queues-share-cpu",
        title: "several queues of a device on one CPU",
        severity: Severity::Notice,
        explanation: "One CPU serves several queues of a device while another usable CPU, no further away, serves none.",
    },
    Rule {
        id: "interrupt-on-isolated-cpu",
        title: "interrupt on an isolated CPU",
        severity: Severity::Warning,
        explanation: "A CPU that is isolated (isolcpus=, a cpuset partition) or tickless (nohz_full=) serves an interrupt: none of \
                      these keeps interrupts away.",
    },
    Rule {
        id: "managed-interrupt",
        title: "interrupts the kernel manages",
        severity: Severity::Fact,
        explanation: "The kernel alone places these interrupts; a write to their affinity fails, so nearfar never writes it.",
    },
    Rule {
        id: "competing-writer",
        title: "another program writes placement",
        severity: Severity::Notice,
        explanation: "A service or a rule writes the same settings as nearfar and would undo a change.",
    },
    Rule {
        id: "xps-mismatch",
        title: "transmit queues do not follow the interrupts",
        severity: Severity::Notice,
        explanation: "The CPU that serves a transmit queue's interrupt does not send through that queue (XPS), so one \
                      CPU sends and another completes. Where one queue is so, the CPUs are shared out among all.",
    },
    Rule {
        id: "rps-mismatch",
        title: "received packets are handed to far CPUs",
        severity: Severity::Notice,
        explanation: "RPS hands packets to CPUs further from the device than necessary, to isolated CPUs, or although each \
                      near CPU has a receive queue of its own.",
    },
    Rule {
        id: "nvme-far-path",
        title: "NVMe I/O over a far or undefined path",
        severity: Severity::Notice,
        explanation: "The subsystem's I/O policy, or a controller without a node, sends I/O over a path that is not the \
                      nearest; or numa leaves paths idle. Which is faster depends on the load: measure.",
    },
    Rule {
        id: "task-memory-far",
        title: "task with most of its memory on another node",
        severity: Severity::Notice,
        explanation: "More than half of a task's memory is on nodes other than those it runs on.",
    },
    Rule {
        id: "task-far-from-device",
        title: "task that runs far from its GPU, RDMA or VFIO device",
        severity: Severity::Notice,
        explanation: "A task has a device open that reads and writes its memory, and most of its CPU time was on nodes that are not \
                      the nearest to it.",
    },
    Rule {
        id: "cpuset-disjoint",
        title: "cpuset whose CPUs are on none of its memory nodes",
        severity: Severity::Warning,
        explanation: "No CPU of the cpuset is near any of the nodes its tasks get memory from: all their memory is far.",
    },
    Rule {
        id: "numa-balancing",
        title: "automatic NUMA balancing does not fit the tasks",
        severity: Severity::Notice,
        explanation: "Balancing is off while large tasks are unbound and move between nodes, or on while large memory is pinned, which it \
                      keeps unmapping and cannot move.",
    },
    Rule {
        id: "node-nearly-full",
        title: "node nearly full while another is nearly empty",
        severity: Severity::Notice,
        explanation: "Less than 5 % of a node's memory is free while another node has at least 25 % free: allocations go to \
                      other nodes, or reclaim, swap and fail although there is memory.",
    },
    Rule {
        id: "huge-pages-elsewhere",
        title: "huge pages on other nodes than needed",
        severity: Severity::Notice,
        explanation: "A network card, a device that a program or guest has, or a task with huge pages is on a node without huge \
                      pages while another node has some.",
    },
    Rule {
        id: "no-card-on-node",
        title: "GPU without a network card on its node",
        severity: Severity::Notice,
        explanation: "What goes from a GPU to the network crosses nodes: every network card is on another node.",
    },
    Rule {
        id: "flat-distances",
        title: "all distances are equal",
        severity: Severity::Notice,
        explanation: "There is more than one node and the table has the same distance everywhere, so nothing that \
                      uses distances can work.",
    },
    Rule {
        id: "distances-lie",
        title: "distances are not as measured",
        severity: Severity::Fact,
        explanation: "By measured latencies a node's memory is more than 10 % nearer or further, as a multiple of local memory, than \
                      by its distance. A notice where another order of nodes follows: the kernel prefers the slower one.",
    },
    Rule {
        id: "node-without-cpus",
        title: "node without CPUs",
        severity: Severity::Fact,
        explanation: "An online node has no CPUs: its memory or its devices are remote to every CPU.",
    },
    Rule {
        id: "node-without-memory",
        title: "node without memory",
        severity: Severity::Fact,
        explanation: "An online node has no memory: what its CPUs allocate comes from another node.",
    },
    Rule {
        id: "input-contradiction",
        title: "contradiction in what was read",
        severity: Severity::Fact,
        explanation: "The firmware, the kernel or the text that was read contradicts itself; the output has what was assumed.",
    },
];

pub fn rule(id: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.id == id)
}

/// What to say of an id that no rule has: those that resemble it or contain it, and what lists all.
pub fn unknown_rule(id: &str) -> String {
    /// A shorter part of a name is in too many of them.
    const MIN_PART_BYTES: usize = 3;
    let ids = || RULES.iter().map(|rule| rule.id);
    let part = id.to_lowercase();
    let has_part = |id: &&str| part.len() >= MIN_PART_BYTES && id.contains(&part);
    let near: Vec<&str> = match near_match(id, ids()) {
        Some(near) => vec![near],
        None => ids().filter(has_part).collect(),
    };
    let near = match near.is_empty() {
        true => String::new(),
        false => format!("did you mean \"{}\"? ", near.join("\" or \"")),
    };
    format!("there is no audit rule {id:?}; {near}`nearfar audit --explain` lists the rules")
}

#[cfg(test)]
mod tests {
    use super::unknown_rule;

    #[test]
    fn an_unknown_rule_is_answered_with_near_ones_and_not_with_all() {
        for (id, near) in [
            ("interupt-far", "did you mean \"interrupt-far\"? "),
            ("isolated", "did you mean \"interrupt-on-isolated-cpu\"? "),
            ("nope", ""),
            ("", ""),
        ] {
            let expected = format!(
                "there is no audit rule {id:?}; {near}`nearfar audit --explain` lists the rules"
            );
            assert_eq!(unknown_rule(id), expected);
        }
        assert!(
            unknown_rule("without").contains("\"node-without-cpus\" or \"node-without-memory\"")
        );
    }
}

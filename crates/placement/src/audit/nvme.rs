//! NVMe subsystems with several paths: which of them I/O takes from where.
//!
//! numa keeps I/O near and leaves the other paths idle; round-robin and queue-depth use them all and send part of the
//! I/O far. Which is faster depends on whether the path or the distance is the limit, so no finding says
//! that a policy is wrong: it says what the policy costs and what to compare.

use std::collections::BTreeSet;

use nearfar_machine::{Distance, IoPolicy, Known, NodeId, NodeSet, NvmeSubsystem};

use crate::audit::site::{Fact, Site, node_number, nodes as named, spoken};
use crate::audit::{Finding, Ledger, Severity};
use crate::path::{NamespacePaths, NoNode, PathView, View, class};

const FAR: &str = "nvme-far-path";
const MEASURE: &str = "Compare policies under the real load before changing one: numa keeps I/O near, round-robin and \
                       queue-depth (since Linux 6.11) use every path; which wins depends on whether a path or the distance is the limit.";

pub(crate) fn check(site: &Site<'_>, ledger: &mut Ledger) {
    let Some(subsystems) = ledger.need(&site.machine.nvme, &[FAR]) else {
        return;
    };
    for subsystem in subsystems {
        let mut unknown = subsystem.namespaces.iter();
        let unknown = unknown.find_map(|namespace| namespace.paths_unknown_reason.as_ref());
        if let Some(reason) = unknown {
            let reason = format!("its paths are unknown: {reason}");
            ledger.skip_thing(FAR, || subsystem.name.clone(), &reason);
        }
        let several = subsystem
            .namespaces
            .iter()
            .any(|namespace| namespace.paths.len() > 1);
        if !several {
            continue;
        }
        if let Some(reason) = &site.cpu_nodes_unknown {
            ledger.skip_thing(FAR, || subsystem.name.clone(), reason);
            continue;
        }
        match &subsystem.iopolicy {
            Known::Yes(policy) => judge(site, subsystem, policy, ledger),
            Known::No { unknown_reason } => {
                ledger.skip_thing(FAR, || subsystem.name.clone(), unknown_reason)
            }
        }
    }
}

/// The paths of one namespace, seen from every node that has CPUs.
struct Seen {
    from: Vec<(NodeId, NamespacePaths)>,
}

fn judge(site: &Site<'_>, subsystem: &NvmeSubsystem, policy: &IoPolicy, ledger: &mut Ledger) {
    for namespace in subsystem
        .namespaces
        .iter()
        .filter(|namespace| namespace.paths.len() > 1)
    {
        let from = site.cpu_nodes.iter().map(|&node| {
            let view = View::new(site.machine, &site.localities, subsystem, Some(node));
            (node, view.namespace(namespace))
        });
        let seen = Seen {
            from: from.collect(),
        };
        let finding = match policy {
            IoPolicy::Numa => seen.under_numa(&NoNode::of(&site.machine.origin)),
            IoPolicy::RoundRobin | IoPolicy::QueueDepth => seen.shared_out(policy),
            IoPolicy::Other(word) => {
                let reason = format!("this version does not know the policy {word:?}");
                ledger.skip_thing(FAR, || subsystem.name.clone(), &reason);
                None
            }
        };
        // What holds for one namespace holds for the subsystem: the policy is the subsystem's.
        if let Some(finding) = finding {
            let finding = finding.subject(site, subsystem, &namespace.name);
            ledger.add(
                finding
                    .evidence(site.place(Fact::IoPolicy(&subsystem.name)), policy.as_str())
                    .advice(MEASURE),
            );
            return;
        }
    }
}

impl Finding {
    fn subject(mut self, site: &Site<'_>, subsystem: &NvmeSubsystem, namespace: &str) -> Self {
        self.subject = format!("{} ({namespace})", subsystem.name);
        let mut devices = subsystem
            .controllers
            .iter()
            .filter_map(|controller| controller.device);
        self.device = devices.next();
        for controller in &subsystem.controllers {
            if let Some(node) = controller.node.get() {
                let fact = Fact::ControllerNode(&subsystem.name, &controller.name);
                self = self.evidence(site.place(fact), node_number(*node));
            }
        }
        self
    }
}

fn least(paths: &[&PathView]) -> Option<Distance> {
    paths.iter().filter_map(|path| path.distance).min()
}

fn most(paths: &[&PathView]) -> Option<Distance> {
    paths.iter().filter_map(|path| path.distance).max()
}

/// What the policy `numa` makes of controllers without a node, from one node.
struct Chosen<'a> {
    node: NodeId,
    /// Usable paths of the best class.
    class: Vec<&'a PathView>,
    /// Those of them that the policy may take although the kernel has no node for the controller.
    nowhere: Vec<&'a PathView>,
    is_certain: bool,
}

impl<'a> Chosen<'a> {
    /// Nothing where no such path is in the class, or no other.
    fn new((node, paths): &'a (NodeId, NamespacePaths)) -> Option<Self> {
        let class = class(&paths.paths);
        let choice = paths.numa()?;
        let is_nowhere = |path: &&&PathView| path.kernel_node.get() == Some(&None);
        let nowhere: Vec<&PathView> = class
            .iter()
            .filter(is_nowhere)
            .filter(|path| choice.paths.contains(&path.name))
            .copied()
            .collect();
        let several = class.len() > 1 && !nowhere.is_empty();
        several.then_some(Self {
            node: *node,
            class,
            nowhere,
            is_certain: choice.certain,
        })
    }

    fn taken(&self) -> impl Iterator<Item = &'a str> {
        self.nowhere.iter().map(|path| path.name.as_str())
    }

    /// One that is further than the nearest of the class, with the distance of that.
    fn far(&self) -> Option<(&'a PathView, Distance)> {
        let near = least(&self.class)?;
        self.nowhere
            .iter()
            .find(|path| path.distance > Some(near))
            .map(|path| (*path, near))
    }
}

impl Seen {
    fn under_numa(&self, no_node: &NoNode) -> Option<Finding> {
        self.without_a_node(no_node)
            .or_else(|| self.taken_far())
            .or_else(|| self.idle())
    }

    /// A controller that the kernel ranks without knowing where it is.
    fn without_a_node(&self, no_node: &NoNode) -> Option<Finding> {
        let mut chosen: Vec<Chosen<'_>> = self.from.iter().filter_map(Chosen::new).collect();
        // What certainly happens is the better example.
        chosen.sort_by_key(|chosen| !chosen.is_certain);
        let controllers: BTreeSet<&str> = chosen
            .iter()
            .flat_map(|chosen| &chosen.nowhere)
            .map(|path| path.controller.as_str())
            .collect();
        if controllers.is_empty() {
            return None;
        }
        let mut message = format!(
            "The policy is numa and the kernel has no node for {}: {}.",
            controllers.into_iter().collect::<Vec<_>>().join(", "),
            no_node.rule()
        );
        for (is_certain, verb) in [(true, "goes"), (false, "may go")] {
            let of_kind = || {
                chosen
                    .iter()
                    .filter(|chosen| chosen.is_certain == is_certain)
            };
            let nodes: NodeSet = of_kind().map(|chosen| chosen.node).collect();
            let paths: BTreeSet<&str> = of_kind().flat_map(Chosen::taken).collect();
            if !paths.is_empty() {
                let paths: Vec<&str> = paths.into_iter().collect();
                message += &format!(
                    " I/O from {} {verb} through {}.",
                    named(&nodes),
                    paths.join(", ")
                );
            }
        }
        let finding = |message| Finding::new(FAR, "", message).severity(Severity::Warning);
        let far = chosen
            .iter()
            .find_map(|chosen| Some((chosen.node, chosen.far()?)));
        Some(match far {
            Some((node, (lost, near))) => {
                let seen = format!(
                    " From node {node} {} is at {}, another path at {near}.",
                    lost.controller,
                    spoken(lost.distance)
                );
                finding(message + &seen).cost(lost.distance, Some(near))
            }
            None => finding(message),
        })
    }

    /// The kernel's node of a controller is not where it is.
    fn taken_far(&self) -> Option<Finding> {
        self.from.iter().find_map(|(node, paths)| {
            let choice = paths.numa().filter(|choice| choice.certain)?;
            let taken = paths.paths.iter().find(|path| choice.paths.first() == Some(&path.name))?;
            let near = least(&class(&paths.paths))?;
            let now = taken.distance.filter(|&now| now > near)?;
            let message = format!(
                "The policy numa takes {} from node {node}, which is at {now}; another path is at {near}.",
                taken.name
            );
            Some(Finding::new(FAR, "", message).severity(Severity::Warning).cost(Some(now), Some(near)))
        })
    }

    /// Paths that no CPU, or only those of other nodes, would use.
    fn idle(&self) -> Option<Finding> {
        let (_, paths) = self.from.first()?;
        let class = class(&paths.paths);
        if class.len() < 2 {
            return None;
        }
        let choices = self.from.iter().filter_map(|(_, paths)| paths.numa());
        let taken = choices.flat_map(|choice| &choice.paths);
        let taken: BTreeSet<&str> = taken.map(String::as_str).collect();
        let idle: Vec<&str> = class
            .iter()
            .map(|path| path.name.as_str())
            .filter(|name| !taken.contains(name))
            .collect();
        let of = class.len();
        Some(if idle.is_empty() {
            let message = format!(
                "The policy numa uses one of {of} paths from each node; the others are idle."
            );
            Finding::new(FAR, "", message).severity(Severity::Fact)
        } else {
            let message = format!(
                "The policy numa uses {} of {of} paths; no CPU uses {}.",
                of - idle.len(),
                idle.join(", ")
            );
            Finding::new(FAR, "", message)
        })
    }

    /// Part of the I/O goes far.
    fn shared_out(&self, policy: &IoPolicy) -> Option<Finding> {
        self.from.iter().find_map(|(node, paths)| {
            let class = class(&paths.paths);
            let near = least(&class)?;
            let far = class.iter().filter(|path| path.distance > Some(near)).count();
            let most = most(&class).filter(|_| far > 0)?;
            let (of, verb) = (class.len(), if *policy == IoPolicy::RoundRobin { "sends" } else { "may send" });
            let message = format!(
                "The policy {policy} {verb} I/O from node {node} over all {of} paths; {far} of them far, at {most} rather than {near}."
            );
            Some(Finding::new(FAR, "", message).cost(Some(most), Some(near)))
        })
    }
}

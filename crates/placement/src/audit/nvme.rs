//! NVMe subsystems with several paths: which of them I/O takes from where.
//!
//! numa keeps I/O near and leaves the other paths idle; round-robin and queue-depth use them all and send part of the
//! I/O far. Which is faster depends on whether the path or the distance is the limit, so no finding says
//! that a policy is wrong: it says what the policy costs and what to compare.

use nearfar_machine::{Distance, IoPolicy, Known, NodeId, NvmeSubsystem};

use super::ledger::Ledger;
use super::site::{Site, node_file, spoken};
use super::{Finding, Severity};
use crate::path::{NamespacePaths, PathView, Standing, View};

const FAR: &str = "nvme-far-path";
const MEASURE: &str = "Compare policies under the real load before changing one: numa keeps I/O near, round-robin and \
                       queue-depth use every path; which wins depends on whether a path or the distance is the limit.";

pub(super) fn check(site: &Site<'_>, ledger: &mut Ledger) {
    let Some(subsystems) = ledger.need(&site.machine.nvme, &[FAR]) else { return };
    for subsystem in subsystems {
        let several = subsystem.namespaces.iter().any(|namespace| namespace.paths.len() > 1);
        if !several {
            continue;
        }
        match &subsystem.iopolicy {
            Known::Yes(policy) => judge(site, subsystem, policy, ledger),
            Known::No { not_known_because } => ledger.skip_thing(FAR, || subsystem.name.clone(), not_known_because),
        }
    }
}

/// The paths of one namespace, seen from every node that has CPUs.
struct Seen {
    from: Vec<(NodeId, NamespacePaths)>,
}

fn judge(site: &Site<'_>, subsystem: &NvmeSubsystem, policy: &IoPolicy, ledger: &mut Ledger) {
    for namespace in subsystem.namespaces.iter().filter(|namespace| namespace.paths.len() > 1) {
        let from = site.cpu_nodes.iter().map(|&node| {
            let view = View { machine: site.machine, localities: &site.localities, subsystem, node: Some(node) };
            (node, view.namespace(namespace))
        });
        let seen = Seen { from: from.collect() };
        let finding = match policy {
            IoPolicy::Numa => seen.under_numa(),
            IoPolicy::RoundRobin | IoPolicy::QueueDepth => seen.shared_out(policy),
            IoPolicy::Other(word) => {
                let because = format!("this version does not know the policy {word:?}");
                ledger.skip_thing(FAR, || subsystem.name.clone(), &because);
                None
            }
        };
        // What holds for one namespace holds for the subsystem: the policy is the subsystem's.
        if let Some(finding) = finding {
            let finding = finding.subject(subsystem, &namespace.name);
            ledger.add(finding.evidence(policy_file(&subsystem.name), policy.as_str()).advice(MEASURE));
            return;
        }
    }
}

fn policy_file(subsystem: &str) -> String {
    format!("/sys/class/nvme-subsystem/{subsystem}/iopolicy")
}

impl Finding {
    fn subject(mut self, subsystem: &NvmeSubsystem, namespace: &str) -> Self {
        self.subject = format!("{} ({namespace})", subsystem.name);
        let mut devices = subsystem.controllers.iter().filter_map(|controller| controller.device);
        self.device = devices.next();
        for controller in &subsystem.controllers {
            if let (Some(device), Some(node)) = (controller.device, controller.node.get()) {
                let node = node.map_or_else(|| "-1".to_owned(), |node| node.to_string());
                self = self.evidence(node_file(device), format!("{node} ({})", controller.name));
            }
        }
        self
    }
}

/// The paths among which a policy chooses: the best standing there is.
fn class(paths: &NamespacePaths) -> Vec<&PathView> {
    let best = paths.paths.iter().map(|path| path.standing).min();
    let usable = best.filter(|&best| best != Standing::Unusable);
    paths.paths.iter().filter(|path| Some(path.standing) == usable).collect()
}

fn least(paths: &[&PathView]) -> Option<Distance> {
    paths.iter().filter_map(|path| path.distance).min()
}

fn most(paths: &[&PathView]) -> Option<Distance> {
    paths.iter().filter_map(|path| path.distance).max()
}

impl Seen {
    fn under_numa(&self) -> Option<Finding> {
        self.without_a_node().or_else(|| self.taken_far()).or_else(|| self.idle())
    }

    /// A controller the kernel cannot compare.
    fn without_a_node(&self) -> Option<Finding> {
        self.from.iter().find_map(|(node, paths)| {
            let class = class(paths);
            let lost = class.iter().find(|path| path.kernel_node.get() == Some(&None))?;
            if class.len() < 2 {
                return None;
            }
            let message = format!(
                "The policy is numa and the kernel has no node for {}: what it takes for its distance cannot be told.",
                lost.controller
            );
            let finding = |message| Finding::new(FAR, "", message).severity(Severity::Warning);
            let near = least(&class).filter(|&near| lost.distance > Some(near));
            Some(match near {
                Some(near) => {
                    let far = spoken(lost.distance);
                    let seen =
                        format!(" From node {node} it is at {far}, another path at {near}: I/O may take the far one.");
                    finding(message + &seen).cost(lost.distance, Some(near))
                }
                None => finding(message),
            })
        })
    }

    /// The kernel's node of a controller is not where it is.
    fn taken_far(&self) -> Option<Finding> {
        self.from.iter().find_map(|(node, paths)| {
            let choice = paths.choices.iter().find(|choice| choice.policy == IoPolicy::Numa && choice.certain)?;
            let taken = paths.paths.iter().find(|path| choice.paths.first() == Some(&path.name))?;
            let near = least(&class(paths))?;
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
        let class = class(paths);
        if class.len() < 2 {
            return None;
        }
        let numa =
            |paths: &NamespacePaths| paths.choices.iter().find(|choice| choice.policy == IoPolicy::Numa).cloned();
        let taken: Vec<String> =
            self.from.iter().filter_map(|(_, paths)| numa(paths)).flat_map(|choice| choice.paths).collect();
        let idle: Vec<&str> = class
            .iter()
            .map(|path| path.name.as_str())
            .filter(|name| !taken.iter().any(|taken| taken == name))
            .collect();
        let of = class.len();
        Some(if idle.is_empty() {
            let message =
                format!("The policy numa uses one of {of} paths from each node; the others idle for its tasks.");
            Finding::new(FAR, "", message).severity(Severity::Fact)
        } else {
            let message =
                format!("The policy numa uses {} of {of} paths; no CPU uses {}.", of - idle.len(), idle.join(", "));
            Finding::new(FAR, "", message)
        })
    }

    /// Part of the I/O goes far.
    fn shared_out(&self, policy: &IoPolicy) -> Option<Finding> {
        self.from.iter().find_map(|(node, paths)| {
            let class = class(paths);
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

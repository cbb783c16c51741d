//! Findings of one rule that say the same of many queues, as one line.
//!
//! ```text
//! interrupt 45 (eth0-0), 46 (eth0-1), ... 68 (eth0-23)
//!    -> 24 queues of eth0 (interrupts 45-68) on node 1, device on node 0
//! ```

use std::collections::{BTreeMap, BTreeSet};

use nearfar_machine::{Interrupt, Irq, Machine, NodeId, NodeSet, PciAddress};
use nearfar_placement::audit::Finding;
use nearfar_placement::change::{Change, DistanceChange};
use nearfar_placement::locality::Localities;

use crate::amount::{count, ranges};
use crate::topo::marks::{names, served};

/// One line, and the findings it stands for.
pub(crate) struct Fold<'a> {
    pub(crate) line: String,
    pub(crate) cost: Option<DistanceChange>,
    pub(crate) findings: Vec<&'a Finding>,
}

/// What folding has to look up, once for all rules.
pub(crate) struct Folder<'a> {
    machine: &'a Machine,
    localities: Localities<'a>,
    names: BTreeMap<PciAddress, String>,
    interrupts: BTreeMap<Irq, &'a Interrupt>,
}

/// What the findings of a line have in common.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Interrupts {
        device: PciAddress,
        nodes: Vec<NodeId>,
    },
    Transmit {
        interface: String,
    },
    Receive {
        interface: String,
    },
    /// Like no other.
    Alone(usize),
}

impl<'a> Folder<'a> {
    pub(crate) fn of(machine: &'a Machine) -> Self {
        let interrupts = machine
            .interrupts
            .get()
            .into_iter()
            .flatten()
            .map(|interrupt| (interrupt.irq, interrupt));
        let (localities, names) = (Localities::new(machine), names(machine));
        Self {
            machine,
            localities,
            names,
            interrupts: interrupts.collect(),
        }
    }

    /// The findings of a rule by what they have in common, in the order in which each line's first one comes.
    pub(crate) fn fold(&self, findings: &[&'a Finding]) -> Vec<Fold<'a>> {
        type Place = (Key, Option<(u32, u32)>);
        let mut folds: Vec<(Key, Fold<'a>)> = Vec::new();
        let mut places: BTreeMap<Place, usize> = BTreeMap::new();
        for (index, &finding) in findings.iter().enumerate() {
            let cost = finding.cost.map(|cost| {
                let figure = |distance: Option<nearfar_machine::Distance>| {
                    distance.map_or(0, |distance| distance.0)
                };
                (figure(cost.now), figure(cost.after))
            });
            let place = *places
                .entry((self.key(finding, index), cost))
                .or_insert_with(|| {
                    let fold = Fold {
                        line: String::new(),
                        cost: finding.cost,
                        findings: Vec::new(),
                    };
                    folds.push((self.key(finding, index), fold));
                    folds.len() - 1
                });
            folds[place].1.findings.push(finding);
        }
        let named = folds.into_iter().map(|(key, fold)| Fold {
            line: self.line(&key, &fold.findings),
            ..fold
        });
        named.collect()
    }

    fn key(&self, finding: &Finding, index: usize) -> Key {
        match &finding.fix {
            Some(Change::InterruptAffinity { irq, .. }) => {
                self.interrupt_key(*irq).unwrap_or(Key::Alone(index))
            }
            Some(Change::Xps { interface, .. }) => Key::Transmit {
                interface: interface.clone(),
            },
            Some(Change::Rps { interface, .. }) => Key::Receive {
                interface: interface.clone(),
            },
            _ => Key::Alone(index),
        }
    }

    fn interrupt_key(&self, irq: Irq) -> Option<Key> {
        let served = served(self.machine, &self.localities, self.interrupts.get(&irq)?)?;
        Some(Key::Interrupts {
            device: served.device,
            nodes: served.nodes.iter().collect(),
        })
    }

    fn line(&self, key: &Key, findings: &[&Finding]) -> String {
        let queues = || ranges(findings.iter().filter_map(|finding| number(finding)));
        match key {
            // A finding says of itself better what it is about.
            _ if findings.len() == 1 => findings[0].subject.clone(),
            Key::Interrupts { device, nodes } => self.interrupts_line(*device, nodes, findings),
            Key::Transmit { interface } => {
                format!(
                    "{} of {interface} ({})",
                    count(findings.len(), "transmit queue"),
                    queues()
                )
            }
            Key::Receive { interface } => {
                format!(
                    "{} of {interface} ({})",
                    count(findings.len(), "receive queue"),
                    queues()
                )
            }
            Key::Alone(_) => String::new(),
        }
    }

    fn interrupts_line(
        &self,
        device: PciAddress,
        nodes: &[NodeId],
        findings: &[&Finding],
    ) -> String {
        let irqs: BTreeSet<u32> = findings
            .iter()
            .filter_map(|finding| number(finding))
            .collect();
        let queue = |irq: &u32| {
            self.interrupts
                .get(&Irq(*irq))
                .is_some_and(|interrupt| interrupt.queue.is_some())
        };
        let name = self
            .names
            .get(&device)
            .cloned()
            .unwrap_or_else(|| device.to_string());
        let what = match irqs.iter().all(queue) {
            true => format!(
                "{} of {name} (interrupts {})",
                count(findings.len(), "queue"),
                ranges(irqs)
            ),
            false => format!(
                "{} of {name} ({})",
                count(findings.len(), "interrupt"),
                ranges(irqs)
            ),
        };
        let served = match nodes {
            [] => String::new(),
            [node] => format!(" on node {node}"),
            many => format!(" on nodes {}", many.iter().copied().collect::<NodeSet>()),
        };
        let home = self
            .localities
            .of(device)
            .node
            .map_or_else(String::new, |node| format!(", device on node {node}"));
        what + &served + &home
    }
}

/// The number of the interrupt or queue that a finding is about.
fn number(finding: &Finding) -> Option<u32> {
    match &finding.fix {
        Some(Change::InterruptAffinity { irq, .. }) => Some(irq.0),
        Some(Change::Xps { queue, .. } | Change::Rps { queue, .. }) => Some(*queue),
        _ => None,
    }
}

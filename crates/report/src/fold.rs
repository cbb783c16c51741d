//! Findings of one rule that say the same of many queues or devices, as one line.
//!
//! ```text
//! interrupt 45 (eth0-0), 46 (eth0-1), ... 68 (eth0-23)
//!    -> 24 queues of eth0 (interrupts 45-68) on node 1, device on node 0
//! 0000:20:00.0 (nvme), 0000:21:00.0 (nvme), ... with one message
//!    -> 0000:20:00.0 (nvme), 0000:21:00.0 (nvme) and 4 more
//! ```

use std::collections::BTreeMap;

use nearfar_change::{Change, DistanceChange};
use nearfar_machine::{Distance, Interrupt, Irq, Machine, NodeId, NodeSet, PciAddress};
use nearfar_placement::audit::Finding;
use nearfar_placement::locality::Localities;

use crate::amount::{count, or, ranges};
use crate::topo::marks::{names, served};

/// One line, and the findings it stands for.
pub(crate) struct Fold<'a> {
    pub(crate) line: String,
    pub(crate) cost: Option<DistanceChange>,
    pub(crate) findings: Vec<&'a Finding>,
}

impl Fold<'_> {
    /// Whether one message says it all.
    pub(crate) fn is_one_message(&self) -> bool {
        self.findings
            .iter()
            .all(|it| it.message == self.findings[0].message)
    }
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
enum Key<'a> {
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
    /// The same words.
    Message(&'a str),
}

/// Most subjects of one message that a line names.
const MAX_SUBJECTS: usize = 2;

impl<'a> Folder<'a> {
    pub(crate) fn of(machine: &'a Machine) -> Self {
        let interrupts = machine.interrupts.get().into_iter().flatten();
        let interrupts = interrupts.map(|interrupt| (interrupt.irq, interrupt));
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
        let figure = |distance: Option<Distance>| distance.map_or(0, |distance| distance.0);
        let mut places: BTreeMap<_, usize> = BTreeMap::new();
        let mut folds: Vec<(Key<'a>, Fold<'a>)> = Vec::new();
        for &finding in findings {
            let cost = finding
                .cost
                .map(|cost| (figure(cost.now), figure(cost.after)));
            let place = *places.entry((self.key(finding), cost)).or_insert_with(|| {
                let fold = Fold {
                    line: String::new(),
                    cost: finding.cost,
                    findings: Vec::new(),
                };
                folds.push((self.key(finding), fold));
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

    fn key(&self, finding: &'a Finding) -> Key<'a> {
        let key = match &finding.fix {
            Some(Change::Xps { interface, .. }) => Some(Key::Transmit {
                interface: interface.clone(),
            }),
            Some(Change::Rps { interface, .. }) => Some(Key::Receive {
                interface: interface.clone(),
            }),
            _ => interrupt(finding).and_then(|irq| self.interrupt_key(irq)),
        };
        key.unwrap_or(Key::Message(&finding.message))
    }

    fn interrupt_key(&self, irq: Irq) -> Option<Key<'a>> {
        let served = served(self.machine, &self.localities, self.interrupts.get(&irq)?)?;
        Some(Key::Interrupts {
            device: served.device,
            nodes: served.nodes.iter().collect(),
        })
    }

    fn line(&self, key: &Key<'_>, findings: &[&Finding]) -> String {
        let numbers = ranges(findings.iter().filter_map(|finding| number(finding)));
        let all = |noun: &str| count(findings.len(), noun);
        match key {
            // A finding's own text names its subject better.
            _ if findings.len() == 1 => findings[0].subject.clone(),
            Key::Interrupts { device, nodes } => {
                let name = or(self.names.get(device), &device.to_string());
                let what = match findings.iter().all(|finding| self.is_of_queue(finding)) {
                    true => format!("{} of {name} (interrupts {numbers})", all("queue")),
                    false => format!("{} of {name} ({numbers})", all("interrupt")),
                };
                what + &self.nodes(*device, nodes)
            }
            Key::Transmit { interface } => {
                format!("{} of {interface} ({numbers})", all("transmit queue"))
            }
            Key::Receive { interface } => {
                format!("{} of {interface} ({numbers})", all("receive queue"))
            }
            Key::Message(_) => {
                let subjects = findings.iter().take(MAX_SUBJECTS);
                let subjects: Vec<&str> = subjects.map(|it| it.subject.as_str()).collect();
                match findings.len() - subjects.len() {
                    0 => subjects.join(" and "),
                    more => format!("{} and {more} more", subjects.join(", ")),
                }
            }
        }
    }

    fn is_of_queue(&self, finding: &Finding) -> bool {
        let interrupt = number(finding).and_then(|irq| self.interrupts.get(&Irq(irq)));
        interrupt.is_some_and(|interrupt| interrupt.queue.is_some())
    }

    /// The nodes that serve a device's interrupts, and its own.
    fn nodes(&self, device: PciAddress, nodes: &[NodeId]) -> String {
        let served = match nodes {
            [] => String::new(),
            [node] => format!(" on node {node}"),
            many => format!(" on nodes {}", many.iter().copied().collect::<NodeSet>()),
        };
        let own = self.localities.of(device).node;
        served + &or(own.map(|node| format!(", device on node {node}")), "")
    }
}

/// The number of the interrupt or queue that a finding is about.
fn number(finding: &Finding) -> Option<u32> {
    match &finding.fix {
        Some(Change::Xps { queue, .. } | Change::Rps { queue, .. }) => Some(*queue),
        _ => interrupt(finding).map(|irq| irq.0),
    }
}

/// The interrupt that a finding is about: of its fix, or the one in "interrupt 42 (nvme0q3)".
fn interrupt(finding: &Finding) -> Option<Irq> {
    if let Some(Change::InterruptAffinity { irq, .. }) = &finding.fix {
        return Some(*irq);
    }
    let number = finding.subject.strip_prefix("interrupt ")?;
    number.split(' ').next()?.parse().ok().map(Irq)
}

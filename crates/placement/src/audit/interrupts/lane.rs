//! The interrupts that carry a device's data: each queue a CPU, near and of its own.
//!
//! A device's queues fall into lanes by direction, since a CPU may well serve one queue each way. A device whose interrupts
//! have no queue in their names has one lane, which is only checked for distance.

use std::collections::BTreeMap;

use nearfar_machine::{CpuId, CpuSet, Distance, Interrupt, Known, PciAddress};

use super::{
    After, FAR, ISOLATED, SHARE, Serving, cost_of_isolation, fix, is_managed, isolated, kept_free,
    served, serving, shown, titled,
};
use crate::audit::Finding;
use crate::audit::assignment::{self, Now};
use crate::audit::evidence::{Fact, node_number};
use crate::audit::ledger::Ledger;
use crate::audit::site::{Site, cpus, spoken};
use crate::locality::EffectiveNode;
use crate::near::Ring;

/// Which way a queue goes, by its interrupt's name: `virtio0-input.1`, `eth0-tx-3`, `eth0-TxRx-3`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::audit) enum Direction {
    Both,
    Receive,
    Transmit,
}

pub(in crate::audit) fn direction(name: &str) -> Direction {
    let has = |words: [&str; 2]| {
        let found = |word: &str| {
            name.as_bytes()
                .windows(word.len())
                .any(|part| part.eq_ignore_ascii_case(word.as_bytes()))
        };
        words.into_iter().any(found)
    };
    match (has(["rx", "input"]), has(["tx", "output"])) {
        (true, false) => Direction::Receive,
        (false, true) => Direction::Transmit,
        _ => Direction::Both,
    }
}

/// Judges the interrupts of a device that carry its data.
pub(super) fn check(
    site: &Site<'_>,
    device: PciAddress,
    members: &[&Interrupt],
    ledger: &mut Ledger,
    after: &mut After,
) {
    if site
        .machine
        .pci_device(device)
        .is_some_and(|device| device.is_bridge())
    {
        return;
    }
    if let Some(reason) = &site.cpu_nodes_unknown {
        return ledger.skip(&[FAR, SHARE], reason);
    }
    let locality = site.locality(device);
    let rings = site.rings(locality.node);
    let queues = members.iter().any(|interrupt| interrupt.queue.is_some());
    for members in lanes(members, queues) {
        if locality.node.is_none() && site.has_several_nodes() {
            ledger.skip_thing(FAR, || device.to_string(), "the device's node is unknown");
        }
        let lane = Lane {
            site,
            device,
            locality: &locality,
            rings: &rings,
            queues,
        };
        let placed: Vec<_> = members
            .iter()
            .filter_map(|interrupt| lane.place(interrupt, ledger))
            .collect();
        let moves = lane.moves(&placed);
        let mut queues_of: BTreeMap<CpuId, usize> = BTreeMap::new();
        for (placed, moved) in placed.iter().zip(&moves) {
            let cpus = moved.as_ref().unwrap_or(placed.cpus);
            if let Some(cpu) = cpus.first().filter(|_| queues && cpus.len() == 1) {
                *queues_of.entry(cpu).or_default() += 1;
            }
        }
        for (placed, cpus) in placed.iter().zip(moves) {
            if let Some(cpus) = cpus {
                if !lane.is_comparable(placed, &cpus) {
                    let reason = "which CPUs are as near to its device is unknown";
                    ledger.skip_thing(SHARE, || titled(placed.interrupt), reason);
                    continue;
                }
                let is_shared = cpus
                    .first()
                    .and_then(|cpu| queues_of.get(&cpu))
                    .is_some_and(|&queues| queues > 1);
                ledger.add(lane.finding(placed, &cpus, is_shared));
                after.insert(placed.interrupt.irq, cpus);
            }
        }
    }
}

/// Interrupts that can be moved, lane by lane, in the order of their queues.
fn lanes<'a>(members: &[&'a Interrupt], queues: bool) -> Vec<Vec<&'a Interrupt>> {
    // The NVMe driver's first queue takes commands to the controller, not I/O.
    let admin = |interrupt: &Interrupt| {
        interrupt.name.starts_with("nvme") && interrupt.name.ends_with("q0")
    };
    let free = members
        .iter()
        .copied()
        .filter(|interrupt| !is_managed(interrupt) && interrupt.immovable_reason.is_none());
    let mut lanes: BTreeMap<Direction, Vec<&Interrupt>> = BTreeMap::new();
    for interrupt in
        free.filter(|interrupt| !queues || (interrupt.queue.is_some() && !admin(interrupt)))
    {
        let direction = if queues {
            direction(&interrupt.name)
        } else {
            Direction::Both
        };
        lanes.entry(direction).or_default().push(interrupt);
    }
    lanes
        .values_mut()
        .for_each(|lane| lane.sort_by_key(|interrupt| (interrupt.queue, interrupt.irq)));
    lanes.into_values().collect()
}

struct Lane<'s, 'm> {
    site: &'s Site<'m>,
    device: PciAddress,
    locality: &'s EffectiveNode,
    rings: &'s [Ring],
    queues: bool,
}

struct Placed<'m> {
    interrupt: &'m Interrupt,
    cpus: &'m CpuSet,
    effective: bool,
    now: Now,
}

impl Lane<'_, '_> {
    fn place<'m>(&self, interrupt: &'m Interrupt, ledger: &mut Ledger) -> Option<Placed<'m>> {
        let Some(Serving { cpus, effective }) = serving(interrupt) else {
            let reason = interrupt
                .affinity
                .unknown_reason()
                .or(interrupt.effective.unknown_reason())
                .unwrap_or("its affinity is empty");
            ledger.skip_thing(FAR, || titled(interrupt), reason);
            ledger.skip_thing(SHARE, || titled(interrupt), reason);
            return None;
        };
        let mut met = (0..self.rings.len()).filter(|&ring| self.rings[ring].cpus.intersects(cpus));
        // What the controller does counts at its worst, what it may do at its best.
        let ring = if effective {
            met.next_back()
        } else {
            met.next()
        };
        let now = match (ring, cpus.first().filter(|_| cpus.len() == 1)) {
            (Some(ring), Some(cpu)) => Now::On(ring, cpu),
            (Some(ring), None) => Now::Within(ring),
            (None, _) if cpus.intersects(&self.site.kept_free) => Now::MustMove,
            // On CPUs that are offline or not listed: a contradiction, not a placement.
            (None, _) => return None,
        };
        Some(Placed {
            interrupt,
            cpus,
            effective,
            now,
        })
    }

    /// The new CPUs of each interrupt that has to move.
    fn moves(&self, placed: &[Placed<'_>]) -> Vec<Option<CpuSet>> {
        let now: Vec<Now> = placed.iter().map(|placed| placed.now).collect();
        if self.queues {
            return assignment::assign(self.rings, &now)
                .into_iter()
                .map(|cpu| cpu.map(CpuSet::single))
                .collect();
        }
        let nearest = self.rings.first().map(|ring| &ring.cpus);
        let far = |now: &Now| now.ring() > 0;
        now.iter()
            .map(|now| nearest.filter(|_| far(now)).cloned())
            .collect()
    }

    /// Whether a move within one ring stays as near: on several nodes only where the ring has a distance. What leaves an
    /// isolated CPU moves wherever it goes.
    fn is_comparable(&self, placed: &Placed<'_>, moved: &CpuSet) -> bool {
        let after = || self.site.distance(self.locality.node, moved.first()?);
        placed.now == Now::MustMove
            || !self.site.has_several_nodes()
            || self.distance_of(placed).or_else(after).is_some()
    }

    /// `is_shared`: `moved` serves other queues of the device.
    fn finding(&self, placed: &Placed<'_>, moved: &CpuSet, is_shared: bool) -> Finding {
        let (site, node) = (self.site, self.locality.node);
        let now = self.distance_of(placed);
        let after = moved.first().and_then(|cpu| site.distance(node, cpu));
        let who = served(placed.cpus, placed.effective);
        let to = cpus(moved);
        let (rule, message) = if placed.now == Now::MustMove {
            let what = isolated(site, placed.cpus);
            let cost = cost_of_isolation(now, after, is_shared);
            (
                ISOLATED,
                format!("It is {who}, {what}. {to} can serve it{cost}."),
            )
        } else if now == after {
            (
                SHARE,
                format!(
                    "It is {who}, like another queue of this device. {to} is as near and serves none of them."
                ),
            )
        } else {
            let place = self.locality;
            let free = if self.queues {
                "serves none of the device's queues"
            } else {
                "can serve it"
            };
            (
                FAR,
                format!(
                    "It is {who}, at {} from its device on {place}. {to}, at {}, {free}.",
                    spoken(now),
                    spoken(after)
                ),
            )
        };
        let finding = Finding::new(rule, titled(placed.interrupt), message);
        let finding = shown(site, finding, placed.interrupt, placed.effective).device(self.device);
        let kernel = site.machine.pci_device(self.device).map(|it| &it.node);
        let finding = match kernel {
            _ if rule == ISOLATED => kept_free(site, finding),
            Some(Known::Yes(node)) => finding.evidence(
                site.place(Fact::DeviceNode(self.device)),
                node_number(*node),
            ),
            _ => finding,
        };
        let finding = if now == after {
            finding
        } else {
            finding.cost(now, after)
        };
        fix(finding, placed.interrupt, moved.clone(), node)
    }

    /// How far it is served now: of several CPUs the furthest that does, or the nearest that may.
    fn distance_of(&self, placed: &Placed<'_>) -> Option<Distance> {
        match placed.now {
            Now::On(ring, _) | Now::Within(ring) => {
                self.rings.get(ring).and_then(|ring| ring.distance)
            }
            Now::MustMove => self.site.distance(self.locality.node, placed.cpus.first()?),
        }
    }
}

//! Transmit and receive steering of network devices: XPS and RPS, judged against the interrupts as they are once
//! those that are far have moved.

use std::collections::BTreeMap;

use nearfar_change::Change;
use nearfar_machine::{CpuId, CpuSet, Interrupt, Known, NetworkDevice, NodeId, PciAddress};

use crate::audit::interrupts::{self, After, Direction, direction};
use crate::audit::site::{Fact, Site, cpus, nodes, spoken};
use crate::audit::{Finding, Ledger, Severity};

pub(crate) const XPS: &str = "xps-mismatch";
const RPS: &str = "rps-mismatch";

pub(crate) fn check(site: &Site<'_>, after: &After, ledger: &mut Ledger) {
    let Some(networks) = ledger.known(&site.machine.networks, &[XPS, RPS]) else {
        return;
    };
    ledger.checked(&[RPS]);
    let interrupts = &site.machine.interrupts;
    let known = ledger.known(interrupts, &[XPS]).is_some();
    if known && (site.devices_unknown.is_none() || !site.by_device.is_empty()) {
        ledger.checked(&[XPS]);
    }
    for network in networks {
        let Some(device) = network.device else {
            for rule in [XPS, RPS] {
                ledger.skip_thing(rule, || network.name.clone(), "its PCI device is unknown");
            }
            continue;
        };
        if !network.has_queues() {
            for rule in [XPS, RPS] {
                ledger.skip_thing(rule, || network.name.clone(), "its queues are unknown");
            }
            continue;
        }
        let nic = Nic {
            site,
            network,
            device,
            serves: queues(site, network, device, after),
        };
        if known {
            nic.transmit(ledger);
        }
        nic.receive(ledger);
    }
}

/// A network device with the CPUs that serve each of its queues' interrupts.
struct Nic<'s, 'm> {
    site: &'s Site<'m>,
    network: &'m NetworkDevice,
    device: PciAddress,
    serves: BTreeMap<(u32, Direction), CpuSet>,
}

/// The CPUs that serve each queue. Two interfaces on one PCI function are distinguished by the interrupts' names.
fn queues(
    site: &Site<'_>,
    network: &NetworkDevice,
    device: PciAddress,
    after: &After,
) -> BTreeMap<(u32, Direction), CpuSet> {
    let members = site.by_device.get(&device).map_or(&[][..], Vec::as_slice);
    let named = |interrupt: &Interrupt| interrupt.name.contains(&network.name);
    let by_name = members.iter().any(|interrupt| named(interrupt));
    let mut serves = BTreeMap::new();
    for interrupt in members
        .iter()
        .filter(|interrupt| !by_name || named(interrupt))
    {
        let now = || interrupts::serving(interrupt).map(|serving| serving.cpus.clone());
        let cpus = after.get(&interrupt.irq).cloned().or_else(now);
        if let Some((queue, cpus)) = interrupt.queue.zip(cpus) {
            serves
                .entry((queue, direction(&interrupt.name)))
                .or_insert(cpus);
        }
    }
    serves
}

impl Nic<'_, '_> {
    fn serving(&self, queue: u32, way: Direction) -> Option<&CpuSet> {
        self.serves
            .get(&(queue, way))
            .or_else(|| self.serves.get(&(queue, Direction::Both)))
    }

    /// The one CPU that serves a transmit queue's interrupt, where it is one.
    fn transmitter(&self, queue: u32) -> Option<CpuId> {
        let cpus = self.serving(queue, Direction::Transmit)?;
        cpus.first().filter(|_| cpus.len() == 1)
    }

    fn transmit(&self, ledger: &mut Ledger) {
        // With one queue there is nothing to choose, and the kernel refuses to read the file.
        if self.network.transmit.len() < 2 {
            return;
        }
        let name = |queue: u32| format!("{} transmit queue {queue}", self.network.name);
        let mut masks = BTreeMap::new();
        for queue in &self.network.transmit {
            let Known::Yes(mask) = &queue.xps else {
                let reason = queue.xps.unknown_reason().unwrap_or_default();
                ledger.skip_thing(XPS, || name(queue.queue), reason);
                continue;
            };
            masks.insert(queue.queue, mask);
            if self.transmitter(queue.queue).is_none() {
                ledger.skip_thing(
                    XPS,
                    || name(queue.queue),
                    "no single CPU is known to serve its interrupt",
                );
            }
        }
        let off = |queue: &u32| {
            let mask = masks.get(queue)?;
            let cpu = self.transmitter(*queue)?;
            Some(!mask.contains(cpu))
        };
        if !masks.keys().any(|queue| off(queue) == Some(true)) {
            return;
        }
        let single = masks.values().any(|mask| !mask.is_empty())
            && masks.values().all(|mask| mask.len() < 2);
        let shared = if single {
            BTreeMap::new()
        } else {
            self.shared_out(masks.keys().copied())
        };
        for (&queue, &mask) in &masks {
            let Some(cpu) = self.transmitter(queue) else {
                continue;
            };
            let expected = shared
                .get(&queue)
                .cloned()
                .unwrap_or_else(|| CpuSet::single(cpu));
            let amiss = if single {
                off(&queue) == Some(true)
            } else {
                *mask != expected
            };
            if amiss {
                ledger.add(self.transmit_finding(queue, mask, cpu, expected));
            }
        }
    }

    /// Every online CPU with the queue whose interrupt is served nearest to it: on its own core, else at the least distance. Equally
    /// near queues get equal shares of whole cores, each of neighbours.
    fn shared_out(&self, queues: impl Iterator<Item = u32>) -> BTreeMap<u32, CpuSet> {
        let owners: Vec<(u32, CpuId)> = queues
            .filter_map(|queue| Some((queue, self.transmitter(queue)?)))
            .collect();
        let mut masks: BTreeMap<u32, CpuSet> = owners
            .iter()
            .map(|&(queue, cpu)| (queue, CpuSet::single(cpu)))
            .collect();
        let serving: CpuSet = owners.iter().map(|&(_, cpu)| cpu).collect();
        let mut left = self.site.machine.cpu_states.online.difference(&serving);
        let cores = self.by_core(&left);
        for &(queue, cpu) in &owners {
            let Some(core) = cores.get(&self.core(cpu)) else {
                continue;
            };
            let siblings = core.intersection(&left);
            left = left.difference(&siblings);
            masks.entry(queue).or_default().extend(siblings.iter());
        }
        let mut shares: BTreeMap<Vec<u32>, CpuSet> = BTreeMap::new();
        for node in self.site.machine.online_nodes() {
            let cpus = node.known_cpus().intersection(&left);
            if !cpus.is_empty() {
                left = left.difference(&cpus);
                let share = shares
                    .entry(self.nearest_queues(node.id, &owners))
                    .or_default();
                *share = share.union(&cpus);
            }
        }
        // CPUs on no node are as near to one queue as to another.
        let all = shares
            .entry(owners.iter().map(|&(queue, _)| queue).collect())
            .or_default();
        *all = all.union(&left);
        shares
            .iter()
            .for_each(|(queues, cpus)| deal(self.by_core(cpus).values(), queues, &mut masks));
        masks
    }

    /// The number of a CPU's core; without one it is a core by itself.
    fn core(&self, cpu: CpuId) -> CpuId {
        let described = self.site.machine.cpu(cpu);
        described.and_then(|it| it.core).unwrap_or(cpu)
    }

    /// The CPUs of a set by their core.
    fn by_core(&self, cpus: &CpuSet) -> BTreeMap<CpuId, CpuSet> {
        let mut cores: BTreeMap<CpuId, CpuSet> = BTreeMap::new();
        for cpu in cpus.iter() {
            cores.entry(self.core(cpu)).or_default().extend([cpu]);
        }
        cores
    }

    fn nearest_queues(&self, node: NodeId, owners: &[(u32, CpuId)]) -> Vec<u32> {
        let far = |&(_, cpu): &(u32, CpuId)| {
            let distance = self.site.distance(Some(node), cpu);
            (distance.is_none(), distance)
        };
        let distances: Vec<_> = owners.iter().map(far).collect();
        let least = distances.iter().min();
        owners
            .iter()
            .zip(&distances)
            .filter(|(_, far)| Some(*far) == least)
            .map(|(&(queue, _), _)| queue)
            .collect()
    }

    fn transmit_finding(&self, queue: u32, mask: &CpuSet, cpu: CpuId, expected: CpuSet) -> Finding {
        let site = self.site;
        let node = site.machine.node_of(cpu);
        let senders = site.machine.nodes_of_cpus(mask);
        let far = !mask.is_empty() && node.is_some_and(|node| !senders.contains(node));
        let message = if mask.is_empty() {
            format!(
                "No CPU is set to send through it (XPS is off); CPU {cpu} serves its interrupt."
            )
        } else if mask.contains(cpu) {
            // Right by itself; the shares of all queues are made together.
            let (more, fewer) = (expected.difference(mask), mask.difference(&expected));
            let change = match (more.is_empty(), fewer.is_empty()) {
                (_, true) => format!("{} have no nearer one", cpus(&more)),
                (true, false) => format!("{} have one as near or nearer", cpus(&fewer)),
                (false, false) => format!(
                    "{} have no nearer one, and {} have one as near or nearer",
                    cpus(&more),
                    cpus(&fewer)
                ),
            };
            format!(
                "{} may send through it. Once the other queues are fixed, {change}.",
                cpus(mask)
            )
        } else {
            let on = if far {
                format!(" on {}", nodes(&senders))
            } else {
                String::new()
            };
            format!(
                "{}{on} may send through it, CPU {cpu} serves its interrupt.",
                cpus(mask)
            )
        };
        let interface = self.network.name.clone();
        let distances = |cpus: &CpuSet| {
            cpus.iter()
                .filter_map(|sender| site.distance(node, sender))
                .min()
        };
        let finding = Finding::new(XPS, format!("{interface} transmit queue {queue}"), message)
            .severity(if far {
                Severity::Warning
            } else {
                Severity::Notice
            })
            .evidence(
                site.place(Fact::Xps(&interface, queue)),
                mask_text(site, mask),
            )
            .device(self.device);
        let finding = if far {
            finding.cost(distances(mask), distances(&expected))
        } else {
            finding
        };
        finding.fix(Change::Xps {
            interface,
            queue,
            cpus: expected,
        })
    }

    fn receive(&self, ledger: &mut Ledger) {
        let node = self.site.locality(self.device).node;
        for queue in &self.network.receive {
            let name = || format!("{} receive queue {}", self.network.name, queue.queue);
            let Some(mask) = queue.rps.get() else {
                ledger.skip_thing(RPS, name, queue.rps.unknown_reason().unwrap_or_default());
                continue;
            };
            if mask.is_empty() {
                continue;
            }
            if node.is_none() && self.site.has_several_nodes() {
                ledger.skip_thing(RPS, name, "its device's node is unknown");
                continue;
            }
            if let Some(finding) = self.receive_finding(queue.queue, mask, node) {
                ledger.add(finding);
            }
        }
    }

    fn receive_finding(&self, queue: u32, mask: &CpuSet, node: Option<NodeId>) -> Option<Finding> {
        let site = self.site;
        let rings = site.rings(node);
        let near = rings.first()?;
        // Further by a figure; where none is known nothing is called far.
        let beyond = || {
            rings
                .iter()
                .filter(|ring| near.distance.is_some() && ring.distance > near.distance)
        };
        let far = beyond().fold(CpuSet::new(), |far, ring| {
            far.union(&ring.cpus.intersection(mask))
        });
        let isolated = mask.intersection(&site.kept_free);
        let left = mask
            .difference(&far)
            .difference(&isolated)
            .intersection(&site.usable);
        let reached = || {
            beyond()
                .filter(|ring| ring.cpus.intersects(mask))
                .map(|ring| ring.distance)
        };
        let there = spoken(near.distance);
        let (severity, message, now) = if far.is_empty() && isolated.is_empty() {
            return self.redundant(queue, mask, &near.cpus);
        } else if far.is_empty() {
            let message = format!(
                "RPS hands part of its packets to {}, {}.",
                cpus(&isolated),
                interrupts::isolated(site, &isolated)
            );
            (Severity::Warning, message, None)
        } else if left.is_empty() {
            let now = reached().next()?;
            let message = format!(
                "RPS hands its packets to {} only, at {} or more from the device; at {there} there would be {}.",
                cpus(mask),
                spoken(now),
                cpus(&near.cpus)
            );
            (Severity::Warning, message, now)
        } else {
            let now = reached().next_back()?;
            let (far, left) = (cpus(&far), cpus(&left));
            let message = format!(
                "RPS hands part of its packets to {far}, up to {} from the device; the rest, at {there}, to {left}.",
                spoken(now)
            );
            (Severity::Notice, message, now)
        };
        let finding = self.receive_base(queue, mask, message).severity(severity);
        let finding = if now.is_some() {
            finding.cost(now, near.distance)
        } else {
            finding
        };
        let expected = if left.is_empty() {
            near.cpus.clone()
        } else {
            left
        };
        Some(finding.fix(Change::Rps {
            interface: self.network.name.clone(),
            queue,
            cpus: expected,
        }))
    }

    fn receive_base(&self, queue: u32, mask: &CpuSet, message: String) -> Finding {
        let interface = &self.network.name;
        Finding::new(RPS, format!("{interface} receive queue {queue}"), message)
            .evidence(
                self.site.place(Fact::Rps(interface, queue)),
                mask_text(self.site, mask),
            )
            .device(self.device)
    }

    /// RPS that stays near and gains nothing.
    fn redundant(&self, queue: u32, mask: &CpuSet, near: &CpuSet) -> Option<Finding> {
        if !self.each_near_cpu_has_a_queue(near) {
            return None;
        }
        let message = format!(
            "RPS hands its packets to {}, although each CPU near the device has a receive queue of its own.",
            cpus(mask)
        );
        Some(self.receive_base(queue, mask, message).advice(
            "Such a hand-over between CPUs rarely pays where the device spreads flows over as many queues. Compare with an \
             empty rps_cpus.",
        ))
    }

    fn each_near_cpu_has_a_queue(&self, near: &CpuSet) -> bool {
        let queues = self.network.receive.iter();
        let serving = queues.filter_map(|queue| self.serving(queue.queue, Direction::Receive));
        let single: CpuSet = serving
            .filter(|cpus| cpus.len() == 1)
            .filter_map(CpuSet::first)
            .collect();
        near.is_subset(&single)
    }
}

/// Gives each queue an equal run of the cores.
fn deal<'a>(
    mut cores: impl ExactSizeIterator<Item = &'a CpuSet>,
    queues: &[u32],
    masks: &mut BTreeMap<u32, CpuSet>,
) {
    let (each, left_over) = (
        cores.len() / queues.len().max(1),
        cores.len() % queues.len().max(1),
    );
    for (position, queue) in queues.iter().enumerate() {
        let run = cores
            .by_ref()
            .take(each + usize::from(position < left_over));
        masks
            .entry(*queue)
            .or_default()
            .extend(run.flat_map(CpuSet::iter));
    }
}

/// A steering mask as its file shows it; on machines with more CPUs than fit a line, as a list.
fn mask_text(site: &Site<'_>, mask: &CpuSet) -> String {
    const FITS_A_LINE: u32 = 128;
    let width = site.machine.mask_width();
    match width {
        ..=FITS_A_LINE => mask.to_mask(width),
        _ if mask.is_empty() => "0".to_owned(),
        _ => cpus(mask),
    }
}

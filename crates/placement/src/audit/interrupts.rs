//! Interrupts: who serves them, and who should.

use std::collections::BTreeMap;

use nearfar_machine::{CpuId, CpuSet, Distance, Interrupt, Irq, Known, NodeId, PciAddress};

use super::devices::named;
use super::ledger::Ledger;
use super::seats::{self, Now};
use super::site::{Site, cpus, node_file, spoken};
use super::{Finding, Severity};
use crate::change::Change;
use crate::locality::EffectiveNode;
use crate::near::Ring;

const FAR: &str = "interrupt-far";
const SHARE: &str = "queues-share-cpu";
const ISOLATED: &str = "interrupt-on-isolated-cpu";
const MANAGED: &str = "managed-interrupt";

/// What the other rules have to know: the CPUs of those interrupts that will move.
pub(super) type After = BTreeMap<Irq, CpuSet>;

/// Judges every interrupt; what it would move is in the answer.
pub(super) fn check(site: &Site<'_>, ledger: &mut Ledger) -> After {
    let mut after = After::new();
    let Some(interrupts) = ledger.need(&site.machine.interrupts, &[FAR, SHARE, ISOLATED, MANAGED]) else {
        return after;
    };
    let states = &site.machine.cpu_states;
    for because in [states.isolated.why_not(), states.nohz_full.why_not()].into_iter().flatten() {
        ledger.skip(ISOLATED, because);
    }
    for (&device, members) in &site.by_device {
        managed(site, device, members, ledger);
        let locality = site.locality(device);
        for lane in lanes(site, device, members) {
            Lane { site, device, locality: &locality, members: lane }.check(ledger, &mut after);
        }
    }
    for interrupt in interrupts {
        if !after.contains_key(&interrupt.irq) {
            evict(site, interrupt, ledger, &mut after);
        }
    }
    after
}

/// The CPUs that serve an interrupt, and whether that is what the controller does or only what it may do.
pub(super) struct Serving<'a> {
    pub cpus: &'a CpuSet,
    pub effective: bool,
}

/// The effective affinity, where it is known and not left over from before the last change of the affinity.
pub(super) fn serving(interrupt: &Interrupt) -> Option<Serving<'_>> {
    let affinity = interrupt.affinity.get().filter(|cpus| !cpus.is_empty());
    let effective = interrupt.effective.get().filter(|cpus| !cpus.is_empty());
    match (effective, affinity) {
        (Some(cpus), Some(allowed)) if !cpus.intersects(allowed) => Some(Serving { cpus: allowed, effective: false }),
        (Some(cpus), _) => Some(Serving { cpus, effective: true }),
        (None, Some(cpus)) => Some(Serving { cpus, effective: false }),
        (None, None) => None,
    }
}

/// "interrupt 42 (nvme0q3)".
pub(super) fn titled(interrupt: &Interrupt) -> String {
    match interrupt.name.as_str() {
        "" => format!("interrupt {}", interrupt.irq),
        name => format!("interrupt {} ({name})", interrupt.irq),
    }
}

fn is_managed(interrupt: &Interrupt) -> bool {
    interrupt.managed.get().is_some_and(|managed| managed.managed)
}

/// Which way a queue goes, by its interrupt's name: `virtio0-input.1`, `eth0-tx-3`, `eth0-TxRx-3`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Direction {
    Both,
    Receive,
    Transmit,
}

pub(super) fn direction(name: &str) -> Direction {
    let has = |words: [&str; 2]| {
        let found =
            |word: &str| name.as_bytes().windows(word.len()).any(|part| part.eq_ignore_ascii_case(word.as_bytes()));
        words.into_iter().any(found)
    };
    match (has(["rx", "input"]), has(["tx", "output"])) {
        (true, false) => Direction::Receive,
        (false, true) => Direction::Transmit,
        _ => Direction::Both,
    }
}

/// The interrupts that carry a device's data, by direction: a CPU may well serve one queue each way. Without any that
/// names its queue, all of the device's, and nothing is said of sharing.
fn lanes<'a>(site: &Site<'_>, device: PciAddress, members: &[&'a Interrupt]) -> Vec<Vec<&'a Interrupt>> {
    if site.machine.pci_device(device).is_some_and(|device| device.is_bridge()) {
        return Vec::new();
    }
    // The NVMe driver's first queue takes commands to the controller, not I/O.
    let admin = |interrupt: &Interrupt| interrupt.name.starts_with("nvme") && interrupt.name.ends_with("q0");
    let free = || members.iter().copied().filter(|interrupt| !is_managed(interrupt));
    if !members.iter().any(|interrupt| interrupt.queue.is_some()) {
        return vec![free().collect()];
    }
    let mut lanes: BTreeMap<Direction, Vec<&Interrupt>> = BTreeMap::new();
    for interrupt in free().filter(|interrupt| interrupt.queue.is_some() && !admin(interrupt)) {
        lanes.entry(direction(&interrupt.name)).or_default().push(interrupt);
    }
    lanes.values_mut().for_each(|lane| lane.sort_by_key(|interrupt| (interrupt.queue, interrupt.irq)));
    lanes.into_values().collect()
}

fn managed(site: &Site<'_>, device: PciAddress, members: &[&Interrupt], ledger: &mut Ledger) {
    for interrupt in members {
        if let Known::No { not_known_because } = &interrupt.managed {
            ledger.skip_thing(MANAGED, || titled(interrupt), not_known_because);
        }
    }
    let mut theirs = members.iter().filter(|interrupt| is_managed(interrupt));
    let Some(first) = theirs.next() else { return };
    let subject = site.machine.pci_device(device).map_or_else(|| device.to_string(), named);
    let message = match theirs.next_back() {
        Some(last) => format!(
            "{} of its interrupts, {} to {}, are placed by the kernel alone; they are never written.",
            theirs.count() + 2,
            first.name,
            last.name
        ),
        None => format!("Its {} is placed by the kernel alone and never written.", titled(first)),
    };
    let evidence = first.managed.get().map(|managed| managed.evidence.clone()).unwrap_or_default();
    ledger.add(
        Finding::new(MANAGED, subject, message)
            .evidence(format!("/proc/irq/{}/smp_affinity", first.irq), evidence)
            .device(device)
            .advice(
                "The kernel gives each queue the CPUs that submit to it; only the number of queues can be changed.",
            ),
    );
}

/// The interrupts of one device in one direction, by queue.
struct Lane<'s, 'm> {
    site: &'s Site<'m>,
    device: PciAddress,
    locality: &'s EffectiveNode,
    members: Vec<&'m Interrupt>,
}

/// An interrupt with a place.
struct Placed<'m> {
    interrupt: &'m Interrupt,
    cpus: &'m CpuSet,
    effective: bool,
    now: Now,
}

impl<'m> Lane<'_, 'm> {
    fn check(&self, ledger: &mut Ledger, after: &mut After) {
        if self.members.is_empty() {
            return;
        }
        if self.locality.node.is_none() && self.site.has_several_nodes() {
            ledger.skip_thing(FAR, || self.device.to_string(), "nothing tells where the device is");
        }
        let rings = self.site.rings(self.locality.node);
        let placed: Vec<_> =
            self.members.iter().filter_map(|interrupt| self.place(&rings, interrupt, ledger)).collect();
        let now: Vec<Now> = placed.iter().map(|placed| placed.now).collect();
        let moves = seats::assign(&rings, &now);
        for (placed, cpu) in placed.iter().zip(moves) {
            if let Some(cpu) = cpu {
                after.insert(placed.interrupt.irq, CpuSet::single(cpu));
                ledger.add(self.finding(placed, cpu));
            }
        }
    }

    fn place(&self, rings: &[Ring], interrupt: &'m Interrupt, ledger: &mut Ledger) -> Option<Placed<'m>> {
        let Some(Serving { cpus, effective }) = serving(interrupt) else {
            let because =
                interrupt.affinity.why_not().or(interrupt.effective.why_not()).unwrap_or("its affinity is empty");
            ledger.skip_thing(FAR, || titled(interrupt), because);
            ledger.skip_thing(SHARE, || titled(interrupt), because);
            return None;
        };
        let mut met = (0..rings.len()).filter(|&ring| rings[ring].cpus.intersects(cpus));
        // What the controller does counts at its worst, what it may do at its best.
        let ring = if effective { met.next_back() } else { met.next() };
        let only = cpus.first().filter(|_| cpus.len() == 1);
        let now = match (ring, only) {
            (Some(ring), Some(cpu)) if interrupt.queue.is_some() => Now::On(ring, cpu),
            (Some(ring), _) => Now::Within(ring),
            (None, _) if cpus.intersects(&self.site.kept_free) => Now::Expelled,
            // On CPUs that are offline or not listed: a contradiction, not a placement.
            (None, _) => return None,
        };
        Some(Placed { interrupt, cpus, effective, now })
    }

    fn finding(&self, placed: &Placed<'_>, cpu: CpuId) -> Finding {
        let site = self.site;
        let node = self.locality.node;
        let near = self.distance_of(placed);
        let after = site.distance(node, cpu);
        let who = served(placed.cpus, placed.effective);
        let (rule, message) = if placed.now == Now::Expelled {
            (
                ISOLATED,
                format!("It is {who}, kept free of interrupts by isolcpus= or nohz_full=. CPU {cpu} can serve it."),
            )
        } else if near == after {
            (
                SHARE,
                format!(
                    "It is {who}, like another queue of this device. CPU {cpu} is as near and serves none of them."
                ),
            )
        } else {
            let now = spoken(near);
            let place = self.locality;
            (
                FAR,
                format!(
                    "It is {who}, at {now} from its device on {place}. CPU {cpu}, at {}, serves none of the device's queues.",
                    spoken(after)
                ),
            )
        };
        let finding = Finding::new(rule, titled(placed.interrupt), message);
        let finding = shown(finding, placed.interrupt, placed.effective).device(self.device);
        let finding = if rule == ISOLATED {
            kept_free(site, finding)
        } else {
            finding.evidence(node_file(self.device), kernel_node(site, self.device))
        };
        let finding = if near == after { finding } else { finding.cost(near, after) };
        mend(finding, placed.interrupt, CpuSet::single(cpu), node)
    }

    /// How far it is served now: of several CPUs the furthest that does, or the nearest that may.
    fn distance_of(&self, placed: &Placed<'_>) -> Option<Distance> {
        let node = self.locality.node;
        match placed.now {
            Now::Within(ring) => self.site.rings(node).get(ring).and_then(|ring| ring.distance),
            _ => self.site.distance(node, placed.cpus.first()?),
        }
    }
}

fn kernel_node(site: &Site<'_>, device: PciAddress) -> String {
    match site.machine.pci_device(device).map(|device| &device.node) {
        Some(Known::Yes(Some(node))) => node.to_string(),
        Some(Known::Yes(None)) => "-1".to_owned(),
        _ => "not known".to_owned(),
    }
}

fn served(by: &CpuSet, effective: bool) -> String {
    format!("{} {}", if effective { "served by" } else { "allowed on" }, cpus(by))
}

fn shown(finding: Finding, interrupt: &Interrupt, effective: bool) -> Finding {
    let irq = interrupt.irq;
    let finding = match interrupt.effective.get() {
        Some(cpus) if effective => {
            finding.evidence(format!("/proc/irq/{irq}/effective_affinity_list"), cpus.to_string())
        }
        _ => finding,
    };
    match interrupt.affinity.get() {
        Some(cpus) => finding.evidence(format!("/proc/irq/{irq}/smp_affinity_list"), cpus.to_string()),
        None => finding,
    }
}

fn kept_free(site: &Site<'_>, finding: Finding) -> Finding {
    let states = &site.machine.cpu_states;
    let files = [("isolated", &states.isolated), ("nohz_full", &states.nohz_full)];
    let known = files.into_iter().filter_map(|(name, set)| Some((name, set.get().filter(|set| !set.is_empty())?)));
    known.fold(finding, |finding, (name, set)| {
        finding.evidence(format!("/sys/devices/system/cpu/{name}"), set.to_string())
    })
}

fn mend(finding: Finding, interrupt: &Interrupt, cpus: CpuSet, near: Option<NodeId>) -> Finding {
    let name = Some(interrupt.name.clone()).filter(|name| !name.is_empty());
    let finding = finding.mend(Change::InterruptAffinity { irq: interrupt.irq, cpus, near, name });
    match interrupt.managed.why_not() {
        Some(because) => finding.advice(format!(
            "Whether the kernel manages it is not known ({because}); if it does, the write fails and nothing changes."
        )),
        None => finding,
    }
}

/// Interrupts that carry no queue: all that matters is that they leave isolated CPUs alone.
fn evict(site: &Site<'_>, interrupt: &Interrupt, ledger: &mut Ledger, after: &mut After) {
    let Some(Serving { cpus, effective }) = serving(interrupt) else { return };
    let disturbs = if effective { cpus.intersects(&site.kept_free) } else { cpus.is_subset(&site.kept_free) };
    if !disturbs {
        return;
    }
    let message = format!("It is {}, kept free of interrupts by isolcpus= or nohz_full=.", served(cpus, effective));
    let finding = Finding::new(ISOLATED, titled(interrupt), message);
    let mut finding = kept_free(site, shown(finding, interrupt, effective));
    finding.device = interrupt.device;
    if is_managed(interrupt) {
        ledger.add(finding.severity(Severity::Notice).advice(
            "The kernel manages it, so nothing is written. It fires there only when that CPU itself submits I/O; \
             isolcpus=managed_irq keeps such interrupts away as far as possible.",
        ));
        return;
    }
    let node = interrupt.device.and_then(|device| site.locality(device).node);
    let elsewhere = interrupt.affinity.get().map(|allowed| allowed.intersection(&site.usable));
    let moved = elsewhere.filter(|cpus| !cpus.is_empty()).or_else(|| Some(site.rings(node).first()?.cpus.clone()));
    if let Some(moved) = moved {
        after.insert(interrupt.irq, moved.clone());
        finding = mend(finding, interrupt, moved, node);
    }
    ledger.add(finding);
}

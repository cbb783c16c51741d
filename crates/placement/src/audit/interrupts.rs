//! Interrupts: which CPUs serve them, which cannot be moved, and which disturb CPUs that are kept free.
//!
//! Of those that carry a device's data each queue has a CPU, near and of its own. A device's queues fall into lanes by direction, since a
//! CPU may well serve one queue each way. A device whose interrupts have no queue in their names has one lane, which is only checked
//! for distance.
//!
//! Every usable CPU has one slot (several, if a device has more queues than there are CPUs). An interrupt keeps its
//! slot unless a nearer one is free. Of several interrupts on one CPU the first ones have its slots, the others are
//! surplus. Free slots are assigned nearest first: each to the interrupt that is furthest away, then to a surplus one
//! that is no nearer.
//!
//! ```text
//! rings   0: CPUs 0 1      1: CPUs 2 3          before            after
//!                                               q0 on 3           q0 on 1     a nearer slot was free
//!                                               q1 on 0           q1 on 0     has the nearest slot
//!                                               q2 on 3 (surplus) q2 on 3     has a slot: q0 has left
//! ```
//!
//! As many interrupts are at each distance as in a new nearest-first spread, with the fewest moves. A second pass moves
//! none.
//!
//! The exception are interrupts on CPUs that are kept free: if the nearest usable CPUs have no slots left, they share
//! these. To leave an isolated CPU is no reason to pay the distance.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};

use nearfar_change::Change;
use nearfar_machine::{CpuId, CpuSet, Distance, Interrupt, Irq, Known, NodeId, PciAddress};

use crate::audit::devices::named;
use crate::audit::site::{Fact, Site, cpus, node_number, spoken};
use crate::audit::steering::XPS;
use crate::audit::{Finding, Ledger, Severity};
use crate::locality::EffectiveNode;
use crate::near::Ring;

const FAR: &str = "interrupt-far";
const SHARE: &str = "queues-share-cpu";
const ISOLATED: &str = "interrupt-on-isolated-cpu";
const MANAGED: &str = "managed-interrupt";

/// What the other rules have to know: the CPUs of those interrupts that will move.
pub(crate) type After = BTreeMap<Irq, CpuSet>;

/// Judges every interrupt; what it would move is in the answer.
pub(crate) fn check(site: &Site<'_>, ledger: &mut Ledger) -> After {
    let mut after = After::new();
    let rules = [FAR, SHARE, ISOLATED, MANAGED];
    let Some(interrupts) = ledger.known(&site.machine.interrupts, &rules) else {
        return after;
    };
    ledger.checked(&[ISOLATED]);
    if let Some(reason) = &site.devices_unknown {
        ledger.skip(&[FAR, SHARE, MANAGED, XPS], reason);
    }
    if site.devices_unknown.is_none() || !site.by_device.is_empty() {
        ledger.checked(&[FAR, SHARE, MANAGED]);
    }
    let states = &site.machine.cpu_states;
    for cpus in [&states.isolated, &states.nohz_full] {
        ledger.known(cpus, &[ISOLATED]);
    }
    for (&device, members) in &site.by_device {
        managed(site, device, members, ledger);
        check_queues(site, device, members, ledger, &mut after);
    }
    for interrupt in interrupts {
        if !after.contains_key(&interrupt.irq) {
            evict(site, interrupt, ledger, &mut after);
        }
    }
    after
}

/// The CPUs that serve an interrupt, and whether that is what the controller does or only what it may do.
pub struct Serving<'a> {
    /// The CPUs; never none.
    pub cpus: &'a CpuSet,
    /// Whether the interrupt controller uses them, rather than may use them.
    pub effective: bool,
}

/// The effective affinity, where it is known and not left over from before the last change of the affinity.
pub fn serving(interrupt: &Interrupt) -> Option<Serving<'_>> {
    let affinity = interrupt.affinity.get().filter(|cpus| !cpus.is_empty());
    let effective = interrupt.effective.get().filter(|cpus| !cpus.is_empty());
    match (effective, affinity) {
        (Some(cpus), Some(allowed)) if !cpus.intersects(allowed) => Some(Serving {
            cpus: allowed,
            effective: false,
        }),
        (Some(cpus), _) => Some(Serving {
            cpus,
            effective: true,
        }),
        (None, Some(cpus)) => Some(Serving {
            cpus,
            effective: false,
        }),
        (None, None) => None,
    }
}

/// "interrupt 42 (nvme0q3)".
fn titled(interrupt: &Interrupt) -> String {
    match interrupt.name.as_str() {
        "" => format!("interrupt {}", interrupt.irq),
        name => format!("interrupt {} ({name})", interrupt.irq),
    }
}

fn is_managed(interrupt: &Interrupt) -> bool {
    interrupt
        .managed
        .get()
        .is_some_and(|managed| managed.managed)
}

fn managed(site: &Site<'_>, device: PciAddress, members: &[&Interrupt], ledger: &mut Ledger) {
    for interrupt in members {
        if let Known::No { unknown_reason } = &interrupt.managed {
            ledger.skip_thing(MANAGED, || titled(interrupt), unknown_reason);
        }
    }
    let mut theirs = members.iter().filter(|interrupt| is_managed(interrupt));
    let Some(first) = theirs.next() else { return };
    let subject = site
        .machine
        .pci_device(device)
        .map_or_else(|| device.to_string(), named);
    let message = match theirs.next_back() {
        Some(last) => format!(
            "{} of its interrupts, {} to {}, are managed by the kernel and cannot be changed.",
            theirs.count() + 2,
            first.name,
            last.name
        ),
        None => format!(
            "Its {} is managed by the kernel and cannot be changed.",
            titled(first)
        ),
    };
    let evidence = first.managed.get().map_or("", |managed| &managed.evidence);
    ledger.add(
        Finding::new(MANAGED, subject, message).evidence(titled(first), evidence).device(device).advice(
            "The kernel gives each queue the CPUs that submit to it; only the number of queues can be changed.",
        ),
    );
}

fn served(by: &CpuSet, effective: bool) -> String {
    format!(
        "{} {}",
        if effective { "served by" } else { "allowed on" },
        cpus(by)
    )
}

fn shown(site: &Site<'_>, finding: Finding, interrupt: &Interrupt, effective: bool) -> Finding {
    let irq = interrupt.irq;
    let finding = match interrupt.effective.get() {
        Some(cpus) if effective => {
            finding.evidence(site.place(Fact::EffectiveAffinity(irq)), cpus.to_string())
        }
        _ => finding,
    };
    match interrupt.affinity.get() {
        Some(cpus) => finding.evidence(site.place(Fact::Affinity(irq)), cpus.to_string()),
        None => finding,
    }
}

/// What CPUs that are not to serve interrupts are, for a sentence: "CPU 7, which is isolated". Neither state keeps an
/// interrupt away, so it is not called a protection.
pub(crate) fn isolated(site: &Site<'_>, among: &CpuSet) -> String {
    let states = &site.machine.cpu_states;
    let those = among.intersection(&site.kept_free);
    let is_in = |set: &Known<CpuSet>| set.get().is_some_and(|set| set.intersects(&those));
    let state = match (is_in(&states.isolated), is_in(&states.nohz_full)) {
        (true, true) => "isolated and tickless (nohz_full=)",
        (false, true) => "tickless (nohz_full=)",
        _ => "isolated",
    };
    let verb = if those.len() == 1 { "is" } else { "are" };
    match those == *among {
        true => format!("which {verb} {state}"),
        false => format!("of which {} {verb} {state}", cpus(&those)),
    }
}

/// What it costs to leave an isolated CPU, for the end of a sentence; nothing in most cases.
fn cost_of_isolation(now: Option<Distance>, after: Option<Distance>, is_shared: bool) -> String {
    let further = match after > now {
        true => format!(", at {} instead of {}", spoken(after), spoken(now)),
        false => String::new(),
    };
    let shared = match is_shared {
        true => ", with other queues of this device",
        false => "",
    };
    format!("{further}{shared}")
}

fn kept_free(site: &Site<'_>, finding: Finding) -> Finding {
    let states = &site.machine.cpu_states;
    let sets = [
        (Fact::Isolated, &states.isolated),
        (Fact::NohzFull, &states.nohz_full),
    ];
    let known = sets
        .into_iter()
        .filter_map(|(fact, set)| Some((fact, set.get().filter(|set| !set.is_empty())?)));
    known.fold(finding, |finding, (fact, set)| {
        finding.evidence(site.place(fact), set.to_string())
    })
}

fn fix(finding: Finding, interrupt: &Interrupt, cpus: CpuSet, near: Option<NodeId>) -> Finding {
    let name = Some(interrupt.name.clone()).filter(|name| !name.is_empty());
    let finding = finding.fix(Change::InterruptAffinity {
        irq: interrupt.irq,
        cpus,
        near,
        name,
    });
    match interrupt.managed.unknown_reason() {
        Some(reason) => finding.advice(format!(
            "Whether the kernel manages it is unknown ({reason}); if it does, the write fails and nothing changes."
        )),
        None => finding,
    }
}

/// What becomes of a managed interrupt on isolated CPUs (`irq_do_set_affinity()` in kernel/irq/manage.c): the kernel
/// leaves out the CPUs of `isolcpus=managed_irq` if other CPUs of the mask are online.
fn managed_on_isolated(
    site: &Site<'_>,
    finding: Finding,
    interrupt: &Interrupt,
    on: &CpuSet,
) -> Finding {
    let mask = interrupt.affinity.get();
    let disturbed = on.intersection(&site.kept_free);
    let mut finding = finding;
    let then = match &site.machine.cpu_states.managed_irq {
        _ if mask.is_some_and(|mask| !mask.intersects(&site.usable)) => {
            "All CPUs of its mask are isolated: it fires only when one of them submits I/O, and isolcpus=managed_irq does \
             not change that."
                .to_owned()
        }
        Known::Yes(set) if disturbed.is_subset(set) => {
            finding = finding.evidence(site.place(Fact::ManagedIrq), set.to_string());
            "isolcpus=managed_irq is in force: the kernel gives it another CPU of its mask when it next sets it up, or a \
             CPU comes online."
                .to_owned()
        }
        Known::Yes(_) => "isolcpus=managed_irq keeps it on the other CPUs of its mask.".to_owned(),
        Known::No { unknown_reason } => format!(
            "isolcpus=managed_irq keeps it on the other CPUs of its mask; whether that is set is unknown ({unknown_reason})."
        ),
    };
    finding.advice(format!(
        "The kernel manages it, so nothing is written. {then}"
    ))
}

/// The usable CPUs nearest to the node that its affinity has, or all of them where it has none: the kernel takes any CPU of a
/// wider mask, also a far one.
fn nearest_allowed(site: &Site<'_>, interrupt: &Interrupt, node: Option<NodeId>) -> Option<CpuSet> {
    let node = node.filter(|_| site.cpu_nodes_unknown.is_none());
    let nearest = site.rings(node).first()?.cpus.clone();
    let allowed = interrupt.affinity.get();
    let allowed = allowed.map(|cpus| cpus.intersection(&nearest));
    Some(allowed.filter(|cpus| !cpus.is_empty()).unwrap_or(nearest))
}

/// Interrupts that carry no queue: all that matters is that they leave isolated CPUs alone.
fn evict(site: &Site<'_>, interrupt: &Interrupt, ledger: &mut Ledger, after: &mut After) {
    let Some(Serving { cpus, effective }) =
        serving(interrupt).filter(|_| interrupt.immovable_reason.is_none())
    else {
        return;
    };
    let disturbs = if effective {
        cpus.intersects(&site.kept_free)
    } else {
        cpus.is_subset(&site.kept_free)
    };
    if !disturbs {
        return;
    }
    let is_managed = is_managed(interrupt);
    let node = interrupt
        .device
        .and_then(|device| site.locality(device).node);
    let moved = match is_managed {
        true => None,
        false => nearest_allowed(site, interrupt, node),
    };
    let furthest = |cpus: &CpuSet| cpus.iter().map(|cpu| site.distance(node, cpu)).max()?;
    let distance = moved
        .as_ref()
        .map(|moved| (furthest(cpus), furthest(moved)));
    let distance = distance.filter(|(now, after)| after > now);
    let can = match (&moved, distance) {
        (Some(moved), Some((now, after))) => format!(
            " {} can serve it{}.",
            self::cpus(moved),
            cost_of_isolation(now, after, false)
        ),
        _ => String::new(),
    };
    let message = format!(
        "It is {}, {}.{can}",
        served(cpus, effective),
        isolated(site, cpus)
    );
    let finding = Finding::new(ISOLATED, titled(interrupt), message);
    let mut finding = kept_free(site, shown(site, finding, interrupt, effective));
    finding.device = interrupt.device;
    if let Some((now, after)) = distance {
        finding = finding.cost(now, after);
    }
    if is_managed {
        finding = managed_on_isolated(site, finding, interrupt, cpus);
        return ledger.add(finding.severity(Severity::Notice));
    }
    if let Some(moved) = moved {
        after.insert(interrupt.irq, moved.clone());
        finding = fix(finding, interrupt, moved, node);
    }
    ledger.add(finding);
}

/// Which way a queue goes, by its interrupt's name: `virtio0-input.1`, `eth0-tx-3`, `eth0-TxRx-3`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Direction {
    Both,
    Receive,
    Transmit,
}

pub(crate) fn direction(name: &str) -> Direction {
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
fn check_queues(
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
            return assign(self.rings, &now)
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

/// Where one interrupt is served now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Now {
    /// On one usable CPU, in the ring at this position.
    On(usize, CpuId),
    /// On several CPUs, of which the nearest is in this ring.
    Within(usize),
    /// On CPUs that are kept free.
    MustMove,
}

impl Now {
    /// The position of the ring; greater than all for `MustMove`.
    pub fn ring(self) -> usize {
        match self {
            Self::On(ring, _) | Self::Within(ring) => ring,
            Self::MustMove => usize::MAX,
        }
    }
}

/// The new CPU of each interrupt that has to move; `None` for those that stay, and for all if no CPU is usable.
fn assign(rings: &[Ring], now: &[Now]) -> Vec<Option<CpuId>> {
    let slot_count: usize = rings.iter().map(|ring| ring.cpus.len()).sum();
    if slot_count == 0 {
        return vec![None; now.len()];
    }
    let mut slots = Slots::new(now, now.len().div_ceil(slot_count).max(1));
    for (position, ring) in rings.iter().enumerate() {
        for round in 1..=(now.len() / slot_count).max(1) {
            slots.fill(position, ring, round);
        }
        if position == 0 {
            slots.share(ring);
        }
    }
    slots.moved
}

struct Slots<'a> {
    now: &'a [Now],
    /// The interrupts on each CPU: those with a slot, then the surplus.
    on: HashMap<CpuId, Vec<usize>>,
    occupied: CpuSet,
    slots_per_cpu: usize,
    /// Interrupts that have not moved, furthest first, then by queue.
    unmoved: BTreeSet<(Reverse<usize>, usize)>,
    surplus: BTreeSet<(Reverse<usize>, usize)>,
    moved: Vec<Option<CpuId>>,
}

impl<'a> Slots<'a> {
    fn new(now: &'a [Now], slots_per_cpu: usize) -> Self {
        let mut slots = Self {
            now,
            on: HashMap::new(),
            occupied: CpuSet::new(),
            slots_per_cpu,
            unmoved: now
                .iter()
                .enumerate()
                .map(|(index, now)| (Reverse(now.ring()), index))
                .collect(),
            surplus: BTreeSet::new(),
            moved: vec![None; now.len()],
        };
        for (index, now) in now.iter().enumerate() {
            if let Now::On(ring, cpu) = *now {
                let here = slots.on.entry(cpu).or_default();
                here.push(index);
                if here.len() > slots_per_cpu {
                    slots.surplus.insert((Reverse(ring), index));
                }
                slots.occupied.insert(cpu);
            }
        }
        slots
    }

    /// Assigns the slots of a ring on CPUs with fewer than `round` interrupts.
    fn fill(&mut self, position: usize, ring: &Ring, round: usize) {
        let free = if round == 1 {
            ring.cpus.difference(&self.occupied)
        } else {
            ring.cpus.clone()
        };
        for cpu in free.iter() {
            if self.on.get(&cpu).is_some_and(|here| here.len() >= round) {
                continue;
            }
            let Some(index) = self.next_for(position) else {
                return;
            };
            self.leave(index);
            self.moved[index] = Some(cpu);
            self.on.entry(cpu).or_default().push(index);
            self.occupied.insert(cpu);
        }
    }

    /// The interrupt that gains most by a slot in this ring: the furthest one beyond it, or a surplus one in it.
    fn next_for(&self, position: usize) -> Option<usize> {
        let far = self
            .unmoved
            .first()
            .filter(|&&(Reverse(ring), _)| ring > position);
        let surplus = self
            .surplus
            .first()
            .filter(|&&(Reverse(ring), _)| ring >= position);
        far.or(surplus).map(|&(_, index)| index)
    }

    fn leave(&mut self, index: usize) {
        let key = (Reverse(self.now[index].ring()), index);
        self.unmoved.remove(&key);
        self.surplus.remove(&key);
        let Now::On(ring, cpu) = self.now[index] else {
            return;
        };
        let Some(here) = self.on.get_mut(&cpu) else {
            return;
        };
        here.retain(|&other| other != index);
        // The next surplus interrupt gets the slot that has become free.
        let promoted = here.get(self.slots_per_cpu - 1).copied();
        if here.is_empty() {
            self.occupied.remove(cpu);
        }
        if let Some(next) = promoted {
            self.surplus.remove(&(Reverse(ring), next));
        }
    }

    /// Interrupts that must move and got no slot share the CPUs of the nearest ring evenly.
    fn share(&mut self, ring: &Ring) {
        let load = |cpu| (Reverse(self.on.get(&cpu).map_or(0, Vec::len)), Reverse(cpu));
        let mut cpus: BinaryHeap<_> = ring.cpus.iter().map(load).collect();
        for index in 0..self.now.len() {
            if self.now[index] != Now::MustMove || self.moved[index].is_some() {
                continue;
            }
            let Some(mut least) = cpus.peek_mut() else {
                return;
            };
            let (Reverse(load), Reverse(cpu)) = &mut *least;
            *load += 1;
            self.moved[index] = Some(*cpu);
            self.on.entry(*cpu).or_default().push(index);
            self.leave(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use nearfar_machine::Distance;
    use proptest::prelude::*;

    use super::*;

    fn ring(distance: u32, cpus: &str) -> Ring {
        let cpus = CpuSet::parse_list(cpus).unwrap();
        Ring {
            distance: Some(Distance(distance)),
            cpus: cpus.clone(),
            nodes: vec![(None, cpus)],
        }
    }

    fn rings() -> Vec<Ring> {
        vec![ring(10, "0-1"), ring(20, "2-3"), ring(30, "4-7")]
    }

    fn on(cpu: u32) -> Now {
        let position = rings()
            .iter()
            .position(|ring| ring.cpus.contains(CpuId(cpu)))
            .unwrap();
        Now::On(position, CpuId(cpu))
    }

    fn assigned(now: &[Now]) -> Vec<Option<u32>> {
        assign(&rings(), now)
            .into_iter()
            .map(|cpu| cpu.map(|cpu| cpu.0))
            .collect()
    }

    #[test]
    fn the_example_in_the_module_comment() {
        assert_eq!(assigned(&[on(3), on(0), on(3)]), [Some(1), None, None]);
    }

    #[test]
    fn interrupts_in_the_nearest_slots_stay_in_any_order() {
        assert_eq!(assigned(&[on(1), on(0), on(3), on(2)]), [None; 4]);
    }

    #[test]
    fn sharing_the_near_cpus_is_not_fixed_by_going_far() {
        assert_eq!(assigned(&[on(0), on(0), on(1), on(1)]), [None; 4]);
        assert_eq!(assigned(&[on(0), on(0), on(0)]), [None, Some(1), None]);
    }

    #[test]
    fn the_furthest_get_the_nearest_free_slots() {
        assert_eq!(
            assigned(&[on(2), on(4), on(5), Now::Within(2)]),
            [None, Some(0), Some(1), Some(3)]
        );
    }

    #[test]
    fn interrupts_that_must_move_share_near_cpus_before_they_go_far() {
        let (kept_free, far) = (Now::MustMove, on(7));
        assert_eq!(
            assigned(&[kept_free, kept_free, kept_free, on(0), far]),
            [Some(1), Some(0), Some(1), None, Some(2)],
            "the far one gets the nearest slot that is left"
        );
    }

    #[test]
    fn interrupts_that_must_move_always_get_a_cpu() {
        let mut now = vec![Now::MustMove; 2];
        now.extend((0..8).map(on));
        assert_eq!(assigned(&now)[..2], [Some(0), Some(1)]);
        assert_eq!(assign(&[], &[Now::MustMove]), [None], "no CPU is usable");
    }

    fn after(now: &[Now]) -> Vec<Now> {
        let moved = assign(&rings(), now);
        now.iter()
            .zip(moved)
            .map(|(&now, cpu)| cpu.map_or(now, |cpu| on(cpu.0)))
            .collect()
    }

    proptest! {
        #[test]
        fn a_second_pass_moves_none(choices in proptest::collection::vec(0..12u32, 0..30)) {
            let now: Vec<Now> = choices
                .iter()
                .map(|&choice| match choice {
                    0..8 => on(choice),
                    8..11 => Now::Within(choice as usize - 8),
                    _ => Now::MustMove,
                })
                .collect();
            let settled = after(&now);
            prop_assert_eq!(assign(&rings(), &settled), vec![None; now.len()]);
            prop_assert!(!settled.contains(&Now::MustMove));
            for (before, after) in now.iter().zip(&settled) {
                prop_assert!(after.ring() <= before.ring(), "none moves away");
            }
        }
    }
}

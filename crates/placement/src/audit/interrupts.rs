//! Interrupts: which CPUs serve them, which cannot be moved, and which disturb CPUs that are kept free.

mod lane;

use std::collections::BTreeMap;

use nearfar_change::Change;
use nearfar_machine::{CpuSet, Distance, Interrupt, Irq, Known, NodeId, PciAddress};

use super::devices::named;
use super::evidence::Fact;
use super::ledger::Ledger;
use super::site::{Site, cpus, spoken};
use super::steering::XPS;
use super::{Finding, Severity};

pub(super) use lane::{Direction, direction};

const FAR: &str = "interrupt-far";
const SHARE: &str = "queues-share-cpu";
const ISOLATED: &str = "interrupt-on-isolated-cpu";
const MANAGED: &str = "managed-interrupt";

/// What the other rules have to know: the CPUs of those interrupts that will move.
pub(super) type After = BTreeMap<Irq, CpuSet>;

/// Judges every interrupt; what it would move is in the answer.
pub(super) fn check(site: &Site<'_>, ledger: &mut Ledger) -> After {
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
        lane::check(site, device, members, ledger, &mut after);
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
pub(super) fn titled(interrupt: &Interrupt) -> String {
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
pub(super) fn isolated(site: &Site<'_>, among: &CpuSet) -> String {
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

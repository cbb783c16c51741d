//! Memory that is not where it is wanted: a node nearly full while another is nearly empty, huge pages on other nodes.

use nearfar_change::size;
use nearfar_machine::{DeviceKind, HugePages, Memory, Node, NodeId, NodeSet, PciDevice, Task};

use crate::audit::site::{Fact, Site};
use crate::audit::tasks::named;
use crate::audit::{Finding, Ledger, Severity, devices};

const FULL: &str = "node-nearly-full";
const HUGE: &str = "huge-pages-elsewhere";

/// A node with less than this percentage of its memory free is nearly full: at some percent more than its watermarks
/// kswapd has nothing to do, and allocations that fail below them go to other nodes.
const FULL_PERCENT: u128 = 5;
/// A node with at least this percentage free is nearly empty next to it.
const EMPTY_PERCENT: u128 = 25;
/// The drivers that give a function to a program or guest, which has its buffers in huge pages.
pub(crate) const PASSED_ON: [&str; 3] = ["vfio-pci", "igb_uio", "uio_pci_generic"];

pub(crate) fn check(site: &Site<'_>, ledger: &mut Ledger) {
    if site.machine.nodes.is_empty() {
        let reason = site.cpu_nodes_unknown.as_deref().unwrap_or_default();
        return ledger.skip(&[FULL, HUGE], reason);
    }
    full(site, ledger);
    huge(site, ledger);
}

/// A node with memory of which the free part is known.
struct Filled<'a> {
    node: &'a Node,
    memory: &'a Memory,
    free: u64,
}

impl Filled<'_> {
    fn is_below(&self, bytes: u64, percent: u128) -> bool {
        u128::from(bytes) * 100 < u128::from(self.memory.total_bytes) * percent
    }

    /// `300 of 64000 MiB`.
    fn amount(&self) -> String {
        format!("{} of {}", size(self.free), size(self.memory.total_bytes))
    }
}

fn full(site: &Site<'_>, ledger: &mut Ledger) {
    let mut known = Vec::new();
    for node in site.machine.online_nodes() {
        let subject = || format!("node {}", node.id);
        match node.memory.get().map(|memory| (memory, memory.free_bytes)) {
            Some((memory, _)) if memory.total_bytes == 0 => {}
            Some((memory, Some(free))) => known.push(Filled { node, memory, free }),
            Some((_, None)) => {
                ledger.skip_thing(FULL, subject, "how much of its memory is free is unknown");
            }
            None => {
                let reason = node.memory.unknown_reason().unwrap_or_default();
                ledger.skip_thing(FULL, subject, reason);
            }
        }
    }
    if known.len() < 2 {
        return;
    }
    ledger.checked(&[FULL]);
    let empty = known.iter().max_by(|a, b| {
        let share = |it: &Filled<'_>, of: &Filled<'_>| {
            u128::from(it.free) * u128::from(of.memory.total_bytes)
        };
        share(a, b)
            .cmp(&share(b, a))
            .then(b.node.id.cmp(&a.node.id))
    });
    let Some(empty) = empty.filter(|it| !it.is_below(it.free, EMPTY_PERCENT)) else {
        return;
    };
    let full = known.iter().filter(|it| it.is_below(it.free, FULL_PERCENT));
    full.for_each(|full| ledger.add(nearly_full(site, full, empty)));
}

fn nearly_full(site: &Site<'_>, full: &Filled<'_>, empty: &Filled<'_>) -> Finding {
    let (id, other) = (full.node.id, empty.node.id);
    let reclaimable = full.memory.reclaimable_bytes;
    let (cache, severity) = match reclaimable {
        // What the kernel can drop it drops before anything is swapped.
        Some(bytes) if full.is_below(bytes.saturating_add(full.free), FULL_PERCENT) => (
            format!("Only {} more could be reclaimed without swap.", size(bytes)),
            Severity::Warning,
        ),
        Some(bytes) => (
            format!(
                "{} more is page cache that could be reclaimed.",
                size(bytes)
            ),
            Severity::Notice,
        ),
        None => (
            "How much more is page cache is unknown.".to_owned(),
            Severity::Notice,
        ),
    };
    let mode = site.machine.settings.zone_reclaim_mode.get();
    let leads_to = match mode {
        _ if full.node.has_cpus() == Some(false) => "What is allocated on it comes from other nodes.".to_owned(),
        Some(0) => "What its CPUs allocate comes from other nodes.".to_owned(),
        Some(mode) => format!(
            "vm.zone_reclaim_mode is {mode}: its CPUs reclaim{} before they take memory of another node.",
            match (mode & 2 != 0, mode & 4 != 0) {
                (false, false) => "",
                (true, false) => " and write pages out",
                (false, true) => " and swap",
                (true, true) => ", write pages out and swap",
            }
        ),
        None => "What its CPUs allocate comes from other nodes, with vm.zone_reclaim_mode only after they have \
                 reclaimed."
            .to_owned(),
    };
    let message = format!(
        "{} are free, node {other} has {} free. {cache} {leads_to} {}",
        full.amount(),
        empty.amount(),
        bound(site, id, other),
    );
    let finding = Finding::new(FULL, format!("node {id}"), message).severity(severity);
    let finding = [full, empty].into_iter().fold(finding, |finding, it| {
        finding.evidence(
            site.place(Fact::Memory(it.node.id)),
            format!(
                "{} kB free of {} kB",
                it.free >> 10,
                it.memory.total_bytes >> 10
            ),
        )
    });
    let finding = match mode {
        Some(mode) => finding.evidence(site.place(Fact::ZoneReclaimMode), mode.to_string()),
        None => finding,
    };
    let tasks = site
        .machine
        .tasks
        .get()
        .and_then(|_| site.command("nearfar tasks"));
    let whose = tasks.map_or_else(String::new, |tasks| {
        format!("{tasks} shows whose memory it is. ")
    });
    let spread = site.command(&format!(
        "nearfar plan --bind-unit UNIT --policy interleave --to-node {id},{other} --format systemd"
    ));
    let spread = spread.map_or_else(String::new, |command| format!(" ({command})"));
    finding
        .cost(site.machine.distance(id, id), site.machine.distance(id, other))
        .advice(format!(
            "{whose}Move that of one task (nearfar apply --memory PID --to-node {other}), spread a service that uses all of \
             it{spread}, or start it with the policy preferred instead of bind.",
        ))
}

/// What happens to tasks that may have memory of this node only, and which there are.
fn bound(site: &Site<'_>, id: NodeId, other: NodeId) -> String {
    let only = NodeSet::single(id);
    let is_bound = |task: &&Task| {
        let by_policy = || {
            let policies = task.policies.get().into_iter().flatten();
            let mut bind = policies.map(|policy| policy.policy.as_str());
            bind.any(|policy| policy == format!("bind:{id}"))
        };
        task.allowed_nodes.get() == Some(&only) || by_policy()
    };
    let tasks = site.machine.tasks.get().into_iter().flatten();
    let mut bound = tasks.filter(is_bound);
    let who = match (bound.next(), bound.count()) {
        (None, _) => "A task bound to it".to_owned(),
        (Some(first), 0) => format!("{}, which is bound to it,", named(first)),
        (Some(first), more) => format!("{} and {more} more, which are bound to it,", named(first)),
    };
    let mut who = who.chars();
    let who: String = who
        .next()
        .into_iter()
        .flat_map(char::to_uppercase)
        .chain(who)
        .collect();
    format!("{who} can only reclaim and swap, and then be killed, whatever node {other} has.")
}

fn huge(site: &Site<'_>, ledger: &mut Ledger) {
    let pools = || site.machine.online_nodes().filter_map(pool);
    if pools().count() == 0 {
        return match site
            .machine
            .online_nodes()
            .find_map(|it| it.memory.unknown_reason())
        {
            Some(because) => ledger.skip(&[HUGE], because),
            // Else the audit says why, for all rules that compare nodes.
            None if site.other_nodes_unknown().is_some() => {}
            None => ledger.not_applicable(&[HUGE]),
        };
    }
    ledger.checked(&[HUGE]);
    let devices = ledger.known(&site.machine.pci, &[HUGE]);
    for device in devices.into_iter().flatten() {
        device_needs(site, device, ledger);
    }
    let tasks = ledger.known(&site.machine.tasks, &[HUGE]);
    for task in tasks.into_iter().flatten() {
        task_needs(site, task, ledger);
    }
}

/// A node's largest pool that has pages.
fn pool(node: &Node) -> Option<(NodeId, &HugePages)> {
    let pools = node.memory.get()?.huge_pages.iter();
    let pools = pools.filter(|pool| pool.total > 0);
    let largest = pools.max_by_key(|pool| pool.total.saturating_mul(pool.page_bytes))?;
    Some((node.id, largest))
}

/// A device that a program or guest has, or a network card, which one may want.
fn device_needs(site: &Site<'_>, device: &PciDevice, ledger: &mut Ledger) {
    let passed_on = device.driver.as_deref();
    let passed_on = passed_on.filter(|driver| PASSED_ON.contains(driver));
    let (uses, severity) = match passed_on {
        Some(driver) => (
            format!("A program or guest has it ({driver}), and its buffers in huge pages"),
            Severity::Notice,
        ),
        None if device.is(&DeviceKind::NETWORK_CARD) => (
            "A program that drives this card itself (DPDK) has its buffers in huge pages"
                .to_owned(),
            Severity::Fact,
        ),
        None => return,
    };
    let subject = devices::named(device);
    let Some(node) = site.locality(device.address).node else {
        return ledger.skip_thing(HUGE, || subject, "its node is unknown");
    };
    if let Some(finding) = none_on(site, node, subject, &uses, ledger) {
        ledger.add(finding.severity(severity).device(device.address));
    }
}

fn task_needs(site: &Site<'_>, task: &Task, ledger: &mut Ledger) {
    let (Some(resident), Some(cpus)) = (task.resident.get(), task.allowed_cpus.get()) else {
        return;
    };
    let runs = site.machine.nodes_of_cpus(cpus);
    let Some(node) = runs
        .first()
        .filter(|_| resident.huge > 0 && runs.len() == 1)
    else {
        return;
    };
    let uses = format!(
        "It runs on node {node} and has {} of huge pages",
        size(resident.huge)
    );
    let finding = none_on(site, site.memory_home(node), named(task), &uses, ledger);
    finding.into_iter().for_each(|finding| ledger.add(finding));
}

/// The finding that a node has no huge pages and another has; `None` where it has some, or its pools are unknown.
fn none_on(
    site: &Site<'_>,
    node: NodeId,
    subject: String,
    uses: &str,
    ledger: &mut Ledger,
) -> Option<Finding> {
    let here = site.machine.node(node)?;
    if pool(here).is_some() {
        return None;
    }
    // A node without memory cannot have any; the pools of one that lists no size are unknown.
    let listed = here.memory.get().map_or(&[][..], |it| &it.huge_pages);
    if listed.is_empty() && here.has_memory() != Some(false) {
        ledger.skip_thing(
            HUGE,
            || subject,
            &format!("the huge pages of node {node} are unknown"),
        );
        return None;
    }
    let elsewhere = site.machine.online_nodes().filter_map(pool);
    let (other, pool) = elsewhere.min_by_key(|(other, _)| {
        let distance = site.machine.distance(node, *other);
        (distance.is_none(), distance, *other)
    })?;
    let pages = size(pool.page_bytes);
    let free = match pool.free {
        Some(free) => format!("{free} free"),
        None => "how many are free is unknown".to_owned(),
    };
    let is_same = |it: &&HugePages| it.page_bytes == pool.page_bytes;
    let without = match listed.iter().find(is_same).or(listed.first()) {
        Some(empty) => Fact::HugePages(node, empty.page_bytes),
        None => Fact::Memory(node),
    };
    let message = format!(
        "{uses}: node {node} has none, the nearest are on node {other} ({} of {pages}, {free}).",
        pool.total
    );
    let finding = Finding::new(HUGE, subject, message)
        .evidence(site.place(without), "0")
        .evidence(
            site.place(Fact::HugePages(other, pool.page_bytes)),
            pool.total.to_string(),
        )
        .cost(
            site.machine.distance(node, other),
            site.machine.distance(node, node),
        );
    Some(finding.advice(format!(
        "Reserve some there: echo COUNT > /sys/devices/system/node/node{node}/hugepages/hugepages-{kilobytes}kB/\
         nr_hugepages, or at boot hugepagesz={kilobytes}K hugepages={node}:COUNT (Linux 5.16 and later).",
        kilobytes = pool.page_bytes >> 10
    )))
}

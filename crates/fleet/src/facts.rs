//! What one machine is, as names and values that can be compared with those of others.
//!
//! A fact is about the machine, not about its users: no process, address, serial number or host name is one. What is not known is
//! kept with its reason and is never a deviation.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use nearfar_machine::{
    CpuId, Distances, Known, Machine, NodeId, NvmeSubsystem, Writer, WriterKind,
};
use nearfar_placement::audit::Audit;

/// The facts by which hosts are put into groups, unless others are asked for. The size of the memory is none of them: a module that is
/// lost would make a group of its own, and not a deviation.
pub const GROUP_BY: [&str; 2] = ["product", "cpu_model"];
/// What is said of a value that the source does not have.
const NOT_SAID: &str = "the source does not say";

/// A value, as text for people and programs.
#[derive(Clone, PartialEq, Debug)]
pub struct Fact {
    /// snake_case: `cpu_model`, `node_0_cpus`, `finding_interrupt_far`.
    pub name: String,
    pub value: Value,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    Text(String),
    /// A count; equal or not.
    Count(u64),
    /// A size in bytes: firmware and kernel keep a part that differs a little from boot to boot.
    Bytes(u64),
    /// Why it is not known.
    Unknown(String),
}

impl Value {
    /// The value for people; `None` where it is not known.
    pub fn known_text(&self) -> Option<String> {
        match self {
            Self::Text(text) if text.is_empty() => Some("none".to_owned()),
            Self::Text(text) => Some(text.clone()),
            Self::Count(count) => Some(count.to_string()),
            Self::Bytes(bytes) => Some(size_text(*bytes)),
            Self::Unknown(_) => None,
        }
    }
}

/// A size in GiB, below one in MiB.
pub(crate) fn size_text(bytes: u64) -> String {
    match bytes {
        0..0x4000_0000 => format!("{} MiB", bytes >> 20),
        _ => format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64),
    }
}

/// Everything that is compared of a machine, and what an audit of it found.
pub fn facts(machine: &Machine, audit: &Audit) -> Vec<Fact> {
    let mut facts = Facts::default();
    identity(machine, &mut facts);
    topology(machine, &mut facts);
    settings(machine, &mut facts);
    findings(audit, &mut facts);
    facts.0
}

#[derive(Default)]
struct Facts(Vec<Fact>);

impl Facts {
    fn add(&mut self, name: impl Into<String>, value: Value) {
        self.0.push(Fact {
            name: name.into(),
            value,
        });
    }

    fn known<T>(&mut self, name: &str, known: &Known<T>, value: impl Fn(&T) -> Value) {
        let value = match known {
            Known::Yes(it) => value(it),
            Known::No { unknown_reason } => Value::Unknown(unknown_reason.to_string()),
        };
        self.add(name, value);
    }

    fn text(&mut self, name: &str, text: Option<&str>) {
        let value = match text {
            Some(text) => Value::Text(text.to_owned()),
            None => Value::Unknown(NOT_SAID.to_owned()),
        };
        self.add(name, value);
    }
}

#[allow(clippy::ptr_arg, reason = "it is passed to what takes a &String")]
fn as_text(text: &String) -> Value {
    Value::Text(text.clone())
}

fn identity(machine: &Machine, facts: &mut Facts) {
    let origin = &machine.origin;
    facts.known("product", &origin.product, as_text);
    facts.text("cpu_model", origin.cpu_model.as_deref());
    facts.text("firmware", origin.firmware.as_deref());
    facts.known("kernel", &origin.kernel, as_text);
    facts.known("architecture", &origin.architecture, as_text);
}

fn topology(machine: &Machine, facts: &mut Facts) {
    let sizes: Vec<Option<u64>> = machine
        .online_nodes()
        .map(|node| node.total_bytes())
        .collect();
    let memory = match sizes.iter().copied().sum::<Option<u64>>() {
        Some(bytes) => Value::Bytes(bytes),
        None => Value::Unknown("the size of a node's memory is unknown".to_owned()),
    };
    facts.add("memory", memory);
    facts.add("cpus", Value::Count(machine.cpu_states.online.len() as u64));
    if machine.nodes_unknown_reason().is_none() {
        facts.add("nodes", Value::Count(machine.online_nodes().count() as u64));
    }
    facts.known("distances", &machine.distances, |table| {
        Value::Text(matrix(table))
    });
    for node in machine.online_nodes() {
        let id = node.id;
        facts.known(&format!("node_{id}_cpus"), &node.cpus, |cpus| {
            Value::Text(cpus.to_string())
        });
        facts.known(&format!("node_{id}_memory"), &node.memory, |memory| {
            Value::Bytes(memory.total_bytes)
        });
    }
    facts.text("cores", cores(machine).as_deref());
    facts.text("caches", caches(machine).as_deref());
    let devices = devices(machine);
    facts.known("devices", &devices, as_text);
}

fn settings(machine: &Machine, facts: &mut Facts) {
    let settings = &machine.settings;
    facts.known("numa_balancing", &settings.numa_balancing, |&mode| {
        Value::Count(u64::from(mode))
    });
    facts.known("governor", &settings.governor, as_text);
    facts.known(
        "transparent_huge_pages",
        &settings.transparent_huge_pages,
        as_text,
    );
    let list = |set: &nearfar_machine::CpuSet| Value::Text(set.to_string());
    facts.known("isolated_cpus", &machine.cpu_states.isolated, list);
    facts.known("nohz_full_cpus", &machine.cpu_states.nohz_full, list);
    facts.known(
        "default_interrupt_affinity",
        &settings.default_interrupt_affinity,
        list,
    );
    facts.known("writers", &machine.writers, |writers| writers_text(writers));
    facts.known("nvme_iopolicy", &machine.nvme, |subsystems| {
        policies_text(subsystems)
    });
}

/// Those that are active.
fn writers_text(writers: &[Writer]) -> Value {
    let mut names = BTreeSet::new();
    for writer in writers {
        match &writer.active {
            Known::Yes(true) => {
                names.insert(writer_name(writer.kind));
            }
            Known::Yes(false) => {}
            Known::No { unknown_reason } => return Value::Unknown(unknown_reason.to_string()),
        }
    }
    Value::Text(names.into_iter().collect::<Vec<_>>().join(" "))
}

/// How many subsystems have each I/O policy.
fn policies_text(subsystems: &[NvmeSubsystem]) -> Value {
    let mut policies: BTreeMap<&str, u64> = BTreeMap::new();
    for subsystem in subsystems {
        match &subsystem.iopolicy {
            Known::Yes(policy) => *policies.entry(policy.as_str()).or_default() += 1,
            Known::No { unknown_reason } => return Value::Unknown(unknown_reason.to_string()),
        }
    }
    Value::Text(counted(&policies))
}

fn writer_name(kind: WriterKind) -> &'static str {
    match kind {
        WriterKind::Irqbalance => "irqbalance",
        WriterKind::Tuned => "tuned",
        WriterKind::UdevLink => "udev-link",
        WriterKind::UdevRule => "udev-rule",
        WriterKind::Numad => "numad",
    }
}

/// How many findings each rule has; a rule that could not be checked at all says why.
fn findings(audit: &Audit, facts: &mut Facts) {
    use nearfar_placement::audit::State;
    for rule in &audit.rules {
        let name = format!("finding_{}", rule.rule.replace('-', "_"));
        let value = match rule.state {
            State::NotChecked => {
                let mut reasons = audit.not_checked.iter();
                let reason = reasons.find(|it| it.rule == rule.rule);
                Value::Unknown(reason.map_or_else(String::new, |it| it.reason.clone()))
            }
            _ => Value::Count(rule.findings as u64),
        };
        facts.add(name, value);
    }
}

/// `0 1: 10 21, 21 10`: the nodes, then a row for each.
fn matrix(table: &Distances) -> String {
    let nodes: Vec<String> = table.nodes().iter().map(NodeId::to_string).collect();
    let row = |from: &NodeId| {
        let entries = table.row(*from);
        let entries = entries.map(|(_, distance)| match distance {
            Some(distance) => distance.to_string(),
            None => "-".to_owned(),
        });
        entries.collect::<Vec<_>>().join(" ")
    };
    let rows: Vec<String> = table.nodes().iter().map(row).collect();
    format!("{}: {}", nodes.join(" "), rows.join(", "))
}

/// What differs between two texts of [`matrix`]: `0 to 1: 31 instead of 21`; `None` where the nodes do.
pub(crate) fn matrix_difference(usual: &str, other: &str) -> Option<Vec<String>> {
    let parts = |text: &'_ str| -> Option<(Vec<String>, Vec<Vec<String>>)> {
        let (nodes, rows) = text.split_once(": ")?;
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        Some((words(nodes), rows.split(", ").map(words).collect()))
    };
    let ((nodes, usual), (other_nodes, other)) = (parts(usual)?, parts(other)?);
    if nodes != other_nodes {
        return None;
    }
    let mut differences = Vec::new();
    for (from, (usual, other)) in usual.iter().zip(&other).enumerate() {
        for (to, (usual, other)) in usual.iter().zip(other).enumerate() {
            if usual != other {
                let (from, to) = (nodes.get(from)?, nodes.get(to)?);
                differences.push(format!("{from} to {to}: {other} instead of {usual}"));
            }
        }
    }
    Some(differences)
}

/// `packages 2, cores 64`.
fn cores(machine: &Machine) -> Option<String> {
    let online = || machine.cpus.iter().filter(|cpu| cpu.is_online());
    let number = |of: &dyn Fn(&nearfar_machine::Cpu) -> Option<CpuId>| -> Option<usize> {
        let all: Option<BTreeSet<CpuId>> = online().map(of).collect();
        all.map(|set| set.len())
    };
    let (packages, cores) = (number(&|cpu| cpu.package_leader)?, number(&|cpu| cpu.core)?);
    Some(format!("packages {packages}, cores {cores}"))
}

/// `L3 32 MiB x 2`: the last level.
fn caches(machine: &Machine) -> Option<String> {
    let level = machine.caches.iter().map(|cache| cache.level).max()?;
    let mut sizes: BTreeMap<String, u64> = BTreeMap::new();
    for cache in machine.caches.iter().filter(|cache| cache.level == level) {
        let size = cache
            .size_bytes
            .get()
            .map_or("unknown".to_owned(), |size| size_text(*size));
        *sizes.entry(size).or_default() += 1;
    }
    Some(format!("L{level} {}", counted(&sizes)))
}

/// Storage, network, accelerators and other PCI functions that do the work, by node: `node 0: 8086:1572 x 2; node 1: ...`.
fn devices(machine: &Machine) -> Known<String> {
    let functions = match &machine.pci {
        Known::Yes(functions) => functions,
        Known::No { unknown_reason } => return Known::no(unknown_reason.clone()),
    };
    let mut by_node: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    for function in functions.iter().filter(|function| function.moves_data()) {
        let node = match &function.node {
            Known::Yes(Some(node)) => format!("node {node}"),
            Known::Yes(None) => "no node".to_owned(),
            Known::No { .. } => "unknown node".to_owned(),
        };
        let name = format!("{:04x}:{:04x}", function.vendor, function.device);
        *by_node.entry(node).or_default().entry(name).or_default() += 1;
    }
    let mut text = String::new();
    for (node, functions) in by_node {
        let separator = if text.is_empty() { "" } else { "; " };
        let _ = write!(text, "{separator}{node}: {}", counted(&functions));
    }
    Known::Yes(text)
}

fn counted(numbers: &BTreeMap<impl AsRef<str>, u64>) -> String {
    let one = |(name, number): (&_, &u64)| match (AsRef::<str>::as_ref(name), number) {
        (name, 1) => name.to_owned(),
        (name, number) => format!("{name} x {number}"),
    };
    numbers.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_differ_pair_by_pair() {
        let differences = matrix_difference("0 1: 10 21, 21 10", "0 1: 10 31, 21 10");
        assert_eq!(differences.unwrap(), ["0 to 1: 31 instead of 21"]);
        assert_eq!(
            matrix_difference("0 1: 10 21, 21 10", "0 2: 10 21, 21 10"),
            None
        );
        for odd in ["", ": ", "0", "0 1: 10"] {
            let _ = matrix_difference(odd, "0 1: 10 21, 21 10");
        }
    }
}

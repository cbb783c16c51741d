//! A drop-in of systemd that gives a unit a NUMA policy: it is in force from the next start of the unit (systemd.exec(5)).

use nearfar_machine::{CpuSet, Known, Machine, NodeId, NodeSet};
use nearfar_proc::cgroup::service_name;

use crate::apply::ApplyError;
use crate::export::comment;
use crate::system::{System, Target};
use crate::task_memory::nodes_with_memory;

/// Where systemd looks for unit files, the first that has one first (systemd.unit(5)).
const PLACES: [&str; 13] = [
    "/etc/systemd/system.control",
    "/run/systemd/system.control",
    "/run/systemd/transient",
    "/run/systemd/generator.early",
    "/etc/systemd/system",
    "/etc/systemd/system.attached",
    "/run/systemd/system",
    "/run/systemd/system.attached",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
    "/run/systemd/generator.late",
];

/// Where the memory of a unit's processes comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnitPolicy {
    /// From the node only.
    Bind,
    /// From the node, and from others where that has none left.
    Preferred,
    /// From the node that a task runs on; its CPUs are those of the node.
    Local,
    /// From the nodes in turn, page by page; the CPUs stay as they are.
    Interleave,
}

/// Which unit is to be on which node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnitBinding {
    pub unit: String,
    /// One, or for [`UnitPolicy::Interleave`] those that take turns.
    pub nodes: NodeSet,
    pub policy: UnitPolicy,
}

/// Why there is no drop-in.
#[derive(Debug, thiserror::Error)]
pub enum UnitBindingError {
    #[error(
        "{0:.64?} is not the name of a service such as redis.service: systemd starts only services with a NUMA policy"
    )]
    NotAService(String),
    #[error("there is no unit {0}: no file of that name in {places}, and no task runs in it", places = PLACES.join(", "))]
    NoUnit(String),
    #[error("unit {unit} is masked ({file} is empty or a link to /dev/null): it is never started")]
    Masked { unit: String, file: String },
    #[error("there is no node {node} with memory; nodes with memory: {known}")]
    NoNode { node: NodeId, known: NodeSet },
    #[error("node {0} has no CPUs: with the policy local its tasks could not run there")]
    NoCpus(NodeId),
}

/// The drop-in. `target` is where unit files are looked for; without one, as for a snapshot, only tasks tell of a unit.
///
/// # Errors
/// When there is no such unit or node, or the target cannot be opened.
pub fn unit_drop_in(
    machine: &Machine,
    target: Option<&Target>,
    binding: &UnitBinding,
) -> Result<String, ApplyError> {
    check_name(&binding.unit)?;
    let system = target.map(Target::system).transpose()?;
    let system = system.as_ref().map(|it| it as &dyn System);
    let found = found(machine, system, &binding.unit)?;
    let known = nodes_with_memory(machine);
    if let Some(node) = binding.nodes.difference(&known).first() {
        return Err(UnitBindingError::NoNode { node, known }.into());
    }
    let is_near = |node| binding.nodes.contains(node);
    let cpus = machine
        .cpus
        .iter()
        .filter(|cpu| cpu.is_online() && cpu.node.is_some_and(is_near));
    let cpus: CpuSet = cpus.map(|cpu| cpu.id).collect();
    if let (true, UnitPolicy::Local, Some(node)) =
        (cpus.is_empty(), binding.policy, binding.nodes.first())
    {
        return Err(UnitBindingError::NoCpus(node).into());
    }
    Ok(heading(machine, binding, &found) + &section(binding, &cpus))
}

/// As systemd takes the name of a unit (unit_name_is_valid() in src/basic/unit-name.c). It becomes part of a path.
fn check_name(unit: &str) -> Result<(), UnitBindingError> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-@:\\".contains(&b);
    let name = unit.strip_suffix(".service").unwrap_or_default();
    let good = !name.is_empty()
        && unit.len() <= 255
        && unit.bytes().all(plain)
        && !name.starts_with(['.', '@']);
    good.then_some(())
        .ok_or_else(|| UnitBindingError::NotAService(unit.to_owned()))
}

/// Where the unit was seen, in words.
fn found(
    machine: &Machine,
    system: Option<&dyn System>,
    unit: &str,
) -> Result<String, UnitBindingError> {
    if let Some(system) = system
        && let Some(file) = unit_file(system, unit)?
    {
        return Ok(format!("its file is {file}"));
    }
    let runs = |group: &&String| service_name(group).as_deref() == Some(unit);
    let groups = |tasks: &Vec<nearfar_machine::Task>| {
        let mut groups = tasks.iter().filter_map(|task| task.group.get());
        groups.find(runs).cloned()
    };
    match (machine.tasks.as_ref().map(groups), system) {
        (Known::Yes(Some(group)), _) => Ok(format!("it runs in control group {group}")),
        (_, Some(_)) => Err(UnitBindingError::NoUnit(unit.to_owned())),
        (_, None) => Ok("whether there is one is unknown: the source has no unit files".to_owned()),
    }
}

fn unit_file(system: &dyn System, unit: &str) -> Result<Option<String>, UnitBindingError> {
    // An instance has the file of its template, unless it has one of its own anywhere.
    let template = unit
        .split_once('@')
        .map(|(prefix, _)| format!("{prefix}@.service"));
    let mut names = std::iter::once(unit).chain(template.as_deref());
    let Some(file) = names.find_map(|name| first_file(system, name)) else {
        return Ok(None);
    };
    let is_empty = || system.read(&file).is_ok_and(|content| content.is_empty());
    match system.link(&file).is_ok_and(|to| to == "/dev/null") || is_empty() {
        true => {
            let unit = unit.to_owned();
            Err(UnitBindingError::Masked { unit, file })
        }
        false => Ok(Some(file)),
    }
}

/// The file of this name that systemd takes.
fn first_file(system: &dyn System, name: &str) -> Option<String> {
    let has_it = |place: &&&str| {
        let names = system.list(place).unwrap_or_default();
        names.iter().any(|it| it == name)
    };
    let place = PLACES.iter().find(has_it)?;
    Some(format!("{place}/{name}"))
}

fn heading(machine: &Machine, binding: &UnitBinding, found: &str) -> String {
    let UnitBinding { unit, nodes, .. } = binding;
    let (host, found) = (
        crate::export::host(machine.origin.host.as_deref()),
        comment(found),
    );
    let directory = format!("/etc/systemd/system/{unit}.d");
    // Of what the name of a unit can have, a shell takes only the backslash for something else.
    let unit = match unit.contains('\\') {
        true => format!("'{unit}'"),
        false => unit.clone(),
    };
    let (on, now) = match binding.policy {
        UnitPolicy::Interleave => (
            format!("with memory of nodes {nodes} in turn"),
            "The memory that it has\n# already stays where it is.\n".to_owned(),
        ),
        policy => {
            // A cpuset would forbid the other nodes.
            let only = match policy {
                UnitPolicy::Bind => format!("#     nearfar apply --cpuset-mems {unit}={nodes}\n"),
                _ => String::new(),
            };
            (
                format!("on node {nodes}"),
                format!(
                    "While the unit runs, as root:\n{only}\
                     #     nearfar apply --memory {unit} --to-node {nodes}\n"
                ),
            )
        }
    };
    format!(
        "# {unit} {on}, for {host}\n\
         # Written by nearfar {version}; see docs/plan.md. The unit:\n\
         # {found}.\n\
         #\n\
         # Install: save as {directory}/50-nearfar-numa.conf, then\n\
         #     systemctl daemon-reload && systemctl restart {unit}\n\
         # Remove: delete that file, then the same two commands.\n\
         # systemd sets the policy when it starts the unit. {now}\n",
        version = env!("CARGO_PKG_VERSION"),
    )
}

fn section(binding: &UnitBinding, cpus: &CpuSet) -> String {
    let node = &binding.nodes;
    if binding.policy == UnitPolicy::Interleave {
        return format!(
            "[Service]\n# Memory of these nodes in turn, page by page, from whichever has some left; CPUs as before.\n\
             NUMAPolicy=interleave\nNUMAMask={node}\n\
             # A program can choose another policy. This it cannot exceed (systemd.resource-control(5)):\n\
             # AllowedMemoryNodes={node}\n"
        );
    }
    let policy = match binding.policy {
        UnitPolicy::Bind => format!(
            "# Memory of node {node} only. Where it has none left, the kernel kills a process of the unit although other nodes\n\
             # may have memory: --policy preferred takes that instead.\n\
             NUMAPolicy=bind\nNUMAMask={node}\n"
        ),
        UnitPolicy::Preferred => format!(
            "# Memory of node {node}; of other nodes where it has none left.\nNUMAPolicy=preferred\nNUMAMask={node}\n"
        ),
        UnitPolicy::Local | UnitPolicy::Interleave => {
            "# Memory of the node that a task runs on; of other nodes where it has none left.\nNUMAPolicy=local\n".to_owned()
        }
    };
    let affinity = match (cpus.is_empty(), binding.policy) {
        (true, _) => {
            format!("# Node {node} has no CPUs: which CPUs the unit runs on stays as it is.\n")
        }
        (_, UnitPolicy::Local) => format!("# The CPUs of node {node}.\nCPUAffinity={cpus}\n"),
        _ => format!("# The CPUs of the nodes of NUMAMask=, {cpus}.\nCPUAffinity=numa\n"),
    };
    let allowed = match cpus.is_empty() {
        true => String::new(),
        false => format!("# AllowedCPUs={cpus}\n"),
    };
    format!(
        "[Service]\n{policy}{affinity}\
         # A program can choose another policy and other CPUs. These two it cannot exceed (systemd.resource-control(5)):\n\
         {allowed}# AllowedMemoryNodes={node}\n"
    )
}

//! Whose a setting is: what an interrupt's number, an interface's name or a subsystem's name stands for now, and whether
//! that is what it stood for when the plan was made or the value was written.
//!
//! ```text
//! interrupt 42   /sys/kernel/irq/42/actions, else the directories in /proc/irq/42    eth0-TxRx-3
//!                /sys/bus/pci/devices/ADDRESS/msi_irqs/42                            0000:3b:00.0
//! eth0           /sys/class/net/eth0 -> .../0000:3b:00.0/net/eth0
//! nvme-subsys0   /sys/class/nvme-subsystem/nvme-subsys0/subsysnqn
//! 0000:3b:00.0   its vendor and device
//! process 4711   /proc/4711/stat: when it began
//! ```
//!
//! The kernel gives these numbers and names in the order in which drivers ask, so after a reboot, a hot plug or a new
//! binding of a driver they may be another device's. A field that one side does not have is not compared.

use std::collections::{BTreeSet, HashMap};

use nearfar_machine::{CpuId, CpuSet, NodeId, PciAddress};

use crate::change::{NodeCpus, Owner, Plan, PlanError, Planned, ProcessIdentity};
use crate::kind::Setting;
use crate::system::{System, first_line};

/// The owner of a setting as the system shows it.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) owner: Owner,
    /// Whether no PCI function has it; otherwise a missing one is unknown.
    pub(crate) has_no_device: bool,
    /// Whether no process has the number.
    pub(crate) has_no_process: bool,
}

impl Seen {
    pub(crate) fn of(owner: Owner) -> Self {
        Self {
            owner,
            ..Self::default()
        }
    }
}

/// A setting that is another's now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mismatch {
    pub(crate) was: String,
    pub(crate) now: String,
    /// Whether the interrupt is another PCI function's. What was written to it went with the one it had: an interrupt
    /// that is given out again begins with the default affinity.
    pub(crate) is_given_out_again: bool,
    /// Whether the device is the same, and only the interrupt's handlers call themselves otherwise: an interface was
    /// renamed, or the driver uses its interrupts in another order.
    pub(crate) only_handlers: bool,
    /// Whether a process has ended, and no other has its number.
    pub(crate) is_ended: bool,
}

/// Looks at what a setting stands for. `expected` says what to look for first; a tree may lack any file.
pub(crate) fn observe(
    system: &dyn System,
    setting: &Setting,
    expected: &Owner,
    tree: bool,
) -> Seen {
    let seen = setting.kind().observe(system, expected, tree);
    let pci_id = seen.owner.device.and_then(|device| pci_id(system, device));
    Seen {
        owner: Owner {
            pci_id,
            ..seen.owner
        },
        ..seen
    }
}

/// Whether what was seen is another owner than the one expected.
pub(crate) fn mismatch(expected: &Owner, seen: &Seen) -> Option<Mismatch> {
    fn differ<T: PartialEq>(one: &Option<T>, other: &Option<T>) -> bool {
        matches!((one, other), (Some(one), Some(other)) if one != other)
    }
    let now = &seen.owner;
    let other_device =
        differ(&expected.device, &now.device) || (expected.device.is_some() && seen.has_no_device);
    let other_handlers = match (&expected.handlers, &now.handlers) {
        (Some(was), Some(now)) => handlers(was) != handlers(now),
        _ => false,
    };
    let other_names = differ(&expected.pci_id, &now.pci_id)
        || differ(&expected.nqn, &now.nqn)
        || differ(&expected.mac, &now.mac);
    let other_process = match (&expected.process, &now.process) {
        (Some(was), Some(now)) => was.start_ticks != now.start_ticks,
        (Some(_), None) => seen.has_no_process,
        (None, _) => false,
    };
    (other_device || other_handlers || other_names || other_process).then(|| Mismatch {
        was: described(expected, &Seen::default()),
        now: described(now, seen),
        is_given_out_again: other_device && expected.handlers.is_some(),
        only_handlers: expected.device.is_some() && !other_device && !other_names,
        is_ended: other_process && seen.has_no_process,
    })
}

/// The names of an interrupt's handlers; `/proc/interrupts` and sysfs give them in the order they came.
fn handlers(names: &str) -> BTreeSet<&str> {
    names
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .collect()
}

/// `eth0-TxRx-3 of 0000:3b:00.0 (8086:1592)`.
fn described(owner: &Owner, seen: &Seen) -> String {
    if let Some(ProcessIdentity { start_ticks, name }) = &owner.process {
        return format!("{name} (began at clock tick {start_ticks})");
    }
    if seen.has_no_process {
        return "no process".to_owned();
    }
    let device = match (owner.device, &owner.pci_id) {
        (Some(device), Some(id)) => Some(format!("{device} ({id})")),
        (Some(device), None) => Some(device.to_string()),
        (None, _) => seen.has_no_device.then(|| "no PCI device".to_owned()),
    };
    let handlers = owner.handlers.as_deref().map(|names| {
        if names.trim().is_empty() {
            "no handler"
        } else {
            names
        }
    });
    let names = [handlers, owner.nqn.as_deref(), owner.mac.as_deref()]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>();
    match (names.is_empty(), device) {
        (true, device) => device.unwrap_or_else(|| "unknown".to_owned()),
        (false, Some(device)) => format!("{} of {device}", names.join(" ")),
        (false, None) => names.join(" "),
    }
}

fn pci_id(system: &dyn System, device: PciAddress) -> Option<String> {
    let number = |file: &str| {
        let text = first_line(system, &format!("/sys/bus/pci/devices/{device}/{file}"))?;
        u16::from_str_radix(text.trim_start_matches("0x"), 16).ok()
    };
    Some(format!(
        "{:04x}:{:04x}",
        number("vendor")?,
        number("device")?
    ))
}

/// Whether every number and name in a plan stands for what it stood for when the plan was made, and every CPU is on the
/// node it was on.
///
/// # Errors
/// The first that does not, with both owners, and how many more there are.
pub(crate) fn check(
    plan: &Plan,
    system: &dyn System,
    tree: bool,
    boot: Option<&str>,
) -> Result<(), PlanError> {
    check_nodes(&plan.nodes, system)?;
    let rebooted = match (&plan.boot, boot) {
        (Some(made_in), Some(here)) if made_in != here => Some((made_in.as_str(), here)),
        // Clock ticks count from the boot: without it they tell no process from another.
        (None, Some(here)) if plan.changes.iter().any(is_of_process) => Some(("not named", here)),
        _ => None,
    };
    // Of many processes one may end at any time: apply says so, and goes on with the others.
    let are_several = plan.changes.iter().filter(|it| is_of_process(it)).count() > 1;
    let mut first = None;
    let mut others = 0;
    for (planned, number) in plan.changes.iter().zip(1..) {
        let setting = Setting::of(&planned.change);
        let expected = setting.kind().owner_in_plan(planned);
        let seen = observe(system, &setting, &expected, tree);
        if let Some(found) =
            mismatch(&expected, &seen).filter(|found| !(are_several && found.is_ended))
        {
            match first {
                None => first = Some((number, setting.path(), found)),
                Some(_) => others += 1,
            }
        } else if let Some((made_in, here)) = rebooted
            && !setting.kind().is_identified(&expected, &seen.owner)
        {
            let (plan, here) = (made_in.to_owned(), here.to_owned());
            return Err(PlanError::OtherBoot {
                number,
                file: setting.path(),
                plan,
                here,
            });
        }
    }
    match first {
        Some((number, file, found)) => Err(PlanError::OtherOwner {
            number,
            file,
            was: found.was,
            now: found.now,
            others,
        }),
        None => Ok(()),
    }
}

fn is_of_process(planned: &Planned) -> bool {
    !Setting::of(&planned.change).is_written()
}

/// A CPU that went offline, or came online, since the plan was made is no fault: a CPU on another node is. Then what
/// the plan takes for near is not.
fn check_nodes(nodes: &[NodeCpus], system: &dyn System) -> Result<(), PlanError> {
    const NODES: &str = "/sys/devices/system/node";
    if nodes.is_empty() {
        return Ok(());
    }
    let mut now: HashMap<CpuId, NodeId> = HashMap::new();
    for name in system.list(NODES).unwrap_or_default() {
        let Some(node) = name
            .strip_prefix("node")
            .and_then(|number| number.parse().ok())
        else {
            continue;
        };
        let cpus = first_line(system, &format!("{NODES}/{name}/cpulist"));
        let cpus = cpus
            .and_then(|cpus| CpuSet::parse_list(&cpus).ok())
            .unwrap_or_default();
        now.extend(cpus.iter().map(|cpu| (cpu, NodeId(node))));
    }
    for NodeCpus { node, cpus } in nodes {
        for cpu in cpus.iter() {
            if let Some(here) = now.get(&cpu).filter(|here| *here != node) {
                return Err(PlanError::OtherNodes {
                    cpu,
                    plan: *node,
                    here: *here,
                });
            }
        }
    }
    Ok(())
}

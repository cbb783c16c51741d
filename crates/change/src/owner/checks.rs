//! Whether a plan still fits the system, looked at as a whole before the first write.

use std::collections::HashMap;

use nearfar_machine::{CpuId, CpuSet, NodeId};
use nearfar_placement::change::{Change, NodeCpus, Owner, Plan, Planned};

use super::{expected, mismatch, observe};
use crate::check::PlanError;
use crate::setting::Setting;
use crate::system::{System, first_line};

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
        let expected = expected(planned);
        let seen = observe(system, &setting, &expected, tree);
        if let Some(found) =
            mismatch(&expected, &seen).filter(|found| !(are_several && found.is_ended))
        {
            match first {
                None => first = Some((number, setting.path(), found)),
                Some(_) => others += 1,
            }
        } else if let Some((made_in, here)) = rebooted
            && !is_identified(&planned.change, &expected, &seen.owner)
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

/// Whether an owner that does not differ is known to be the same, as it has to be after a reboot.
fn is_identified(change: &Change, expected: &Owner, seen: &Owner) -> bool {
    let both = |one: bool, other: bool| one && other;
    match change {
        Change::InterruptAffinity { .. } => {
            both(expected.handlers.is_some(), seen.handlers.is_some())
        }
        Change::Xps { .. } | Change::Rps { .. } => {
            both(expected.device.is_some(), seen.device.is_some())
                || both(expected.mac.is_some(), seen.mac.is_some())
        }
        Change::NvmeIoPolicy { .. } => both(expected.nqn.is_some(), seen.nqn.is_some()),
        Change::DeviceNode { .. } => both(expected.pci_id.is_some(), seen.pci_id.is_some()),
        Change::Sysctl { .. }
        | Change::SchedulerDebug { .. }
        | Change::Cpuset { .. }
        | Change::CpusetMemory { .. } => true,
        Change::TaskMemory { .. } => false,
    }
}

fn is_of_process(planned: &Planned) -> bool {
    matches!(planned.change, Change::TaskMemory { .. })
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

//! Whether a plan still fits the system, looked at as a whole before the first write.

use std::collections::HashMap;

use nearfar_machine::{CpuId, CpuSet, NodeId};

use super::{mismatch, observe};
use crate::change::{NodeCpus, Plan, Planned};
use crate::check::PlanError;
use crate::kind::Setting;
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

//! Plans that move the memory of a control group: one change for each of its processes, checked together.

use std::collections::BTreeSet;

use nearfar_machine::{Machine, NodeId, NodeSet};

use super::checks::{MoveConditions, check};
use super::describe::{
    MoveRequestError, REQUESTED, amount, check_nodes, check_room, identity, live, planned,
};
use super::{MoveRequest, size};
use crate::change::{LeftAlone, Planned, ProcessIdentity};

/// Names of programs that a reason lists.
const MAX_NAMES: usize = 3;

/// The memory of which processes is to go where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupMoveRequest {
    /// The control group, for messages.
    pub group: String,
    /// Its processes.
    pub pids: Vec<i32>,
    /// Pages on these nodes are moved.
    pub from: NodeSet,
    pub to: NodeId,
    /// Also the pages that several processes map.
    pub shared: bool,
}

/// A process whose memory can be moved.
struct Movable {
    process: ProcessIdentity,
    request: MoveRequest,
    conditions: MoveConditions,
}

/// The changes that move the memory of these processes of the running system, which `machine` is. Processes without memory to
/// move, threads of the kernel and this process are left alone.
///
/// # Errors
/// When there is no such node, or it has no room for all of the memory.
pub fn planned_group_move(
    machine: &Machine,
    request: &GroupMoveRequest,
) -> Result<(Vec<Planned>, Vec<LeftAlone>), MoveRequestError> {
    let mut left_alone = Vec::new();
    let mut members = Vec::new();
    for &pid in &request.pids {
        let one = MoveRequest {
            pid,
            from: request.from.clone(),
            to: request.to,
            shared: request.shared,
        };
        check_nodes(machine, &one)?;
        match member(one) {
            Ok(member) => members.push(member),
            Err(reason) => left_alone.push(left(pid, reason)),
        }
    }
    let moves = members.iter();
    let moves: Vec<_> = moves
        .map(|it| (it.request.clone(), it.conditions.clone()))
        .collect();
    check_room(&moves)?;
    members.retain(|member| match check(&member.request, &member.conditions) {
        Ok(()) => true,
        Err(refusal) => {
            left_alone.push(left(member.request.pid, refusal.to_string()));
            false
        }
    });
    let reason = reason(request, &members);
    let changes = members.into_iter().map(|member| {
        let survey = &member.conditions.survey;
        planned(
            machine,
            &member.request,
            member.process,
            survey,
            reason.clone(),
        )
    });
    let changes = changes.collect::<Result<_, _>>()?;
    Ok((changes, left_alone))
}

/// A process, or why its memory is not moved.
fn member(request: MoveRequest) -> Result<Movable, String> {
    if request.pid == std::process::id().cast_signed() {
        return Err("it is nearfar itself".to_owned());
    }
    let process = identity(request.pid).map_err(|error| error.to_string())?;
    let system = live(request.pid).map_err(|error| error.to_string())?;
    let conditions = MoveConditions::read(&system, &request).map_err(|error| error.to_string())?;
    let survey = &conditions.survey;
    if survey.far_bytes() == 0 {
        return Err(match survey.staying_bytes() {
            0 => format!("it has no memory on nodes {}", request.from),
            bytes => format!(
                "all it has on nodes {} is mapped by other processes as well, {} (--shared moves it)",
                request.from,
                size(bytes)
            ),
        });
    }
    Ok(Movable {
        process,
        request,
        conditions,
    })
}

fn left(pid: i32, reason: String) -> LeftAlone {
    LeftAlone {
        subject: format!("process {pid}"),
        rule: REQUESTED.to_owned(),
        reason,
    }
}

/// What is moved in all, for each of the changes.
fn reason(request: &GroupMoveRequest, members: &[Movable]) -> String {
    let Some(first) = members.first() else {
        return String::new();
    };
    let names: BTreeSet<&str> = members.iter().map(|it| it.process.name.as_str()).collect();
    let more = if names.len() > MAX_NAMES { ", ..." } else { "" };
    let names: Vec<&str> = names.into_iter().take(MAX_NAMES).collect();
    let sum = |bytes: fn(&Movable) -> u64| members.iter().map(bytes).fold(0, u64::saturating_add);
    let moving = sum(|it| {
        let survey = &it.conditions.survey;
        survey.part_bytes().saturating_add(survey.hugetlb_bytes())
    });
    let staying = sum(|it| it.conditions.survey.staying_bytes());
    let noun = match members.len() {
        1 => "process",
        _ => "processes",
    };
    format!(
        "control group {}, {} {noun} ({}{more}): {}. Processes that begin after this plan was made are not moved.",
        request.group,
        members.len(),
        names.join(", "),
        amount(&first.request, moving, staying),
    )
}

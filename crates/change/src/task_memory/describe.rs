//! Plans that move memory: what is asked for, made a change with the identity of its process; of a control group one change for each of
//! its processes, checked together.

use std::collections::BTreeSet;
use std::io;

use nearfar_machine::{Machine, NodeId, NodeSet};
use nearfar_proc::{error_text, tasks};

use crate::change::{
    Change, DistanceChange, LeftAlone, Owner, Plan, Planned, ProcessIdentity, check_planned,
    memory_by_node,
};
use crate::kind::ChangeError;
use crate::system::Rooted;
use crate::task_memory::checks::{self, MoveConditions, Survey, check};
use crate::task_memory::{ASSUMED_BYTES_PER_S, MoveRequest, move_seconds, size};

/// What a change that no rule asked for has in the place of the rule's name.
pub(crate) const REQUESTED: &str = "requested";

/// Why there is no such change.
#[derive(Debug, thiserror::Error)]
pub enum MoveRequestError {
    #[error("there is no process {0}")]
    NoProcess(i32),
    #[error("there is no node {node} with memory; nodes with memory: {known}")]
    NoNode { node: NodeId, known: NodeSet },
    #[error("process {0} has no memory: it is a thread of the kernel, or has ended")]
    NoMemory(i32),
    #[error(
        "cannot read where the memory of process {pid} is: {}",
        error_text(error)
    )]
    Read { pid: i32, error: io::Error },
    /// The system as it is now does not allow it.
    #[error("the memory of process {pid} cannot be moved: {reason}")]
    Refused { pid: i32, reason: String },
    /// The node has no room for all processes of the plan, though it may for each.
    #[error("the memory of {processes} processes cannot be moved: {reason}")]
    Together { processes: usize, reason: String },
    #[error(transparent)]
    Change(#[from] ChangeError),
}

impl MoveRequestError {
    /// Whether what was asked for does not exist, rather than being refused.
    pub fn is_input(&self) -> bool {
        !matches!(self, Self::Refused { .. } | Self::Together { .. })
    }
}

/// The change that moves the memory of a process of the running system, which `machine` is.
///
/// # Errors
/// When there is no such process or node, its memory cannot be read, or apply would refuse to move it now.
pub fn planned_move(machine: &Machine, request: &MoveRequest) -> Result<Planned, MoveRequestError> {
    check_nodes(machine, request)?;
    let process = identity(request.pid)?;
    let survey = conditions(request)?.survey;
    let reason = reason(&process.name, request, &survey);
    planned(machine, request, process, &survey, reason)
}

/// Whether the machine has the nodes of a request.
pub(crate) fn check_nodes(
    machine: &Machine,
    request: &MoveRequest,
) -> Result<(), MoveRequestError> {
    let known = machine.nodes_with_memory();
    let mut named = std::iter::once(request.to).chain(request.from.iter());
    match named.find(|&node| !known.contains(node)) {
        Some(node) => Err(MoveRequestError::NoNode { node, known }),
        None => Ok(()),
    }
}

/// The change, once the system allows it.
pub(crate) fn planned(
    machine: &Machine,
    request: &MoveRequest,
    process: ProcessIdentity,
    survey: &Survey,
    reason: String,
) -> Result<Planned, MoveRequestError> {
    let to = request.to;
    let planned = Planned {
        change: Change::TaskMemory {
            pid: request.pid,
            from: request.from.clone(),
            to,
            shared: request.shared,
        },
        before: Some(memory_by_node(&survey.by_node())),
        reason,
        owner: Some(Owner {
            process: Some(process),
            ..Owner::default()
        }),
        rule: REQUESTED.to_owned(),
        distance: request.from.first().map(|from| DistanceChange {
            now: machine.distance(to, from),
            after: machine.distance(to, to),
        }),
        estimate: None,
    };
    check_planned(&planned)?;
    Ok(planned)
}

fn reason(name: &str, request: &MoveRequest, survey: &Survey) -> String {
    let amount = amount(request, survey.far_bytes(), survey.staying_bytes());
    format!("process {} ({name}): {amount}.", request.pid)
}

/// How much goes where, in what time, and what stays.
fn amount(request: &MoveRequest, bytes: u64, staying_bytes: u64) -> String {
    let seconds = move_seconds(bytes);
    let rate = ASSUMED_BYTES_PER_S as f64 / 1e9;
    let staying = match staying_bytes {
        0 => String::new(),
        bytes => format!(
            "; {} more are mapped by other processes and stay (--shared moves them)",
            size(bytes)
        ),
    };
    format!(
        "{} on nodes {} to node {}, about {seconds:.1} s at {rate:.1} GB/s (published for pages of 4 KiB){staying}",
        size(bytes),
        request.from,
        request.to
    )
}

pub(crate) fn identity(pid: i32) -> Result<ProcessIdentity, MoveRequestError> {
    let found = tasks::stat_with_name(pid).map_err(|error| read_error(pid, error))?;
    let (stat, name) = found;
    if stat.is_kernel_thread() || stat.is_ending() {
        return Err(MoveRequestError::NoMemory(pid));
    }
    // /proc shows threads, too: their memory is their process's.
    let process = tasks::process_of(pid).map_err(|error| read_error(pid, error))?;
    if process != pid {
        return Err(MoveRequestError::NoProcess(pid));
    }
    Ok(ProcessIdentity {
        start_ticks: stat.id.start,
        name: name.to_text(),
    })
}

fn read_error(pid: i32, error: io::Error) -> MoveRequestError {
    match tasks::is_gone(&error) {
        true => MoveRequestError::NoProcess(pid),
        false => MoveRequestError::Read { pid, error },
    }
}

/// The checks that apply makes.
fn conditions(request: &MoveRequest) -> Result<MoveConditions, MoveRequestError> {
    let pid = request.pid;
    let system = live(pid)?;
    checks::conditions(&system, request).map_err(|reason| MoveRequestError::Refused { pid, reason })
}

/// Checks the moves of memory of a plan as apply will; on the running system.
///
/// # Errors
/// The first that apply would refuse now.
pub(crate) fn check_moves(plan: &Plan) -> Result<(), MoveRequestError> {
    let requests = plan
        .changes
        .iter()
        .filter_map(|it| MoveRequest::of(&it.change));
    let mut requests: Vec<MoveRequest> = requests.collect();
    if requests.len() > 1 {
        // Apply goes on with the others.
        let has_ended = |pid| matches!(identity(pid), Err(MoveRequestError::NoProcess(_)));
        requests.retain(|request| !has_ended(request.pid));
    }
    let read = |request: MoveRequest| {
        let conditions = conditions(&request)?;
        Ok((request, conditions))
    };
    let moves = requests.into_iter().map(read);
    check_room(&moves.collect::<Result<Vec<_>, MoveRequestError>>()?)
}

/// Checks whether a node has room for all moves of a plan; on the running system. Processes that have ended need none.
///
/// # Errors
/// When it has not.
pub(crate) fn check_plan_room(plan: &Plan) -> Result<(), MoveRequestError> {
    let changes = plan.changes.iter();
    let requests = changes.filter_map(|it| MoveRequest::of(&it.change));
    let requests: Vec<MoveRequest> = requests.collect();
    if requests.len() < 2 {
        return Ok(());
    }
    let system = live(requests[0].pid)?;
    let read = |request: &MoveRequest| {
        let conditions = MoveConditions::read(&system, request).ok()?;
        Some((request.clone(), conditions))
    };
    let moves: Vec<_> = requests.iter().filter_map(read).collect();
    check_room(&moves)
}

/// Whether the node has room for all moves.
pub(crate) fn check_room(moves: &[(MoveRequest, MoveConditions)]) -> Result<(), MoveRequestError> {
    let processes = moves.len();
    checks::check_room_for_all(moves)
        .map_err(|reason| MoveRequestError::Together { processes, reason })
}

pub(crate) fn live(pid: i32) -> Result<Rooted, MoveRequestError> {
    Rooted::live().map_err(|error| MoveRequestError::Read { pid, error })
}

/// Leaves alone the moves of memory that an audit of the running system asked for and that are no longer possible: the process
/// has ended or its number is another's, or apply would refuse.
pub fn check_processes(plan: &mut Plan) {
    let changes = std::mem::take(&mut plan.changes);
    for planned in changes {
        let Some(request) = MoveRequest::of(&planned.change) else {
            plan.changes.push(planned);
            continue;
        };
        let process = planned
            .owner
            .as_ref()
            .and_then(|owner| owner.process.as_ref());
        match check_process(&request, process) {
            Ok(()) => plan.changes.push(planned),
            Err(reason) => leave(
                plan,
                &planned.rule,
                format!("process {}", request.pid),
                reason,
            ),
        }
    }
}

fn check_process(request: &MoveRequest, process: Option<&ProcessIdentity>) -> Result<(), String> {
    let now = identity(request.pid).map_err(|error| error.to_string())?;
    match process {
        None => Err("when it began is unknown".to_owned()),
        Some(then) if then.start_ticks != now.start_ticks => {
            Err("it is another process now".to_owned())
        }
        Some(_) => conditions(request)
            .map(drop)
            .map_err(|error| error.to_string()),
    }
}

/// Takes note that something the rule found is not changed.
pub(crate) fn leave(plan: &mut Plan, rule: &str, subject: String, reason: String) {
    plan.left_alone.push(LeftAlone {
        subject,
        rule: rule.to_owned(),
        reason,
    });
}

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
            left_alone.push(left(member.request.pid, refusal));
            false
        }
    });
    let reason = group_reason(request, &members);
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
    let conditions = MoveConditions::read(&system, &request)?;
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
fn group_reason(request: &GroupMoveRequest, members: &[Movable]) -> String {
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

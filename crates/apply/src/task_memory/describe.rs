//! Plans that move memory: what is asked for, made a change with the identity of its process.

use std::io;

use nearfar_machine::{Machine, NodeId, NodeSet};
use nearfar_placement::change::{
    Change, DistanceChange, LeftAlone, Owner, Plan, Planned, ProcessIdentity,
};
use nearfar_placement::plan::memory_by_node;
use nearfar_placement::tasks::ASSUMED_BYTES_PER_S;
use nearfar_proc::{error_text, tasks};

use super::checks;
use super::checks::MoveConditions;
use super::survey::Survey;
use super::{MoveRequest, size};
use crate::check::check_planned;
use crate::setting::ChangeError;
use crate::system::Rooted;

/// What a change that no rule asked for has in the place of the rule's name.
const REQUESTED: &str = "requested";

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
    #[error(transparent)]
    Change(#[from] ChangeError),
}

/// The change that moves the memory of a process of the running system, which `machine` is.
///
/// # Errors
/// When there is no such process or node, its memory cannot be read, or apply would refuse to move it now.
pub fn planned_move(machine: &Machine, request: &MoveRequest) -> Result<Planned, MoveRequestError> {
    let (pid, to) = (request.pid, request.to);
    let known = nodes_with_memory(machine);
    let named = std::iter::once(to).chain(request.from.iter());
    if let Some(node) = named.into_iter().find(|&node| !known.contains(node)) {
        return Err(MoveRequestError::NoNode { node, known });
    }
    let process = identity(pid)?;
    let survey = conditions(request)?.survey;
    let planned = Planned {
        change: Change::TaskMemory {
            pid,
            from: request.from.clone(),
            to,
            shared: request.shared,
        },
        before: Some(memory_by_node(&survey.by_node())),
        reason: reason(&process.name, request, &survey),
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

/// The nodes whose memory a process can have.
pub(crate) fn nodes_with_memory(machine: &Machine) -> NodeSet {
    let nodes = machine.online_nodes();
    let has_memory = nodes.filter(|node| {
        let memory = node.memory.get();
        memory.is_none_or(|memory| memory.total_bytes > 0)
    });
    has_memory.map(|node| node.id).collect()
}

fn reason(name: &str, request: &MoveRequest, survey: &Survey) -> String {
    let (pid, to) = (request.pid, request.to);
    let bytes = survey.far_bytes();
    let seconds = bytes as f64 / ASSUMED_BYTES_PER_S as f64;
    let rate = ASSUMED_BYTES_PER_S as f64 / 1e9;
    format!(
        "process {pid} ({name}): {} on nodes {} to node {to}, about {seconds:.1} s at {rate:.1} GB/s (published for pages \
         of 4 KiB).",
        size(bytes),
        request.from
    )
}

fn identity(pid: i32) -> Result<ProcessIdentity, MoveRequestError> {
    let found = tasks::stat_with_name(pid).map_err(|error| read_error(pid, error))?;
    let (stat, name) = found;
    if stat.is_kernel_thread() || stat.is_ended() {
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
    let system = Rooted::live().map_err(|error| MoveRequestError::Read { pid, error })?;
    checks::conditions(&system, request).map_err(|refusal| MoveRequestError::Refused {
        pid,
        reason: refusal.to_string(),
    })
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
    for request in requests {
        conditions(&request)?;
    }
    Ok(())
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
            Err(because) => leave(plan, &planned, request.pid, because),
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

fn leave(plan: &mut Plan, planned: &Planned, pid: i32, because: String) {
    plan.left_alone.push(LeftAlone {
        subject: format!("process {pid}"),
        rule: planned.rule.clone(),
        because,
    });
}

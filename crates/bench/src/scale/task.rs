//! The child: one task, or several as its threads.

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::thread;

use nearfar_machine::{CpuSet, NodeId};
use nearfar_proc::affinity;
use serde::{Deserialize, Serialize};

use super::counters::Counters;
use super::workload::Workload;
use crate::child::{Conversation, ReadyLine, ServeError};
use crate::mapping::set_policy;

/// What a child does.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TasksSpec {
    pub(super) workload: Workload,
    /// Bytes of a mapping or file.
    pub(super) bytes: u64,
    /// Where files are made.
    pub(super) directory: PathBuf,
    /// The descriptor of the counters, and how many there are.
    pub(super) counters: (i32, usize),
    /// A thread each; one alone is the process itself.
    pub(super) tasks: Vec<TaskSpec>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TaskSpec {
    /// Its counter.
    pub(super) number: usize,
    /// Where it may run.
    pub(super) cpus: CpuSet,
    /// Where its memory comes from; `None` for wherever it runs.
    pub(super) memory_node: Option<NodeId>,
}

/// Does what `nearfar bench child scale` is for: tasks that are described over standard input, started by "go", and ended by
/// a signal.
///
/// # Errors
/// When they cannot run as described.
pub fn serve() -> Result<(), ServeError> {
    let mut caller = Conversation::open("scale");
    let spec: TasksSpec = caller.spec()?;
    let (descriptor, count) = spec.counters;
    let counters = Counters::inherited(descriptor, count)
        .map_err(|error| ServeError::refused("mapping the counters of tasks", error))?;
    caller.answer(&ReadyLine {
        ready: spec.tasks.len(),
    })?;
    caller.wait_for("go")?;
    let run = |task: &TaskSpec| {
        let failed = match run(&spec, task, &counters) {
            Ok(never) => match never {},
            Err(error) => error,
        };
        let workload = spec.workload;
        ServeError::refused(
            format!("task {} of {}", task.number, workload.name()),
            failed,
        )
    };
    match spec.tasks.as_slice() {
        [task] => Err(run(task)),
        tasks => thread::scope(|scope| {
            let (failed, failure) = channel();
            for task in tasks {
                let (failed, run) = (failed.clone(), &run);
                scope.spawn(move || failed.send(run(task)));
            }
            drop(failed);
            match failure.recv() {
                // The other threads go on until the process ends.
                Ok(error) => {
                    eprintln!("nearfar: {error}");
                    std::process::exit(3)
                }
                Err(_) => Err(ServeError::BadSpec("no task was described".to_owned())),
            }
        }),
    }
}

fn run(spec: &TasksSpec, task: &TaskSpec, counters: &Counters) -> io::Result<Infallible> {
    affinity::run_on(&task.cpus)?;
    set_policy(task.memory_node)?;
    let counter = counters
        .of(task.number)
        .ok_or(io::ErrorKind::InvalidInput)?;
    spec.workload
        .run(spec.bytes as usize, &spec.directory, counter)
}

//! Tasks that a child of this program forks: to start a program for each takes an emulated guest a second.
//!
//! They are prepared and ended one after the other. In a guest with more CPUs than the host, whose time is the host's then, a lock that
//! many of them want goes from one to the next only when the host runs that one.
//!
//! ```text
//!  nearfar ─── bench child scale ─┬─ task 0    a process each, or threads of one
//!               waits for them    ├─ task 1
//!                                 └─ ...       ──► a counter each, in memory that nearfar has as well
//! ```

use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::{process, thread};

use nearfar_machine::{CpuSet, NodeId};
use nearfar_proc::affinity;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, getppid, pidfd_open, pidfd_send_signal,
    set_parent_process_death_signal, wait,
};
use serde::{Deserialize, Serialize};

use super::workload::{PreparedWorkload, Workload};
use crate::child::{Child, ChildError, Conversation, DoneLine, ReadyLine, ServeError};
use crate::node_buffers::set_policy;

/// Tasks that wait for "go"; they are killed when this is dropped.
pub(super) struct Tasks {
    child: Child,
    processes: Vec<i32>,
    /// Of their processes, also when others have the numbers.
    handles: Vec<OwnedFd>,
}

impl Tasks {
    /// Starts them and waits until all are there.
    pub(super) fn start(spec: &TasksSpec, cancel: &AtomicBool) -> Result<Self, ChildError> {
        let program = PathBuf::from("/proc/self/exe");
        let mut child = Child::start(&program, "scale", spec)?;
        let ReadyLine::<Vec<i32>> { ready: processes } = child.listen(cancel)?;
        let open = |pid: &i32| {
            let pid = Pid::from_raw(*pid).ok_or(Errno::SRCH)?;
            pidfd_open(pid, PidfdFlags::empty())
        };
        let handles: Result<_, Errno> = processes.iter().map(open).collect();
        Ok(Self {
            handles: handles.map_err(|error| ChildError::Start {
                program,
                source: error.into(),
            })?,
            child,
            processes,
        })
    }

    pub(super) fn begin(&mut self) -> Result<(), ChildError> {
        self.child.say("go")
    }

    /// The numbers of their processes.
    pub(super) fn processes(&self) -> &[i32] {
        &self.processes
    }

    /// Lets them do nothing more, and waits until none does.
    ///
    /// # Errors
    /// Why one ended, if one did.
    pub(super) fn stop(&mut self, cancel: &AtomicBool) -> Result<(), ChildError> {
        for process in &self.handles {
            // Of one that has ended the child says why.
            let _ = pidfd_send_signal(process, Signal::STOP);
        }
        self.child.listen::<DoneLine<usize>>(cancel).map(drop)
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        for process in &self.handles {
            // One that cannot be killed has ended.
            let _ = pidfd_send_signal(process, Signal::KILL);
            let mut ended = [PollFd::new(process, PollFlags::IN)];
            while poll(&mut ended, None) == Err(Errno::INTR) {}
        }
        // The child has seen each of them end, and ends.
        self.child.hang_up();
        self.child.wait();
    }
}

/// What the child is to start.
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
    /// The tasks of each process: a thread each.
    pub(super) processes: Vec<Vec<TaskSpec>>,
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
/// When they cannot be started as described.
pub fn serve() -> Result<(), ServeError> {
    let mut caller = Conversation::open("scale");
    let spec: TasksSpec = caller.spec()?;
    let (descriptor, count) = spec.counters;
    let counters = TaskCounters::inherited(descriptor, count)
        .map_err(|error| ServeError::refused("mapping the counters of tasks", error))?;
    let pipe = || {
        let (from, to) = pipe_with(PipeFlags::CLOEXEC)
            .map_err(|error| ServeError::refused("making a pipe", error))?;
        Ok((File::from(from), File::from(to)))
    };
    let (gate, keeper) = pipe()?;
    let mut keeper = Some(keeper);
    let mut processes = Vec::<Pid>::new();
    for tasks in &spec.processes {
        let (prepared, says) = pipe()?;
        let run = || {
            keeper = None;
            run_each(&spec, tasks, &counters, || {
                let _ = (&says).write(&[0]);
                // Ends when the last keeper is closed.
                let _ = (&gate).read(&mut [0]);
            });
        };
        processes.push(fork(run).map_err(|error| ServeError::refused("starting a task", error))?);
        drop(says);
        if (&prepared).read_exact(&mut vec![0; tasks.len()]).is_err() {
            // It has said why.
            process::exit(FAILED);
        }
    }
    caller.answer(&ReadyLine {
        ready: processes
            .iter()
            .map(|it| it.as_raw_pid())
            .collect::<Vec<_>>(),
    })?;
    caller.wait_for("go")?;
    drop(keeper);
    let mut stopped = 0;
    loop {
        match wait(WaitOptions::UNTRACED) {
            // It has said why; the others end with this process.
            Ok(Some((_, status))) if status.exited() => process::exit(FAILED),
            Ok(Some((_, status))) if status.stopped() => {
                stopped += 1;
                if stopped == processes.len() {
                    caller.answer(&DoneLine { done: stopped })?;
                }
            }
            Ok(Some((pid, status))) if stopped < processes.len() => {
                let signal = status.terminating_signal().unwrap_or_default();
                eprintln!("nearfar: task {pid} was ended by signal {signal}");
                process::exit(FAILED)
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::CHILD) => return Ok(()),
            Err(error) => return Err(ServeError::refused("waiting for tasks", error)),
        }
    }
}

/// The exit code of what the system refused, see [`crate::child`].
const FAILED: i32 = 3;

/// A process that ends with this one at the latest.
fn fork(run: impl FnOnce()) -> io::Result<Pid> {
    let parent = getpid();
    // SAFETY: this process has one thread, so no lock is held by another one, and the child may do what the parent may.
    match unsafe { libc::fork() } {
        0 => {
            let _ = set_parent_process_death_signal(Some(Signal::KILL));
            // The parent may have ended before it was asked for.
            if getppid() != Some(parent) {
                process::exit(FAILED);
            }
            run();
            process::exit(FAILED)
        }
        ..0 => Err(io::Error::last_os_error()),
        pid => Pid::from_raw(pid).ok_or_else(io::Error::last_os_error),
    }
}

/// Prepares them, one after the other, and runs them until the process is killed, or one of them fails.
fn run_each(spec: &TasksSpec, tasks: &[TaskSpec], counters: &TaskCounters, wait: impl Fn() + Sync) {
    let in_turn = Mutex::new(());
    let run = |task: &TaskSpec| {
        let prepare = || {
            let _turn = in_turn.lock();
            affinity::run_on(&task.cpus)?;
            set_policy(task.memory_node)?;
            let counter = counters
                .of(task.number)
                .ok_or(io::ErrorKind::InvalidInput)?;
            let prepared = spec
                .workload
                .prepare(spec.bytes as usize, &spec.directory)?;
            Ok((prepared, counter))
        };
        let run = |(prepared, counter): (PreparedWorkload, _)| {
            wait();
            prepared.run(counter)
        };
        let Err::<Infallible, io::Error>(error) = prepare().and_then(run);
        let (number, workload) = (task.number, spec.workload.name());
        eprintln!("nearfar: task {number} of {workload}: {error}");
        process::exit(FAILED)
    };
    thread::scope(|threads| {
        for task in tasks.iter().skip(1) {
            threads.spawn(|| run(task));
        }
        tasks.first().map(run);
    });
}

/// Bytes from one counter to the next: two cache lines of the largest known size, for processors that fetch pairs of them.
const STRIDE: usize = 256;

pub(super) struct TaskCounters {
    file: File,
    start: NonNull<u8>,
    count: usize,
}

// SAFETY: the mapping belongs to this value, and is only ever accessed as atomic numbers.
unsafe impl Sync for TaskCounters {}

impl TaskCounters {
    /// All 0. Children inherit the descriptor.
    pub(super) fn new(count: usize) -> io::Result<Self> {
        let file: File = memfd_create("nearfar-scale", MemfdFlags::empty())?.into();
        ftruncate(&file, (count * STRIDE) as u64)?;
        Self::map(file, count)
    }

    /// Those that the parent has as this descriptor.
    fn inherited(descriptor: i32, count: usize) -> io::Result<Self> {
        let path = format!("/proc/self/fd/{descriptor}");
        let file = File::options().read(true).write(true).open(path)?;
        match file.metadata()?.len() == (count * STRIDE) as u64 {
            true => Self::map(file, count),
            false => Err(io::Error::other("the counters have another size")),
        }
    }

    fn map(file: File, count: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let bytes = count * STRIDE;
        // SAFETY: a new mapping where the kernel likes; nothing that exists is replaced.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                MapFlags::SHARED,
                &file,
                0,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { file, start, count })
    }

    pub(super) fn descriptor(&self) -> i32 {
        self.file.as_raw_fd()
    }

    pub(super) fn of(&self, task: usize) -> Option<&AtomicU64> {
        (task < self.count).then(|| {
            let place = self.start.as_ptr().wrapping_add(task * STRIDE);
            // SAFETY: within the mapping, aligned, only ever accessed atomically, and mapped as long as `self` is borrowed.
            unsafe { AtomicU64::from_ptr(place.cast()) }
        })
    }

    pub(super) fn read(&self) -> Vec<u64> {
        let all = (0..self.count).filter_map(|task| self.of(task));
        all.map(|it| it.load(Ordering::Relaxed)).collect()
    }
}

impl Drop for TaskCounters {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped; what `of` gave out borrows `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.count * STRIDE) };
    }
}

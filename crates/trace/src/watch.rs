//! Migrations of one process after another, with one trace that stays open: for experiments of many runs.
//!
//! ```text
//! experiment   open   follow(1) . collect(1)   follow(2) . collect(2)   drop
//!               │         │           │            │           │          │
//! thread        └ drains the rings ···┴············┴···········┴··········┘ closes the events
//! ```
//!
//! Opened once, because opening and closing perf events again and again under load has been seen to crash guests whose CPUs
//! QEMU emulates (TCG). Only followed tasks are kept: what others do costs a place in the ring until it is read. A
//! process' time on a node is the time that it was there, running, waiting or asleep; for one that keeps a CPU busy that
//! is its running time.

mod reader;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use nearfar_machine::{CpuSet, Known, Machine};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use serde::{Deserialize, Serialize};

use crate::migrations::{Formats, Migrations, Sharing, in_first_pid_namespace};
use crate::numa_balancing::TaskCounts;
use crate::{Losses, TraceError, Tracefs};
use reader::{Reader, Request};

/// A trace of migrations that stays open. Dropping it closes its events.
#[derive(Debug)]
pub struct Watch {
    /// `None` when it is being dropped.
    requests: Option<Sender<Request>>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<Result<(), TraceError>>>,
    not_traced: CpuSet,
}

/// What a process and those it made did while they were followed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Watched {
    /// From `follow` to `collect`.
    pub seconds: f64,
    /// Whether events were lost meanwhile, anybody's: a lost one may have been of this process.
    pub losses: Losses,
    /// Where NUMA balancing saw the process' memory when this was collected; unknown when it had ended by then.
    pub numa_balancing_of_task: Known<TaskCounts>,
    /// How often the kernel itself says that it moved the process' first thread meanwhile; unknown when that had ended by then.
    /// Where it is as many as were found, no move of that thread was among the events that were lost.
    #[serde(default = "not_asked")]
    pub moves_by_kernel: Known<u64>,
    /// Its migrations, its time on each node, what NUMA balancing did.
    #[serde(flatten)]
    pub found: Migrations,
}

/// What is not in samples that were stored before it was asked for.
fn not_asked() -> Known<u64> {
    Known::no("it was not asked for")
}

impl Watch {
    /// Opens the events on every CPU of the running system that is online, which the machine describes, and begins to read.
    ///
    /// # Errors
    /// When the kernel does not let this user trace, numbers tasks otherwise than this container, or lacks the tracepoints.
    pub fn open(machine: &Machine) -> Result<Self, TraceError> {
        if !in_first_pid_namespace() {
            return Err(TraceError::Container);
        }
        let formats = Tracefs::find().and_then(|tracefs| Formats::read(&tracefs))?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = Arc::new(wake.map_err(|error| TraceError::Thread(error.into()))?);
        let (requests, inbox) = channel();
        let reader = Reader::open(
            &formats,
            machine,
            Sharing::new(machine),
            Arc::clone(&wake),
            inbox,
        )?;
        let not_traced = reader.not_traced().clone();
        let thread = std::thread::Builder::new()
            .name("trace".to_owned())
            .spawn(|| reader.run());
        let thread = Some(thread.map_err(TraceError::Thread)?);
        Ok(Self {
            requests: Some(requests),
            wake,
            thread,
            not_traced,
        })
    }

    /// CPUs that were offline when it was opened: what happens there is not seen.
    pub fn not_traced(&self) -> &CpuSet {
        &self.not_traced
    }

    /// Follows the threads that a process has, and whatever they make, from now on.
    ///
    /// # Errors
    /// When there is no such process, or reading the events failed before.
    pub fn follow(&mut self, pid: i32) -> Result<(), TraceError> {
        self.ask(|reply| Request::Follow { pid, reply })
    }

    /// What became of a followed process until now; it may have ended. From now on it is not followed.
    ///
    /// # Errors
    /// When it is not followed, or reading the events failed.
    pub fn collect(&mut self, pid: i32) -> Result<Watched, TraceError> {
        self.ask(|reply| Request::Collect { pid, reply })
    }

    fn ask<T>(
        &mut self,
        request: impl FnOnce(Sender<Result<T, TraceError>>) -> Request,
    ) -> Result<T, TraceError> {
        let (reply, answer): (_, Receiver<_>) = channel();
        let asked = self
            .requests
            .as_ref()
            .is_some_and(|requests| requests.send(request(reply)).is_ok());
        if asked {
            reader::wake(&self.wake);
            if let Ok(answer) = answer.recv() {
                return answer;
            }
        }
        // The reader has ended without an answer: it says why, once.
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => Err(error),
            _ => Err(TraceError::Ended),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.requests = None;
        reader::wake(&self.wake);
        if let Some(thread) = self.thread.take() {
            // Its error would have been the next question's answer.
            let _ = thread.join();
        }
    }
}

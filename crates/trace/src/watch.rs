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

use std::collections::HashMap;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use nearfar_machine::{CpuId, CpuSet, Known, Machine};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use serde::{Deserialize, Serialize};

use crate::migrations::{
    Decoder, Event, Formats, Migrations, Moves, Sharing, in_first_pid_namespace,
};
use crate::numa_balancing::{MachineCounts, TaskCounts};
use crate::records::Sample;
use crate::{Losses, Ordered, Plan, Session, TraceError, Tracefs, now_ns, tasks};

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
        let reader = Reader::open(&formats, machine, Arc::clone(&wake), inbox)?;
        let not_traced = reader.session.not_traced().clone();
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
            wake(&self.wake);
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
        wake(&self.wake);
        if let Some(thread) = self.thread.take() {
            // Its error would have been the next question's answer.
            let _ = thread.join();
        }
    }
}

/// The longest time between two looks at the rings. A ring that gets half full, or a question, wakes the thread at once, so
/// this is as long as it may be: each look takes a CPU away from what is measured.
const LOOK: Duration = Duration::from_secs(1);

/// What the thread is asked for.
enum Request {
    /// Follow a process from now on.
    Follow {
        pid: i32,
        reply: Sender<Result<(), TraceError>>,
    },
    Collect {
        pid: i32,
        reply: Sender<Result<Watched, TraceError>>,
    },
}

struct Reader {
    session: Session,
    decoder: Decoder,
    sharing: Sharing,
    balancing: Known<()>,
    order: Ordered<Event>,
    followed: HashMap<i32, Followed>,
    wake: Arc<OwnedFd>,
    inbox: Receiver<Request>,
}

struct Followed {
    moves: Moves,
    since_ns: u64,
    losses: Losses,
    machine: Known<MachineCounts>,
    moves_by_kernel: Known<u64>,
}

fn wake(fd: &OwnedFd) {
    // Only a count of 2^64 - 2 unread wake-ups could block this.
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

impl Reader {
    fn open(
        formats: &Formats,
        machine: &Machine,
        wake: Arc<OwnedFd>,
        inbox: Receiver<Request>,
    ) -> Result<Self, TraceError> {
        let decoder = Decoder::new(formats).map_err(|problem| TraceError::Format {
            file: "tracefs".to_owned(),
            problem,
        })?;
        let plan = Plan {
            cpus: &machine.cpu_states.online,
            tracepoints: &formats.following(),
            names: false,
            mappings: false,
            callers_of: None,
        };
        let sharing = Sharing::new(machine);
        let mut session = Session::open(&plan)?;
        session.enable()?;
        Ok(Self {
            session,
            decoder,
            sharing,
            balancing: formats.balancing(),
            order: Ordered::default(),
            followed: HashMap::new(),
            wake,
            inbox,
        })
    }

    /// Drains and answers until no request can come any more.
    fn run(mut self) -> Result<(), TraceError> {
        loop {
            self.session.wait(LOOK, &[self.wake.as_fd()])?;
            // Whatever it was woken for, and however often: it looks at everything.
            let _ = rustix::io::read(&*self.wake, &mut [0u8; 8]);
            loop {
                match self.inbox.try_recv() {
                    // Who no longer waits for an answer does not need it.
                    Ok(Request::Follow { pid, reply }) => _ = reply.send(self.follow(pid)),
                    Ok(Request::Collect { pid, reply }) => _ = reply.send(self.collect(pid)),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return Ok(()),
                }
            }
            let (decoder, order) = (&self.decoder, &mut self.order);
            let take = &mut |_: CpuId, sample: &Sample<'_>| take_in(decoder, order, sample);
            self.session.drain(take);
            let followed = &mut self.followed;
            let pass = &mut |time, event| pass_on(followed, time, event);
            self.order.end_round(pass);
        }
    }

    fn follow(&mut self, pid: i32) -> Result<(), TraceError> {
        let machine = MachineCounts::read();
        let losses = self.settle()?;
        let since_ns = now_ns();
        let mut moves = Moves::new(self.sharing.clone(), true, self.balancing.clone());
        // Looked up after the time from which on events count: no task is missed between the two.
        for thread in tasks::of_process(pid)? {
            moves.adopt(thread.tid, &thread.name, thread.cpu, since_ns);
        }
        moves.were_seen_before(now_ns());
        let moves_by_kernel = tasks::moves_by_kernel(pid);
        let followed = Followed {
            moves,
            since_ns,
            losses,
            machine,
            moves_by_kernel,
        };
        self.followed.insert(pid, followed);
        Ok(())
    }

    fn collect(&mut self, pid: i32) -> Result<Watched, TraceError> {
        if !self.followed.contains_key(&pid) {
            return Err(TraceError::NotFollowed { pid });
        }
        let seen_after_ns = now_ns();
        // One that has ended is not anywhere.
        let threads = tasks::of_process(pid).unwrap_or_default();
        let now = now_ns();
        let losses = self.settle()?;
        // Every event until then has been read.
        let followed = &mut self.followed;
        let pass = &mut |time, event| pass_on(followed, time, event);
        self.order.until(now, pass);
        let followed = self.followed.remove(&pid);
        let mut followed = followed.ok_or(TraceError::NotFollowed { pid })?;
        for thread in threads {
            let moves = &mut followed.moves;
            moves.was_seen(thread.tid, thread.cpu, seen_after_ns);
        }
        let replaced = followed.moves.is_renumbered(pid);
        let machine = MachineCounts::since_then(followed.machine);
        Ok(Watched {
            seconds: now.saturating_sub(followed.since_ns) as f64 / 1e9,
            losses: losses.since(&followed.losses),
            numa_balancing_of_task: TaskCounts::read(pid),
            moves_by_kernel: match (followed.moves_by_kernel, tasks::moves_by_kernel(pid)) {
                _ if replaced => {
                    Known::no("another thread of the process has taken the first one's number")
                }
                (Known::Yes(before), Known::Yes(now)) => Known::Yes(now.saturating_sub(before)),
                (unknown @ Known::No { .. }, _) | (_, unknown) => unknown,
            },
            found: followed.moves.finish(now, machine),
        })
    }

    /// Reads all that has happened until now.
    fn settle(&mut self) -> Result<Losses, TraceError> {
        let (decoder, order) = (&self.decoder, &mut self.order);
        let take = &mut |_: CpuId, sample: &Sample<'_>| take_in(decoder, order, sample);
        self.session.settle(take)
    }
}

fn take_in(decoder: &Decoder, order: &mut Ordered<Event>, sample: &Sample<'_>) {
    if let Some(event) = decoder.decode(sample.event) {
        order.push(sample.time_ns, event);
    }
}

fn pass_on(followed: &mut HashMap<i32, Followed>, time_ns: u64, event: Event) {
    for one in followed.values_mut() {
        one.moves.take(time_ns, event.clone());
    }
}

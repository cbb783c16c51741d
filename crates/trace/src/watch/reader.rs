//! The thread that owns the session: it drains the rings and answers between two rounds.

use std::collections::HashMap;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::Duration;

use nearfar_machine::{CpuSet, Known, Machine};
use rustix::fd::OwnedFd;

use super::Watched;
use crate::migrations::{Decoder, Event, Formats, Moves, Sharing};
use crate::numa_balancing::{MachineCounts, TaskCounts};
use crate::{Losses, Ordered, Plan, Session, TraceError, now_ns, tasks};

/// The longest time between two looks at the rings. A ring that gets half full, or a question, wakes the thread at once, so
/// this is as long as it may be: each look takes a CPU away from what is measured.
const LOOK: Duration = Duration::from_secs(1);

/// What the thread is asked for.
pub(super) enum Request {
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

pub(super) struct Reader {
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

pub(super) fn wake(fd: &OwnedFd) {
    // Only a count of 2^64 - 2 unread wake-ups could block this.
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

impl Reader {
    pub(super) fn open(
        formats: &Formats,
        machine: &Machine,
        sharing: Sharing,
        wake: Arc<OwnedFd>,
        inbox: Receiver<Request>,
    ) -> Result<Self, TraceError> {
        let decoder = Decoder::new(formats).map_err(|problem| TraceError::Format {
            file: "tracefs".to_owned(),
            problem,
        })?;
        let tracepoints = formats.following();
        let plan = Plan {
            cpus: &machine.cpu_states.online,
            tracepoints: &tracepoints,
            names: false,
            callers_of: None,
        };
        let mut session = Session::open(&plan)?;
        session.enable()?;
        let (order, followed) = Default::default();
        let balancing = formats.balancing();
        Ok(Self {
            session,
            decoder,
            sharing,
            balancing,
            order,
            followed,
            wake,
            inbox,
        })
    }

    pub(super) fn not_traced(&self) -> &CpuSet {
        self.session.not_traced()
    }

    /// Drains and answers until no request can come any more.
    pub(super) fn run(mut self) -> Result<(), TraceError> {
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
            let Self {
                session,
                decoder,
                order,
                followed,
                ..
            } = &mut self;
            session.drain(&mut |_, sample| take_in(decoder, order, sample.time_ns, sample.event));
            order.end_round(&mut |time, event| pass_on(followed, time, event));
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
        let moves_by_kernel = tasks::moves_by_kernel(pid);
        self.followed.insert(
            pid,
            Followed {
                moves,
                since_ns,
                losses,
                machine,
                moves_by_kernel,
            },
        );
        Ok(())
    }

    fn collect(&mut self, pid: i32) -> Result<Watched, TraceError> {
        if !self.followed.contains_key(&pid) {
            return Err(TraceError::NotFollowed { pid });
        }
        let now = now_ns();
        let losses = self.settle()?;
        // Every event until then has been read.
        let Self {
            order, followed, ..
        } = self;
        order.until(now, &mut |time, event| pass_on(followed, time, event));
        let followed = self
            .followed
            .remove(&pid)
            .ok_or(TraceError::NotFollowed { pid })?;
        let replaced = followed.moves.is_renumbered(pid);
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
            found: followed
                .moves
                .finish(now, MachineCounts::since_then(followed.machine)),
        })
    }

    /// Reads all that has happened until now.
    fn settle(&mut self) -> Result<Losses, TraceError> {
        let Self {
            session,
            decoder,
            order,
            ..
        } = self;
        session.settle(&mut |_, sample| take_in(decoder, order, sample.time_ns, sample.event))
    }
}

fn take_in(decoder: &Decoder, order: &mut Ordered<Event>, time_ns: u64, event: &[u8]) {
    if let Some(event) = decoder.decode(event) {
        order.push(time_ns, event);
    }
}

fn pass_on(followed: &mut HashMap<i32, Followed>, time_ns: u64, event: Event) {
    followed
        .values_mut()
        .for_each(|one| one.moves.take(time_ns, event.clone()));
}

//! The loop of every keeper, whatever it confines with: thread masks ([`super::threads`]) or a cpuset ([`crate::cgroup`]).
//!
//! ```text
//!  wait ──► look: what did the tasks do ──► what does the node offer ──► decide ──► release, confine ──┐
//!   ▲   time (`pace.rs`), an order, or the PSI trigger while nothing is released                       │
//!   └──────────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nearfar_machine::CpuSet;

use super::KeeperError;
use super::pace::{Load, Pace};
use crate::idle::IdleTime;
use crate::psi::{Trigger, Woken, wait};
use crate::rule::offer;

/// What confines tasks and releases them.
pub trait Actuator: Sized + Send + 'static {
    /// What it read of its tasks at one look.
    type Samples;
    type Report: Send + 'static;

    /// Where the kernel says when the tasks wait: then they are not looked at while they are confined and none waits.
    fn trigger(&self) -> Option<&Trigger> {
        None
    }

    /// The preferred node's CPUs.
    fn home(&self) -> &CpuSet;

    /// Reads what the tasks did in the time `passed` since the last look.
    ///
    /// # Errors
    /// When there is nothing left to keep.
    fn look(&mut self, passed: Duration) -> Result<Looked<Self::Samples>, KeeperError>;

    /// Decides and acts. `now`: since the first look; `offer`: of the node's CPUs ([`crate::rule::offer`]), if it was read.
    ///
    /// # Errors
    /// When the tasks cannot be kept any longer.
    fn act(
        &mut self,
        now: Duration,
        offer: Option<f64>,
        samples: Self::Samples,
    ) -> Result<(), KeeperError>;

    fn report(&self, effort: &Effort) -> Self::Report;

    /// Gives the tasks back what they had. `ended`: why this is done before it was asked for.
    ///
    /// # Errors
    /// When something could not be put back.
    fn restore(
        self,
        ended: Option<KeeperError>,
        effort: &Effort,
    ) -> Result<Self::Report, KeeperError>;
}

/// The answer of [`Actuator::look`].
pub struct Looked<S> {
    pub load: Load,
    /// Whether tasks are new, which may wait at the next look.
    pub has_newcomers: bool,
    pub samples: S,
}

/// What keeping has cost so far.
#[derive(Debug)]
pub struct Effort {
    begun: Instant,
    /// CPU time of the keeper's thread.
    pub cpu: Duration,
    /// The longest time between two looks that was chosen so as not to cost more.
    pub longest_pause: Duration,
}

impl Effort {
    fn new() -> Self {
        Self {
            begun: Instant::now(),
            cpu: Duration::ZERO,
            longest_pause: Duration::ZERO,
        }
    }

    pub fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }
}

/// So many looks after the trigger fired without a release, and it is waited for again.
const LOOKS_AFTER_TRIGGER: u32 = 5;

type Order<A> = Box<dyn FnOnce(&mut A, &Effort) + Send>;

/// An actuator in the thread of its loop. Dropped, it restores.
pub(super) struct Running<A: Actuator> {
    /// None once it is to end.
    orders: Option<(Sender<Order<A>>, OwnedFd)>,
    thread: Option<JoinHandle<Result<A::Report, KeeperError>>>,
}

impl<A: Actuator> Running<A> {
    /// # Errors
    /// When there can be no other thread: the actuator is dropped, and its lease with it.
    pub(super) fn start(actuator: A, interval: Duration) -> Result<Self, KeeperError> {
        let (orders, inbox) = mpsc::channel();
        let (woken, wake) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(|error| KeeperError::Start(error.into()))?;
        let thread = std::thread::Builder::new()
            .name("keeper".to_owned())
            .spawn(move || Loop::new(actuator, interval).run(&inbox, &woken))
            .map_err(KeeperError::Start)?;
        Ok(Self {
            orders: Some((orders, wake)),
            thread: Some(thread),
        })
    }

    /// Has the loop's thread do something between two looks.
    ///
    /// # Errors
    /// When that thread has ended.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        order: impl FnOnce(&mut A, &Effort) -> T + Send + 'static,
    ) -> Result<T, KeeperError> {
        let (answer, answered) = mpsc::channel();
        let (orders, wake) = self.orders.as_ref().ok_or(KeeperError::Died)?;
        let order: Order<A> = Box::new(move |actuator, effort| {
            let _ = answer.send(order(actuator, effort));
        });
        orders.send(order).map_err(|_| KeeperError::Died)?;
        // Without a reader the thread has ended, and the answer does not come.
        let _ = rustix::io::write(wake, &[0]);
        answered.recv().map_err(|_| KeeperError::Died)
    }

    pub(super) fn is_running(&self) -> bool {
        self.thread
            .as_ref()
            .is_some_and(|thread| !thread.is_finished())
    }

    pub(super) fn stop(&mut self) -> Result<A::Report, KeeperError> {
        self.orders = None;
        let thread = self.thread.take().ok_or(KeeperError::Died)?;
        thread.join().unwrap_or(Err(KeeperError::Died))
    }
}

impl<A: Actuator> Drop for Running<A> {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

struct Loop<A> {
    actuator: A,
    idle: IdleTime,
    pace: Pace,
    load: Load,
    /// Looks until the trigger is waited for again.
    alert: u32,
    last_look: Instant,
    due: Instant,
    effort: Effort,
}

impl<A: Actuator> Loop<A> {
    fn new(actuator: A, interval: Duration) -> Self {
        let effort = Effort::new();
        Self {
            actuator,
            idle: IdleTime::default(),
            pace: Pace::new(interval),
            load: Load::Idle,
            alert: 0,
            last_look: effort.begun,
            due: effort.begun + interval,
            effort,
        }
    }

    fn run(
        mut self,
        inbox: &Receiver<Order<A>>,
        woken: &OwnedFd,
    ) -> Result<A::Report, KeeperError> {
        let ended = loop {
            match self.turn(inbox, woken) {
                Ok(true) => {}
                Ok(false) => break None,
                Err(error) => break Some(error),
            }
        };
        self.actuator.restore(ended, &self.effort)
    }

    /// Waits for one thing and does what follows from it; whether to go on.
    fn turn(&mut self, inbox: &Receiver<Order<A>>, woken: &OwnedFd) -> Result<bool, KeeperError> {
        let trigger = self.actuator.trigger().filter(|_| self.alert == 0);
        let left = self.due.saturating_duration_since(Instant::now());
        let limit = trigger.is_none().then_some(left);
        match wait(trigger, woken.as_fd(), limit).map_err(KeeperError::Wait)? {
            Woken::ByEnd => return Err(KeeperError::GroupGone),
            Woken::ByPressure => {
                // What was before says nothing of now: the first look only begins to measure.
                self.alert = LOOKS_AFTER_TRIGGER + 1;
                self.idle.restart();
                self.look()?;
            }
            Woken::ByTime if trigger.is_none() && Instant::now() >= self.due => self.look()?,
            Woken::ByTime => {}
            Woken::ByOther => {
                let _ = rustix::io::read(woken, &mut [0; 1]);
                match inbox.try_recv() {
                    Ok(order) => order(&mut self.actuator, &self.effort),
                    Err(TryRecvError::Empty) => {}
                    Err(TryRecvError::Disconnected) => return Ok(false),
                }
            }
        }
        Ok(true)
    }

    fn look(&mut self) -> Result<(), KeeperError> {
        let now = Instant::now();
        let passed = now.duration_since(self.last_look);
        let looked = self.actuator.look(passed.max(Duration::from_millis(1)))?;
        self.load = looked.load;
        let offer = if self.load == Load::Idle && !looked.has_newcomers && self.alert == 0 {
            // What was idle before now says nothing of the time in which it will matter.
            self.idle.restart();
            None
        } else {
            self.idle.since_last(self.actuator.home()).map(offer)
        };
        let since = now.duration_since(self.effort.begun);
        self.actuator.act(since, offer, looked.samples)?;
        self.alert = match self.load {
            Load::Spilled if self.actuator.trigger().is_some() => LOOKS_AFTER_TRIGGER,
            _ => self.alert.saturating_sub(1),
        };
        let cpu = cpu_time();
        let cost = cpu.saturating_sub(std::mem::replace(&mut self.effort.cpu, cpu));
        let pause = self.pace.after(self.load, passed, cost);
        self.effort.longest_pause = self.effort.longest_pause.max(pause);
        (self.last_look, self.due) = (now, Instant::now() + pause);
        Ok(())
    }
}

/// CPU time of the calling thread.
fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(
        now.tv_sec.unsigned_abs(),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}

//! The loop of every keeper, whatever it confines with: thread masks ([`super::threads`]) or a cpuset ([`crate::cgroup`]).
//!
//! ```text
//!  wait ──► look: what did the tasks do ──► what does the node offer ──► decide ──► release, confine ──┐
//!   ▲   time ([`Pace`]), an order, or the PSI trigger while nothing is released                       │
//!   └──────────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! When to look again: often where tasks wait, rarely where none does, and never for more than a small part of a CPU.
//!
//! ```text
//!  credit (CPU time)  ▲ a part of all time that passes, up to what one look by accident costs
//!                     ▼ what each look took; the first ones, of code that never ran, have a gift to spend
//!  in debt ──► no look until it is paid, two seconds at most
//! ```

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nearfar_machine::{CpuId, CpuSet};
use nearfar_proc::cpu_times::{self, StatFile};

use crate::keeper::{KeeperError, ThreadMasks};
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

/// A keeper in a thread of its own: of processes through the masks of their threads, or of a group through its cpuset
/// ([`crate::cgroup::GroupCpuset`]). Dropped, it puts everything back as [`Keeper::stop`] does.
pub struct Keeper<A: Actuator = ThreadMasks> {
    /// None once it is to end.
    orders: Option<(Sender<Order<A>>, OwnedFd)>,
    thread: Option<JoinHandle<Result<A::Report, KeeperError>>>,
}

impl<A: Actuator> Keeper<A> {
    /// # Errors
    /// When there can be no other thread: the actuator is dropped, and its lease with it.
    pub(crate) fn run(actuator: A, interval: Duration) -> Result<Self, KeeperError> {
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
    pub(crate) fn ask<T: Send + 'static>(
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

    /// Whether it keeps still: a group may be gone, or another program may have set its CPUs.
    pub fn is_running(&self) -> bool {
        self.thread
            .as_ref()
            .is_some_and(|thread| !thread.is_finished())
    }

    /// What was done so far.
    ///
    /// # Errors
    /// When the keeper's thread has ended.
    pub fn report(&self) -> Result<A::Report, KeeperError> {
        self.ask(|actuator, effort| actuator.report(effort))
    }

    /// Ends, and puts back what the tasks had.
    ///
    /// # Errors
    /// When something could not be put back; the next nearfar tries again.
    pub fn stop(mut self) -> Result<A::Report, KeeperError> {
        self.end()
    }

    fn end(&mut self) -> Result<A::Report, KeeperError> {
        self.orders = None;
        let thread = self.thread.take().ok_or(KeeperError::Died)?;
        thread.join().unwrap_or(Err(KeeperError::Died))
    }
}

impl<A: Actuator> Drop for Keeper<A> {
    fn drop(&mut self) {
        let _ = self.end();
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

/// What a look found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Load {
    /// All threads are on the node and none waits.
    Idle,
    /// Some thread is released and may be confined again.
    Spilled,
    /// Some thread waits and may have to be released.
    Contended,
}

/// When looks are due.
#[derive(Debug)]
pub(crate) struct Pace {
    interval: Duration,
    /// CPU time, in seconds.
    credit: f64,
    looks: u32,
    calm: u32,
    waiting: u32,
}

/// The part of a CPU that looks may take.
const MAX_CPU_PART: f64 = 1.0 / 120.0;
/// The same in the seconds in which it matters most.
const MAX_CPU_PART_CONTENDED: f64 = 1.0 / 30.0;
/// Now and then a look is expensive by accident (a hypervisor takes the CPU away): in seconds.
const MAX_CREDIT_S: f64 = 0.03;
/// The first looks are, and they matter: who is too many at the start leaves after the fourth. In an emulated guest of four
/// busy CPUs on a host of two they took more than 0.2 s together, on hardware a hundredth of that. In seconds.
const START_CREDIT_S: f64 = 0.5;
/// So many are the first.
const START_LOOKS: u32 = 20;
/// So many calm looks, and they become rarer.
const IDLE_LOOKS: u32 = 10;
/// After so many looks that found a task waiting, haste has not helped.
const MAX_CONTENDED_LOOKS: u32 = 20;
/// A keeper that looks more rarely keeps no task in place.
const MAX_PAUSE: Duration = Duration::from_secs(2);

impl Pace {
    /// Looks that are cheap are so far apart, and twice as far where all is calm.
    pub(crate) fn new(interval: Duration) -> Self {
        Self {
            interval,
            credit: START_CREDIT_S,
            looks: 0,
            calm: 0,
            waiting: 0,
        }
    }

    /// How long to wait after a look that took `cost` of CPU time and began `passed` after the one before.
    pub(crate) fn after(&mut self, load: Load, passed: Duration, cost: Duration) -> Duration {
        self.calm = if load == Load::Idle {
            self.calm.saturating_add(1)
        } else {
            0
        };
        self.waiting = if load == Load::Contended {
            self.waiting.saturating_add(1)
        } else {
            0
        };
        let part = if (1..=MAX_CONTENDED_LOOKS).contains(&self.waiting) {
            MAX_CPU_PART_CONTENDED
        } else {
            MAX_CPU_PART
        };
        self.looks = self.looks.saturating_add(1);
        if self.looks == START_LOOKS {
            self.credit = self.credit.min(MAX_CREDIT_S);
        }
        let earned = (passed.as_secs_f64() * part).min((MAX_CREDIT_S - self.credit).max(0.0));
        self.credit += earned - cost.as_secs_f64();
        let interval = if self.calm > IDLE_LOOKS {
            2 * self.interval
        } else {
            self.interval
        };
        let paid = Duration::try_from_secs_f64(-self.credit / part).unwrap_or_default();
        interval.max(paid.min(MAX_PAUSE))
    }
}

/// Asked again and again, how long CPUs were idle meanwhile: whether there is room on the preferred node.
///
/// ```text
/// /proc/stat    cpu3 4705 356 584 367 12 ...      user nice system idle iowait, in ticks of 10 ms
/// ```
#[derive(Debug, Default)]
pub struct IdleTime {
    stat: StatFile,
    before: Option<(Instant, BTreeMap<CpuId, u64>)>,
}

impl IdleTime {
    /// The share of the time since the last call (0 to 1) for which each of these CPUs was idle; nothing at the first
    /// call, or where /proc/stat cannot be read. A CPU that is not online has no share.
    pub fn since_last(&mut self, cpus: &CpuSet) -> Option<Vec<f64>> {
        let now = idle_ticks(&self.stat.read().ok()?, cpus);
        let tick_s = 1.0 / rustix::param::clock_ticks_per_second().max(1) as f64;
        let at = Instant::now();
        let shares = self.before.as_ref().map(|(then, before)| {
            let seconds = at.duration_since(*then).as_secs_f64().max(tick_s);
            let idle = |cpu| Some(now.get(&cpu)?.saturating_sub(*before.get(&cpu)?));
            // Ticks are coarse: two looks may see one more than there was time for.
            let share = |ticks: u64| (ticks as f64 * tick_s / seconds).min(1.0);
            cpus.iter().filter_map(idle).map(share).collect()
        });
        self.before = Some((at, now));
        shares
    }

    /// Forgets what was before: the next call is a first one.
    pub fn restart(&mut self) {
        self.before = None;
    }
}

/// Idle and waiting for I/O, by CPU.
fn idle_ticks(stat: &[u8], cpus: &CpuSet) -> BTreeMap<CpuId, u64> {
    cpu_times::parse(stat)
        .filter(|(cpu, _)| cpus.contains(*cpu))
        .map(|(cpu, times)| (cpu, times.idle))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const INTERVAL: Duration = Duration::from_millis(100);

    #[test]
    fn cheap_looks_keep_to_the_interval_and_calm_ones_to_twice_as_much() {
        let mut pace = Pace::new(INTERVAL);
        let look = |pace: &mut Pace, load| pace.after(load, INTERVAL, Duration::from_micros(100));
        assert_eq!(
            (0..10).map(|_| look(&mut pace, Load::Idle)).max(),
            Some(INTERVAL)
        );
        assert_eq!(look(&mut pace, Load::Idle), 2 * INTERVAL);
        assert_eq!(look(&mut pace, Load::Contended), INTERVAL);
    }

    #[test]
    fn dear_looks_at_the_start_and_one_by_accident_are_spared() {
        let mut pace = Pace::new(INTERVAL);
        for _ in 0..9 {
            assert_eq!(
                pace.after(Load::Contended, INTERVAL, Duration::from_millis(50)),
                INTERVAL
            );
        }
        for _ in 0..1000 {
            pace.after(Load::Idle, INTERVAL, Duration::ZERO);
        }
        assert_eq!(
            pace.after(Load::Spilled, INTERVAL, Duration::from_millis(25)),
            INTERVAL
        );
        assert!(
            pace.after(Load::Spilled, INTERVAL, Duration::from_millis(25)) > Duration::from_secs(1)
        );
    }

    proptest! {
        #[test]
        fn looks_never_take_more_than_their_part(costs in prop::collection::vec(0_u64..16_000, 100..200), load in 0..3_u8) {
            let load = [Load::Idle, Load::Spilled, Load::Contended][usize::from(load)];
            let mut pace = Pace::new(INTERVAL);
            let (mut passed, mut all, mut spent) = (INTERVAL, Duration::ZERO, Duration::ZERO);
            for cost in costs.iter().map(|&cost| Duration::from_micros(cost)) {
                all += passed;
                spent += cost;
                passed = pace.after(load, passed, cost);
                prop_assert!(passed >= INTERVAL && passed <= MAX_PAUSE.max(2 * INTERVAL));
            }
            let contended = if load == Load::Contended { f64::from(MAX_CONTENDED_LOOKS) * 0.5 * MAX_CPU_PART_CONTENDED } else { 0.0 };
            let most = (all + passed).as_secs_f64() * MAX_CPU_PART + START_CREDIT_S + contended;
            prop_assert!(spent.as_secs_f64() <= most + 1e-6, "{spent:?} of {all:?}");
        }
    }

    #[test]
    fn idle_and_waiting_count_for_each_cpu() {
        let stat = b"cpu  9 9 9 9 9 0 0\ncpu0 1 2 3 40 5 6 7\ncpu12 1 2 3 60 0 6 7\nintr 1 2 3\ncpu9 1 1 1 1 1\n";
        let cpus = "0-4,12".parse().unwrap();
        assert_eq!(
            idle_ticks(stat, &cpus),
            BTreeMap::from([(CpuId(0), 45), (CpuId(12), 60)])
        );
    }

    #[test]
    fn nothing_is_known_before_the_second_look() {
        let mut idle = IdleTime::default();
        let cpus: CpuSet = "0-4095".parse().unwrap();
        assert_eq!(idle.since_last(&cpus), None);
        let shares = idle.since_last(&cpus).unwrap();
        assert!(
            !shares.is_empty() && shares.iter().all(|share| (0.0..=1.0).contains(share)),
            "{shares:?}"
        );
    }
}

//! The load: on each CPU one pinned process that burns a constant share of it.
//!
//! ```text
//!  CPU 0   ▂▂████▂▂▂████▂▂▂████▂▂     periods of usually 10 ms; their phases are random, their lengths vary a
//!  CPU 1   ██▂▂▂███▂▂▂▂████▂▂▂███     little, so that the processes never march in step
//! ```
//!
//! Each process steers by two clocks: until the end of each period it owes `percent` of all time since its start (or since it was held
//! last), and burns what is still missing by its own CPU clock. So errors do not add up. What a contended CPU does not let it burn
//! is made up for later, but never more than a twentieth of a second of it: a load that was starved must not become a
//! hog. What it really got is in [`LoadReport`].
//!
//! [`Load`] is the caller's handle, [`serve`] the child, and `Steering` says how much it still owes, from times alone.

use std::num::NonZeroU64;
use std::path::Path;
use std::process;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nearfar_loops::execute_nothing;
use nearfar_machine::{CpuId, CpuSet};
use nearfar_proc::affinity;
use rustix::thread::{ClockId, clock_nanosleep_absolute, set_current_timer_slack};
use rustix::time::{Timespec, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::child::{Child, ChildError, Conversation, DoneLine, ReadyLine, ServeError};
use crate::sampling::SEED;

/// The specification of one process of the load.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LoadSpec {
    /// The CPU to burn.
    pub cpu: CpuId,
    /// How much of it, 0 to 99.
    pub percent: f64,
    /// Seconds a period.
    pub period_s: f64,
    /// Of phase and lengths; processes with different seeds do not march in step.
    #[serde(default)]
    pub seed: u64,
    /// Whether its guest is one of simulated time.
    #[serde(default)]
    pub is_simulated: bool,
}

/// Seconds of a usual period: long against a wake-up, short against what a load balancer averages over.
pub const PERIOD_S: f64 = 0.01;

/// Instructions between two looks at the clock in simulated time, where a look takes the host as long as some thousand of them: some 100
/// us. A pause would leave the emulator's translated code.
const BURST: u64 = 240_000;

impl LoadSpec {
    /// A load with a seed of its own.
    fn new(cpu: CpuId, percent: f64, period_s: f64, is_simulated: bool) -> Self {
        Self {
            cpu,
            percent,
            period_s,
            seed: u64::from(cpu.0) + 1,
            is_simulated,
        }
    }

    /// Why no CPU can do it.
    fn check(&self) -> Result<(), String> {
        let Self {
            percent, period_s, ..
        } = self;
        match () {
            // NaN is in no range.
            () if !(0.0..=99.0).contains(percent) => {
                Err(format!("a load of {percent} % cannot be had: give 0 to 99"))
            }
            () if !(0.0005..=1.0).contains(period_s) => Err(format!(
                "a period of {period_s} s is too short or too long: give 0.0005 to 1"
            )),
            () => Ok(()),
        }
    }
}

/// What the load on each CPU achieved.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LoadReport {
    /// What was asked for, in percent of each CPU.
    pub percent: f64,
    /// By CPU, ascending.
    pub cpus: Vec<LoadOnCpu>,
}

impl LoadReport {
    /// The CPU whose share over the whole time is farthest from what was asked for.
    pub fn farthest(&self) -> Option<&LoadOnCpu> {
        let off = |load: &LoadOnCpu| (load.achieved_percent - self.percent).abs();
        self.cpus.iter().max_by(|a, b| off(a).total_cmp(&off(b)))
    }
}

/// What the load on one CPU achieved.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LoadOnCpu {
    pub cpu: CpuId,
    pub pid: i32,
    /// Seconds it ran for.
    pub seconds: f64,
    /// CPU time it had in that time, in percent of it.
    pub achieved_percent: f64,
    /// Whole seconds that were looked at one by one.
    pub whole_seconds: u32,
    /// How far the worst of them was from what was asked for, in percent of a CPU; `None` before one is over.
    pub worst_second_off: Option<f64>,
    /// Seconds of CPU time it gave up on, because the CPU was taken.
    pub given_up_s: f64,
    /// Seconds that passed without it while it burned: another process ran, or the hypervisor ran another guest. The
    /// kernel of a guest counts the latter as CPU time of this process, so it can have had more than its share.
    pub stalled_s: f64,
}

/// A load that burns. Dropping it ends it. It stays on the thread that started it, with which it ends.
pub struct Load {
    percent: f64,
    children: Vec<Child>,
}

impl Load {
    /// Starts one process on each of `cpus` that burns `percent` (0 to 99) of each period, of 0.0005 to 1 s, and returns when all of them do.
    ///
    /// `program` is one that answers `bench child load`: `/proc/self/exe` from within nearfar. `is_simulated`: this is a guest in
    /// simulated time.
    ///
    /// # Errors
    /// When the program cannot be started, a process cannot be pinned to its CPU, or the share or period is none.
    pub fn start(
        program: &Path,
        cpus: &CpuSet,
        percent: f64,
        period_s: f64,
        is_simulated: bool,
    ) -> Result<Self, ChildError> {
        let spec = |cpu| LoadSpec::new(cpu, percent, period_s, is_simulated);
        let start = |cpu| Child::start(program, "load", &spec(cpu));
        let mut children = cpus.iter().map(start).collect::<Result<Vec<_>, _>>()?;
        for child in &mut children {
            let ReadyLine::<i32> { ready: _ } = child.listen(&AtomicBool::new(false))?;
        }
        Ok(Self { percent, children })
    }

    /// Has it burn nothing from the end of each CPU's period on, or burn again as if it had begun now.
    ///
    /// # Errors
    /// When a process cannot be reached, unless it has ended.
    pub fn set_held(&mut self, held: bool) -> Result<(), ChildError> {
        let word = if held { HOLD } else { GO };
        self.children.iter_mut().try_for_each(|it| it.say(word))
    }

    /// The processes that burn, by CPU.
    pub fn pids(&self) -> Vec<i32> {
        self.children.iter().map(Child::pid).collect()
    }

    /// Ends it and tells what it achieved.
    ///
    /// # Errors
    /// When one of the processes had ended before.
    pub fn stop(mut self) -> Result<LoadReport, ChildError> {
        // All at once, so that none goes on alone.
        self.children.iter_mut().for_each(Child::hang_up);
        let done = |child: &mut Child| {
            child
                .listen(&AtomicBool::new(false))
                .map(|DoneLine { done }| done)
        };
        let cpus = self
            .children
            .iter_mut()
            .map(done)
            .collect::<Result<Vec<LoadOnCpu>, _>>()?;
        Ok(LoadReport {
            percent: self.percent,
            cpus,
        })
    }
}

/// Words of the caller.
const HOLD: &str = "hold";
const GO: &str = "go";
/// Burning stops this close to what is owed: the clock itself takes about as long.
const CLOSE_ENOUGH_S: f64 = 1e-6;
/// A load of 0 % only waits; it looks up this often.
const IDLE_PERIOD_S: f64 = 1.0;
/// Two readings of the wall's clock one after the other are this far apart only when something else ran in between.
const STALL_S: f64 = 1e-3;

/// Does what `nearfar bench child load` is for: one load, described, held and stopped over standard input.
///
/// # Errors
/// When what standard input describes is no load, or the CPU cannot be had.
pub fn serve() -> Result<(), ServeError> {
    let mut caller = Conversation::open("load");
    let spec: LoadSpec = caller.spec()?;
    spec.check().map_err(ServeError::BadSpec)?;
    pin(spec.cpu)?;
    // Sleeps would otherwise last up to 50 us longer, and a share of 99 % leaves 100 us for them.
    let _ = set_current_timer_slack(NonZeroU64::new(1));
    let mut clocks = Clocks::start(spec.is_simulated);
    caller.answer(&ReadyLine {
        ready: i32::try_from(process::id()).unwrap_or(i32::MAX),
    })?;
    let done = burn(&spec, &mut caller, &mut clocks)?;
    caller.answer(&DoneLine { done })
}

fn pin(cpu: CpuId) -> Result<(), ServeError> {
    affinity::pin(cpu).map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => ServeError::BadSpec(format!(
            "there is no CPU {cpu} to load: it is not there, not online, or not in this process's cpuset"
        )),
        _ => ServeError::refused(format!("pinning a load to CPU {cpu}"), error),
    })
}

fn burn(
    spec: &LoadSpec,
    caller: &mut Conversation,
    clocks: &mut Clocks,
) -> Result<LoadOnCpu, ServeError> {
    let share = spec.percent / 100.0;
    let mut random = fastrand::Rng::with_seed(SEED ^ spec.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let (mut steering, mut seconds) = (Steering::new(share), Seconds::new(share));
    // The first period is of any length: a random phase.
    let mut length = spec.period_s * random.f64();
    loop {
        let (now, used) = (clocks.wall(), clocks.own());
        seconds.look(now, used);
        if share > 0.0 {
            clocks.live_through(steering.next(now, used, length));
        }
        let patience = if share > 0.0 {
            Duration::ZERO
        } else {
            Duration::from_secs_f64(IDLE_PERIOD_S)
        };
        length = spec.period_s * (0.9 + 0.2 * random.f64());
        if caller.called(patience) {
            if caller.line()?.as_deref() != Some(HOLD) || caller.line()?.as_deref() != Some(GO) {
                break;
            }
            let (now, used) = (clocks.wall(), clocks.own());
            steering.restart(now, used);
            seconds.from = (now, used);
            length *= random.f64();
        }
    }
    let (wall, used) = (clocks.wall(), clocks.own());
    let (whole_seconds, worst_off) = seconds.worst();
    Ok(LoadOnCpu {
        cpu: spec.cpu,
        pid: i32::try_from(process::id()).unwrap_or(i32::MAX),
        seconds: wall,
        achieved_percent: 100.0 * used / wall.max(f64::MIN_POSITIVE),
        whole_seconds,
        worst_second_off: worst_off.map(|off| 100.0 * off),
        given_up_s: steering.given_up(),
        stalled_s: clocks.stalled,
    })
}

/// Time since the start, on the wall and on the CPU.
struct Clocks {
    wall: f64,
    own: f64,
    /// Time that passed between readings while this process burned and did nothing else.
    stalled: f64,
    is_simulated: bool,
}

impl Clocks {
    fn start(is_simulated: bool) -> Self {
        Self {
            wall: seconds(ClockId::Monotonic),
            own: seconds(ClockId::ProcessCPUTime),
            stalled: 0.0,
            is_simulated,
        }
    }

    fn wall(&self) -> f64 {
        seconds(ClockId::Monotonic) - self.wall
    }

    fn own(&self) -> f64 {
        seconds(ClockId::ProcessCPUTime) - self.own
    }

    /// Burns what the period asks for, and sleeps until its end.
    fn live_through(&mut self, period: Period) {
        loop {
            let mut now = self.wall();
            let missing = period.burn_until_used - self.own();
            let until = period.end.min(now + missing);
            if missing <= CLOSE_ENOUGH_S || now >= period.end {
                break;
            }
            // The wall's clock is no system call: time is burned in this process and not in the kernel. A process that took
            // the CPU meanwhile shows in the other clock, and the loop goes round once more.
            while now < until {
                match self.is_simulated {
                    true => execute_nothing(BURST),
                    // It leaves the most to an SMT sibling.
                    false => std::hint::spin_loop(),
                }
                let before = std::mem::replace(&mut now, self.wall());
                self.stalled += Some(now - before)
                    .filter(|&gap| gap > STALL_S)
                    .unwrap_or(0.0);
            }
        }
        let end = self.wall + period.end;
        let end = Timespec {
            tv_sec: end as i64,
            tv_nsec: (end.fract() * 1e9) as i64,
        };
        while clock_nanosleep_absolute(ClockId::Monotonic, &end) == Err(rustix::io::Errno::INTR) {}
    }
}

/// A clock, in seconds. Years after a boot this still tells 100 ns apart.
fn seconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// CPU time that may be made up for after the CPU was taken, in seconds.
const MOST_DEBT_S: f64 = 0.05;

/// The steering of one process. All times are in seconds since its start.
struct Steering {
    /// The share of time it burns, 0 to 1.
    share: f64,
    /// The end of the period that is under way.
    end: f64,
    /// CPU time it should have had by then.
    owed: f64,
    /// CPU time it gave up on.
    given_up: f64,
}

/// A period: burn until that much CPU time is used, but no longer than to its end; then sleep until its end.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Period {
    end: f64,
    burn_until_used: f64,
}

impl Steering {
    fn new(share: f64) -> Self {
        Self {
            share,
            end: 0.0,
            owed: 0.0,
            given_up: 0.0,
        }
    }

    /// The next period of about `length`, when it is `now` and `used` CPU time has gone.
    fn next(&mut self, now: f64, used: f64, length: f64) -> Period {
        let before = self.end;
        self.end += length;
        if self.end <= now {
            // Whole periods went by without us.
            self.end = now + length;
        }
        self.owed += self.share * (self.end - before);
        let most = used + self.share * length + MOST_DEBT_S;
        self.given_up += (self.owed - most).max(0.0);
        self.owed = self.owed.min(most);
        Period {
            end: self.end,
            burn_until_used: self.owed,
        }
    }

    /// Forgets what it owes: `now` is as a start.
    fn restart(&mut self, now: f64, used: f64) {
        (self.end, self.owed) = (now, used);
    }

    /// CPU time it gave up on so far.
    fn given_up(&self) -> f64 {
        self.given_up
    }
}

/// Looks at each second by itself.
struct Seconds {
    share: f64,
    from: (f64, f64),
    whole: u32,
    worst_off: Option<f64>,
}

impl Seconds {
    fn new(share: f64) -> Self {
        Self {
            share,
            from: (0.0, 0.0),
            whole: 0,
            worst_off: None,
        }
    }

    /// At the end of a period: it is `now`, and `used` CPU time has gone.
    fn look(&mut self, now: f64, used: f64) {
        let (from, used_before) = self.from;
        if now - from < 1.0 {
            return;
        }
        let off = ((used - used_before) / (now - from) - self.share).abs();
        self.from = (now, used);
        self.whole += 1;
        self.worst_off = Some(self.worst_off.map_or(off, |worst| worst.max(off)));
    }

    /// How many there were, and how far the worst was off, 0 to 1.
    fn worst(&self) -> (u32, Option<f64>) {
        (self.whole, self.worst_off)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A process that wakes up late by up to `late` and burns too much by up to `over`, for `periods` periods.
    fn simulate(share: f64, periods: usize, late: f64, over: f64) -> (f64, f64, Steering, Seconds) {
        let (mut steering, mut seconds) = (Steering::new(share), Seconds::new(share));
        let (mut now, mut used) = (0.0f64, 0.0f64);
        for index in 0..periods {
            let wobble = (index * 7 % 11) as f64 / 11.0;
            let period = steering.next(now, used, 0.01 * (0.9 + 0.2 * wobble));
            let burn = (period.burn_until_used - used + over * wobble)
                .max(0.0)
                .min((period.end - now).max(0.0));
            used += burn;
            now = (now + burn).max(period.end) + late * wobble;
            seconds.look(now, used);
        }
        (now, used, steering, seconds)
    }

    proptest! {
        #[test]
        fn late_wake_ups_and_overlong_burning_do_not_add_up(percent in 0u32..=95, late in 0.0..1e-4, over in 0.0..1e-4) {
            let share = f64::from(percent) / 100.0;
            let over = if percent == 0 { 0.0 } else { over };
            let (now, used, steering, seconds) = simulate(share, 2000, late, over);
            prop_assert!((used / now - share).abs() < 0.001, "{} instead of {}", used / now, share);
            let (whole, worst) = seconds.worst();
            prop_assert!(whole >= 17 && worst.unwrap() < 0.005, "{} seconds, {:?}", whole, worst);
            prop_assert_eq!(steering.given_up(), 0.0);
        }
    }

    #[test]
    fn what_a_taken_cpu_cost_is_made_up_for_in_part_only() {
        let mut steering = Steering::new(0.6);
        let period = steering.next(0.0, 0.0, 0.01);
        assert_eq!(
            period,
            Period {
                end: 0.01,
                burn_until_used: 0.006
            }
        );
        // It slept at 10 ms and got the CPU again after two seconds.
        let period = steering.next(2.0, 0.006, 0.01);
        assert_eq!(period.end, 2.01);
        assert!(
            (period.burn_until_used - (0.006 + 0.006 + MOST_DEBT_S)).abs() < 1e-9,
            "{period:?}"
        );
        assert!(
            (steering.given_up() + period.burn_until_used - 0.6 * 2.01).abs() < 1e-9,
            "nothing is lost sight of"
        );
    }

    #[test]
    fn a_short_theft_is_made_up_for_in_full() {
        let mut steering = Steering::new(0.6);
        steering.next(0.0, 0.0, 0.01);
        let period = steering.next(0.05, 0.006, 0.01);
        assert!((period.burn_until_used - 0.6 * period.end).abs() < 1e-9);
        assert_eq!(steering.given_up(), 0.0);
    }

    #[test]
    fn after_a_hold_nothing_is_made_up_for() {
        let mut steering = Steering::new(0.6);
        steering.next(0.0, 0.0, 0.01);
        steering.restart(5.0, 0.006);
        let period = steering.next(5.0, 0.006, 0.01);
        assert!((period.end - 5.01).abs() < 1e-9 && (period.burn_until_used - 0.012).abs() < 1e-9);
        assert_eq!(steering.given_up(), 0.0);
    }

    #[test]
    fn the_worst_second_is_remembered() {
        let mut seconds = Seconds::new(0.5);
        assert_eq!(seconds.worst(), (0, None));
        for (now, used) in [(0.5, 0.25), (1.0, 0.5), (2.0, 1.1), (3.0, 1.59)] {
            seconds.look(now, used);
        }
        let (whole, worst) = seconds.worst();
        assert_eq!(whole, 3);
        assert!((worst.unwrap() - 0.1).abs() < 1e-9);
    }
}

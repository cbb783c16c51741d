//! The child: burns its share until its caller hangs up or ends.

use std::num::NonZeroU64;
use std::process;
use std::time::Duration;

use nearfar_machine::CpuId;
use rustix::thread::{ClockId, clock_nanosleep_absolute, set_current_timer_slack};
use rustix::time::{Timespec, clock_gettime};

use super::report::{LoadOnCpu, LoadSpec};
use super::steering::{Period, Seconds, Steering};
use crate::child::{Conversation, DoneLine, ReadyLine, ServeError};
use crate::sampling::SEED;
use nearfar_proc::affinity;

/// Burning stops this close to what is owed: the clock itself takes about as long.
const CLOSE_ENOUGH_S: f64 = 1e-6;
/// A load of 0 % only waits; it looks up this often.
const IDLE_PERIOD_S: f64 = 1.0;
/// Two readings of the wall's clock one after the other are this far apart only when something else ran in between.
const STALL_S: f64 = 1e-3;

/// Does what `nearfar bench child load` is for: one load, described and stopped over standard input.
///
/// # Errors
/// When what standard input describes is no load, or the CPU cannot be had.
pub fn serve() -> Result<(), ServeError> {
    let mut caller = Conversation::open("load");
    let spec: LoadSpec = caller.spec()?;
    spec.check()
        .map_err(|error| ServeError::BadSpec(error.to_string()))?;
    pin(spec.cpu)?;
    // Sleeps would otherwise last up to 50 us longer, and a share of 99 % leaves 100 us for them.
    let _ = set_current_timer_slack(NonZeroU64::new(1));
    let mut clocks = Clocks::start();
    caller.answer(&ReadyLine {
        ready: i32::try_from(process::id()).unwrap_or(i32::MAX),
    })?;
    let done = burn(&spec, &caller, &mut clocks);
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

fn burn(spec: &LoadSpec, caller: &Conversation, clocks: &mut Clocks) -> LoadOnCpu {
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
        if caller.called(patience) {
            break;
        }
        length = spec.period_s * (0.9 + 0.2 * random.f64());
    }
    let (wall, used) = (clocks.wall(), clocks.own());
    let (whole_seconds, worst_off) = seconds.worst();
    LoadOnCpu {
        cpu: spec.cpu,
        pid: i32::try_from(process::id()).unwrap_or(i32::MAX),
        seconds: wall,
        achieved_percent: 100.0 * used / wall.max(f64::MIN_POSITIVE),
        whole_seconds,
        worst_second_off: worst_off.map(|off| 100.0 * off),
        given_up_s: steering.given_up(),
        stalled_s: clocks.stalled,
    }
}

/// Time since the start, on the wall and on the CPU.
struct Clocks {
    wall: f64,
    own: f64,
    /// Time that passed between readings while this process burned and did nothing else.
    stalled: f64,
}

impl Clocks {
    fn start() -> Self {
        Self {
            wall: seconds(ClockId::Monotonic),
            own: seconds(ClockId::ProcessCPUTime),
            stalled: 0.0,
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
                std::hint::spin_loop();
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

//! How long CPUs were idle: whether there is room on the preferred node.
//!
//! ```text
//! /proc/stat    cpu3 4705 356 584 367 12 ...      user nice system idle iowait, in ticks of 10 ms
//! ```

use std::collections::BTreeMap;
use std::time::Instant;

use nearfar_machine::{CpuId, CpuSet};
use nearfar_proc::cpu_times::{self, StatFile};

/// Asked again and again, how long CPUs were idle meanwhile.
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
    use super::*;

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

//! What else the machine did while it was measured.

use std::collections::BTreeMap;
use std::time::Duration;

use nearfar_machine::{CpuId, CpuSet, Machine};
use nearfar_proc::cpu_times::{self, CpuTimes, StatFile};
use rustix::time::{ClockId, clock_gettime};

use crate::warning::Warning;

/// Stolen time below this many percent is what any guest sees.
const STOLEN_PERCENT: f64 = 1.0;

/// Other tasks' use of this much of one CPU is what any system shows.
const OTHER_LOAD_PERCENT: f64 = 25.0;

/// What the CPUs have done since boot, from `/proc/stat` (proc_stat(5)), and this process among them.
#[derive(Debug, PartialEq)]
pub(crate) struct Ticks {
    cpus: BTreeMap<CpuId, CpuTimes>,
    /// Seconds of CPU time this process has used.
    own_s: f64,
}

impl Ticks {
    /// Reads them; none where the file cannot be read.
    pub(crate) fn now() -> Self {
        Self::parse(
            &StatFile::default().read().unwrap_or_default(),
            cpu_seconds(libc::RUSAGE_SELF),
        )
    }

    fn parse(content: &[u8], own_s: f64) -> Self {
        let cpus = cpu_times::parse(content).filter(|(_, times)| times.stolen.is_some());
        Self {
            cpus: cpus.collect(),
            own_s,
        }
    }

    /// Seconds stolen from these CPUs since `before`, and all their time since then; `None` where the kernel does not count it.
    pub(crate) fn stolen_seconds_since(&self, before: &Self, cpus: &CpuSet) -> Option<(f64, f64)> {
        let ticks = |ticks: u64| ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
        let both = cpus
            .iter()
            .filter_map(|cpu| Some((self.cpus.get(&cpu)?, before.cpus.get(&cpu)?)));
        let since =
            both.map(|(now, then)| (stolen(now, then), now.all().saturating_sub(then.all())));
        since
            .map(|(stolen, all)| (ticks(stolen), ticks(all)))
            .reduce(|sum, cpu| (sum.0 + cpu.0, sum.1 + cpu.1))
    }

    /// A warning when one of these CPUs lost more than a percent of its time since `before`.
    pub(crate) fn stolen_since(
        &self,
        before: &Self,
        cpus: impl IntoIterator<Item = CpuId>,
    ) -> Option<Warning> {
        let shares = cpus.into_iter().filter_map(|cpu| {
            let (now, then) = (self.cpus.get(&cpu)?, before.cpus.get(&cpu)?);
            let (stolen, all) = (stolen(now, then), now.all().saturating_sub(then.all()));
            Some((cpu, 100.0 * stolen as f64 / all.max(1) as f64))
        });
        let (cpu, percent) = shares.max_by(|a, b| a.1.total_cmp(&b.1))?;
        (percent >= STOLEN_PERCENT).then_some(Warning::StolenTime { cpu, percent })
    }

    /// A warning when other processes used more than a quarter of a CPU since `before`.
    fn other_load_since(&self, before: &Self, ticks_per_second: f64) -> Option<Warning> {
        let since = |of: fn(&CpuTimes) -> u64| {
            let later = self
                .cpus
                .iter()
                .filter_map(|(cpu, now)| Some(of(now).saturating_sub(of(before.cpus.get(cpu)?))));
            later.fold(0u64, u64::saturating_add) as f64 / ticks_per_second
        };
        let elapsed = since(|cpu| cpu.all()) / self.cpus.len().max(1) as f64;
        let others = since(CpuTimes::busy) - (self.own_s - before.own_s);
        let percent = 100.0 * others / elapsed;
        // A tick counts as busy all that a CPU did in it, so each CPU may seem busy for one tick more than it was.
        let was_busy = |(cpu, now): (&CpuId, &CpuTimes)| {
            let before = before.cpus.get(cpu);
            before.is_some_and(|before| now.busy() > before.busy())
        };
        let busy_cpus = self.cpus.iter().filter(|it| was_busy(*it)).count();
        let tells = elapsed > 0.0 && others * ticks_per_second > busy_cpus.max(2) as f64;
        (tells && percent >= OTHER_LOAD_PERCENT).then_some(Warning::OtherLoad { percent })
    }

    /// Everything that happened since `before` and makes figures of these CPUs worth less.
    pub(crate) fn warnings_since(
        &self,
        before: &Self,
        cpus: impl IntoIterator<Item = CpuId>,
    ) -> Vec<Warning> {
        let others = self.other_load_since(before, rustix::param::clock_ticks_per_second() as f64);
        self.stolen_since(before, cpus)
            .into_iter()
            .chain(others)
            .collect()
    }
}

/// Ticks stolen between two readings; every CPU in [`Ticks`] counts them.
fn stolen(now: &CpuTimes, then: &CpuTimes) -> u64 {
    let ticks = |times: &CpuTimes| times.stolen.unwrap_or(0);
    ticks(now).saturating_sub(ticks(then))
}

/// Seconds of CPU time that `whom` (getrusage(2)) has used: this process with its ended threads, or its children that have ended.
pub(crate) fn cpu_seconds(whom: libc::c_int) -> f64 {
    let usage = usage_of(whom);
    seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime)
}

pub(crate) fn seconds_of(time: libc::timeval) -> f64 {
    time.tv_sec as f64 + time.tv_usec as f64 / 1e6
}

pub(crate) fn usage_of(whom: libc::c_int) -> libc::rusage {
    // SAFETY: rusage is a struct of integers, for which zeroes are a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills in the struct it is given; a refusal leaves it as it is.
    unsafe { libc::getrusage(whom, &mut usage) };
    usage
}

/// How long the calling thread has run so far. This clock is brought up to date when it is read, unlike the other accounts, which the
/// kernel keeps from tick to tick.
pub(crate) fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

/// Involuntary context switches of the calling thread so far.
pub(crate) fn switches() -> u64 {
    u64::try_from(usage_of(libc::RUSAGE_THREAD).ru_nivcsw).unwrap_or(0)
}

/// A warning when the governor keeps clocks low.
pub(crate) fn governor(machine: &Machine) -> Option<Warning> {
    let governor = machine
        .settings
        .governor
        .get()
        .filter(|governor| *governor == "powersave")?;
    Some(Warning::Governor {
        governor: governor.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &[u8] = b"cpu  10 0 0 90 0 0 0 0 0 0\ncpu0 10 0 0 90 0 0 0 0 0 0\ncpu1 0 0 0 100 0 0 0 0 0 0\nintr 5\n";
    const AFTER: &[u8] =
        b"cpu0 110 0 0 90 0 0 0 100 0 0\ncpu1 0 0 0 300 0 0 0 1 0 0\ncpu2 garbage\n";

    #[test]
    fn stolen_time_is_that_of_the_cpu_that_lost_most() {
        let (before, after) = (Ticks::parse(BEFORE, 0.0), Ticks::parse(AFTER, 0.0));
        let stolen = after.stolen_since(&before, [CpuId(0), CpuId(1), CpuId(9)]);
        assert_eq!(
            stolen,
            Some(Warning::StolenTime {
                cpu: CpuId(0),
                percent: 50.0
            })
        );
        assert_eq!(after.stolen_since(&before, [CpuId(1)]), None);
        assert_eq!(
            before.stolen_since(&after, [CpuId(0)]),
            None,
            "counters that run backwards"
        );
    }

    #[test]
    fn other_load_is_what_this_process_did_not_use() {
        let before = Ticks::parse(BEFORE, 1.0);
        // 100 busy ticks in 200 and 201 ticks of two CPUs: half of one CPU's time.
        let idle = Ticks::parse(AFTER, 2.0);
        assert_eq!(
            idle.other_load_since(&before, 100.0),
            None,
            "this process used that second"
        );
        let busy = Ticks::parse(AFTER, 1.0).other_load_since(&before, 100.0);
        assert!(
            matches!(busy, Some(Warning::OtherLoad { percent }) if (45.0..55.0).contains(&percent)),
            "{busy:?}"
        );
        assert_eq!(
            before.other_load_since(&before, 100.0),
            None,
            "no time has passed"
        );
    }

    #[test]
    fn a_tick_of_each_cpu_that_this_process_used_is_no_other_load() {
        // Eight CPUs that were busy for half of a tick, which counts as busy.
        let ticks = |[busy, idle]: [u32; 2], own_s| {
            let cpu = |cpu| format!("cpu{cpu} {busy} 0 0 {idle} 0 0 0 0 0 0\n");
            Ticks::parse((0..8).map(cpu).collect::<String>().as_bytes(), own_s)
        };
        let before = ticks([0, 0], 1.0);
        let since = |after: Ticks| after.other_load_since(&before, 100.0);
        let half = 8.0 * 0.005;
        assert_eq!(since(ticks([1, 0], 1.0 + half)), None);
        assert!(since(ticks([5, 5], 1.0 + half)).is_some());
    }
}

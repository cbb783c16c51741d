//! What else the machine did while it was measured.

use std::collections::BTreeMap;

use nearfar_machine::{CpuId, Machine};

use super::Warning;

/// Stolen time below this many percent is what any guest sees.
const STOLEN_PERCENT: f64 = 1.0;

/// Stolen ticks and all ticks of each CPU since boot, from `/proc/stat` (proc_stat(5)).
#[derive(Debug, PartialEq)]
pub(super) struct Ticks(BTreeMap<CpuId, (u64, u64)>);

impl Ticks {
    /// Reads them; none where the file cannot be read.
    pub(super) fn now() -> Self {
        Self::parse(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let cpus = text.lines().filter_map(|line| {
            let mut fields = line.split_whitespace();
            let cpu = CpuId(fields.next()?.strip_prefix("cpu")?.parse().ok()?);
            let ticks: Vec<u64> = fields.map_while(|field| field.parse().ok()).collect();
            // user nice system idle iowait irq softirq steal; guest time is already in user.
            let all = ticks.iter().take(8).fold(0u64, |sum, &ticks| sum.saturating_add(ticks));
            Some((cpu, (*ticks.get(7)?, all)))
        });
        Self(cpus.collect())
    }

    /// A warning when one of these CPUs lost more than a percent of its time since `before`.
    pub(super) fn stolen_since(&self, before: &Self, cpus: impl Iterator<Item = CpuId>) -> Option<Warning> {
        let shares = cpus.filter_map(|cpu| {
            let ((stolen, all), (stolen_before, all_before)) = (self.0.get(&cpu)?, before.0.get(&cpu)?);
            let (stolen, all) = (stolen.saturating_sub(*stolen_before), all.saturating_sub(*all_before));
            Some((cpu, 100.0 * stolen as f64 / all.max(1) as f64))
        });
        let (cpu, percent) = shares.max_by(|a, b| a.1.total_cmp(&b.1))?;
        (percent >= STOLEN_PERCENT).then_some(Warning::StolenTime { cpu, percent })
    }
}

/// Involuntary context switches of the calling thread so far.
pub(super) fn switches() -> u64 {
    // SAFETY: rusage is a struct of integers, for which zeroes are a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills in the struct it is given.
    let result = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    if result == 0 { u64::try_from(usage.ru_nivcsw).unwrap_or(0) } else { 0 }
}

/// A warning when the governor keeps clocks low.
pub(super) fn governor(machine: &Machine) -> Option<Warning> {
    let governor = machine.settings.governor.get().filter(|governor| *governor == "powersave")?;
    Some(Warning::Governor { governor: governor.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "cpu  10 0 0 90 0 0 0 0 0 0\ncpu0 10 0 0 90 0 0 0 0 0 0\ncpu1 0 0 0 100 0 0 0 0 0 0\nintr 5\n";
    const AFTER: &str = "cpu0 110 0 0 90 0 0 0 100 0 0\ncpu1 0 0 0 300 0 0 0 1 0 0\ncpu2 garbage\n";

    #[test]
    fn stolen_time_is_that_of_the_cpu_that_lost_most() {
        let (before, after) = (Ticks::parse(BEFORE), Ticks::parse(AFTER));
        let stolen = after.stolen_since(&before, [CpuId(0), CpuId(1), CpuId(9)].into_iter());
        assert_eq!(stolen, Some(Warning::StolenTime { cpu: CpuId(0), percent: 50.0 }));
        assert_eq!(after.stolen_since(&before, [CpuId(1)].into_iter()), None);
        assert_eq!(before.stolen_since(&after, [CpuId(0)].into_iter()), None, "counters that run backwards");
    }
}

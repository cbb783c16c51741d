//! The CPU time of a process by CPU, of the last seconds: a single look sees a thread on one CPU only.

use std::collections::BTreeMap;

use nearfar_machine::{CpuId, CpuTime};

/// After this long, CPU time counts half. Of a thread that changes its node all the time, one look of a second was up to 23 points
/// wrong, and 30 looks were 4.4.
const HALF_LIFE_S: f64 = 10.0;
/// Less is forgotten, in milliseconds.
const MIN_MS: f64 = 1.0;

#[derive(Clone, Debug, Default)]
pub(crate) struct RecentTime {
    ms: BTreeMap<CpuId, f64>,
}

impl RecentTime {
    /// `seconds` later: what was counted fades.
    pub fn fade(&mut self, seconds: f64) {
        let factor = 0.5f64.powf(seconds / HALF_LIFE_S);
        self.ms.retain(|_, ms| {
            *ms *= factor;
            *ms >= MIN_MS
        });
    }

    pub fn add(&mut self, cpu: CpuId, ms: u64) {
        *self.ms.entry(cpu).or_default() += ms as f64;
    }

    /// Rounded; empty where nothing ran.
    pub fn times(&self) -> Vec<CpuTime> {
        let time = |(&cpu, &ms): (&CpuId, &f64)| CpuTime {
            cpu,
            ms: ms.round() as u64,
        };
        self.ms.iter().map(time).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_half_after_the_half_life_and_is_forgotten_in_the_end() {
        let mut recent = RecentTime::default();
        recent.add(CpuId(3), 400);
        recent.fade(HALF_LIFE_S);
        recent.add(CpuId(1), 100);
        let ms = |recent: &RecentTime| -> Vec<(u32, u64)> {
            let times = recent.times();
            times.iter().map(|it| (it.cpu.0, it.ms)).collect()
        };
        assert_eq!(ms(&recent), [(1, 100), (3, 200)]);
        recent.fade(10.0 * HALF_LIFE_S);
        assert_eq!(ms(&recent), []);
    }
}

//! What the kernel counted around the timed part.

use std::fs;

use nearfar_machine::{CpuSet, Known};
use nearfar_proc::{cgroup, tasks};

use super::{Faults, SampleWarning, Switches};
use crate::conditions::{self, Ticks};

const CPUS: &str = "/sys/devices/system/cpu";
/// Stolen time below this many percent is what any guest sees.
const STOLEN_PERCENT: f64 = 1.0;
/// Involuntary switches above this many a second are more than a competing task explains, which takes turns of about a
/// millisecond at the shortest (kernel/sched/fair.c, sysctl_sched_base_slice).
const SWITCHES_PER_SECOND: f64 = 2_000.0;

/// What has been counted by some moment. What takes long to read is read farther from the timed part.
pub(super) struct Counters {
    ticks: Ticks,
    online: Option<CpuSet>,
    throttled: Option<u64>,
    quota: Option<u64>,
    /// Seconds on a CPU.
    on_cpu_s: f64,
    /// Nanoseconds waiting for one.
    waited_ns: Option<u64>,
    usage: libc::rusage,
}

/// What happened between two moments.
pub(super) struct Difference {
    pub(super) on_cpu_s: f64,
    pub(super) waited_s: Known<f64>,
    pub(super) faults: Faults,
    pub(super) switches: Switches,
    pub(super) stolen_s: Known<f64>,
    pub(super) throttled: Known<u64>,
    /// Stolen, of all time of the CPUs.
    stolen_percent: f64,
    quota: u64,
    online_changed: CpuSet,
}

impl Counters {
    /// Before the timed part: the process' own counters last.
    pub(super) fn before(cpus: &CpuSet) -> Self {
        let (ticks, online, throttled, quota) = (Ticks::now(), online(), throttled(cpus), quota());
        let (waited_ns, on_cpu_s) = (waited_ns(), conditions::thread_time().as_secs_f64());
        let usage = conditions::usage_of(libc::RUSAGE_THREAD);
        Self {
            ticks,
            online,
            throttled,
            quota,
            waited_ns,
            on_cpu_s,
            usage,
        }
    }

    /// After the timed part: the process' own counters first.
    pub(super) fn after(cpus: &CpuSet) -> Self {
        let usage = conditions::usage_of(libc::RUSAGE_THREAD);
        let (on_cpu_s, waited_ns) = (conditions::thread_time().as_secs_f64(), waited_ns());
        let (ticks, online, throttled, quota) = (Ticks::now(), online(), throttled(cpus), quota());
        Self {
            ticks,
            online,
            throttled,
            quota,
            waited_ns,
            on_cpu_s,
            usage,
        }
    }

    /// What happened since `before` on these CPUs.
    pub(super) fn since(&self, before: &Self, cpus: &CpuSet) -> Difference {
        let usage = |of: fn(&libc::rusage) -> libc::c_long| {
            u64::try_from(of(&self.usage).saturating_sub(of(&before.usage))).unwrap_or(0)
        };
        let stolen = self.ticks.stolen_seconds_since(&before.ticks, cpus);
        let nothing = CpuSet::new();
        let (then, now) = (
            before.online.as_ref().unwrap_or(&nothing),
            self.online.as_ref().unwrap_or(&nothing),
        );
        Difference {
            on_cpu_s: self.on_cpu_s - before.on_cpu_s,
            waited_s: match (self.waited_ns, before.waited_ns) {
                (Some(after), Some(before)) => {
                    Known::Yes(after.saturating_sub(before) as f64 / 1e9)
                }
                _ => Known::no(
                    "/proc/thread-self/schedstat cannot be read (the kernel needs CONFIG_SCHED_INFO)",
                ),
            },
            faults: Faults {
                minor: usage(|usage| usage.ru_minflt),
                major: usage(|usage| usage.ru_majflt),
            },
            switches: Switches {
                voluntary: usage(|usage| usage.ru_nvcsw),
                involuntary: usage(|usage| usage.ru_nivcsw),
            },
            stolen_s: stolen.map_or_else(
                || Known::no("/proc/stat does not count stolen time"),
                |(s, _)| Known::Yes(s),
            ),
            throttled: match (self.throttled, before.throttled) {
                (Some(after), Some(before)) => Known::Yes(after.saturating_sub(before)),
                _ => Known::no("sysfs has no thermal_throttle counters for these CPUs"),
            },
            stolen_percent: stolen.map_or(0.0, |(stolen, all)| {
                100.0 * stolen / all.max(f64::MIN_POSITIVE)
            }),
            quota: self
                .quota
                .zip(before.quota)
                .map_or(0, |(after, before)| after.saturating_sub(before)),
            online_changed: then.difference(now).union(&now.difference(then)),
        }
    }
}

impl Difference {
    /// What of it spoils a run of `seconds`. With `hint_faults`, NUMA balancing takes pages away to see who wants them:
    /// minor faults are then its work, and part of what is measured.
    pub(super) fn warnings(&self, seconds: f64, hint_faults: bool) -> Vec<SampleWarning> {
        let mut warnings = Vec::new();
        if self.stolen_percent >= STOLEN_PERCENT {
            warnings.push(SampleWarning::Stolen {
                percent: self.stolen_percent,
            });
        }
        if let Some(&times) = self.throttled.get().filter(|&&times| times > 0) {
            warnings.push(SampleWarning::Throttled { times });
        }
        if self.quota > 0 {
            warnings.push(SampleWarning::Quota { times: self.quota });
        }
        let Faults { minor, major } = self.faults;
        if major > 0 || (minor > 0 && !hint_faults) {
            warnings.push(SampleWarning::Faults { minor, major });
        }
        if self.switches.voluntary > 0 {
            warnings.push(SampleWarning::Waited {
                times: self.switches.voluntary,
            });
        }
        let per_second = self.switches.involuntary as f64 / seconds.max(f64::MIN_POSITIVE);
        // A few switches in a run of a moment say nothing.
        if self.switches.involuntary > 100 && per_second > SWITCHES_PER_SECOND {
            warnings.push(SampleWarning::Switched { per_second });
        }
        if !self.online_changed.is_empty() {
            warnings.push(SampleWarning::Offline {
                cpus: self.online_changed.clone(),
            });
        }
        warnings
    }
}

fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The CPUs that are online.
fn online() -> Option<CpuSet> {
    fs::read_to_string(format!("{CPUS}/online"))
        .ok()?
        .trim()
        .parse()
        .ok()
}

/// How often these CPUs and their packages throttled for heat (arch/x86/kernel/cpu/mce/therm_throt.c); `None` where no
/// CPU counts that. A package counts once for each of its CPUs: only the difference to 0 matters.
fn throttled(cpus: &CpuSet) -> Option<u64> {
    let counts = cpus.iter().flat_map(|cpu| {
        ["core", "package"].map(|part| {
            number(&format!(
                "{CPUS}/cpu{cpu}/thermal_throttle/{part}_throttle_count"
            ))
        })
    });
    counts.flatten().reduce(u64::saturating_add)
}

/// How often the CPU quotas of this process' control groups throttled tasks in them (cgroup-v2.rst, `cpu.stat`).
fn quota() -> Option<u64> {
    let groups = tasks::groups(std::process::id().cast_signed()).ok()?;
    let group = cgroup::groups(&groups).find(|group| group.version_2)?;
    let group = group.path.display();
    let stat = fs::read_to_string(format!("/sys/fs/cgroup{group}/cpu.stat")).ok()?;
    stat.lines()
        .find_map(|line| line.strip_prefix("nr_throttled "))?
        .trim()
        .parse()
        .ok()
}

/// Nanoseconds this thread waited to run.
fn waited_ns() -> Option<u64> {
    Some(tasks::own_run_time().ok()?.wait_ns)
}

#[cfg(test)]
mod tests {
    use nearfar_machine::CpuId;

    use super::*;

    fn quiet() -> Difference {
        Difference {
            on_cpu_s: 1.0,
            waited_s: Known::Yes(0.0),
            faults: Faults::default(),
            switches: Switches::default(),
            stolen_s: Known::Yes(0.0),
            throttled: Known::Yes(0),
            stolen_percent: 0.0,
            quota: 0,
            online_changed: CpuSet::new(),
        }
    }

    #[test]
    fn a_quiet_run_leaves_no_doubt_and_each_disturbance_leaves_its_own() {
        assert_eq!(quiet().warnings(1.0, false), []);
        let busy = Switches {
            voluntary: 0,
            involuntary: 900,
        };
        assert_eq!(
            Difference {
                switches: busy,
                ..quiet()
            }
            .warnings(1.0, false),
            [],
            "a load explains that"
        );
        let disturbed = Difference {
            throttled: Known::Yes(2),
            stolen_percent: 3.0,
            quota: 1,
            switches: Switches {
                voluntary: 1,
                involuntary: 9000,
            },
            online_changed: CpuSet::single(CpuId(3)),
            faults: Faults { minor: 0, major: 1 },
            ..quiet()
        };
        let warnings = disturbed.warnings(1.0, true);
        assert_eq!(warnings.len(), 7, "{warnings:?}");
        assert!(
            warnings
                .iter()
                .all(|warning| warning.to_string().len() > 30)
        );
    }

    #[test]
    fn minor_faults_are_doubtful_unless_numa_balancing_makes_them() {
        let hints = Difference {
            faults: Faults { minor: 5, major: 0 },
            ..quiet()
        };
        assert_eq!(hints.warnings(1.0, true), []);
        assert_eq!(
            hints.warnings(1.0, false),
            [SampleWarning::Faults { minor: 5, major: 0 }]
        );
    }

    #[test]
    fn this_thread_is_seen_to_run() {
        let cpus = nearfar_proc::affinity::get(0).unwrap();
        let before = Counters::before(&cpus);
        let start = std::time::Instant::now();
        while start.elapsed().as_millis() < 20 {}
        let difference = Counters::after(&cpus).since(&before, &cpus);
        // On a busy host it had the CPU for a part of that.
        assert!(difference.on_cpu_s > 0.0);
        assert_eq!(difference.online_changed, CpuSet::new());
    }
}

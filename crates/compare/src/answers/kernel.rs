//! What changed of what two kernels did while the command ran on each, and what of it may be the cause.
//!
//! ```text
//! runs of A: KernelActivity ─┐  what is at least 1/20 of the largest of its kind in 1/3 of the runs
//!                            ├──────────────────────────────────────────────────────────────► changes, judged together
//! runs of B: KernelActivity ─┘                                                                     └─► the likely cause
//! ```
//!
//! A cause is where time went that the command waited, for locks or for lines: more where it became worse, and by more than the run time
//! did, as a longer run has more of what comes at a rate. Only where no wait changed so it is what is counted, and only what changed by a
//! larger factor than the answers: of what is work, more work has more. The CPU time says that the kernel worked, not at what.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_trace::kernel::{Activity, ActivityKind};
use serde::Serialize;
use serde_json::json;

use super::{AnswerValue, CommandRun, judge, runs_needed};

/// What is less than this share of the largest of its kind, in more than two thirds of all runs, is not compared: each number more
/// takes more runs.
const SMALLEST_SHARE: f64 = 0.05;
/// The same of what is less than this share of the run time.
const SMALLEST_TIME: f64 = 0.001;
/// The counters that are compared, whatever their size, by how they begin: they count different things.
const COUNTERS: [&str; 9] = [
    "numa_",
    "pgmigrate_",
    "pgpromote_",
    "pgdemote_",
    "pgfault",
    "pgmajfault",
    "thp_fault_",
    "thp_migration_",
    "nr_tlb_",
];

/// One thing that both kernels did.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct KernelChange {
    pub kind: ActivityKind,
    /// By its name: seconds or, where [`Self::is_time`] is not set, how often; 0 in a run that did not have it.
    #[serde(flatten)]
    pub value: AnswerValue,
    /// Whether it is seconds.
    pub is_time: bool,
}

/// What changed of what the kernels did.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct KernelComparison {
    /// Clear ones first; then by kind, and the largest change of a kind first.
    pub changes: Vec<KernelChange>,
    /// How many were compared.
    pub compared_numbers: usize,
    /// The least number of runs of each side that can give a significant change of one of so many.
    pub runs_needed: usize,
    /// The clear change that may be the cause of what differs in the answers; `None` where nothing of that is clear, or this is not.
    pub likely_cause: Option<KernelChange>,
    /// Kinds that could not be gathered in some run, and why.
    pub unknown_reasons: BTreeMap<ActivityKind, String>,
}

impl KernelChange {
    /// Whether it is more than chance.
    pub fn is_clear(&self) -> bool {
        let change = self.value.change.as_ref();
        change.is_some_and(|it| it.compared.verdict.is_difference())
    }

    /// Those of A and B.
    fn medians(&self) -> [f64; 2] {
        let change = self.value.change.as_ref();
        change.map_or([0.0; 2], |it| [it.a_median, it.b_median])
    }

    /// How much more it is on side B than A has in as much time.
    fn increase(&self, time_ratio: f64) -> f64 {
        let [a, b] = self.medians();
        b - time_ratio * a
    }

    /// Of a count, the larger side divided by the smaller one; one more of each, so that few against none are no large factor.
    fn factor(&self) -> f64 {
        let [a, b] = self.medians();
        larger_ratio(a + 1.0, b + 1.0)
    }
}

/// The larger divided by the smaller one.
fn larger_ratio(a: f64, b: f64) -> f64 {
    match a == b {
        true => 1.0,
        false => a.max(b) / a.min(b),
    }
}

/// A clear difference of what two sides answered, whose cause is wanted.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Effect {
    /// Whether B is the worse side; `None` where one number is better and another one worse.
    is_worse: Option<bool>,
    /// B's run time divided by A's.
    time_ratio: f64,
    /// The largest factor between the sides of what differs, and of the run time.
    factor: f64,
}

impl Effect {
    /// Of the values that decide; `None` where none differs clearly.
    pub(super) fn of<'a>(
        decided: impl Iterator<Item = &'a AnswerValue>,
        elapsed: &AnswerValue,
    ) -> Option<Self> {
        let decided = decided.filter_map(|it| Some((it.is_worse()?, it.change.as_ref()?)));
        let (worse, changes): (BTreeSet<bool>, Vec<_>) = decided.unzip();
        let time = elapsed.change.as_ref();
        let time = time.filter(|it| it.a_median > 0.0 && it.b_median > 0.0);
        let factors = changes.into_iter().chain(time);
        let factors = factors.map(|it| larger_ratio(it.a_median, it.b_median));
        Some(Self {
            is_worse: Some(worse.first()? == &true).filter(|_| worse.len() == 1),
            time_ratio: time.map_or(1.0, |it| it.b_median / it.a_median),
            factor: factors.filter(|it| it.is_finite()).fold(1.0, f64::max),
        })
    }
}

impl KernelComparison {
    /// Of the runs of both sides, as [`AnswerComparison::of`](super::AnswerComparison::of). `None` where a run was not traced.
    pub(super) fn of(
        [a, b]: [&[CommandRun]; 2],
        is_until_clear: bool,
        effect: Option<Effect>,
    ) -> Option<Self> {
        let runs = a.iter().chain(b).map(|run| run.kernel.as_ref());
        let runs: Vec<_> = runs.collect::<Option<_>>()?;
        let mut unknown_reasons = BTreeMap::new();
        for (kind, reason) in runs.iter().flat_map(|it| &it.unknown_reasons) {
            unknown_reasons
                .entry(*kind)
                .or_insert_with(|| reason.clone());
        }
        // Whatever the sides are: to choose by how they differ would raise false alarms.
        let mut large_in = BTreeMap::<(ActivityKind, &str, bool), usize>::new();
        for (kernel, run) in runs.iter().zip(a.iter().chain(b)) {
            for kind in ActivityKind::ALL {
                // What one side did not gather would differ from nothing.
                if unknown_reasons.contains_key(&kind) {
                    continue;
                }
                let amounts = kernel.of_kind(kind).map(Activity::amount);
                let least = SMALLEST_SHARE * amounts.fold(0.0, f64::max);
                let is_large = |it: &&Activity| match (kind, it.time_s) {
                    (ActivityKind::Counters, _) => {
                        COUNTERS.iter().any(|name| it.name.starts_with(name))
                    }
                    (_, Some(time_s)) => time_s >= least.max(SMALLEST_TIME * run.elapsed_s),
                    (_, None) => it.amount() >= least,
                };
                for it in kernel.of_kind(kind).filter(is_large) {
                    let key = (kind, it.name.as_str(), it.time_s.is_some());
                    *large_in.entry(key).or_default() += 1;
                }
            }
        }
        large_in.retain(|_, count| *count * 3 >= runs.len());
        let named = large_in.into_keys();
        // Looked up once a run: there are hundreds of each.
        let by_name = runs.iter().map(|run| {
            let amounts = run.activities.iter();
            let amounts = amounts.map(|it| ((it.kind, it.name.as_str()), it.amount()));
            amounts.collect::<BTreeMap<_, _>>()
        });
        let by_name = Vec::from_iter(by_name);
        let (of_a, of_b) = by_name.split_at(a.len());
        let of_name = |(kind, name, is_time): (ActivityKind, &str, bool)| {
            let of = |side: &[BTreeMap<_, f64>]| {
                let numbers = side
                    .iter()
                    .map(|run| run.get(&(kind, name)).copied().unwrap_or(0.0));
                numbers.map(|number| json!(number)).collect()
            };
            KernelChange {
                kind,
                value: AnswerValue::new(name.to_owned(), of(of_a), of(of_b)),
                is_time,
            }
        };
        let mut changes = Vec::from_iter(named.map(of_name));
        judge(changes.iter_mut().map(|it| &mut it.value), is_until_clear);
        let compared = changes.iter().filter(|it| it.value.is_compared());
        let compared_numbers = compared.count();
        changes.sort_by(|a, b| {
            let by_kind = a
                .kind
                .cmp(&b.kind)
                .then(b.increase(1.0).abs().total_cmp(&a.increase(1.0).abs()));
            b.is_clear().cmp(&a.is_clear()).then(by_kind)
        });
        Some(Self {
            likely_cause: effect.and_then(|effect| cause(&changes, effect)).cloned(),
            changes,
            compared_numbers,
            runs_needed: runs_needed(compared_numbers, is_until_clear),
            unknown_reasons,
        })
    }
}

/// The clear change of the wait that grew most where B is worse, or else shrank most, each by more than the run time did; where there is
/// none, the clear change by the largest factor of what the scheduler, disks and interrupts did.
fn cause(changes: &[KernelChange], effect: Effect) -> Option<&KernelChange> {
    let clear = || changes.iter().filter(|it| it.is_clear());
    let sign = effect
        .is_worse
        .map(|is_worse| if is_worse { 1.0 } else { -1.0 });
    let waited = sign.and_then(|sign| {
        let waits = clear().filter(|it| it.is_time && it.kind != ActivityKind::CpuTime);
        let same_way = waits.filter(|it| {
            sign * it.increase(1.0) > 0.0 && sign * it.increase(effect.time_ratio) > 0.0
        });
        same_way.max_by(|a, b| {
            let [a, b] = [a, b].map(|it| sign * it.increase(effect.time_ratio));
            a.total_cmp(&b)
        })
    });
    waited.or_else(|| {
        let counted = clear().filter(|it| !it.is_time && it.kind != ActivityKind::Counters);
        let beyond = counted.filter(|it| it.factor() > LEAST_FACTOR * effect.factor);
        beyond.max_by(|a, b| {
            let factors = a.factor().total_cmp(&b.factor());
            factors.then(a.increase(1.0).abs().total_cmp(&b.increase(1.0).abs()))
        })
    })
}

/// How much larger the factor of a count must be than that of what it may be the cause of.
const LEAST_FACTOR: f64 = 1.5;

#[cfg(test)]
mod tests {
    use nearfar_trace::kernel::KernelActivity;

    use super::*;
    use crate::answers::{AnswerComparison, CommandSide, ValueSelection};

    const ROUNDS: usize = 12;

    fn lock(name: &str, time_s: f64) -> Activity {
        Activity {
            kind: ActivityKind::SleepingLocks,
            name: name.to_owned(),
            count: Some(7),
            time_s: Some(time_s),
        }
    }

    fn counted(kind: ActivityKind, name: &str, count: u64) -> Activity {
        Activity {
            kind,
            name: name.to_owned(),
            count: Some(count),
            time_s: None,
        }
    }

    /// Runs of so many seconds, by what the kernel did in each.
    fn side(seconds: f64, did: impl Fn(f64) -> Vec<Activity>) -> CommandSide {
        let run = |round: usize| {
            let noise = 1.0 + 0.01 * (round * 7 % 10) as f64;
            CommandRun {
                elapsed_s: seconds * noise,
                exit_code: 0,
                stdout: String::new(),
                stderr: String::new(),
                kernel: Some(KernelActivity {
                    samples: 0,
                    activities: did(noise),
                    unknown_reasons: BTreeMap::new(),
                }),
            }
        };
        CommandSide {
            settings: BTreeMap::new(),
            emulation: None,
            runs: (0..ROUNDS).map(run).collect(),
        }
    }

    fn compared(a: CommandSide, b: CommandSide) -> KernelComparison {
        let found = AnswerComparison::of(Vec::new(), a, b, &ValueSelection::default(), false);
        found.kernel.unwrap()
    }

    fn cause(found: &KernelComparison) -> Option<&str> {
        found.likely_cause.as_ref().map(|it| it.value.path.as_str())
    }

    #[test]
    fn the_cause_is_what_was_waited_for_and_not_what_came_more_often() {
        let did = |lru: f64| {
            move |noise: f64| {
                vec![
                    lock("spinlock of lru", lru * noise),
                    lock("mutex of other", 0.5 * noise),
                    counted(ActivityKind::Interrupts, "TLB, node 0", (1e6 * lru) as u64),
                ]
            }
        };
        let found = compared(side(1.0, did(0.2)), side(2.0, did(1.3)));
        assert_eq!(cause(&found), Some("spinlock of lru"));
        let names = found.changes.iter().map(|it| it.value.path.as_str());
        assert_eq!(
            Vec::from_iter(names),
            ["spinlock of lru", "TLB, node 0", "mutex of other"]
        );
        // Both sides ran equally long.
        let found = compared(side(1.0, did(0.2)), side(1.0, did(1.3)));
        assert_eq!(cause(&found), None);
        assert!(found.changes[0].is_clear());
    }

    #[test]
    fn a_wait_that_became_shorter_is_no_cause_of_a_longer_run() {
        let did = |longer: f64, shorter: f64| {
            move |noise: f64| {
                vec![
                    lock("longer", longer * noise),
                    lock("shorter", shorter * noise),
                ]
            }
        };
        let (a, b) = (side(1.0, did(0.2, 5.0)), side(2.0, did(1.0, 2.0)));
        assert_eq!(cause(&compared(a.clone(), b.clone())), Some("longer"));
        assert_eq!(cause(&compared(b, a)), Some("longer"), "which B takes away");
    }

    #[test]
    fn what_comes_at_a_rate_is_no_cause_of_a_longer_run() {
        let did = |ticks: u64| {
            move |noise: f64| {
                let ticks = (noise * ticks as f64) as u64;
                vec![counted(ActivityKind::Interrupts, "LOC, node 0", ticks)]
            }
        };
        let found = compared(side(1.0, did(1000)), side(2.0, did(2000)));
        assert_eq!(cause(&found), None);
        assert!(found.changes[0].is_clear());
    }

    #[test]
    fn where_no_wait_changed_the_cause_is_what_is_counted() {
        let did = |near: u64| {
            move |noise: f64| {
                vec![
                    lock("mutex of other", 0.5 * noise),
                    counted(ActivityKind::NvmeCommands, "nvme0, node 1", near),
                    counted(ActivityKind::Counters, "pgfault", 2 * near),
                ]
            }
        };
        let found = compared(side(1.0, did(100)), side(2.0, did(10_000)));
        assert_eq!(cause(&found), Some("nvme0, node 1"));
        let found = compared(side(1.0, did(100)), side(2.0, did(100)));
        assert_eq!(cause(&found), None);
    }

    #[test]
    fn a_wait_that_comes_at_a_rate_hides_no_count() {
        let did = |lines: f64, commands: u64| {
            move |noise: f64| {
                vec![
                    lock("at a rate", lines * noise),
                    counted(ActivityKind::NvmeCommands, "nvme0, node 1", commands),
                    counted(ActivityKind::Migrations, "cross node", commands / 5000),
                ]
            }
        };
        let found = compared(side(1.0, did(0.2, 100)), side(2.0, did(0.399, 10_000)));
        assert_eq!(cause(&found), Some("nvme0, node 1"));
    }

    #[test]
    fn small_ones_and_kinds_that_a_run_did_not_gather_are_not_compared() {
        let did = |small: f64| move |_: f64| vec![lock("large", 1.0), lock("small", small)];
        let mut b = side(2.0, did(0.04));
        let found = compared(side(1.0, did(0.001)), b.clone());
        assert_eq!(found.changes.len(), 1, "{found:?}");
        let kernel = b.runs[3].kernel.as_mut().unwrap();
        kernel.activities.clear();
        kernel
            .unknown_reasons
            .insert(ActivityKind::SleepingLocks, "hidden".to_owned());
        let found = compared(side(1.0, did(0.001)), b.clone());
        assert!(found.changes.is_empty());
        assert_eq!(
            found.unknown_reasons[&ActivityKind::SleepingLocks],
            "hidden"
        );
        b.runs[3].kernel = None;
        let found = AnswerComparison::of(
            Vec::new(),
            side(1.0, did(0.001)),
            b,
            &ValueSelection::default(),
            false,
        );
        assert_eq!(found.kernel, None);
    }

    #[test]
    fn what_only_one_side_has_is_none_on_the_other() {
        let with = |noise: f64| vec![lock("new", noise)];
        let found = compared(side(1.0, |_| Vec::new()), side(2.0, with));
        assert_eq!(cause(&found), Some("new"));
        let change = found.changes[0].value.change.as_ref().unwrap();
        assert_eq!((change.a_median, change.ratio), (0.0, None));
    }
}

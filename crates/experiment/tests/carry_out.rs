//! The frame around an experiment that measures nothing: order, resuming, restoring, what becomes of failures.

use std::cell::{Cell as Shared, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};

use nearfar_experiment::{
    BoxError, Cell, Change, Column, Ended, Experiment, ExperimentError, Factor, Metric, Options,
    Outcome, Resources, Resume, RunPlan, Settings, Settled, carry_out_with,
};
use nearfar_machine::{Machine, Origin, SourceKind};
use nearfar_runs::{Filter, RunState, Store};
use proptest::prelude::*;
use serde_json::{Value, json};

const BALANCING: &str = "/proc/sys/kernel/numa_balancing";
const RECLAIM: &str = "/proc/sys/vm/zone_reclaim_mode";

/// A kernel with two files.
#[derive(Clone, Default)]
struct Kernel {
    files: Rc<RefCell<BTreeMap<PathBuf, Vec<u8>>>>,
    before: BTreeMap<PathBuf, Vec<u8>>,
    writes: usize,
    refuses: bool,
}

impl Kernel {
    fn new() -> Self {
        let files = [(BALANCING, "1\n"), (RECLAIM, "always [madvise] never\n")];
        let files = files.map(|(path, content)| (PathBuf::from(path), content.as_bytes().to_vec()));
        Self {
            files: Rc::new(RefCell::new(files.into())),
            ..Self::default()
        }
    }

    fn says(&self, path: &str) -> String {
        String::from_utf8(self.files.borrow()[Path::new(path)].clone()).unwrap()
    }
}

impl Settings for Kernel {
    fn current(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        self.files
            .borrow()
            .get(path)
            .cloned()
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn set(&mut self, path: &Path, value: &[u8]) -> Result<(), BoxError> {
        if self.refuses {
            return Err("permission denied".into());
        }
        self.writes += 1;
        let old = self
            .files
            .borrow_mut()
            .insert(path.to_owned(), [value, b"\n"].concat())
            .unwrap();
        self.before.entry(path.to_owned()).or_insert(old);
        Ok(())
    }

    fn restore(&mut self) -> Result<(), BoxError> {
        self.files
            .borrow_mut()
            .extend(std::mem::take(&mut self.before));
        Ok(())
    }
}

/// What happens at an attempt, by how many there were before.
type Happens = Box<dyn FnMut(usize, &Cell, &AtomicBool) -> Result<f64, BoxError>>;

struct Fake {
    memory: u32,
    parameters: Value,
    attempts: usize,
    happens: Happens,
    settled: Option<Settled>,
}

impl Fake {
    fn new(
        memory: u32,
        happens: impl FnMut(usize, &Cell, &AtomicBool) -> Result<f64, BoxError> + 'static,
    ) -> Self {
        Self {
            memory,
            parameters: json!({"load": 60}),
            attempts: 0,
            happens: Box::new(happens),
            settled: None,
        }
    }

    fn easy(memory: u32) -> Self {
        Self::new(memory, |attempt, _, _| Ok(attempt as f64))
    }
}

impl Experiment for Fake {
    type Sample = f64;

    fn name(&self) -> &str {
        "fake"
    }

    fn plan(&self) -> RunPlan {
        let factors = vec![
            Factor::new("balancing", [false, true]),
            Factor::new("memory", 0..self.memory),
        ];
        RunPlan::of_factors(self.parameters.clone(), factors)
    }

    fn settled(&self) -> Option<Settled> {
        self.settled
    }

    fn settings(&self, cell: &Cell) -> Vec<Change> {
        let balancing = if cell.level("balancing") == Some(&true.into()) {
            "1"
        } else {
            "0"
        };
        let sysctl = |name: &str, value: &str| Change::Sysctl {
            name: name.to_owned(),
            value: value.to_owned(),
        };
        let mut settings = vec![sysctl("kernel.numa_balancing", balancing)];
        if cell.level("memory") == Some(&1u32.into()) {
            settings.push(sysctl("vm.zone_reclaim_mode", "never"));
        }
        settings
    }

    fn run(&mut self, cell: &Cell, cancel: &AtomicBool) -> Result<f64, BoxError> {
        self.attempts += 1;
        (self.happens)(self.attempts - 1, cell, cancel)
    }

    fn columns() -> Vec<Column<f64>> {
        vec![Column::new(Metric::elapsed().primary(), |it| Some(*it))]
    }
}

struct Place {
    _directory: tempfile::TempDir,
    store: Store,
    kernel: Kernel,
    cancel: AtomicBool,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("runs.db")).unwrap();
        Self {
            _directory: directory,
            store,
            kernel: Kernel::new(),
            cancel: AtomicBool::new(false),
        }
    }

    fn carry_out(
        &mut self,
        fake: &mut Fake,
        options: Options,
    ) -> Result<Outcome<f64>, ExperimentError> {
        self.cancel.store(false, Ordering::Relaxed);
        let machine = Machine::empty(Origin::new(SourceKind::Synthetic, "none"), "not asked");
        let kernel = &mut self.kernel;
        carry_out_with(
            fake,
            options,
            &mut self.store,
            &machine,
            &self.cancel,
            kernel,
            &mut Resources::new("test"),
        )
    }

    fn runs(&self) -> usize {
        self.store.list(&Filter::default()).unwrap().len()
    }
}

fn seeded(samples: u32, seed: u64) -> Options {
    Options {
        seed: Some(seed),
        ..Options::new(samples)
    }
}

#[test]
fn each_cell_gets_its_samples_in_rounds_and_settings_are_put_back() {
    let mut place = Place::new();
    let kernel = place.kernel.clone();
    let mut fake = Fake::new(2, move |attempt, cell, _| {
        let on = cell.level("balancing") == Some(&true.into());
        assert_eq!(kernel.says(BALANCING).trim(), if on { "1" } else { "0" });
        let never = cell.level("memory") == Some(&1u32.into());
        let pages = kernel.says(RECLAIM);
        assert!(
            if never {
                pages == "never\n"
            } else {
                pages.contains("madvise")
            },
            "{cell}: {pages}"
        );
        Ok(attempt as f64)
    });
    let outcome = place.carry_out(&mut fake, seeded(5, 3)).unwrap();
    assert_eq!(
        (outcome.ended, outcome.samples.len(), outcome.already),
        (Ended::Complete, 20, 0)
    );
    assert!(outcome.cells.iter().all(|cell| cell.samples == 5));
    assert_eq!(place.kernel.says(BALANCING), "1\n");
    assert_eq!(place.kernel.says(RECLAIM), "always [madvise] never\n");
    assert_eq!(
        place.store.run(outcome.run).unwrap().state,
        RunState::Complete
    );
    assert!(
        place.kernel.writes < 40,
        "a setting that is so already is not made again: {}",
        place.kernel.writes
    );
}

#[test]
fn what_was_changed_by_others_meanwhile_is_a_warning() {
    let mut place = Place::new();
    let kernel = place.kernel.clone();
    let mut fake = Fake::new(1, move |attempt, _, _| {
        if attempt == 1 {
            kernel
                .files
                .borrow_mut()
                .insert(BALANCING.into(), b"7\n".to_vec());
        }
        Ok(1.0)
    });
    let outcome = place.carry_out(&mut fake, seeded(2, 1)).unwrap();
    let with_warnings: Vec<_> = outcome
        .samples
        .iter()
        .filter(|sample| !sample.warnings.is_empty())
        .collect();
    assert_eq!(with_warnings.len(), 1);
    assert!(
        with_warnings[0].warnings[0].contains("numa_balancing to \"7\""),
        "{:?}",
        with_warnings[0].warnings
    );
    assert_eq!(with_warnings[0].number, 2);
}

#[test]
fn a_failure_is_kept_and_the_run_goes_on() {
    let mut place = Place::new();
    let mut fake = Fake::new(3, |attempt, _, _| match attempt % 3 {
        0 => Err("the child died".into()),
        _ => Ok(1.0),
    });
    let outcome = place.carry_out(&mut fake, seeded(2, 1)).unwrap();
    assert_eq!(
        (outcome.ended, outcome.samples.len(), outcome.failed),
        (Ended::Incomplete, 8, 4)
    );
    let stored = place.store.samples(outcome.run).unwrap();
    assert_eq!(stored[0].failed.as_deref(), Some("the child died"));
    let run = place.store.run(outcome.run).unwrap();
    assert_eq!(
        (run.state, run.failure.as_deref()),
        (RunState::Failed, Some("4 of 12 samples failed"))
    );
    let again = place.carry_out(&mut Fake::easy(3), seeded(2, 1)).unwrap();
    assert_eq!(
        (again.run, again.ended, again.already, again.samples.len()),
        (outcome.run, Ended::Complete, 8, 12)
    );
}

#[test]
fn failures_one_after_the_other_stop_the_run_and_are_tried_again_when_it_is_continued() {
    let mut place = Place::new();
    let mut broken = Fake::new(2, |attempt, _, _| {
        if attempt < 2 {
            Ok(1.0)
        } else {
            Err("no permission".into())
        }
    });
    let error = place.carry_out(&mut broken, Options::new(3)).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("3 samples failed one after the other, the last one: no permission"),
        "{error}"
    );
    let run = place.store.list(&Filter::default()).unwrap().remove(0);
    assert_eq!(
        (run.state, run.samples, run.failed),
        (RunState::Failed, 5, 3)
    );
    assert_eq!(place.kernel.says(BALANCING), "1\n", "settings are put back");
    let outcome = place
        .carry_out(&mut Fake::easy(2), Options::new(3))
        .unwrap();
    assert_eq!(
        (
            outcome.run,
            outcome.already,
            outcome.samples.len(),
            outcome.failed
        ),
        (run.run, 2, 12, 3)
    );
}

#[test]
fn a_setting_that_is_refused_stops_the_run_and_names_the_file() {
    let mut place = Place::new();
    place.kernel.refuses = true;
    let error = place
        .carry_out(&mut Fake::easy(2), Options::new(1))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(BALANCING) || error.contains(RECLAIM),
        "{error}"
    );
    assert!(error.contains("permission denied"), "{error}");
}

#[test]
fn only_a_run_of_the_same_is_continued() {
    let mut place = Place::new();
    let interrupted = || {
        Fake::new(2, |attempt, _, cancel| {
            cancel.store(attempt == 2, Ordering::Relaxed);
            Ok(1.0)
        })
    };
    let first = place
        .carry_out(&mut interrupted(), Options::new(2))
        .unwrap();
    assert_eq!(
        (first.ended, first.samples.len()),
        (Ended::Interrupted, 3),
        "the sample at hand is finished"
    );
    type Change = fn(&mut Fake);
    let others: [(Change, Options); 5] = [
        (|fake| fake.parameters = json!({"load": 1}), Options::new(2)),
        (|fake| fake.memory = 3, Options::new(2)),
        (
            |_| {},
            Options {
                label: Some("other".into()),
                ..Options::new(2)
            },
        ),
        (
            |_| {},
            Options {
                resume: Resume::Nothing,
                ..Options::new(2)
            },
        ),
        (|_| {}, seeded(2, 12345)),
    ];
    for (index, (change, options)) in others.into_iter().enumerate() {
        let mut fake = interrupted();
        change(&mut fake);
        let outcome = place.carry_out(&mut fake, options).unwrap();
        assert_eq!(outcome.already, 0, "case {index}");
        assert_eq!(place.runs(), index + 2);
    }
    let last = place
        .carry_out(&mut Fake::easy(2), Options::new(2))
        .unwrap();
    assert_eq!((last.already, last.samples.len(), place.runs()), (3, 8, 6));
    let complete = place
        .carry_out(&mut Fake::easy(2), Options::new(2))
        .unwrap();
    assert_eq!(
        (complete.already, place.runs()),
        (0, 7),
        "a complete run is not continued"
    );
}

#[test]
fn a_run_that_is_asked_for_by_number_is_continued_or_refused_and_never_begun_anew() {
    let mut place = Place::new();
    let mut interrupted = Fake::new(2, |attempt, _, cancel| {
        cancel.store(attempt == 2, Ordering::Relaxed);
        Ok(1.0)
    });
    let first = place.carry_out(&mut interrupted, seeded(2, 1)).unwrap().run;
    // A newer one of the same is complete: "the newest" would begin a third.
    let second = place
        .carry_out(
            &mut Fake::easy(2),
            Options {
                resume: Resume::Nothing,
                ..seeded(2, 1)
            },
        )
        .unwrap()
        .run;
    let by_number = |run| Options {
        resume: Resume::Run(run),
        ..seeded(2, 1)
    };
    let error = place
        .carry_out(&mut Fake::easy(3), by_number(first))
        .unwrap_err();
    assert!(
        matches!(error, ExperimentError::Other { .. }),
        "other cells: {error}"
    );
    let outcome = place
        .carry_out(&mut Fake::easy(2), by_number(first))
        .unwrap();
    assert_eq!(
        (outcome.run, outcome.already, outcome.samples.len()),
        (first, 3, 8)
    );
    for run in [first, second] {
        let error = place
            .carry_out(&mut Fake::easy(2), by_number(run))
            .unwrap_err()
            .to_string();
        assert!(error.contains("is complete"), "{error}");
    }
    assert_eq!(place.runs(), 2);
}

#[test]
fn what_was_looked_at_is_not_tried_again_by_a_run_that_is_continued() {
    // Two cells: one settles at the first look, whose last sample before it failed.
    let settled: Settled = |detail, _| vec![detail.plan[0].clone()];
    let fake = |happens: fn(usize, &Cell, &AtomicBool) -> Result<f64, BoxError>| Fake {
        settled: Some(settled),
        ..Fake::new(1, happens)
    };
    let mut place = Place::new();
    let mut interrupted = fake(|attempt, _, cancel| {
        cancel.store(attempt == 23, Ordering::Relaxed);
        match attempt {
            18 | 20 => Err("lost".into()),
            _ => Ok(1.0),
        }
    });
    let run = place
        .carry_out(&mut interrupted, seeded(40, 1))
        .unwrap()
        .run;
    let mut continued = fake(|_, _, _| Ok(1.0));
    let outcome = place.carry_out(&mut continued, seeded(40, 1)).unwrap();
    assert_eq!(outcome.run, run);
    let detail = place.store.detail(run).unwrap();
    let mut rounds = vec![Vec::new(); detail.plan.len()];
    for sample in place.store.samples(run).unwrap() {
        let cell = detail.plan.iter().position(|cell| *cell == sample.cell);
        if sample.failed.is_none() {
            rounds[cell.unwrap()].push(sample.round);
        }
    }
    rounds.iter_mut().for_each(|rounds| rounds.sort());
    let looked_at = [0, 1].map(|cell| rounds[cell].partition_point(|round| *round <= 10));
    assert!(matches!(looked_at, [9, 10] | [10, 9]), "{rounds:?}");
    let since = [0, 1].map(|cell| rounds[cell][looked_at[cell]..].to_vec());
    assert_eq!(since, [Vec::new(), (11..=40).collect()]);
}

#[test]
fn a_round_that_was_interrupted_before_its_look_gets_its_samples() {
    let settled: Settled = |detail, _| detail.plan.clone();
    let mut place = Place::new();
    for interrupted_at in [17, 18] {
        let mut interrupted = Fake {
            settled: Some(settled),
            ..Fake::new(1, move |attempt, _, cancel| {
                cancel.store(attempt == interrupted_at, Ordering::Relaxed);
                Ok(1.0)
            })
        };
        let options = || seeded(40, interrupted_at as u64);
        let run = place.carry_out(&mut interrupted, options()).unwrap().run;
        let mut continued = Fake {
            settled: Some(settled),
            ..Fake::easy(1)
        };
        let outcome = place.carry_out(&mut continued, options()).unwrap();
        assert_eq!((outcome.run, outcome.samples.len()), (run, 20));
    }
}

#[test]
fn a_run_is_not_continued_with_fewer_samples_than_it_was_planned_with() {
    let mut place = Place::new();
    let mut interrupted = Fake::new(2, |attempt, _, cancel| {
        cancel.store(attempt == 5, Ordering::Relaxed);
        Ok(1.0)
    });
    let run = place.carry_out(&mut interrupted, seeded(3, 1)).unwrap().run;
    for resume in [Resume::Newest, Resume::Run(run)] {
        let fewer = Options {
            resume,
            ..seeded(1, 1)
        };
        let error = place
            .carry_out(&mut Fake::easy(2), fewer)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("planned with 3 samples of each cell and cannot be continued with 1"),
            "{error}"
        );
    }
    let found = place.store.run(run).unwrap();
    assert_eq!(
        (found.state, found.samples_per_cell, place.runs()),
        (RunState::Interrupted, 3, 1)
    );
}

#[test]
fn the_error_of_a_run_that_is_not_kept_has_no_number_and_no_way_to_continue() {
    let mut place = Place::new();
    let mut broken = Fake::new(2, |_, _, _| Err("no permission".into()));
    let options = Options {
        is_kept: false,
        ..Options::new(3)
    };
    let error = place.carry_out(&mut broken, options).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the run stopped: 3 samples failed one after the other, the last one: no permission"
    );
}

/// What a foreign file may hold: a sample before the first round.
#[test]
fn samples_of_rounds_that_do_not_exist_are_not_counted() {
    let mut place = Place::new();
    let mut interrupted = Fake::new(2, |attempt, _, cancel| {
        cancel.store(attempt == 2, Ordering::Relaxed);
        Ok(1.0)
    });
    let run = place.carry_out(&mut interrupted, seeded(2, 1)).unwrap().run;
    let file = place.store.path().to_owned();
    rusqlite::Connection::open(file)
        .unwrap()
        .execute_batch("UPDATE sample SET round = 0 WHERE number = 1")
        .unwrap();
    let outcome = place.carry_out(&mut Fake::easy(2), seeded(2, 1)).unwrap();
    assert_eq!(
        (outcome.run, outcome.samples.len()),
        (run, 9),
        "all eight, and the one of no round"
    );
}

#[test]
fn a_sample_abandoned_for_an_interruption_is_no_failure() {
    let mut place = Place::new();
    let mut fake = Fake::new(2, |_, _, cancel| {
        cancel.store(true, Ordering::Relaxed);
        Err("abandoned".into())
    });
    let outcome = place.carry_out(&mut fake, Options::new(2)).unwrap();
    assert_eq!(
        (outcome.ended, outcome.samples.len(), outcome.failed),
        (Ended::Interrupted, 0, 0)
    );
    assert_eq!(place.kernel.says(BALANCING), "1\n");
}

#[test]
fn a_cell_twice_or_no_cell_is_refused_before_anything_is_stored() {
    let mut place = Place::new();
    let error = place
        .carry_out(&mut Fake::easy(0), Options::new(2))
        .unwrap_err();
    assert!(error.to_string().contains("no cells"), "{error}");
    assert_eq!(place.runs(), 0);
}

/// What may happen to one attempt.
#[derive(Clone, Copy, Debug)]
enum Event {
    Works,
    Fails,
    InterruptedAfter,
    InterruptedWithin,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => Just(Event::Works),
        2 => Just(Event::Fails),
        1 => Just(Event::InterruptedAfter),
        1 => Just(Event::InterruptedWithin),
    ]
}

proptest! {
    // Each case is several runs in a store on disk.
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.div_ceil(2), ..ProptestConfig::default() })]

    /// Whatever happens on the way, in the end each cell has a sample in each round, none twice, rounds come one after
    /// the other, and numbers have no gap.
    #[test]
    fn no_sample_is_repeated_or_lost_whatever_interrupts(
        events in prop::collection::vec(event(), 0..60), memory in 1u32..4, samples in 1u32..5, seed: u64,
    ) {
        let mut place = Place::new();
        let next = Rc::new(Shared::new(0));
        let mut taken = 0;
        let outcome = loop {
            let (events, next) = (events.clone(), Rc::clone(&next));
            let mut fake = Fake::new(memory, move |_, _, cancel| {
                let event = events.get(next.replace(next.get() + 1)).copied().unwrap_or(Event::Works);
                cancel.store(matches!(event, Event::InterruptedAfter | Event::InterruptedWithin), Ordering::Relaxed);
                match event {
                    Event::Works | Event::InterruptedAfter => Ok(1.0),
                    Event::Fails | Event::InterruptedWithin => Err("no".into()),
                }
            });
            match place.carry_out(&mut fake, Options { failures_in_a_row: 1, ..seeded(samples, seed) }) {
                Ok(outcome) if outcome.ended == Ended::Complete => break outcome,
                Ok(outcome) => {
                    prop_assert!(outcome.samples.len() >= taken);
                    taken = outcome.samples.len();
                }
                Err(ExperimentError::Failures { .. }) => {}
                Err(error) => prop_assert!(false, "{error}"),
            }
        };
        prop_assert_eq!(place.runs(), 1, "it is one run all along");
        let slots: Vec<(u32, Cell)> = outcome.samples.iter().map(|of| (of.round, of.cell.clone())).collect();
        let mut expected: Vec<(u32, Cell)> = Vec::new();
        for round in 1..=samples {
            expected.extend(Fake::easy(memory).plan().cells.into_iter().map(|cell| (round, cell)));
        }
        let rounds: Vec<u32> = slots.iter().map(|(round, _)| *round).collect();
        prop_assert!(rounds.is_sorted(), "{rounds:?}");
        let mut sorted = slots;
        sorted.sort();
        expected.sort();
        prop_assert_eq!(sorted, expected);
        let stored = place.store.samples(outcome.run).unwrap();
        prop_assert!(stored.iter().map(|sample| sample.number).eq(1..=stored.len() as u64));
        prop_assert_eq!(place.kernel.says(BALANCING), "1\n");
    }

    /// Interruptions change nothing about the order: it is that of a run without any.
    #[test]
    fn a_continued_run_has_the_order_of_one_that_was_never_interrupted(at in 1usize..11, seed: u64) {
        let order = |outcome: &Outcome<f64>| -> Vec<Cell> { outcome.samples.iter().map(|s| s.cell.clone()).collect() };
        let mut place = Place::new();
        let mut fake = Fake::new(3, move |attempt, _, cancel| {
            cancel.store(attempt + 1 == at, Ordering::Relaxed);
            Ok(1.0)
        });
        place.carry_out(&mut fake, seeded(2, seed)).unwrap();
        let continued = place.carry_out(&mut Fake::easy(3), seeded(2, seed)).unwrap();
        prop_assert_eq!(continued.already, at);
        let mut elsewhere = Place::new();
        let whole = elsewhere.carry_out(&mut Fake::easy(3), seeded(2, seed)).unwrap();
        prop_assert_eq!(order(&continued), order(&whole));
    }
}

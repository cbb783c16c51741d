//! An experiment on two targets: they take turns, and both are part of the run.

use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use nearfar_experiment::{
    BoxError, Cell, Column, Ended, Experiment, ExperimentError, Factor, Leased, Metric, OnTargets,
    Options, Outcome, Resources, Resume, RunPlan, Target, TargetError, TargetOutput, Targets,
    Values, carry_out_with,
};
use nearfar_machine::{
    Acceleration, EmulatedGuest, Emulation, Machine, NodeLimits, Origin, SimulatedTime, SourceKind,
};
use nearfar_runs::{Host, Sample, Store};
use serde_json::json;

fn machine(label: &str) -> Machine {
    let mut origin = Origin::new(SourceKind::Live, "a test");
    origin.emulation = Some(Emulation::Label(label.to_owned()));
    Machine::empty(origin, "a test")
}

/// Answers `sample SIZE` with a sample whose detail is its own name and the size.
struct Fake {
    name: String,
    machine: Machine,
    host: Host,
}

impl Fake {
    fn open(levels: &Cell, kernel: &str) -> Box<dyn Target> {
        let mut host = Host::here();
        host.kernel = kernel.to_owned();
        let name = levels.text("guest");
        Box::new(Self {
            machine: machine(&name),
            name,
            host,
        })
    }
}

impl Target for Fake {
    fn machine(&self) -> &Machine {
        &self.machine
    }

    fn host(&self) -> &Host {
        &self.host
    }

    fn run(&mut self, command: &[OsString], _: &AtomicBool) -> Result<TargetOutput, BoxError> {
        let [program, size] = command else {
            let answer = serde_json::to_vec(&self.name).unwrap();
            return Ok(TargetOutput {
                exit_code: 0,
                stdout: answer,
                stderr: Vec::new(),
            });
        };
        assert_eq!(program, "sample");
        let is_broken = self.name == "broken";
        let detail = format!("{} {}", self.name, size.to_str().unwrap());
        let sample = Sample {
            number: 1,
            round: 1,
            cell: Cell::new(),
            started_at_s: 0.0,
            took_s: 0.0,
            values: Values::new(),
            failed: (self.name == "refusing").then(|| "no memory".to_owned()),
            warnings: vec!["on a target".to_owned()],
            detail: json!(detail),
        };
        Ok(TargetOutput {
            exit_code: if is_broken { 3 } else { 0 },
            stdout: serde_json::to_vec(&sample).unwrap(),
            stderr: b"it refused\n".to_vec(),
        })
    }
}

/// A guest in simulated time: its answers depend on what another one is told meanwhile.
struct Simulated {
    fake: Fake,
    samples: u32,
    tells: Sender<()>,
    hears: Receiver<()>,
    answer: Answering,
}

type Answering = fn(&mut Simulated) -> Result<(), BoxError>;

/// Long enough for any host: what waits for the other one in vain fails then.
const PATIENCE: Duration = Duration::from_secs(60);

impl Simulated {
    fn both(answers: [Answering; 2]) -> Targets {
        let ((tells, heard), (told, hears)) = (channel(), channel());
        let mut ends = [(told, heard), (tells, hears)].into_iter().zip(answers);
        let open = |levels: &Cell| {
            let ((tells, hears), answer) = ends.next().unwrap();
            let name = levels.text("guest");
            let mut machine = machine(&name);
            machine.origin.emulation = Some(Emulation::Guest(Box::new(EmulatedGuest {
                machine: name.clone(),
                node_limits: NodeLimits::default(),
                kernel: "6.1".to_owned(),
                kernel_arguments: Vec::new(),
                architecture: "x86_64".to_owned(),
                acceleration: Acceleration::Tcg,
                qemu: None,
                delays: None,
                simulated_time: Some(SimulatedTime::default()),
            })));
            let host = Host::here();
            Ok(Box::new(Self {
                fake: Fake {
                    name,
                    machine,
                    host,
                },
                samples: 0,
                tells,
                hears,
                answer,
            }) as Box<dyn Target>)
        };
        Targets::open(guests(["one", "other"]), open).unwrap()
    }

    fn hear(&self) -> Result<(), BoxError> {
        Ok(self.hears.recv_timeout(PATIENCE)?)
    }
}

impl Target for Simulated {
    fn machine(&self) -> &Machine {
        &self.fake.machine
    }

    fn host(&self) -> &Host {
        &self.fake.host
    }

    fn run(&mut self, command: &[OsString], end: &AtomicBool) -> Result<TargetOutput, BoxError> {
        self.samples += 1;
        (self.answer)(self)?;
        self.fake.run(command, end)
    }
}

fn guests(names: [&str; 2]) -> Vec<Factor> {
    vec![Factor::new("guest", names)]
}

struct Sizes;

impl Experiment for Sizes {
    type Sample = String;

    fn name(&self) -> &str {
        "sizes"
    }

    fn plan(&self) -> RunPlan {
        RunPlan::of_factors(json!({}), vec![Factor::new("size", ["small", "large"])])
    }

    fn run(&mut self, _: &Cell, _: &AtomicBool) -> Result<String, BoxError> {
        Err("the sample is taken on a target".into())
    }

    fn columns() -> Vec<Column<String>> {
        let length = |it: &String| Some(it.len() as f64);
        vec![Column::new(Metric::elapsed().primary(), length)]
    }
}

type Answer<S> = Result<Outcome<S>, ExperimentError>;

fn carry_out(
    names: [&str; 2],
    kernel: &str,
    options: Options,
    store: &mut Store,
    check: impl FnOnce(Answer<nearfar_experiment::TookOnTarget<String>>),
) {
    let targets = Targets::open(guests(names), |levels| Ok(Fake::open(levels, kernel))).unwrap();
    check(on(targets, options, store, &AtomicBool::new(false)));
}

fn on(
    targets: Targets,
    options: Options,
    store: &mut Store,
    cancel: &AtomicBool,
) -> Answer<nearfar_experiment::TookOnTarget<String>> {
    let command = |cell: &Cell| vec!["sample".into(), cell.text("size").into()];
    let plans = vec![Sizes.plan(), Sizes.plan()];
    carry_out_with(
        &mut OnTargets::new(Sizes, targets, plans, command),
        options,
        store,
        &machine("the host"),
        cancel,
        &mut Leased::new("sizes"),
        &mut Resources::new("sizes"),
    )
}

#[test]
fn each_cell_runs_on_its_target_and_the_targets_take_turns() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(&folder.path().join("runs.db")).unwrap();
    let mut run = None;
    carry_out(["one", "other"], "6.1", Options::new(3), &mut store, |it| {
        let outcome = it.unwrap();
        assert_eq!(outcome.ended, Ended::Complete);
        run = Some(outcome.run);
    });
    let run = run.unwrap();
    let samples = store.samples(run).unwrap();
    for sample in &samples {
        let cell = &sample.cell;
        let expected = format!("{} {}", cell.text("guest"), cell.text("size"));
        assert_eq!(sample.detail, expected);
        assert_eq!(sample.number("elapsed_s"), Some(expected.len() as f64));
        assert_eq!(sample.warnings, ["on a target"]);
    }
    for round in samples.chunks(4) {
        let mut cells: Vec<String> = round.iter().map(|it| it.cell.to_string()).collect();
        cells.sort_unstable();
        cells.dedup();
        assert_eq!(cells.len(), 4);
        assert!(round.iter().all(|it| it.round == round[0].round));
    }

    let targets = store.detail(run).unwrap().targets;
    let [one, other] = &targets[..] else {
        panic!("{targets:?}")
    };
    assert_eq!(one.levels, Cell::new().with("guest", "one"));
    assert_eq!(one.host.kernel, "6.1");
    assert_eq!(one.machine["origin"]["emulation"]["label"], "one");
    assert_ne!(one.fingerprint, other.fingerprint);
    let stored = store.run(run).unwrap();
    assert_eq!(stored.kernel, "6.1", "of the targets, once");
    let emulation = stored.emulation.unwrap().to_string();
    assert_eq!(emulation, "guest=one: one; guest=other: other");
}

fn has_one_cpu() -> bool {
    std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() == 1)
}

#[test]
fn targets_in_simulated_time_work_at_the_same_time() {
    if has_one_cpu() {
        return println!("skipped: cpus: targets take turns on one CPU");
    }
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(&folder.path().join("runs.db")).unwrap();
    // Each sample ends when one of the other guest's has begun.
    let meet = |it: &mut Simulated| {
        it.tells.send(())?;
        it.hear()
    };
    let targets = Simulated::both([meet, meet]);
    let cancel = AtomicBool::new(false);
    let outcome = on(targets, Options::new(3), &mut store, &cancel).unwrap();
    assert_eq!(outcome.ended, Ended::Complete);
    let samples = store.samples(outcome.run).unwrap();
    let rounds: Vec<u32> = samples.iter().map(|it| it.round).collect();
    assert_eq!(rounds, [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]);
    for sample in &samples {
        let cell = &sample.cell;
        let expected = format!("{} {}", cell.text("guest"), cell.text("size"));
        assert_eq!(sample.detail, expected);
    }
}

#[test]
fn a_sample_that_is_there_is_kept_when_the_run_is_interrupted() {
    if has_one_cpu() {
        return println!("skipped: cpus: targets take turns on one CPU");
    }
    static INTERRUPTED: AtomicBool = AtomicBool::new(false);
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(&folder.path().join("runs.db")).unwrap();
    // Once the other guest's first sample is there, Ctrl-C ends all that are at work.
    let interrupted = |it: &mut Simulated| {
        if it.samples == 1 {
            it.hear()?;
            INTERRUPTED.store(true, Ordering::Relaxed);
            it.tells.send(())?;
        }
        Err("powered off".into())
    };
    let second = |it: &mut Simulated| match it.samples {
        1 => Ok(()),
        _ => {
            it.tells.send(())?;
            it.hear()?;
            Err("powered off".into())
        }
    };
    let targets = Simulated::both([interrupted, second]);
    let outcome = on(targets, Options::new(2), &mut store, &INTERRUPTED).unwrap();
    assert_eq!(outcome.ended, Ended::Interrupted);
    let samples = store.samples(outcome.run).unwrap();
    let [kept] = &samples[..] else {
        panic!("{samples:?}")
    };
    assert_eq!(kept.cell.text("guest"), "other");
    let none = |_: &mut Simulated| Ok(());
    let (targets, cancel) = (Simulated::both([none, none]), AtomicBool::new(false));
    let outcome = on(targets, Options::new(2), &mut store, &cancel).unwrap();
    assert_eq!((outcome.already, outcome.samples.len()), (1, 8));
}

#[test]
fn a_run_is_continued_on_equal_targets_only() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(&folder.path().join("runs.db")).unwrap();
    let mut options = Options::new(2);
    options.failures_in_a_row = 1;
    carry_out(["one", "broken"], "6.1", options, &mut store, |it| {
        let error = it.err().unwrap().to_string();
        assert!(error.contains("exited with code 3: it refused"), "{error}");
    });
    let run = store.list(&Default::default()).unwrap()[0].run;
    for (names, kernel, levels) in [
        (["one", "broken"], "6.6", "guest=one"),
        (["one", "other"], "6.1", "guest=other"),
    ] {
        let mut options = Options::new(2);
        options.resume = Resume::Run(run);
        carry_out(names, kernel, options, &mut store, |it| match it {
            Err(ExperimentError::Other { differs, .. }) => {
                assert_eq!(
                    differs,
                    format!("target of {levels} is another machine or kernel")
                )
            }
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("it was continued"),
        });
    }
}

#[test]
fn a_sample_that_fails_on_its_target_fails_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(&folder.path().join("runs.db")).unwrap();
    let mut options = Options::new(1);
    options.failures_in_a_row = 9;
    carry_out(["one", "refusing"], "6.1", options, &mut store, |it| {
        assert_eq!(it.unwrap().failed, 2);
    });
    let run = store.list(&Default::default()).unwrap()[0].run;
    let samples = store.samples(run).unwrap();
    let failed = samples.iter().filter_map(|it| it.failed.as_deref());
    assert_eq!(failed.collect::<Vec<_>>(), ["no memory", "no memory"]);
}

#[test]
fn a_target_that_cannot_be_opened_is_named_and_a_cell_without_one_refused() {
    let open = |levels: &Cell| match levels.text("guest").as_str() {
        "one" => Ok(Fake::open(levels, "6.1")),
        _ => Err("no kernel".into()),
    };
    let refused = Targets::open(guests(["one", "other"]), open).err().unwrap();
    assert_eq!(
        refused.to_string(),
        "cannot open the target of guest=other: no kernel"
    );
    let targets = Targets::open(guests(["one", "one"]), open).unwrap();
    let mut on_targets = OnTargets::new(Sizes, targets, Vec::new(), |_: &Cell| Vec::new());
    for cell in [Cell::new(), Cell::new().with("guest", "third")] {
        let refused = on_targets.run(&cell, &AtomicBool::new(false)).unwrap_err();
        let refused = refused.downcast::<TargetError>().unwrap();
        assert!(matches!(*refused, TargetError::Cell { .. }));
    }
}

#[test]
fn each_target_measures_the_cells_that_it_has() {
    let mut targets = Targets::open(guests(["one", "other"]), |levels| {
        Ok(Fake::open(levels, "6.1"))
    })
    .unwrap();
    let is_ended = AtomicBool::new(false);
    let answers: Vec<(Cell, String)> = targets.ask(&["plan".into()], &is_ended).unwrap();
    let answers: Vec<&str> = answers.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(answers, ["one", "other"]);

    // One has a size less, the other one that is known to it alone.
    let plan = |sizes: &[&str]| {
        let sizes = sizes.iter().map(|size| Cell::new().with("size", *size));
        RunPlan::of_cells(json!("of a target"), sizes.collect())
    };
    let plans = vec![plan(&["small"]), plan(&["large", "huge"])];
    let plan = OnTargets::new(Sizes, targets, plans, |_: &Cell| Vec::new()).plan();
    let cells: Vec<String> = plan.cells.iter().map(Cell::to_string).collect();
    assert_eq!(
        cells,
        [
            "guest=one size=small",
            "guest=other size=large",
            "guest=other size=huge"
        ]
    );
    let sizes = Factor::new("size", ["small", "large", "huge"]);
    assert_eq!(
        plan.factors,
        [guests(["one", "other"]), vec![sizes]].concat()
    );
    assert_eq!(plan.parameters, json!({}), "those of the run");
}

//! An experiment over two targets: they take turns, and both are part of the run.

use std::ffi::OsString;
use std::sync::atomic::AtomicBool;

use nearfar_experiment::{
    BoxError, Cell, Ended, Experiment, Factor, Leased, Level, Metric, Options, Resources, Target,
    TargetError, TargetOutput, Targets, Values, carry_out_with,
};
use nearfar_machine::{Emulation, Machine, Origin, SourceKind};
use nearfar_runs::Store;
use serde_json::{Value, json};

fn machine(label: &str) -> Machine {
    let mut origin = Origin::new(SourceKind::Live, "a test");
    origin.emulation = Some(Emulation::Label(label.to_owned()));
    Machine::empty(origin, "a test")
}

/// Prints its name, whatever the command.
struct Fake {
    name: String,
    machine: Machine,
}

impl Fake {
    fn open(level: &Level) -> Result<Self, BoxError> {
        let name = level.to_string();
        let machine = machine(&name);
        Ok(Self { name, machine })
    }
}

impl Target for Fake {
    fn machine(&self) -> &Machine {
        &self.machine
    }

    fn run(&mut self, command: &[OsString]) -> Result<TargetOutput, BoxError> {
        assert_eq!(command, ["uname"]);
        Ok(TargetOutput {
            exit_code: 0,
            stdout: self.name.clone().into_bytes(),
            stderr: Vec::new(),
        })
    }
}

fn factor() -> Factor {
    Factor::new("guest", ["one", "other"])
}

struct Names(Targets<Fake>);

impl Experiment for Names {
    type Sample = String;

    fn name(&self) -> &str {
        "names"
    }

    fn parameters(&self) -> Value {
        json!({ "targets": self.0.describe() })
    }

    fn factors(&self) -> Vec<Factor> {
        vec![factor()]
    }

    fn run(&mut self, cell: &Cell, _: &AtomicBool) -> Result<String, BoxError> {
        let output = self.0.of(cell)?.run(&["uname".into()])?;
        Ok(String::from_utf8(output.stdout)?)
    }

    fn metrics(&self) -> Vec<Metric> {
        vec![Metric::elapsed().primary()]
    }

    fn values(_: &String) -> Values {
        Values::from([("elapsed_s".to_owned(), 1.0.into())])
    }
}

#[test]
fn each_cell_runs_on_the_target_of_its_level_and_the_targets_take_turns() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(&folder.path().join("runs.db")).unwrap();
    let mut names = Names(Targets::open(&factor(), Fake::open).unwrap());
    let outcome = carry_out_with(
        &mut names,
        Options::new(3),
        &mut store,
        &machine("the host"),
        &AtomicBool::new(false),
        &mut Leased::new("names"),
        &mut Resources::new("names"),
    )
    .unwrap();
    assert_eq!(outcome.ended, Ended::Complete);
    let mut rounds = vec![Vec::new(); 3];
    for sampled in &outcome.samples {
        let name = &sampled.sample;
        assert_eq!(sampled.cell.level("guest").unwrap().to_string(), *name);
        rounds[sampled.round as usize - 1].push(name.clone());
    }
    for mut round in rounds {
        round.sort_unstable();
        assert_eq!(round, ["one", "other"]);
    }
}

#[test]
fn targets_are_described_with_a_fingerprint_each() {
    let targets = Targets::open(&factor(), Fake::open).unwrap().describe();
    let [one, other] = [0, 1].map(|number| &targets["targets"][number]);
    assert_eq!(
        (&one["level"], &other["level"]),
        (&json!("one"), &json!("other"))
    );
    assert_eq!(one["emulation"]["label"], "one");
    assert_ne!(one["fingerprint"], other["fingerprint"]);
    assert_eq!(
        targets,
        Targets::open(&factor(), Fake::open).unwrap().describe()
    );
}

#[test]
fn a_target_that_cannot_be_opened_is_named_and_a_cell_without_one_refused() {
    let refused = Targets::open(&factor(), |level| match level.to_string().as_str() {
        "one" => Fake::open(level),
        _ => Err("no kernel".into()),
    });
    let error = refused.err().unwrap();
    assert!(
        matches!(&error, TargetError::Open { level, .. } if level.to_string() == "other"),
        "{error}"
    );
    let mut targets = Targets::open(&factor(), Fake::open).unwrap();
    let elsewhere = Cell::new().with("guest", "third");
    assert!(matches!(
        targets.of(&elsewhere),
        Err(TargetError::Cell { .. })
    ));
    assert!(matches!(
        targets.of(&Cell::new()),
        Err(TargetError::Cell { .. })
    ));
}

//! Resources of runs and cells: made before, removed after, and by the next one after a kill.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;

use nearfar_change::UndoResult;
use nearfar_change::lease::Leases;
use nearfar_experiment::{
    BoxError, Cell, Column, Experiment, Factor, Leased, Metric, Options, Resources, RunPlan,
    carry_out_with,
};
use nearfar_machine::{Machine, Origin, SourceKind};
use nearfar_runs::Store;
use serde_json::json;

/// What happened, in order.
type Log = Rc<RefCell<Vec<String>>>;

struct Fake {
    log: Log,
    run: Option<PathBuf>,
    cell: Option<PathBuf>,
    fails: bool,
}

impl Experiment for Fake {
    type Sample = f64;

    fn name(&self) -> &str {
        "fake"
    }

    fn plan(&self) -> RunPlan {
        RunPlan::of_factors(json!({}), vec![Factor::new("n", [0u32, 1])])
    }

    fn setup(&mut self, resources: &mut Resources) -> Result<(), BoxError> {
        self.run = Some(resources.temporary_directory()?);
        match self.fails {
            true => Err("no such device".into()),
            false => Ok(()),
        }
    }

    fn teardown(&mut self) -> Result<(), BoxError> {
        self.log.borrow_mut().push("teardown".into());
        Ok(())
    }

    fn setup_cell(&mut self, _: &Cell, resources: &mut Resources) -> Result<(), BoxError> {
        self.cell = Some(resources.temporary_file(10)?);
        Ok(())
    }

    fn teardown_cell(&mut self, _: &Cell) -> Result<(), BoxError> {
        self.log.borrow_mut().push("teardown of the cell".into());
        Ok(())
    }

    fn run(&mut self, _: &Cell, _: &AtomicBool) -> Result<f64, BoxError> {
        let (run, cell) = (self.run.clone().unwrap(), self.cell.clone().unwrap());
        assert!(run.is_dir() && cell.metadata().unwrap().len() == 10);
        let paths = format!("{} {}", run.display(), cell.display());
        self.log.borrow_mut().push(paths);
        Ok(1.0)
    }

    fn columns() -> Vec<Column<f64>> {
        vec![Column::new(Metric::elapsed().primary(), |it| Some(*it))]
    }
}

fn carry_out(fails: bool) -> (Result<(), String>, Vec<String>) {
    let place = tempfile::tempdir().unwrap();
    let log = Log::default();
    let mut fake = Fake {
        log: Rc::clone(&log),
        run: None,
        cell: None,
        fails,
    };
    let mut store = Store::open(&place.path().join("runs.db")).unwrap();
    let machine = Machine::empty(Origin::new(SourceKind::Synthetic, "none"), "not asked");
    let leases = Leases::at(place.path().join("leases"));
    let answer = carry_out_with(
        &mut fake,
        Options::new(2),
        &mut store,
        &machine,
        &AtomicBool::new(false),
        &mut Leased::new("test"),
        &mut Resources::at(leases, "test"),
    );
    let left = std::fs::read_dir(place.path().join("leases")).unwrap();
    let left = left.filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_str().unwrap().ends_with(".journal")
    });
    assert_eq!(left.count(), 0, "a lease is left");
    let log = log.borrow().clone();
    (answer.map(drop).map_err(|error| error.to_string()), log)
}

#[test]
fn a_cell_has_its_own_resources_and_the_run_its_own_and_nothing_is_left() {
    let (answer, log) = carry_out(false);
    answer.unwrap();
    let (samples, rest): (Vec<_>, Vec<_>) = log.iter().partition(|line| line.contains('/'));
    assert_eq!(samples.len(), 4);
    assert_eq!(rest.len(), 5, "{rest:?}");
    assert_eq!(log.last().unwrap(), "teardown");
    let mut cells = std::collections::BTreeSet::new();
    for sample in samples {
        let (run, cell) = sample.split_once(' ').unwrap();
        assert!(!Path::new(run).exists() && !Path::new(cell).exists());
        assert!(cells.insert(cell), "each sample has a file of its own");
    }
}

#[test]
fn a_setup_that_fails_stops_the_run_and_is_torn_down() {
    let (answer, log) = carry_out(true);
    let error = answer.unwrap_err();
    assert!(
        error.contains("cannot prepare it: no such device"),
        "{error}"
    );
    assert_eq!(log, ["teardown"]);
}

/// Not killed, but forgotten: the lock goes with the file, as at the end of a process.
#[test]
fn a_process_with_all_that_it_started_ends_with_its_lease() {
    let place = tempfile::tempdir().unwrap();
    let leases = Leases::at(place.path().join("leases"));
    let mut lease = leases.take("test").unwrap();
    let mut command = Command::new("sh");
    // The grandchild is in a session of its own: only its environment tells whose it is.
    command.args(["-c", "setsid sleep 1000 & echo $!; wait"]);
    command.stdout(std::process::Stdio::piped());
    let mut process = lease.start(command).unwrap();
    let mut line = String::new();
    let out = process.child.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
    let grandchild: i32 = line.trim().parse().unwrap();
    assert!(nearfar_proc::tasks::is_alive(grandchild));
    let recovered = lease.release().unwrap();
    assert!(!nearfar_proc::tasks::is_alive(grandchild));
    assert!(!nearfar_proc::tasks::is_alive(process.pid()));
    assert_eq!(recovered.undone.len(), 1);
    assert_eq!(recovered.undone[0].result, UndoResult::Removed);
    let pid = process.pid();
    assert!(
        nearfar_proc::tasks::stat(pid).is_err(),
        "it is waited for, and leaves no number"
    );
}

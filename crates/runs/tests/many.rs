//! Several writers, and writers that are killed.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;

use nearfar_runs::{Ending, Filter, Journal, RunId, Store};

use crate::given::{Given, sample};

/// Set in a child of these tests: the store it is to fill until it is killed.
const FILL: &str = "NEARFAR_TEST_FILL";

/// Not a test by itself: the tests below run it in processes of their own, and kill it.
#[test]
fn filled_by_a_process_of_its_own() {
    let Some(path) = std::env::var_os(FILL) else {
        return;
    };
    let given = Given::new();
    let mut store = Store::open(path.as_ref()).unwrap();
    let run = given.begin(&mut store, "probe", None);
    for round in 1..=10_000 {
        let number = store.add_sample(run, &sample(round, "0", 1.0)).unwrap();
        // Said only after it was stored: what the parent has read of this must be there after a kill.
        println!("\nstored {run} {number}");
    }
}

struct Writer(Child);

impl Writer {
    fn start(given: &Given) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args([
                "--exact",
                "many::filled_by_a_process_of_its_own",
                "--nocapture",
            ])
            .env(FILL, &given.path);
        Self(
            command
                .stdout(Stdio::piped())
                .stderr(Stdio::inherit())
                .spawn()
                .unwrap(),
        )
    }

    /// Waits for so many samples, kills it, and gives the run and the last sample that it said was stored.
    fn killed_after(mut self, samples: u64) -> (RunId, u64) {
        let mut lines = BufReader::new(self.0.stdout.take().unwrap())
            .lines()
            .map(Result::unwrap);
        let mut last = None;
        let mut said = |line: &str| {
            let mut words = line.strip_prefix("stored ")?.split(' ');
            last = Some((
                RunId(words.next()?.parse().ok()?),
                words.next()?.parse().ok()?,
            ));
            last.map(|(_, number): (_, u64)| number)
        };
        while lines
            .next()
            .is_some_and(|line| said(&line).is_none_or(|number| number < samples))
        {}
        self.0.kill().unwrap();
        self.0.wait().unwrap();
        for line in lines {
            said(&line);
        }
        last.expect("it stored something before it was killed")
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn integrity(given: &Given) -> String {
    let connection = rusqlite::Connection::open(&given.path).unwrap();
    connection
        .pragma_query_value(None, "integrity_check", |row| row.get(0))
        .unwrap()
}

#[test]
fn a_writer_that_is_killed_loses_nothing_that_was_stored() {
    let given = Given::new();
    // Different amounts, so that kills fall into different moments of a transaction and of the log's life.
    for kill_after in [1, 2, 3, 5, 8, 13, 40, 90] {
        let (run, last) = Writer::start(&given).killed_after(kill_after);
        assert_eq!(integrity(&given), "ok");
        let store = given.store();
        let samples = store.samples(run).unwrap();
        let numbers: Vec<u64> = samples.iter().map(|sample| sample.number).collect();
        assert_eq!(
            numbers,
            (1..=numbers.len() as u64).collect::<Vec<_>>(),
            "no gap"
        );
        assert!(
            numbers.len() as u64 >= last,
            "{last} were stored, {} are there",
            numbers.len()
        );
        let found = store.run(run).unwrap();
        assert_eq!(found.samples, numbers.len() as u64);
        assert_eq!(found.state, nearfar_runs::RunState::Interrupted);
    }
    assert_eq!(given.store().list(&Filter::default()).unwrap().len(), 8);
}

#[test]
fn two_processes_that_write_at_once_lose_nothing() {
    let given = Given::new();
    let writers = [Writer::start(&given), Writer::start(&given)];
    for (run, last) in writers.map(|writer| writer.killed_after(100)) {
        assert!(given.store().samples(run).unwrap().len() as u64 >= last);
    }
    assert_eq!(integrity(&given), "ok");
}

/// Also that several can make the file at once.
#[test]
fn many_threads_that_write_at_once_lose_nothing() {
    const THREADS: usize = 8;
    const SAMPLES: u32 = 25;
    let given = Given::new();
    let barrier = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                barrier.wait();
                let mut store = given.store();
                assert_ne!(store.journal(), Journal::ReadOnly);
                let run = given.begin(&mut store, "probe", None);
                for round in 1..=SAMPLES {
                    assert_eq!(
                        store.add_sample(run, &sample(round, "0", 1.0)).unwrap(),
                        u64::from(round)
                    );
                }
                store.finish(run, &Ending::Complete).unwrap();
            });
        }
    });
    let runs = given.store().list(&Filter::default()).unwrap();
    assert_eq!(runs.len(), THREADS);
    assert!(runs.iter().all(|run| run.samples == u64::from(SAMPLES)));
    assert_eq!(integrity(&given), "ok");
}

//! A store in a directory of its own, and runs to put into it.

#![allow(dead_code, reason = "each test binary uses some of it")]

use std::path::PathBuf;

use nearfar_machine::{CpuSet, Machine, Node, NodeId, Origin, SourceKind};
use nearfar_runs::{
    Cell, Ending, Factor, Host, Metric, NewRun, NewSample, RunId, SampleResult, Store, Values,
};
use serde_json::{Value, json};

pub struct Given {
    pub directory: tempfile::TempDir,
    pub path: PathBuf,
    pub machine: Machine,
    pub parameters: Value,
    pub factors: Vec<Factor>,
}

impl Given {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self {
            path: directory.path().join("runs.db"),
            directory,
            machine: machine(),
            parameters: json!({"counts": 10, "bytes": 1u64 << 40, "load": 59.9}),
            factors: vec![Factor::new("memory", ["0", "1"])],
        }
    }

    pub fn store(&self) -> Store {
        Store::open(&self.path).unwrap()
    }

    pub fn begin(&self, store: &mut Store, experiment: &str, label: Option<&str>) -> RunId {
        let run = store.begin(&NewRun {
            experiment,
            title: "how far is far",
            label,
            parameters: &self.parameters,
            factors: &self.factors,
            cells: &Cell::all(&self.factors),
            samples_per_cell: 4,
            metrics: &[Metric::elapsed().primary()],
            seed: u64::MAX,
            warnings: &["the governor saves power".to_owned()],
            machine: &self.machine,
            fingerprint: "f",
            host: &Host::here(),
            targets: &[],
        });
        run.unwrap()
    }

    /// A complete run with one sample.
    pub fn finished(&self, store: &mut Store, experiment: &str, label: Option<&str>) -> RunId {
        let run = self.begin(store, experiment, label);
        store.add_sample(run, &sample(1, "0", 1.0)).unwrap();
        store.finish(run, &Ending::Complete).unwrap();
        run
    }

    /// Changes the file behind the store's back.
    pub fn sql(&self, text: &str) {
        rusqlite::Connection::open(&self.path)
            .unwrap()
            .execute_batch(text)
            .unwrap();
    }
}

pub fn sample(round: u32, memory: &str, seconds: f64) -> NewSample {
    let result = SampleResult::Measured {
        values: elapsed(seconds),
        warnings: vec!["another process ran".to_owned()],
        detail: json!({"faults": {"minor": 3}}),
    };
    NewSample {
        round,
        cell: Cell::new().with("memory", memory),
        started_at_s: 1.25e9,
        took_s: seconds,
        result,
    }
}

/// The values of a sample that took so long.
pub fn elapsed(seconds: f64) -> Values {
    [("elapsed_s".to_owned(), seconds.into())].into()
}

pub fn failure(round: u32, memory: &str) -> NewSample {
    NewSample {
        result: SampleResult::Failed("it died".to_owned()),
        ..sample(round, memory, 1.0)
    }
}

pub fn machine() -> Machine {
    let mut machine = Machine::empty(Origin::new(SourceKind::Synthetic, "two nodes"), "not asked");
    for node in 0..2 {
        machine.nodes.push(Node::new(NodeId(node), CpuSet::new()));
        machine.nodes.last_mut().unwrap().online = true;
    }
    machine
}

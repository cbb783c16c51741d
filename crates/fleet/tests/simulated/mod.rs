//! Folders of fleet runs whose hosts are simulated, with known deviants.

#![allow(dead_code, reason = "each program uses some of it")]

use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use fastrand::Rng;
use nearfar_fleet::engine::EngineSettings;
use nearfar_fleet::{
    Ended, Event, Folder, HostEvent, HostName, HostResult, Manifest, RESULT_SCHEMA, SCHEMA, new_id,
};
use nearfar_machine::{Distance, Known, Machine, NodeId};
use nearfar_runs::export::Whole;
use nearfar_runs::{
    Cell, Ending, Factor, Host, Level, Metric, NewRun, NewSample, SampleResult, Store, Values,
};
use nearfar_sources::{Request, Want};
use serde_json::{Value, json};

/// Standard deviation of the logarithm of a sample.
pub const SAMPLE_NOISE: f64 = 0.01;
/// The same of a host's values, besides.
pub const HOST_NOISE: f64 = 0.003;
/// Samples of a cell.
pub const SAMPLES: u32 = 6;
const METRIC: &str = "latency_ns";

/// What is wrong with which hosts, by their numbers.
#[derive(Default, Clone)]
pub struct Planted {
    /// 31 % slower memory on node 1, and firmware 2.3 instead of 2.4.
    pub old_firmware: BTreeSet<usize>,
    /// 5 % slower memory on node 2.
    pub slow_node_2: BTreeSet<usize>,
    /// Distance 32 instead of 33 from node 0 to node 3.
    pub distances: BTreeSet<usize>,
    /// NUMA balancing off.
    pub balancing: BTreeSet<usize>,
    /// Lost.
    pub lost: BTreeSet<usize>,
}

impl Planted {
    /// So many deviants among so many hosts, spread over them.
    pub fn among(hosts: usize) -> Self {
        let mut rng = Rng::with_seed(7);
        let mut all: Vec<usize> = (0..hosts).collect();
        rng.shuffle(&mut all);
        let mut next = all.into_iter();
        let mut some = |number: usize| next.by_ref().take(number).collect();
        Self {
            old_firmware: some(17),
            slow_node_2: some(20),
            distances: some(1),
            balancing: some(3),
            lost: some(5),
        }
    }

    /// The hosts that are to be named.
    pub fn deviants(&self) -> BTreeSet<usize> {
        let all = [
            &self.old_firmware,
            &self.slow_node_2,
            &self.distances,
            &self.balancing,
        ];
        all.into_iter().flatten().copied().collect()
    }
}

pub fn name(number: usize) -> HostName {
    format!("h{number:05}").parse().unwrap()
}

/// A machine of four nodes, as a host of a rack.
pub fn machine() -> Machine {
    let request = Request {
        sources: vec!["kunpeng".to_owned()],
        root: None,
        fake: None,
        want: Want::all(),
    };
    let mut machine = nearfar_sources::read(&request).unwrap();
    machine.origin.product = Known::Yes("Example Rack 1".to_owned());
    machine.origin.cpu_model = Some("Example CPU".to_owned());
    machine.origin.firmware = Some("2.4 (2026-01-31)".to_owned());
    machine.settings.numa_balancing = Known::Yes(1);
    machine
}

/// A complete run of `bench latency` on the machine, without samples.
pub fn latency_run(machine: &Machine) -> Whole {
    let nodes: Vec<u32> = machine.online_nodes().map(|node| node.id.0).collect();
    let factors = [
        Factor::new("cpu_node", nodes.clone()),
        Factor::new("memory_node", nodes),
    ];
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::open(&directory.path().join("runs.db")).unwrap();
    let run = store
        .begin(&NewRun {
            experiment: "latency",
            title: "simulated",
            label: None,
            parameters: &json!({}),
            factors: &factors,
            cells: &Cell::all(&factors),
            samples_per_cell: SAMPLES,
            metrics: &[Metric::real(METRIC, "ns", nearfar_runs::Better::Lower).primary()],
            seed: 1,
            warnings: &[],
            machine,
            fingerprint: "f",
            host: &Host::here(),
            targets: &[],
        })
        .unwrap();
    let sample = NewSample {
        round: 1,
        cell: Cell::all(&factors)[0].clone(),
        started_at_s: 1.0,
        took_s: 1.0,
        result: SampleResult::Measured {
            values: Values::from([(METRIC.to_owned(), 100.0.into())]),
            warnings: Vec::new(),
            detail: Value::Null,
        },
    };
    store.add_sample(run, &sample).unwrap();
    store.finish(run, &Ending::Complete).unwrap();
    let mut whole = store.whole(run).unwrap();
    whole.machine = Value::Null;
    whole
}

/// A normal deviate (Box and Muller).
fn normal(rng: &mut Rng) -> f64 {
    let (u, v) = (1.0 - rng.f64(), rng.f64());
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

/// Fills a run with samples; `factor` is what a cell's latency is multiplied by.
pub fn fill(whole: &mut Whole, rng: &mut Rng, factor: impl Fn(u32, u32) -> f64) {
    let template = whole.taken[0].clone();
    whole.taken.clear();
    let host = HOST_NOISE * normal(rng);
    let node = |level: Option<&Level>| match level {
        Some(Level::Number(number)) => *number as u32,
        _ => unreachable!("a node"),
    };
    for round in 1..=SAMPLES {
        for cell in &whole.detail.plan {
            let (cpu, memory) = (
                node(cell.level("cpu_node")),
                node(cell.level("memory_node")),
            );
            let usual = 90.0 + 25.0 * f64::from(cpu.abs_diff(memory));
            let value = usual * factor(cpu, memory) * (host + SAMPLE_NOISE * normal(rng)).exp();
            let mut sample = template.clone();
            sample.number = whole.taken.len() as u64 + 1;
            sample.round = round;
            sample.cell = cell.clone();
            sample.values = Values::from([(METRIC.to_owned(), value.into())]);
            whole.taken.push(sample);
        }
    }
}

/// The answer of a host.
pub fn answer(host: HostName, machine: Machine, runs: Vec<Whole>) -> HostResult {
    HostResult {
        schema: RESULT_SCHEMA.to_owned(),
        nearfar: "0.1.0".to_owned(),
        host,
        arguments: vec!["bench".to_owned(), "latency".to_owned()],
        started_at_s: 1.8e9,
        took_s: 5.0,
        ended: Ended::Answered { exit_code: 0 },
        answer: Value::Null,
        printed: String::new(),
        rollout: None,
        machine: Some(machine),
        runs,
    }
}

/// The folder of a run that asked these hosts, without answers.
pub fn folder(path: &Path, hosts: Vec<HostName>) -> Folder {
    let manifest = Manifest {
        schema: SCHEMA.to_owned(),
        id: new_id(),
        label: Some("simulated".to_owned()),
        started_at_s: 1.8e9,
        by: "tester@here".to_owned(),
        nearfar: "0.1.0".to_owned(),
        engine: EngineSettings::Local,
        command: vec!["nearfar".to_owned()],
        step: nearfar_fleet::Step::Verb,
        arguments: vec!["bench".to_owned(), "latency".to_owned()],
        at_once: 64,
        hosts,
    };
    Folder::create(path, manifest).unwrap()
}

/// Writes an answer where its host would.
pub fn put(folder: &Folder, result: &HostResult) {
    let file = File::create(folder.result_path(&result.host)).unwrap();
    result.write(BufWriter::new(file)).unwrap();
}

/// A run of so many hosts with these deviants.
pub fn simulate(path: &Path, hosts: usize, planted: &Planted, seed: u64) -> Folder {
    let folder = folder(path, (0..hosts).map(name).collect());
    let (machine, run) = (machine(), latency_run(&machine()));
    let mut rng = Rng::with_seed(seed);
    for number in 0..hosts {
        if planted.lost.contains(&number) {
            let event = HostEvent::Lost {
                reason: "its node failed during the job".to_owned(),
                is_not_begun: false,
            };
            let (at_s, by) = (1.8e9, "tester@here".to_owned());
            folder
                .append(&Event {
                    at_s,
                    by,
                    host: name(number),
                    event,
                })
                .unwrap();
            continue;
        }
        let (mut machine, mut run) = (machine.clone(), run.clone());
        machine.origin.host = Some(name(number).to_string());
        if planted.old_firmware.contains(&number) {
            machine.origin.firmware = Some("2.3 (2025-06-30)".to_owned());
        }
        if planted.balancing.contains(&number) {
            machine.settings.numa_balancing = Known::Yes(0);
        }
        if planted.distances.contains(&number)
            && let Known::Yes(table) = &mut machine.distances
        {
            table.set(NodeId(0), NodeId(3), Some(Distance(32)));
        }
        run.run.uid = format!("{number:032x}");
        fill(&mut run, &mut rng, |_, memory| match memory {
            1 if planted.old_firmware.contains(&number) => 1.31,
            2 if planted.slow_node_2.contains(&number) => 1.05,
            _ => 1.0,
        });
        put(&folder, &answer(name(number), machine, vec![run]));
    }
    folder
}

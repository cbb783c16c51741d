//! Makes a store of many runs and says how long listing them takes, in milliseconds.
//!
//! `cargo run --release -p nearfar-runs --example ten_thousand [RUNS [SAMPLES]]` (10,000 runs of 36 samples each).

use std::time::Instant;

use nearfar_machine::{CpuId, CpuSet, Machine, Node, NodeId, Origin, SourceKind};
use nearfar_runs::export::{SCHEMA, Whole};
use nearfar_runs::{
    Cell, Ending, Factor, Filter, Host, Metric, NewRun, NewSample, SampleResult, Store,
};
use serde_json::json;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args()
        .skip(1)
        .map(|argument| argument.parse::<u32>());
    let runs = arguments.next().transpose()?.unwrap_or(10_000);
    let samples = arguments.next().transpose()?.unwrap_or(36);
    let directory =
        std::env::temp_dir().join(format!("nearfar-ten-thousand-{}", std::process::id()));
    let path = directory.join("runs.db");
    let begun = Instant::now();
    fill(&path, runs, samples)?;
    let size = std::fs::metadata(&path)?.len() >> 20;
    println!(
        "{runs} runs of {samples} samples: {size} MiB, made in {:.0} s",
        begun.elapsed().as_secs_f64()
    );
    let all = Filter::default();
    let last = Filter {
        limit: Some(20),
        ..Filter::default()
    };
    for (what, filter) in [("all", &all), ("the last 20", &last)] {
        let mut took = Vec::new();
        let mut listed = 0;
        for _ in 0..15 {
            // Opened again each time, as by a command of its own.
            let begun = Instant::now();
            listed = Store::open_existing(&path)?.list(filter)?.len();
            took.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        took.sort_by(f64::total_cmp);
        println!(
            "listing {what}: {listed} runs in {:.1} ms (median of 15; {:.1} to {:.1})",
            took[7], took[0], took[14]
        );
    }
    if std::env::var_os("KEEP").is_none() {
        std::fs::remove_dir_all(&directory)?;
    } else {
        println!("kept in {}", path.display());
    }
    Ok(())
}

fn fill(path: &std::path::Path, runs: u32, samples: u32) -> Result<(), Box<dyn std::error::Error>> {
    let mut store = Store::open(path)?;
    let first = first(&mut store, samples)?;
    // The others are imported, a transaction each: every sample by itself on disk would take many minutes.
    for number in 1..runs {
        let mut run = first.clone();
        run.run.uid = format!("{number:032x}");
        run.run.experiment = if number % 3 == 0 { "io" } else { "probe" }.to_owned();
        run.machine = serde_json::to_value(machine(number % 50))?;
        store.import(&serde_json::to_vec(
            &json!({"schema": SCHEMA, "runs": [run]}),
        )?)?;
    }
    Ok(())
}

/// One run as an experiment makes it.
fn first(store: &mut Store, samples: u32) -> Result<Whole, Box<dyn std::error::Error>> {
    let factors = [
        Factor::new("memory", ["0", "1", "floating"]),
        Factor::new("cpus", ["0", "1", "floating"]),
    ];
    let cells = Cell::all(&factors);
    let run = store.begin(&NewRun {
        experiment: "probe",
        title: "the probe under load",
        label: Some("nightly"),
        parameters: &json!({"bytes": 1u64 << 30, "counts": 10, "load": 60, "pattern": "random read write"}),
        factors: &factors,
        cells: &cells,
        samples_per_cell: samples / 9,
        metrics: &[Metric::elapsed().primary()],
        seed: 1,
        warnings: &[],
        machine: &machine(0),
        fingerprint: "f",
        host: &Host::here(),
        targets: &[],
    })?;
    for index in 0..samples {
        let detail =
            json!({"faults": {"minor": index, "major": 0}, "switches": 3, "stolen_s": 0.0});
        let result = SampleResult::Measured {
            values: [("elapsed_s".to_owned(), (1.0 + f64::from(index)).into())].into(),
            warnings: vec![],
            detail,
        };
        let cell = cells[index as usize % cells.len()].clone();
        store.add_sample(
            run,
            &NewSample {
                round: 1,
                cell,
                started_at_s: 1.8e9,
                took_s: 1.0,
                result,
            },
        )?;
    }
    store.finish(run, &Ending::Complete)?;
    Ok(store.whole(run)?)
}

/// One of several machines with 4 nodes of 24 CPUs.
fn machine(variant: u32) -> Machine {
    let mut machine = Machine::empty(
        Origin::new(SourceKind::Synthetic, format!("variant {variant}")),
        "not asked",
    );
    for node in 0..4u32 {
        let cpus: CpuSet = (24 * node..24 * (node + 1)).map(CpuId).collect();
        machine.nodes.push(Node::new(NodeId(node), cpus));
    }
    machine
}

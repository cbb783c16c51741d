//! Stored runs for tests: the matrix of docs/case-2 and a run of an experiment with two metrics.
#![allow(dead_code)] // Each test binary uses another part.

use std::collections::BTreeSet;

use nearfar_bench::matrix;
use nearfar_machine::{Emulation, NodeId};
use nearfar_report::runs::Shown;
use nearfar_runs::{
    Better, Cell, CellSummary, Detail, Factor, Metric, Owner, Run, RunId, RunState, Sample, Values,
    summarise,
};
use serde_json::{Value, json};

use crate::made_up;

/// A run with all that its renderers need.
pub struct Stored {
    pub run: Run,
    pub detail: Detail,
    pub cells: Vec<CellSummary>,
    pub samples: Vec<Sample>,
}

impl Stored {
    fn new(experiment: &str, detail: Detail, samples: Vec<Sample>, cells: u64) -> Self {
        let last = samples.last().map(|sample| sample.started_at_s);
        let run = Run {
            run: RunId(1),
            uid: "0".repeat(32),
            experiment: experiment.to_owned(),
            title: "random read-then-write, 36 cells, load 10 %".to_owned(),
            label: None,
            state: RunState::Complete,
            failure: None,
            started_at_s: START_S,
            finished_at_s: last,
            samples: samples.len() as u64,
            with_warnings: samples.iter().filter(|it| !it.warnings.is_empty()).count() as u64,
            failed: samples.iter().filter(|it| it.failed.is_some()).count() as u64,
            cells,
            samples_per_cell: (samples.len() as u64 / cells) as u32,
            host: "nearfar-guest".to_owned(),
            kernel: "6.12.117+deb12-amd64".to_owned(),
            emulation: Some(Emulation::Label(
                "two-node at cpus=2,memory=512M as a guest: software emulation".to_owned(),
            )),
            nearfar: "0.1.0".to_owned(),
            fingerprint: String::new(),
            owner: Owner {
                pid: 1,
                started_ticks: 1,
                boot: String::new(),
                pid_namespace: String::new(),
            },
        };
        Self {
            run,
            cells: summarise(&detail.plan, &detail.metrics, &samples),
            detail,
            samples,
        }
    }

    pub fn shown(&self) -> Shown<'_> {
        Shown {
            run: &self.run,
            detail: &self.detail,
            machine: None,
            cells: &self.cells,
            samples: &self.samples,
            is_kept: true,
        }
    }
}

const START_S: f64 = 1_795_260_840.0;

fn detail(parameters: Value, metrics: Vec<Metric>, factors: &[&str], plan: Vec<Cell>) -> Detail {
    let factor = |name: &&str| {
        let levels: BTreeSet<_> = plan
            .iter()
            .filter_map(|cell| cell.level(name).cloned())
            .collect();
        Factor::new(*name, levels)
    };
    Detail {
        parameters,
        factors: factors.iter().map(factor).collect(),
        plan,
        metrics,
        seed: 2,
        warnings: Vec::new(),
        kernel_version: "#1 SMP PREEMPT_DYNAMIC".to_owned(),
        kernel_command_line: "console=ttyS0 numa=on".to_owned(),
        targets: Vec::new(),
    }
}

/// The 576 samples of docs/case-2/samples.csv. When each began was not exported: they follow each other here.
pub fn case_2() -> Stored {
    let csv = include_str!("../../../../docs/case-2/samples.csv");
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = lines.next().unwrap();
    let place = |name: &str| head.iter().position(|it| *it == name).unwrap();
    let [round, seconds, first_s, other_s] =
        ["round", "seconds", "first_node_s", "other_node_s"].map(place);
    let [preferred, balancing, memory, cpu] = [
        "preferred_node",
        "numa_balancing",
        "memory_node",
        "cpu_node",
    ]
    .map(place);
    let classes = ["same_core", "same_cache", "same_node", "cross_node"].map(place);
    let (mut at_s, mut plan) = (START_S, BTreeSet::new());
    let mut samples = Vec::new();
    for (line, number) in lines.zip(1..) {
        let figure = |column: usize| line[column].parse::<f64>().unwrap_or(0.0);
        let cell = format!(
            "preferred_node={},numa_balancing={},memory_node={},cpu_node={}",
            line[preferred], line[balancing], line[memory], line[cpu]
        );
        let cell = made_up::cell(&cell);
        let on_other = figure(other_s) / (figure(first_s) + figure(other_s));
        let mut sample = made_up::sample(figure(seconds), NodeId(0), on_other, 0);
        if let nearfar_machine::Known::Yes(watched) = &mut sample.trace {
            let [core, cache, node, cross] = classes.map(|class| figure(class) as u64);
            let moves = &mut watched.found.migrations;
            (moves.same_core, moves.same_cache) = (core, cache);
            (moves.same_node, moves.cross_node) = (node, cross);
        }
        let values: Values = [
            ("elapsed_s".to_owned(), figure(seconds).into()),
            (
                "cross_node_migrations".to_owned(),
                (figure(classes[3]) as u64).into(),
            ),
        ]
        .into();
        plan.insert(cell);
        samples.push(Sample {
            number,
            round: figure(round) as u32,
            cell: Cell::from(&cell),
            started_at_s: at_s,
            took_s: figure(seconds),
            values,
            failed: None,
            warnings: Vec::new(),
            detail: serde_json::to_value(&sample).unwrap(),
        });
        at_s += figure(seconds) + 0.4;
    }
    let metrics = vec![
        Metric::elapsed().primary(),
        Metric::integer("cross_node_migrations", "", Better::Lower),
    ];
    let parameters = json!({
        "pattern": "random_read_write", "bytes": 1_048_576, "counts": 250, "steps": 30_000, "calibrated_to_s": null,
        "load_percent": 10.0, "huge_pages": false, "settings": [], "nodes": [0, 1], "left_out": [],
    });
    let plan: Vec<Cell> = plan.iter().map(Cell::from).collect();
    let factors = [
        "preferred_node",
        "numa_balancing",
        "memory_node",
        "cpu_node",
    ];
    let detail = detail(parameters, metrics, &factors, plan);
    Stored::new(matrix::EXPERIMENT, detail, samples, 36)
}

/// An experiment with two metrics of different directions, one factor, a failed sample and a warning.
pub fn two_metrics() -> Stored {
    let plan: Vec<Cell> = ["a", "b", "<c>"]
        .map(|side| Cell::new().with("side", side))
        .into();
    let metrics = vec![
        Metric::real("throughput", "GB/s", Better::Higher).primary(),
        Metric::integer("page_faults", "", Better::Lower),
    ];
    let mut samples = Vec::new();
    for number in 0..24u32 {
        let place = number as usize % 3;
        let is_failed = number == 7;
        let throughput = 40.0 + 5.0 * place as f64 + f64::from(number % 5);
        let values: Values = [
            ("throughput".to_owned(), throughput.into()),
            ("page_faults".to_owned(), (number * place as u32).into()),
        ]
        .into();
        samples.push(Sample {
            number: u64::from(number) + 1,
            round: number / 3 + 1,
            cell: plan[place].clone(),
            started_at_s: START_S + f64::from(number),
            took_s: 1.0,
            values: if is_failed { Values::new() } else { values },
            failed: is_failed.then(|| "out of memory <b>".to_owned()),
            warnings: (number == 4)
                .then(|| "5.0 % stolen".to_owned())
                .into_iter()
                .collect(),
            detail: Value::Null,
        });
    }
    let detail = detail(json!({"budget_s": 1}), metrics, &["side"], plan);
    Stored::new("mock", detail, samples, 3)
}

/// A run of one metric, lower is better, with these samples of each cell.
pub fn one_metric(name: &str, unit: &str, cells: &[(&str, &[f64])]) -> Stored {
    let plan: Vec<Cell> = cells
        .iter()
        .map(|(side, _)| Cell::new().with("side", *side))
        .collect();
    let figures = cells.iter().zip(&plan);
    let figures = figures.flat_map(|((_, figures), cell)| figures.iter().map(move |it| (cell, it)));
    let samples = figures.zip(1..).map(|((cell, figure), number)| Sample {
        number,
        round: number as u32,
        cell: cell.clone(),
        started_at_s: START_S + number as f64,
        took_s: 1.0,
        values: [(name.to_owned(), (*figure).into())].into(),
        failed: None,
        warnings: Vec::new(),
        detail: Value::Null,
    });
    let samples: Vec<Sample> = samples.collect();
    let metrics = vec![Metric::real(name, unit, Better::Lower).primary()];
    let detail = detail(json!({}), metrics, &["side"], plan);
    Stored::new("mock", detail, samples, cells.len() as u64)
}

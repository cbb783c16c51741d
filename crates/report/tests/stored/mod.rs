//! Stored runs for tests: the matrix of docs/case-2, tags in the published shape, and a run of an experiment with two metrics.
#![allow(dead_code)] // Each test binary uses another part.

use std::collections::BTreeSet;

use nearfar_bench::{matrix, tags};
use nearfar_machine::{
    Acceleration, Bandwidth, CacheModel, Delays, Distance, EmulatedGuest, Emulation, NodeDelay,
    NodeId, NodeLimits, PairDelay,
};
use nearfar_report::runs::Shown;
use nearfar_runs::{
    Better, Cell, CellSummary, Detail, Factor, Histogram, Metric, MetricValue, Owner, Run, RunId,
    RunState, Sample, Values, summarise,
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
            cells: summarise(&detail, &samples),
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

/// Twelve rounds of an experiment, of every combination of its factors' levels.
pub fn rounds(
    experiment: &str,
    factors: Vec<Factor>,
    metrics: Vec<Metric>,
    sample: impl Fn(&Cell, f64) -> (Values, Value),
) -> Stored {
    let mut random = fastrand::Rng::with_seed(7);
    let plan = Cell::all(&factors);
    let mut samples = Vec::new();
    for round in 1..=12 {
        for cell in &plan {
            let (values, detail) = sample(cell, 0.99 + 0.02 * random.f64());
            samples.push(Sample {
                number: samples.len() as u64 + 1,
                round,
                cell: cell.clone(),
                started_at_s: START_S + samples.len() as f64,
                took_s: 1.0,
                values,
                failed: None,
                warnings: Vec::new(),
                detail,
            });
        }
    }
    let names: Vec<&str> = factors.iter().map(|it| it.name.as_str()).collect();
    let cells = plan.len() as u64;
    let mut detail = detail(json!({}), metrics, &names, plan);
    // As declared, not in ascending order.
    detail.factors = factors;
    Stored::new(experiment, detail, samples, cells)
}

/// A run of tags: the scenarios in rows, the policies in columns, thousands of operations a second.
const OPERATIONS: [(&str, i64, [f64; 8]); 5] = [
    (
        "near",
        248,
        [50.0, 54.0, 54.1, 60.0, 61.0, 58.0, 52.0, 66.0],
    ),
    (
        "near",
        512,
        [40.0, 44.0, 47.0, 50.0, 52.0, 52.0, 43.0, 60.0],
    ),
    ("far", 248, [30.0, 38.0, 41.0, 44.0, 47.0, 46.0, 36.0, 55.0]),
    ("far", 512, [15.0, 23.0, 22.0, 26.0, 30.0, 31.0, 24.0, 39.0]),
    (
        "alone",
        248,
        [90.0, 90.1, 89.9, 92.0, 91.8, 88.0, 70.0, 140.0],
    ),
];
const POLICIES: [&str; 8] = [
    "stock",
    "limit",
    "limit_topology",
    "coarse_core",
    "coarse_llc",
    "coarse_node",
    "bitmap",
    "auto",
];

/// Twelve rounds of case 3, made up: noise of 2 %, and a machine that becomes 10 % slower.
pub fn case_3() -> Stored {
    let mut random = fastrand::Rng::with_seed(3);
    let cell = |distance: &str, depth: i64, policy: &str| {
        let cell = Cell::new()
            .with(tags::POLICY, policy)
            .with("completion", "any");
        cell.with(tags::DISTANCE, distance).with(tags::DEPTH, depth)
    };
    let (mut plan, mut samples) = (Vec::new(), Vec::new());
    for round in 1..=12u32 {
        for (distance, depth, medians) in OPERATIONS {
            for (policy, median) in POLICIES.into_iter().zip(medians) {
                let cell = cell(distance, depth, policy);
                if round == 1 {
                    plan.push(cell.clone());
                }
                let noise = 0.99 + 0.02 * random.f64();
                let operations = 1e3 * median * noise * (1.0 - f64::from(round) / 120.0);
                let number = samples.len() as u64 + 1;
                samples.push(Sample {
                    number,
                    round,
                    values: tags_values(&cell, operations, noise),
                    cell,
                    started_at_s: START_S + 2.0 * number as f64,
                    took_s: 2.0,
                    failed: None,
                    warnings: Vec::new(),
                    detail: Value::Null,
                });
            }
        }
    }
    let metrics = vec![
        Metric::real(tags::OPERATIONS, "1/s", Better::Higher).primary(),
        Metric::real("user_s", "s", Better::Lower),
        Metric::real("system_s", "s", Better::Lower),
        Metric::real(tags::CPU_PER_OPERATION, "ns", Better::Lower),
        Metric::real(tags::SYSTEM_SHARE, "1", Better::Lower),
        Metric::real("wait_share", "1", Better::Lower),
        Metric::histogram("hand_over_ns", "ns", Better::Lower),
        Metric::integer("steals_core", "", Better::Lower),
        Metric::integer("steals_core_group", "", Better::Lower),
        Metric::integer("steals_llc", "", Better::Lower),
        Metric::integer("steals_node", "", Better::Lower),
        Metric::integer("steals_remote", "", Better::Lower),
        Metric::real("steal_distance", "", Better::Lower),
        Metric::integer("line_transfers", "", Better::Lower),
        Metric::real("fairness", "1", Better::Higher),
    ];
    let factors = [tags::DISTANCE, tags::DEPTH, "completion", tags::POLICY];
    let mut detail = detail(json!({"tags": 255, "seconds": 2}), metrics, &factors, plan);
    // As declared, not in ascending order.
    detail.factors[0] = Factor::new(tags::DISTANCE, ["near", "far", "alone"]);
    detail.factors[3] = Factor::new(tags::POLICY, POLICIES);
    let mut stored = Stored::new(tags::EXPERIMENT, detail, samples, 40);
    stored.run.title = "255 tags, 40 cells".to_owned();
    stored.run.emulation = Some(guest());
    stored
}

/// Four nodes without delays but of line transfers.
fn guest() -> Emulation {
    let limits = NodeLimits {
        cpus: Some(1),
        memory_bytes: Some(512 << 20),
    };
    let transfer = NodeDelay {
        same_node_ns: 500,
        other_node_ns: 2000,
        is_by_distance: true,
    };
    Emulation::from(EmulatedGuest {
        machine: "kunpeng".to_owned(),
        node_limits: limits,
        kernel: "6.12.117+deb12-amd64".to_owned(),
        kernel_arguments: Vec::new(),
        architecture: "x86_64".to_owned(),
        acceleration: Acceleration::Tcg,
        qemu: None,
        simulated_time: None,
        delays: Some(Delays {
            pairs: vec![PairDelay {
                cpu_node: NodeId(0),
                memory_node: NodeId(0),
                distance: Distance(10),
                delay_ns: 400,
                is_estimate: false,
            }],
            cache: CacheModel {
                bytes: 8 << 20,
                ways: 16,
                hit_ns: 0,
            },
            transfer: transfer.into(),
            bandwidth: Bandwidth::default(),
            device: None,
        }),
    })
}

fn tags_values(cell: &Cell, operations: f64, noise: f64) -> Values {
    let policy = cell.text(tags::POLICY);
    let is_stealing = policy != "bitmap" && cell.text(tags::DISTANCE) != "alone";
    let steals = |share: f64| {
        MetricValue::from((f64::from(u8::from(is_stealing)) * share * noise * 1e4) as u64)
    };
    let remote = if policy == "stock" { 0.7 } else { 0.2 };
    let mut hand_over = Histogram::new();
    let waits = if cell.text(tags::DEPTH) == "512" {
        20
    } else {
        0
    };
    (0..waits).for_each(|wait| hand_over.record(4000 + wait * 700));
    let share = (1.0 - operations / 1.5e5).clamp(0.0, 1.0);
    let mut values: Values = [
        (tags::OPERATIONS, operations.into()),
        ("user_s", (4.0 * (1.0 - share)).into()),
        ("system_s", (4.0 * share).into()),
        (tags::SYSTEM_SHARE, share.into()),
        ("wait_share", (share * 0.4).into()),
        ("steals_core", steals(0.05)),
        ("steals_core_group", steals(0.0)),
        ("steals_llc", steals(0.1)),
        ("steals_node", steals(0.2)),
        ("steals_remote", steals(remote)),
        ("steal_distance", (10.0 + 22.0 * remote).into()),
        ("line_transfers", (1_000_000u64).into()),
        ("fairness", (0.9 * noise).into()),
        (tags::CPU_PER_OPERATION, (1e9 / operations).into()),
    ]
    .map(|(name, value): (&str, MetricValue)| (name.to_owned(), value))
    .into();
    if waits > 0 {
        values.insert("hand_over_ns".to_owned(), hand_over.into());
    }
    values
}

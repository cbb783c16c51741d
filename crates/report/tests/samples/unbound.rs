//! Probes of unbound tasks, made up.

use nearfar_bench::matrix::{MatrixCell, Migrated, Parameters, Policy, Question, Ratio, Row};
use nearfar_bench::probe::{Pattern, Where};
use nearfar_bench::unbound::{UnboundContrast, UnboundTasks};
use nearfar_machine::*;
use nearfar_runs::Counted;
use nearfar_statistics::{Figures, Interval, Moments};

/// Of a machine's first two nodes, on which unbound tasks are slower.
pub fn of(machine: &Machine) -> Known<UnboundTasks> {
    let nodes: Vec<NodeId> = machine.online_nodes().map(|node| node.id).take(2).collect();
    let [first, second] = nodes[..] else {
        return Known::no("only one node has CPUs");
    };
    let (near, float) = (Where::Node, Where::Floating);
    let places = [
        (near(first), near(first)),
        (near(first), float),
        (near(second), near(second)),
        (near(second), float),
    ];
    let cells = places
        .into_iter()
        .chain([(float, float)])
        .map(|(memory, cpus)| cell(memory, cpus));
    let cells: Vec<MatrixCell> = cells.collect();
    let host = machine.origin.host.clone().unwrap_or_default();
    let warning = Counted {
        what: format!("something else ran on {host}"),
        samples: 2,
        differ: false,
    };
    Known::Yes(UnboundTasks {
        parameters: parameters(nodes, cells.clone()),
        contrasts: vec![
            floated(Question::UnboundCpus, 1.09, (1.04, 1.13), 31),
            floated(Question::AllUnbound, 1.001, (0.97, 1.0204), 7),
        ],
        rows: cells
            .into_iter()
            .enumerate()
            .map(|(row, cell)| figures(row, cell))
            .collect(),
        warnings: vec![warning],
        load_cpus: machine.cpu_states.online.clone(),
        numa_balancing: Known::Yes(false),
        elapsed_s: 24.7,
        emulation: machine.origin.emulation.clone(),
    })
}

fn floated(
    question: Question,
    median: f64,
    (low, high): (f64, f64),
    cross_node: u64,
) -> UnboundContrast {
    let ratio = Ratio {
        median,
        confidence: Some(Interval { low, high }),
        rounds: 9,
    };
    UnboundContrast {
        question,
        ratio: Known::Yes(ratio),
        cross_node: Known::Yes(cross_node),
        seconds: 12.3,
    }
}

fn cell(memory: Where, cpus: Where) -> MatrixCell {
    MatrixCell {
        policy: Policy {
            preferred_node: None,
            numa_balancing: false,
        },
        memory_node: memory,
        cpu_node: cpus,
    }
}

fn parameters(nodes: Vec<NodeId>, cells: Vec<MatrixCell>) -> Parameters {
    Parameters {
        pattern: Pattern::RandomReadWrite,
        bytes: 128 << 20,
        counts: 100,
        steps: 90_000,
        calibrated_to_s: Some(0.51),
        load_percent: 5.0,
        load_period_s: 0.01,
        huge_pages: false,
        first_touch: None,
        settings: Vec::new(),
        nodes,
        cells,
        left_out: Vec::new(),
    }
}

fn figures(row: usize, cell: MatrixCell) -> Row {
    let seconds: Vec<f64> = (0..9)
        .map(|run| 0.5 + 0.02 * row as f64 + 0.001 * f64::from(run))
        .collect();
    let migrated = Migrated {
        same_core: 0.0,
        same_cache: 1.0,
        same_node: 2.0,
        cross_node: 3.0,
    };
    Row {
        row,
        cell,
        moments: Moments::of(&seconds),
        seconds: Figures::of(seconds),
        migrations: Known::Yes(migrated),
        far_share: Known::Yes(0.1),
        pages_migrated: Known::Yes(0.0),
        keeper_cpu_share: None,
        with_warnings: 0,
        failed: Vec::new(),
    }
}

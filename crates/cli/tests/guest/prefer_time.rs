//! What a preferred node costs and gains in a guest with two nodes, in the slow tier: how often a task leaves it under a little load, how
//! fast it is there, and how much sooner the tasks of a full node end that may leave it.
//!
//! Needs QEMU, a cached kernel (`nearfar lab kernels get 6.12`) and a static busybox; without them it says so and passes. The
//! parts named `inside_...` are this very program once more, started in the guest.
//! `cargo test -p nearfar --test guest prefer_time:: -- --nocapture` prints the figures that docs/prefer.md shows.

use std::path::Path;
use std::process::Child;
use std::time::Instant;

use crate::guests;
use crate::prefer::{HOME, Runs, SCALE, Way, burner, home_cpus, machine, probe};
use nearfar_bench::load::{Load, PERIOD_S};
use nearfar_machine::Machine;
use nearfar_prefer::{Keeper, KeeperOptions, Targets};
use nearfar_trace::watch::Watch;

/// The guest boots: docs/lab-guests.md says what a start from a saved guest costs measurements.
const GUEST: [&str; 3] = ["--cold", SCALE[0], SCALE[1]];

/// Moves between nodes in one run of a kept task.
const MOST_MOVES: u64 = 12;
/// A kept run relative to a confined one of the same round, in the median of the rounds. On a quiet host it is 1.00.
const AS_BOUND: f64 = 1.4;
/// Of a CPU, for the keeper. On a quiet host 0.0064; a guest counts what its own CPU loses to others on the host.
const KEEPER: f64 = 0.05;
/// The better of two kept runs relative to the better of two confined ones. On a quiet host 0.55.
const SOONER: f64 = 0.85;

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 {
        values[middle]
    } else {
        (values[middle - 1] + values[middle]) / 2.0
    }
}

#[test]
#[ignore = "runs in the guest"]
fn inside_under_a_little_load() {
    assert!(
        guests::is_inside(),
        "this part changes a kernel: it runs in a guest"
    );
    std::fs::write("/proc/sys/kernel/numa_balancing", "0").unwrap();
    let machine = machine();
    let load = Load::start(
        Path::new(guests::NEARFAR),
        &machine.cpu_states.online,
        5.0,
        PERIOD_S,
        false,
    )
    .unwrap();
    let mut watch = Watch::open(&machine).unwrap();
    let mut first = Runs::default();
    // The first one also translates the code.
    (0..2).for_each(|_| probe(Way::Bound, &machine, &mut watch, 20_000, &mut first));
    let steps = (20_000.0 * 4.0 / first.seconds[1]) as u64;
    let mut ways = [
        (Way::Free, Runs::default()),
        (Way::Bound, Runs::default()),
        (Way::Kept, Runs::default()),
    ];
    for round in 0..3 {
        for turn in 0..ways.len() {
            let (way, runs) = &mut ways[(round + turn) % 3];
            probe(*way, &machine, &mut watch, steps, runs);
        }
    }
    println!(
        "{:?}",
        load.stop()
            .unwrap()
            .cpus
            .iter()
            .map(|cpu| cpu.achieved_percent.round())
            .collect::<Vec<_>>()
    );
    for (way, runs) in &ways {
        println!(
            "{way:?}: median {:.3} s, cross-node {:?}, keeper {:.4}, released {}",
            median(&runs.seconds),
            runs.cross_node,
            runs.keeper_share.iter().sum::<f64>() / runs.keeper_share.len().max(1) as f64,
            runs.widened
        );
        println!("  {:.2?}", runs.seconds);
    }
    let [_, (_, bound), (_, kept)] = &ways;
    let ratios: Vec<f64> = kept
        .seconds
        .iter()
        .zip(&bound.seconds)
        .map(|(kept, bound)| kept / bound)
        .collect();
    println!(
        "kept relative to bound {ratios:.3?}, median {:.3}",
        median(&ratios)
    );
    assert!(
        kept.cross_node.iter().all(|&moves| moves <= MOST_MOVES),
        "{:?}",
        kept.cross_node
    );
    assert!(median(&ratios) < AS_BOUND, "{ratios:?}");
    assert!(
        median(&kept.keeper_share) < KEEPER,
        "{:?}",
        kept.keeper_share
    );
}

/// How long it takes until all have burnt theirs.
fn burn_all(way: Way, machine: &Machine, tasks: usize, seconds: f64) -> f64 {
    let home = home_cpus(machine);
    let begun = Instant::now();
    let bound = (way == Way::Bound).then_some(&home);
    let mut children: Vec<Child> = (0..tasks).map(|_| burner(seconds, bound)).collect();
    let pids = children
        .iter()
        .map(|child| child.id().cast_signed())
        .collect();
    let keep =
        || Keeper::start(Targets::Pids(pids), HOME, machine, KeeperOptions::default()).unwrap();
    let keeper = (way == Way::Kept).then(keep);
    children
        .iter_mut()
        .for_each(|child| assert!(child.wait().unwrap().success()));
    let took = begun.elapsed().as_secs_f64();
    if let Some(keeper) = keeper {
        println!("  {}", keeper.stop().unwrap());
    }
    took
}

#[test]
#[ignore = "runs in the guest"]
fn inside_a_full_node() {
    assert!(
        guests::is_inside(),
        "this part changes a kernel: it runs in a guest"
    );
    let machine = machine();
    let seconds = 6.0;
    let mut took = [
        (Way::Free, Vec::new()),
        (Way::Bound, Vec::new()),
        (Way::Kept, Vec::new()),
    ];
    for _ in 0..2 {
        for (way, took) in &mut took {
            took.push(burn_all(*way, &machine, 4, seconds));
        }
    }
    took.iter()
        .for_each(|(way, took)| println!("{way:?} {took:.2?}"));
    let by_free = |index: usize| took[index].1.iter().sum::<f64>() / took[0].1.iter().sum::<f64>();
    println!(
        "relative to free: confined {:.2}, kept {:.2}",
        by_free(1),
        by_free(2)
    );
    let best = |index: usize| took[index].1.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(
        best(2) < SOONER * best(1),
        "kept {:.2} s, confined {:.2} s",
        best(2),
        best(1)
    );
}

/// In the slow tier: run times and CPU time are compared, and how often the scheduler of a guest under load moves a task depends on
/// what the host leaves it.
#[test]
fn under_a_little_load_a_kept_task_stays_on_its_node_and_is_as_fast_as_a_bound_one() {
    if guests::skipped() {
        return;
    }
    guests::part(
        "two-node",
        &GUEST,
        "prefer_time::inside_under_a_little_load",
    );
}

/// In the slow tier: run times are compared.
#[test]
fn four_kept_tasks_of_a_full_node_end_sooner_than_four_bound_ones() {
    if guests::skipped() {
        return;
    }
    guests::part("two-node", &GUEST, "prefer_time::inside_a_full_node");
}

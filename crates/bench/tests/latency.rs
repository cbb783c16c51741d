//! The probe on the machine the tests run on, made small.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nearfar_bench::latency::{
    LatencyMatrix, LatencyOptions, Measured, ProbeError, Warning, measure,
};
use nearfar_experiment::sampler::Warning::CutShort;
use nearfar_machine::{CpuId, CpuSet, Emulation, Machine, Node, NodeId, Origin, SourceKind};

use crate::here::this_system;

fn small() -> LatencyOptions {
    LatencyOptions {
        budget: Duration::from_secs(2),
        buffer_bytes: Some(8 << 20),
        max_samples: 7,
        ..LatencyOptions::default()
    }
}

#[test]
fn a_tiny_measurement_of_one_node_gives_plausible_samples() {
    let mut machine = this_system();
    machine.origin.emulation = Some(Emulation::Label(
        "emulated machine, delays 90/140 ns".to_owned(),
    ));
    let before = rustix::thread::sched_getaffinity(None).unwrap();
    let begun = Instant::now();
    let matrix = measure(&machine, &small()).unwrap().answer;
    let elapsed = begun.elapsed();
    assert_eq!(
        rustix::thread::sched_getaffinity(None).unwrap(),
        before,
        "the caller's affinity is its own"
    );
    let [pair] = &matrix.pairs[..] else {
        panic!("one pair expected: {matrix:?}")
    };
    assert_eq!(pair.samples_ns.len(), 7);
    assert!(
        pair.samples_ns
            .iter()
            .all(|&sample| sample > 0.1 && sample < elapsed.as_nanos() as f64),
        "{:?}",
        pair.samples_ns
    );
    assert!(pair.low_ns <= pair.median_ns && pair.median_ns <= pair.high_ns);
    assert_eq!(pair.distance, machine.distance(NodeId(0), NodeId(0)));
    assert_eq!(matrix.buffer_bytes, 8 << 20);
    assert!(
        matrix.warnings.contains(&Warning::UnknownCache),
        "no caches are known in this test"
    );
    assert_eq!(matrix.emulation, machine.origin.emulation);
    assert!(matrix.elapsed_s > 0.0 && matrix.elapsed_s <= elapsed.as_secs_f64());
}

#[test]
fn a_node_that_does_not_exist_is_skipped_with_a_reason() {
    let mut machine = this_system();
    machine.nodes.push(Node::new(NodeId(900), CpuSet::new()));
    match measure(&machine, &small()) {
        Ok(Measured { answer: matrix, .. }) => {
            assert!(
                matrix
                    .pairs
                    .iter()
                    .all(|pair| pair.memory_node == NodeId(0)),
                "{:?}",
                matrix.pairs
            );
            let skipped = matrix
                .skipped
                .iter()
                .find(|skipped| skipped.memory_node == Some(NodeId(900)));
            assert!(
                skipped.is_some_and(|skipped| skipped.reason.contains("bound")),
                "{:?}",
                matrix.skipped
            );
        }
        Err(error) => panic!("node 0 can always be measured: {error}"),
    }
}

#[test]
fn only_the_live_system_is_measured() {
    let mut machine = this_system();
    machine.origin.kind = SourceKind::NumactlText;
    assert!(matches!(
        measure(&machine, &small()),
        Err(ProbeError::NotThisMachine { .. })
    ));
    machine.origin.kind = SourceKind::Live;
    machine.origin.overlays.push("fake: 2U".to_owned());
    let error = measure(&machine, &small()).unwrap_err();
    assert!(error.to_string().contains("fake: 2U"), "{error}");
}

#[test]
fn a_machine_without_nodes_or_usable_cpus_has_nothing_to_measure() {
    let empty = Machine::empty(Origin::new(SourceKind::Live, "this system"), "nothing");
    assert!(matches!(
        measure(&empty, &small()),
        Err(ProbeError::NothingToMeasure { .. })
    ));
    let mut elsewhere = this_system();
    elsewhere.nodes[0].cpus = CpuSet::single(CpuId(65_000)).into();
    elsewhere.cpu_states.online = CpuSet::single(CpuId(65_000));
    let error = measure(&elsewhere, &small()).unwrap_err();
    assert!(
        matches!(error, ProbeError::NothingToMeasure { .. }),
        "{error}"
    );
}

#[test]
fn a_cancelled_probe_ends_at_once() {
    let options = LatencyOptions {
        budget: Duration::from_secs(600),
        ..small()
    };
    options.cancel.store(true, Ordering::Relaxed);
    assert!(matches!(
        measure(&this_system(), &options),
        Err(ProbeError::Cancelled)
    ));
}

#[test]
fn a_budget_of_nothing_still_yields_a_sample_and_says_that_it_is_thin() {
    let options = LatencyOptions {
        budget: Duration::ZERO,
        ..small()
    };
    let matrix = measure(&this_system(), &options).unwrap().answer;
    assert_eq!(matrix.pairs[0].samples_ns.len(), 1);
    assert!(
        matrix
            .warnings
            .iter()
            .any(|warning| matches!(warning, Warning::Sampling(CutShort { samples: 1, .. })))
    );
}

#[test]
fn a_result_can_be_stored_and_read_back() {
    let matrix = measure(&this_system(), &small()).unwrap().answer;
    let stored = serde_json::to_string(&matrix).unwrap();
    assert_eq!(
        serde_json::from_str::<LatencyMatrix>(&stored).unwrap(),
        matrix
    );
    for key in [
        "median_ns",
        "buffer_bytes",
        "elapsed_s",
        "cpu_node",
        "page_kind",
    ] {
        assert!(stored.contains(key), "{key} is missing in {stored}");
    }
}

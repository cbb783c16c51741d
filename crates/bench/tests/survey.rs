//! The whole survey on the machine the tests run on, made small.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nearfar_bench::bandwidth::Traffic;
use nearfar_bench::options::{HugePages, ProbeError, ProbeOptions};
use nearfar_bench::survey::{Part, Survey, SurveyOptions, measure};
use nearfar_bench::warning::Warning;
use nearfar_machine::{CpuSet, Emulation, Known, Machine, Memory, Nearness, Node, NodeId, NodeSet};

use crate::here::this_system;

fn small(parts: &[Part]) -> SurveyOptions {
    let probe = ProbeOptions {
        budget: Duration::from_secs(3),
        buffer_bytes: Some(8 << 20),
        max_samples: 7,
        ..ProbeOptions::default()
    };
    SurveyOptions {
        parts: parts.to_vec(),
        probe,
        ..SurveyOptions::default()
    }
}

fn several_cpus(machine: &Machine) -> bool {
    machine.cpus.len() > 1
}

#[test]
fn a_tiny_survey_gives_plausible_figures_of_all_parts() {
    let mut machine = this_system();
    machine.origin.emulation = Some(Emulation::Label(
        "emulated machine, delays 90/140 ns".to_owned(),
    ));
    let survey = measure(&machine, &small(&Part::ALL)).unwrap().answer;
    assert_eq!(survey.emulation, machine.origin.emulation);
    let latency = survey.latency.as_ref().unwrap();
    assert!(
        (0.1..1e5).contains(&latency.pairs[0].median_ns),
        "{:?}",
        latency.pairs
    );
    assert!(
        latency.pairs[0]
            .confidence_ns
            .is_some_and(|c| c.low <= c.high),
        "seven samples give an interval"
    );
    let bandwidth = survey.bandwidth.as_ref().unwrap();
    assert_eq!(bandwidth.method.emulation, machine.origin.emulation);
    for traffic in Traffic::ALL {
        let pair = bandwidth.pair(traffic, NodeId(0), NodeId(0)).unwrap();
        assert_eq!(
            &pair.cpus,
            machine.nodes[0].known_cpus(),
            "all CPUs of the node take part"
        );
        assert!(
            (1e7..1e13).contains(&pair.bytes_per_s.median),
            "{traffic}: {:?}",
            pair.bytes_per_s
        );
        assert!(!pair.bytes_per_s.samples.is_empty());
    }
    let missing: Vec<Part> = survey.not_measured.iter().map(|it| it.part).collect();
    let needs_nodes = [Part::Interleaved]
        .into_iter()
        .filter(|_| machine.nodes.len() == 1);
    let needs_cpus = [Part::Loaded, Part::Transfer]
        .into_iter()
        .filter(|_| !several_cpus(&machine));
    let mut expected: Vec<Part> = needs_cpus.chain(needs_nodes).collect();
    expected.sort_by_key(|part| Part::ALL.iter().position(|it| it == part));
    assert_eq!(missing, expected);
    if !several_cpus(&machine) {
        return println!("skipped: cpus: transfers and loads need two CPUs");
    }
    let loaded = survey.loaded.as_ref().unwrap();
    let curve = &loaded.curves[0];
    assert!(!curve.readers.contains(curve.cpu) && !curve.readers.is_empty());
    let read = |point: usize| curve.points[point].read_bytes_per_s.median;
    let last = curve.points.len() - 1;
    assert_eq!(
        (curve.points[0].pause, curve.points[last].pause),
        (None, Some(0))
    );
    assert!(read(0) == 0.0 && read(0).is_sign_positive(), "{curve:?}");
    assert!(read(last) > 1e7, "{curve:?}");
    let latencies = curve.points.iter().map(|it| it.latency_ns.median);
    assert!(
        latencies.into_iter().all(|ns| (0.1..1e6).contains(&ns)),
        "{curve:?}"
    );
    let transfer = survey.transfer.as_ref().unwrap();
    assert_eq!(transfer.emulation, machine.origin.emulation);
    match (&transfer.pairs[..], &transfer.skipped[..]) {
        ([pair], []) => {
            assert_eq!(
                pair.nearness,
                Nearness::Node,
                "the test names no cores and no caches"
            );
            assert!((1.0..5e4).contains(&pair.round_trip_ns.median), "{pair:?}");
            assert_eq!(transfer.pair(pair.second, pair.first), Some(pair));
        }
        ([], [skipped]) => assert!(skipped.reason.contains("side by side"), "{skipped:?}"),
        other => panic!("one pair expected: {other:?}"),
    }
    let stored = serde_json::to_string(&survey).unwrap();
    assert_eq!(serde_json::from_str::<Survey>(&stored).unwrap(), survey);
}

#[test]
fn threads_can_be_fewer_than_cpus() {
    let options = SurveyOptions {
        threads: Some(1),
        ..small(&[Part::Bandwidth])
    };
    let survey = measure(&this_system(), &options).unwrap().answer;
    assert!(survey.latency.is_none() && survey.transfer.is_none());
    assert!(
        survey
            .bandwidth
            .unwrap()
            .pairs
            .iter()
            .all(|pair| pair.cpus.len() == 1)
    );
}

#[test]
fn pages_are_bound_and_verified_where_there_are_nodes_to_mix_up() {
    let mut machine = this_system();
    // The kernel has no such node: its memory has to be found missing, and node 0's found in place.
    machine.nodes.push(Node::new(NodeId(900), CpuSet::new()));
    let survey = measure(&machine, &small(&[Part::Latency, Part::Bandwidth]))
        .unwrap()
        .answer;
    let (latency, bandwidth) = (survey.latency.unwrap(), survey.bandwidth.unwrap());
    for skipped in [&latency.skipped, &bandwidth.method.skipped] {
        assert!(
            skipped
                .iter()
                .any(|s| s.memory_node == Some(NodeId(900)) && s.reason.contains("bound")),
            "{skipped:?}"
        );
    }
    assert!(
        latency
            .pairs
            .iter()
            .all(|pair| pair.memory_node == NodeId(0))
    );
    let refused = latency
        .warnings
        .iter()
        .any(|w| matches!(w, Warning::BindRefused { .. } | Warning::Unverified { .. }));
    assert!(
        !refused || std::env::var_os("container").is_some(),
        "{:?}",
        latency.warnings
    );
}

#[test]
fn base_pages_can_be_had_and_are_named() {
    let mut options = small(&[Part::Latency]);
    options.probe.huge_pages = HugePages::Off;
    let latency = measure(&this_system(), &options)
        .unwrap()
        .answer
        .latency
        .unwrap();
    assert_eq!(latency.page_kind, nearfar_bench::latency::PageKind::Base);
    assert!(
        latency.warnings.contains(&Warning::BasePagesAsked),
        "{:?}",
        latency.warnings
    );
}

#[test]
fn a_pool_that_is_empty_is_said_to_be_and_replaced() {
    let mut options = small(&[Part::Latency]);
    options.probe.huge_pages = HugePages::Pool;
    let latency = measure(&this_system(), &options)
        .unwrap()
        .answer
        .latency
        .unwrap();
    assert!(
        latency
            .warnings
            .iter()
            .any(|warning| matches!(warning, Warning::NoPool { .. })),
        "{:?}",
        latency.warnings
    );
}

#[test]
fn nodes_that_cannot_be_measured_as_asked_are_named() {
    let mut machine = this_system();
    machine.nodes.push(Node::new(NodeId(1), CpuSet::new()));
    machine.nodes.push(Node {
        memory: Known::Yes(Memory::of(0)),
        ..Node::new(NodeId(2), CpuSet::new())
    });
    let refusal = |parts: &[Part], from: Option<&str>, to: Option<&str>| {
        let mut options = small(parts);
        let set = |list: &str| NodeSet::parse_list(list).unwrap();
        (options.probe.from, options.probe.to) = (from.map(set), to.map(set));
        measure(&machine, &options).unwrap_err().to_string()
    };
    assert!(refusal(&[Part::Latency], Some("1"), None).contains("node 1 has no CPU"));
    assert!(refusal(&[Part::Transfer], Some("1"), None).contains("node 1 has no CPU"));
    assert!(refusal(&[Part::Transfer], None, Some("2")).contains("node 2 has no CPU"));
    assert!(refusal(&[Part::Bandwidth], None, Some("2")).contains("node 2 has no memory"));
    assert!(refusal(&[Part::Bandwidth], None, Some("7")).contains("no node 7"));
}

#[test]
fn one_cpu_has_no_peer_for_transfers() {
    let mut machine = this_system();
    let only = machine.nodes[0].known_cpus().first().unwrap();
    machine.cpu_states.online = CpuSet::single(only);
    let error = measure(&machine, &small(&[Part::Transfer])).unwrap_err();
    assert!(
        matches!(&error, ProbeError::NothingToMeasure { reason } if reason.contains("two CPUs")),
        "{error}"
    );
    let survey = measure(&machine, &small(&[Part::Latency, Part::Transfer]))
        .unwrap()
        .answer;
    assert!(survey.latency.is_some() && survey.transfer.is_none());
    assert_eq!(survey.not_measured[0].part, Part::Transfer);
}

#[test]
fn a_survey_can_be_cancelled_while_it_runs() {
    for part in Part::ALL {
        let here = this_system();
        if part == Part::Transfer && !several_cpus(&here) {
            return println!("skipped: cpus: transfers need two CPUs");
        }
        // Of one node it says at once that there is nothing to measure.
        if part == Part::Interleaved && here.nodes.len() == 1 {
            continue;
        }
        let cancel = Arc::new(AtomicBool::new(false));
        let mut options = small(&[part]);
        // Far more than fits into the test's time limit: it ends because it is cancelled.
        options.probe = ProbeOptions {
            budget: Duration::from_secs(600),
            max_samples: 1_000_000,
            cancel: cancel.clone(),
            ..options.probe
        };
        let (machine, (sender, ended)) = (this_system(), std::sync::mpsc::channel());
        std::thread::spawn(move || {
            // The receiver is only gone when the test has failed already.
            let _ = sender.send(measure(&machine, &options).map(|measured| measured.answer));
        });
        match ended.recv_timeout(Duration::from_millis(300)) {
            Err(_) => {}
            Ok(Ok(Survey {
                transfer: Some(transfer),
                ..
            })) if !transfer.skipped.is_empty() => {
                println!("skipped: cpus: {}", transfer.skipped[0].reason);
                continue;
            }
            Ok(result) => panic!("{part} ended early: {result:?}"),
        }
        cancel.store(true, Ordering::Relaxed);
        let result = ended
            .recv_timeout(Duration::from_secs(60))
            .expect("a cancelled survey ends");
        // How far it came is the host's affair; samples that there are have the warning.
        match result {
            Err(ProbeError::Cancelled) => {}
            Ok(survey) => {
                let warnings = serde_json::to_string(&survey).unwrap();
                assert!(warnings.contains(r#""kind":"cancelled""#), "{warnings}");
            }
            Err(other) => panic!("{part}: {other:?}"),
        }
    }
}

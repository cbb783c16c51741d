//! The probe's matrix as text, over made-up samples whose truth is known: published columns, sentences, honesty.

use crate::made_up::{two_nodes, world};
use nearfar_bench::matrix::{Answer, LeftOut, MatrixCell, Parameters, RunFailed, Taken};
use nearfar_bench::probe::Pattern;
use nearfar_machine::{Known, NodeId};
use nearfar_report::{Style, probe};

fn parameters(cells: &[MatrixCell]) -> Parameters {
    Parameters {
        pattern: Pattern::RandomReadWrite,
        bytes: 64 << 20,
        counts: 100,
        steps: 1_000_000,
        calibrated_to_s: Some(10.0),
        load_percent: 60.0,
        load_period_s: 0.01,
        huge_pages: false,
        first_touch: None,
        settings: Vec::new(),
        nodes: vec![NodeId(0), NodeId(1)],
        cells: cells.to_vec(),
        left_out: vec![LeftOut {
            what: "cells of node 7".to_owned(),
            reason: "it has no CPU".to_owned(),
        }],
    }
}

fn text(cells: &[MatrixCell], taken: &[Taken]) -> String {
    let answer = Answer::new(parameters(cells), taken);
    let text = probe::tables(&answer).to_text(&Style::default());
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
    text
}

/// The text without its line breaks, for sentences that are wrapped.
fn flowing(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_whole_matrix_as_it_is_shown() {
    let cells = two_nodes();
    insta::assert_snapshot!(text(&cells, &world(&cells, 16, 0.01)));
}

#[test]
fn findings_are_sentences_with_their_intervals() {
    let cells = two_nodes();
    let said = flowing(&text(&cells, &world(&cells, 16, 0.01)));
    for sentence in [
        "CPUs bound to another node than the memory: 1.2",
        "published for a two-socket Xeon Platinum 8167M under 60 % load: 1.24",
        "each cross-node migration cost 13.9 ms (13.8 to 14.1)",
        "running far all the time cost 24.0 % (23.9 to 24.1)",
        "not measured: cells of node 7: it has no CPU",
    ] {
        assert!(said.contains(sentence), "{sentence}\n{said}");
    }
}

#[test]
fn a_load_that_others_kept_from_the_cpus_is_said_to_be_short() {
    let cells: Vec<MatrixCell> = two_nodes().into_iter().take(4).collect();
    let said = |had: f64, waited: f64| {
        let mut taken = world(&cells, 6, 0.01);
        for sample in taken
            .iter_mut()
            .filter_map(|taken| taken.sample.as_mut().ok())
        {
            sample.load_percent = Known::Yes(had);
            sample.probe.waited_s = Known::Yes(waited * sample.probe.seconds);
        }
        flowing(&text(&cells, &taken))
    };
    let quiet = said(55.0, 0.45);
    assert!(
        quiet.contains("60 % of each 10 ms; it had 55.0 % of the CPUs"),
        "{quiet}"
    );
    assert!(!quiet.contains("others worked"), "{quiet}");
    let crowded = said(8.7, 0.92);
    let says = "the load had 8.7 % of the CPUs instead of 60 % and the probe waited for a CPU 92 % of the time";
    assert!(
        crowded.contains(says) && crowded.contains("others worked on these CPUs"),
        "{crowded}"
    );
    assert!(
        said(55.0, 0.8).contains("others worked"),
        "the probe's waits alone tell it, too"
    );
    let mut taken = world(&cells, 6, 0.01);
    for sample in taken
        .iter_mut()
        .filter_map(|taken| taken.sample.as_mut().ok())
    {
        (sample.probe.seconds, sample.load_percent) = (0.01, Known::Yes(0.0));
    }
    assert!(
        !flowing(&text(&cells, &taken)).contains("others worked"),
        "a run within a period of the load"
    );
}

#[test]
fn nothing_is_claimed_from_a_few_samples() {
    let cells = two_nodes();
    let said = flowing(&text(&cells, &world(&cells, 5, 0.01)));
    assert!(
        said.contains("in 5 rounds; six would give an interval"),
        "{said}"
    );
    let said = flowing(&text(&cells, &[]));
    assert!(
        said.contains("unknown: no round has a sample of every cell it takes"),
        "{said}"
    );
    assert!(!said.contains("NaN"), "{said}");
}

#[test]
fn a_run_that_failed_is_counted_and_named() {
    let cells: Vec<MatrixCell> = two_nodes().into_iter().take(4).collect();
    let mut taken = world(&cells, 6, 0.01);
    for taken in taken.iter_mut().filter(|taken| taken.cell == cells[1]) {
        taken.sample = Err(RunFailed("out of memory \u{1b}[31m".to_owned()));
    }
    let said = flowing(&text(&cells, &taken));
    assert!(
        said.contains("6 samples of cell preferred_node=-1,numa_balancing=0,memory_node=0,cpu_node=1 failed: out of memory"),
        "{said}"
    );
    assert!(!said.contains('\u{1b}'));
}

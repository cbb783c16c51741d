//! A and B side by side.

use fastrand::Rng;
use nearfar_compare::answers::{
    AnswerComparison, AnswerValue, CommandRun, CommandSide, ValueSelection,
};
use nearfar_machine::Emulation;
use nearfar_report::Style;
use nearfar_report::ab::document;
use nearfar_statistics::compare::Verdict;
use nearfar_trace::kernel::{Activity, ActivityKind, KernelActivity};
use proptest::prelude::ProptestConfig;

fn side(kernel: &str, answers: &[(&str, f64)]) -> CommandSide {
    CommandSide {
        settings: [("kernel".to_owned(), kernel.to_owned())].into(),
        emulation: Some(Emulation::Label(
            "powerpc-case1, software emulation, no delays".to_owned(),
        )),
        runs: answers
            .iter()
            .map(|&(stdout, elapsed_s)| CommandRun {
                elapsed_s,
                exit_code: 0,
                stdout: stdout.to_owned(),
                stderr: String::new(),
                kernel: None,
            })
            .collect(),
    }
}

fn compared(command: &str, a: CommandSide, b: CommandSide, selection: &[&str]) -> AnswerComparison {
    let selection = ValueSelection::new(
        selection
            .iter()
            .map(|&pattern| pattern.to_owned())
            .collect(),
    );
    AnswerComparison::of(
        command.split(' ').map(str::to_owned).collect(),
        a,
        b,
        &selection,
        false,
    )
}

#[test]
fn text_is_compared_line_by_line_with_its_spacing_kept() {
    let before = "online   0\nnode 0:  10\nnvme1 node  -1\n";
    let after = "online   0,2\nnode 0:  10\nnvme1 node   2\n";
    let comparison = compared(
        "show nodes",
        side("6.1", &[(before, 1.0), (before, 1.1)]),
        side("6.12", &[(after, 1.0), (after, 1.2)]),
        &[],
    );
    insta::assert_snapshot!(document(&comparison).to_text(&Style::default()));
}

#[test]
fn json_is_compared_by_path_and_equal_values_are_counted() {
    let answer = |iops: u32, node: &str| {
        format!(r#"{{"tool": "x", "jobs": [{{"name": "far", "iops": {iops}}}], "node": {node}}}"#)
    };
    let (a, b): (Vec<String>, Vec<String>) = (0..6)
        .map(|run| {
            (
                answer(632 + run * 5 % 7, "null"),
                answer(715 + run * 5 % 7, "2"),
            )
        })
        .unzip();
    let runs = |texts: &[String]| {
        texts
            .iter()
            .map(|text| (text.clone(), 60.0))
            .collect::<Vec<_>>()
    };
    let (a, b) = (runs(&a), runs(&b));
    let borrowed = |runs: &[(String, f64)], kernel: &str| {
        side(
            kernel,
            &runs
                .iter()
                .map(|(text, time)| (text.as_str(), *time))
                .collect::<Vec<_>>(),
        )
    };
    let comparison = compared("fio job", borrowed(&a, "6.1"), borrowed(&b, "6.12"), &[]);
    assert_eq!(comparison.equal_values, 2);
    insta::assert_snapshot!(document(&comparison).to_text(&Style::default()));
    let selected = compared(
        "fio job",
        borrowed(&a, "6.1"),
        borrowed(&b, "6.12"),
        &["jobs[*].name"],
    );
    assert_eq!(selected.values.len(), 1);
    assert_eq!(selected.values[0].path, "jobs[far].name");
}

#[test]
fn what_the_kernels_did_is_a_table_and_the_likely_cause_a_sentence() {
    let runs = |elapsed_s: f64, lru_s: f64, moves: u64| {
        let mut side = side("6.1", &[("", elapsed_s); 12]);
        for (round, run) in side.runs.iter_mut().enumerate() {
            let noise = 1.0 + 0.01 * (round * 7 % 10) as f64;
            run.elapsed_s *= noise;
            run.kernel = Some(KernelActivity {
                samples: 0,
                activities: vec![
                    wait("spinlock of folio_lruvec_lock_irq", lru_s * noise),
                    Activity {
                        kind: ActivityKind::Migrations,
                        name: "cross node".to_owned(),
                        count: Some(moves + round as u64 * 5 % 7),
                        time_s: None,
                    },
                ],
                unknown_reasons: [(
                    ActivityKind::LineTransfers,
                    "hardware does not count them".to_owned(),
                )]
                .into(),
            });
        }
        side
    };
    let found = compared("./job", runs(1.0, 0.25, 40), runs(1.5, 0.75, 41), &[]);
    insta::assert_snapshot!(document(&found).to_text(&Style::default()));
}

#[test]
fn a_failed_run_is_named_with_its_last_error() {
    let mut b = side("6.12", &[("", 0.1)]);
    b.runs[0].exit_code = 127;
    b.runs[0].stderr = "sh: fioo: not found\n".to_owned();
    let comparison = compared("fioo", side("6.1", &[("", 0.1)]), b, &[]);
    let text = document(&comparison).to_text(&Style::default());
    assert!(
        text.contains("B ended with 127: sh: fioo: not found"),
        "{text}"
    );
}

/// A thing compared with itself: a run's numbers differ by chance, every third one is a small count with many ties.
fn of_itself(random: &mut Rng, numbers: usize, runs: usize) -> AnswerComparison {
    let mut of_side = || {
        let answers: Vec<(String, f64)> = (0..runs)
            .map(|_| {
                let fields: Vec<String> = (0..numbers)
                    .map(|number| match (number % 3, random.f64()) {
                        (2, chance) => format!("\"n{number}\":{}", (chance * 4.0).floor()),
                        (_, chance) => format!("\"n{number}\":{chance}"),
                    })
                    .collect();
                (format!("{{{}}}", fields.join(",")), random.f64())
            })
            .collect();
        side(
            "6.12",
            &answers
                .iter()
                .map(|(text, time)| (text.as_str(), *time))
                .collect::<Vec<_>>(),
        )
    };
    let mut sides = [of_side(), of_side()];
    for run in sides.iter_mut().flat_map(|side| &mut side.runs) {
        run.kernel = Some(KernelActivity::default());
        let did = &mut run.kernel.as_mut().unwrap().activities;
        for number in 0..numbers {
            // Some come in a few runs only; of some, whether they are compared is chance.
            let amount = random.f64() * if number % 3 == 0 { 0.06 } else { 1.0 };
            if number % 4 != 3 || amount > 0.8 {
                did.push(wait(&format!("lock {number}"), amount));
            }
        }
    }
    let [a, b] = sides;
    compared("bench", a, b, &[])
}

fn wait(name: &str, time_s: f64) -> Activity {
    Activity {
        kind: ActivityKind::SpinningLocks,
        name: name.to_owned(),
        count: Some(1),
        time_s: Some(time_s),
    }
}

#[test]
fn a_thing_compared_with_itself_rarely_differs_in_any_of_many_numbers() {
    let mut random = Rng::with_seed(11);
    for (numbers, runs, trials) in [
        (0, 6, 2000),
        (4, 2, 300),
        (5, 8, 2000),
        (22, 10, 800),
        (22, 12, 300),
        (84, 12, 200),
    ] {
        // In proportion to the number of cases of property tests.
        let trials = (trials * ProptestConfig::default().cases).div_ceil(256);
        let (mut of_answers, mut of_kernels) = (0, 0);
        for _ in 0..trials {
            let found = of_itself(&mut random, numbers, runs);
            let values = found.values.iter().chain([&found.elapsed]);
            let is_alarm = |value: &AnswerValue| {
                let change = value.change.as_ref();
                change.is_some_and(|change| change.compared.is_significant)
            };
            of_answers += u32::from(values.into_iter().any(is_alarm));
            let mut changes = found.kernel.iter().flat_map(|kernel| &kernel.changes);
            of_kernels += u32::from(changes.any(|it| is_alarm(&it.value)));
        }
        let trials = f64::from(trials);
        println!(
            "{numbers} numbers and the time, {runs} runs: {of_answers} of {trials}; of as many that the kernels did: {of_kernels}"
        );
        // 5 % with three deviations of the count itself; too few runs never say anything.
        let most = if runs < 6 {
            0.0
        } else {
            0.05 * trials + 3.0 * (0.05 * 0.95 * trials).sqrt()
        };
        for alarms in [of_answers, of_kernels] {
            assert!(
                f64::from(alarms) <= most,
                "{alarms} of {trials} with {numbers} numbers and {runs} runs"
            );
        }
    }
}

#[test]
fn two_runs_say_nothing_and_enough_runs_find_a_difference() {
    let answers = |from: usize, runs: usize| -> Vec<(String, f64)> {
        (0..runs)
            .map(|run| (format!("{{\"iops\": {}}}", from + run % 2), 1.0))
            .collect()
    };
    let found = |runs: usize| {
        let (a, b) = (answers(100, runs), answers(900, runs));
        let of = |runs: &[(String, f64)]| {
            side(
                "6.1",
                &runs
                    .iter()
                    .map(|(text, time)| (text.as_str(), *time))
                    .collect::<Vec<_>>(),
            )
        };
        compared("bench", of(&a), of(&b), &[])
    };
    let verdict = |found: &AnswerComparison| {
        let change = found.values[0].change.as_ref().unwrap();
        change.compared.verdict
    };
    let two = found(2);
    assert_eq!(verdict(&two), Verdict::TooFewSamples);
    assert_eq!(
        (two.compared_numbers, two.runs_needed),
        (1, 6),
        "the time is the same in every run and does not count"
    );
    let text = document(&two).to_text(&Style::default());
    assert!(
        text.contains("too few samples") && text.contains("--runs 6"),
        "{text}"
    );
    assert_eq!(verdict(&found(6)), Verdict::Different);
    assert!(
        !document(&found(6))
            .to_text(&Style::default())
            .contains("--runs")
    );
}

//! A and B side by side.

use nearfar_report::Style;
use nearfar_report::ab::{Comparison, Run, Selection, Side, table};

fn side(kernel: &str, answers: &[(&str, f64)]) -> Side {
    Side {
        settings: [("kernel".to_owned(), kernel.to_owned())].into(),
        emulated: Some("powerpc-case1, software emulation, no delays".to_owned()),
        runs: answers
            .iter()
            .map(|&(stdout, elapsed_s)| Run {
                elapsed_s,
                exit_code: 0,
                stdout: stdout.to_owned(),
                stderr: String::new(),
            })
            .collect(),
    }
}

fn compared(command: &str, a: Side, b: Side, selection: &[&str]) -> Comparison {
    let selection = Selection::new(selection.iter().map(|&pattern| pattern.to_owned()).collect());
    Comparison::of(command.split(' ').map(str::to_owned).collect(), a, b, &selection)
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
    insta::assert_snapshot!(table(&comparison, &Style::default()));
}

#[test]
fn json_is_compared_by_path_and_equal_values_are_counted() {
    let answer = |iops: u32, node: &str| {
        format!(r#"{{"tool": "x", "jobs": [{{"name": "far", "iops": {iops}}}], "node": {node}}}"#)
    };
    let (a, b): (Vec<String>, Vec<String>) =
        (0..4).map(|run| (answer(632 + run, "null"), answer(715 + run, "2"))).unzip();
    let runs = |texts: &[String]| texts.iter().map(|text| (text.clone(), 60.0)).collect::<Vec<_>>();
    let (a, b) = (runs(&a), runs(&b));
    let borrowed = |runs: &[(String, f64)], kernel: &str| {
        side(kernel, &runs.iter().map(|(text, time)| (text.as_str(), *time)).collect::<Vec<_>>())
    };
    let comparison = compared("fio job", borrowed(&a, "6.1"), borrowed(&b, "6.12"), &[]);
    assert_eq!(comparison.equal_values, 2);
    insta::assert_snapshot!(table(&comparison, &Style::default()));
    let selected = compared("fio job", borrowed(&a, "6.1"), borrowed(&b, "6.12"), &["jobs[*].name"]);
    assert_eq!(selected.values.len(), 1);
    assert_eq!(selected.values[0].path, "jobs[far].name");
}

#[test]
fn a_failed_run_is_named_with_its_last_error() {
    let mut b = side("6.12", &[("", 0.1)]);
    b.runs[0].exit_code = 127;
    b.runs[0].stderr = "sh: fioo: not found\n".to_owned();
    let text = table(&compared("fioo", side("6.1", &[("", 0.1)]), b, &[]), &Style::default());
    assert!(text.contains("B ended with 127: sh: fioo: not found"), "{text}");
}

//! `nearfar compare` as it is typed, over runs that nothing measured.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use fastrand::Rng;
use nearfar_machine::{Emulation, Machine, Origin, SourceKind};
use nearfar_runs::{
    Better, Cell, Ending, Factor, Histogram, Host, Metric, NewRun, NewSample, RunTarget,
    SampleResult, Store,
};
use serde_json::{Value, json};

/// How a run is made, and how its samples lie.
#[derive(Clone)]
struct Made {
    label: &'static str,
    kernel: &'static str,
    load: u32,
    /// How many times as long it takes on each of two nodes.
    slowness: [f64; 2],
    memory: &'static [&'static str],
    /// In how many of the 16 rounds the samples of memory 1 fail.
    failing: u32,
    /// As `bench probe` finds them by itself.
    steps: u64,
    /// The most samples a cell, and the time for all of them.
    budget: (u32, f64),
    seed: u64,
    /// 0 where samples are not taken in blocks.
    rounds_per_block: u32,
    /// Of the whole run.
    warnings: &'static [&'static str],
    /// The kernels of guests that took the samples of sides a and b; none where the host did.
    guests: &'static [&'static str],
}

const BEFORE: Made = Made {
    label: "before",
    kernel: "6.1.0",
    load: 60,
    slowness: [1.0, 1.0],
    memory: &["0", "1"],
    failing: 0,
    steps: 90_476,
    budget: (41, 1.0),
    seed: 1,
    rounds_per_block: 0,
    warnings: &[],
    guests: &[],
};

struct Place {
    directory: tempfile::TempDir,
    store: PathBuf,
}

impl Place {
    fn new(runs: &[Made]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = directory.path().join("runs.db");
        let mut open = Store::open(&store).unwrap();
        runs.iter().for_each(|made| fill(&mut open, made));
        Self { directory, store }
    }

    fn file(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    fn nearfar(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
        command
            .args(arguments)
            .current_dir(&self.directory)
            .env("NEARFAR_STORE", &self.store)
            .env("NO_COLOR", "1")
            .env_remove("COLUMNS");
        command.stdin(Stdio::null()).output().unwrap()
    }

    #[track_caller]
    fn ends(&self, arguments: &[&str], code: i32) -> (String, String) {
        let output = self.nearfar(arguments);
        let [out, errors] =
            [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {out}{errors}"
        );
        (out, errors)
    }

    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Value {
        let (out, _) = self.ends(
            &[&["compare"], arguments, &["--format", "json"]].concat(),
            0,
        );
        serde_json::from_str(&out).unwrap()
    }
}

/// The verdict of a metric in a cell.
fn verdict<'a>(answer: &'a Value, metric: &str, cell: &Value) -> &'a str {
    let rows = answer["rows"].as_array().unwrap();
    let mut rows = rows.iter();
    let row = rows.find(|row| row["metric"] == metric && row["cell"] == *cell);
    row.unwrap_or_else(|| panic!("{metric} {cell}: {answer:#}"))["verdict"]
        .as_str()
        .unwrap()
}

fn fill(store: &mut Store, made: &Made) {
    let sides = [Factor::new("side", ["a", "b"])];
    let factors = [
        Factor::new("memory", made.memory.iter().copied()),
        sides[0].clone(),
    ];
    let machine = Machine::empty(Origin::new(SourceKind::Synthetic, "none"), "not asked");
    let host = Host {
        name: "here".to_owned(),
        kernel: made.kernel.to_owned(),
        kernel_version: "#1".to_owned(),
        kernel_command_line: "quiet".to_owned(),
    };
    let target = |(side, kernel): (&str, &&str)| RunTarget {
        levels: Cell::new().with("side", side),
        fingerprint: (*kernel).to_owned(),
        host: Host {
            kernel: (*kernel).to_owned(),
            ..host.clone()
        },
        emulation: Some(Emulation::Label(format!("a guest with Linux {kernel}"))),
        machine: serde_json::to_value(&machine).unwrap(),
    };
    let targets: Vec<_> = ["a", "b"]
        .into_iter()
        .zip(made.guests)
        .map(target)
        .collect();
    let mut parameters = json!({
        "load": made.load, "buffer": {"bytes": 4096}, "steps": made.steps, "calibrated_to_s": made.budget.1,
        "max_samples": made.budget.0, "budget_s": made.budget.1,
    });
    if made.rounds_per_block > 0 {
        parameters["rounds_per_block"] = made.rounds_per_block.into();
    }
    let warnings: Vec<String> = made.warnings.iter().map(ToString::to_string).collect();
    let begun = NewRun {
        experiment: "fake",
        title: "nothing is measured",
        label: Some(made.label),
        parameters: &parameters,
        factors: &factors,
        cells: &Cell::all(&factors),
        samples_per_cell: 16,
        metrics: &[
            Metric::elapsed().primary(),
            Metric::real("operations_per_s", "1/s", Better::Higher),
            Metric::histogram("latency_ns", "ns", Better::Lower),
        ],
        seed: 7,
        warnings: &warnings,
        machine: &machine,
        fingerprint: "f",
        host: &host,
        targets: &targets,
    };
    let run = store.begin(&begun).unwrap();
    let mut random = Rng::with_seed(made.seed);
    for round in 1..=16 {
        let level = 1.0 + random.f64();
        for cell in Cell::all(&factors) {
            let slow = match cell.level("memory").unwrap().to_string().as_str() {
                "1" => made.slowness[1],
                _ => made.slowness[0],
            };
            let is_b = cell.level("side").unwrap().to_string() == "b";
            let side = if is_b { 1.03 * level } else { level };
            let elapsed = slow * (1.0 + 0.02 * random.f64());
            let mut latency = Histogram::new();
            (1..=100).for_each(|it| latency.record((it as f64 * slow * 100.0) as u64));
            let values = [
                ("elapsed_s".to_owned(), (elapsed * side).into()),
                ("operations_per_s".to_owned(), (1e5 / elapsed).into()),
                ("latency_ns".to_owned(), latency.into()),
            ];
            let is_of_1 = cell.level("memory").unwrap().to_string() == "1";
            let result = match is_of_1 && round <= made.failing {
                true => SampleResult::Failed("the buffer did not fit".to_owned()),
                false => SampleResult::Measured {
                    values: values.into(),
                    warnings: Vec::new(),
                    detail: json!({}),
                },
            };
            let sample = NewSample {
                round,
                cell,
                started_at_s: 1.75e9,
                took_s: 2.0,
                result,
            };
            store.add_sample(run, &sample).unwrap();
        }
    }
    store.finish(run, &Ending::Complete).unwrap();
}

fn after() -> Made {
    Made {
        label: "after",
        slowness: [1.0, 1.05],
        seed: 2,
        ..BEFORE
    }
}

/// Three runs a side.
const BEFORE_RUNS: &str = "1,3,5";
const AFTER_RUNS: &str = "2,4,6";

/// Runs 1, 3, 5 before and 2, 4, 6 after.
fn three_a_side() -> Place {
    let run = |made: Made, seed| Made { seed, ..made };
    Place::new(&[
        run(BEFORE, 1),
        run(after(), 2),
        run(BEFORE, 3),
        run(after(), 4),
        run(BEFORE, 5),
        run(after(), 6),
    ])
}

#[test]
fn a_regression_is_found_and_fails_when_asked_to() {
    let place = three_a_side();
    let sides = [BEFORE_RUNS, AFTER_RUNS];
    let metric = ["--metric", "operations_per_s"];
    let answer = place.json(&[&sides[..], &metric].concat());
    let cell = |memory: &str, side: &str| json!({"memory": memory, "side": side});
    for side in ["a", "b"] {
        let found = |memory| verdict(&answer, "operations_per_s", &cell(memory, side));
        assert_eq!(found("1"), "worse");
        assert_ne!(found("0"), "worse");
        assert_ne!(found("0"), "better");
    }
    assert_eq!(answer["schema"], "compare/1");
    let fails = |on: &str, code| {
        let asked = [&["compare"], &sides[..], &metric, &["--fail-on", on]].concat();
        place.ends(&asked, code)
    };
    fails("regression", 1);
    fails("regression=3%", 1);
    fails("regression=8%", 0);
    let (text, _) = fails("regression=2%", 1);
    // Significant, and within the margin: no regression.
    let margin = ["--margin", "12%", "--fail-on", "regression"];
    let (equivalent, _) = place.ends(&[&["compare"], &sides[..], &margin].concat(), 0);
    assert!(
        equivalent.contains("equivalent") && !equivalent.contains("worse"),
        "{equivalent}"
    );
    let longest = text.lines().map(|line| line.chars().count()).max();
    assert!(longest <= Some(75), "{longest:?}\n{text}");
    insta::assert_snapshot!(text);
    let markdown = ["--format", "markdown"];
    let (markdown, _) = place.ends(&[&["compare"], &sides[..], &markdown].concat(), 0);
    assert!(markdown.contains("| worse |"), "{markdown}");
}

#[test]
fn one_run_a_side_has_no_verdict_and_cannot_be_judged() {
    let place = Place::new(&[BEFORE, after()]);
    let answer = place.json(&["1", "2"]);
    let rows = answer["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 16);
    for row in rows {
        // The quantiles of a run's histograms are all the same.
        let is_equal = row["a"]["low"] == row["b"]["high"];
        let verdict = if is_equal { "equal" } else { "one_run_a_side" };
        assert_eq!(row["verdict"], verdict, "{row}");
        assert_eq!(
            (&row["is_significant"], &row["p_adjusted"]),
            (&json!(false), &Value::Null)
        );
        assert!(
            is_equal || row["change"]["confidence"].is_object(),
            "within both runs: {row}"
        );
    }
    let metric = ["--metric", "operations_per_s", "--fail-on", "regression"];
    let asked = [&["compare", "1", "2"][..], &metric].concat();
    // As `git bisect run` takes it: this commit cannot be judged.
    let (text, message) = place.ends(&asked, 125);
    assert!(
        message.contains("cannot judge") && message.contains("A,A,A B,B,B"),
        "{message}"
    );
    for part in [
        "in these two runs (95 %)",
        "one run a side",
        "says nothing of other ones",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for part in ["worse", "false alarm", "needs"] {
        assert!(!text.contains(part), "{part}: {text}");
    }
    let longest = text.lines().map(|line| line.chars().count()).max();
    assert!(longest <= Some(75), "{longest:?}\n{text}");
    // The same of tables, which are of one run each.
    let files = ["1", "2"].map(|run| {
        let file = place.file(&format!("{run}.parquet"));
        place.ends(
            &["runs", "export", run, "--format", "parquet", "-o", &file],
            0,
        );
        file
    });
    let [a, b] = files.each_ref().map(String::as_str);
    place.ends(&[&["compare", a, b][..], &metric].concat(), 125);
    // A larger share of failed samples needs no other run.
    let failing = Place::new(&[
        BEFORE,
        Made {
            failing: 8,
            ..BEFORE
        },
    ]);
    failing.ends(&asked, 1);
}

#[test]
fn samples_of_a_block_are_one_value_of_the_interval() {
    let blocks = |made: Made| Made {
        rounds_per_block: 4,
        ..made
    };
    let place = Place::new(&[blocks(BEFORE), blocks(after()), BEFORE]);
    let samples = |sides: [&str; 2]| {
        let answer = place.json(&[sides[0], sides[1], "--metric", "operations_per_s"]);
        let row = &answer["rows"][0];
        [&row["a"], &row["b"]].map(|side| side["samples"].as_u64().unwrap())
    };
    assert_eq!(samples(["1", "2"]), [4, 4], "16 rounds in 4 blocks");
    assert_eq!(
        samples(["1", "3"]),
        [4, 16],
        "blocks are how samples were taken, not what they are"
    );
    // Levels of one run are compared round by round.
    let answer = place.json(&["1", "--by", "side", "--metric", "elapsed_s"]);
    assert_eq!(answer["rows"][0]["a"]["samples"], 16);
}

#[test]
fn warnings_of_runs_stand_first_and_are_in_json() {
    let busy = Made {
        warnings: &["other processes kept 137 % of a CPU busy"],
        ..after()
    };
    let place = Place::new(&[BEFORE, busy]);
    let (text, _) = place.ends(&["compare", "1", "2"], 0);
    let warning = "! run 2: other processes kept 137 % of a CPU busy";
    let (above, _) = text.split_once("verdicts:").unwrap();
    assert!(above.contains(warning), "{text}");
    let answer = place.json(&["1", "2"]);
    assert_eq!(answer["sides"][0]["warnings"], json!([]));
    let expected = json!([{"run": "run 2", "warning": "other processes kept 137 % of a CPU busy"}]);
    assert_eq!(answer["sides"][1]["warnings"], expected);
}

#[test]
fn what_differs_is_refused_unless_it_is_the_point() {
    let other = Made {
        kernel: "6.12.0",
        load: 80,
        ..after()
    };
    let place = Place::new(&[BEFORE, other]);
    let (_, message) = place.ends(&["compare", "1", "2"], 2);
    for part in [
        "kernel release: \"6.1.0\" in the baseline, \"6.12.0\" in run 2",
        "parameters load: 60 in the baseline, 80 in run 2",
        "--across kernel --across parameters",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    let (_, message) = place.ends(&["compare", "1", "2", "--across", "kernel"], 2);
    assert!(
        message.contains("load") && !message.contains("kernel release"),
        "{message}"
    );
    let answer = place.json(&["1", "2", "--across", "kernel,parameters"]);
    let differences = answer["differences"].as_array().unwrap();
    assert_eq!(differences.len(), 2, "{differences:#?}");
    assert_eq!(
        differences[1],
        json!({"side": "run 2", "kind": "parameters", "name": "load", "a": 60, "b": 80})
    );
}

#[test]
fn exported_files_say_the_same_as_the_stored_runs() {
    let place = Place::new(&[BEFORE, after()]);
    let stored = place.json(&["1", "2"]);
    for format in ["json", "parquet", "csv"] {
        let files = ["1", "2"].map(|run| {
            let file = place.file(&format!("{run}.{format}"));
            place.ends(&["runs", "export", run, "--format", format, "-o", &file], 0);
            file
        });
        let [a, b] = files.each_ref().map(String::as_str);
        let mut arguments = vec![a, b];
        if format == "csv" {
            let (_, message) = place.ends(&["compare", a, b], 2);
            assert!(
                message.contains("--metric NAME=lower") && message.contains("1.csv"),
                "{message}"
            );
            arguments.extend(["--factor", "memory,side"]);
            for metric in [
                "elapsed_s=lower",
                "operations_per_s=higher",
                "latency_ns_p50=lower",
                "latency_ns_p99=lower",
            ] {
                arguments.extend(["--metric", metric]);
            }
        }
        let answer = place.json(&arguments);
        let figures = |answer: &Value| -> Vec<Value> {
            let rows = answer["rows"].as_array().unwrap().iter();
            // A table does not say whether 0 is a number or a name: its levels are compared as text.
            let text = |level: &Value| level.as_str().map_or(level.to_string(), str::to_owned);
            let cell = |row: &Value| -> BTreeMap<String, String> {
                let levels = row["cell"].as_object().unwrap().iter();
                levels
                    .map(|(name, level)| (name.clone(), text(level)))
                    .collect()
            };
            let figure = |row: &Value| json!([row["metric"], cell(row), row["p"], row["shift"]]);
            rows.map(figure).collect()
        };
        assert_eq!(figures(&answer), figures(&stored), "{format}");
        let is_known = format == "json";
        let not_checked = &answer["sides"][1]["not_checked"];
        assert_eq!(
            not_checked == &json!([]),
            is_known,
            "{format}: {not_checked}"
        );
    }
    // A table takes the meaning of its columns from a side that says it.
    let mixed = place.json(&["1", &place.file("2.csv")]);
    let mut expected = stored["rows"].clone();
    let rows = expected.as_array_mut().unwrap();
    rows.iter_mut()
        .for_each(|row| row["side"] = json!(place.file("2.csv")));
    assert_eq!(mixed["rows"], expected);
    let named = place.json(&[&place.file("runs.db:1"), &place.file("runs.db:after")]);
    assert_eq!(named["rows"].as_array().unwrap().len(), 16);
}

#[test]
fn levels_of_one_run_are_compared_round_by_round() {
    let place = Place::new(&[BEFORE]);
    let answer = place.json(&["1", "--by", "side", "--metric", "elapsed_s"]);
    // Rounds differ by a factor of up to two, the sides by 3 %.
    for memory in ["0", "1"] {
        assert_eq!(
            verdict(&answer, "elapsed_s", &json!({"memory": memory})),
            "worse"
        );
    }
    assert_eq!(answer["rows"][0]["design"], "paired");
    let reversed = [
        "1",
        "--by",
        "side",
        "--baseline",
        "b",
        "--metric",
        "elapsed_s",
    ];
    let reversed = place.json(&reversed);
    assert_eq!(
        verdict(&reversed, "elapsed_s", &json!({"memory": "0"})),
        "better"
    );
    for (arguments, part) in [
        (&["--by", "node"][..], "\"node\"; it has memory, side"),
        (
            &["--by", "side", "--baseline", "c"],
            "\"c\" is none of them",
        ),
        (&["--by", "side", "--metric", "iops"], "\"iops\""),
    ] {
        let (_, message) = place.ends(&[&["compare", "1"], arguments].concat(), 2);
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn sides_that_guests_measured_have_the_kernel_and_emulation_of_their_guests() {
    let place = Place::new(&[Made {
        guests: &["6.1.9", "6.12.3"],
        ..BEFORE
    }]);
    let answer = place.json(&["1", "--by", "side", "--metric", "elapsed_s"]);
    let sides = answer["sides"].as_array().unwrap();
    let kernels: Vec<_> = sides.iter().map(|side| &side["kernel"]).collect();
    assert_eq!(kernels, ["6.1.9", "6.12.3"]);
    for (side, kernel) in sides.iter().zip(["6.1.9", "6.12.3"]) {
        let emulation = side["emulation"].to_string();
        assert!(
            emulation.contains(&format!("Linux {kernel}")) && !emulation.contains("side="),
            "{emulation}"
        );
    }
    let (csv, _) = place.ends(&["runs", "export", "1", "--format", "csv"], 0);
    let with = |side: &str, kernel: &str| {
        let guest = format!(",{kernel},a guest with Linux {kernel},");
        let level = format!(",{side},");
        let rows = csv.lines();
        rows.filter(|row| row.contains(&guest) && row.contains(&level))
            .count()
    };
    assert_eq!((with("a", "6.1.9"), with("b", "6.12.3")), (32, 32), "{csv}");
    let (shown, _) = place.ends(&["runs", "show", "1"], 0);
    assert!(
        shown.contains("side=a: 6.1.9") && shown.contains("side=b: a guest with Linux 6.12.3"),
        "{shown}"
    );
}

#[test]
fn needs_of_more_than_ten_thousand_samples_are_not_told_apart() {
    let place = Place::new(&[BEFORE]);
    let (text, _) = place.ends(
        &[
            "compare",
            "1",
            "--by",
            "side",
            "--margin",
            "0.01%",
            "--metric",
            "operations_per_s",
        ],
        0,
    );
    let not_significant = |row: &&str| row.contains("  not significant  ");
    let mut rows = text.lines().filter(not_significant);
    assert!(
        rows.next().is_some_and(|row| row.ends_with("  >10000")),
        "{text}"
    );
    assert!(rows.all(|row| row.ends_with("  >10000")), "{text}");
}

#[test]
fn what_differs_from_run_to_run_is_held_by_several_runs_a_side() {
    // Two runs that nothing was changed between, 3 % apart, and as many that are 20 % slower.
    let run = |label, seed, slowness: f64| Made {
        label,
        seed,
        slowness: [slowness; 2],
        ..BEFORE
    };
    let place = Place::new(&[
        run("before", 1, 1.0),
        run("before", 2, 1.03),
        run("before", 3, 1.01),
        run("after", 4, 1.04),
        run("after", 5, 1.01),
        run("after", 6, 1.02),
        run("slow", 7, 1.2),
        run("slow", 8, 1.22),
        run("slow", 9, 1.23),
    ]);
    let metric = ["--metric", "operations_per_s"];
    let verdicts = |sides: [&str; 2]| -> Vec<Value> {
        let answer = place.json(&[&sides[..], &metric].concat());
        let rows = answer["rows"].as_array().unwrap().iter();
        rows.map(|row| row["verdict"].clone()).collect()
    };
    assert_eq!(verdicts(["1", "2"]), ["one_run_a_side"; 4]);
    assert_eq!(verdicts(["1,2,3", "4,5,6"]), ["not_significant"; 4]);
    assert_eq!(verdicts(["1,2,3", "7,8,9"]), ["worse"; 4]);
    assert_eq!(verdicts(["7,8,9", "1,2,3"]), ["better"; 4]);
    let answer = place.json(&["1,3", "4,runs.db:5,6"]);
    let sides = answer["sides"].as_array().unwrap();
    let of = |key: &str| sides.iter().map(|it| it[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("name"), ["runs 1, 3", "run 4, runs.db:5, run 6"]);
    assert_eq!(of("runs"), [json!([1, 3]), json!([4, 5, 6])]);
    assert_eq!(of("label"), ["before", "after"]);
    assert_eq!(of("samples"), [128, 192]);
    assert_eq!(answer["rows"][0]["b"]["runs"], 3);
    let warning = "one run a side";
    let text = |sides: [&str; 2]| place.ends(&["compare", sides[0], sides[1]], 0).0;
    assert!(text(["1", "2"]).contains(warning));
    let several = text(["1,2,3", "4,5,6"]);
    assert!(!several.contains(warning), "{several}");
    assert!(several.contains(" runs "), "how many would tell: {several}");
    for sides in [["1,1", "2"], ["1,2", "2,3"]] {
        let (_, message) = place.ends(&["compare", sides[0], sides[1]], 2);
        assert!(message.contains("is given twice"), "{message}");
    }
}

#[test]
fn runs_of_one_side_that_differ_are_refused_as_sides_are() {
    let other = Made {
        kernel: "6.12.0",
        ..BEFORE
    };
    let place = Place::new(&[BEFORE, other, after()]);
    let (_, message) = place.ends(&["compare", "1,2", "3"], 2);
    let difference = "kernel release: \"6.1.0\" in the baseline, \"6.12.0\" in run 2";
    assert!(message.contains(difference), "{message}");
}

#[test]
fn cells_of_one_side_are_listed() {
    let fewer = Made {
        memory: &["0", "9"],
        ..after()
    };
    let place = Place::new(&[BEFORE, fewer]);
    let answer = place.json(&["1", "2"]);
    let alone = answer["one_sided"].as_array().unwrap();
    let of = |it: &Value| (it["only_in"].clone(), it["cell"]["memory"].clone());
    let alone: Vec<(Value, Value)> = alone.iter().map(of).collect();
    assert!(
        alone.contains(&(json!("run 1"), json!("1")))
            && alone.contains(&(json!("run 2"), json!("9"))),
        "{alone:?}"
    );
    let (text, _) = place.ends(&["compare", "1", "2"], 0);
    assert!(text.contains("on one side only"), "{text}");
}

#[test]
fn a_wrong_file_is_named_with_what_is_wrong_in_it() {
    let place = Place::new(&[BEFORE]);
    let bad = place.file("bad.csv");
    std::fs::write(&bad, "memory,seconds\n0,1.5\n1,fast\n").unwrap();
    let given = ["--metric", "seconds=lower", "--factor", "memory"];
    let (_, message) = place.ends(&[&["compare", &bad, &bad], &given[..]].concat(), 2);
    assert!(
        message.contains("bad.csv") && message.contains("row 2: column \"seconds\""),
        "{message}"
    );
    let given = ["--metric", "seconds=lower", "--factor", "node"];
    let (_, message) = place.ends(&[&["compare", &bad, &bad], &given[..]].concat(), 2);
    assert!(message.contains("no column \"node\""), "{message}");
    for content in [
        &b"PAR1 but no more"[..],
        b"{\"runs\": 3}",
        b"\xff\xfe,\n1\n",
    ] {
        std::fs::write(&bad, content).unwrap();
        let (_, message) = place.ends(&["compare", "1", &bad], 2);
        assert!(message.contains("bad.csv"), "{message}");
    }
    let (_, message) = place.ends(&["compare", "1"], 2);
    assert!(message.contains("two sides or more"), "{message}");
    std::fs::write(&bad, "").unwrap();
    let (_, message) = place.ends(&["compare", "1", &bad], 2);
    assert!(message.ends_with("bad.csv: it is empty\n"), "{message}");
    for content in [&b"\x7fELF\x02\x01\0\0"[..], b"\xfe\xed\n1\n"] {
        std::fs::write(&bad, content).unwrap();
        let (_, message) = place.ends(&["compare", "1", &bad], 2);
        let part = "bad.csv: it is not a store, JSON, Parquet or CSV file";
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn failed_samples_are_a_regression() {
    let failing = |failing| Made { failing, ..BEFORE };
    let one_node = Made {
        memory: &["0"],
        ..BEFORE
    };
    let place = Place::new(&[BEFORE, failing(8), failing(16), one_node, failing(16)]);
    let fails = |a: &str, b: &str, on: &str, code| {
        let (text, _) = place.ends(&["compare", a, b, "--fail-on", on], code);
        text
    };
    let text = fails("1", "3", "regression", 1);
    for part in [
        "verdicts: 2 cells failed, ",
        "16 of 16  failed: no usable samples in B",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("on one side only"), "{text}");
    assert!(fails("1", "2", "regression=49%", 1).contains("0 of 16  8 of 16  failed"));
    fails("1", "2", "regression=51%", 125);
    let better = fails("3", "1", "regression", 125);
    assert!(better.contains("no usable samples in A") && !better.contains("cells failed"));
    assert!(fails("3", "5", "regression", 125).contains("16 of 16  no usable samples"));
    // Cells that only B has.
    let text = fails("4", "3", "regression", 1);
    assert!(text.contains("0 of 0  16 of 16  failed"), "{text}");
    // The same of tables, and where no cell has values on both sides.
    let csv = place.file("3.csv");
    place.ends(&["runs", "export", "3", "--format", "csv", "-o", &csv], 0);
    assert!(fails("1", &csv, "regression", 1).contains("2 cells failed, "));
    let text = std::fs::read_to_string(&csv).unwrap();
    let is_failed = |line: &&str| line.starts_with("run,") || line.contains("did not fit");
    let lines: Vec<&str> = text.lines().filter(is_failed).collect();
    std::fs::write(&csv, lines.join("\n") + "\n").unwrap();
    let text = fails("1", &csv, "regression", 1);
    assert!(text.contains("verdicts: 2 cells failed\n"), "{text}");
    let answer = place.json(&["1", "3"]);
    assert_eq!(
        answer["failed_cells"][0],
        json!({
            "side": "run 3", "cell": {"memory": "1", "side": "a"}, "a": {"samples": 16, "failed": 0},
            "b": {"samples": 0, "failed": 16}, "regression": 1.0,
        })
    );
    assert_eq!(answer["one_sided"], json!([]));
    // A level of which all samples failed is one.
    let levels = place.json(&["3", "--by", "memory"]);
    assert_eq!(levels["sides"][1]["failed"], 32);
    assert_eq!(levels["sides"][0]["failed"], 0);
}

#[test]
fn the_budget_of_sampling_may_differ_and_the_steps_not() {
    let budget = Made {
        budget: (7, 0.2),
        ..after()
    };
    let steps = Made {
        steps: 90_938,
        ..after()
    };
    let place = Place::new(&[BEFORE, budget, steps]);
    assert_eq!(place.json(&["1", "2"])["differences"], json!([]));
    let (_, message) = place.ends(&["compare", "1", "3"], 2);
    for part in [
        "parameters steps: 90476 in the baseline, 90938 in run 3\n",
        "\nfor a run of bench probe with as many steps as the baseline: --steps 90476\n",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
}

#[test]
fn sides_are_named_as_they_are_given_and_are_not_the_same() {
    let place = Place::new(&[BEFORE, after()]);
    let tables = ["csv", "parquet"].map(|format| {
        let table = place.file(&format!("both.{format}"));
        place.ends(
            &["runs", "export", "1", "2", "--format", format, "-o", &table],
            0,
        );
        table
    });
    let table = &tables[1];
    let sides = [format!("{table}:1"), format!("{table}:2")];
    let answer = place.json(&[&sides[0], &sides[1]]);
    let names = [0, 1].map(|side| answer["sides"][side]["name"].clone());
    assert_eq!(names, sides.each_ref().map(|it| json!(it)));
    let csv = format!("{}:2", tables[0]);
    assert_eq!(place.json(&["1", &csv])["sides"][1]["name"], csv);
    let stored = place.file("runs.db:before");
    for (a, b, name) in [
        ("1", "1", "run 1"),
        ("2", "last", "run 2"),
        ("1", &stored, "run 1"),
        ("1,2", "1,2", "runs 1, 2"),
        (&sides[0], &sides[0], &sides[0]),
    ] {
        let (_, message) = place.ends(&["compare", a, b], 2);
        let expected = format!("both sides are {name}\n");
        assert!(message.ends_with(&expected), "{expected}: {message}");
    }
}

/// A table of one metric, `v`, with so often these values of the sides a and b.
fn table(place: &Place, name: &str, a: &[u32], b: &[u32], times: usize) -> String {
    let rows = |side: &str, values: &[u32]| {
        let rows: String = values
            .iter()
            .map(|value| format!("{side},{value}\n"))
            .collect();
        rows.repeat(times)
    };
    let file = place.file(name);
    std::fs::write(&file, format!("side,v\n{}{}", rows("a", a), rows("b", b))).unwrap();
    file
}

#[test]
fn what_is_worse_fails_also_where_the_typical_sample_is_the_same() {
    let place = Place::new(&[]);
    let doubled = [1, 2, 1, 2, 2, 1, 1, 2, 1, 1];
    let doubled = table(&place, "doubled.csv", &[1; 10], &doubled, 2);
    let slow = table(&place, "slow.csv", &[100; 4], &[100, 100, 100, 1000], 16);
    let fails = |table: &str, on: &str, code| {
        let asked = ["compare", table, "--by", "side", "--metric", "v=lower"];
        let given = ["--factor", "side", "--fail-on", on];
        place.ends(&[&asked[..], &given].concat(), code).0
    };
    for (table, limit) in [(&doubled, "30%"), (&slow, "99%")] {
        let text = fails(table, "regression", 1);
        assert!(text.contains(" worse"), "{text}");
        fails(table, &format!("regression={limit}"), 1);
    }
    fails(&doubled, "regression=50%", 0);
}

//! `nearfar runs` as it is typed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::harness;
use crate::harness::Answer;
use nearfar_machine::{Machine, Origin, SourceKind};
use nearfar_runs::{
    Better, Cell, Ending, Factor, Histogram, Host, Metric, NewRun, NewSample, SampleResult, Store,
};
use serde_json::{Value, json};

struct Place {
    directory: tempfile::TempDir,
    store: PathBuf,
}

impl Place {
    /// A store with two runs of four samples each, the second one going on.
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = directory.path().join("runs.db");
        let mut open = Store::open(&store).unwrap();
        for label in ["first", "second"] {
            fill(&mut open, label);
        }
        Self { directory, store }
    }

    fn file(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    fn nearfar(&self, arguments: &[&str]) -> Answer {
        harness::nearfar(["runs"])
            .args(arguments)
            .env("NEARFAR_STORE", &self.store)
            .run()
    }

    #[track_caller]
    fn answer(&self, arguments: &[&str]) -> String {
        let output = self.nearfar(arguments);
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        output.text()
    }

    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.answer(&[arguments, &["--format", "json"]].concat())).unwrap()
    }

    #[track_caller]
    fn refused(&self, arguments: &[&str], code: i32) -> String {
        let output = self.nearfar(arguments);
        let message = output.errors();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {message}");
        message
    }
}

fn fill(store: &mut Store, label: &str) {
    let factors = [Factor::new("memory", ["0", "F"])];
    let machine = Machine::empty(Origin::new(SourceKind::Synthetic, "none"), "not asked");
    let run = store.begin(&NewRun {
        experiment: "fake",
        title: "nothing is measured",
        label: Some(label),
        parameters: &json!({"load": 60}),
        factors: &factors,
        cells: &Cell::all(&factors),
        samples_per_cell: 2,
        metrics: &[
            Metric::elapsed().primary(),
            Metric::integer("operations", "", Better::Higher),
            Metric::histogram("latency_ns", "ns", Better::Lower),
        ],
        seed: 7,
        warnings: &["the governor saves power".to_owned()],
        machine: &machine,
        fingerprint: "f",
        host: &Host::here(),
        targets: &[],
    });
    let run = run.unwrap();
    for (number, memory) in ["0", "F", "F", "0"].into_iter().enumerate() {
        let mut latency = Histogram::new();
        (1..=1000).for_each(|ns| latency.record(ns));
        let result = match number {
            3 => SampleResult::Failed("the child died".to_owned()),
            _ => SampleResult::Measured {
                values: [
                    ("elapsed_s".to_owned(), (1.5 + number as f64).into()),
                    ("operations".to_owned(), (7 * number as i64).into()),
                    ("latency_ns".to_owned(), latency.into()),
                ]
                .into(),
                warnings: (number == 1)
                    .then(|| "stolen time".to_owned())
                    .into_iter()
                    .collect(),
                detail: json!({"faults": {"minor": number}}),
            },
        };
        let cell = Cell::new().with("memory", memory);
        let round = number as u32 / 2 + 1;
        store
            .add_sample(
                run,
                &NewSample {
                    round,
                    cell,
                    started_at_s: 1.75e9,
                    took_s: 2.0,
                    result,
                },
            )
            .unwrap();
    }
    if label == "first" {
        store.finish(run, &Ending::Complete).unwrap();
    }
}

#[test]
fn runs_are_listed_and_filtered() {
    let place = Place::new();
    let all = place.json(&["list"]);
    let runs = all["runs"].as_array().unwrap();
    assert_eq!(
        runs.iter()
            .map(|run| run["run"].as_i64().unwrap())
            .collect::<Vec<_>>(),
        [2, 1]
    );
    assert_eq!(
        (&runs[0]["state"], &runs[1]["state"]),
        (&json!("running"), &json!("complete"))
    );
    let labelled = place.answer(&[
        "list",
        "--label",
        "first",
        "--since",
        "1d",
        "--experiment",
        "fake",
        "--limit",
        "5",
    ]);
    assert_eq!(labelled.lines().count(), 2, "{labelled}");
    assert!(labelled.contains("3 of 4"), "{labelled}");
    // A file that was named has to be there; the usual one has not.
    assert!(
        place
            .refused(&["list", "--store", &place.file("none.db")], 2)
            .contains("none.db")
    );
    assert!(!Path::new(&place.file("none.db")).exists());
    assert!(
        place
            .refused(&["list", "--since", "yesterday"], 2)
            .contains("2026-11-21")
    );
}

#[test]
fn a_run_is_shown_cell_by_cell_with_what_was_wrong() {
    let place = Place::new();
    let shown = place.answer(&["show", "1"]);
    for expected in [
        "Run 1  nothing is measured",
        "! the governor saves power",
        "load=60",
        "1 sample failed: the child died",
        "1 sample with warnings: stolen time",
    ] {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
    let row = |level: &str| -> Vec<&str> {
        let line = shown
            .lines()
            .find(|line| line.trim_start().starts_with(level))
            .unwrap();
        line.split_whitespace().collect()
    };
    assert_eq!(
        row("0 "),
        ["0", "1.500", "1.500", "1.500", "1.500", "1", "1"]
    );
    assert_eq!(
        row("F "),
        ["F", "3.000", "3.500", "2.500", "0.707", "3.000", "2", "1"]
    );
    assert_eq!(place.json(&["show", "last"])["label"], "second");
}

#[test]
fn what_is_exported_can_be_imported_elsewhere() {
    let place = Place::new();
    let (json, other) = (place.file("runs.json"), place.file("other.db"));
    place.answer(&["export", "1", "2", "-o", &json]);
    let imported = place.answer(&["import", &json, "--store", &other]);
    assert_eq!(imported, "imported as run 1\nimported as run 2\n");
    assert_eq!(
        place.answer(&["import", &json, "--store", &other]),
        "already here as run 1\nalready here as run 2\n"
    );
    let csv = place.answer(&["export", "last", "2", "--format", "csv", "--store", &other]);
    assert_eq!(csv.lines().count(), 5);
    assert!(
        csv.lines()
            .next()
            .unwrap()
            .ends_with(",failed,warnings,memory,elapsed_s,operations,latency_ns_count,latency_ns_p50,latency_ns_p90,latency_ns_p99,latency_ns_p999,latency_ns_max,faults_minor"),
        "{csv}"
    );
    let parquet = place
        .nearfar(&["export", "1", "--format", "parquet"])
        .stdout
        .clone();
    assert!(parquet.starts_with(b"PAR1") && parquet.ends_with(b"PAR1"));
    assert!(
        place
            .refused(&["import", &place.file("runs.db")], 2)
            .contains("runs.db")
    );
    assert!(
        place
            .refused(&["import", "/nonexistent.json"], 2)
            .contains("/nonexistent.json")
    );
    let evil = place.file("evil.json");
    std::fs::write(&evil, r#"{"schema": "\u001b[2J\u0007"}"#).unwrap();
    let message = place.refused(&["import", &evil, "--store", &other], 2);
    assert!(
        message.contains("[2J") && !message.contains(['\x1b', '\x07']),
        "{message:?}"
    );
    let huge = place.file("huge.json");
    std::fs::File::create(&huge)
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    assert!(
        place
            .refused(&["import", &huge, "--store", &other], 2)
            .contains("more than a gibibyte")
    );
    let third = place.nearfar(&[
        "import",
        &json,
        "/nonexistent.json",
        "--store",
        &place.file("third.db"),
    ]);
    assert_eq!(third.status.code(), Some(2));
    assert_eq!(
        third.text(),
        "imported as run 1\nimported as run 2\n",
        "what is in is said"
    );
}

/// As after a newer nearfar: the experiment's own part of a sample says something else.
#[test]
fn a_matrix_that_this_version_does_not_understand_is_shown_as_any_run() {
    let place = Place::new();
    let exported = place
        .answer(&["export", "1"])
        .replace("\"experiment\": \"fake\"", "\"experiment\": \"probe\"");
    let (json, other) = (place.file("newer.json"), place.file("other.db"));
    std::fs::write(&json, exported).unwrap();
    place.answer(&["import", &json, "--store", &other]);
    let shown = place.nearfar(&["show", "1", "--store", &other]);
    let errors = shown.errors();
    assert!(
        errors.contains("parameters of run 1")
            && errors.contains("shown as a run of any experiment"),
        "{errors}"
    );
    assert!(shown.text().contains("median"));
}

#[test]
fn removing_says_what_went_and_an_unknown_run_is_wrong_usage() {
    let place = Place::new();
    let message = place.refused(&["rm", "1", "99"], 2);
    assert!(
        message.contains("no run 99") && message.contains("`nearfar runs list` shows"),
        "{message}"
    );
    // The store of the environment is used anyway; another has to be named.
    let other = place.file("other runs.db");
    Store::open(Path::new(&other)).unwrap();
    let message = place.refused(&["rm", "99", "--store", &other], 2);
    let list = format!("`nearfar runs list --store '{other}'` shows");
    assert!(message.contains(&list), "{message}");
    assert!(
        place
            .refused(&["rm", "2"], 3)
            .contains("being carried out by process"),
        "its process is this test"
    );
    let removed = place.answer(&["rm", "1"]);
    assert!(
        removed.starts_with("removed run 1: fake \"first\"") && removed.contains("4 samples"),
        "{removed}"
    );
    assert!(place.refused(&["show", "1"], 2).contains("no run 1"));
    assert!(
        place
            .refused(&["show", "0"], 2)
            .contains("\"0\" is not a run")
    );
}

#[test]
fn the_page_that_was_written_is_named_and_standard_output_is_no_page() {
    let place = Place::new();
    let page = place.file("run.html");
    let output = place.nearfar(&["show", "1", "--html", &page]);
    assert!(output.errors().contains(&format!("page: {page}")));
    assert!(std::fs::read_to_string(&page).unwrap().contains("<html"));
    let picture = place.file("run.svg");
    place.nearfar(&["show", "1", "--svg", &picture]);
    let drawn = std::fs::read_to_string(&picture).unwrap();
    assert!(
        drawn.starts_with("<svg") && drawn.contains("class=\"dot"),
        "{drawn}"
    );
    let message = place.refused(&["show", "1", "--html", &page, "--svg", &page], 2);
    assert!(
        message.contains("--html and --svg name one file"),
        "{message}"
    );
    let message = place.refused(&["show", "1", "--html", "-"], 2);
    assert!(
        message.contains("standard output has the answer already"),
        "{message}"
    );
    assert!(!Path::new("-").exists());
}

#[test]
fn what_is_no_store_is_refused_by_name() {
    let place = Place::new();
    let notes = place.file("notes.txt");
    std::fs::write(&notes, "dear diary").unwrap();
    for arguments in [
        &["list", "--store", &notes][..],
        &["import", "-", "--store", &notes],
    ] {
        let message = place.refused(arguments, 2);
        assert!(
            message.contains("notes.txt is not an SQLite file"),
            "{message}"
        );
    }
    assert_eq!(std::fs::read(&notes).unwrap(), b"dear diary");
    assert!(
        place
            .refused(&["show", "1", "--store", &place.file("none.db")], 2)
            .contains("no runs are stored there")
    );
    let empty = place.file("empty.db");
    std::fs::write(&empty, "").unwrap();
    for arguments in [
        &["list"][..],
        &["show", "last"],
        &["export", "last"],
        &["rm", "1"],
    ] {
        let message = place.refused(&[arguments, &["--store", &empty]].concat(), 2);
        assert!(
            message.contains("empty.db is a file without tables, not a store of runs"),
            "{message}"
        );
    }
    assert_eq!(std::fs::read(&empty).unwrap(), b"");
    let cut = place.file("cut.db");
    drop(Store::open(Path::new(&cut)).unwrap());
    std::fs::File::options()
        .write(true)
        .open(&cut)
        .unwrap()
        .set_len(5000)
        .unwrap();
    let message = place.refused(&["list", "--store", &cut], 2);
    assert!(
        message.contains("cut.db is damaged: it has 5000 of its"),
        "{message}"
    );
}

#[test]
fn every_key_of_the_json_forms_is_documented() {
    let place = Place::new();
    let json = place.file("runs.json");
    place.answer(&["export", "1", "-o", &json]);
    let other = place.file("other.db");
    let mut answers = vec![
        place.json(&["list"]),
        place.json(&["show", "1"]),
        place.json(&["export", "1"]),
    ];
    answers.push(place.json(&["import", &json, "--store", &other]));
    answers.push(place.json(&["rm", "1"]));
    let mut keys = BTreeSet::new();
    for answer in &mut answers {
        assert!(
            answer["schema"].as_str().unwrap().starts_with("runs-"),
            "{answer}"
        );
        keys.extend(members(answer));
    }
    let page = include_str!("../../../docs/json.md");
    // What the experiment itself decides on.
    let own = [
        "load",
        "faults",
        "minor",
        "memory",
        "latency_ns",
        "operations",
    ];
    let missing: Vec<_> = keys
        .iter()
        .filter(|key| !own.contains(&key.as_str()) && !page.contains(&format!("`{key}`")))
        .collect();
    assert!(keys.len() > 50, "only {} keys were seen", keys.len());
    assert!(missing.is_empty(), "docs/json.md does not name {missing:?}");
}

fn members(value: &Value) -> Vec<String> {
    match value {
        Value::Object(of) => of
            .iter()
            .flat_map(|(key, value)| [vec![key.clone()], members(value)].concat())
            .collect(),
        Value::Array(items) => items.iter().flat_map(members).collect(),
        _ => Vec::new(),
    }
}

/// What `nearfar ab` stored of two kernel command lines, ten runs of each side.
const COMPARISON: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mails/ab.json");

#[test]
fn a_comparison_of_guests_has_a_cover_letter_without_a_figure_that_its_table_lacks() {
    let place = Place::new();
    place.answer(&["import", COMPARISON]);
    let letter = place.answer(&["show", "last", "--format", "mail"]);
    for line in letter.lines() {
        assert!(line.chars().count() <= 72, "{line}");
    }
    let whole = words(&letter);
    let (said, rest) = whole.split_once(" Machine and method ").unwrap();
    let table = rest.split_once(" worse ones first ").unwrap().1;
    assert_eq!(
        said,
        "sh job.sh B against A A: append=numa_balancing=disable B: append=numa_balancing=enable worse: ops_per_s -30 % \
         (-30 to -29) equivalent: latency_ns -0.2 % (-0.6 to +0.2)"
    );
    let said = said.split_once(" worse: ").unwrap().1;
    let is_number = |word: &&str| word.contains(|it: char| it.is_ascii_digit());
    for number in said.split([' ', ',', '(', ')']).filter(is_number) {
        assert!(table.contains(number), "{number}: {table}");
    }
    // The values that were not asked for are not in it, and worse ones come first.
    assert!(
        !table.contains("elapsed_s") && !table.contains(" mode "),
        "{table}"
    );
    assert!(
        table.find("ops_per_s") < table.find("latency_ns"),
        "{table}"
    );
    let command = rest.split_once(" To repeat it ").unwrap().1;
    let (command, _) = command.split_once(" B against A").unwrap();
    assert_eq!(
        command.replace(" \\", ""),
        "nearfar ab --a=append=numa_balancing=disable --b=append=numa_balancing=enable --machine=two-node \
         --scale=cpus=1,memory=256M --arch=x86_64 --kernel=6.12 --time=instruction=0.5,window=200,seed=0 --accel=tcg \
         --runs=10 '--value=*_per_s' '--value=*_ns' -- sh job.sh"
    );
    assert!(
        !letter.contains("boot to boot") && !letter.contains("is whole"),
        "{letter}"
    );
}

/// The words of a text, each with a space between.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

//! Exports: what other programs read, and what comes back.

use nearfar_runs::export::{
    ColumnValues, Contradiction, ImportError, Table, Whole, write_csv, write_parquet,
};
use nearfar_runs::{Cell, Factor, Filter, NewSample, RunState, Sample, SampleResult, Store};
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::Field;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::given::{Given, elapsed, failure, sample};

fn two_shapes(given: &Given) -> Vec<Whole> {
    let mut store = given.store();
    let first = given.begin(&mut store, "probe", Some("a, \"quoted\" label"));
    store.add_sample(first, &sample(1, "0", 1.5)).unwrap();
    store.add_sample(first, &failure(1, "1")).unwrap();
    let second = given.begin(&mut store, "io", None);
    let result = SampleResult::Measured {
        values: elapsed(2.0),
        warnings: vec![],
        detail: json!({"faults": {"minor": 0.5}, "elapsed_s": 7, "done": true, "pages": [1, 2], "long": vec![0; 17]}),
    };
    let cell = Cell::new().with("Depth", 32u32).with("memory", 0u32);
    store
        .add_sample(
            second,
            &NewSample {
                round: 1,
                cell,
                started_at_s: 2.0,
                took_s: 2.0,
                result,
            },
        )
        .unwrap();
    [first, second].map(|run| store.whole(run).unwrap()).into()
}

#[test]
fn columns_of_different_runs_are_put_together() {
    let given = Given::new();
    let table = Table::of(&two_shapes(&given)).unwrap();
    let names: Vec<&str> = table
        .columns
        .iter()
        .map(|column| column.name.as_str())
        .collect();
    let of_all =
        "run label experiment host kernel emulated sample round block started_at failed warnings";
    let expected = format!(
        "{of_all} memory Depth elapsed_s done detail_elapsed_s faults_minor long pages_0 pages_1"
    );
    assert_eq!(names.join(" "), expected);
    assert_eq!(table.rows, 3);
    assert_eq!(
        table.column("elapsed_s"),
        Some(&ColumnValues::Real(vec![Some(1.5), None, Some(2.0)]))
    );
    assert_eq!(
        table.column("detail_elapsed_s"),
        Some(&ColumnValues::Whole(vec![None, None, Some(7)]))
    );
    assert_eq!(
        table.column("faults_minor"),
        Some(&ColumnValues::Real(vec![Some(3.0), None, Some(0.5)]))
    );
    let memory = ["0", "1", "0"].map(|level| Some(level.to_owned()));
    assert_eq!(
        table.column("memory"),
        Some(&ColumnValues::Text(memory.into())),
        "a column of numbers and names is text"
    );
    assert_eq!(
        table.column("done"),
        Some(&ColumnValues::Switch(vec![None, None, Some(true)]))
    );
    assert_eq!(
        table.column("emulated"),
        Some(&ColumnValues::Text(vec![None; 3]))
    );
}

#[test]
fn csv_quotes_what_needs_it() {
    let given = Given::new();
    let mut out = Vec::new();
    write_csv(&Table::of(&two_shapes(&given)).unwrap(), &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4);
    assert!(
        lines[1].starts_with("1,\"a, \"\"quoted\"\" label\",probe,"),
        "{text}"
    );
    assert!(
        lines[1].contains(",,1,1,,1250000000.0,,another process ran,0,,1.5,"),
        "{text}"
    );
    assert!(lines[2].contains(",it died,,1,"), "{text}");
}

/// The rows of a Parquet file as its own crate reads them.
fn rows(bytes: Vec<u8>) -> Vec<Vec<(String, Field)>> {
    let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
    let rows = reader.get_row_iter(None).unwrap();
    rows.map(|row| row.unwrap().into_columns()).collect()
}

#[test]
fn parquet_holds_the_table_with_types_and_gaps() {
    let given = Given::new();
    let table = Table::of(&two_shapes(&given)).unwrap();
    let mut out = Vec::new();
    write_parquet(&table, &mut out).unwrap();
    let rows = rows(out);
    assert_eq!(rows.len(), 3);
    let of = |row: usize, name: &str| {
        rows[row]
            .iter()
            .find(|(of, _)| of == name)
            .map(|(_, field)| field.clone())
    };
    assert_eq!(of(0, "run"), Some(Field::Long(1)));
    assert_eq!(
        of(0, "label"),
        Some(Field::Str("a, \"quoted\" label".into()))
    );
    assert_eq!(of(1, "elapsed_s"), Some(Field::Null));
    assert_eq!(of(2, "done"), Some(Field::Bool(true)));
    assert_eq!(of(2, "faults_minor"), Some(Field::Double(0.5)));
}

#[test]
fn a_run_without_samples_is_a_table_without_rows() {
    let given = Given::new();
    let mut store = given.store();
    let run = given.begin(&mut store, "probe", None);
    let table = Table::of(&[store.whole(run).unwrap()]).unwrap();
    assert_eq!((table.rows, table.columns.len()), (0, 12));
    let mut out = Vec::new();
    write_parquet(&table, &mut out).unwrap();
    assert!(rows(out).is_empty());
}

#[test]
fn samples_with_endless_values_are_no_table() {
    let given = Given::new();
    let mut store = given.store();
    let run = given.begin(&mut store, "probe", None);
    let many: serde_json::Map<String, Value> =
        (0..5000).map(|n| (format!("v{n}"), n.into())).collect();
    let result = SampleResult::Measured {
        values: elapsed(1.0),
        warnings: vec![],
        detail: many.into(),
    };
    store
        .add_sample(
            run,
            &NewSample {
                result,
                ..sample(1, "0", 1.0)
            },
        )
        .unwrap();
    assert!(Table::of(&[store.whole(run).unwrap()]).is_err());
}

/// A hostile sample: few bytes, and as many paths as it has values, each as long as the sample is deep.
#[test]
fn a_sample_with_endless_values_far_down_is_refused_before_all_are_kept() {
    let name = "n".repeat(2000);
    let many: serde_json::Map<String, Value> =
        (0..100_000).map(|n| (format!("{n}"), n.into())).collect();
    let deep = (0..100).fold(Value::from(many), |below, _| {
        Value::from_iter([(name.clone(), below)])
    });
    // All the paths would take 20 gigabytes.
    assert!(Table::of(&[whole_with(vec![deep])]).is_err());
}

/// Few fields are in this table, and its empty ones would take gigabytes.
#[test]
fn rows_of_which_each_has_a_column_of_its_own_are_no_table() {
    let samples =
        (0..40_000).map(|row| Value::from_iter([(format!("v{}", row % 4000), Value::from(row))]));
    assert!(Table::of(&[whole_with(samples.collect())]).is_err());
}

fn exported(runs: &[Whole]) -> Vec<u8> {
    serde_json::to_vec(&json!({"schema": "runs-export/2", "nearfar": "0.1.0", "runs": runs}))
        .unwrap()
}

#[test]
fn what_was_exported_is_the_same_after_it_was_imported() {
    let given = Given::new();
    let runs = two_shapes(&given);
    let elsewhere = Given::new();
    let mut store = elsewhere.store();
    elsewhere.finished(&mut store, "probe", None);
    let imported = store.import(&exported(&runs)).unwrap();
    assert_eq!((imported.runs.len(), imported.already.len()), (2, 0));
    for (before, &number) in runs.iter().zip(&imported.runs) {
        let mut after = store.whole(number).unwrap();
        assert_eq!(
            after.run.run.0,
            before.run.run.0 + 1,
            "it has the next free number here"
        );
        assert_eq!(
            (before.run.state, after.run.state),
            (RunState::Running, RunState::Interrupted),
            "not carried out here"
        );
        (after.run.run, after.run.state) = (before.run.run, before.run.state);
        assert_eq!(&after, before);
    }
    let again = store.import(&exported(&runs)).unwrap();
    assert_eq!((again.runs.len(), &again.already), (0, &imported.runs));
    // The process that carries the runs out is this one, and lives; it has nothing to do with the copies.
    assert_eq!(store.remove(&imported.runs).unwrap().runs.len(), 2);
}

#[test]
fn an_import_that_contradicts_itself_changes_nothing() {
    let given = Given::new();
    let runs = two_shapes(&given);
    let elsewhere = Given::new();
    let mut store = elsewhere.store();
    let mut refused = |change: fn(&mut Whole)| {
        let mut runs = runs.clone();
        change(&mut runs[1]);
        let error = store.import(&exported(&runs)).unwrap_err();
        assert!(
            store.list(&Filter::default()).unwrap().is_empty(),
            "{error}"
        );
        let ImportError::Contradicts { uid, what } = error else {
            panic!("{error}");
        };
        assert_eq!(uid, runs[1].run.uid);
        what
    };
    use Contradiction::*;
    macro_rules! refused {
        ($change:expr, $what:pat $(if $guard:expr)?) => {{
            let what = refused($change);
            assert!(matches!(what, $what $(if $guard)?), "{what}");
        }};
    }
    refused!(|whole| whole.taken[0].number = 2, Gap);
    refused!(
        |whole| whole.taken.push(whole.taken[0].clone()),
        RepeatedSample(1)
    );
    refused!(
        |whole| whole.taken[0].failed = Some("no".into()),
        FailedWithValues(1)
    );
    refused!(
        |whole| whole.taken[0].values.clear(),
        Contradiction::Values(1, _)
    );
    refused!(|whole| whole.taken[0].round = 0, RoundZero(1));
    refused!(
        |whole| whole.detail.plan.push(whole.detail.plan[0].clone()),
        RepeatedCell(ref cell) if cell == "memory=0"
    );
    refused!(
        |whole| whole.detail.factors.push(Factor::new("memory", ["2"])),
        RepeatedFactor(ref name) if name == "memory"
    );
    refused!(|whole| whole.run.uid = "../etc".into(), Uid);
    let other = store
        .import(br#"{"schema": "topo/1"}"#)
        .unwrap_err()
        .to_string();
    assert!(
        other.contains("topo/1") && other.contains("runs export"),
        "{other}"
    );
}

#[test]
fn a_file_with_a_run_twice_or_cut_short_changes_nothing() {
    let given = Given::new();
    let mut runs = two_shapes(&given);
    let elsewhere = Given::new();
    let mut store = elsewhere.store();
    let text = exported(&runs);
    for cut in [0, 1, text.len() / 2, text.len() - 1] {
        assert!(
            matches!(store.import(&text[..cut]), Err(ImportError::NotAnExport(_))),
            "{cut}"
        );
    }
    runs.push(runs[0].clone());
    assert!(matches!(
        store.import(&exported(&runs)),
        Err(ImportError::Contradicts {
            what: Contradiction::Repeated,
            ..
        })
    ));
    assert!(store.list(&Filter::default()).unwrap().is_empty());
}

/// The first run of the file is already written when the second one is refused, by a file that only looks like a store.
#[test]
fn an_import_that_the_store_refuses_midway_leaves_nothing_behind() {
    let given = Given::new();
    let runs = two_shapes(&given);
    let elsewhere = Given::new();
    let mut store = elsewhere.store();
    elsewhere.sql(
        "CREATE TRIGGER no BEFORE INSERT ON run WHEN NEW.experiment = 'io' BEGIN SELECT RAISE(ABORT, 'no room'); END",
    );
    let error = store.import(&exported(&runs)).unwrap_err().to_string();
    assert!(error.contains("no room"), "{error}");
    assert!(store.list(&Filter::default()).unwrap().is_empty());
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-1e300..1e300f64).prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..20).prop_map(Value::from),
            prop::collection::btree_map("[aA._]{0,3}|run|elapsed_s|memory", inner, 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// The JSON pointers of a value and of all in it.
fn below(value: &Value, at: String, places: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (key, value) in members {
                below(
                    value,
                    format!("{at}/{}", key.replace('~', "~0").replace('/', "~1")),
                    places,
                );
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                below(value, format!("{at}/{index}"), places);
            }
        }
        _ => {}
    }
    places.push(at);
}

fn whole_with(samples: Vec<Value>) -> Whole {
    let given = Given::new();
    let mut store = Store::open(&given.path).unwrap();
    let run = given.begin(&mut store, "probe", None);
    let mut whole = store.whole(run).unwrap();
    whole.taken = samples
        .into_iter()
        .zip(1..)
        .map(|(value, number)| of(number, value))
        .collect();
    whole
}

fn of(number: u64, sample: Value) -> Sample {
    Sample {
        number,
        round: 1,
        cell: Cell::new().with("memory", "0"),
        started_at_s: 0.0,
        took_s: 1.0,
        values: elapsed(1.0),
        failed: None,
        warnings: vec![],
        detail: sample,
    }
}

proptest! {
    /// Whatever samples hold, names of columns differ also without regard to case, and Parquet reads back row by row.
    #[test]
    fn any_samples_make_a_table(samples in prop::collection::vec(any_json(), 0..6)) {
        let table = Table::of(&[whole_with(samples.clone())]).unwrap();
        let names: std::collections::BTreeSet<String> =
            table.columns.iter().map(|column| column.name.to_lowercase()).collect();
        prop_assert_eq!(names.len(), table.columns.len());
        prop_assert_eq!(table.rows, samples.len());
        let (mut csv, mut parquet) = (Vec::new(), Vec::new());
        write_csv(&table, &mut csv).unwrap();
        write_parquet(&table, &mut parquet).unwrap();
        let rows = rows(parquet);
        prop_assert_eq!(rows.len(), samples.len());
        for (index, column) in table.columns.iter().enumerate() {
            for (row, fields) in rows.iter().enumerate() {
                let expected = match &column.values {
                    ColumnValues::Whole(values) => values[row].map(Field::Long),
                    ColumnValues::Real(values) => values[row].map(Field::Double),
                    ColumnValues::Switch(values) => values[row].map(Field::Bool),
                    ColumnValues::Text(values) => values[row].clone().map(Field::Str),
                };
                prop_assert_eq!(&fields[index].1, &expected.unwrap_or(Field::Null), "{}", column.name);
            }
        }
    }

    /// Whatever stands in whatever places of an export: all of it is in the store and can be exported again, or nothing is.
    #[test]
    fn an_export_with_anything_anywhere_is_imported_or_refused_whole(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any_json()), 1..4),
    ) {
        let given = Given::new();
        let mut file: Value = serde_json::from_slice(&exported(&two_shapes(&given))).unwrap();
        for (place, value) in changes {
            let mut places = Vec::new();
            below(&file, String::new(), &mut places);
            *file.pointer_mut(&places[place.index(places.len())]).unwrap() = value;
        }
        let elsewhere = Given::new();
        let mut store = elsewhere.store();
        match store.import(file.to_string().as_bytes()) {
            Ok(imported) => {
                let runs: Vec<Whole> = imported.runs.iter().map(|&run| store.whole(run).unwrap()).collect();
                Table::of(&runs).unwrap();
                prop_assert_eq!(store.import(&exported(&runs)).unwrap().already, imported.runs);
            }
            Err(_) => prop_assert!(store.list(&Filter::default()).unwrap().is_empty()),
        }
    }

    #[test]
    fn no_text_makes_an_import_panic(text in "\\PC{0,60}") {
        let given = Given::new();
        prop_assert!(given.store().import(text.as_bytes()).is_err());
    }
}

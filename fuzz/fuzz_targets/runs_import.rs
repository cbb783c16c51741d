//! Exported runs from anywhere: imported, summed up, shown, exported again, removed.
//!
//! ```text
//! first byte 0    the rest is the file
//! else            the rest changes a good file, three bytes a change: where (2), to what (1)
//! ```
#![no_main]
use std::sync::{LazyLock, Mutex};

use libfuzzer_sys::fuzz_target;
use nearfar_report::Style;
use nearfar_runs::export::{Table, Whole, write_csv, write_parquet};
use nearfar_runs::{Filter, Store, summarise};
use serde_json::{Value, json};

const GOOD: &str = include_str!("runs_import.json");
const STYLE: Style = Style { colour: false, width: 100 };

static STORE: LazyLock<(tempfile::TempDir, Mutex<Store>)> = LazyLock::new(|| {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a temporary directory");
    let store = Store::open(&directory.path().join("runs.db")).expect("a store");
    (directory, Mutex::new(store))
});

fuzz_target!(|bytes: &[u8]| {
    let text = match bytes.split_first() {
        None => return,
        Some((0, rest)) => rest.to_vec(),
        Some((_, changes)) => changed(changes),
    };
    let mut store = STORE.1.lock().expect("no panic before");
    match store.import(&text) {
        Ok(imported) => {
            let wholes: Vec<Whole> = imported.runs.iter().map(|&run| store.whole(run).expect("as imported")).collect();
            wholes.iter().for_each(show);
            if let Ok(table) = Table::of(&wholes) {
                write_csv(&table, &mut Vec::new()).expect("memory");
                write_parquet(&table, Vec::new()).expect("memory");
            }
            let again = serde_json::to_vec(&json!({"schema": "runs-export/2", "runs": wholes})).expect("as stored");
            assert_eq!(store.import(&again).expect("its own export").already, imported.runs);
            store.remove(&imported.runs).expect("none of them is being carried out");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    assert!(store.list(&Filter::default()).expect("a list").is_empty(), "nothing is left of a file that was refused");
});

/// What `runs list` and `runs show` do.
fn show(whole: &Whole) {
    let Whole { run, detail, taken, .. } = whole;
    let cells = summarise(&detail.plan, taken);
    let mut shown = nearfar_report::runs::list(std::slice::from_ref(run), "", &STYLE);
    shown += &nearfar_report::runs::show(run, detail, None, &cells, taken, &STYLE);
    if let Ok(answer) = nearfar_bench::matrix::stored::answer(run, detail, taken) {
        shown += &nearfar_report::probe::matrix(&answer, &STYLE);
        serde_json::to_string(&answer).expect("an answer is JSON");
    }
    assert!(!shown.contains('\u{1b}'), "what a file holds reaches no terminal as a command");
}

/// The good file with changes. The uid stays as it is most of the time, as it is easily wrong.
fn changed(changes: &[u8]) -> Vec<u8> {
    let mut file: Value = serde_json::from_str(GOOD).expect("a good file");
    for change in changes.chunks_exact(3).take(20) {
        let mut places = Vec::new();
        walk(&file, String::new(), &mut places);
        let place = &places[usize::from(u16::from_le_bytes([change[0], change[1]])) % places.len()];
        let other = file.pointer(&places[usize::from(change[2]) * 7 % places.len()]).cloned();
        if let Some(value) = file.pointer_mut(place) {
            apply(value, change[2], other);
        }
    }
    file.to_string().into_bytes()
}

fn apply(value: &mut Value, what: u8, other: Option<Value>) {
    *value = match what % 16 {
        0 => Value::Null,
        1 => json!(-1),
        2 => json!(0),
        3 => json!(u64::MAX),
        4 => json!(i64::MIN),
        5 => json!(1e308),
        6 => json!(-1e-308),
        7 => json!(u32::MAX),
        8 => json!(""),
        9 => json!("\u{1b}[31m\n\"\u{0}\u{202e}"),
        10 => json!([]),
        11 => json!({}),
        12 => json!(true),
        13 => match &*value {
            Value::Array(items) => [items.clone(), items.clone()].concat().into(),
            Value::Object(members) => members.iter().skip(1).map(|(key, value)| (key.clone(), value.clone())).collect(),
            other => other.clone(),
        },
        14 => json!({"unknown_reason": "fuzz"}),
        _ => other.unwrap_or_default(),
    };
}

/// The JSON pointer (RFC 6901) of everything in a value.
fn walk(value: &Value, path: String, places: &mut Vec<String>) {
    match value {
        Value::Object(members) => members.iter().for_each(|(key, value)| {
            walk(value, format!("{path}/{}", key.replace('~', "~0").replace('/', "~1")), places);
        }),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, value)| walk(value, format!("{path}/{index}"), places));
        }
        _ => {}
    }
    places.push(path);
}

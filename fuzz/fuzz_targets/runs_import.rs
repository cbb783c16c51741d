//! Exported runs from anywhere: imported, summed up, shown, exported again, removed.
//!
//! ```text
//! first byte 0    the rest is the file
//! else            the rest changes a good file, three bytes a change: where (2), to what (1)
//! ```
#![no_main]
mod mutated;

use std::sync::{LazyLock, Mutex};

use libfuzzer_sys::fuzz_target;
use mutated::mutated;
use nearfar_report::Style;
use nearfar_report::runs::{self, Shown};
use nearfar_runs::export::{Table, Whole, write_csv, write_parquet};
use nearfar_runs::{Filter, Store, summarise};
use serde_json::json;

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
        Some((_, changes)) => mutated(GOOD, changes),
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
    let cells = summarise(detail, taken);
    let shown = Shown { run, detail, machine: None, cells: &cells, samples: taken, is_kept: true };
    let mut documents = vec![runs::list(std::slice::from_ref(run), ""), runs::show(&shown)];
    if let Ok(Some(own)) = shown.own(None) {
        serde_json::to_string(&own.json).expect("an answer is JSON");
        documents.extend([own.text, own.mail, runs::page(&shown, own.page)]);
    }
    for document in documents {
        let text = document.to_text(&STYLE);
        assert!(!text.contains('\u{1b}'), "what a file holds reaches no terminal as a command");
    }
}

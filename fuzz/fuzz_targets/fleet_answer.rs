//! The answer of a host from anywhere: read, collected with the answers of four others, compared, shown.
//!
//! ```text
//! first byte 0    the rest is the file
//! 1               the rest is its JSON
//! else            the rest changes good JSON, three bytes a change: where (2), to what (1)
//! ```
#![no_main]
mod mutated;

use std::fs;
use std::io::Write as _;
use std::sync::LazyLock;

use flate2::{Compression, GzBuilder};
use libfuzzer_sys::fuzz_target;
use mutated::mutated;
use nearfar_fleet::dataset::{Selection, collect, load};
use nearfar_fleet::engine::EngineSettings;
use nearfar_fleet::survey::{SurveyOptions, survey};
use nearfar_fleet::{Folder, HostName, HostResult, Manifest, SCHEMA, Step, new_id, parse_hosts};
use nearfar_report::Style;
use sha2::{Digest as _, Sha256};

const GOOD: &str = include_str!("fleet_answer.json");
const STYLE: Style = Style { colour: false, width: 100 };

static FOLDER: LazyLock<(tempfile::TempDir, Folder)> = LazyLock::new(|| {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a temporary directory");
    let manifest = Manifest {
        schema: SCHEMA.to_owned(),
        id: new_id(),
        label: None,
        started_at_s: 1.8e9,
        by: "fuzz@here".to_owned(),
        nearfar: "0.1.0".to_owned(),
        engine: EngineSettings::Local { time_limit_minutes: 1 },
        command: vec!["nearfar".to_owned()],
        step: Step::Verb,
        arguments: vec!["bench".to_owned(), "latency".to_owned()],
        at_once: 1,
        hosts: parse_hosts("n[1-5]").expect("a list"),
    };
    let folder = Folder::create(&directory.path().join("run"), manifest).expect("a folder");
    for host in &folder.manifest.hosts[1..] {
        let json = GOOD.replace("\"host\":\"n1\"", &format!("\"host\":\"{host}\""));
        fs::write(folder.result_path(host), packed(json.as_bytes())).expect("a file");
    }
    (directory, folder)
});

fuzz_target!(|bytes: &[u8]| {
    let file = match bytes.split_first() {
        None => return,
        Some((0, rest)) => rest.to_vec(),
        Some((1, rest)) => packed(rest),
        Some((_, changes)) => packed(&mutated(GOOD, changes)),
    };
    let (directory, folder) = &*FOLDER;
    let host: &HostName = &folder.manifest.hosts[0];
    if let Err(error) = HostResult::read(&file, "n1") {
        assert!(!error.to_string().is_empty());
    }
    fs::write(folder.result_path(host), &file).expect("a file");
    let dataset = directory.path().join("dataset");
    let _ = fs::remove_dir_all(&dataset);
    collect(folder, &dataset).expect("four of five answered");
    let loaded = load(&dataset, &Selection::default()).expect("what was just written");
    let survey = survey(&loaded, &SurveyOptions::default());
    assert_eq!(survey.hosts, 5);
    let shown = nearfar_report::fleet::survey(&survey).to_text(&STYLE);
    assert!(!shown.contains('\u{1b}'), "what a file holds reaches no terminal as a command");
    let _ = nearfar_report::fleet::page(&survey).to_html();
});

/// A file as hosts write it.
fn packed(json: &[u8]) -> Vec<u8> {
    let sum: String = Sha256::digest(json).iter().map(|byte| format!("{byte:02x}")).collect();
    let mut out = GzBuilder::new().comment(format!("sha256:{sum}")).write(Vec::new(), Compression::fast());
    out.write_all(json).expect("writing to memory");
    out.finish().expect("writing to memory")
}

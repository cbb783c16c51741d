//! The folders of fleet runs.

#![allow(dead_code, reason = "each of two programs uses some of it")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// The lines of a file of JSON; none where there is no file. A last line may be written at this moment.
pub fn lines(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

/// What happened to each host, in order: `started`, `lost`, `started`, `answered`. That a step is about to start is left out.
pub fn events(folder: &Path) -> BTreeMap<String, Vec<String>> {
    let mut events: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in lines(&folder.join("events.jsonl")) {
        let text = |key: &str| line[key].as_str().unwrap().to_owned();
        if text("event") != "starting" {
            events.entry(text("host")).or_default().push(text("event"));
        }
    }
    events
}

/// The answer of a host, uncompressed by a program that is not nearfar.
#[track_caller]
pub fn result(folder: &Path, host: &str) -> Value {
    let file = folder.join("hosts").join(format!("{host}.result.gz"));
    let output = Command::new("gzip").arg("-dc").arg(&file).output().unwrap();
    assert!(output.status.success(), "{}: {output:?}", file.display());
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The hosts without an answer in a summary, with the reasons.
pub fn reasons(missing: &Value) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let all = missing.as_array().unwrap().iter();
    all.map(|it| (text(&it["host"]), text(&it["reason"])))
        .collect()
}

/// What hosts deviate in, in the answer of `fleet show`: hosts, and the name of the fact or metric. The group has to be the only one.
pub fn deviations(survey: &Value) -> Vec<(&Value, &str, &Value)> {
    let groups = survey["groups"].as_array().unwrap();
    assert_eq!(groups.len(), 1, "{survey:#}");
    let deviations = groups[0]["deviations"].as_array().unwrap();
    let name = |it: &'_ Value| match it["kind"].as_str().unwrap() {
        "fact" => "fact",
        _ => "metric",
    };
    let all = deviations.iter();
    all.map(|it| (&it["hosts"], it[name(it)].as_str().unwrap(), it))
        .collect()
}

//! The keys of answers in JSON, and that docs/json.md names each of them.

use std::collections::BTreeSet;

use serde_json::Value;

const PAGE: &str = include_str!("../../../../docs/json.md");

/// The keys of all these answers, at any depth, each of which docs/json.md has to name in backticks.
#[track_caller]
pub fn documented<'a>(answers: impl IntoIterator<Item = &'a Value>) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    answers
        .into_iter()
        .for_each(|answer| collect(answer, &mut keys));
    let missing: Vec<_> = keys
        .iter()
        .filter(|key| !PAGE.contains(&format!("`{key}`")))
        .collect();
    assert!(missing.is_empty(), "docs/json.md does not name {missing:?}");
    keys
}

fn collect(value: &Value, keys: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => members.iter().for_each(|(key, member)| {
            // Files are keys of `read_instead`, such as those of control groups that other tests make.
            if !key.contains('/') {
                keys.insert(key.clone());
            }
            collect(member, keys);
        }),
        Value::Array(members) => members.iter().for_each(|member| collect(member, keys)),
        _ => {}
    }
}

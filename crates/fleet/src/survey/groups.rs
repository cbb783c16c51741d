//! Hosts that should be alike.

use std::collections::BTreeMap;

use super::CommonFact;
use crate::dataset::Loaded;
use crate::facts::{Value, size_text};

/// Sizes within this share of each other are the same: firmware and kernel keep a part that differs from boot to boot.
const SAME_SIZE: f64 = 0.02;

/// What stands for a value that is not known.
const UNKNOWN: &str = "unknown";

/// Places of hosts, and what they have in common.
pub(super) struct HostGroup {
    pub common: Vec<CommonFact>,
    pub hosts: Vec<usize>,
}

/// The hosts that have facts, by the values of these.
pub(super) fn groups(loaded: &Loaded, by: &[String]) -> Vec<HostGroup> {
    let mut keys: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for of_fact in loaded.facts.values() {
        for &host in of_fact.keys() {
            keys.entry(host).or_default();
        }
    }
    for fact in by {
        let of_fact = loaded.facts.get(fact);
        let sizes = sizes(of_fact.into_iter().flat_map(BTreeMap::values));
        for (host, key) in &mut keys {
            let value = of_fact.and_then(|of_fact| of_fact.get(host));
            key.push(value.map_or_else(|| UNKNOWN.to_owned(), |value| text(value, &sizes)));
        }
    }
    let mut groups: BTreeMap<Vec<String>, Vec<usize>> = BTreeMap::new();
    for (host, key) in keys {
        groups.entry(key).or_default().push(host);
    }
    let group = |(key, hosts): (Vec<String>, Vec<usize>)| HostGroup {
        common: by
            .iter()
            .zip(key)
            .map(|(fact, value)| CommonFact {
                fact: fact.clone(),
                value,
            })
            .collect(),
        hosts,
    };
    groups.into_iter().map(group).collect()
}

/// For each size the one that stands for all that follow each other without a gap of more than 2 %: the largest.
pub(super) fn sizes<'a>(values: impl Iterator<Item = &'a Value>) -> BTreeMap<u64, u64> {
    let mut all: Vec<u64> = values
        .filter_map(|value| match value {
            Value::Bytes(bytes) => Some(*bytes),
            _ => None,
        })
        .collect();
    all.sort_unstable();
    all.dedup();
    let mut found = BTreeMap::new();
    let mut end = all.len();
    while end > 0 {
        let mut begin = end - 1;
        while begin > 0 && all[begin] as f64 <= all[begin - 1] as f64 * (1.0 + SAME_SIZE) {
            begin -= 1;
        }
        for &bytes in &all[begin..end] {
            found.insert(bytes, all[end - 1]);
        }
        end = begin;
    }
    found
}

/// A value as it is shown, with what stands for each size.
pub(super) fn text(value: &Value, sizes: &BTreeMap<u64, u64>) -> String {
    match value {
        Value::Bytes(bytes) => size_text(sizes.get(bytes).copied().unwrap_or(*bytes)),
        value => value.known_text().unwrap_or_else(|| UNKNOWN.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_differ_a_little_are_one() {
        let gib = 1u64 << 30;
        let all = [128 * gib, 127 * gib, 126 * gib, 64 * gib];
        let all = all.map(Value::Bytes);
        let sizes = sizes(all.iter());
        assert_eq!(sizes[&(126 * gib)], 128 * gib);
        assert_eq!(sizes[&(64 * gib)], 64 * gib);
    }
}

//! The value of `--delay` that makes delays as stored ones.

use std::collections::BTreeMap;

use nearfar_machine::{Delays, Distance, PairDelay};

use super::spec::Asked;

/// As short as it can be: what is derived without being asked for is left out. In simulated time a machine may have figures of its
/// own, and a scale says that they are not meant.
pub fn spec_of(delays: &Delays, is_simulated: bool) -> String {
    let derived = Asked::default().on(is_simulated, None);
    let is_derived =
        |pair: &PairDelay| f64::from(pair.delay_ns) == derived.derived_ns(pair.distance).round();
    let mut items = match delays.pairs.iter().all(is_derived) {
        true => Vec::new(),
        false => by_distance(&delays.pairs).unwrap_or_else(|| by_pair(&delays.pairs)),
    };
    if delays.cache != derived.cache() {
        items.push(format!("cache={}", delays.cache));
    }
    if delays.transfer != derived.transfer() {
        items.push(format!("transfer={}", delays.transfer));
    }
    if !delays.bandwidth.is_unlimited() {
        items.push(delays.bandwidth.to_string());
    }
    items.extend(delays.device.map(|device| format!("device={device}")));
    if is_simulated {
        items.insert(0, "scale=1".to_owned());
    }
    match items.is_empty() {
        true => "auto".to_owned(),
        false => items.join(","),
    }
}

/// `None` where one distance has several delays.
fn by_distance(pairs: &[PairDelay]) -> Option<Vec<String>> {
    let mut delays: BTreeMap<Distance, u32> = BTreeMap::new();
    for pair in pairs {
        let known = *delays.entry(pair.distance).or_insert(pair.delay_ns);
        if known != pair.delay_ns {
            return None;
        }
    }
    let item = |(distance, ns): (&Distance, &u32)| format!("{}={ns}", distance.0);
    Some(delays.iter().map(item).collect())
}

fn by_pair(pairs: &[PairDelay]) -> Vec<String> {
    let item = |it: &PairDelay| format!("{}:{}={}", it.cpu_node.0, it.memory_node.0, it.delay_ns);
    pairs.iter().map(item).collect()
}

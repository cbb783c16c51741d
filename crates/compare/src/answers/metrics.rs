//! The numbers of an answer as metrics of a stored run.

use std::collections::BTreeSet;

use nearfar_runs::{Better, Metric, MetricValue, metric_name};

use super::values::{ValueSelection, numbers_of};

/// Most numbers of an answer that become metrics: a table of more helps as little as their comparison.
const MAX_METRICS: usize = 200;

/// The numbers of an answer in JSON, by metric; none where it is something else. Of two paths with one name the first counts, and
/// none has a name of `others`.
pub fn metrics_of(stdout: &str, others: &[&str]) -> Vec<(Metric, MetricValue)> {
    let mut names: BTreeSet<String> = others.iter().map(ToString::to_string).collect();
    let numbers = numbers_of(stdout).into_iter();
    let named = numbers.map(|(path, number)| (metric_name(&path), path, number));
    let new = named.filter(|(name, ..)| names.insert(name.clone()));
    let metric = |(name, path, number): (String, String, f64)| {
        let metric = Metric::real(name, unit(&path), direction(&path));
        (metric, number.into())
    };
    new.take(MAX_METRICS).map(metric).collect()
}

/// The metrics of an answer that a selection takes; all where it takes none.
pub fn metrics_taken(stdout: &str, selection: &ValueSelection) -> Vec<String> {
    let numbers = numbers_of(stdout).into_iter();
    let taken = numbers.filter(|(path, _)| selection.takes(path));
    let names = taken.map(|(path, _)| metric_name(&path));
    Vec::from_iter(BTreeSet::from_iter(names))
}

/// The unit that a key's suffix names, as those of nearfar's own answers do.
fn unit(path: &str) -> &'static str {
    let key = path.rsplit('.').next().unwrap_or(path);
    let units = [
        ("_bytes_per_s", "B/s"),
        ("_per_s", "1/s"),
        ("_bytes", "B"),
        ("_percent", "%"),
        ("_ns", "ns"),
        ("_us", "us"),
        ("_ms", "ms"),
        ("_s", "s"),
    ];
    units
        .into_iter()
        .find_map(|(suffix, unit)| key.ends_with(suffix).then_some(unit))
        .unwrap_or("")
}

/// Rates are better when they are higher; everything else is taken for a time or a cost.
pub(super) fn direction(path: &str) -> Better {
    let rates = ["per_s", "iops", "bandwidth", "throughput", "bw_"];
    let words = ["bw", "ops", "tps", "qps"];
    let is_word = |part: &str| words.contains(&part);
    let has_word = path.split(['.', '_', '[', ']']).any(is_word);
    match has_word || rates.iter().any(|rate| path.contains(rate)) {
        true => Better::Higher,
        false => Better::Lower,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_takes_metrics_by_the_paths_of_their_values() {
        let stdout = r#"{"pairs": [{"id": 0, "ns": 90.5}, {"id": 1, "ns": 80}], "ok": true}"#;
        let taken = |patterns: &[&str]| {
            let patterns = patterns.iter().map(ToString::to_string).collect();
            metrics_taken(stdout, &ValueSelection::new(patterns))
        };
        assert_eq!(taken(&["pairs[*].ns", "ok"]), ["pairs_0_ns", "pairs_1_ns"]);
        assert!(taken(&[]).is_empty() && taken(&["other"]).is_empty());
    }

    #[test]
    fn numbers_of_an_answer_become_metrics_with_unit_and_direction() {
        let stdout = r#"{"pairs": [{"cpu_node": 0, "median_ns": 90.5}], "read_bytes_per_s": 1e9, "ops_per_s": 7, "ok": true, "exit": {"code": 1}}"#;
        let metrics = metrics_of(stdout, &["exit_code"]);
        let found: Vec<_> = metrics
            .iter()
            .map(|(metric, _)| (metric.name.as_str(), metric.unit.as_str(), metric.better))
            .collect();
        assert_eq!(
            found,
            [
                ("ops_per_s", "1/s", Better::Higher),
                ("pairs_0_cpu_node", "", Better::Lower),
                ("pairs_0_median_ns", "ns", Better::Lower),
                ("read_bytes_per_s", "B/s", Better::Higher),
            ]
        );
        assert_eq!(metrics[2].1.number(), 90.5);
    }
}

//! The values of JSON answers, each under its path, and what two sets of samples of one value say.

use std::collections::{BTreeMap, HashSet};

use nearfar_machine::alternatives;
use nearfar_runs::Better;
use nearfar_statistics::Summary;
use nearfar_statistics::compare::Compared;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::metrics::direction;
use super::{CommandRun, CommandSide};

/// One value of the answers, over all runs.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct AnswerValue {
    /// Where it stands: `nodes[2].online`.
    pub path: String,
    /// In A's runs; `null` where a run has no such value.
    pub a: Vec<Value>,
    /// In B's runs.
    pub b: Vec<Value>,
    /// For numbers: how they differ.
    pub change: Option<NumberChange>,
}

/// How a number differs.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct NumberChange {
    /// Median of A's runs.
    pub a_median: f64,
    /// Median of B's runs.
    pub b_median: f64,
    /// B's median through A's; `None` where A's is zero.
    pub ratio: Option<f64>,
    /// By the rounds that both sides have.
    #[serde(flatten)]
    pub compared: Compared,
}

impl AnswerValue {
    /// A value of which A's and B's runs are known.
    pub(super) fn new(path: String, a: Vec<Value>, b: Vec<Value>) -> Self {
        Self {
            path,
            a,
            b,
            change: None,
        }
    }

    /// Whether a clear difference is one to the worse, by the path; `None` where none is clear.
    pub(super) fn is_worse(&self) -> Option<bool> {
        let change = self.change.as_ref()?;
        let is_clear = change.compared.verdict.is_difference();
        let is_more = change.b_median > change.a_median;
        is_clear.then(|| is_more == (direction(&self.path) == Better::Lower))
    }

    /// Whether it is a number in every run, and not the same in all of them.
    pub(super) fn is_compared(&self) -> bool {
        self.change.is_some() && self.differs()
    }

    /// Whether any run gave another value than any other.
    pub fn differs(&self) -> bool {
        let first = self.a.first().or(self.b.first());
        let mut all = self.a.iter().chain(&self.b);
        all.any(|value| Some(value) != first)
    }
}

impl NumberChange {
    /// `None` where a side has no runs.
    pub(super) fn of(a: &[f64], b: &[f64], compared: Compared) -> Option<Self> {
        let (a_median, b_median) = (Summary::of(a)?.median, Summary::of(b)?.median);
        Some(Self {
            a_median,
            b_median,
            ratio: (a_median != 0.0).then(|| b_median / a_median),
            compared,
        })
    }
}

/// The numbers of a side's runs; `None` where a run has none.
pub(super) fn numbers(side: &[Value]) -> Option<Vec<f64>> {
    side.iter().map(Value::as_f64).collect()
}

/// Which values are shown: paths in which `*` stands for any part, `nodes[*].online`.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ValueSelection {
    patterns: Vec<String>,
}

impl ValueSelection {
    /// All the patterns together.
    pub fn new(patterns: Vec<String>) -> Self {
        Self { patterns }
    }

    /// Whether it takes none, so that all are shown.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    pub(super) fn takes(&self, path: &str) -> bool {
        self.patterns.iter().any(|pattern| matches(pattern, path))
    }

    /// Fails where a pattern matches no value of any of these runs: nothing would be compared, which reads like equality.
    pub fn check<'a>(
        &self,
        runs: impl IntoIterator<Item = &'a CommandRun>,
    ) -> Result<(), SelectionError> {
        if self.is_empty() {
            return Ok(());
        }
        let mut paths: Vec<String> = Vec::new();
        for run in runs {
            let answer = parse(&run.stdout).ok_or_else(|| SelectionError::not_json(run))?;
            paths.extend(answer.order.into_iter().map(|(path, _)| path));
        }
        let is_unmatched = |pattern: &&String| !paths.iter().any(|path| matches(pattern, path));
        match self.patterns.iter().find(is_unmatched) {
            Some(pattern) => Err(SelectionError::unmatched(pattern, &paths)),
            None => Ok(()),
        }
    }
}

/// Why a selection cannot show what runs answered.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SelectionError {
    /// The command printed no JSON.
    #[error(
        "--value selects values of JSON answers; a run that ended with {exit_code} printed no JSON{last_error}"
    )]
    NotJson {
        exit_code: i32,
        /// The last line of its errors after a colon; empty where it printed none.
        last_error: String,
    },
    /// A pattern matches nothing.
    #[error("--value {pattern} matches no value of the answers; {there_is}")]
    Unmatched {
        pattern: String,
        /// What follows the semicolon ([`alternatives`]).
        there_is: String,
    },
}

impl SelectionError {
    fn not_json(run: &CommandRun) -> Self {
        let last = run.stderr.lines().last();
        Self::NotJson {
            exit_code: run.exit_code,
            last_error: last.map(|line| format!(": {line}")).unwrap_or_default(),
        }
    }

    /// Lists the paths as patterns, `nodes[*].online`, those first that end in the key that was asked for.
    fn unmatched(pattern: &str, paths: &[String]) -> Self {
        let key = pattern.rsplit('.').next().unwrap_or(pattern);
        let mut known: Vec<String> = Vec::new();
        for path in paths.iter().map(|path| without_names(path)) {
            if !known.contains(&path) {
                known.push(path);
            }
        }
        known.sort_by_key(|path| path.rsplit('.').next() != Some(key));
        Self::Unmatched {
            pattern: pattern.to_owned(),
            there_is: alternatives(pattern, &known),
        }
    }
}

/// `nodes[2].online` as `nodes[*].online`.
fn without_names(path: &str) -> String {
    let mut parts = path.split('[');
    let mut general = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        general += "[*]";
        general += part.split_once(']').map_or("", |(_, rest)| rest);
    }
    general
}

/// Whether a pattern fits a whole path. `*` stands for any text without a dot or bracket, `[*]` for any name of a list's entry
/// (those of PCI functions have a dot), `**` for any text.
fn matches(pattern: &str, path: &str) -> bool {
    if let (Some(rest), Some(name)) = (pattern.strip_prefix("[*]"), path.strip_prefix('[')) {
        return name
            .split_once(']')
            .is_some_and(|(_, path)| matches(rest, path));
    }
    if let Some(rest) = pattern.strip_prefix("**") {
        return (0..=path.len())
            .filter(|&at| path.is_char_boundary(at))
            .any(|at| matches(rest, &path[at..]));
    }
    if let Some(rest) = pattern.strip_prefix('*') {
        let end = path.find(['.', '[', ']']).unwrap_or(path.len());
        return (0..=end)
            .filter(|&at| path.is_char_boundary(at))
            .any(|at| matches(rest, &path[at..]));
    }
    match (pattern.chars().next(), path.chars().next()) {
        (None, None) => true,
        (Some(want), Some(have)) if want == have => {
            matches(&pattern[want.len_utf8()..], &path[have.len_utf8()..])
        }
        _ => false,
    }
}

/// The values of both sides, and how many were left out as equal; `None` where a run printed something else than JSON.
pub(super) fn compare(
    a: &CommandSide,
    b: &CommandSide,
    selection: &ValueSelection,
) -> Option<(Vec<AnswerValue>, usize)> {
    let parsed = |side: &CommandSide| -> Option<Vec<Flat>> {
        let runs = side.runs.iter();
        runs.map(|run| parse(&run.stdout)).collect()
    };
    let (a, b) = (parsed(a)?, parsed(b)?);
    let mut paths: Vec<&String> = Vec::new();
    let mut seen = HashSet::new();
    for (path, _) in a.iter().chain(&b).flat_map(|run| &run.order) {
        if seen.insert(path) {
            paths.push(path);
        }
    }
    let of = |runs: &[Flat], path: &str| runs.iter().map(|run| run.get(path)).collect();
    let all = paths.into_iter();
    let all = all.map(|path| AnswerValue::new(path.clone(), of(&a, path), of(&b, path)));
    let mut all: Vec<AnswerValue> = all.collect();
    if !selection.is_empty() {
        all.retain(|value| selection.takes(&value.path));
        return Some((all, 0));
    }
    let before = all.len();
    all.retain(AnswerValue::differs);
    let equal = before - all.len();
    Some((all, equal))
}

/// An answer's scalars by path, in the answer's order.
struct Flat {
    order: Vec<(String, Value)>,
    by_path: BTreeMap<String, usize>,
}

impl Flat {
    fn get(&self, path: &str) -> Value {
        let index = self.by_path.get(path);
        index.map_or(Value::Null, |&index| self.order[index].1.clone())
    }
}

/// The numbers of an answer in JSON by path, in the answer's order; none where it is something else.
pub(super) fn numbers_of(stdout: &str) -> Vec<(String, f64)> {
    let order = parse(stdout).map(|answer| answer.order).unwrap_or_default();
    let numbers = order.into_iter();
    let numbers = numbers.filter_map(|(path, value)| Some((path, value.as_f64()?)));
    numbers.collect()
}

impl CommandRun {
    /// A number of its answer in JSON by its path, without one the run time; `None` where it is not there.
    pub fn number(&self, path: Option<&str>) -> Option<f64> {
        match path {
            None => Some(self.elapsed_s),
            Some(path) => parse(&self.stdout)?.get(path).as_f64(),
        }
    }
}

/// Reads one answer. A bare number or word is text, not an answer in JSON.
fn parse(stdout: &str) -> Option<Flat> {
    let json: Value = serde_json::from_str(stdout).ok()?;
    (json.is_object() || json.is_array()).then(|| {
        let mut order = Vec::new();
        flatten(&json, String::new(), &mut order);
        let by_path = order.iter().enumerate();
        let by_path = by_path.map(|(index, (path, _))| (path.clone(), index));
        let by_path = by_path.collect();
        Flat { order, by_path }
    })
}

fn flatten(json: &Value, path: String, out: &mut Vec<(String, Value)>) {
    match json {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                let below = match path.as_str() {
                    "" => key.clone(),
                    path => format!("{path}.{key}"),
                };
                flatten(value, below, out);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            let names = names(items);
            for (index, item) in items.iter().enumerate() {
                let name = names.as_ref().map(|names| names[index].clone());
                let name = name.unwrap_or_else(|| index.to_string());
                flatten(item, format!("{path}[{name}]"), out);
            }
        }
        scalar => out.push((path, scalar.clone())),
    }
}

/// What the items of a list call themselves, where each has a name of its own: so node 2 is compared with node 2, and
/// not the second entry with the second.
fn names(items: &[Value]) -> Option<Vec<String>> {
    let name = |item: &Value, key: &str| match item.get(key)? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let own = |names: Option<Vec<String>>| {
        let names = names?;
        let distinct: HashSet<&String> = names.iter().collect();
        (distinct.len() == names.len()).then_some(names)
    };
    let keys = ["id", "name", "address", "number", "queue", "path", "metric"];
    let mut keys = keys.into_iter();
    let named = keys.find_map(|key| own(items.iter().map(|item| name(item, key)).collect()));
    named.or_else(|| own(cells(items)))
}

/// The names of an experiment's cells: the levels of the factors that are not the same in all of them, `cpus=0,memory=1`.
fn cells(items: &[Value]) -> Option<Vec<String>> {
    let cells = items.iter().map(|item| item.get("cell")?.as_object());
    let cells: Vec<_> = cells.collect::<Option<_>>()?;
    let first = cells.first()?;
    let is_same = |factor: &str| {
        cells
            .iter()
            .all(|cell| cell.get(factor) == first.get(factor))
    };
    let level = |(factor, level): (&String, &Value)| match level {
        Value::String(level) => format!("{factor}={level}"),
        level => format!("{factor}={level}"),
    };
    let name = |cell: &&serde_json::Map<String, Value>| {
        let varied = cell.iter().filter(|(factor, _)| !is_same(factor));
        varied.map(level).collect::<Vec<_>>().join(",")
    };
    let names = Vec::from_iter(cells.iter().map(name));
    names.iter().all(|name| !name.is_empty()).then_some(names)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn cells_of_an_experiment_are_named_by_what_differs() {
        let cell = |node: u32, kind: &str| json!({"cell": {"node": node, "kind": kind, "same": 1}, "metrics": [{"metric": "iops", "median": node}]});
        let answer = json!({"summary": [cell(0, "a"), cell(1, "a"), cell(1, "b")]}).to_string();
        let paths = Vec::from_iter(parse(&answer).unwrap().by_path.into_keys());
        let median = "summary[kind=b,node=1].metrics[iops].median".to_owned();
        assert!(paths.contains(&median), "{paths:?}");
        let one = json!({"summary": [cell(0, "a")]}).to_string();
        let paths = Vec::from_iter(parse(&one).unwrap().by_path.into_keys());
        let median = "summary[0].metrics[iops].median".to_owned();
        assert!(paths.contains(&median), "{paths:?}");
    }

    use super::*;

    #[test]
    fn nodes_are_compared_by_number_and_not_by_place() {
        let flat =
            parse(r#"{"nodes": [{"id": 0, "online": true}, {"id": 2, "online": false}]}"#).unwrap();
        assert_eq!(flat.get("nodes[2].online"), json!(false));
        assert_eq!(flat.get("nodes[1].online"), Value::Null);
    }

    #[test]
    fn a_star_stands_for_one_part_and_two_for_any() {
        assert!(matches("nodes[*].online", "nodes[12].online"));
        assert!(!matches("nodes[*].online", "nodes[1].cpus[0].online"));
        assert!(matches("**.online", "nodes[1].cpus[0].online"));
        assert!(matches("jobs[*].read.iops", "jobs[far job].read.iops"));
        assert!(matches("devices[*].node", "devices[0000:81:00.0].node"));
        assert!(!matches("devices[*].node", "devices[a].queues[b].node"));
        assert!(!matches("a", "ab") && !matches("ab", "a"));
    }

    fn run(stdout: &str, exit_code: i32, stderr: &str) -> CommandRun {
        CommandRun {
            elapsed_s: 1.0,
            exit_code,
            stdout: stdout.to_owned(),
            stderr: stderr.to_owned(),
            kernel: None,
        }
    }

    #[test]
    fn a_pattern_that_matches_nothing_is_an_error_with_what_there_is() {
        let answer = r#"{"tool": {"name": "x"}, "latency": {"pairs": [{"from": 0, "median_ns": 80.0}, {"from": 1, "median_ns": 90.0}]}}"#;
        let runs = [run(answer, 0, ""), run(r#"{"other": 1}"#, 0, "")];
        let check = |patterns: &[&str]| {
            let patterns = patterns.iter().map(ToString::to_string).collect();
            ValueSelection::new(patterns).check(&runs)
        };
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&["latency.pairs[*].median_ns", "other"]), Ok(()));
        let error = check(&["other", "pairs[*].median_ns"]).unwrap_err();
        let text = error.to_string();
        let listed =
            "there are: latency.pairs[*].median_ns, latency.pairs[*].from, tool.name, other";
        assert!(
            text.starts_with("--value pairs[*].median_ns matches no value")
                && text.ends_with(listed),
            "{text}"
        );
    }

    #[test]
    fn every_path_that_is_listed_matches_as_it_is_printed() {
        let answer = r#"{"devices": [{"address": "0000:81:00.0", "queues": [1, 2]}, {"address": "0000:82:00.0", "queues": []}], "n": 1}"#;
        for (path, _) in parse(answer).unwrap().order {
            let listed = without_names(&path);
            assert!(matches(&listed, &path), "{listed} {path}");
        }
    }

    #[test]
    fn a_selection_of_an_answer_that_is_no_json_is_an_error_with_its_reason() {
        let selection = ValueSelection::new(vec!["a".to_owned()]);
        let failed = run("", 3, "reading\nno such device\n");
        let text = selection.check([&failed]).unwrap_err().to_string();
        assert!(
            text.ends_with("a run that ended with 3 printed no JSON: no such device"),
            "{text}"
        );
        assert_eq!(ValueSelection::default().check([&failed]), Ok(()));
    }
}

//! Which hosts are alike, and which of them deviate in what.
//!
//! ```text
//!  Loaded ──► groups (product, CPU model) ──► facts     another value than most hosts of the group have
//!                                                 └─► metrics   nearfar_statistics::outliers, corrected for hosts and cells
//! ```

mod metrics;

use std::collections::{BTreeMap, BTreeSet};

use nearfar_statistics::outliers::Thresholds;
use serde::Serialize;

use crate::dataset::{Loaded, LoadedRun};
use crate::facts::{Value, matrix_difference, size_text};
use metrics::GroupMetric;

pub use nearfar_statistics::outliers::{MAX_FALSE_ALARMS, MIN_FALSE_ALARMS};

/// What counts.
#[derive(Clone, PartialEq, Debug)]
pub struct SurveyOptions {
    /// Facts whose values make a group.
    pub group_by: Vec<String>,
    /// The probability that a survey of hosts that are all alike names any for what it measured, at most.
    pub false_alarms: f64,
    /// Measured deviations below this share are not named, however significant they are.
    pub min_effect: f64,
    /// A host with fewer samples in a cell is not judged there: a median of few is decided by what disturbed one of them.
    pub min_samples: usize,
    /// Metrics that are judged besides the primary ones, by name.
    pub metrics: Vec<String>,
    /// Seed of the simulated thresholds.
    pub seed: u64,
}

impl Default for SurveyOptions {
    /// Product and CPU model; 5 %; 2 %; 6 samples.
    fn default() -> Self {
        Self {
            group_by: crate::facts::GROUP_BY.map(str::to_owned).to_vec(),
            false_alarms: 0.05,
            min_effect: 0.02,
            min_samples: 6,
            metrics: Vec::new(),
            seed: 1,
        }
    }
}

/// The answer.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Survey {
    /// The fleet runs, oldest first.
    pub runs: Vec<SurveyedRun>,
    pub hosts: usize,
    /// Hosts that gave no answer in the newest run that asked them.
    pub missing: Vec<MissingHost>,
    /// Hosts that answered without their machine: no facts of them are known.
    pub without_facts: Vec<String>,
    /// Emulated machines; the labels, each once.
    pub emulated: Vec<String>,
    /// As asked for; larger where many comparisons share it, each of which has [`MIN_FALSE_ALARMS`] or more.
    pub false_alarms: f64,
    pub min_effect: f64,
    /// The largest first.
    pub groups: Vec<Group>,
}

/// A fleet run that hosts are compared of.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SurveyedRun {
    pub run: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Seconds since 1970.
    pub started_at_s: f64,
    /// How many hosts no later run asked.
    pub hosts: usize,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct MissingHost {
    pub host: String,
    pub state: String,
    pub reason: String,
}

/// Hosts that should be alike.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Group {
    /// What they have in common, by fact.
    pub common: Vec<CommonFact>,
    pub hosts: Vec<String>,
    /// Those that concern most hosts first.
    pub deviations: Vec<Deviation>,
    /// Facts without a value that more than half of the hosts have: no host deviates in them.
    pub divided: Vec<Divided>,
    /// Measurements in which the hosts are two groups, and none deviates.
    pub split: Vec<Split>,
    /// Facts that are not known of all hosts.
    pub unknown: Vec<UnknownFact>,
    /// What was measured and compared.
    pub measured: Vec<Measured>,
    /// What could not be compared, and why.
    pub not_judged: Vec<NotJudged>,
}

impl Group {
    /// The hosts that deviate in anything.
    pub fn deviants(&self) -> BTreeSet<&str> {
        let hosts = self.deviations.iter().flat_map(|it| &it.hosts);
        hosts.map(String::as_str).collect()
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct CommonFact {
    pub fact: String,
    pub value: String,
}

/// Hosts that deviate in the same way.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Deviation {
    pub hosts: Vec<String>,
    #[serde(flatten)]
    pub kind: DeviationKind,
    /// Facts in which these hosts, and hardly any others, deviate as well: possible causes.
    pub also: Vec<String>,
}

/// What they deviate from.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum DeviationKind {
    Fact {
        fact: String,
        /// The value of more than half of the group.
        usual: String,
        value: String,
        /// Where both are tables: what differs in them.
        differences: Vec<String>,
    },
    Metric {
        experiment: String,
        metric: String,
        unit: String,
        /// Which cells: `memory_node=1`, or all.
        cells: String,
        /// Value over that of the group, with its 95 % interval.
        ratio: f64,
        low: f64,
        high: f64,
        /// Whether the deviation is for the worse.
        is_worse: bool,
        /// The group's usual value over these cells, and theirs (geometric means).
        usual: f64,
        value: f64,
    },
    /// They have no value in cells that more than half of the hosts measured.
    NotMeasured {
        experiment: String,
        metric: String,
        /// The cells: `memory_node=1`.
        cells: String,
    },
    /// Samples failed, and more than half of the hosts have none that did.
    FailedSamples {
        experiment: String,
        metric: String,
        /// Of these hosts together.
        failed: usize,
        samples: usize,
    },
}

/// Two groups of hosts by a measurement, each of a quarter of the hosts or more: which of them is as it should be is not known.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Split {
    pub experiment: String,
    pub metric: String,
    /// Which cells: `memory_node=1`, or all.
    pub cells: String,
    /// The hosts with the smaller values.
    pub below: Vec<String>,
    pub above: Vec<String>,
    /// The values of those above over those of the others; the median over the cells.
    pub ratio: f64,
    /// Facts that divide the hosts likewise: possible causes.
    pub also: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Divided {
    pub fact: String,
    /// The most frequent first, at most eight.
    pub values: Vec<ValueCount>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ValueCount {
    pub value: String,
    /// How many hosts have it.
    pub hosts: usize,
}

/// A fact that more than half of a group have, and these hosts do not.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct UnknownFact {
    pub fact: String,
    pub hosts: Vec<String>,
    /// Why it is not known; empty where the answer does not have it.
    pub reason: String,
}

/// A metric that was compared.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Measured {
    pub experiment: String,
    pub metric: String,
    pub unit: String,
    pub cells: usize,
    pub hosts: usize,
    /// Robust standard deviation between hosts as a share, the median over cells.
    pub spread: f64,
    /// A host is named from so many of these on.
    pub critical: f64,
    /// Whether hosts scatter with heavier tails than the stated rate of false alarms allows for; seen from some 500 hosts on.
    pub has_heavy_tails: bool,
    /// The runs that the values are of, the newest first.
    pub runs: Vec<MeasuredRun>,
}

/// A run that values are of.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct MeasuredRun {
    pub run: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Seconds since 1970.
    pub started_at_s: f64,
    /// How many of the hosts have their values from it.
    pub hosts: usize,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct NotJudged {
    pub experiment: String,
    pub metric: String,
    pub reason: String,
}

impl Survey {
    /// Whether any host deviates, or hosts that should be alike are two groups.
    pub fn has_outlier(&self) -> bool {
        let mut groups = self.groups.iter();
        groups.any(|group| !group.deviations.is_empty() || !group.split.is_empty())
    }
}

/// Compares the hosts of each group with each other.
pub fn survey(loaded: &Loaded, options: &SurveyOptions) -> Survey {
    let groups = groups(loaded, &options.group_by);
    let judged = metrics::judged(loaded, options);
    let metrics: Vec<Vec<GroupMetric<'_>>> = groups
        .iter()
        .map(|group| GroupMetric::all(loaded, group, &judged, options.min_samples))
        .collect();
    let comparisons = metrics.iter().flatten().filter(|it| it.is_compared());
    let comparisons = comparisons.count().max(1) as f64;
    // A smaller one takes too long to simulate.
    let rate = (options.false_alarms / comparisons).max(MIN_FALSE_ALARMS);
    let mut thresholds = Thresholds::new(options.seed);
    let mut all: Vec<Group> = groups
        .into_iter()
        .zip(&metrics)
        .map(|(group, metrics)| {
            let OddFacts {
                mut deviations,
                divided,
                unknown,
            } = odd_facts(loaded, &group, &options.group_by);
            let compared =
                metrics::compare(loaded, &group, metrics, rate, options, &mut thresholds);
            let with_causes = compared.deviations.into_iter().map(|deviation| {
                let also = causes(&deviation, &deviations);
                Deviation { also, ..deviation }
            });
            let with_causes: Vec<Deviation> = with_causes.collect();
            deviations.extend(with_causes);
            let split = compared.split.into_iter().map(|split| {
                let also = causes_of_split(loaded, &group.hosts, &split);
                Split { also, ..split }
            });
            let split = split.collect();
            deviations.sort_by_key(|it| std::cmp::Reverse(it.hosts.len()));
            Group {
                common: group.common,
                hosts: names(loaded, &group.hosts),
                deviations,
                divided,
                split,
                unknown,
                measured: compared.measured,
                not_judged: compared.not_judged,
            }
        })
        .collect();
    all.sort_by_key(|group| std::cmp::Reverse(group.hosts.len()));
    let emulated: BTreeSet<&String> = loaded
        .hosts
        .iter()
        .filter_map(|it| it.emulated.as_ref())
        .collect();
    Survey {
        runs: runs(loaded),
        hosts: loaded.hosts.len(),
        missing: missing(loaded),
        without_facts: without_facts(loaded),
        emulated: emulated.into_iter().cloned().collect(),
        false_alarms: rate * comparisons,
        min_effect: options.min_effect,
        groups: all,
    }
}

fn runs(loaded: &Loaded) -> Vec<SurveyedRun> {
    let hosts_of = |run: &str| loaded.hosts.iter().filter(|host| host.run == run).count();
    let of = |run: &LoadedRun| SurveyedRun {
        run: run.run.clone(),
        label: run.label.clone(),
        started_at_s: run.started_at,
        hosts: hosts_of(&run.run),
    };
    loaded.runs.iter().map(of).collect()
}

fn missing(loaded: &Loaded) -> Vec<MissingHost> {
    let missing = loaded.hosts.iter().filter(|host| host.state != "answered");
    missing
        .map(|host| MissingHost {
            host: host.name.clone(),
            state: host.state.clone(),
            reason: host.reason.clone().unwrap_or_default(),
        })
        .collect()
}

fn without_facts(loaded: &Loaded) -> Vec<String> {
    let with_facts: BTreeSet<usize> = loaded
        .facts
        .values()
        .flat_map(|of_fact| of_fact.keys().copied())
        .collect();
    let answered = loaded
        .hosts
        .iter()
        .enumerate()
        .filter(|(_, host)| host.state == "answered");
    let without = answered.filter(|(place, _)| !with_facts.contains(place));
    without.map(|(_, host)| host.name.clone()).collect()
}

fn names(loaded: &Loaded, places: &[usize]) -> Vec<String> {
    places
        .iter()
        .map(|&place| loaded.hosts[place].name.clone())
        .collect()
}

/// Sizes within this share of each other are the same: firmware and kernel keep a part that differs from boot to boot.
const SAME_SIZE: f64 = 0.02;

/// What stands for a value that is not known.
const UNKNOWN: &str = "unknown";

/// Places of hosts, and what they have in common.
struct HostGroup {
    common: Vec<CommonFact>,
    hosts: Vec<usize>,
}

/// The hosts that have facts, by the values of these.
fn groups(loaded: &Loaded, by: &[String]) -> Vec<HostGroup> {
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
            key.push(value.map_or_else(|| UNKNOWN.to_owned(), |value| value_text(value, &sizes)));
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
fn sizes<'a>(values: impl Iterator<Item = &'a Value>) -> BTreeMap<u64, u64> {
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
fn value_text(value: &Value, sizes: &BTreeMap<u64, u64>) -> String {
    match value {
        Value::Bytes(bytes) => size_text(sizes.get(bytes).copied().unwrap_or(*bytes)),
        value => value.known_text().unwrap_or_else(|| UNKNOWN.to_owned()),
    }
}

/// Values that are listed of a fact that divides its group.
const MAX_VALUES: usize = 8;
/// The share of hosts that two deviations have in common for one to be a possible cause of the other.
const SAME_HOSTS: f64 = 0.8;

/// What is said of the facts of a group.
#[derive(Default)]
struct OddFacts {
    /// By fact and value.
    pub deviations: Vec<Deviation>,
    /// Facts in which no value has a majority.
    pub divided: Vec<Divided>,
    /// Facts that most hosts have and some do not.
    pub unknown: Vec<UnknownFact>,
}

fn odd_facts(loaded: &Loaded, group: &HostGroup, group_by: &[String]) -> OddFacts {
    let mut odd = OddFacts::default();
    for (fact, of_fact) in &loaded.facts {
        if group_by.contains(fact) {
            continue;
        }
        let known = group
            .hosts
            .iter()
            .filter_map(|host| Some((*host, of_fact.get(host)?)));
        let known: Vec<(usize, &Value)> = known
            .filter(|(_, value)| !matches!(value, Value::Unknown(_)))
            .collect();
        // What is known of few says nothing of the group.
        if known.len() * 2 <= group.hosts.len() {
            continue;
        }
        odd.unknown.extend(unknown(loaded, group, fact, of_fact));
        let mut by_value = by_value(&known);
        by_value.sort_by_key(|(_, hosts)| std::cmp::Reverse(hosts.len()));
        let Some((usual, most)) = by_value.first() else {
            continue;
        };
        if by_value.len() == 1 {
            continue;
        }
        if most.len() * 2 <= group.hosts.len() {
            let values = by_value.iter().take(MAX_VALUES);
            odd.divided.push(Divided {
                fact: fact.clone(),
                values: values
                    .map(|(value, hosts)| ValueCount {
                        value: value.clone(),
                        hosts: hosts.len(),
                    })
                    .collect(),
            });
            continue;
        }
        for (value, hosts) in &by_value[1..] {
            let differences = match fact.as_str() {
                "distances" => matrix_difference(usual, value).unwrap_or_default(),
                _ => Vec::new(),
            };
            odd.deviations.push(Deviation {
                hosts: names(loaded, hosts),
                kind: DeviationKind::Fact {
                    fact: fact.clone(),
                    usual: usual.clone(),
                    value: value.clone(),
                    differences,
                },
                also: Vec::new(),
            });
        }
    }
    odd
}

/// The hosts of which a fact is not known, by reason.
fn unknown(
    loaded: &Loaded,
    group: &HostGroup,
    fact: &str,
    of_fact: &BTreeMap<usize, Value>,
) -> Vec<UnknownFact> {
    let mut by_reason: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for &host in &group.hosts {
        match of_fact.get(&host) {
            None => by_reason.entry("").or_default().push(host),
            Some(Value::Unknown(reason)) => by_reason.entry(reason).or_default().push(host),
            Some(_) => {}
        }
    }
    let of_reason = by_reason.into_iter();
    of_reason
        .map(|(reason, hosts)| UnknownFact {
            fact: fact.to_owned(),
            hosts: names(loaded, &hosts),
            reason: reason.to_owned(),
        })
        .collect()
}

/// Hosts by value as it is shown. Sizes close to each other are one value.
fn by_value(known: &[(usize, &Value)]) -> Vec<(String, Vec<usize>)> {
    let sizes = sizes(known.iter().map(|(_, value)| *value));
    let mut found: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (host, value) in known {
        found
            .entry(value_text(value, &sizes))
            .or_default()
            .push(*host);
    }
    found.into_iter().collect()
}

/// The facts in which the hosts of a deviation, and hardly any others, deviate: `firmware 2.3 instead of 2.4`. One host alone has too
/// many coincidences.
fn causes(deviation: &Deviation, of_facts: &[Deviation]) -> Vec<String> {
    let hosts: BTreeSet<&String> = deviation.hosts.iter().collect();
    if hosts.len() < 2 {
        return Vec::new();
    }
    let is_cause = |other: &&Deviation| {
        let common = other
            .hosts
            .iter()
            .filter(|host| hosts.contains(host))
            .count() as f64;
        common >= SAME_HOSTS * hosts.len() as f64 && common >= SAME_HOSTS * other.hosts.len() as f64
    };
    let causes = of_facts.iter().filter(is_cause);
    causes
        .filter_map(|other| match &other.kind {
            DeviationKind::Fact {
                fact, usual, value, ..
            } => Some(format!("{fact} {value} instead of {usual}")),
            _ => None,
        })
        .collect()
}

/// The facts that most hosts of one part of a split have, and most of the other part have otherwise: `kernel 6.8.0 above, 6.12.1 below`.
fn causes_of_split(loaded: &Loaded, group: &[usize], split: &Split) -> Vec<String> {
    let names: BTreeMap<&str, usize> = group
        .iter()
        .map(|&place| (loaded.hosts[place].name.as_str(), place))
        .collect();
    let most = |of_fact: &BTreeMap<usize, Value>, part: &[String]| {
        let places = part.iter().filter_map(|host| names.get(host.as_str()));
        let known: Vec<(usize, &Value)> = places
            .filter_map(|place| Some((*place, of_fact.get(place)?)))
            .filter(|(_, value)| !matches!(value, Value::Unknown(_)))
            .collect();
        let by_value = by_value(&known).into_iter();
        let (value, hosts) = by_value.max_by_key(|(_, hosts)| hosts.len())?;
        (hosts.len() as f64 >= SAME_HOSTS * part.len() as f64).then_some(value)
    };
    let causes = loaded.facts.iter().filter_map(|(fact, of_fact)| {
        let (below, above) = (most(of_fact, &split.below)?, most(of_fact, &split.above)?);
        (below != above).then(|| format!("{fact} {above} above, {below} below"))
    });
    causes.collect()
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

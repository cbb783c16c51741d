//! Hosts with another value of a fact than most hosts of their group have.

use std::collections::{BTreeMap, BTreeSet};

use super::groups::{HostGroup, sizes, text};
use super::{Deviation, DeviationKind, Divided, Split, UnknownFact, ValueCount, names};
use crate::dataset::Loaded;
use crate::facts::{Value, matrix_difference};

/// Values that are listed of a fact that divides its group.
const MAX_VALUES: usize = 8;
/// The share of hosts that two deviations have in common for one to be a possible cause of the other.
const SAME_HOSTS: f64 = 0.8;

/// What is said of the facts of a group.
#[derive(Default)]
pub(super) struct OddFacts {
    /// By fact and value.
    pub deviations: Vec<Deviation>,
    /// Facts in which no value has a majority.
    pub divided: Vec<Divided>,
    /// Facts that most hosts have and some do not.
    pub unknown: Vec<UnknownFact>,
}

pub(super) fn odd_facts(loaded: &Loaded, group: &HostGroup, group_by: &[String]) -> OddFacts {
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
        found.entry(text(value, &sizes)).or_default().push(*host);
    }
    found.into_iter().collect()
}

/// The facts in which the hosts of a deviation, and hardly any others, deviate: `firmware 2.3 instead of 2.4`. One host alone has too
/// many coincidences.
pub(super) fn causes(deviation: &Deviation, of_facts: &[Deviation]) -> Vec<String> {
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
pub(super) fn causes_of_split(loaded: &Loaded, group: &[usize], split: &Split) -> Vec<String> {
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

//! Where rules write down what they found and what they could not look at.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_machine::Known;

use super::rules::RULES;
use super::{Audit, Finding, NotChecked, RuleState, State};
use crate::reason::without_numbers;

/// Collects findings; the same reason for many things is one entry that counts them.
#[derive(Default)]
pub(super) struct Ledger {
    findings: Vec<Finding>,
    checked: BTreeSet<&'static str>,
    not_applicable: BTreeSet<&'static str>,
    skipped: BTreeMap<(usize, String), Things>,
}

#[derive(Default)]
struct Things {
    /// The first with its own reason, which may have a number in it that the reason of all leaves open.
    first: Option<(String, String)>,
    more: usize,
}

impl Ledger {
    pub fn add(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    pub fn checked(&mut self, rules: &[&'static str]) {
        self.checked.extend(rules);
    }

    /// The machine has nothing that these rules are about.
    pub fn not_applicable(&mut self, rules: &[&'static str]) {
        self.not_applicable.extend(rules);
    }

    /// These rules could not be checked at all.
    pub fn skip(&mut self, rules: &[&'static str], reason: &str) {
        for rule in rules {
            let key = (position(rule), reason.to_owned());
            self.skipped.entry(key).or_default();
        }
    }

    /// A rule could not be checked for one thing. Reasons that differ in the thing's number only are one.
    pub fn skip_thing(&mut self, rule: &'static str, thing: impl FnOnce() -> String, reason: &str) {
        let things = self
            .skipped
            .entry((position(rule), without_numbers(reason)))
            .or_default();
        match things.first {
            None => things.first = Some((thing(), reason.to_owned())),
            Some(_) => things.more += 1,
        }
    }

    /// What is known; else these rules could not be checked.
    pub fn known<'a, T>(&mut self, known: &'a Known<T>, rules: &[&'static str]) -> Option<&'a T> {
        if let Some(reason) = known.unknown_reason() {
            self.skip(rules, reason);
        }
        known.get()
    }

    /// The same for rules that need nothing else: they are checked where it is known.
    pub fn need<'a, T>(&mut self, known: &'a Known<T>, rules: &[&'static str]) -> Option<&'a T> {
        let value = self.known(known, rules)?;
        self.checked(rules);
        Some(value)
    }

    /// Whether a finding so far meets a condition.
    pub fn any(&self, condition: impl Fn(&Finding) -> bool) -> bool {
        self.findings.iter().any(condition)
    }

    pub fn close(mut self) -> Audit {
        self.findings
            .sort_by_key(|finding| (std::cmp::Reverse(finding.severity), position(finding.rule)));
        let rules: Vec<RuleState> = RULES.iter().map(|rule| self.state(rule.id)).collect();
        let applies = |rule: usize| {
            rules
                .get(rule)
                .is_some_and(|rule| rule.state != State::NotApplicable)
        };
        let skipped = self
            .skipped
            .into_iter()
            .filter(|((rule, _), _)| applies(*rule));
        let not_checked = skipped.map(|((rule, reason), things)| NotChecked {
            rule: RULES.get(rule).map_or("", |rule| rule.id),
            reason: match (things.first, things.more) {
                (None, _) => reason,
                (Some((first, reason)), 0) => format!("{first}: {reason}"),
                (Some((first, _)), more) => format!("{first} and {more} more: {reason}"),
            },
        });
        let not_checked = not_checked.collect();
        let checked = |rule: &&RuleState| matches!(rule.state, State::Found | State::NothingFound);
        let checked = rules.iter().filter(checked).map(|rule| rule.rule).collect();
        Audit {
            findings: self.findings,
            not_checked,
            checked,
            rules,
        }
    }

    /// Whether something that a rule should look at is unknown.
    pub fn lacks(&self, rule: &str) -> bool {
        self.skipped.keys().any(|&(of, _)| of == position(rule))
    }

    /// The state of a rule: findings come before missing input.
    fn state(&self, rule: &'static str) -> RuleState {
        let findings = self
            .findings
            .iter()
            .filter(|finding| finding.rule == rule)
            .count();
        let lacks = self.lacks(rule);
        let state = match self.checked.contains(rule) {
            _ if findings > 0 => State::Found,
            _ if self.not_applicable.contains(rule) => State::NotApplicable,
            true => State::NothingFound,
            false if lacks => State::NotChecked,
            false => State::NotApplicable,
        };
        let in_part = lacks && matches!(state, State::Found | State::NothingFound);
        RuleState {
            rule,
            state,
            findings,
            in_part,
        }
    }
}

fn position(rule: &str) -> usize {
    RULES
        .iter()
        .position(|other| other.id == rule)
        .unwrap_or(RULES.len())
}

//! What the samples say, question by question, each with its interval, or why they cannot tell.
//!
//! ```text
//! round 1   0/0 0/1 0/F ...  ──► ratio of other-node to same-node cells in this round ─┐
//! round 2   0/F 0/1 0/0 ...  ──► ratio ──────────────────────────────────────────────┼──► median, its 95 % interval
//! round 3   ...              ──► ratio ──────────────────────────────────────────────┘
//! ```
//!
//! Ratios are taken within a round, whose cells ran one after the other in random order: what drifts over the hours is
//! the same for both sides and cancels out. A round that lacks a cell of either side is left out.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_machine::Known;
use nearfar_statistics::{Interval, Summary};
use serde::{Deserialize, Serialize};

use super::cell::{MatrixCell, Policy};
use super::explained::{Explained, explain};
use super::sample::Taken;
use crate::probe::Where;

/// What was found.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Findings {
    /// The questions that the run's cells allow to ask.
    pub contrasts: Vec<Contrast>,
    /// Run time explained by migrations and by the share of far accesses.
    pub explained: Explained,
}

/// A question: how many times as long do some cells take as others?
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// Bound to another node than the memory, against bound to the same.
    OtherNode,
    /// CPUs floating with the memory bound, against both bound to one node.
    UnboundCpus,
    /// All floating, against both bound to one node.
    AllUnbound,
    /// NUMA balancing on against off, memory floating.
    BalancingUnboundMemory,
    /// NUMA balancing on against off, memory bound and CPUs floating.
    BalancingBoundMemory,
    /// The memory's node preferred, against bound to it.
    PreferredToBound,
    /// The memory's node preferred, against none, CPUs floating.
    PreferredToNone,
}

/// A question and its answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Contrast {
    pub question: Question,
    /// The cells whose time is divided,
    pub of: Vec<MatrixCell>,
    /// by the time of these.
    pub to: Vec<MatrixCell>,
    /// The ratio, or why the data cannot tell.
    pub ratio: Known<Ratio>,
}

/// How many times as long.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Ratio {
    pub median: f64,
    /// Its 95 % confidence interval; `None` below six complete rounds.
    pub confidence: Option<Interval>,
    /// Complete rounds.
    pub rounds: usize,
}

impl Ratio {
    /// Whether the interval leaves no warning that it is above or below 1.
    pub fn is_significant(&self) -> bool {
        self.confidence
            .is_some_and(|interval| interval.low > 1.0 || interval.high < 1.0)
    }
}

/// Answers every question that the cells allow.
pub fn findings(cells: &[MatrixCell], taken: &[Taken]) -> Findings {
    let by_round = seconds_by_round(taken);
    let contrasts = contrasts(cells).into_iter().map(|(question, of, to)| {
        let ratio = ratio(&by_round, &of, &to);
        Contrast {
            question,
            of,
            to,
            ratio,
        }
    });
    Findings {
        contrasts: contrasts.collect(),
        explained: explain(taken),
    }
}

type Sides = (Question, Vec<MatrixCell>, Vec<MatrixCell>);

/// The questions for which both sides have cells.
fn contrasts(cells: &[MatrixCell]) -> Vec<Sides> {
    let there: BTreeSet<MatrixCell> = cells.iter().copied().collect();
    let none = |numa_balancing| Policy {
        preferred_node: None,
        numa_balancing,
    };
    let same = |cell: &MatrixCell| MatrixCell {
        policy: none(cell.policy.numa_balancing),
        cpu_node: cell.memory_node,
        ..*cell
    };
    let off = |cell: &MatrixCell| MatrixCell {
        policy: none(false),
        ..*cell
    };
    let unpreferred = |cell: &MatrixCell| MatrixCell {
        policy: none(cell.policy.numa_balancing),
        ..*cell
    };
    let all_same = |cell: &MatrixCell| -> Vec<MatrixCell> {
        there
            .iter()
            .copied()
            .filter(|other| other.policy == cell.policy && other.is_same_node())
            .collect()
    };
    // Without a preferred node, with NUMA balancing off if there are such cells.
    let plain = [false, true]
        .map(none)
        .into_iter()
        .find(|policy| cells.iter().any(|cell| cell.policy == *policy));
    let is_plain = |cell: &MatrixCell| Some(cell.policy) == plain;
    let floats = |place| place == Where::Floating;
    let balanced = |cell: &MatrixCell| cell.policy == none(true);
    let at_home = |cell: &MatrixCell| {
        cell.policy
            .preferred_node
            .is_some_and(|node| cell.memory_node == Where::Node(node))
            && floats(cell.cpu_node)
    };
    type Is<'a> = &'a dyn Fn(&MatrixCell) -> bool;
    type To<'a> = &'a dyn Fn(&MatrixCell) -> Vec<MatrixCell>;
    let questions: [(Question, Is<'_>, To<'_>); 7] = [
        (
            Question::OtherNode,
            &|c| is_plain(c) && c.is_other_node(),
            &|c| vec![same(c)],
        ),
        (
            Question::UnboundCpus,
            &|c| is_plain(c) && !floats(c.memory_node) && floats(c.cpu_node),
            &|c| vec![same(c)],
        ),
        (
            Question::AllUnbound,
            &|c| is_plain(c) && floats(c.memory_node) && floats(c.cpu_node),
            &all_same,
        ),
        (
            Question::BalancingUnboundMemory,
            &|c| balanced(c) && floats(c.memory_node),
            &|c| vec![off(c)],
        ),
        (
            Question::BalancingBoundMemory,
            &|c| balanced(c) && !floats(c.memory_node) && floats(c.cpu_node),
            &|c| vec![off(c)],
        ),
        (Question::PreferredToBound, &at_home, &|c| vec![same(c)]),
        (Question::PreferredToNone, &at_home, &|c| {
            vec![unpreferred(c)]
        }),
    ];
    let sides = questions.into_iter().filter_map(|(question, is, to)| {
        // Only cells whose counterparts were measured too: the rest would compare different nodes.
        let paired = there.iter().filter(|cell| is(cell)).filter_map(|cell| {
            let counterparts = to(cell);
            (!counterparts.is_empty() && counterparts.iter().all(|cell| there.contains(cell)))
                .then_some((*cell, counterparts))
        });
        let (of, to): (Vec<MatrixCell>, Vec<Vec<MatrixCell>>) = paired.unzip();
        let to: BTreeSet<MatrixCell> = to.into_iter().flatten().collect();
        (!of.is_empty()).then(|| (question, of, to.into_iter().collect()))
    });
    sides.collect()
}

type ByRound = BTreeMap<u32, BTreeMap<MatrixCell, f64>>;

fn seconds_by_round(taken: &[Taken]) -> ByRound {
    let mut by_round = ByRound::new();
    for taken in taken {
        if let Some(sample) = taken.good() {
            by_round
                .entry(taken.round)
                .or_default()
                .insert(taken.cell, sample.probe.seconds);
        }
    }
    by_round
}

fn ratio(by_round: &ByRound, of: &[MatrixCell], to: &[MatrixCell]) -> Known<Ratio> {
    let mean = |round: &BTreeMap<MatrixCell, f64>, cells: &[MatrixCell]| -> Option<f64> {
        let seconds: Option<Vec<f64>> = cells.iter().map(|cell| round.get(cell).copied()).collect();
        seconds.map(|seconds| seconds.iter().sum::<f64>() / cells.len() as f64)
    };
    let ratios: Vec<f64> = by_round
        .values()
        .filter_map(|round| Some(mean(round, of)? / mean(round, to)?))
        .filter(|ratio| ratio.is_finite())
        .collect();
    match Summary::of(&ratios) {
        Some(Summary {
            median, confidence, ..
        }) => Known::Yes(Ratio {
            median,
            confidence,
            rounds: ratios.len(),
        }),
        None => Known::no("no round has a sample of every cell it takes"),
    }
}

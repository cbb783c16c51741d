//! The findings in words. Each says its interval; what is unknown has its reason.

use nearfar_bench::matrix::{Answer, Contrast, Estimate, Question, Ratio};
use nearfar_machine::Known;
use nearfar_statistics::Interval;

use crate::amount::count;
use crate::style::Role;

/// The published machine's ratio of other-node to same-node binding, for comparison.
const PUBLISHED: &str = "published for a two-socket Xeon Platinum 8167M under 60 % load: 1.24";

/// A sentence a question, then the regression.
pub(super) fn of(answer: &Answer) -> Vec<(Role, String)> {
    let mut said: Vec<(Role, String)> = answer.findings.contrasts.iter().map(contrast).collect();
    if said.is_empty() {
        let text = "the cells of this run have nothing to be compared with: it takes cells on the same and on another \
                    node, or with and without NUMA balancing or a preferred node";
        said.push((Role::Dim, text.to_owned()));
    }
    let explained = &answer.findings.explained;
    said.push(migration(&explained.migration_s));
    said.push(far(&explained.far_share));
    said.extend(explained.r2.map(|r2| {
        let text = format!(
            "both together explain {:.0} % of how run times differ{} ({} samples; least squares)",
            r2 * 100.0,
            if explained.within_rounds {
                " within a round"
            } else {
                ""
            },
            explained.samples
        );
        (Role::Dim, text)
    }));
    said
}

fn contrast(contrast: &Contrast) -> (Role, String) {
    let (subject, object) = sides(contrast.question);
    let ratio = match &contrast.ratio {
        Known::Yes(ratio) => ratio,
        Known::No { unknown_reason } => {
            return (
                Role::Dim,
                format!("{subject}, against {object}: unknown: {unknown_reason}"),
            );
        }
    };
    let (role, mut text) = compared(subject, object, ratio);
    if contrast.question == Question::OtherNode {
        text += &format!("; {PUBLISHED}");
    }
    (role, text)
}

fn compared(subject: &str, object: &str, ratio: &Ratio) -> (Role, String) {
    let median = ratio.median;
    let Some(Interval { low, high }) = ratio.confidence else {
        let rounds = count(ratio.rounds, "round");
        let text = format!(
            "{subject}: {median:.3} times the time of {object} in {rounds}; six would give an interval"
        );
        return (Role::Dim, text);
    };
    let interval = format!("({low:.3} to {high:.3})");
    match ratio.is_significant() {
        true if median > 1.0 => (
            Role::Plain,
            format!("{subject}: {median:.3} times {interval} the time of {object}"),
        ),
        true => {
            let faster =
                format!("{subject}: {median:.3} times {interval} the time of {object}, faster");
            (Role::Plain, faster)
        }
        false => {
            let text = format!(
                "{subject}: no significant difference from {object}, {median:.3} times {interval}"
            );
            (Role::Plain, text)
        }
    }
}

/// What is compared with what.
fn sides(question: Question) -> (&'static str, &'static str) {
    const SAME: &str = "memory and CPUs bound to one node";
    match question {
        Question::OtherNode => ("CPUs bound to another node than the memory", SAME),
        Question::UnboundCpus => ("CPUs floating, memory bound", SAME),
        Question::AllUnbound => ("memory and CPUs floating", SAME),
        Question::BalancingUnboundMemory => {
            ("NUMA balancing on, memory floating", "the same with it off")
        }
        Question::BalancingBoundMemory => (
            "NUMA balancing on, memory bound and CPUs floating",
            "the same with it off",
        ),
        Question::PreferredToBound => ("the memory's node preferred, CPUs floating", SAME),
        Question::PreferredToNone => (
            "the memory's node preferred, CPUs floating",
            "the same without a preferred node",
        ),
    }
}

fn migration(cost: &Known<Estimate>) -> (Role, String) {
    let cannot = |reason: &str| {
        (
            Role::Dim,
            format!("what a cross-node migration cost: unknown: {reason}"),
        )
    };
    match cost {
        Known::Yes(cost) => {
            let Interval { low, high } = cost.confidence;
            let unit = unit(cost.value.abs().max(low.abs()).max(high.abs()));
            let amounts = [cost.value, low, high].map(|seconds| amount(seconds, unit));
            let [value, low, high] = amounts;
            let name = unit.1;
            match cost.is_significant() {
                true => (
                    Role::Plain,
                    format!("each cross-node migration cost {value} {name} ({low} to {high})"),
                ),
                false => cannot(&format!(
                    "the estimate, {value} {name}, may as well be none ({low} to {high})"
                )),
            }
        }
        Known::No { unknown_reason } => cannot(unknown_reason),
    }
}

fn far(cost: &Known<Estimate>) -> (Role, String) {
    let cannot = |reason: &str| {
        (
            Role::Dim,
            format!("what running far cost: unknown: {reason}"),
        )
    };
    match cost {
        Known::Yes(cost) => {
            let [value, low, high] = [cost.value, cost.confidence.low, cost.confidence.high]
                .map(|share| format!("{:.1}", share * 100.0));
            match cost.is_significant() {
                true => (
                    Role::Plain,
                    format!("running far all the time cost {value} % ({low} to {high})"),
                ),
                false => cannot(&format!(
                    "the estimate, {value} %, may as well be none ({low} to {high})"
                )),
            }
        }
        Known::No { unknown_reason } => cannot(unknown_reason),
    }
}

/// How many of it are in a second, and its name.
fn unit(seconds: f64) -> (f64, &'static str) {
    match seconds {
        _ if seconds >= 1.0 => (1.0, "s"),
        _ if seconds >= 1e-3 => (1e3, "ms"),
        _ => (1e6, "us"),
    }
}

fn amount(seconds: f64, unit: (f64, &str)) -> String {
    let value = seconds * unit.0;
    if value.abs() >= 100.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    }
}

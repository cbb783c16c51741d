//! Whether the scheduler hurts floating tasks, in sentences. Each says its interval, or that none could be had.

use nearfar_bench::floating::{Floated, Floating};
use nearfar_bench::matrix::{Question, Ratio};
use nearfar_machine::Known;

use crate::amount::{bytes, count, lead};
use crate::style::Role;

/// What floated, and a sentence on what that did.
pub(crate) struct Verdict {
    /// `CPUs float`, `all floats`.
    pub(crate) what: &'static str,
    pub(crate) role: Role,
    pub(crate) text: String,
}

/// A verdict a way of floating.
pub(crate) fn verdicts(floating: &Floating) -> Vec<Verdict> {
    floating.contrasts.iter().map(verdict).collect()
}

/// Whether floating costs something significant, in either way.
pub(crate) fn hurts(floating: &Floating) -> bool {
    floating.contrasts.iter().any(|floated| {
        floated
            .ratio
            .get()
            .is_some_and(|it| it.is_significant() && it.median > 1.0)
    })
}

fn verdict(floated: &Floated) -> Verdict {
    let what = match floated.question {
        Question::AllFloating => "all floats",
        _ => "CPUs float",
    };
    let (role, text) = match &floated.ratio {
        Known::Yes(ratio) => compared(ratio),
        Known::No { unknown_reason } => (Role::Dim, format!("unknown: {unknown_reason}")),
    };
    let moves = floated.cross_node.get().map_or_else(String::new, |&moves| {
        format!(
            "; {} in {:.0} s",
            count(moves as usize, "cross-node migration"),
            floated.seconds
        )
    });
    Verdict {
        what,
        role,
        text: text + &moves,
    }
}

fn compared(ratio: &Ratio) -> (Role, String) {
    let by = percent(ratio.median);
    let Some(interval) = ratio.confidence else {
        let rounds = count(ratio.rounds, "round");
        return (
            Role::Dim,
            format!("{by} % slower than bound in the median of {rounds}: too few for an interval"),
        );
    };
    let (low, high) = (percent(interval.low), percent(interval.high));
    match (ratio.is_significant(), ratio.median > 1.0) {
        (true, true) => (
            Role::Warning,
            format!("{by} % slower ({low} to {high} %) than bound"),
        ),
        (true, false) => {
            let [by, low, high] =
                [ratio.median, interval.high, interval.low].map(|ratio| percent(2.0 - ratio));
            (
                Role::Local,
                format!("{by} % faster ({low} to {high} %) than bound"),
            )
        }
        (false, _) => (
            Role::Local,
            format!("no significant difference ({low} to {high} %)"),
        ),
    }
}

/// How much longer something takes, in percent; whole ones from 10 on.
fn percent(ratio: f64) -> String {
    let percent = (ratio - 1.0) * 100.0;
    let text = if percent.abs() < 9.95 {
        format!("{percent:.1}")
    } else {
        format!("{percent:.0}")
    };
    if text
        .trim_start_matches('-')
        .chars()
        .all(|c| c == '0' || c == '.')
    {
        "0".to_owned()
    } else {
        text
    }
}

/// What was done to find out, for the one line above the verdicts.
pub(crate) fn remark(floating: &Floating) -> String {
    let rounds = floating
        .contrasts
        .iter()
        .filter_map(|floated| Some(floated.ratio.get()?.rounds))
        .max()
        .unwrap_or(0);
    format!(
        "{} in {:.0} s under {} % load on {}, NUMA balancing {}",
        count(rounds, "round"),
        floating.elapsed_s,
        floating.parameters.load_percent,
        count(floating.load_cpus.len(), "CPU"),
        balancing(floating),
    )
}

fn balancing(floating: &Floating) -> &'static str {
    match floating.numa_balancing.get() {
        Some(true) => "on",
        Some(false) => "off",
        None => "unknown",
    }
}

/// How the figures were made; on an emulated machine behind its label.
pub(crate) fn method(floating: &Floating) -> String {
    let parameters = &floating.parameters;
    let label = floating
        .emulation
        .as_ref()
        .map(|label| format!("{label}: "))
        .unwrap_or_default();
    let nodes: Vec<String> = parameters.nodes.iter().map(ToString::to_string).collect();
    format!(
        "{label}a process reads and writes back {} words at random places of {}, {:.2} s a run, bound to node {} in turn, with its \
         CPUs floating, and with all floating, in random order; while that ran, CPUs {} each had a load of {} %, without \
         which a scheduler has nothing to do. Ratios are taken within a round; the median of them and its 95 % interval. \
         Nothing was set: NUMA balancing was {}",
        u64::from(parameters.counts) * parameters.steps,
        bytes(parameters.bytes),
        parameters.calibrated_to_s.unwrap_or_default(),
        nodes.join(" and "),
        floating.load_cpus,
        parameters.load_percent,
        balancing(floating),
    )
}

/// What was wrong with runs, and why migrations were not counted.
pub(crate) fn warnings(floating: &Floating) -> Vec<String> {
    let uncounted = floating
        .contrasts
        .iter()
        .find_map(|floated| floated.cross_node.unknown_reason());
    let uncounted = uncounted
        .map(|because| format!("migrations of floating tasks were not counted: {because}"));
    let failed = floating
        .rows
        .iter()
        .flat_map(|row| &row.failed)
        .map(|failed| (" failed", failed));
    let with_warnings = floating
        .warnings
        .iter()
        .map(|warning| (" with warnings", warning));
    let runs = failed
        .chain(with_warnings)
        .map(|(how, it)| lead(it, "run", how) + &it.what);
    runs.chain(uncounted).collect()
}

#[cfg(test)]
mod tests {
    use nearfar_statistics::Interval;

    use super::*;

    fn said(median: f64, interval: Option<(f64, f64)>, cross_node: Known<u64>) -> String {
        let confidence = interval.map(|(low, high)| Interval { low, high });
        let ratio = Known::Yes(Ratio {
            median,
            confidence,
            rounds: 3,
        });
        verdict(&Floated {
            question: Question::AllFloating,
            ratio,
            cross_node,
            seconds: 12.3,
        })
        .text
    }

    #[test]
    fn what_is_said_depends_on_where_the_interval_lies() {
        let uncounted = || Known::no("no tracefs");
        let slower = said(1.09, Some((1.04, 1.131)), Known::Yes(31));
        assert_eq!(
            slower,
            "9.0 % slower (4.0 to 13 %) than bound; 31 cross-node migrations in 12 s"
        );
        let faster = said(0.9, Some((0.8, 0.95)), Known::Yes(1));
        assert_eq!(
            faster,
            "10 % faster (5.0 to 20 %) than bound; 1 cross-node migration in 12 s"
        );
        assert_eq!(
            said(1.05, Some((0.99, 1.2)), uncounted()),
            "no significant difference (-1.0 to 20 %)"
        );
        assert_eq!(
            said(1.5, None, uncounted()),
            "50 % slower than bound in the median of 3 rounds: too few for an interval"
        );
        assert_eq!(
            said(0.99999, Some((0.9999, 1.0001)), uncounted()),
            "no significant difference (0 to 0 %)"
        );
    }
}

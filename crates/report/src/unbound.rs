//! Whether the scheduler slows unbound tasks, in sentences. Each gives its interval, or says that there is none.

use nearfar_bench::matrix::{Question, Ratio};
use nearfar_bench::unbound::{UnboundContrast, UnboundTasks};
use nearfar_machine::Known;

use crate::amount::{bytes, count, lead};
use crate::style::Role;

/// What was unbound, and a sentence on what that did.
pub(crate) struct Verdict {
    /// `CPUs unbound`, `all unbound`.
    pub(crate) what: &'static str,
    pub(crate) role: Role,
    pub(crate) text: String,
}

/// A verdict for unbound CPUs, one for unbound CPUs and memory.
pub(crate) fn verdicts(found: &UnboundTasks) -> Vec<Verdict> {
    found.contrasts.iter().map(verdict).collect()
}

/// Whether it costs something significant, in either way.
pub(crate) fn is_slower(found: &UnboundTasks) -> bool {
    let mut ratios = found
        .contrasts
        .iter()
        .filter_map(|contrast| contrast.ratio.get());
    ratios.any(|ratio| ratio.is_significant() && ratio.median > 1.0)
}

fn verdict(contrast: &UnboundContrast) -> Verdict {
    let what = match contrast.question {
        Question::AllUnbound => "all unbound",
        _ => "CPUs unbound",
    };
    let (role, mut text) = match &contrast.ratio {
        Known::Yes(ratio) => compared(ratio),
        Known::No { unknown_reason } => (Role::Dim, format!("unknown: {unknown_reason}")),
    };
    if let Some(&moves) = contrast.cross_node.get() {
        let moves = count(moves as usize, "cross-node migration");
        text += &format!("; {moves} in {:.0} s", contrast.seconds);
    }
    Verdict { what, role, text }
}

fn compared(ratio: &Ratio) -> (Role, String) {
    let by = percent(ratio.median);
    let Some(interval) = ratio.confidence else {
        let rounds = count(ratio.rounds, "round");
        let text =
            format!("{by} % slower than bound in the median of {rounds}: too few for an interval");
        return (Role::Dim, text);
    };
    let (low, high) = (percent(interval.low), percent(interval.high));
    match (ratio.is_significant(), ratio.median > 1.0) {
        (true, true) => (
            Role::Warning,
            format!("{by} % slower ({low} to {high} %) than bound"),
        ),
        (true, false) => {
            let faster = [ratio.median, interval.high, interval.low];
            let [by, low, high] = faster.map(|ratio| percent(2.0 - ratio));
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
    let text = match percent.abs() {
        ..9.95 => format!("{percent:.1}"),
        _ => format!("{percent:.0}"),
    };
    match text.trim_matches(['-', '0', '.']) {
        "" => "0".to_owned(),
        _ => text,
    }
}

/// What was done to find out, for the one line above the verdicts.
pub(crate) fn remark(found: &UnboundTasks) -> String {
    let ratios = found
        .contrasts
        .iter()
        .filter_map(|contrast| contrast.ratio.get());
    let rounds = ratios.map(|ratio| ratio.rounds).max().unwrap_or(0);
    format!(
        "{} in {:.0} s under {} % load on {}, NUMA balancing {}",
        count(rounds, "round"),
        found.elapsed_s,
        found.parameters.load_percent,
        count(found.load_cpus.len(), "CPU"),
        balancing(found),
    )
}

fn balancing(found: &UnboundTasks) -> &'static str {
    match found.numa_balancing.get() {
        Some(true) => "on",
        Some(false) => "off",
        None => "unknown",
    }
}

/// How the figures were made; on an emulated machine behind its label.
pub(crate) fn method(found: &UnboundTasks) -> String {
    let parameters = &found.parameters;
    let label = found.emulation.as_ref().map(|label| format!("{label}: "));
    let nodes: Vec<String> = parameters.nodes.iter().map(ToString::to_string).collect();
    format!(
        "{}a process reads and writes back {} words at random places of {}, {:.2} s per run, bound to node {} in turn, with its \
         CPUs unbound, and with all unbound, in random order; while that ran, CPUs {} each had a load of {} %, without \
         which a scheduler has nothing to do. Ratios are taken within a round; the median of them and its 95 % interval. \
         Nothing was set: NUMA balancing was {}",
        label.unwrap_or_default(),
        u64::from(parameters.counts) * parameters.steps,
        bytes(parameters.bytes),
        parameters.calibrated_to_s.unwrap_or_default(),
        nodes.join(" and "),
        found.load_cpus,
        parameters.load_percent,
        balancing(found),
    )
}

/// What was wrong with runs, and why migrations were not counted.
pub(crate) fn warnings(found: &UnboundTasks) -> Vec<String> {
    let mut contrasts = found.contrasts.iter();
    let uncounted = contrasts.find_map(|contrast| contrast.cross_node.unknown_reason());
    let uncounted =
        uncounted.map(|reason| format!("migrations of unbound tasks were not counted: {reason}"));
    let failed = found.rows.iter().flat_map(|row| &row.failed);
    let failed = failed.map(|it| lead(it, "run", " failed") + &it.what);
    let warnings = found.warnings.iter();
    let warnings = warnings.map(|it| lead(it, "run", " with warnings") + &it.what);
    failed.chain(warnings).chain(uncounted).collect()
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
        verdict(&UnboundContrast {
            question: Question::AllUnbound,
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

//! Deviations in words.

use nearfar_fleet::dataset::run_name;
use nearfar_fleet::some_of;
use nearfar_fleet::survey::{
    Deviation, DeviationKind, Divided, Measured, MeasuredRun, Split, SurveyedRun, UnknownFact,
    ValueCount,
};

use crate::amount::{count, decimals, figure, moment, scaled};
use crate::document::Text;
use crate::style::Role;

/// Differences of a table that are listed.
const SHOWN_DIFFERENCES: usize = 4;

/// What hosts deviate in, and how.
pub(super) fn deviation(deviation: &Deviation, group: usize) -> (Text, Text) {
    let (what, how) = match &deviation.kind {
        DeviationKind::Fact {
            fact,
            usual,
            value,
            differences,
        } => {
            let how = match differences.is_empty() {
                true => format!("{value} instead of {usual}"),
                false => some_of(differences, SHOWN_DIFFERENCES),
            };
            (Text::from(fact), Text::from(how))
        }
        DeviationKind::Metric { .. } => metric(deviation),
        DeviationKind::NotMeasured { metric, cells, .. } => (
            Text::from(format!("{metric}, {cells}")),
            Text::new(Role::Warning, "no value").then(Role::Plain, ": most hosts have one"),
        ),
        DeviationKind::FailedSamples {
            metric,
            failed,
            samples,
            ..
        } => (
            Text::from(metric),
            Text::new(
                Role::Warning,
                format!("{failed} of {samples} samples failed"),
            )
            .then(Role::Plain, ": of most hosts none"),
        ),
    };
    let of = match deviation.hosts.len() {
        1 => String::new(),
        number => format!(" ({number} of {group})"),
    };
    let causes = match deviation.also.is_empty() {
        true => String::new(),
        false => format!(
            "; possible cause, in the same hosts: {}",
            deviation.also.join(", ")
        ),
    };
    (what, how.then(Role::Plain, causes).then(Role::Dim, of))
}

fn metric(deviation: &Deviation) -> (Text, Text) {
    let DeviationKind::Metric {
        metric,
        unit,
        cells,
        ratio,
        low,
        high,
        is_worse,
        usual,
        value,
        ..
    } = &deviation.kind
    else {
        return (Text::default(), Text::default());
    };
    let what = match cells.as_str() {
        "all" => metric.clone(),
        cells => format!("{metric}, {cells}"),
    };
    let role = if *is_worse {
        Role::Warning
    } else {
        Role::Local
    };
    let (scale, unit) = scaled(unit, usual.max(*value));
    let digits = decimals(usual.max(*value) / scale);
    let how = Text::new(role, change(*ratio, *low, *high)).then(
        Role::Plain,
        format!(
            ": {} instead of {} {unit}",
            figure(value / scale, digits),
            figure(usual / scale, digits)
        ),
    );
    (Text::from(what), how)
}

/// `+31 % (+26 to +36)`.
pub(super) fn change(ratio: f64, low: f64, high: f64) -> String {
    // As many decimals as it takes to see the interval.
    let decimals = match 100.0 * (high - low) {
        4.0.. => 0,
        0.4.. => 1,
        _ => 2,
    };
    let percent = |ratio: f64| format!("{:+.decimals$}", 100.0 * (ratio - 1.0));
    format!(
        "{} % ({} to {})",
        percent(ratio),
        percent(low),
        percent(high)
    )
}

/// `0.5 %`, `5 %`.
pub(super) fn share(share: f64) -> String {
    let text = format!("{:.3}", 100.0 * share);
    format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
}

pub(super) fn divided(divided: &Divided) -> String {
    let one = |it: &ValueCount| format!("{} ({})", it.value, count(it.hosts, "host"));
    divided
        .values
        .iter()
        .map(one)
        .collect::<Vec<_>>()
        .join(", ")
}

/// `+30 % on 20 hosts (n1, n2, ...) over 20 others (n3, ...): which are as they should be is unknown`.
pub(super) fn split(split: &Split) -> String {
    let hosts = |hosts: &[String]| {
        let names = some_of(hosts, super::SHOWN_HOSTS);
        format!("{} ({names})", count(hosts.len(), "host"))
    };
    let also = match split.also.is_empty() {
        true => String::new(),
        false => format!("; possible cause: {}", split.also.join(", ")),
    };
    format!(
        "{:+.1} % on {} over {}: which of them are as they should be is unknown{also}",
        100.0 * (split.ratio - 1.0),
        hosts(&split.above),
        hosts(&split.below),
    )
}

/// The hosts of which a fact is not known, and why.
pub(super) fn unknown(unknown: &UnknownFact) -> String {
    let hosts = some_of(&unknown.hosts, super::SHOWN_HOSTS);
    match unknown.reason.as_str() {
        "" => format!("{hosts}: not in the answer"),
        reason => format!("{hosts}: {reason}"),
    }
}

/// `run week-47 (3f524cdc07a11d7c) of 2026-11-25 08:10 UTC: the newest of 90 hosts`.
pub(super) fn run(run: &SurveyedRun) -> String {
    let name = run_name(run.label.as_deref(), &run.run);
    let hosts = match run.hosts {
        0 => "of no host the newest".to_owned(),
        number => format!("the newest of {}", count(number, "host")),
    };
    format!("run {name} of {}: {hosts}", moment(run.started_at_s as u64))
}

/// What was compared, and how much hosts differ anyway.
pub(super) fn spread(measured: &Measured) -> String {
    let cells = match measured.cells {
        1 => "1 cell".to_owned(),
        number => format!("{number} cells"),
    };
    let of = |it: &MeasuredRun| {
        let name = run_name(it.label.as_deref(), &it.run);
        let at = moment(it.started_at_s as u64);
        format!("{} from run {name} of {at}", count(it.hosts, "host"))
    };
    // Values of different days: the machine, its firmware or its load can have changed between.
    let runs = match measured.runs.len() {
        0 | 1 => String::new(),
        _ => {
            let runs: Vec<String> = measured.runs.iter().map(of).collect();
            format!("; {}", some_of(&runs, super::SHOWN_RUNS))
        }
    };
    format!(
        "compared: {} {} of {} hosts in {cells}; alike hosts differ by {} (one standard deviation); threshold: {:.1} standard deviations{runs}",
        measured.experiment,
        measured.metric,
        measured.hosts,
        share((1000.0 * measured.spread).round() / 1000.0),
        measured.critical,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_have_a_sign_and_an_interval() {
        assert_eq!(change(1.31, 1.26, 1.36), "+31 % (+26 to +36)");
        assert_eq!(change(0.95, 0.94, 0.96), "-5.0 % (-6.0 to -4.0)");
        assert_eq!(
            (share(0.05), share(0.0025)),
            ("5 %".to_owned(), "0.25 %".to_owned())
        );
    }
}

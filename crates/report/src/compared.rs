//! The comparison of two sides in words and figures, wherever one is shown: the change with its interval, and the verdict.

use nearfar_bench::step::Step;
use nearfar_statistics::Interval;
use nearfar_statistics::compare::{Compared, Estimate, Verdict};

use crate::amount::or;
use crate::document::Text;
use crate::style::Role;

/// A verdict in words.
pub(crate) fn words(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::Different => "different",
        Verdict::Equivalent => "equivalent",
        Verdict::Equal => "equal",
        Verdict::NotSignificant => "not significant",
        Verdict::TooFewSamples => "too few samples",
        Verdict::OneRunASide => "one run a side",
    }
}

pub(crate) fn role(verdict: Verdict) -> Role {
    match verdict {
        Verdict::Better => Role::Near,
        Verdict::Worse => Role::Far,
        Verdict::Different => Role::Middling,
        Verdict::Equivalent | Verdict::Equal => Role::Plain,
        Verdict::NotSignificant | Verdict::TooFewSamples | Verdict::OneRunASide => Role::Dim,
    }
}

/// `limit against stock: +5.4 % (+4.1 to +6.6), better`.
pub(crate) fn finding<S>(compares: String, step: &Step<S>) -> Text {
    let role = step.verdict().map_or(Role::Dim, role);
    Role::Heading
        .text(format!("{compares}: "))
        .then(role, sentence(step))
}

/// `+5.4 % (+4.1 to +6.6), better`; why it is unknown.
pub(crate) fn sentence<S>(step: &Step<S>) -> String {
    match step.compared.get() {
        Some(compared) => format!("{}, {}", change(compared), words(compared.verdict)),
        None => {
            let reason = step.compared.unknown_reason().unwrap_or_default();
            format!("unknown: {reason}")
        }
    }
}

/// The same in a cell of a table, `-12 % (-15 to -10) *`: a star where the difference is significant, `=` where both are the same
/// within the margin.
pub(crate) fn marked<S>(step: &Step<S>) -> Text {
    let Some(compared) = step.compared.get() else {
        return Role::Dim.text("unknown");
    };
    let mark = match compared.verdict {
        Verdict::Better | Verdict::Worse => " *",
        Verdict::Equivalent | Verdict::Equal => " =",
        _ => "",
    };
    role(compared.verdict).text(change(compared) + mark)
}

/// A figure with four digits that mean something.
pub(crate) fn significant(value: f64) -> String {
    let digits = crate::amount::decimals(value.abs());
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// A share as a percentage with as few digits as it takes: `2 %`, `0.5 %`.
pub(crate) fn percent(share: f64) -> String {
    let text = format!("{:.2}", share * 100.0);
    format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
}

/// `+5.4 % (+4.1 to +6.6)`; in the metric's unit where the baseline is 0.
pub(crate) fn change(compared: &Compared) -> String {
    let (estimate, factor, unit) = match compared.change {
        Some(change) => (change, 100.0, " %"),
        None => (compared.shift, 1.0, ""),
    };
    let of = |value: f64| signed(value * factor);
    let interval = estimate.confidence;
    let interval = interval.map(|it| format!(" ({} to {})", of(it.low), of(it.high)));
    of(estimate.value) + unit + &or(interval, "")
}

/// The change of the medians that a table shows with the interval of the rank test; where that does not hold this change, with its own
/// estimate, and without an interval with the reason: `+24 % (+18 to +29)`, `-32 %, ranks -0.6 % (-5 to +3)`, `+24 % (41 count as 2)`.
pub(crate) fn change_of_medians(compared: &Compared) -> String {
    let (estimate, medians, factor, unit) = terms(compared);
    let of = |value: f64| signed(value * factor);
    let rest = match estimate.confidence {
        Some(it) => {
            let interval = format!("({} to {})", of(it.low), of(it.high));
            match holds_medians(compared) {
                true => interval,
                false => format!("ranks {}{unit} {interval}", of(estimate.value)),
            }
        }
        None if compared.variance_inflation > 1.0 => {
            let [a, b] = compared.effective_samples();
            let samples = compared.a.samples.min(compared.b.samples);
            format!("({samples} count as {:.0})", a.min(b).max(1.0))
        }
        None => String::new(),
    };
    let medians = of(medians);
    let comma = if rest.starts_with("ranks") { "," } else { "" };
    let text = format!("{medians}{unit}{comma} {rest}");
    text.trim_end().to_owned()
}

/// Whether the interval, if there is one, holds the change of the medians.
pub(crate) fn holds_medians(compared: &Compared) -> bool {
    let (estimate, medians, ..) = terms(compared);
    // Both are rounded: a change on the end of its interval is in it.
    let slack = 1e-9 * medians.abs();
    let holds = |it: Interval| it.low - slack <= medians && medians <= it.high + slack;
    estimate.confidence.is_none_or(holds)
}

/// The estimate and the change of the medians in the same terms, with the factor and the unit of these.
fn terms(compared: &Compared) -> (Estimate, f64, f64, &'static str) {
    match (compared.change, compared.change_of_medians()) {
        (Some(change), Some(medians)) => (change, medians, 100.0, " %"),
        _ => {
            let medians = compared.b.median - compared.a.median;
            (compared.shift, medians, 1.0, "")
        }
    }
}

/// With its sign and two or three digits; 0 without a sign.
pub(crate) fn signed(value: f64) -> String {
    let digits = match value.abs() {
        0.0..10.0 => 1,
        _ => 0,
    };
    let text = format!("{value:+.digits$}");
    match text.trim_start_matches(['+', '-']).trim_matches(['0', '.']) {
        "" => "0".to_owned(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use nearfar_statistics::compare::{Design, Question, compare};

    use super::*;

    #[test]
    fn the_change_is_that_of_the_medians_and_the_interval_has_its_own_where_it_differs() {
        let question = Question {
            a: vec![vec![1.0, 1.1, 1.2, 1.3]],
            b: vec![vec![1.2, 1.3, 1.4, 1.5]],
            design: Design::Independent,
            better: None,
        };
        let compared = compare(&[question], 0.01).remove(0).unwrap();
        let with = |medians: [f64; 2], value: f64, confidence: Option<[f64; 2]>| {
            let mut compared = compared.clone();
            [compared.a.median, compared.b.median] = medians;
            let confidence = confidence.map(|[low, high]| Interval { low, high });
            compared.change = Some(Estimate { value, confidence });
            compared
        };
        let held = with([202.8, 250.8], 0.27, Some([0.18, 0.33]));
        assert_eq!(change_of_medians(&held), "+24 % (+18 to +33)");
        let apart = with([0.06194, 0.04215], -0.006, Some([-0.05, 0.03]));
        assert_eq!(
            change_of_medians(&apart),
            "-32 %, ranks -0.6 % (-5.0 to +3.0)"
        );
        assert!(holds_medians(&held) && !holds_medians(&apart));
        let mut close = with([202.8, 250.8], 0.27, None);
        close.variance_inflation = 2.5;
        assert_eq!(change_of_medians(&close), "+24 % (4 count as 2)");
        // Of a baseline of 0 in the metric's unit.
        let mut none = with([0.0, 2.0], 0.0, None);
        (none.change, none.shift.value) = (None, 2.5);
        none.shift.confidence = Some(Interval {
            low: 1.0,
            high: 3.0,
        });
        assert_eq!(change_of_medians(&none), "+2.0 (+1.0 to +3.0)");
    }

    #[test]
    fn figures_have_no_digits_that_mean_nothing() {
        assert_eq!(
            [61.234_56, 0.05, 1234.5, 0.0, 3.0].map(significant),
            ["61.23", "0.05", "1234", "0", "3"]
        );
        assert_eq!(
            [5.44, -0.04, 12.3, 0.0].map(signed),
            ["+5.4", "0", "+12", "0"]
        );
        assert_eq!([0.02, 0.005].map(percent), ["2 %", "0.5 %"]);
    }
}

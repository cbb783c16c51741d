//! Figures of a comparison.

use nearfar_statistics::compare::Compared;

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
pub(super) fn percent(share: f64) -> String {
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
    format!(
        "{}{unit}{}",
        of(estimate.value),
        interval.unwrap_or_default()
    )
}

/// With its sign and two or three digits; 0 without a sign.
fn signed(value: f64) -> String {
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
    use super::*;

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

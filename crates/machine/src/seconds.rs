//! Times as people write them: `10`, `10s`, `500ms`, `2m`, `1h`.

/// Reads a time in seconds: a number, or one with `ms`, `s`, `m` or `h` behind it. `None` for anything else.
pub fn parse(text: &str) -> Option<f64> {
    let units = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let of = |(unit, seconds): &(&str, f64)| Some((text.strip_suffix(unit)?, *seconds));
    let (number, unit) = units.iter().find_map(of).unwrap_or((text, 1.0));
    let number = number.parse::<f64>().ok().filter(|it| it.is_finite());
    number.map(|number| number * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_may_have_a_unit() {
        for (text, seconds) in [
            ("10", 10.0),
            ("10s", 10.0),
            ("500ms", 0.5),
            ("2m", 120.0),
            ("1.5h", 5400.0),
        ] {
            assert_eq!(parse(text), Some(seconds), "{text}");
        }
        for text in ["", "s", "1 s", "1m30s", "2min", "inf", "nan"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}

//! Times as people write them: `10`, `10s`, `500ms`, `2m`, `1h`.

use std::fmt;
use std::str::FromStr;

/// A time in seconds.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub struct Seconds(pub f64);

impl FromStr for Seconds {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let units = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
        let of = |(unit, seconds): &(&str, f64)| Some((text.strip_suffix(unit)?, *seconds));
        let (number, unit) = units.iter().find_map(of).unwrap_or((text, 1.0));
        let number = number.parse::<f64>().ok().filter(|it| it.is_finite());
        number
            .map(|number| Self(number * unit))
            .ok_or("a time such as 10, 10s, 500ms, 2m or 1h is expected")
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
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
            assert_eq!(text.parse(), Ok(Seconds(seconds)), "{text}");
        }
        for text in ["", "s", "1 s", "1m30s", "2min", "inf", "nan"] {
            assert!(text.parse::<Seconds>().is_err(), "{text}");
        }
    }
}

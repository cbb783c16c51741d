//! Amounts as people read them.

use std::fmt::Display;
use std::time::Duration;

use nearfar_runs::Counted;

/// Bytes in the largest binary unit of which there is at least one: `61.9 GiB`, `512 KiB`, `0 B`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = (bytes.max(1).ilog2() / 10) as usize;
    let value = bytes as f64 / (1u64 << (10 * unit)) as f64;
    match value {
        _ if unit == 0 => format!("{bytes} B"),
        _ if value.fract() == 0.0 || value >= 100.0 => format!("{value:.0} {}", UNITS[unit]),
        _ => format!("{value:.1} {}", UNITS[unit]),
    }
}

/// A count with its noun: `1 node`, `2 nodes`.
pub fn count(number: usize, noun: &str) -> String {
    match (number, noun.strip_suffix('y')) {
        (1, _) => format!("1 {noun}"),
        (_, Some(stem)) => format!("{number} {stem}ies"),
        (_, None) if noun.ends_with('s') => format!("{number} {noun}es"),
        _ => format!("{number} {noun}s"),
    }
}

/// A value, or what stands for none: `?`, `-`.
pub(crate) fn or<T: Display>(value: Option<T>, none: &str) -> String {
    value.map_or_else(|| none.to_owned(), |value| value.to_string())
}

/// The first names of a list, and how many there are besides: `a, b and 3 more`.
pub(crate) fn first_of<T: AsRef<str>>(names: &[T], most: usize) -> String {
    let shown = names.iter().take(most).map(AsRef::as_ref);
    let shown = shown.collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(most) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Numbers as the kernel lists them: `45-68`, `1,3,5-7`.
pub(crate) fn ranges(numbers: impl IntoIterator<Item = u32>) -> String {
    let mut sorted: Vec<u32> = numbers.into_iter().collect();
    sorted.sort_unstable();
    sorted.dedup();
    let runs = sorted.chunk_by(|a, b| b - a == 1);
    let text = |run: &[u32]| match (run.first(), run.last()) {
        (Some(first), Some(last)) if first != last => format!("{first}-{last}"),
        (Some(only), _) => only.to_string(),
        _ => String::new(),
    };
    runs.map(text).collect::<Vec<_>>().join(",")
}

/// What is true of so many: `3 samples with warnings: `; `such as` where the figures that follow are those of one of them.
pub(crate) fn lead(counted: &Counted, noun: &str, how: &str) -> String {
    let such_as = if counted.differ { ", such as" } else { "" };
    format!("{}{how}{such_as}: ", count(counted.samples, noun))
}

/// Nanoseconds with the digits that mean something.
pub(crate) fn nanoseconds(value: f64) -> String {
    if value < 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}

/// Digits behind the point so that the largest figure of a table has four that mean something.
pub(crate) fn decimals(largest: f64) -> usize {
    if largest <= 0.0 || !largest.is_finite() {
        return 3;
    }
    (3 - largest.log10().floor() as i32).clamp(0, 9) as usize
}

/// A figure of a table with so many digits behind the point, and more where it would else have fewer than three that
/// mean something. Whole numbers need none.
pub(crate) fn figure(value: f64, decimals: usize) -> String {
    let own = match value.abs() {
        0.0 => decimals,
        _ if value.fract() == 0.0 || !value.is_finite() => decimals,
        size => usize::try_from(2 - size.log10().floor() as i32).unwrap_or(0),
    };
    // Beyond that it is the rounding of a sum.
    let decimals = if own <= 9 {
        own.max(decimals)
    } else {
        decimals
    };
    format!("{value:.decimals$}")
}

/// The divisor and the unit that leave few digits in front of the point: bytes a second as the surveys print them, times from
/// 10 us up, shares as percentages.
pub(crate) fn scaled(unit: &str, largest: f64) -> (f64, &str) {
    match (unit, largest) {
        ("B/s", 1e9..) => (1e9, "GB/s"),
        ("B/s", 1e6..) => (1e6, "MB/s"),
        ("B/s", 1e3..) => (1e3, "kB/s"),
        ("ns", 1e7..) => (1e6, "ms"),
        ("ns", 1e4..) => (1e3, "us"),
        ("1", _) => (0.01, "%"),
        _ => (1.0, unit),
    }
}

/// A moment as date and time of day in UTC, to the minute.
pub(crate) fn moment(seconds_since_1970: u64) -> String {
    let (days, seconds) = (seconds_since_1970 / 86_400, seconds_since_1970 % 86_400);
    let (year, month, day) = nearfar_runs::utc_date(days);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02} UTC",
        seconds / 3600,
        seconds / 60 % 60
    )
}

/// The time of day of a moment in UTC.
pub(crate) fn time_of_day(seconds_since_1970: u64) -> String {
    let seconds = seconds_since_1970 % 86_400;
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    format!("{hours:02}:{minutes:02}:{:02} UTC", seconds % 60)
}

/// How long ago something was, in one unit: `40 s ago`, `3 min ago`, `27 h ago`, `12 days ago`.
pub(crate) fn ago(age: Duration) -> String {
    match age.as_secs() {
        0 => "just now".to_owned(),
        seconds @ ..60 => format!("{seconds} s ago"),
        seconds @ ..3600 => format!("{} min ago", seconds / 60),
        seconds @ ..172_800 => format!("{} h ago", seconds / 3600),
        seconds => format!("{} days ago", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_take_the_largest_unit() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (63_379 << 20, "61.9 GiB"),
            (u64::MAX, "16 EiB"),
        ];
        for (amount, text) in cases {
            assert_eq!(bytes(amount), text);
        }
    }

    #[test]
    fn figures_have_four_digits_that_mean_something() {
        let cases = [21.41, 0.002, 1234.0, 5e-7, 0.0, f64::INFINITY];
        assert_eq!(cases.map(decimals), [2, 6, 0, 9, 3, 3]);
    }

    #[test]
    fn figures_next_to_large_ones_keep_three_digits() {
        let next_to_5000 = decimals(5000.0);
        let cases = [1.5, 2.0, 5000.0, 0.012_34, 0.0, 1234.5, 1e-14];
        assert_eq!(
            cases.map(|value| figure(value, next_to_5000)),
            ["1.50", "2", "5000", "0.0123", "0", "1234", "0"]
        );
        assert_eq!(figure(21.4, decimals(21.4)), "21.40");
    }

    #[test]
    fn bytes_a_second_are_scaled_and_other_units_are_not() {
        assert_eq!(scaled("B/s", 26_672_961_733.0), (1e9, "GB/s"));
        assert_eq!(scaled("B/s", 12.0), (1.0, "B/s"));
        assert_eq!(scaled("us", 5e9), (1.0, "us"));
        assert_eq!(scaled("1", 0.7), (0.01, "%"));
    }

    #[test]
    fn moments_are_dates() {
        assert_eq!(moment(0), "1970-01-01 00:00 UTC");
        assert_eq!(moment(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(moment(1_795_225_560), "2026-11-21 01:46 UTC");
        assert!(moment(u64::MAX).ends_with("UTC"));
    }

    #[test]
    fn ages_have_one_unit() {
        let seconds = [0, 59, 60, 3599, 3600, 172_799, 172_800];
        let texts = [
            "just now",
            "59 s ago",
            "1 min ago",
            "59 min ago",
            "1 h ago",
            "47 h ago",
            "2 days ago",
        ];
        assert_eq!(
            seconds.map(|seconds| ago(Duration::from_secs(seconds))),
            texts
        );
        assert!(ago(Duration::MAX).ends_with(" days ago"));
    }

    #[test]
    fn counts_agree_with_their_nouns() {
        assert_eq!(
            (count(1, "node"), count(0, "node"), count(2, "memory")),
            ("1 node".into(), "0 nodes".into(), "2 memories".into())
        );
    }
}

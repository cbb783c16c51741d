//! Metrics: what an experiment declares that a sample has, and the values of a sample.
//!
//! ```text
//!  Metric {latency_ns, "ns", lower, primary, histogram}  ◄── declared once a run, in Detail::metrics
//!     ▲ by name
//!  Values {"latency_ns": histogram, "iops": 81234.5}     ◄── one map a sample
//! ```
//!
//! A [`Histogram`] is a distribution within one sample: HdrHistogram, three significant digits, in its V2 format (compressed, base64),
//! which the implementations in other languages read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{Cursor, Read as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::read::ZlibDecoder;
use hdrhistogram::serialization::{Deserializer, Serializer as _, V2DeflateSerializer};
use serde::{Deserialize, Serialize};

pub use nearfar_statistics::compare::Better;

/// Most characters of a metric's name.
const MAX_NAME: usize = 64;

/// How the values of a metric are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MetricKind {
    Integer,
    Real,
    /// A distribution of integers within one sample, in the metric's unit.
    Histogram,
}

impl MetricKind {
    fn noun(self) -> &'static str {
        match self {
            Self::Integer => "an integer",
            Self::Real => "a real number",
            Self::Histogram => "a histogram",
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Metric {
    /// snake_case, unique in its experiment: a column of exports and a key of [`Values`].
    pub name: String,
    /// As printed after a figure: "s", "ns", "GB/s", "1" for a share, "" for a count.
    pub unit: String,
    pub better: Better,
    /// Whether tables and verdicts put it first. Exactly one metric of an experiment is.
    pub primary: bool,
    pub kind: MetricKind,
}

impl Metric {
    /// A metric of real numbers that is not the primary one.
    pub fn real(name: impl Into<String>, unit: impl Into<String>, better: Better) -> Self {
        let (name, unit) = (name.into(), unit.into());
        Self {
            name,
            unit,
            better,
            primary: false,
            kind: MetricKind::Real,
        }
    }

    /// A metric of integers that is not the primary one.
    pub fn integer(name: impl Into<String>, unit: impl Into<String>, better: Better) -> Self {
        Self {
            kind: MetricKind::Integer,
            ..Self::real(name, unit, better)
        }
    }

    /// A metric of histograms that is not the primary one.
    pub fn histogram(name: impl Into<String>, unit: impl Into<String>, better: Better) -> Self {
        Self {
            kind: MetricKind::Histogram,
            ..Self::real(name, unit, better)
        }
    }

    /// The same as the primary metric.
    #[must_use]
    pub fn primary(mut self) -> Self {
        self.primary = true;
        self
    }

    /// Run time in seconds: the only metric of runs that were stored in layout 1.
    pub fn elapsed() -> Self {
        Self::real("elapsed_s", "s", Better::Lower)
    }
}

/// The value of one metric in one sample.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum MetricValue {
    Integer(i64),
    Real(f64),
    Histogram(Histogram),
}

impl MetricValue {
    /// The value as one number: the median of a histogram, NaN of an empty one.
    pub fn number(&self) -> f64 {
        match self {
            Self::Integer(value) => *value as f64,
            Self::Real(value) => *value,
            Self::Histogram(histogram) => histogram.median(),
        }
    }

    fn fits(&self, kind: MetricKind) -> bool {
        match self {
            // Programs that rewrite JSON may print 2.0 as 2.
            Self::Integer(_) => kind != MetricKind::Histogram,
            Self::Real(_) => kind == MetricKind::Real,
            Self::Histogram(_) => kind == MetricKind::Histogram,
        }
    }
}

impl fmt::Display for MetricValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number().fmt(f)
    }
}

impl From<f64> for MetricValue {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

impl From<i64> for MetricValue {
    fn from(value: i64) -> Self {
        Self::Integer(value)
    }
}

impl From<u32> for MetricValue {
    fn from(value: u32) -> Self {
        Self::Integer(value.into())
    }
}

impl From<u64> for MetricValue {
    /// Values beyond 2^63 become 2^63 - 1.
    fn from(value: u64) -> Self {
        Self::Integer(i64::try_from(value).unwrap_or(i64::MAX))
    }
}

impl From<Histogram> for MetricValue {
    fn from(histogram: Histogram) -> Self {
        Self::Histogram(histogram)
    }
}

/// The values of a sample by the metric's name. A metric other than the primary one may be missing where it is unknown.
pub type Values = BTreeMap<String, MetricValue>;

/// What is wrong with declared metrics, or with the values of a sample.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum MetricError {
    #[error("{count} metrics are primary; exactly one must be")]
    Primary { count: usize },
    #[error("the metric {name:?} is declared twice")]
    Twice { name: String },
    #[error(
        "{name:?} is not a name of a metric: use a-z, 0-9 and _, a letter first, up to 64 characters"
    )]
    Name { name: String },
    #[error("the value of {name:?} belongs to no declared metric")]
    Undeclared { name: String },
    #[error("the value of {name:?} is not {} as declared", kind.noun())]
    Kind { name: String, kind: MetricKind },
    #[error("the value of {name:?} is not finite")]
    NotFinite { name: String },
    #[error("the primary metric {name:?} has no value")]
    Missing { name: String },
}

/// A metric's name for any path or event: `jobs[far job].read.iops` as `jobs_far_job_read_iops`; of a long one the end, which says
/// what the number is.
pub fn metric_name(path: &str) -> String {
    let lower = path.to_lowercase();
    let words: Vec<&str> = lower
        .split(|letter: char| !letter.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .collect();
    let name = words.join("_");
    let start = name.len().saturating_sub(MAX_NAME - 1);
    let name = name[start..].trim_start_matches('_');
    match name.starts_with(|first: char| first.is_ascii_lowercase()) {
        true => name.to_owned(),
        false => format!("n{name}"),
    }
}

/// Checks declared metrics: names, and exactly one primary metric.
///
/// # Errors
/// The first fault found.
pub fn check_metrics(metrics: &[Metric]) -> Result<(), MetricError> {
    let mut names = BTreeSet::new();
    for Metric { name, .. } in metrics {
        let good = name.len() <= MAX_NAME
            && name.starts_with(|first: char| first.is_ascii_lowercase())
            && name
                .bytes()
                .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'));
        let name = name.clone();
        if !good {
            return Err(MetricError::Name { name });
        }
        if !names.insert(name.clone()) {
            return Err(MetricError::Twice { name });
        }
    }
    match metrics.iter().filter(|metric| metric.primary).count() {
        1 => Ok(()),
        count => Err(MetricError::Primary { count }),
    }
}

/// Checks the values of a sample against the declared metrics.
///
/// # Errors
/// The first fault found: a value of no metric, of another kind, not finite, or no value of the primary metric.
pub fn check_values(metrics: &[Metric], values: &Values) -> Result<(), MetricError> {
    for (name, value) in values {
        let name = || name.clone();
        let metric = metrics.iter().find(|metric| metric.name == name());
        let metric = metric.ok_or_else(|| MetricError::Undeclared { name: name() })?;
        if !value.fits(metric.kind) {
            let kind = metric.kind;
            return Err(MetricError::Kind { name: name(), kind });
        }
        if !value.number().is_finite() {
            return Err(MetricError::NotFinite { name: name() });
        }
    }
    let missing = metrics
        .iter()
        .find(|metric| metric.primary && !values.contains_key(&metric.name));
    match missing {
        Some(metric) => Err(MetricError::Missing {
            name: metric.name.clone(),
        }),
        None => Ok(()),
    }
}

/// The primary metric of checked metrics.
pub fn primary(metrics: &[Metric]) -> Option<&Metric> {
    metrics.iter().find(|metric| metric.primary)
}

/// Relative error of at most 0.1 %.
const SIGNIFICANT_DIGITS: u8 = 3;
/// What a serialized histogram may inflate to, in bytes: one of three digits over all of 64 bits has 56,320 counts of at most
/// 9 bytes.
const MAX_INFLATED_BYTES: u64 = 1 << 20;
/// Cookie and length before the compressed part (HdrHistogram's V2DeflateSerializer).
const COMPRESSED_HEADER_BYTES: usize = 8;

/// Counts of integer values from 0 to 2^64 - 1, in the unit of its metric.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Encoded", into = "Encoded")]
pub struct Histogram(hdrhistogram::Histogram<u64>);

/// Quantiles of a histogram, in the unit of its metric.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Quantiles {
    pub count: u64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p999: u64,
    pub max: u64,
}

impl Histogram {
    pub fn new() -> Self {
        let empty = hdrhistogram::Histogram::new(SIGNIFICANT_DIGITS);
        Self(empty.expect("0 to 5 digits are valid"))
    }

    /// Counts one value.
    pub fn record(&mut self, value: u64) {
        // It resizes itself, which fails only where usize has less than 64 bits.
        let _ = self.0.record(value);
    }

    /// Counts one value several times.
    pub fn record_many(&mut self, value: u64, times: u64) {
        // As above.
        let _ = self.0.record_n(value, times);
    }

    /// Adds the counts of another one.
    pub fn merge(&mut self, other: &Self) {
        // Cannot fail for one that resizes itself; one that was read from a file does, too.
        let _ = self.0.add(&other.0);
    }

    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// NaN where nothing was recorded.
    pub fn median(&self) -> f64 {
        match self.count() {
            0 => f64::NAN,
            _ => self.0.value_at_quantile(0.5) as f64,
        }
    }

    /// `None` where nothing was recorded.
    pub fn quantiles(&self) -> Option<Quantiles> {
        let at = |quantile| self.0.value_at_quantile(quantile);
        (self.count() > 0).then(|| Quantiles {
            count: self.count(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: self.0.max(),
        })
    }

    /// The values that were recorded, each with its count, in ascending order.
    pub fn counts(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0
            .iter_recorded()
            .map(|step| (step.value_iterated_to(), step.count_at_value()))
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Encoded {
    hdr_v2_deflate: String,
}

impl From<Histogram> for Encoded {
    fn from(histogram: Histogram) -> Self {
        let mut bytes = Vec::new();
        V2DeflateSerializer::new()
            .serialize(&histogram.0, &mut bytes)
            .expect("a Vec takes all that is written");
        Self {
            hdr_v2_deflate: STANDARD.encode(bytes),
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("not a histogram in HdrHistogram's V2 format: {0}")]
struct NotAHistogram(String);

impl TryFrom<Encoded> for Histogram {
    type Error = NotAHistogram;

    fn try_from(encoded: Encoded) -> Result<Self, NotAHistogram> {
        let bad = |error: &dyn std::fmt::Display| NotAHistogram(error.to_string());
        let bytes = STANDARD
            .decode(encoded.hdr_v2_deflate)
            .map_err(|error| bad(&error))?;
        // Inflated here, not by the library, which trusts the length that the file claims.
        let compressed = bytes.get(COMPRESSED_HEADER_BYTES..).unwrap_or_default();
        let mut plain = Vec::new();
        ZlibDecoder::new(compressed)
            .take(MAX_INFLATED_BYTES)
            .read_to_end(&mut plain)
            .map_err(|error| bad(&error))?;
        let claimed = plain.get(4..8).and_then(|bytes| bytes.try_into().ok());
        if claimed.is_none_or(|claimed| u32::from_be_bytes(claimed) as usize > plain.len()) {
            return Err(NotAHistogram("it is cut off".to_owned()));
        }
        // Memory is reserved by the claims of the header: 450 KiB for three digits over all of 64 bits, 49 MiB for five.
        let digits = plain.get(12..16).and_then(|bytes| bytes.try_into().ok());
        if digits.is_none_or(|digits| u32::from_be_bytes(digits) > SIGNIFICANT_DIGITS.into()) {
            return Err(NotAHistogram(format!(
                "it has more than {SIGNIFICANT_DIGITS} significant digits"
            )));
        }
        let read: Result<hdrhistogram::Histogram<u64>, _> =
            Deserializer::new().deserialize(&mut Cursor::new(plain));
        let mut histogram = read.map_err(|error| bad(&error))?;
        histogram.auto(true);
        Ok(Self(histogram))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn two() -> Vec<Metric> {
        vec![
            Metric::elapsed().primary(),
            Metric::integer("faults", "", Better::Lower),
        ]
    }

    #[test]
    fn any_path_becomes_a_name_that_the_store_takes() {
        for path in [
            "",
            "[0]",
            "0.a",
            "Größe.ns",
            &"x.".repeat(100),
            "jobs[a b].iops",
        ] {
            let metric = Metric::real(metric_name(path), "", Better::Lower).primary();
            check_metrics(&[metric]).unwrap();
        }
        assert_eq!(
            metric_name("jobs[far job].read.iops"),
            "jobs_far_job_read_iops"
        );
    }

    #[test]
    fn exactly_one_metric_is_primary_and_names_are_unique_and_snake_case() {
        assert_eq!(check_metrics(&two()), Ok(()));
        assert_eq!(check_metrics(&[]), Err(MetricError::Primary { count: 0 }));
        let both = two().into_iter().map(Metric::primary).collect::<Vec<_>>();
        assert_eq!(check_metrics(&both), Err(MetricError::Primary { count: 2 }));
        let twice = [two(), vec![Metric::real("faults", "", Better::Higher)]].concat();
        assert!(matches!(
            check_metrics(&twice),
            Err(MetricError::Twice { .. })
        ));
        for bad in [
            "",
            "_a",
            "1a",
            "Latency",
            "a b",
            "ä",
            "a-b",
            &"a".repeat(65),
        ] {
            let metrics = [Metric::real(bad, "", Better::Lower).primary()];
            assert!(
                matches!(check_metrics(&metrics), Err(MetricError::Name { .. })),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn values_have_to_fit_the_declared_metrics() {
        let of = |pairs: &[(&str, MetricValue)]| -> Values {
            pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.clone()))
                .collect()
        };
        let check = |pairs: &[(&str, MetricValue)]| check_values(&two(), &of(pairs));
        assert_eq!(check(&[("elapsed_s", 1.5.into())]), Ok(()));
        assert_eq!(
            check(&[("elapsed_s", 2i64.into()), ("faults", 0i64.into())]),
            Ok(())
        );
        assert!(matches!(
            check(&[("faults", 1i64.into())]),
            Err(MetricError::Missing { .. })
        ));
        assert!(matches!(
            check(&[("elapsed_s", f64::NAN.into())]),
            Err(MetricError::NotFinite { .. })
        ));
        assert!(matches!(
            check(&[("faults", 1.5.into())]),
            Err(MetricError::Kind { .. })
        ));
        assert!(matches!(
            check(&[("other", 1.5.into())]),
            Err(MetricError::Undeclared { .. })
        ));
    }

    #[test]
    fn values_keep_their_kind_in_json() {
        let mut histogram = Histogram::new();
        histogram.record(90);
        let values: Values = [
            ("a".to_owned(), 2.0.into()),
            ("b".to_owned(), 2i64.into()),
            ("c".to_owned(), histogram.into()),
        ]
        .into();
        let text = serde_json::to_string(&values).unwrap();
        assert!(
            text.starts_with(r#"{"a":2.0,"b":2,"c":{"hdr_v2_deflate":"HIST"#),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<Values>(&text).unwrap(), values);
    }

    fn of(values: &[u64]) -> Histogram {
        let mut histogram = Histogram::new();
        values.iter().for_each(|&value| histogram.record(value));
        histogram
    }

    #[test]
    fn quantiles_are_within_a_thousandth_and_the_maximum_too() {
        let found = of(&(1..=10_000).collect::<Vec<_>>()).quantiles().unwrap();
        assert_eq!(found.count, 10_000);
        for (quantile, exact) in [
            (found.p50, 5000.0),
            (found.p90, 9000.0),
            (found.p99, 9900.0),
            (found.p999, 9990.0),
            (found.max, 10_000.0),
        ] {
            assert!((quantile as f64 / exact - 1.0).abs() < 0.0011, "{found:?}");
        }
        assert_eq!(Histogram::new().quantiles(), None);
    }

    #[test]
    fn a_histogram_of_a_million_values_takes_less_than_ten_kilobytes() {
        let values: Vec<u64> = (0..1_000_000u64).map(|n| 80 + (n * n) % 4096).collect();
        let text = serde_json::to_string(&of(&values)).unwrap();
        assert!(text.len() < 10_000, "{}", text.len());
    }

    /// 52 characters in a file took 49 MiB in memory.
    #[test]
    fn a_histogram_that_claims_more_digits_is_refused_by_its_header() {
        let read = |digits| {
            let given = hdrhistogram::Histogram::<u64>::new_with_max(1 << 62, digits).unwrap();
            let Encoded { hdr_v2_deflate } = Histogram(given).into();
            Histogram::try_from(Encoded { hdr_v2_deflate })
        };
        for digits in [4, 5] {
            let message = read(digits).unwrap_err().to_string();
            assert!(
                message.contains("more than 3 significant digits"),
                "{message}"
            );
        }
        for digits in 0..=3 {
            let counts = read(digits).unwrap().0.distinct_values();
            assert!(counts * size_of::<u64>() < 1 << 19, "{counts}");
        }
    }

    #[test]
    fn every_count_of_the_widest_histogram_comes_back() {
        let mut histogram = of(&[u64::MAX]);
        let widest: Vec<u64> = histogram
            .0
            .iter_all()
            .map(|it| it.value_iterated_to())
            .collect();
        for value in widest {
            histogram.0.record_n(value, 1 << 40).unwrap();
        }
        let text = serde_json::to_string(&histogram).unwrap();
        let read = serde_json::from_str::<Histogram>(&text).unwrap();
        assert!(read.counts().eq(histogram.counts()));
    }

    proptest! {
        #[test]
        fn text_and_back_is_the_same(values in prop::collection::vec(any::<u64>(), 0..50)) {
            let histogram = of(&values);
            let text = serde_json::to_string(&histogram).unwrap();
            prop_assert_eq!(serde_json::from_str::<Histogram>(&text).unwrap(), histogram);
        }

        #[test]
        fn merging_adds_counts(one in prop::collection::vec(any::<u64>(), 0..50), other in prop::collection::vec(any::<u64>(), 0..50)) {
            let mut both = of(&one);
            both.merge(&of(&other));
            prop_assert_eq!(both.quantiles(), of(&[one, other].concat()).quantiles());
        }

        #[test]
        fn no_text_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4)) {
            let encoded = |bytes: &[u8]| Encoded { hdr_v2_deflate: STANDARD.encode(bytes) };
            let _ = Histogram::try_from(encoded(&bytes));
            let Encoded { hdr_v2_deflate } = of(&[1, 5, 90_000]).into();
            let mut good = STANDARD.decode(hdr_v2_deflate).unwrap();
            for (index, byte) in flips {
                let place = index.index(good.len());
                good[place] = byte;
            }
            let _ = Histogram::try_from(encoded(&good));
        }
    }
}

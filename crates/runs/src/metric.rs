//! Metrics: what an experiment declares that a sample has, and the values of a sample.
//!
//! ```text
//!  Metric {latency_ns, "ns", lower, primary, histogram}  ◄── declared once a run, in Detail::metrics
//!     ▲ by name
//!  Values {"latency_ns": histogram, "iops": 81234.5}     ◄── one map a sample
//! ```

mod histogram;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

pub use histogram::{Histogram, Quantiles};
pub use nearfar_statistics::compare::Better;

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

/// Checks declared metrics: names, and exactly one primary metric.
///
/// # Errors
/// The first fault found.
pub fn check_metrics(metrics: &[Metric]) -> Result<(), MetricError> {
    let mut names = BTreeSet::new();
    for Metric { name, .. } in metrics {
        let good = name.len() <= 64
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

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Vec<Metric> {
        vec![
            Metric::elapsed().primary(),
            Metric::integer("faults", "", Better::Lower),
        ]
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
}

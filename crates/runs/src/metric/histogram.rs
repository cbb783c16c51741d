//! A distribution within one sample: HdrHistogram, three significant digits, in its V2 format (compressed, base64),
//! which the implementations in other languages read.

use std::io::{Cursor, Read as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::read::ZlibDecoder;
use hdrhistogram::serialization::{Deserializer, Serializer as _, V2DeflateSerializer};
use serde::{Deserialize, Serialize};

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

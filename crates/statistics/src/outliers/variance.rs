//! How sure the distance of a host from the centre is.

use std::collections::HashMap;

use statrs::distribution::{ChiSquared, ContinuousCDF as _, StudentsT};

use super::critical::{FREEDOM_PER_HOST, quantile};
use super::location::{Location, deviation_of_median};
use super::{FAR, Reference};
use crate::CONFIDENCE;

/// A host's standard error is combined with that of the other hosts as if theirs came from this many samples more.
const PRIOR_FREEDOM: f64 = 4.0;
/// A host's samples are noisier than those of others where that is so sure.
const NOISIER_CONFIDENCE: f64 = 0.99;
/// More hosts than expected, in standard deviations of a Poisson distribution, are heavy tails (P < 0.001).
const HEAVY_BEYOND: f64 = 3.3;

/// A variance and its degrees of freedom.
#[derive(Clone, Copy)]
pub(super) struct Variance {
    pub value: f64,
    pub freedom: f64,
}

impl Variance {
    /// Of a sum of independent terms (F. E. Satterthwaite, 1946).
    pub(super) fn plus(self, other: Self) -> Self {
        let value = self.value + other.value;
        let share = |it: Self| it.value.powi(2) / it.freedom;
        let freedom = value.powi(2) / (share(self) + share(other));
        Self { value, freedom }
    }
}

impl Reference {
    /// Of a host's location: its own standard error and that of the other hosts together; the spread of the hosts where no host
    /// has a standard error.
    pub(super) fn location_variance(&self, location: &Location) -> Variance {
        let Some(expected) = self.expected_variance(location) else {
            return self.host_variance();
        };
        let own = location.error().map_or(0.0, |error| error.powi(2));
        let freedom = match location.error() {
            Some(_) => location.samples.saturating_sub(1) as f64,
            None => 0.0,
        };
        let sum = freedom * own + PRIOR_FREEDOM * expected;
        Variance {
            value: (sum / (freedom + PRIOR_FREEDOM)).max(f64::MIN_POSITIVE),
            freedom: freedom + PRIOR_FREEDOM,
        }
    }

    /// Of a location with as many samples, where a sample is as noisy as on most hosts.
    fn expected_variance(&self, location: &Location) -> Option<f64> {
        let deviation = self.sample_deviation? * deviation_of_median(location.samples);
        Some(deviation.powi(2))
    }

    /// Of the hosts around the centre.
    fn host_variance(&self) -> Variance {
        Variance {
            value: self.scale.powi(2),
            freedom: (FREEDOM_PER_HOST * (self.hosts as f64 - 1.0)).max(1.0),
        }
    }

    pub(super) fn centre_variance(&self) -> Variance {
        Variance {
            value: self.centre_error.powi(2),
            ..self.host_variance()
        }
    }

    /// The scale for this host, by which it is named: larger than that of the others by what its samples are fewer or noisier.
    pub(super) fn scale_to_name(&self, location: &Location) -> f64 {
        let own = location.error().unwrap_or(0.0).powi(2);
        self.with_excess(location, own)
    }

    /// The scale for this host once it is named: what its samples are noisier by chance does not count.
    pub(super) fn scale_of_named(&self, location: &Location, quantiles: &mut Quantiles) -> f64 {
        let own = location.error().unwrap_or(0.0).powi(2);
        self.with_excess(location, own * quantiles.least_variance(location.samples))
    }

    fn with_excess(&self, location: &Location, own: f64) -> f64 {
        let (Some(usual), Some(expected)) = (self.usual_error, self.expected_variance(location))
        else {
            return self.scale;
        };
        let excess = expected.max(own) - usual.powi(2);
        (self.scale.powi(2) + excess.max(0.0)).sqrt()
    }

    /// Whether more hosts are far from the centre, and not named, than there are in a normal distribution. Alike hosts with such tails
    /// are named more often than at the stated rate. Reliable from about 500 hosts on.
    pub fn has_heavy_tails(&self) -> bool {
        let freedom = self.host_variance().freedom;
        let beyond = StudentsT::new(0.0, 1.0, freedom).map_or(0.0, |it| 2.0 * it.sf(FAR));
        let expected = self.hosts as f64 * beyond;
        self.far_hosts as f64 > expected + HEAVY_BEYOND * expected.sqrt() + 1.0
    }
}

/// Quantiles that were worked out before.
#[derive(Default)]
pub(super) struct Quantiles {
    /// By degrees of freedom.
    student: HashMap<u64, f64>,
    /// By number of samples.
    least: HashMap<usize, f64>,
}

impl Quantiles {
    /// Half of the 95 % interval.
    pub(super) fn half_interval(&mut self, variance: Variance) -> f64 {
        let freedom = (variance.freedom as u64).max(1);
        let quantile_of = |freedom: &u64| quantile(*freedom as f64, f64::midpoint(1.0, CONFIDENCE));
        let student = self.student.entry(freedom).or_insert_with_key(quantile_of);
        *student * variance.value.sqrt()
    }

    /// The least true variance over that of so many samples.
    fn least_variance(&mut self, samples: usize) -> f64 {
        *self.least.entry(samples).or_insert_with_key(|samples| {
            let freedom = samples.saturating_sub(1) as f64;
            ChiSquared::new(freedom).map_or(0.0, |it| freedom / it.inverse_cdf(NOISIER_CONFIDENCE))
        })
    }
}

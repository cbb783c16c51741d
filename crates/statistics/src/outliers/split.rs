//! Hosts of a cell that are two groups, neither of which is small enough for its hosts to be the ones that deviate.

use super::location::deviation_of_median;
use super::{MIN_SCALE, Outliers, Values, ratio};

/// Below this number of hosts two pairs that are close by chance look the same.
const MIN_HOSTS_TO_SPLIT: usize = 6;

/// Two groups of hosts in a cell.
#[derive(Clone, PartialEq, Debug)]
pub struct Split {
    /// The hosts with the smaller values.
    pub below: Vec<usize>,
    pub above: Vec<usize>,
    /// The mean of those above over that of those below.
    pub ratio: f64,
}

/// Whether the hosts of a cell that are not named are two groups, each of a quarter of them or more.
///
/// The sorted values are divided where the means of both parts are furthest apart in standard deviations within the parts. That has to
/// be more than 4.5 + 72 / n for n hosts. One group exceeds it in less than 0.2 % (simulated for 6 to 200 hosts: normal, uniform,
/// exponential, Student's with 5 degrees of freedom); a median of 12 samples of 1 % and 0.3 % between hosts are found from a difference
/// of 3 % on for 40 hosts.
pub fn split(values: &Values, found: &Outliers, cell: usize) -> Option<Split> {
    let reference = found.references.get(cell)?.as_ref()?;
    let is_named = |host: usize| {
        let mut deviations = found.deviations.iter();
        deviations.any(|it| it.cell == cell && it.host == host)
    };
    let measured = values.measured(cell).filter(|(host, _)| !is_named(*host));
    let mut hosts: Vec<(usize, f64)> = measured
        .map(|(host, location)| (host, location.log_median - reference.centre))
        .collect();
    if hosts.len() < MIN_HOSTS_TO_SPLIT {
        return None;
    }
    hosts.sort_by(|a, b| a.1.total_cmp(&b.1));
    let least = hosts.len().div_ceil(4).max(2);
    let own = values.measured(cell).map(|(_, location)| location.samples);
    let error = reference.sample_deviation.zip(own.min());
    let error = error.map_or(0.0, |(deviation, samples)| {
        deviation * deviation_of_median(samples)
    });
    let count = hosts.len() as f64;
    let sums = |part: &[(usize, f64)]| {
        let mean = part.iter().map(|it| it.1).sum::<f64>() / part.len() as f64;
        let squares: f64 = part.iter().map(|it| (it.1 - mean).powi(2)).sum();
        (mean, squares)
    };
    let parts = (least..=hosts.len() - least).map(|at| {
        let ((low, of_low), (high, of_high)) = (sums(&hosts[..at]), sums(&hosts[at..]));
        let scale = ((of_low + of_high) / (count - 2.0)).sqrt();
        let scale = scale.max(error).max(MIN_SCALE);
        (at, high - low, (high - low) / scale)
    });
    let (at, distance, in_scales) = parts.max_by(|a, b| a.2.total_cmp(&b.2))?;
    let of = |part: &[(usize, f64)]| {
        let mut part: Vec<usize> = part.iter().map(|it| it.0).collect();
        part.sort_unstable();
        part
    };
    (in_scales > 4.5 + 72.0 / count).then(|| Split {
        below: of(&hosts[..at]),
        above: of(&hosts[at..]),
        ratio: ratio(distance),
    })
}

//! Which hosts of a group that should be alike deviate, in which cells and by how much.
//!
//! MODULE_DOC

mod critical;
mod location;
mod reference;
mod shift;
mod spread;
mod variance;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

pub use critical::Thresholds;
pub use location::Location;
pub use shift::{Shift, common_shift};

use reference::references;
use variance::Quantiles;

/// A cell with fewer hosts is not judged: of three hosts one that deviates is not distinct from two that do.
pub const MIN_HOSTS: usize = 4;
/// The scale is not less (0.1 %): clocks and the refresh of memory move a host by as much from day to day, and values that are all equal
/// have no scale of their own.
pub const MIN_SCALE: f64 = 0.001;
/// The threshold of fewer false alarms takes too long to simulate.
pub const MIN_FALSE_ALARMS: f64 = 1e-4;
pub const MAX_FALSE_ALARMS: f64 = 0.5;
/// |z| of hosts that are counted as far from the centre.
pub const FAR: f64 = 3.0;
/// Logarithms of ratios are cut off here, so that the ratio is a number.
const MAX_LOG_RATIO: f64 = 700.0;

/// The values of one metric of a group of hosts.
#[derive(Clone, PartialEq, Debug)]
pub struct Values {
    hosts: usize,
    cells: usize,
    /// Cell after cell.
    locations: Vec<Option<Location>>,
    resolution: Option<f64>,
}

impl Values {
    /// Of so many cells and hosts; `location` gives that of a cell and a host, `None` where the host did not measure the cell. A
    /// location that is not finite counts as not measured.
    pub fn from_fn(
        cells: usize,
        hosts: usize,
        mut location: impl FnMut(usize, usize) -> Option<Location>,
    ) -> Self {
        let places = (0..cells).flat_map(|cell| (0..hosts).map(move |host| (cell, host)));
        let locations = places
            .map(|(cell, host)| location(cell, host).filter(Location::is_valid))
            .collect();
        Self {
            hosts,
            cells,
            locations,
            resolution: None,
        }
    }

    /// The step of the clock or counter, in the unit of the samples. Without it the step is taken from samples and hosts that have
    /// equal values.
    pub fn with_resolution(self, step: f64) -> Self {
        let resolution = Some(step).filter(|step| step.is_finite() && *step > 0.0);
        Self { resolution, ..self }
    }

    pub fn hosts(&self) -> usize {
        self.hosts
    }

    pub fn cells(&self) -> usize {
        self.cells
    }

    /// `None` where the host did not measure the cell, or there is no such cell or host.
    pub fn get(&self, cell: usize, host: usize) -> Option<&Location> {
        self.row(cell).get(host)?.as_ref()
    }

    fn row(&self, cell: usize) -> &[Option<Location>] {
        let start = cell.saturating_mul(self.hosts);
        self.locations
            .get(start..start.saturating_add(self.hosts))
            .unwrap_or(&[])
    }

    /// The hosts that measured a cell.
    fn measured(&self, cell: usize) -> impl Iterator<Item = (usize, &Location)> {
        let row = self.row(cell).iter().enumerate();
        row.filter_map(|(host, location)| Some((host, location.as_ref()?)))
    }
}

/// What the hosts of a cell are compared with. Figures are of natural logarithms.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Reference {
    /// Number of hosts that measured the cell.
    pub hosts: usize,
    /// Mean of the hosts that do not deviate.
    pub centre: f64,
    /// Standard error of the centre.
    pub centre_error: f64,
    /// Standard deviation of the hosts that do not deviate, [`MIN_SCALE`] or more.
    pub scale: f64,
    /// Threshold on |z|.
    pub critical: f64,
    /// Threshold on |z| for hosts that are named because of another cell.
    pub critical_of_named: f64,
    /// Number of hosts between [`FAR`] and `critical`.
    pub far_hosts: usize,
    /// Standard deviation of one sample around its host's median, the median over the hosts; `None` where hosts have one sample each.
    pub sample_deviation: Option<f64>,
    /// Standard error of a host's median, the median over the hosts.
    pub usual_error: Option<f64>,
}

/// A host that deviates in a cell.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Deviation {
    pub host: usize,
    pub cell: usize,
    /// Distance from the centre of the group, in scales; positive where the host's value is larger.
    pub z: f64,
    /// Value of the host over that of the group's centre.
    pub ratio: f64,
    /// Lower end of the 95 % interval of the ratio.
    pub low: f64,
    /// Upper end of it.
    pub high: f64,
}

/// The hosts of a group that deviate.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Outliers {
    /// Probability that a group of alike hosts has a deviation at all, at most.
    pub false_alarms: f64,
    /// Threshold on |z|, the largest of all cells; cells with the same number of hosts have the same.
    pub critical: f64,
    /// Of each cell; `None` for a cell with fewer than [`MIN_HOSTS`] hosts, which is not judged.
    pub references: Vec<Option<Reference>>,
    /// By host, then by cell.
    pub deviations: Vec<Deviation>,
}

/// Why a group is not judged.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
pub enum CannotJudge {
    #[error("{0} hosts are too few to compare: it takes {MIN_HOSTS} or more")]
    TooFewHosts(usize),
    #[error(
        "the rate of false alarms is {0}, which is not from {MIN_FALSE_ALARMS} to {MAX_FALSE_ALARMS}"
    )]
    FalseAlarms(f64),
}

/// [`outliers_with`] thresholds of its own.
///
/// # Errors
/// Those of [`outliers_with`].
pub fn outliers(values: &Values, false_alarms: f64, seed: u64) -> Result<Outliers, CannotJudge> {
    outliers_with(values, false_alarms, &mut Thresholds::new(seed))
}

/// Judges a group. `false_alarms`: the probability that any host of a group of alike hosts is named. With several metrics, give each
/// the rate divided by their number.
///
/// # Errors
/// No cell has [`MIN_HOSTS`] hosts, or the rate is not from [`MIN_FALSE_ALARMS`] to [`MAX_FALSE_ALARMS`].
pub fn outliers_with(
    values: &Values,
    false_alarms: f64,
    thresholds: &mut Thresholds,
) -> Result<Outliers, CannotJudge> {
    if !(MIN_FALSE_ALARMS..=MAX_FALSE_ALARMS).contains(&false_alarms) {
        return Err(CannotJudge::FalseAlarms(false_alarms));
    }
    let references = references(values, false_alarms, thresholds)?;
    let mut quantiles = Quantiles::default();
    let mut deviations = Vec::new();
    for (cell, reference) in references.iter().enumerate() {
        if let Some(reference) = reference {
            deviations.extend(beyond(values, cell, reference, &mut quantiles));
        }
    }
    let is_named = |it: &&Deviation| {
        let (reference, location) = (references[it.cell].as_ref(), values.get(it.cell, it.host));
        reference
            .zip(location)
            .is_some_and(|(reference, location)| {
                let distance = location.log_median - reference.centre;
                distance.abs() > reference.critical * reference.scale_to_name(location)
            })
    };
    let named: BTreeSet<usize> = deviations
        .iter()
        .filter(is_named)
        .map(|it| it.host)
        .collect();
    deviations.retain(|it| named.contains(&it.host));
    deviations.sort_by_key(|it| (it.host, it.cell));
    let critical = references.iter().flatten().map(|it| it.critical);
    Ok(Outliers {
        false_alarms,
        critical: critical.fold(0.0, f64::max),
        references,
        deviations,
    })
}

/// The hosts of a cell that deviate if they are named.
fn beyond<'a>(
    values: &'a Values,
    cell: usize,
    reference: &'a Reference,
    quantiles: &'a mut Quantiles,
) -> impl Iterator<Item = Deviation> + 'a {
    values.measured(cell).filter_map(move |(host, location)| {
        let distance = location.log_median - reference.centre;
        // The host's own scale is not less, so most hosts need not have theirs worked out.
        if distance.abs() <= reference.critical_of_named * reference.scale {
            return None;
        }
        let z = distance / reference.scale_of_named(location, quantiles);
        let variance = reference.location_variance(location);
        let half = quantiles.half_interval(variance.plus(reference.centre_variance()));
        let is_beyond = z.abs() > reference.critical_of_named && distance.abs() > half;
        is_beyond.then(|| Deviation {
            host,
            cell,
            z,
            ratio: ratio(distance),
            low: ratio(distance - half),
            high: ratio(distance + half),
        })
    })
}

fn ratio(log: f64) -> f64 {
    log.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
}

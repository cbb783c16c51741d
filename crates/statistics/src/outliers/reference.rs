//! What the hosts of each cell are compared with: centre, scale, threshold, and the noise of one sample.

use super::critical::{self, Critical, Pattern, SIMULATED_BELOW, Thresholds};
use super::location::{EQUAL, Location, deviation_of_median, median};
use super::spread::{Column, Spread, spreads};
use super::{CannotJudge, FAR, MAX_LOG_RATIO, MIN_HOSTS, MIN_SCALE, Reference, Values};

/// The reference of each cell; `None` for cells with fewer than [`MIN_HOSTS`] hosts.
pub(super) fn references(
    values: &Values,
    false_alarms: f64,
    thresholds: &mut Thresholds,
) -> Result<Vec<Option<Reference>>, CannotJudge> {
    let counts: Vec<usize> = (0..values.cells())
        .map(|cell| values.measured(cell).count())
        .collect();
    let cells: Vec<usize> = (0..counts.len())
        .filter(|cell| counts[*cell] >= MIN_HOSTS)
        .collect();
    if cells.is_empty() {
        let most = counts.into_iter().max();
        return Err(CannotJudge::TooFewHosts(most.unwrap_or(0)));
    }
    // Cells of many hosts are judged by themselves, those of few together.
    let is_few = |cell: &usize| counts[*cell] < SIMULATED_BELOW;
    let few: Vec<usize> = cells.iter().copied().filter(is_few).collect();
    let each = false_alarms / cells.len() as f64;
    let of_few =
        (!few.is_empty()).then(|| thresholds.of(pattern(values, &few), each * few.len() as f64));
    let (columns, noises): (Vec<Column>, Vec<Noise>) =
        cells.iter().map(|cell| column(values, *cell)).unzip();
    let mut references = vec![None; counts.len()];
    for (place, spread) in spreads(&columns).into_iter().enumerate() {
        let cell = cells[place];
        let critical = match of_few {
            Some(critical) if is_few(&cell) => critical,
            _ => critical::of_many(counts[cell], each),
        };
        references[cell] = Some(reference(&spread, &columns[place], critical, noises[place]));
    }
    Ok(references)
}

fn reference(spread: &Spread, column: &Column, critical: Critical, noise: Noise) -> Reference {
    let is_far = |value: &&f64| {
        let z = (*value - spread.centre).abs() / spread.scale;
        z > FAR && z <= critical.any
    };
    Reference {
        hosts: column.sorted.len(),
        centre: spread.centre,
        centre_error: spread.scale / (spread.hosts as f64).sqrt(),
        scale: spread.scale,
        critical: critical.any,
        critical_of_named: critical.named,
        far_hosts: column.sorted.iter().filter(is_far).count(),
        sample_deviation: noise.sample_deviation,
        usual_error: noise.usual_error,
    }
}

/// Of the measurement of a cell, where hosts have more than one sample.
#[derive(Clone, Copy)]
struct Noise {
    /// Standard deviation of a sample around its host's median, median over the hosts.
    sample_deviation: Option<f64>,
    /// Standard error of a host's location, likewise.
    usual_error: Option<f64>,
}

/// The values of a cell with the least scale, and their noise.
fn column(values: &Values, cell: usize) -> (Column, Noise) {
    let locations = || values.measured(cell).map(|(_, location)| location);
    let mut sorted: Vec<f64> = locations().map(|it| it.log_median).collect();
    sorted.sort_by(f64::total_cmp);
    let sample_deviation = sorted_median(
        locations().filter_map(|it| Some(it.error()? / deviation_of_median(it.samples))),
    );
    let usual_error = sample_deviation.and_then(|deviation| {
        sorted_median(locations().map(|it| deviation * deviation_of_median(it.samples)))
    });
    let step = step(values, &sorted, locations());
    let min_scale = [Some(MIN_SCALE), usual_error, step.map(|step| step / 2.0)];
    let min_scale = min_scale.into_iter().flatten().fold(0.0, f64::max);
    let noise = Noise {
        sample_deviation,
        usual_error,
    };
    (Column { sorted, min_scale }, noise)
}

fn sorted_median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    median(&sorted)
}

/// The resolution of a cell's logarithms: as given, or the smallest step within a host's samples where most hosts have equal samples, or
/// that between values that several hosts share where most hosts do. Measurements that are not rounded are not equal; a few can be
/// by chance.
fn step<'a>(
    values: &Values,
    sorted: &[f64],
    locations: impl Iterator<Item = &'a Location>,
) -> Option<f64> {
    if let Some(resolution) = values.resolution {
        return median(sorted).map(|middle| (resolution / middle.exp()).ln_1p().min(MAX_LOG_RATIO));
    }
    // Without a step where all are equal.
    let has_equal = |it: &&Location| it.step.is_some() || it.standard_error == Some(0.0);
    let with_equal: Vec<&Location> = locations.filter(has_equal).collect();
    let is_rounded = 2 * with_equal.len() > sorted.len();
    let steps = with_equal.iter().filter_map(|it| it.step);
    let within = steps.min_by(f64::total_cmp).filter(|_| is_rounded);
    within.or_else(|| {
        let shared = || {
            sorted
                .chunk_by(|a, b| b - a < EQUAL)
                .filter(|it| it.len() > 1)
        };
        let is_rounded = 2 * shared().map(<[f64]>::len).sum::<usize>() > sorted.len();
        let values: Vec<f64> = shared().map(|it| it[0]).collect();
        let gaps = values.windows(2).map(|pair| pair[1] - pair[0]);
        gaps.min_by(f64::total_cmp).filter(|_| is_rounded)
    })
}

/// Which hosts the cells have, in an order that does not depend on that of the hosts.
fn pattern(values: &Values, cells: &[usize]) -> Pattern {
    let mut has: Vec<Vec<bool>> = (0..values.hosts())
        .map(|host| {
            let has = |cell: &usize| values.get(*cell, host).is_some();
            cells.iter().map(has).collect()
        })
        .filter(|has: &Vec<bool>| has.contains(&true))
        .collect();
    has.sort_unstable();
    let of_cell = |place: usize| (0..has.len()).filter(|host| has[*host][place]).collect();
    Pattern {
        hosts: has.len(),
        cells: (0..cells.len()).map(of_cell).collect(),
    }
}

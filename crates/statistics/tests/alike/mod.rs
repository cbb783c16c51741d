//! Groups of hosts that are alike except for what is planted. Used by tests and by the example `outlier_rates`.

use nearfar_statistics::outliers::{Location, Outliers, Thresholds, Values, outliers_with};

/// The rate of false alarms in all simulations.
pub const FALSE_ALARMS: f64 = 0.05;

/// Distributions with mean 0 and standard deviation 1.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Shape {
    Normal,
    /// Student's with 5 degrees of freedom.
    HeavyTails,
    /// Exponential.
    Skewed,
}

/// How hosts of a group differ and how noisy their samples are.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    pub hosts: usize,
    pub cells: usize,
    pub samples: usize,
    /// Standard deviation of the logarithm of a sample around its host's.
    pub noise: f64,
    pub noise_shape: Shape,
    /// Standard deviation of the hosts' logarithms around that of the group.
    pub between: f64,
    pub between_shape: Shape,
    /// The noise of a host is that of the group times or over up to this.
    pub noise_range: f64,
    /// Noise and differences of the last cell over those of the others.
    pub last_cell: f64,
    /// Whether a host differs by the same in all cells.
    pub is_shared: bool,
}

impl Group {
    pub fn new(hosts: usize, cells: usize) -> Self {
        Self {
            hosts,
            cells,
            samples: 5,
            noise: 0.01,
            noise_shape: Shape::Normal,
            noise_range: 1.0,
            last_cell: 1.0,
            between: 0.003,
            between_shape: Shape::Normal,
            is_shared: false,
        }
    }

    /// Draws the values of a group whose centres are 100 in each cell, and what the logarithms of each host and cell are relative to
    /// that. `planted`: what is added to those, by host and cell.
    pub fn draw(
        &self,
        random: &mut Random,
        planted: impl Fn(usize, usize) -> f64,
    ) -> (Values, Vec<f64>) {
        let mut truths = vec![0.0; self.hosts * self.cells];
        let effects: Vec<f64> = (0..self.hosts)
            .map(|_| random.of(self.between_shape))
            .collect();
        let noises: Vec<f64> = (0..self.hosts)
            .map(|_| self.noise * self.noise_range.powf(2.0 * random.unit() - 1.0))
            .collect();
        let mut samples = Vec::with_capacity(self.samples);
        let values = Values::from_fn(self.cells, self.hosts, |cell, host| {
            let effect = match self.is_shared {
                true => effects[host],
                false => random.of(self.between_shape),
            };
            let size = if cell + 1 == self.cells {
                self.last_cell
            } else {
                1.0
            };
            let truth = size * self.between * effect + planted(host, cell);
            truths[cell * self.hosts + host] = truth;
            samples.clear();
            let sample =
                |_| 100.0 * (truth + size * noises[host] * random.of(self.noise_shape)).exp();
            samples.extend((0..self.samples).map(sample));
            Location::of(&samples)
        });
        (values, truths)
    }

    /// The share of groups without planted deviations in which a host is named.
    pub fn false_alarms(&self, trials: usize, seed: u64, thresholds: &mut Thresholds) -> f64 {
        let mut random = Random::new(seed);
        let named = (0..trials).filter(|_| {
            let (values, _) = self.draw(&mut random, |_, _| 0.0);
            !judge(&values, thresholds).deviations.is_empty()
        });
        named.count() as f64 / trials as f64
    }

    /// What becomes of planted deviations: the `deviating` first hosts are off by `shift` in their first `cells` cells.
    pub fn power(&self, planted: Planted, trials: usize, seed: u64) -> Power {
        let mut random = Random::new(seed);
        let mut power = Power::default();
        let is_planted = |host, cell| host < planted.hosts && cell < planted.cells;
        let mut thresholds = Thresholds::new(seed);
        for _ in 0..trials {
            let shift = |host, cell| match is_planted(host, cell) {
                true => planted.log_of(host),
                false => 0.0,
            };
            let (values, truths) = self.draw(&mut random, shift);
            let found = judge(&values, &mut thresholds).deviations;
            let hits = found.iter().filter(|it| is_planted(it.host, it.cell));
            power.found += hits.clone().count();
            power.all_found += usize::from(hits.clone().count() == planted.hosts * planted.cells);
            power.other_hosts += usize::from(found.iter().any(|it| it.host >= planted.hosts));
            let has_other_cell = |host: &usize| {
                found
                    .iter()
                    .any(|it| it.host == *host && !is_planted(*host, it.cell))
            };
            power.other_cells += (0..planted.hosts).filter(has_other_cell).count();
            for it in hits {
                let truth = truths[it.cell * self.hosts + it.host].exp();
                power.covered += usize::from(it.low <= truth && truth <= it.high);
            }
        }
        power.planted = planted.hosts * planted.cells * trials;
        power.trials = trials;
        power.planted_hosts = planted.hosts * trials;
        power
    }
}

/// Deviations that a simulation adds.
#[derive(Clone, Copy, Debug)]
pub struct Planted {
    pub hosts: usize,
    pub cells: usize,
    /// Their ratio.
    pub ratio: f64,
    /// Whether each second host deviates in the other direction.
    pub is_two_sided: bool,
}

impl Planted {
    fn log_of(&self, host: usize) -> f64 {
        match self.is_two_sided && host % 2 == 1 {
            true => -self.ratio.ln(),
            false => self.ratio.ln(),
        }
    }
}

/// What became of them.
#[derive(Clone, Copy, Default, Debug)]
pub struct Power {
    pub trials: usize,
    pub planted: usize,
    pub found: usize,
    /// Groups in which each was found.
    pub all_found: usize,
    /// Groups in which a host was named in which nothing was planted.
    pub other_hosts: usize,
    pub planted_hosts: usize,
    /// Those of them with a deviation in a cell in which nothing was planted.
    pub other_cells: usize,
    /// Found ones whose interval holds the truth.
    pub covered: usize,
}

impl Power {
    pub fn found(&self) -> f64 {
        self.found as f64 / self.planted as f64
    }

    pub fn all_found(&self) -> f64 {
        self.all_found as f64 / self.trials as f64
    }

    pub fn other_hosts(&self) -> f64 {
        self.other_hosts as f64 / self.trials as f64
    }

    pub fn other_cells(&self) -> f64 {
        self.other_cells as f64 / self.planted_hosts as f64
    }

    pub fn coverage(&self) -> f64 {
        self.covered as f64 / self.found as f64
    }
}

pub fn judge(values: &Values, thresholds: &mut Thresholds) -> Outliers {
    outliers_with(values, FALSE_ALARMS, thresholds).unwrap()
}

/// A stream of random numbers that is the same on each run.
pub struct Random(fastrand::Rng);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// From 0 to 1.
    pub fn unit(&mut self) -> f64 {
        self.0.f64()
    }

    /// Standard normal (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.0.f64()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.0.f64()).cos()
    }

    pub fn of(&mut self, shape: Shape) -> f64 {
        match shape {
            Shape::Normal => self.normal(),
            Shape::HeavyTails => {
                let squares: f64 = (0..5).map(|_| self.normal().powi(2)).sum();
                // The variance of Student's distribution is 5/3.
                self.normal() / (squares / 5.0 * (5.0f64 / 3.0)).sqrt()
            }
            Shape::Skewed => -(1.0 - self.0.f64()).ln() - 1.0,
        }
    }
}

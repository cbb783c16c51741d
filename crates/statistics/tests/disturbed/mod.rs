//! Runs of a quick measurement on a machine whose load comes and goes.

use nearfar_statistics::Summary;
use nearfar_statistics::compare::{
    Better, Compared, DEFAULT_MARGIN, Design, Question, Verdict, compare,
};

use crate::random::Random;

/// Samples of a run, as `bench latency` takes them: blocks that begin evenly over its time.
const BLOCKS: usize = 8;
const SAMPLES_OF_A_BLOCK: usize = 5;
/// From a sample to the next one of its block, in seconds.
const SAMPLE_S: f64 = 0.017;
/// Noise of a sample, and what is common to all samples of a run: as logarithms.
const NOISE: f64 = 0.02;
const OF_RUN: f64 = 0.005;

/// A load that comes and goes: how long it stays and how long it is away on average, in seconds, and how many times as long a sample
/// takes meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub on_s: f64,
    pub off_s: f64,
    pub slowness: f64,
}

/// What is compared with itself or, `ratio` times as slow, with something else.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    pub load: Load,
    /// Seconds over which a run is spread.
    pub run_s: f64,
    pub runs: usize,
    pub ratio: f64,
}

impl Load {
    /// When it comes and goes within a time: the ends of its states, the first of which is on or off as it says.
    fn changes(&self, seconds: f64, random: &mut Random) -> (bool, Vec<f64>) {
        let starts_on = random.unit() < self.on_s / (self.on_s + self.off_s);
        let (mut is_on, mut at, mut ends) = (starts_on, 0.0, Vec::new());
        while at < seconds {
            let mean = if is_on { self.on_s } else { self.off_s };
            at -= mean * random.unit().max(1e-12).ln();
            ends.push(at);
            is_on = !is_on;
        }
        (starts_on, ends)
    }
}

impl Trial {
    /// The medians of a run's blocks.
    fn run(&self, level: f64, random: &mut Random) -> Vec<f64> {
        let block_s = self.run_s / BLOCKS as f64;
        let (starts_on, ends) = self.load.changes(self.run_s + block_s, random);
        let of_run = level * (OF_RUN * random.normal()).exp();
        let mut sample = |at: f64| {
            let changes = ends.iter().filter(|&&end| end <= at).count();
            let is_on = starts_on == (changes % 2 == 0);
            let slow = if is_on { self.load.slowness } else { 1.0 };
            of_run * slow * (NOISE * random.normal()).exp()
        };
        let block = |block: usize| {
            let begun = block as f64 * block_s;
            let samples: Vec<f64> = (0..SAMPLES_OF_A_BLOCK)
                .map(|index| sample(begun + index as f64 * SAMPLE_S))
                .collect();
            Summary::of(&samples).unwrap().median
        };
        (0..BLOCKS).map(block).collect()
    }

    pub fn compared(&self, random: &mut Random) -> Compared {
        let mut side = |level| (0..self.runs).map(|_| self.run(level, random)).collect();
        let question = Question {
            a: side(1.0),
            b: side(self.ratio),
            design: Design::Independent,
            better: Some(Better::Lower),
        };
        let found = compare(&[question], DEFAULT_MARGIN).remove(0).unwrap();
        match self.runs {
            1 => found.within_runs(),
            _ => found,
        }
    }

    /// The share of so many comparisons that call B better or worse.
    pub fn judged(&self, trials: usize, random: &mut Random) -> f64 {
        let is_judged = |_: &usize| {
            let verdict = self.compared(random).verdict;
            matches!(verdict, Verdict::Better | Verdict::Worse)
        };
        (0..trials).filter(is_judged).count() as f64 / trials as f64
    }

    /// The share of so many comparisons of one run a side whose interval, which holds within the two runs, leaves out the truth.
    pub fn beyond_two_runs(&self, trials: usize, random: &mut Random) -> f64 {
        let is_wrong = |_: &usize| {
            let interval = self.compared(random).shift.confidence;
            interval.is_some_and(|it| it.low > self.ratio || it.high < self.ratio)
        };
        (0..trials).filter(is_wrong).count() as f64 / trials as f64
    }
}

/// Loads of which a change lasts a part of a run, a run, and several.
pub const LOADS: [Load; 3] = [
    Load {
        on_s: 0.5,
        off_s: 1.5,
        slowness: 1.2,
    },
    Load {
        on_s: 2.0,
        off_s: 4.0,
        slowness: 1.2,
    },
    Load {
        on_s: 10.0,
        off_s: 20.0,
        slowness: 1.3,
    },
];

//! Two sides measured in turn, and by how much ours differs.

use std::error::Error;
use std::thread::sleep;
use std::time::Duration;

use super::Spread;
use nearfar_statistics::compare::{Better, DEFAULT_MARGIN, Question, compare};

/// Operations per second, pair by pair.
pub struct Pairs {
    ours: Vec<f64>,
    theirs: Vec<f64>,
}

type Measured = Result<f64, Box<dyn Error>>;

impl Pairs {
    /// Which side is first alternates. Both begin after the same `pause`.
    pub fn take(
        rounds: u32,
        pause: Duration,
        ours: impl Fn() -> Measured,
        theirs: impl Fn() -> Measured,
    ) -> Result<Self, Box<dyn Error>> {
        let mut pairs = Self {
            ours: Vec::new(),
            theirs: Vec::new(),
        };
        for round in 0..rounds {
            for turn in 0..2 {
                sleep(pause);
                match (round + turn) % 2 {
                    0 => pairs.ours.push(ours()?),
                    _ => pairs.theirs.push(theirs()?),
                }
            }
        }
        Ok(pairs)
    }

    /// How many times as many theirs did as ours, pair by pair.
    pub fn lost(&self) -> Spread {
        let pairs = self.theirs.iter().zip(&self.ours);
        Spread::of(pairs.map(|(theirs, ours)| theirs / ours))
    }

    /// `-0.30 % (-1.20 to +0.55), p = 0.41; medians 1200 and 1204`: the median of the pairwise ratios with its 95 % interval,
    /// ours against theirs.
    pub fn change(&self) -> Result<String, Box<dyn Error>> {
        let pair = |values: &[f64]| (0u32..).zip(values.iter().copied()).collect();
        let (theirs, ours) = (pair(&self.theirs), pair(&self.ours));
        let question = Question::paired(&theirs, &ours, Some(Better::Higher));
        let compared = compare(&[question], DEFAULT_MARGIN).pop().flatten();
        let compared = compared.ok_or("there are no pairs")?;
        let change = compared.change.ok_or("they did nothing")?;
        let percent = |value: f64| format!("{:+.2} %", 100.0 * value);
        let interval = change.confidence;
        let interval = interval.map(|it| format!(" ({} to {})", percent(it.low), percent(it.high)));
        Ok(format!(
            "{}{}, p = {:.2}; medians {:.0} and {:.0}",
            percent(change.value),
            interval.unwrap_or_default(),
            compared.p,
            compared.b.median,
            compared.a.median
        ))
    }
}

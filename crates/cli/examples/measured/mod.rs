//! What the benchmarks of whole programs share: medians with their range, and where the built programs are.
#![allow(dead_code, reason = "not every benchmark uses all of it")]

pub mod pairs;
pub mod process;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Figures of one kind: their median, and the lowest and highest.
pub struct Spread {
    /// The middle one, the upper of two.
    pub median: f64,
    lowest: f64,
    highest: f64,
}

impl Spread {
    /// Of at least one figure.
    pub fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<_> = values.collect();
        values.sort_by(f64::total_cmp);
        let last = values.len() - 1;
        Self {
            median: values[values.len() / 2],
            lowest: values[0],
            highest: values[last],
        }
    }

    /// `39.7 ms (38.1 to 46.8)`.
    pub fn with_unit(&self, unit: impl fmt::Display) -> String {
        let digits = if self.median < 1.0 { 3 } else { 1 };
        let Self {
            median,
            lowest,
            highest,
        } = self;
        format!("{median:.digits$} {unit} ({lowest:.digits$} to {highest:.digits$})")
    }
}

/// Prints a line that `make bench` collects: what of ours is measured by what of others, the figure, and whether its median is at most
/// the goal.
pub fn print_goal(what: &str, figure: &Spread, unit: &str, at_most: f64) {
    let met = if figure.median <= at_most {
        "met"
    } else {
        "missed"
    };
    println!(
        "goal: {what}: {}, at most {at_most}: {met}",
        figure.with_unit(unit)
    );
}

/// The file that cargo put next to this example's folder.
pub fn beside_us(name: &str) -> io::Result<PathBuf> {
    let us = std::env::current_exe()?;
    let target = us
        .parent()
        .and_then(Path::parent)
        .ok_or(io::ErrorKind::NotFound)?;
    let binary = target.join(name);
    match binary.exists() {
        true => Ok(binary),
        false => Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("{} is not built", binary.display()),
        )),
    }
}

/// A program that is measured in turn with others, run by run; `T` is what a run costs.
pub struct Contender<'a, T> {
    /// What it is called in the output.
    pub name: &'static str,
    /// What its runs cost; nothing if it was left out.
    pub costs: Vec<T>,
    run: Box<dyn Fn() -> io::Result<T> + 'a>,
}

impl<'a, T> Contender<'a, T> {
    /// A program that `run` runs once.
    pub fn new(name: &'static str, run: impl Fn() -> io::Result<T> + 'a) -> Self {
        Self {
            name,
            costs: Vec::new(),
            run: Box::new(run),
        }
    }

    /// One run; a failed one is repeated once.
    fn run(&self, say: &mut dyn FnMut(String)) -> io::Result<T> {
        (self.run)().or_else(|error| {
            say(format!("repeated: {}: {error}", self.name.trim()));
            (self.run)()
        })
    }
}

/// Runs all in turn, once to warm up and then `rounds` times. One that fails twice in a row is left out from then on, with its message,
/// and so are its costs: rounds of all have to match.
pub fn race<T>(contenders: &mut [Contender<'_, T>], rounds: usize, say: &mut dyn FnMut(String)) {
    let mut left_out = vec![false; contenders.len()];
    for round in 0..=rounds {
        for (contender, left_out) in contenders
            .iter_mut()
            .zip(&mut left_out)
            .filter(|(_, left_out)| !**left_out)
        {
            match contender.run(say) {
                Ok(cost) if round > 0 => contender.costs.push(cost),
                Ok(_) => {}
                Err(error) => {
                    say(format!("left out: {}: {error}", contender.name.trim()));
                    contender.costs.clear();
                    *left_out = true;
                }
            }
        }
    }
}

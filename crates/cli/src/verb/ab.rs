//! `nearfar ab`: the same command under A and under B.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use clap::Args;
use nearfar_lab::LabError;
use nearfar_lab::cache::Cache;
use nearfar_lab::guest::{Exec, Input, PreparedGuest, Signals, Streams};
use nearfar_lab::request::GuestRequest;
use nearfar_report::ab::{Comparison, Run, Selection, Side};

use crate::args::{Colour, Format, FormatArgs};
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::signals;
use crate::verb::lab::guest_args::{GuestArgs, booted, failure};

/// Run a command in two guests that differ in one thing, in turns, and show the answers side by side
#[derive(Args)]
#[command(
    after_long_help = "Each run starts a fresh guest. What the command prints is compared value by value where it is \
                       JSON, line by line otherwise.\n\nExamples:\n  \
                       nearfar ab --a kernel=6.1 --b kernel=6.12 --machine powerpc-case1 -- nearfar topo\n  \
                       nearfar ab --a append=numa_balancing=disable --b append=numa_balancing=enable --runs 5 -- ./job\n  \
                       nearfar ab --a delay=off --b delay=auto --value 'pairs[*].median_ns' -- nearfar bench latency \
                       --format json"
)]
pub struct Ab {
    /// What side A has: machine=, kernel=, append=, delay=, arch= or scale= (may be repeated)
    #[arg(long, value_name = "KEY=VALUE", required = true)]
    a: Vec<String>,
    /// What side B has
    #[arg(long, value_name = "KEY=VALUE", required = true)]
    b: Vec<String>,
    /// Runs of each side, in the order A B B A A B ...
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Show this value of JSON answers, also when it is equal; * stands for any name (may be repeated)
    #[arg(long, value_name = "PATH")]
    value: Vec<String>,
    #[command(flatten)]
    guest: GuestArgs,
    #[command(flatten)]
    format: FormatArgs,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Ab {
    /// Runs both sides in turns and compares.
    pub fn run(self, colour: Colour) -> Outcome {
        let cancel = signals::cancel_flag();
        // Both sides are understood before either is prepared: a slip in the second is then not hidden by a kernel that the
        // first lacks.
        let ((mut a, guest_a), (mut b, guest_b)) =
            (self.side("--a", &self.a)?, self.side("--b", &self.b)?);
        let (request_a, request_b) = (guest_a.request()?, guest_b.request()?);
        let (prepared_a, prepared_b) = (prepare(&mut a, &request_a)?, prepare(&mut b, &request_b)?);
        let notes_a = &prepared_a.design.notes;
        let notes_b = prepared_b.design.notes.iter();
        for note in notes_a
            .iter()
            .chain(notes_b.filter(|note| !notes_a.contains(note)))
        {
            output::say!("note: {note}");
        }
        for (number, side_b) in turns(self.runs).into_iter().enumerate() {
            let (side, prepared) = if side_b {
                (&mut b, &prepared_b)
            } else {
                (&mut a, &prepared_a)
            };
            output::say!("run {} of {}: {}", number + 1, 2 * self.runs, side.name());
            side.runs.push(self.once(prepared, &cancel)?);
        }
        let comparison = Comparison::of(self.command, a, b, &Selection::new(self.value));
        output::print(&match self.format.format {
            Format::Json => output::json("ab/1", None, &comparison)?,
            Format::Table => {
                nearfar_report::ab::document(&comparison).to_text(&output::style(colour))
            }
        })
    }

    /// One side: what it has, and the guest that is asked for with it.
    fn side(&self, option: &str, words: &[String]) -> Result<(Side, GuestArgs), Failure> {
        let mut settings = BTreeMap::<String, String>::new();
        let mut guest = self.guest.clone();
        for word in words {
            let set = |(key, value)| {
                guest
                    .clone()
                    .with(key, value)
                    .map(|guest| (guest, key, value))
            };
            let (changed, key, value) = word
                .split_once('=')
                .ok_or_else(|| format!("{word}: KEY=VALUE is wanted"))
                .and_then(set)
                .map_err(|problem| Failure::input(anyhow::anyhow!("{option} {problem}")))?;
            guest = changed;
            settings
                .entry(key.to_owned())
                .and_modify(|all| *all = format!("{all} {value}"))
                .or_insert(value.to_owned());
        }
        Ok((
            Side {
                settings,
                emulation: None,
                runs: Vec::new(),
            },
            guest,
        ))
    }

    /// Boots a guest and runs the command in it once.
    fn once(&self, prepared: &PreparedGuest, cancel: &AtomicBool) -> Result<Run, Failure> {
        let mut guest = booted(prepared, cancel).map_err(failure)?;
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let streams = Streams {
            input: Input::Nothing,
            output: Box::new(&mut stdout),
            errors: Box::new(&mut stderr),
        };
        let signals = Signals::of_process().map_err(failure)?;
        let start = Instant::now();
        let exit = guest
            .exec(&Exec::new(&self.command), streams, &signals)
            .map_err(failure)?;
        let elapsed_s = start.elapsed().as_secs_f64();
        guest.power_off();
        // Ctrl-C went to the command in the guest; whatever it made of that, no further run is wanted.
        if cancel.load(Ordering::Relaxed) {
            return Err(failure(LabError::Interrupted));
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Run {
            elapsed_s,
            exit_code: exit.code,
            stdout: text(&stdout),
            stderr: text(&stderr),
        })
    }
}

/// What a side's guests are made of.
fn prepare(side: &mut Side, request: &GuestRequest) -> Result<PreparedGuest, Failure> {
    let prepared = Cache::of_user()
        .and_then(|cache| request.prepare(&cache))
        .map_err(failure)?;
    side.emulation = Some(prepared.emulation());
    Ok(prepared)
}

/// Whose turn it is, `true` for B: A B B A A B B A, so that a drift of the host hits both sides alike.
fn turns(runs: u32) -> Vec<bool> {
    (0..runs)
        .flat_map(|round| {
            if round % 2 == 0 {
                [false, true]
            } else {
                [true, false]
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn both_sides_get_as_many_runs_and_as_many_first_turns() {
        let turns = super::turns(4);
        assert_eq!(turns, [false, true, true, false, false, true, true, false]);
    }
}

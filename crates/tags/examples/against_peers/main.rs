//! Time of `Auto` against other allocators of tags, all measured in turns in one run.
//!
//! ```text
//! cargo run --release -p nearfar-tags --example against_peers -- --regime plenty --threads 1,2
//! ```
//!
//! A ratio is that of two measurements of the same round, so that a machine whose speed drifts does not favour one side; printed are the
//! median of the rounds' ratios, the lowest and the highest. Lower is better.

mod contestants;
mod dpdk;
mod loops;
mod peers;
mod regimes;
mod ring;
mod table;

use std::io;
use std::time::Duration;

use clap::{Parser, ValueEnum};

use contestants::Kind;
use regimes::{Cell, Found, Regime, measure};
use table::Row;

/// Measures allocators of tags against each other
#[derive(Parser)]
struct Arguments {
    /// Measurements of each contestant in each cell
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Length of a measurement; of fairness, 25 times as long
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..))]
    milliseconds: u64,
    #[arg(long, value_enum, value_delimiter = ',')]
    regime: Vec<Regime>,
    /// Numbers of threads; cells with others are left out
    #[arg(long, value_delimiter = ',')]
    threads: Vec<usize>,
    /// Measure these only [default: those with a goal and a few others]
    #[arg(long, value_enum, value_delimiter = ',')]
    contestant: Vec<Kind>,
    /// Tags of all regimes but blocking
    #[arg(long, default_value_t = 255, value_parser = clap::value_parser!(u32).range(255..=1 << 14))]
    tags: u32,
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Json,
}

fn main() -> io::Result<()> {
    let arguments = Arguments::parse();
    dpdk::with_static_space()?;
    let is_table = arguments.format == Format::Table;
    let mut skipped = Vec::new();
    let mut rows = Vec::new();
    for cell in arguments.cells() {
        let measured = arguments.in_turns(cell, &mut skipped);
        if is_table {
            table::print_head(cell);
        }
        let auto = measured.iter().find(|(kind, _)| *kind == Kind::Auto);
        let auto = auto.map(|(_, rounds)| rounds.as_slice());
        for (kind, rounds) in measured.iter().filter(|(_, rounds)| !rounds.is_empty()) {
            let row = Row::new(cell, *kind, rounds, auto);
            if is_table {
                table::print(&row);
            }
            rows.push(row);
        }
    }
    if is_table {
        table::print_goals(&rows);
    } else {
        let json =
            serde_json::to_string_pretty(&rows).expect("rows have string keys and finite figures");
        println!("{json}");
    }
    Ok(())
}

impl Arguments {
    fn cells(&self) -> Vec<Cell> {
        let all = Regime::value_variants().iter().flat_map(|regime| {
            let sizes: &[(u32, usize)] = match regime {
                Regime::Plenty | Regime::Saturated => &[
                    (self.tags, 1),
                    (self.tags, 2),
                    (self.tags, 4),
                    (self.tags, 8),
                ],
                Regime::Cross | Regime::Fairness => {
                    &[(self.tags, 2), (self.tags, 4), (self.tags, 8)]
                }
                Regime::Blocking => &[(1, 2), (4, 8), (1, 8)],
            };
            sizes
                .iter()
                .map(|&(tags, threads)| Cell {
                    regime: *regime,
                    tags,
                    threads,
                })
                .collect::<Vec<_>>()
        });
        all.filter(|cell| self.regime.is_empty() || self.regime.contains(&cell.regime))
            .filter(|cell| self.threads.is_empty() || self.threads.contains(&cell.threads))
            .collect()
    }

    /// All rounds of all contestants of a cell; those that cannot be measured have none.
    fn in_turns(&self, cell: Cell, skipped: &mut Vec<Kind>) -> Vec<(Kind, Vec<Found>)> {
        let kinds = match self.contestant.is_empty() {
            true => Kind::usual(cell.regime),
            false => self.contestant.clone(),
        };
        let kinds = kinds.into_iter().filter(|kind| kind.can(cell.regime));
        let mut all: Vec<_> = kinds.map(|kind| (kind, Vec::new())).collect();
        let (rounds, times) = match cell.regime {
            Regime::Fairness => (self.rounds.div_ceil(4), 25),
            _ => (self.rounds, 1),
        };
        let time = Duration::from_millis(self.milliseconds * times);
        for round in 0..rounds {
            let count = all.len();
            for index in 0..count {
                let (kind, found) = &mut all[(index + usize::from(round)) % count];
                if skipped.contains(kind) {
                    continue;
                }
                match one(*kind, cell, time) {
                    Ok(one) => found.extend(one),
                    Err(reason) => {
                        eprintln!("skipped: {reason}");
                        skipped.push(*kind);
                    }
                }
            }
        }
        all
    }
}

/// One measurement of a fresh allocator.
fn one(kind: Kind, cell: Cell, time: Duration) -> Result<Option<Found>, String> {
    let contestant = kind
        .make(cell.tags)
        .map_err(|reason| format!("tools: {reason}"))?;
    measure(contestant.as_ref(), cell, time).map_err(|error| error.to_string())
}

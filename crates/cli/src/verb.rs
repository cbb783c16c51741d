//! One file a verb: its arguments, and which crates answer it.

pub mod apply;
pub mod audit;
pub mod checkup;
pub mod completions;
pub mod history;
pub mod lab;
pub mod man;
pub mod path;
pub mod plan;
pub mod rollback;
pub mod snapshot;
pub mod spread;
pub mod topo;

use crate::args::{Colour, Command, Verb};
use crate::failure::Outcome;

/// Runs what was typed.
pub fn run(command: Command) -> Outcome {
    let colour: Colour = command.color;
    match command.verb {
        Verb::Checkup(verb) => verb.run(colour),
        Verb::Topo(verb) => verb.run(colour),
        Verb::Snapshot(verb) => verb.run(),
        Verb::Audit(verb) => verb.run(colour),
        Verb::Spread(verb) => verb.run(colour),
        Verb::Path(verb) => verb.run(colour),
        Verb::Plan(verb) => verb.run(colour),
        Verb::Apply(verb) => verb.run(colour),
        Verb::Rollback(verb) => verb.run(colour),
        Verb::History(verb) => verb.run(colour),
        Verb::Lab(verb) => verb.run(colour),
        Verb::Completions(verb) => verb.run(),
        Verb::Man(verb) => verb.run(),
    }
}

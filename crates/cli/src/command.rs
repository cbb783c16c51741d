//! What can be typed, and which verb answers it. Help, man pages and completions are generated from these definitions.

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::args::Colour;
use crate::failure::Outcome;
use crate::verb;

/// Shows what is far on a NUMA machine, puts it near and can undo that.
///
/// Each verb that looks at a machine takes --source: by default it is the running system, but a snapshot of another
/// server, hwloc's XML, pasted `numactl -H` text, a description file, a machine of the gallery or a synthetic string
/// serve as well.
#[derive(Parser)]
#[command(name = "nearfar", version, max_term_width = 100, arg_required_else_help = true, propagate_version = true)]
#[command(after_help = "Exit codes: 0 done; 1 an answer you asked to fail on; 2 wrong usage or unreadable input; \
                        3 the system refused.")]
pub struct Command {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
    /// When to use colour; NO_COLOR is honoured.
    #[arg(long, value_enum, default_value_t = Colour::Auto, global = true, value_name = "WHEN")]
    pub color: Colour,
}

/// The verbs.
#[derive(Subcommand)]
pub enum Verb {
    Checkup(verb::checkup::Checkup),
    Topo(verb::topo::Topo),
    Snapshot(verb::snapshot::Snapshot),
    Audit(verb::audit::Audit),
    Spread(verb::spread::Spread),
    Path(verb::path::Path),
    Plan(verb::plan::Plan),
    Apply(verb::apply::Apply),
    Rollback(verb::rollback::Rollback),
    History(verb::history::History),
    Prefer(verb::prefer::Prefer),
    Bench(verb::bench::Bench),
    Trace(verb::trace::Trace),
    Runs(verb::runs::Runs),
    Lab(verb::lab::Lab),
    Ab(verb::ab::Ab),
    Completions(verb::completions::Completions),
    Man(verb::man::Man),
}

/// Runs what was typed.
pub fn run(command: Command) -> Outcome {
    let colour: Colour = command.color;
    verb::lease_guard::recover();
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
        Verb::Prefer(verb) => verb.run(colour),
        Verb::Bench(verb) => verb.run(colour),
        Verb::Trace(verb) => verb.run(colour),
        Verb::Runs(verb) => verb.run(colour),
        Verb::Lab(verb) => verb.run(colour),
        Verb::Ab(verb) => verb.run(colour),
        Verb::Completions(verb) => verb.run(Command::command()),
        Verb::Man(verb) => verb.run(Command::command()),
    }
}

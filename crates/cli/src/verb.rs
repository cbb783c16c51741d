//! What can be typed, and which verb answers it: one file a verb, its arguments, and which crates answer it. Help, man pages and completions are
//! generated from these definitions.

pub mod ab;
pub mod apply;
pub mod audit;
pub mod bench;
pub mod bisect;
pub mod case;
pub mod checkup;
pub mod compare;
pub mod completions;
pub mod exporter;
pub mod fleet;
pub mod lab;
pub mod man;
pub mod path;
pub mod plan;
pub mod prefer;
pub mod rollback;
pub mod runs;
pub mod snapshot;
pub mod spread;
pub mod tasks;
pub mod top;
pub mod topo;
pub mod trace;

use clap::{ArgAction, CommandFactory as _, Parser, Subcommand};

use crate::args::Colour;
use crate::failure::Outcome;

const EXIT_CODES: &str = "Exit codes: 0 done; 1 an answer you asked to fail on; 2 wrong usage or unreadable input; 3 the system refused. \
                          Verbs that run a COMMAND end with its exit code: 128 and the signal's number where a signal ended it, 127 \
                          where there is no such command, 126 where it cannot be executed.";

/// Shows what is far on a NUMA machine, puts it near and can undo that.
///
/// Each verb that reads a machine takes --source: the running system by default, or a snapshot of another server,
/// hwloc's XML, pasted `numactl -H` text, a description file, a machine of the gallery, a synthetic string.
#[derive(Parser)]
#[command(
    name = "nearfar",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    propagate_version = true
)]
#[command(after_help = EXIT_CODES, after_long_help = format!("{EXIT_CODES}\n\nExamples:\n  nearfar checkup\n  nearfar audit\n  \
                             nearfar topo --source kunpeng\n  nearfar lab run --machine two-node -- nearfar topo"))]
pub struct Command {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
    /// When to use colour; NO_COLOR is honoured.
    #[arg(long, value_enum, default_value_t = Colour::Auto, global = true, value_name = "WHEN")]
    pub color: Colour,
    /// Log decisions, writes and refusals to standard error; -vv adds details, -vvv every file read. NEARFAR_LOG
    /// sets the level for each crate (docs/logging.md)
    #[arg(long, short, action = ArgAction::Count, global = true)]
    pub verbose: u8,
}

/// The verbs.
#[derive(Subcommand)]
pub enum Verb {
    Checkup(checkup::Checkup),
    Topo(topo::Topo),
    Snapshot(snapshot::Snapshot),
    Tasks(tasks::Tasks),
    Top(top::Top),
    Exporter(exporter::Exporter),
    Audit(audit::Audit),
    Spread(spread::Spread),
    Path(path::Path),
    Plan(plan::Plan),
    Apply(apply::Apply),
    Rollback(rollback::Rollback),
    Prefer(prefer::Prefer),
    #[command(subcommand)]
    Bench(bench::Bench),
    #[command(subcommand)]
    Trace(trace::Trace),
    #[command(subcommand)]
    Runs(runs::Runs),
    Compare(compare::Compare),
    #[command(subcommand)]
    Lab(lab::Lab),
    Ab(ab::Ab),
    Bisect(bisect::Bisect),
    Case(case::Case),
    #[command(subcommand)]
    Fleet(fleet::Fleet),
    Completions(completions::Completions),
    Man(man::Man),
}

/// The verbs as help lists them: what a reader wants to do, and which verbs do it.
const GROUPS: [(&str, &[&str]); 5] = [
    (
        "Look at a machine",
        &[
            "checkup", "topo", "audit", "tasks", "top", "path", "spread", "snapshot",
        ],
    ),
    (
        "Change it, and undo that",
        &["plan", "apply", "rollback", "prefer"],
    ),
    ("Measure", &["bench", "trace", "runs", "compare"]),
    ("Emulate another machine", &["lab", "ab", "bisect", "case"]),
    ("Many hosts", &["fleet", "exporter"]),
];

/// The definitions of all arguments.
pub fn definition() -> clap::Command {
    let command = Command::command();
    let style = command.get_styles().clone();
    let (head, name) = (style.get_header(), style.get_literal());
    let mut groups = String::new();
    for (group, verbs) in GROUPS {
        groups += &format!("{head}{group}:{head:#}\n");
        for verb in verbs {
            let about = command
                .find_subcommand(verb)
                .and_then(clap::Command::get_about)
                .map(ToString::to_string);
            let about = about.unwrap_or_default();
            groups += &format!("  {name}{verb:10}{name:#} {about}\n");
        }
        groups += "\n";
    }
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}{head}Options:{head:#}\n{{options}}{{after-help}}"
    );
    command.help_template(template)
}

/// Runs what was typed.
pub fn run(command: Command) -> Outcome {
    let colour: Colour = command.color;
    crate::log::start(
        command.verbose,
        matches!(&command.verb, Verb::Prefer(prefer) if prefer.is_service()),
    )?;
    crate::child::recover();
    match command.verb {
        Verb::Checkup(verb) => verb.run(colour),
        Verb::Topo(verb) => verb.run(colour),
        Verb::Snapshot(verb) => verb.run(),
        Verb::Tasks(verb) => verb.run(colour),
        Verb::Top(verb) => verb.run(colour),
        Verb::Exporter(verb) => verb.run(),
        Verb::Audit(verb) => verb.run(colour),
        Verb::Spread(verb) => verb.run(colour),
        Verb::Path(verb) => verb.run(colour),
        Verb::Plan(verb) => verb.run(colour),
        Verb::Apply(verb) => verb.run(colour),
        Verb::Rollback(verb) => verb.run(colour),
        Verb::Prefer(verb) => verb.run(colour),
        Verb::Bench(verb) => verb.run(colour),
        Verb::Trace(verb) => verb.run(colour),
        Verb::Runs(verb) => verb.run(colour),
        Verb::Compare(verb) => verb.run(colour),
        Verb::Lab(verb) => verb.run(colour),
        Verb::Ab(verb) => verb.run(colour),
        Verb::Bisect(verb) => verb.run(colour),
        Verb::Case(verb) => verb.run(colour),
        Verb::Fleet(verb) => verb.run(colour),
        Verb::Completions(verb) => verb.run(),
        Verb::Man(verb) => verb.run(definition()),
    }
}

#[cfg(test)]
#[allow(dead_code, reason = "tests/targets.rs reads the other fields")]
#[path = "../tests/targets/table.rs"]
mod targets;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::targets::{NO_TARGETS, TARGETS};

    /// Each verb without verbs of its own, by its words, and `prefer`, which has both.
    fn verbs(command: &clap::Command, above: &str, found: &mut Vec<(String, clap::Command)>) {
        for verb in command
            .get_subcommands()
            .filter(|verb| verb.get_name() != "help")
        {
            let name = format!("{above} {}", verb.get_name()).trim().to_owned();
            verbs(verb, &name, found);
            if verb
                .get_arguments()
                .any(|argument| !["help", "version", "color"].contains(&argument.get_id().as_str()))
            {
                found.push((name, verb.clone()));
            }
        }
    }

    /// Verbs without `--format`: they write a file, run a command or print text for another program.
    const NO_FORMAT: [&str; 10] = [
        "snapshot",
        "exporter",
        "fleet targets",
        "lab run",
        "lab shell",
        "lab kernels get",
        "lab kernels path",
        "lab kernels source",
        "completions",
        "man",
    ];

    fn all_verbs() -> Vec<(String, clap::Command)> {
        let mut found = Vec::new();
        let mut command = super::definition();
        command.build();
        verbs(&command, "", &mut found);
        found
    }

    #[test]
    fn help_lists_every_verb_in_one_group_and_a_line() {
        let mut command = super::definition();
        let help = command.render_help().to_string();
        let hidden = ["completions", "man", "help"];
        for verb in command.get_subcommands() {
            let name = verb.get_name();
            let start = format!("  {name} ");
            let lines: Vec<&str> = help.lines().filter(|it| it.starts_with(&start)).collect();
            assert_eq!(
                lines.len(),
                usize::from(!hidden.contains(&name)),
                "{name}\n{help}"
            );
            assert!(lines.iter().all(|line| line.len() <= 85), "{lines:?}");
        }
    }

    #[test]
    fn every_verb_has_json_or_nothing_to_say_in_it() {
        let found = all_verbs();
        let has_json = |definition: &clap::Command| {
            let format = definition
                .get_arguments()
                .find(|argument| argument.get_id() == "format");
            format.is_some_and(|format| {
                format
                    .get_possible_values()
                    .iter()
                    .any(|value| value.get_name() == "json")
            })
        };
        let without: BTreeSet<&str> = found
            .iter()
            .filter(|(_, definition)| {
                !definition.has_subcommands() || definition.get_name() == "prefer"
            })
            .filter(|(_, definition)| !definition.is_hide_set() && !has_json(definition))
            .map(|(verb, _)| verb.as_str())
            .collect();
        assert_eq!(without, BTreeSet::from_iter(NO_FORMAT));
    }

    /// Options that every experiment has.
    const OF_EXPERIMENTS: [&str; 8] = [
        "cell", "factor", "label", "no_store", "resume", "samples", "seed", "store",
    ];

    #[test]
    fn no_verb_has_more_options_than_a_reader_of_its_help_takes_in() {
        const MAX_OPTIONS: usize = 20;
        let is_shared = |verb: &str, id: &str| {
            ["help", "version", "color", "verbose"].contains(&id)
                || verb.starts_with("bench ") && OF_EXPERIMENTS.contains(&id)
        };
        for (verb, definition) in all_verbs() {
            let options = definition
                .get_arguments()
                .filter(|it| !it.is_positional() && !it.is_hide_set());
            let own = options
                .filter(|it| !is_shared(&verb, it.get_id().as_str()))
                .count();
            // It has those of guests, runs and the store.
            let most = if ["ab", "bisect"].contains(&verb.as_str()) {
                25
            } else {
                MAX_OPTIONS
            };
            assert!(own <= most, "{verb} has {own} options");
        }
    }

    #[test]
    fn every_argument_with_a_value_is_in_the_table_of_targets_or_names_none() {
        let found = all_verbs();
        let (mut unlisted, mut of_table, mut unused) =
            (Vec::new(), BTreeSet::new(), BTreeSet::from_iter(NO_TARGETS));
        for (verb, definition) in &found {
            for argument in definition
                .get_arguments()
                .filter(|argument| argument.get_action().takes_values())
            {
                let of = [verb.as_str(), argument.get_id().as_str()];
                if TARGETS.iter().any(|target| target.of == of) {
                    of_table.insert(of.map(str::to_owned));
                } else if let Some(known) = NO_TARGETS
                    .iter()
                    .find(|known| **known == of[1] || **known == of.join(" "))
                {
                    unused.remove(known);
                } else {
                    unlisted.push(of.map(str::to_owned));
                }
            }
        }
        assert!(found.len() > 20, "{} verbs", found.len());
        assert_eq!(
            unlisted,
            Vec::<[String; 2]>::new(),
            "is it a target? then tests/targets/table.rs needs a row for it"
        );
        let stale: Vec<_> = TARGETS
            .iter()
            .filter(|target| !of_table.contains(&target.of.map(str::to_owned)))
            .collect();
        assert!(
            stale.is_empty(),
            "no such argument: {:?}",
            stale.iter().map(|target| target.of).collect::<Vec<_>>()
        );
        assert!(unused.is_empty(), "in NO_TARGETS for nothing: {unused:?}");
    }
}

//! A stored run as the text of a mail: what machine, what was run and how to repeat it, what was found, what is not claimed.

use nearfar_bench::registry::EXPERIMENTS;
use nearfar_lab::{repeat, shell};
use nearfar_machine::Emulation;
use nearfar_runs::{RunState, RunTarget};

use super::{Shown, UNREADABLE};
use crate::amount::{count, moment};
use crate::document::{Document, Text};
use crate::style::Style;
use crate::summary::Summary;

/// Columns that a mail shows without wrapping, also when it is quoted.
const MAIL_COLUMNS: usize = 72;

/// The mail: `before`, then the run; `of_experiment` is what its experiment shows of it, `None` for a table a metric. `repeated_by`
/// is a command that repeats the run, in place of the one that follows from what was stored.
pub fn mail(
    before: Document,
    shown: &Shown<'_>,
    of_experiment: Option<Document>,
    repeated_by: Option<String>,
) -> String {
    let mut out = before;
    out.facts(facts(shown));
    let is_derived = repeated_by.is_none();
    let command = repeated_by.or_else(|| command(shown));
    if let Some(command) = &command {
        out.heading("To repeat it", "");
        out.command(command);
    }
    match of_experiment {
        Some(document) => out.append(document),
        None => out.append(super::tables(shown)),
    }
    not_claimed(shown, is_derived && command.is_some(), &mut out);
    let style = Style {
        colour: false,
        width: MAIL_COLUMNS,
    };
    out.to_text(&style)
}

fn facts<'a>(shown: &Shown<'a>) -> impl Iterator<Item = (&'static str, Text)> + use<'a> {
    let (run, detail) = (shown.run, shown.detail);
    let machine = match shown.machine {
        Some(machine) => Summary::of(machine).line(),
        None => UNREADABLE.to_owned(),
    };
    let emulated = run.emulation.as_ref().map(ToString::to_string);
    let kernel = match detail.targets.is_empty() {
        true => format!("Linux {} {}", run.kernel, detail.kernel_version),
        // Those of its targets are named with them.
        false => String::new(),
    };
    let samples = format!(
        "{} of each of {} ({}), nearfar {}",
        count(run.samples_per_cell as usize, "sample"),
        count(detail.plan.len(), "cell"),
        moment(run.started_at_s.max(0.0) as u64),
        run.nearfar
    );
    let facts = [
        ("machine", machine.into()),
        ("emulated", emulated.unwrap_or_default().into()),
        ("kernel", kernel.trim().into()),
        ("experiment", run.title.as_str().into()),
        ("samples", samples.into()),
    ];
    facts.into_iter().chain(super::targets(detail))
}

/// The command that makes a run as this one, in guests as its own; `None` for an experiment that the registry does not have.
fn command(shown: &Shown<'_>) -> Option<String> {
    let mut declarations = EXPERIMENTS.iter().map(|entry| &entry.declaration);
    let declaration = declarations.find(|it| it.name == shown.run.experiment)?;
    let mut words = Vec::new();
    let guest = shown.run.emulation.as_ref().and_then(Emulation::guest);
    let is_in_guest = shown.detail.targets.is_empty() && guest.is_some();
    if let Some(guest) = guest.filter(|_| is_in_guest) {
        words.extend(["nearfar", "lab", "run"].map(str::to_owned));
        let options = repeat::options(guest).into_iter();
        words.extend(options.map(|(key, value)| format!("--{key}={value}")));
        words.extend(["--results=results", "--"].map(str::to_owned));
    }
    words.extend(declaration.command(shown.run, shown.detail));
    words.extend(guest_words(&shown.detail.targets));
    // What a guest stores elsewhere ends with it.
    words.extend(is_in_guest.then(|| "--store=/results/runs.db".to_owned()));
    Some(shell::words(words.into_iter().map(Into::into)))
}

/// `--guest KEY=VALUE` of the guests that took the samples: what is the same in all of them once, what is varied as it was given.
fn guest_words(targets: &[RunTarget]) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for target in targets {
        let guest = target.emulation.as_ref().and_then(Emulation::guest);
        let options = guest.map(repeat::options).unwrap_or_default().into_iter();
        // Simulated time is the default of some experiments.
        let host_time = guest.filter(|it| it.simulated_time.is_none());
        let options = options.chain(host_time.map(|_| ("time", "host".to_owned())));
        let same = options.filter(|(key, _)| target.levels.level(key).is_none());
        let same = same.map(|(key, value)| format!("--guest={key}={value}"));
        let varied = target.levels.levels();
        let varied = varied.map(|(key, level)| format!("--guest={key}={level}"));
        for word in same.chain(varied) {
            if !words.contains(&word) {
                words.push(word);
            }
        }
    }
    words
}

/// What the figures do not say.
fn not_claimed(shown: &Shown<'_>, has_derived_command: bool, out: &mut Document) {
    let (run, detail) = (shown.run, shown.detail);
    out.heading("Not claimed", "");
    if run.emulation.is_some() || detail.targets.iter().any(|it| it.emulation.is_some()) {
        out.paragraph(
            "How fast a real machine is: the delays of this one are modelled. Orders and ratios are of this model.",
        );
    }
    out.paragraph(
        "What differs from boot to boot: all samples are of one run, and so are the intervals.",
    );
    if run.state != RunState::Complete {
        out.paragraph(format!("That the run is complete: it is {}.", run.state));
    }
    if run.failed + run.with_warnings > 0 {
        out.paragraph(format!(
            "That all samples are sound: {} failed, {} have warnings; `nearfar runs show {}` has them.",
            run.failed, run.with_warnings, run.run
        ));
    }
    let is_unknown = |it: &Option<Emulation>| it.as_ref().is_some_and(|it| it.guest().is_none());
    let mut emulated = detail.targets.iter().map(|it| &it.emulation);
    if has_derived_command && (is_unknown(&run.emulation) || emulated.any(is_unknown)) {
        out.paragraph("That the command above is whole: how the guest was started was not stored.");
    }
}

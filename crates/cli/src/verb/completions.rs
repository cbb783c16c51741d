//! `nearfar completions`, and what a shell offers for the value of an argument: rules, machines, kernels, runs, devices, nodes, processes.
//!
//! ```text
//! shell ──► COMPLETE=bash nearfar -- nearfar plan --rule int ──► command() ──► a function of the table ──► interrupt-far ...
//! ```
//!
//! Asked for at each key press: only names are looked up (directories of sysfs, the list of the cache), nothing is measured,
//! made or fetched, and what cannot be read offers nothing.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use anyhow::Context as _;
use clap::{Arg, Args, Command};
use clap_complete::Shell;
use clap_complete::engine::{
    ArgValueCandidates, ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter as _,
};
use clap_complete::env::Shells;
use nearfar_change::Target;
use nearfar_lab::cache::Cache;
use nearfar_placement::audit::RULES;
use nearfar_proc::tasks;
use nearfar_runs::{Filter, Store};

use crate::args::StoreArgs;
use crate::failure::{Failure, Outcome};
use crate::output;

/// The variable in which a shell names itself when it asks.
const VARIABLE: &str = "COMPLETE";
const NAME: &str = "nearfar";

/// Print the completions for a shell
///
/// The shell asks the command itself, at each completion: rules, gallery machines, kernels, runs, devices, interfaces, nodes
/// and processes are those there are.
#[derive(Args)]
#[command(after_long_help = "Examples:\n  \
                             nearfar completions bash > ~/.local/share/bash-completion/completions/nearfar\n  \
                             nearfar completions zsh > /usr/local/share/zsh/site-functions/_nearfar\n  \
                             nearfar completions fish > ~/.config/fish/completions/nearfar.fish")]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    /// Generates and prints.
    pub fn run(self) -> Outcome {
        let name = self.shell.to_string();
        let shells = Shells::builtins();
        let shell = shells
            .completer(&name)
            .with_context(|| format!("no completions for {name}"));
        let mut text = Vec::new();
        let written = shell
            .map_err(Failure::Input)?
            .write_registration(VARIABLE, NAME, NAME, NAME, &mut text);
        written
            .context("cannot write the completions")
            .map_err(Failure::Refused)?;
        output::print(&String::from_utf8_lossy(&text))
    }
}

type Candidates = Vec<CompletionCandidate>;
/// The verbs, by the start of their name; an argument; what is offered for it.
type Offer = (&'static str, &'static str, fn() -> Candidates);

/// By the name of an argument in the definitions, so that an argument of that name in a new verb has them, too.
const OFFERS: &[Offer] = &[
    ("", "rules", rules),
    ("", "explain", rules),
    ("", "devices", pci_devices),
    ("", "not_devices", pci_devices),
    ("", "near", near),
    ("", "node", nodes),
    ("", "from", nodes),
    ("", "to", nodes),
    ("", "subsystem", subsystems),
    ("", "pid", processes),
    (" nearfar lab kernels get", "kernel", series),
    (" nearfar runs", "run", stored_runs),
    (" nearfar runs", "runs", stored_runs),
    (" nearfar compare", "sides", stored_runs),
    (" nearfar case", "number", cases),
    (" nearfar rollback", "change", change_sets),
];

/// The definitions of all arguments, with what a shell offers for their values.
pub fn command() -> Command {
    offering(crate::verb::definition(), "")
}

/// The same for one verb and those below it.
fn offering(command: Command, above: &str) -> Command {
    let name = format!("{above} {}", command.get_name());
    let verb = name.clone();
    let command = command.mut_args(|arg| offered(arg, &verb));
    command.mut_subcommands(|below| offering(below, &name))
}

fn offered(arg: Arg, verb: &str) -> Arg {
    let id = arg.get_id().as_str().to_owned();
    let is_for = |(verbs, name, _): &&Offer| *name == id && verb.starts_with(verbs);
    if let Some((_, _, candidates)) = OFFERS.iter().find(is_for) {
        return arg.add(ArgValueCandidates::new(*candidates));
    }
    match id.as_str() {
        "source" | "machine" => arg.add(ArgValueCompleter::new(|typed: &OsStr| {
            or_file(typed, machines())
        })),
        "kernel" => arg.add(ArgValueCompleter::new(|typed: &OsStr| {
            or_file(typed, kernels())
        })),
        "group" => arg.add(ArgValueCompleter::new(
            PathCompleter::dir().current_dir("/sys/fs/cgroup"),
        )),
        _ => arg,
    }
}

/// Names, and where none begins so, files.
fn or_file(typed: &OsStr, names: Candidates) -> Candidates {
    let begins = |name: &CompletionCandidate| {
        name.get_value()
            .as_encoded_bytes()
            .starts_with(typed.as_encoded_bytes())
    };
    let mut found: Candidates = names.into_iter().filter(begins).collect();
    if found.is_empty() || typed.as_encoded_bytes().contains(&b'/') {
        found.extend(PathCompleter::any().complete(typed));
    }
    found
}

fn candidate(name: impl Into<OsString>, help: impl Into<String>) -> CompletionCandidate {
    CompletionCandidate::new(name).help(Some(help.into().into()))
}

fn rules() -> Candidates {
    RULES
        .iter()
        .map(|rule| candidate(rule.id, rule.title))
        .collect()
}

fn cases() -> Candidates {
    nearfar_bench::cases::cases()
        .iter()
        .map(|case| candidate(case.number.to_string(), case.title))
        .collect()
}

fn machines() -> Candidates {
    nearfar_sources::gallery()
        .into_iter()
        .map(|machine| candidate(machine.name, machine.description))
        .collect()
}

/// What the cache holds for guests of any architecture, and this host's own.
fn kernels() -> Candidates {
    let cached = known_kernels().into_iter().filter(|entry| entry.cached);
    let cached =
        cached.map(|entry| candidate(entry.series.to_string(), entry.release.unwrap_or_default()));
    distinct(
        cached
            .chain([candidate("host", "the running kernel")])
            .collect(),
    )
}

/// What `lab kernels get` fetches for this project's own tests, and what is cached.
fn series() -> Candidates {
    let known = known_kernels().into_iter();
    let series = known.map(|entry| CompletionCandidate::new(entry.series.to_string()));
    distinct(series.collect())
}

fn known_kernels() -> Vec<nearfar_lab::kernels::Entry> {
    let cache = Cache::of_user();
    cache
        .map(|cache| nearfar_lab::kernels::list(&cache))
        .unwrap_or_default()
}

fn distinct(mut candidates: Candidates) -> Candidates {
    candidates.sort_by(|a, b| a.get_value().cmp(b.get_value()));
    candidates.dedup_by(|a, b| a.get_value() == b.get_value());
    candidates
}

/// The runs of the usual store; the one of --store is unknown here.
fn stored_runs() -> Candidates {
    let path = StoreArgs { store: None }
        .path()
        .ok()
        .filter(|path| path.is_file());
    let store = path.and_then(|path| Store::open_existing(&path).ok());
    let runs = store
        .and_then(|store| store.list(&Filter::default()).ok())
        .unwrap_or_default();
    let help = |run: &nearfar_runs::Run| {
        format!(
            "{} {}",
            run.experiment,
            run.label.as_deref().unwrap_or_default()
        )
    };
    let named = runs
        .iter()
        .map(|run| candidate(run.run.to_string(), help(run)));
    named
        .chain((!runs.is_empty()).then(|| candidate("last", "the newest")))
        .collect()
}

/// The runs of apply on the running system.
fn change_sets() -> Candidates {
    let runs = nearfar_change::history(&Target::live(None)).unwrap_or_default();
    let help = |run: &nearfar_change::ChangeSet| format!("{} changes", run.changes.len());
    runs.iter()
        .map(|run| candidate(run.change_set.to_string(), help(run)))
        .collect()
}

fn pci_devices() -> Candidates {
    names_in("/sys/bus/pci/devices")
        .map(CompletionCandidate::new)
        .collect()
}

/// What has hardware: interfaces and disks that stand on a device, NVMe controllers, PCI functions.
fn near() -> Candidates {
    let on_device = |class: &'static str| {
        let has_device = move |name: &OsString| Path::new(class).join(name).join("device").exists();
        names_in(class)
            .filter(has_device)
            .map(CompletionCandidate::new)
    };
    let classes = ["/sys/class/net", "/sys/class/nvme", "/sys/class/block"];
    classes
        .into_iter()
        .flat_map(on_device)
        .chain(pci_devices())
        .collect()
}

fn nodes() -> Candidates {
    let number = |name: OsString| name.to_str()?.strip_prefix("node")?.parse::<u32>().ok();
    let mut numbers: Vec<u32> = names_in("/sys/devices/system/node")
        .filter_map(number)
        .collect();
    numbers.sort_unstable();
    numbers
        .into_iter()
        .map(|number| CompletionCandidate::new(number.to_string()))
        .collect()
}

fn subsystems() -> Candidates {
    names_in("/sys/class/nvme-subsystem")
        .map(CompletionCandidate::new)
        .collect()
}

fn processes() -> Candidates {
    let named = |pid: i32| {
        let name = tasks::name(pid).unwrap_or_default();
        candidate(
            pid.to_string(),
            name.to_text().replace(char::is_control, ""),
        )
    };
    tasks::processes()
        .unwrap_or_default()
        .into_iter()
        .map(named)
        .collect()
}

/// The names in a directory, sorted; none where it cannot be read.
fn names_in(directory: &str) -> impl Iterator<Item = OsString> + use<> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    let mut names: Vec<OsString> = entries
        .filter_map(|entry| Some(entry.ok()?.file_name()))
        .collect();
    names.sort();
    names.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_argument(command: &Command, above: &str, verbs: &str, name: &str) -> bool {
        let path = format!("{above} {}", command.get_name());
        let mut arguments = command.get_arguments();
        path.starts_with(verbs) && arguments.any(|arg| arg.get_id() == name)
            || command
                .get_subcommands()
                .any(|below| has_argument(below, &path, verbs, name))
    }

    #[test]
    fn every_offer_is_for_an_argument_that_exists() {
        let command = crate::verb::definition();
        for (verbs, name, _) in OFFERS {
            assert!(
                has_argument(&command, "", verbs, name),
                "{verbs:?} has no argument {name:?}"
            );
        }
    }
}

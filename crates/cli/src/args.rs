//! Arguments that several verbs share.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::anyhow;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use nearfar_machine::{Known, Machine, NodeId, Origin, SourceKind, alternatives, seconds, size};
use nearfar_placement::tasks::{self, Filter};
use nearfar_proc::system;
use nearfar_report::document::Document;
use nearfar_runs::{Journal, Store, StoreError};
use nearfar_sources::{Request, TaskScope, Want};
use serde::Serialize;

use crate::failure::{Failure, Outcome, input};
use crate::output;

/// When to use colour.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Colour {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Also into a pipe or file.
    Always,
    /// Not at all.
    Never,
}

/// How an answer is printed.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Table,
    /// For programs; documented in docs/json.md.
    Json,
}

/// `--format` of verbs that have no other formats.
#[derive(Args)]
pub struct FormatArgs {
    /// How the answer is printed.
    #[arg(long, value_enum, default_value_t = Format::Table, value_name = "FORMAT")]
    pub format: Format,
}

impl FormatArgs {
    /// Prints an answer: the document for people, or JSON in its envelope.
    pub fn print<T: Serialize>(
        &self,
        colour: Colour,
        schema: &str,
        source: Option<&Origin>,
        answer: &T,
        document: impl FnOnce() -> Document,
    ) -> Outcome {
        output::print(&match self.format {
            Format::Table => document().to_text(&output::style(colour)),
            Format::Json => output::json(schema, source, answer)?,
        })
    }
}

/// The values of an option and the help of each, with what they stand for: an enumeration of another crate.
pub fn one_of<T: Clone + Send + Sync + 'static>(
    values: &'static [(&'static str, &'static str, T)],
) -> impl TypedValueParser<Value = T> {
    let shown = values.iter();
    let shown = shown.map(|(name, help, _)| PossibleValue::new(*name).help(*help));
    PossibleValuesParser::new(shown).map(|given| {
        let found = values.iter().find(|(name, ..)| *name == given);
        let (_, _, value) = found.expect("clap takes no other");
        value.clone()
    })
}

/// The running system, with that much of it.
pub fn read_live(want: Want) -> Result<Machine, Failure> {
    nearfar_sources::read(&Request::live(want)).map_err(Failure::input)
}

/// Options with a value as words of a command line.
pub fn option_words(
    options: impl IntoIterator<Item = (&'static str, OsString)>,
) -> impl Iterator<Item = OsString> {
    options.into_iter().flat_map(|(name, value)| {
        // Behind a space it would be taken for an option.
        let is_like_option = value.len() > 1 && value.as_encoded_bytes().starts_with(b"-");
        match is_like_option {
            true => vec![[name.into(), value].join(OsStr::new("="))],
            false => vec![name.into(), value],
        }
    })
}

/// Where the machine's description comes from.
#[derive(Args, Clone)]
pub struct SourceArgs {
    /// A file, recognised by its content (support bundle, snapshot, JSON of `topo`, hwloc XML, text of `numactl -H`, lscpu and others,
    /// description), "-" for standard input, a name from `nearfar lab machines`, or a synthetic string such as "node:4
    /// core:12 pu:2 distance:10,16,32,33"; several describe one machine together [default: the running system]
    #[arg(long, value_name = "SOURCE", conflicts_with = "root")]
    pub source: Vec<String>,
    /// Read /sys and /proc below this directory instead of below /
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Lay fake nodes over the machine, as the kernel's numa=fake= does: N, a size such as 512M, or NU; with
    /// ",cpus" behind it the CPUs are split too
    #[arg(long, value_name = "SPEC")]
    pub fake: Option<String>,
}

impl SourceArgs {
    /// The arguments, as another verb takes them for the same machine.
    pub fn words(&self) -> Vec<OsString> {
        let Self { source, root, fake } = self.clone();
        let source = source.into_iter().map(|source| ("--source", source.into()));
        let root = root.map(|root| ("--root", root.into()));
        let fake = fake.map(|fake| ("--fake", fake.into()));
        option_words(source.chain(root).chain(fake)).collect()
    }

    /// Reads what is wanted of the machine. Fails where it has not every process that is asked for by number.
    pub fn read(&self, want: Want) -> Result<Machine, Failure> {
        let Self { source, root, fake } = self.clone();
        let scope = want.tasks.clone();
        let request = Request {
            sources: source,
            root,
            fake,
            want,
        };
        let mut machine = nearfar_sources::read(&request).map_err(Failure::input)?;
        if let TaskScope::Of(pids) = scope {
            only_processes(&mut machine, &pids)?;
        }
        Ok(machine)
    }
}

/// Leaves only these processes in the machine: a snapshot holds all that there were.
fn only_processes(machine: &mut Machine, pids: &[i32]) -> Result<(), Failure> {
    let is_live = machine.origin.kind == SourceKind::Live;
    let place = machine.origin.place.clone();
    let tasks = match &mut machine.tasks {
        Known::Yes(tasks) => tasks,
        Known::No { unknown_reason } => {
            let pid = pids.first().copied().unwrap_or_default();
            let reason = unknown_reason.to_string();
            return Err(input!(
                "there is no process {pid} in {place}: its processes are unknown: {reason}"
            ));
        }
    };
    if let Some(missing) = pids
        .iter()
        .find(|pid| !tasks.iter().any(|task| task.pid == **pid))
    {
        let known: Vec<String> = tasks.iter().map(|task| task.pid.to_string()).collect();
        return Err(Failure::Input(match is_live {
            true => anyhow!(
                "there is no process {missing}, or none that this user can see (ps -e lists those)"
            ),
            false => {
                anyhow!(
                    "there is no process {missing} in {place}; {}",
                    alternatives(&missing.to_string(), &known)
                )
            }
        }));
    }
    tasks.retain(|task| pids.contains(&task.pid));
    Ok(())
}

/// Where runs are kept.
#[derive(Args, Clone)]
pub struct StoreArgs {
    /// The file that runs are kept in [default: NEARFAR_STORE, else nearfar/runs.db in XDG_DATA_HOME or
    /// ~/.local/share]
    #[arg(long, value_name = "FILE")]
    pub store: Option<PathBuf>,
}

impl StoreArgs {
    pub fn path(&self) -> Result<PathBuf, Failure> {
        let from_environment = || {
            std::env::var_os("NEARFAR_STORE")
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        match self.store.clone().or_else(from_environment) {
            Some(path) => Ok(path),
            None => nearfar_runs::default_path().map_err(of_store),
        }
    }

    /// Whether the user said which file.
    pub fn is_named(&self) -> bool {
        self.store.is_some() || std::env::var_os("NEARFAR_STORE").is_some()
    }

    /// The store, made where there is none; says on standard error where it cannot be kept the usual way.
    pub fn open(&self) -> Result<Store, Failure> {
        let store = Store::open(&self.path()?).map_err(of_store)?;
        if store.journal() != Journal::WriteAhead {
            output::say!("nearfar: {}: {}", store.path().display(), store.journal());
        }
        Ok(store)
    }

    /// The store, for looking at what it has.
    pub fn open_existing(&self) -> Result<Store, Failure> {
        Store::open_existing(&self.path()?).map_err(of_store)
    }
}

/// A command about the runs of this store, in backquotes; without --store where it is the one that is used anyway.
pub fn runs_command(verb: &str, store: &Path) -> String {
    let usual = StoreArgs { store: None }.path();
    let option = match usual.is_ok_and(|usual| usual == store) {
        true => String::new(),
        false => format!(" --store {}", crate::shell::word(store.as_os_str())),
    };
    format!("`nearfar runs {verb}{option}`")
}

/// A store's answer by who has to act: what was named wrongly, or what the system refuses.
pub fn of_store(error: StoreError) -> Failure {
    let next = match &error {
        StoreError::NoSuchRun { path, .. } => {
            Some(runs_command("list", path) + " shows those it has")
        }
        StoreError::Damaged { path, .. } => {
            Some(runs_command("export RUN", path) + " saves those that are")
        }
        _ => None,
    };
    if let Some(next) = next {
        return input!("{error}\n{next}");
    }
    match error {
        error if error.is_damage() => Failure::input(error),
        StoreError::File { .. }
        | StoreError::ReadOnly { .. }
        | StoreError::Sqlite { .. }
        | StoreError::StillRunning { .. }
        | StoreError::NotOurs { .. } => Failure::refused(error),
        _ => Failure::input(error),
    }
}

/// Which processes to look at.
#[derive(Args, Clone)]
pub struct TaskArgs {
    /// Look at this process (may be repeated) instead of at all of them
    #[arg(long, value_name = "PID", conflicts_with = "no_tasks", value_parser = pid)]
    pub pid: Vec<i32>,
    /// Look at no process
    #[arg(long)]
    pub no_tasks: bool,
}

impl TaskArgs {
    /// The same in the words of the sources.
    pub fn scope(&self) -> TaskScope {
        match (self.no_tasks, self.pid.is_empty()) {
            (true, _) => TaskScope::None,
            (false, true) => TaskScope::All,
            (false, false) => TaskScope::Of(self.pid.clone()),
        }
    }
}

/// The number of a process, as an option takes it: 0 and below name none.
pub fn pid(text: &str) -> Result<i32, String> {
    text.parse()
        .ok()
        .filter(|&pid| pid > 0)
        .ok_or_else(|| "a process number is a whole number above 0".to_owned())
}

/// A size in bytes above 0, as an option takes it: powers of 1024, with the units of [`size::parse`].
pub fn size(text: &str) -> Result<u64, String> {
    size::parse(text, 1)
        .filter(|&bytes| bytes > 0)
        .ok_or_else(|| {
            "a size is a number of bytes above 0, or one with K, M, G, T or P (1024 times each) behind it: 512M, 1.5GiB"
                .to_owned()
        })
}

/// As [`size()`], and 0.
pub fn size_or_zero(text: &str) -> Result<u64, String> {
    match text {
        "0" => Ok(0),
        _ => size(text).map_err(|wanted| format!("{wanted}, or 0")),
    }
}

/// A time in seconds, as an option takes it: a number, or one with ms, s, m or h behind it.
pub fn seconds(text: &str) -> Result<f64, String> {
    const MAX_SECONDS: f64 = 86_400.0;
    seconds::parse(text)
        .filter(|seconds| (0.1..=MAX_SECONDS).contains(seconds))
        .ok_or_else(|| "a time from 0.1 to 86400 seconds: 10, 10s, 500ms, 2m, 1h".to_owned())
}

/// What a measurement of memory may take: so many seconds where it is asked for, else as many as are usual on a real machine. Under emulation
/// preparing the buffers alone takes seconds, and more on a busy host; in simulated time little disturbs a sample, and each of its seconds
/// takes the host minutes.
pub fn budget(asked: Option<f64>, usual: f64, machine: &Machine) -> Duration {
    let usual = match &machine.origin.emulation {
        Some(emulation) if emulation.is_simulated() => 1.0,
        Some(_) => 30.0,
        None => usual,
    };
    Duration::from_secs_f64(asked.unwrap_or(usual))
}

/// As [`seconds()`], and 0.
pub fn seconds_or_zero(text: &str) -> Result<f64, String> {
    match text {
        "0" => Ok(0.0),
        _ => seconds(text).map_err(|wanted| format!("{wanted}, or 0")),
    }
}

/// The units and control groups that tasks are in.
pub fn group_names(machine: &Machine) -> Vec<String> {
    let all = tasks::tasks(machine, &Filter::default(), None).known();
    let groups = all.map(|all| tasks::by_group(&all));
    let names = groups.into_iter().flatten();
    let mut names: Vec<String> = names
        .filter_map(|it| it.service.or(it.group.known()))
        .collect();
    names.sort();
    names.dedup();
    names
}

/// What a task has to have.
#[derive(Args)]
pub struct TaskFilterArgs {
    /// Show this process (may be repeated) instead of all
    #[arg(long, value_name = "PID", value_parser = pid)]
    pub pid: Vec<i32>,
    /// Show tasks with this text in their name
    #[arg(long, value_name = "TEXT")]
    pub name: Option<String>,
    /// Show tasks of this user: a name or number
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Show tasks of this control group and of those below it, or of this service (redis.service, "slurm 71", default/web-0)
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// Show tasks that run or have memory on this node
    #[arg(long, value_name = "N")]
    node: Option<u32>,
    /// Leave out tasks with less memory than this; those of --pid are always shown
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = size_or_zero)]
    min_memory: u64,
}

impl TaskFilterArgs {
    /// Tasks with less memory are left out, in bytes.
    pub fn min_bytes(&self) -> u64 {
        match self.pid.is_empty() {
            true => self.min_memory,
            false => 0,
        }
    }

    /// A group that no task is in is a target that does not exist.
    pub fn check_group(&self, machine: &Machine) -> Outcome {
        let Some(group) = &self.group else {
            return Ok(());
        };
        let filter = Filter {
            group: Some(group.clone()),
            ..Filter::default()
        };
        let all = |filter| tasks::tasks(machine, filter, None).known();
        if all(&filter).is_none_or(|found| !found.tasks.is_empty()) {
            return Ok(());
        }
        Err(input!(
            "no task with {} MiB or more is in group {group:?}; {}",
            self.min_bytes() >> 20,
            alternatives(group, &group_names(machine))
        ))
    }

    /// What tasks have to have. `is_here`: the machine is the running system, which knows the names of users.
    pub fn filter(&self, machine: &Machine, is_here: bool) -> Result<Filter, Failure> {
        let node = self.node.map(NodeId);
        if let Some(missing) = node.filter(|&id| machine.node(id).is_none()) {
            let known: Vec<String> = machine.nodes.iter().map(|it| it.id.to_string()).collect();
            return Err(input!(
                "there is no node {missing}; {}",
                alternatives(&missing.to_string(), &known)
            ));
        }
        let user = self.user.as_deref().map(|user| match user.parse() {
            Ok(number) => Ok(number),
            Err(_) if !is_here => Err(input!(
                "user {user:?} of another machine is known by number only"
            )),
            Err(_) => system::user_id(user)
                .ok_or_else(|| input!("there is no user {user:?} on this system")),
        });
        Ok(Filter {
            name: self.name.clone(),
            user: user.transpose()?,
            group: self.group.clone(),
            node,
            min_bytes: self.min_bytes(),
            device: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_kernels_suffixes() {
        assert_eq!(
            ["4096", "512k", "256M", "2G"].map(size),
            [4096, 512 << 10, 256 << 20, 2 << 30].map(Ok)
        );
        for wrong in ["", "0", "0M", "M", "1.5", "-1", "16X", "99999999999999G"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_source_that_looks_like_an_option_is_one_word_with_its_option() {
        let arguments = SourceArgs {
            source: ["-dash.txt", "-", "a.txt"].map(str::to_owned).to_vec(),
            root: None,
            fake: None,
        };
        let wanted = ["--source=-dash.txt", "--source", "-", "--source", "a.txt"];
        assert_eq!(arguments.words(), wanted.map(OsString::from));
    }

    #[test]
    fn times_are_seconds_or_have_a_unit() {
        assert_eq!(
            ["5", "0.5", "5s", "500ms", "2m", "1.5h"].map(seconds),
            [5.0, 0.5, 5.0, 0.5, 120.0, 5400.0].map(Ok)
        );
        for wrong in ["", "s", "5 s", "-1", "99ms", "25h", "5d", "nan", "inf"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}

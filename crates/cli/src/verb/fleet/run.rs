//! `nearfar fleet run`, `fleet apply` and `fleet rollback`: what is asked of the hosts.

use std::io::IsTerminal as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::anyhow;
use clap::error::ErrorKind;
use clap::{Args, Parser as _, ValueEnum};
use indicatif::ProgressBar;
use nearfar_fleet::engine::{
    DEFAULT_TIME_LIMIT_MINUTES, EngineSettings, SlurmSettings, check_options, engine_of,
    hosts_of_partition,
};
use nearfar_fleet::rollout::{RolledOut, RolloutRequest, roll_back};
use nearfar_fleet::{
    Folder, HostEvent, HostName, HostReason, Manifest, OnCancel, SCHEMA, Step, Summary, carry_out,
    new_id, parse_hosts,
};
use nearfar_runs::now_s;
use serde::Serialize;

use super::{by_who_has_to_act, of_folder};
use crate::args::{Colour, FormatArgs};
use crate::failure::{Failure, Outcome, input, refused};
use crate::verb::apply::label;
use crate::verb::{Command, Verb};
use crate::{output, signals};

/// Verbs that measure: their hosts are reserved for them.
const MEASURING: [&str; 6] = ["bench", "bisect", "checkup", "ab", "case", "trace"];
/// Verbs that only read.
const READING: [&str; 7] = [
    "snapshot", "topo", "audit", "plan", "path", "spread", "tasks",
];
/// Verbs that change a host, and what they have here instead.
const CHANGING: [(&str, &str); 2] = [
    ("apply", "nearfar fleet apply"),
    ("rollback", "nearfar fleet rollback"),
];

/// Run a verb on every host, each answer in one file of a folder
///
/// Hosts that answered are not asked again: --resume asks those that were lost or failed.
#[derive(Args)]
#[command(
    after_long_help = "Slurm: a job for each host, with the node for itself if the verb measures. The folder is shared by all \
                       nodes. Jobs go on when this command ends; --resume takes them over.\n\nExamples:\n  \
                       nearfar fleet run --engine slurm --hosts 'n[001-200]' --results /shared/audit -- audit --format json\n  \
                       nearfar fleet run --engine ssh --hosts db1,db2 --results out -- bench latency --format json\n  \
                       nearfar fleet run --resume --results /shared/audit"
)]
pub struct Run {
    #[command(flatten)]
    on: OnHosts,
    /// Go on with the run in the folder: ask the hosts that have not answered
    #[arg(long, conflicts_with_all = ["engine", "hosts", "hosts_file", "partition", "arguments", "label", "at_once", "time_limit", "exclusive", "engine_options"])]
    resume: bool,
    /// What to call the run in the dataset
    #[arg(long, value_name = "TEXT", value_parser = label)]
    label: Option<String>,
    #[command(flatten)]
    format: FormatArgs,
    /// The verb and its arguments
    #[arg(last = true, value_name = "VERB", required_unless_present = "resume")]
    arguments: Vec<String>,
}

/// Which hosts, and how they are reached.
#[derive(Args)]
struct OnHosts {
    /// What runs the verb on the hosts
    #[arg(long, value_enum, value_name = "ENGINE")]
    engine: Option<Engine>,
    /// The hosts, as Slurm writes lists: n[1-4,08],login
    #[arg(long, value_name = "LIST", conflicts_with_all = ["hosts_file", "partition"])]
    hosts: Option<String>,
    /// The hosts, from a file: lists as of --hosts, one or several per line, # begins a comment
    #[arg(long, value_name = "FILE", conflicts_with = "partition")]
    hosts_file: Option<PathBuf>,
    /// The hosts of this partition of Slurm, and the partition of the jobs
    #[arg(long, value_name = "PARTITION")]
    partition: Option<String>,
    /// The folder of the run: what was asked, what happened, and the answers
    #[arg(long, value_name = "DIR")]
    results: PathBuf,
    /// How nearfar is called on the hosts; words before it are separated by blanks [default: nearfar]
    #[arg(long, value_name = "COMMAND")]
    command: Option<String>,
    /// Ask this many hosts at the same time, at most
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    at_once: u32,
    /// End a host's step after this many minutes [default: 30 with Slurm, else 1440]
    #[arg(long, value_name = "MINUTES", value_parser = clap::value_parser!(u32).range(1..=10_080))]
    time_limit: Option<u32>,
    /// Slurm: whether a job has its node for itself [default: if the verb measures]
    #[arg(long, value_name = "YES|NO")]
    exclusive: Option<YesNo>,
    /// A word for sbatch or ssh, such as --account=perf (may be repeated)
    #[arg(
        long = "engine-option",
        value_name = "WORD",
        allow_hyphen_values = true
    )]
    engine_options: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Engine {
    /// A batch job for each host
    Slurm,
    /// OpenSSH with your configuration
    Ssh,
    /// A process on this machine for each host, for tests
    Local,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum YesNo {
    Yes,
    No,
}

#[derive(Serialize)]
struct Answer<'a> {
    fleet_run: &'a str,
    #[serde(flatten)]
    summary: &'a Summary,
}

impl Run {
    /// Asks the hosts and prints what became of them.
    pub fn run(self, colour: Colour) -> Outcome {
        let folder = match self.resume {
            true => self.folder_to_resume()?,
            false => {
                check_verb(&self.arguments)?;
                let arguments = self.arguments.clone();
                let manifest = self
                    .on
                    .manifest(Step::Verb, arguments, self.label.clone())?;
                Folder::create(&self.on.results, manifest).map_err(of_folder)?
            }
        };
        let summary = ask(&folder)?;
        let document =
            || nearfar_report::fleet::run(&summary, &self.on.results.display().to_string());
        self.format.print(
            colour,
            "fleet-run-summary/1",
            None,
            &Answer {
                fleet_run: &folder.manifest.id,
                summary: &summary,
            },
            document,
        )?;
        all_answered(&summary)
    }

    /// The folder of a run that goes on.
    fn folder_to_resume(&self) -> Result<Folder, Failure> {
        let mut folder = Folder::open(&self.on.results).map_err(of_folder)?;
        if let Some(command) = &self.on.command {
            folder.manifest.command = command_words(command)?;
        }
        if folder.manifest.is_rollout() {
            // It would change every host at once, without canaries.
            let results = &self.on.results;
            return Err(input!(
                "{} is the folder of a fleet apply, which is not resumed; `nearfar fleet rollback --results {}` undoes it",
                results.display(),
                nearfar_lab::shell::word(results.as_os_str())
            ));
        }
        Ok(folder)
    }
}

/// Asks the hosts of a run, with a line on standard error for each that does not answer.
fn ask(folder: &Folder) -> Result<Summary, Failure> {
    let hosts = &folder.manifest.hosts;
    let cancel = signals::cancel_flag();
    let _lock = folder.lock().map_err(of_folder)?;
    let mut engine = engine_of(folder);
    let bar = bar(hosts.len());
    let mut on_event = |host: &HostName, event: &HostEvent| {
        let (HostEvent::Failed { reason } | HostEvent::Lost { reason, .. }) = event else {
            if *event == HostEvent::Answered {
                bar.inc(1);
            }
            return ControlFlow::Continue(());
        };
        let how = match event {
            HostEvent::Failed { .. } => "failed",
            _ => "lost",
        };
        bar.inc(1);
        bar.suspend(|| output::say!("{host}: {how}: {reason}"));
        ControlFlow::Continue(())
    };
    let asked = carry_out(
        folder,
        hosts,
        engine.as_mut(),
        &by(),
        (&cancel, OnCancel::EndSteps),
        &mut on_event,
    );
    bar.finish_and_clear();
    asked.map_err(by_who_has_to_act)?;
    Summary::of(folder).map_err(of_folder)
}

/// Exit code 3 where a host has not answered.
fn all_answered(summary: &Summary) -> Outcome {
    let missing = summary.failed.len() + summary.lost.len() + summary.not_asked.len();
    match missing {
        0 => Ok(()),
        _ => Err(refused!(
            "{missing} of {} hosts did not answer; --resume asks them again",
            missing + summary.answered.len()
        )),
    }
}

fn bar(hosts: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    crate::progress::bar(Some(hosts as u64), "hosts [{bar:30}] {pos}/{len}")
}

/// `user@host`: who asks. Of root by way of sudo it is who called sudo.
fn by() -> String {
    let uid = rustix::process::getuid();
    let by_sudo = std::env::var("SUDO_USER").ok();
    let by_sudo = by_sudo.filter(|name| uid.is_root() && !name.is_empty());
    let name = by_sudo.or_else(|| user_name(uid.as_raw()));
    let host = rustix::system::uname();
    format!(
        "{}@{}",
        name.unwrap_or_else(|| uid.as_raw().to_string()),
        host.nodename().to_string_lossy()
    )
}

/// From /etc/passwd, else from id(1), which asks a directory service as well.
fn user_name(uid: u32) -> Option<String> {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let uid = uid.to_string();
    let of_passwd = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid).then(|| name.to_owned())
    });
    of_passwd.or_else(|| {
        let output = std::process::Command::new("id").arg("-un").output().ok()?;
        let name = String::from_utf8(output.stdout).ok()?;
        Some(name.trim().to_owned()).filter(|name| output.status.success() && !name.is_empty())
    })
}

/// Fails for verbs that have no answer to collect, or change a host.
fn check_verb(arguments: &[String]) -> Outcome {
    let verb = arguments.first().map_or("", String::as_str);
    if let Some((_, instead)) = CHANGING.iter().find(|(name, _)| *name == verb) {
        return Err(input!(
            "{verb} changes a host: `{instead}` does that with canaries and keeps an audit log"
        ));
    }
    let all: Vec<String> = READING
        .iter()
        .chain(&MEASURING)
        .map(|&verb| verb.to_owned())
        .collect();
    match all.iter().any(|known| known == verb) {
        true => check_arguments(arguments),
        false => Err(input!(
            "{verb:?} is not a verb that runs on many hosts; {}",
            nearfar_machine::alternatives(verb, &all)
        )),
    }
}

/// Fails here for what would fail on every host.
///
/// # Errors
/// Words that are no verb with its options, or an option of one machine.
fn check_arguments(arguments: &[String]) -> Outcome {
    // Its answer would be of another machine than the one it is stored with, or a file on the host.
    let is_elsewhere = |word: &&String| {
        let option = word.split('=').next().unwrap_or_default();
        [
            "--source",
            "--root",
            "--fake",
            "--html",
            "--output",
            "-o",
            "--store",
            "--no-store",
        ]
        .contains(&option)
    };
    if let Some(word) = arguments
        .iter()
        .take_while(|word| *word != "--")
        .find(is_elsewhere)
    {
        return Err(input!(
            "{word} cannot be used with many hosts: each reads itself, and its answer and runs come back in its file"
        ));
    }
    // A name is another disk on each host.
    let destroys = |word: &&String| word.split('=').next() == Some("--destroy");
    if let Some(word) = arguments.iter().find(destroys) {
        return Err(input!(
            "{word} cannot be used with many hosts: the name may be that of another disk there, and what is on it is lost; run bench \
             io on each host"
        ));
    }
    if arguments == ["snapshot"] {
        return Ok(());
    }
    parsed(arguments).map(drop)
}

/// The verb that these words are.
///
/// # Errors
/// What the command line says of them.
fn parsed(words: &[String]) -> Result<Verb, Failure> {
    let line = std::iter::once("nearfar").chain(words.iter().map(String::as_str));
    let parsed = Command::try_parse_from(line).map_err(|error| {
        if matches!(
            error.kind(),
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
        ) {
            error.exit();
        }
        let text = error.to_string();
        // Usage and hints are about a command line that was not typed.
        let message = text.split("\n\n").next().unwrap_or_default();
        let verb = words.iter().map(String::as_str).take(2);
        let verb: Vec<&str> = verb.take_while(|word| !word.starts_with('-')).collect();
        let verb = verb.join(" ");
        input!(
            "{}; `nearfar {verb} --help` lists its options",
            message.trim_start_matches("error: ").trim_end()
        )
    })?;
    match &parsed.verb {
        Verb::Apply(apply) => apply.check_rules()?,
        Verb::Audit(audit) => audit.check_rules()?,
        Verb::Plan(plan) => plan.check_rules()?,
        _ => {}
    }
    Ok(parsed.verb)
}

/// The words of --command.
///
/// # Errors
/// There are none.
fn command_words(command: &str) -> Result<Vec<String>, Failure> {
    let words: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
    match words.is_empty() {
        true => Err(input!("--command is empty")),
        false => Ok(words),
    }
}

impl OnHosts {
    /// What is asked in a new run.
    fn manifest(
        &self,
        step: Step,
        arguments: Vec<String>,
        label: Option<String>,
    ) -> Result<Manifest, Failure> {
        let is_measuring = matches!(step, Step::Change { .. })
            || arguments
                .first()
                .is_some_and(|verb| MEASURING.contains(&verb.as_str()));
        Ok(Manifest {
            schema: SCHEMA.to_owned(),
            id: new_id(),
            label,
            started_at_s: now_s(),
            by: by(),
            nearfar: env!("CARGO_PKG_VERSION").to_owned(),
            engine: self.settings(is_measuring)?,
            command: self.command()?,
            step,
            arguments,
            at_once: self.at_once as usize,
            hosts: self.list()?,
        })
    }

    fn settings(&self, is_measuring: bool) -> Result<EngineSettings, Failure> {
        let is_slurm = self.engine == Some(Engine::Slurm);
        if !is_slurm && (self.partition.is_some() || self.exclusive.is_some()) {
            return Err(input!("--partition and --exclusive are for --engine slurm"));
        }
        let options = self.engine_options.clone();
        let time_limit_minutes = self.time_limit.unwrap_or(DEFAULT_TIME_LIMIT_MINUTES);
        Ok(match self.engine {
            Some(Engine::Slurm) => {
                if let Some(word) = check_options(&options) {
                    return Err(input!(
                        "--engine-option {word}: nearfar submits a job of its own for each host; an option and its value are one word, such as --account=perf"
                    ));
                }
                EngineSettings::Slurm(SlurmSettings {
                    partition: self.partition.clone(),
                    is_exclusive: self
                        .exclusive
                        .map_or(is_measuring, |answer| answer == YesNo::Yes),
                    time_limit_minutes: self.time_limit.unwrap_or(30),
                    options,
                })
            }
            Some(Engine::Ssh) => EngineSettings::Ssh {
                options,
                time_limit_minutes,
            },
            None => {
                return Err(input!(
                    "which engine? --engine slurm or --engine ssh runs the verb on the hosts"
                ));
            }
            Some(Engine::Local) if options.is_empty() => {
                EngineSettings::Local { time_limit_minutes }
            }
            Some(Engine::Local) => {
                return Err(input!("--engine-option is for --engine slurm and ssh"));
            }
        })
    }

    fn command(&self) -> Result<Vec<String>, Failure> {
        if let Some(command) = &self.command {
            return command_words(command);
        }
        match self.engine {
            // The one that is running.
            Some(Engine::Local) => {
                let nearfar = std::env::current_exe().map_err(Failure::refused)?;
                Ok(vec![nearfar.display().to_string()])
            }
            _ => Ok(vec!["nearfar".to_owned()]),
        }
    }

    fn list(&self) -> Result<Vec<HostName>, Failure> {
        if let Some(file) = &self.hosts_file {
            let text = std::fs::read_to_string(file)
                .map_err(|error| anyhow!("cannot read {}: {error}", file.display()))
                .map_err(Failure::Input)?;
            return parse_hosts(&text)
                .map_err(|error| anyhow!("{}: {error}", file.display()))
                .map_err(Failure::Input);
        }
        match (&self.hosts, &self.partition) {
            (Some(list), _) => parse_hosts(list).map_err(|error| input!("--hosts: {error}")),
            (None, Some(partition)) => hosts_of_partition(partition).map_err(Failure::refused),
            (None, None) => Err(input!(
                "which hosts? --hosts LIST, --hosts-file FILE or --partition PARTITION names them"
            )),
        }
    }
}

/// Make the same changes on many hosts: canaries first, and stop at the first host that gets worse
///
/// Each host measures, applies and measures again in one step. A host that is significantly worse afterwards is undone; then no further
/// host is changed, and those that were are undone as well.
#[derive(Args)]
#[command(after_long_help = "Examples:\n  \
                       nearfar fleet apply --engine slurm --partition db --results /shared/irq --canary 2 \
                       --measure 'bench latency --samples 12' -- --rule interrupt-far\n  \
                       nearfar fleet rollback --results /shared/irq")]
pub struct Apply {
    #[command(flatten)]
    on: OnHosts,
    /// Change this many hosts first, and the others only if none of these gets worse
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    canary: u32,
    /// What each host measures before and after: a verb that stores a run, with its arguments
    #[arg(long, value_name = "VERB")]
    measure: String,
    /// A host may be worse by this share
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, value_parser = margin)]
    margin: f64,
    /// When a host gets worse, leave those that were changed before as they are
    #[arg(long)]
    keep_changed: bool,
    #[command(flatten)]
    format: FormatArgs,
    /// Which changes: the options of `nearfar apply`
    #[arg(last = true, value_name = "OPTIONS")]
    arguments: Vec<String>,
}

impl Apply {
    /// Changes the hosts and prints what became of them.
    pub fn run(self, colour: Colour) -> Outcome {
        let arguments = self.words()?;
        let step = Step::Change {
            measure: self.measure.clone(),
            margin: self.margin,
        };
        let manifest = self.on.manifest(step, arguments, None)?;
        let hosts = manifest.hosts.len();
        if hosts > 1 && self.canary as usize >= hosts {
            return Err(input!(
                "--canary {}: there are {hosts} hosts, and at least one has to follow the canaries",
                self.canary
            ));
        }
        let folder = Folder::create(&self.on.results, manifest).map_err(of_folder)?;
        let _lock = folder.lock().map_err(of_folder)?;
        let cancel = signals::cancel_flag();
        let request = RolloutRequest {
            folder: &folder,
            canaries: self.canary as usize,
            keeps_changed: self.keep_changed,
            by: &by(),
            cancel: &cancel,
        };
        let mut on_event = |host: &HostName, event: &HostEvent| match event {
            HostEvent::Starting | HostEvent::Started { .. } => {}
            HostEvent::Answered => output::say!("{host}: done"),
            HostEvent::Failed { reason } | HostEvent::Lost { reason, .. } => {
                output::say!("{host}: {reason}");
            }
        };
        let ended = Arc::new(AtomicBool::new(false));
        say_when_interrupted(&cancel, &ended);
        let rolled_out = request.carry_out(&mut on_event);
        ended.store(true, Ordering::SeqCst);
        let undo = undo_command(&self.on.results);
        print(&rolled_out, "fleet-apply/1", &self.format, &undo, colour)?;
        let problem = match (rolled_out.stopped_at.first(), &rolled_out.failure) {
            (Some(HostReason { host, reason }), _) => format!("stopped at {host}: {reason}"),
            (None, Some(failure)) => failure.clone(),
            (None, None) if rolled_out.is_interrupted => {
                format!("interrupted; what was changed stays: `{undo}` undoes it")
            }
            (None, None) => return Ok(()),
        };
        let rest = match rolled_out.not_rolled_back.is_empty() {
            true => String::new(),
            false => format!("; some hosts may still be changed: `{undo}` tries again"),
        };
        Err(refused!("{problem}{rest}"))
    }

    /// The words of `apply` on each host; checked here, where one person sees what is wrong.
    fn words(&self) -> Result<Vec<String>, Failure> {
        let mut words = ["apply", "--yes", "--format", "json"]
            .map(str::to_owned)
            .to_vec();
        words.extend(self.arguments.iter().cloned());
        let measure: Vec<String> = self.measure.split_whitespace().map(str::to_owned).collect();
        let verb = measure.first().map_or("", String::as_str);
        if !MEASURING.contains(&verb) {
            return Err(input!(
                "--measure: {verb:?} does not measure; {}",
                nearfar_machine::alternatives(verb, &MEASURING.map(str::to_owned))
            ));
        }
        if let Verb::Apply(apply) = parsed(&words)?
            && let Some(option) = apply.of_one_host()
        {
            return Err(input!(
                "{option} cannot be used with fleet apply; `nearfar fleet run ... -- plan` shows what each host would change"
            ));
        }
        check_arguments(&measure)?;
        Ok(words)
    }
}

/// Undo what `fleet apply` made, on every host that is still changed
#[derive(Args)]
#[command(after_long_help = "Examples:\n  nearfar fleet rollback --results /shared/irq")]
pub struct Rollback {
    /// The folder that `fleet apply` made
    #[arg(long, value_name = "DIR")]
    results: PathBuf,
    /// How nearfar is called on the hosts [default: as in fleet apply]
    #[arg(long, value_name = "COMMAND")]
    command: Option<String>,
    #[command(flatten)]
    format: FormatArgs,
}

impl Rollback {
    /// Undoes and prints.
    pub fn run(self, colour: Colour) -> Outcome {
        let mut folder = Folder::open(&self.results).map_err(of_folder)?;
        if let Some(command) = &self.command {
            folder.manifest.command = command_words(command)?;
        }
        if !folder.manifest.is_rollout() {
            return Err(input!(
                "{} is not the folder of a fleet apply",
                self.results.display()
            ));
        }
        let _lock = folder.lock().map_err(of_folder)?;
        let cancel = signals::cancel_flag();
        let request = RolloutRequest {
            folder: &folder,
            canaries: 1,
            keeps_changed: false,
            by: &by(),
            cancel: &cancel,
        };
        let rolled_out = roll_back(&request).map_err(by_who_has_to_act)?;
        let again = undo_command(&self.results);
        print(&rolled_out, "fleet-rollback/1", &self.format, "", colour)?;
        match rolled_out.not_rolled_back.len() {
            0 => Ok(()),
            number => Err(refused!(
                "{} not rolled back; `{again}` tries again",
                nearfar_report::count(number, "host")
            )),
        }
    }
}

fn undo_command(results: &Path) -> String {
    let results = nearfar_lab::shell::word(results.as_os_str());
    format!("nearfar fleet rollback --results {results}")
}

/// Says at once what a Ctrl-C does: a step can take minutes.
fn say_when_interrupted(cancel: &Arc<AtomicBool>, ended: &Arc<AtomicBool>) {
    let (cancel, ended) = (Arc::clone(cancel), Arc::clone(ended));
    std::thread::spawn(move || {
        while !ended.load(Ordering::SeqCst) {
            if cancel.load(Ordering::SeqCst) {
                output::say!(
                    "interrupted: no further step begins; waiting for those that run (Ctrl-C again leaves them to themselves)"
                );
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    });
}

fn print(
    rolled_out: &RolledOut,
    schema: &str,
    format: &FormatArgs,
    undo: &str,
    colour: Colour,
) -> Outcome {
    let document = || nearfar_report::fleet::rolled_out(rolled_out, undo);
    format.print(colour, schema, None, rolled_out, document)
}

fn margin(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok();
    number
        .filter(|share| *share > 0.0 && *share < 1.0)
        .ok_or_else(|| "a share above 0 and below 1".to_owned())
}

//! Steps as batch jobs of Slurm, one for each host: a job of many nodes would wait until all of them are free at once.
//!
//! A job writes its answer to the run's folder, which all nodes share. It goes on when this process ends, and `--resume` takes it
//! over.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Engine, EngineError, SlurmSettings, StepCommands, StepEnd, quoted};
use crate::hosts::{HostName, parse_hosts};

/// How long the answer of a job that ended may take to be seen. NFS keeps for up to 60 s that a directory has no such file (acdirmax in
/// nfs(5)).
const ANSWER_WAIT: Duration = Duration::from_secs(75);
/// States of jobs that have not ended (squeue(1), JOB STATE CODES).
const ACTIVE: [&str; 9] = [
    "PENDING",
    "RUNNING",
    "COMPLETING",
    "CONFIGURING",
    "SUSPENDED",
    "STAGE_OUT",
    "SIGNALING",
    "STOPPED",
    "RESIZING",
];
/// Reasons of pending jobs that do not go away by waiting for other jobs (squeue(1), JOB REASON CODES).
const PERMANENT_REASONS: [&str; 7] = [
    // "ReqNodeNotAvail, May be reserved for other job" is said of a job that is about to start.
    "UnavailableNodes",
    "Reserved for maintenance",
    "PartitionDown",
    "PartitionInactive",
    "PartitionTimeLimit",
    "PartitionNodeLimit",
    "BadConstraints",
];

/// The jobs of a run.
pub(super) struct Slurm {
    steps: StepCommands,
    /// The name that all jobs of the run have.
    name: String,
    settings: SlurmSettings,
    /// By number.
    jobs: BTreeMap<String, Job>,
}

struct Job {
    host: HostName,
    /// When it was first seen to have ended without an answer.
    ended_at: Option<Instant>,
    /// Whether it waited whenever it was seen.
    has_waited: bool,
}

/// A line of `squeue`.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    state: String,
    reason: String,
}

impl Slurm {
    /// `run` is the name of the fleet run.
    pub fn new(steps: StepCommands, run: &str, settings: SlurmSettings) -> Self {
        Self {
            steps,
            name: format!("nearfar-{run}"),
            settings,
            jobs: BTreeMap::new(),
        }
    }

    /// The script of a job: an answer gets its name only when it is whole. At the time limit Slurm sends SIGTERM to all of a job's
    /// processes, and SIGKILL after KillWait (30 s): the shell outlives the step, which undoes what it changed and answers so.
    fn script(&self, host: &HostName) -> String {
        let path = |path: std::path::PathBuf| quoted(&[path.display().to_string()]);
        format!(
            "#!/bin/sh\numask 022\nset -C\npartial={}.\"$SLURM_JOB_ID\"\ntrap 'rm -f -- \"$partial\"' EXIT\ntrap : HUP TERM\n{} > \"$partial\" && mv -- \"$partial\" {}\n",
            path(self.steps.layout.partial(host)),
            quoted(&self.steps.words(host)),
            path(self.steps.layout.answer(host)),
        )
    }

    fn watch(&mut self, host: &HostName, number: &str) {
        let job = Job {
            host: host.clone(),
            ended_at: None,
            has_waited: false,
        };
        self.jobs.insert(number.to_owned(), job);
    }

    /// The options of a user stand first: of an option that is given twice sbatch takes the last (getopt_long(3)).
    fn arguments(&self, host: &HostName) -> Vec<String> {
        let settings = &self.settings;
        let mut words = settings.options.clone();
        words.extend(
            settings
                .partition
                .iter()
                .map(|name| format!("--partition={name}")),
        );
        if settings.is_exclusive {
            words.push("--exclusive".to_owned());
        }
        // % begins a pattern of sbatch.
        let log = self
            .steps
            .layout
            .log(host)
            .display()
            .to_string()
            .replace('%', "%%");
        words.extend([
            format!("--time={}", settings.time_limit_minutes),
            "--parsable".to_owned(),
            // A host that failed is named, and asked again only with --resume.
            "--no-requeue".to_owned(),
            format!("--job-name={}", self.name),
            "--nodes=1".to_owned(),
            "--ntasks=1".to_owned(),
            format!("--nodelist={host}"),
            "--output=/dev/null".to_owned(),
            format!("--error={log}"),
        ]);
        words
    }

    /// The jobs of this run that Slurm knows, ended ones for MinJobAge (300 s) included.
    fn seen(&self) -> Result<BTreeMap<String, Seen>, EngineError> {
        let text = output(
            Command::new("squeue")
                .args(["--noheader", "--states=all", "--format=%i|%T|%r"])
                .arg(format!("--name={}", self.name)),
        )?;
        Ok(parse_queue(&text))
    }

    /// Whether it is known that a job which ended never ran.
    fn has_not_begun(&self, job: &Job, seen: Option<&Seen>) -> bool {
        seen.is_some_and(|it| match it.state.as_str() {
            // It waited, and was cancelled.
            "PENDING" => true,
            // It may have begun since it was seen to wait. Slurm makes the file of the log then, and only a list of the directory
            // has it for certain: an NFS client keeps for a while that a directory has no such name.
            "CANCELLED" => job.has_waited && self.has_no_log(&job.host),
            _ => false,
        })
    }

    fn has_no_log(&self, host: &HostName) -> bool {
        let log = self.steps.layout.log(host);
        let is_it = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.map_or(true, |entry| {
                Some(entry.file_name().as_os_str()) == log.file_name()
            })
        };
        let entries = std::fs::read_dir(self.steps.layout.logs());
        entries.is_ok_and(|mut entries| !entries.any(is_it))
    }

    /// How a job ended; `None` while it goes on.
    fn judge(&self, number: &str, job: &mut Job, seen: Option<&Seen>) -> Option<Option<String>> {
        let has_answer = self.steps.layout.answer(&job.host).exists();
        let since = job.ended_at;
        let is_late = |since: Option<Instant>| since.is_some_and(|at| at.elapsed() > ANSWER_WAIT);
        let Some(Seen { state, reason }) = seen else {
            job.ended_at = since.or_else(|| Some(Instant::now()));
            let gone = "Slurm does not know its job any more, and no answer came";
            return match has_answer {
                true => Some(None),
                false => is_late(since).then(|| Some(gone.to_owned())),
            };
        };
        match state.as_str() {
            "PENDING" if PERMANENT_REASONS.iter().any(|it| reason.contains(it)) => {
                let _ = output(Command::new("scancel").arg(number));
                Some(Some(format!("its node takes no jobs: {reason}")))
            }
            state if ACTIVE.contains(&state) => {
                job.has_waited = state == "PENDING";
                None
            }
            "COMPLETED" if has_answer => Some(None),
            "COMPLETED" => {
                job.ended_at = since.or_else(|| Some(Instant::now()));
                let nowhere = "its job completed, and its answer is not in the folder: do all nodes share it?";
                is_late(since).then(|| Some(nowhere.to_owned()))
            }
            // It was renamed before the job was ended.
            _ if has_answer => Some(None),
            "NODE_FAIL" => Some(Some("its node failed during the job".to_owned())),
            "TIMEOUT" => Some(Some("its job was over its time limit".to_owned())),
            "CANCELLED" => Some(Some("its job was cancelled".to_owned())),
            "OUT_OF_MEMORY" => Some(Some("its job had no more memory".to_owned())),
            state => Some(Some(format!("its job ended as {state} ({reason})"))),
        }
    }
}

impl Engine for Slurm {
    fn unavailable(&mut self, hosts: &[HostName]) -> Result<Vec<(HostName, String)>, EngineError> {
        let text =
            output(Command::new("sinfo").args(["--noheader", "--Node", "--format=%N|%T|%E"]))?;
        let nodes = parse_nodes(&text);
        let problem = |host: &HostName| match nodes.get(host.as_str()) {
            None => Some("Slurm has no such node".to_owned()),
            Some((state, reason)) => unavailable(state).then(|| match reason.as_str() {
                "" | "none" => format!("its node is {state}"),
                reason => format!("its node is {state}: {reason}"),
            }),
        };
        let all = hosts.iter();
        Ok(all
            .filter_map(|host| Some((host.clone(), problem(host)?)))
            .collect())
    }

    fn start(&mut self, host: &HostName) -> Result<String, EngineError> {
        let mut command = Command::new("sbatch");
        command.args(self.arguments(host));
        let answer = fed(&mut command, &self.script(host))?;
        // With several clusters it is NUMBER;CLUSTER.
        let number = answer.trim().split(';').next().unwrap_or_default();
        if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(EngineError::Failed {
                program: "sbatch".to_owned(),
                reason: format!("it answered {answer:?}, which is not a job's number"),
            });
        }
        self.watch(host, number);
        Ok(number.to_owned())
    }

    fn adopt(
        &mut self,
        steps: &BTreeMap<HostName, String>,
    ) -> Result<BTreeSet<HostName>, EngineError> {
        if steps.is_empty() {
            return Ok(BTreeSet::new());
        }
        // After MinJobAge an ended job is not known any more.
        let seen = self.seen()?;
        let known = steps.iter().filter(|(_, job)| seen.contains_key(*job));
        for (host, job) in known.clone() {
            self.watch(host, job);
        }
        Ok(known.map(|(host, _)| host.clone()).collect())
    }

    fn ended(&mut self) -> Result<Vec<StepEnd>, EngineError> {
        if self.jobs.is_empty() {
            return Ok(Vec::new());
        }
        let seen = self.seen()?;
        // Listing the directory makes NFS ask its server.
        let _ = std::fs::read_dir(self.steps.layout.answers()).map(Iterator::count);
        let (mut ended, mut going_on) = (Vec::new(), BTreeMap::new());
        for (number, mut job) in std::mem::take(&mut self.jobs) {
            match self.judge(&number, &mut job, seen.get(&number)) {
                Some(problem) => ended.push(StepEnd {
                    is_not_begun: self.has_not_begun(&job, seen.get(&number)),
                    host: job.host,
                    problem,
                }),
                None => {
                    going_on.insert(number, job);
                }
            }
        }
        self.jobs = going_on;
        Ok(ended)
    }

    fn cancel(&mut self) {
        if !self.jobs.is_empty() {
            let _ = output(Command::new("scancel").arg(format!("--name={}", self.name)));
        }
        self.jobs.clear();
    }

    fn cancel_waiting(&mut self) -> Result<(), EngineError> {
        let name = format!("--name={}", self.name);
        output(Command::new("scancel").args(["--state=PENDING", &name])).map(drop)
    }

    fn has_active(&mut self) -> Result<bool, EngineError> {
        let seen = self.seen()?;
        Ok(seen.values().any(|it| ACTIVE.contains(&it.state.as_str())))
    }

    fn interval_ms(&self) -> u64 {
        // squeue takes the controller's lock for reading: 2,000 jobs need not be listed more often.
        match self.jobs.len() {
            0..=20 => 500,
            21..=200 => 2_000,
            _ => 5_000,
        }
    }
}

/// The first of these words for sbatch that makes another kind of job than one on one host of this cluster, if any.
///
/// Options that choose the node or the files of a job have no effect: nearfar's stand behind them.
pub fn check_options(options: &[String]) -> Option<&String> {
    let is_other = |word: &&String| {
        let long = word.split('=').next().unwrap_or_default();
        // Unambiguous beginnings of long options count as well.
        let is_long = [
            "--array",
            "--clusters",
            "--cluster-constraint",
            "--wrap",
            "--test-only",
        ]
        .iter()
        .any(|option| long.len() > 3 && option.starts_with(long));
        let is_short =
            !word.starts_with("--") && (word.starts_with("-a") || word.starts_with("-M"));
        is_long || is_short || !word.starts_with('-') || *word == "--"
    };
    options.iter().find(is_other)
}

/// The nodes of a partition, in Slurm's order.
///
/// # Errors
/// sinfo cannot be started or refuses, or the partition has no nodes.
pub fn hosts_of_partition(partition: &str) -> Result<Vec<HostName>, EngineError> {
    let text = output(
        Command::new("sinfo")
            .args(["--noheader", "--Node", "--format=%N"])
            .arg(format!("--partition={partition}")),
    )?;
    parse_hosts(&text).map_err(|error| EngineError::Failed {
        program: "sinfo".to_owned(),
        reason: format!("partition {partition}: {error}"),
    })
}

/// Whether a node in this state takes no job, now or soon: `down*`, `drained`, `draining`, `fail` and so on (sinfo(1), NODE STATE CODES;
/// `*` after a state says that the node does not answer).
fn unavailable(state: &str) -> bool {
    let of = [
        "down",
        "drain",
        "drng",
        "fail",
        "inval",
        "power_down",
        "unknown",
        "future",
    ];
    state.ends_with('*') || of.iter().any(|word| state.starts_with(word))
}

fn parse_queue(text: &str) -> BTreeMap<String, Seen> {
    let line = |line: &str| {
        let mut fields = line.trim().splitn(3, '|');
        let number = fields.next()?.to_owned();
        let state = fields.next()?.to_owned();
        let reason = fields.next().unwrap_or_default().to_owned();
        Some((number, Seen { state, reason }))
    };
    text.lines().filter_map(line).collect()
}

fn parse_nodes(text: &str) -> BTreeMap<String, (String, String)> {
    let line = |line: &str| {
        let mut fields = line.trim().splitn(3, '|');
        let name = fields.next()?.to_owned();
        let state = fields.next()?.to_owned();
        Some((name, (state, fields.next().unwrap_or_default().to_owned())))
    };
    text.lines().filter_map(line).collect()
}

/// What a command of Slurm prints.
fn output(command: &mut Command) -> Result<String, EngineError> {
    fed(command, "")
}

/// The same of one that reads text.
fn fed(command: &mut Command, input: &str) -> Result<String, EngineError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let not_started = |reason| EngineError::NotStarted {
        program: program.clone(),
        reason,
    };
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(not_started)?;
    if let Some(mut pipe) = child.stdin.take() {
        // One that does not read it says why on standard error.
        let _ = pipe.write_all(input.as_bytes());
    }
    let ended = child.wait_with_output().map_err(not_started)?;
    if !ended.status.success() {
        let message = String::from_utf8_lossy(&ended.stderr);
        let reason = message.lines().rfind(|line| !line.trim().is_empty());
        return Err(EngineError::Failed {
            program: program.clone(),
            reason: reason.map_or_else(|| ended.status.to_string(), |line| line.trim().to_owned()),
        });
    }
    Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_make_other_jobs_are_found() {
        let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        for good in [
            "--account=perf",
            "-Aperf",
            "--mem=2G",
            "-Jx",
            "-wn1",
            "--nice",
        ] {
            assert_eq!(check_options(&words(&[good])), None, "{good}");
        }
        for other in [
            "--array=1-4",
            "-a1-4",
            "--arr=1",
            "-Mother",
            "--clusters=x",
            "--wrap=true",
            "job.sh",
            "--",
        ] {
            let all = words(&["--account=perf", other]);
            assert_eq!(check_options(&all), Some(&all[1]), "{other}");
        }
    }

    #[test]
    fn only_a_job_that_waited_and_has_no_log_is_known_not_to_have_begun() {
        let directory = tempfile::tempdir().unwrap();
        let layout = crate::folder::Layout {
            folder: directory.path().to_owned(),
        };
        let host: HostName = "n1".parse().unwrap();
        let steps = StepCommands {
            layout: layout.clone(),
            command: Vec::new(),
            step: Vec::new(),
            arguments: Vec::new(),
        };
        let settings = SlurmSettings {
            partition: None,
            is_exclusive: false,
            time_limit_minutes: 1,
            options: Vec::new(),
        };
        let slurm = Slurm::new(steps, "run", settings);
        let seen = |state: &str| Seen {
            state: state.to_owned(),
            reason: String::new(),
        };
        // What became of a job in these states, one look after the other.
        let has_not_begun = |states: &[&str]| {
            let mut job = Job {
                host: host.clone(),
                ended_at: None,
                has_waited: false,
            };
            for state in states {
                let _ = slurm.judge("1", &mut job, Some(&seen(state)));
            }
            slurm.has_not_begun(&job, states.last().map(|state| seen(state)).as_ref())
        };
        // The directory cannot be read.
        assert!(!has_not_begun(&["PENDING", "CANCELLED"]));
        std::fs::create_dir(layout.logs()).unwrap();
        assert!(has_not_begun(&["PENDING", "CANCELLED"]));
        assert!(!has_not_begun(&["PENDING", "RUNNING", "CANCELLED"]));
        // One that an earlier nearfar started.
        assert!(!has_not_begun(&["CANCELLED"]));
        std::fs::write(layout.log(&host), "").unwrap();
        assert!(!has_not_begun(&["PENDING", "CANCELLED"]));
    }

    #[test]
    fn the_queue_and_the_nodes_are_read() {
        let queue =
            parse_queue("12|RUNNING|None\n13|PENDING|(ReqNodeNotAvail, UnavailableNodes:n2)\n\n");
        assert_eq!(queue.len(), 2);
        assert_eq!(queue["12"].state, "RUNNING");
        assert!(queue["13"].reason.contains("ReqNodeNotAvail"));
        let nodes = parse_nodes("n1|idle|none\nn2|down*|Not responding\nn3|mixed|\n");
        assert_eq!(
            nodes["n2"],
            ("down*".to_owned(), "Not responding".to_owned())
        );
        for (state, is_down) in [
            ("idle", false),
            ("mixed", false),
            ("allocated", false),
            ("idle*", true),
            ("down", true),
            ("drained", true),
            ("draining", true),
        ] {
            assert_eq!(unavailable(state), is_down, "{state}");
        }
    }
}

//! A run and its samples as values.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use nearfar_machine::{Emulation, Machine};
use nearfar_proc::{system, tasks};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cell::{Cell, Factor};
use crate::metric::{Metric, Values};

/// The parameter of a run whose samples were taken in blocks of so many rounds, with time between them: what disturbs the machine
/// for a while changes all samples of a block, so that the block is what an interval counts.
pub const ROUNDS_PER_BLOCK: &str = "rounds_per_block";

/// The parameter of a run that is looked at while it is measured, and takes no more samples of what is clear.
pub const UNTIL_CLEAR: &str = "until_clear";

/// The number of a run in its store: counted from 1, never given twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(pub i64);

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for RunId {
    type Err = RunIdError;

    fn from_str(text: &str) -> Result<Self, RunIdError> {
        match text.parse() {
            Ok(number) if number > 0 => Ok(Self(number)),
            _ => Err(RunIdError(text.to_owned())),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is not a run: give its number, as `nearfar runs list` shows it")]
pub struct RunIdError(String);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunState {
    Running,
    /// Every sample that was wanted has been taken.
    Complete,
    /// It was interrupted, or its process is gone; what is missing can be taken later.
    Interrupted,
    /// It stopped with an error, or every attempt at some samples failed; what is missing can be taken later.
    Failed,
    /// It was begun on another host or in another container, whose processes cannot be seen from here.
    OutOfSight,
}

impl fmt::Display for RunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Running => "running",
            Self::Complete => "complete",
            Self::Interrupted => "interrupted",
            Self::Failed => "failed",
            Self::OutOfSight => "out of sight",
        })
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ending {
    /// Every sample was taken.
    Complete,
    Interrupted,
    /// It could not go on or samples are missing, because of this.
    Failed(String),
}

/// What is known of a run when it begins.
#[derive(Clone, Debug)]
pub struct NewRun<'a> {
    /// The experiment's name, such as "probe".
    pub experiment: &'a str,
    /// A line that says what it is about.
    pub title: &'a str,
    pub label: Option<&'a str>,
    /// Everything that decides what a sample is. Equal parameters on an equal machine can be continued.
    pub parameters: &'a Value,
    pub factors: &'a [Factor],
    pub cells: &'a [Cell],
    /// How many samples each cell is to get.
    pub samples_per_cell: u32,
    pub seed: u64,
    /// What each sample has; exactly one is primary.
    pub metrics: &'a [Metric],
    /// What may be wrong with the whole run, in sentences, known as it begins.
    pub warnings: &'a [String],
    pub machine: &'a Machine,
    /// What two machines must have in common for samples of both to belong to one run.
    pub fingerprint: &'a str,
    pub host: &'a Host,
    /// The machines that run its commands, where that is not the one it is made on.
    pub targets: &'a [RunTarget],
}

/// A machine that ran the commands of some cells, such as a guest.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RunTarget {
    /// The cells with these levels ran on it.
    pub levels: Cell,
    /// As [`NewRun::fingerprint`].
    pub fingerprint: String,
    /// Its system.
    pub host: Host,
    /// What was emulated; `None` on real hardware.
    pub emulation: Option<Emulation>,
    /// The whole [`Machine`] as JSON, also where a newer nearfar described it.
    pub machine: Value,
}

impl RunTarget {
    /// The kernel releases of these, each once; `None` of none.
    pub fn kernels(targets: &[Self]) -> Option<String> {
        let mut kernels: Vec<&str> = Vec::new();
        for target in targets {
            if !kernels.contains(&target.host.kernel.as_str()) {
                kernels.push(&target.host.kernel);
            }
        }
        (!kernels.is_empty()).then(|| kernels.join(", "))
    }

    /// Whether its clocks follow the instructions that it executes.
    pub fn is_simulated(&self) -> bool {
        self.emulation.as_ref().is_some_and(Emulation::is_simulated)
    }
}

/// A stored run, without what is large: see [`Detail`], [`Sample`] and the machine.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Run {
    pub run: RunId,
    /// Its name in every store: 32 random hexadecimal digits.
    pub uid: String,
    pub experiment: String,
    pub title: String,
    pub label: Option<String>,
    pub state: RunState,
    pub failure: Option<String>,
    /// When it was begun, in seconds since 1970.
    pub started_at_s: f64,
    /// When it ended; a resumed one: last. `None` while it runs and where its process was killed.
    pub finished_at_s: Option<f64>,
    /// How many samples there are, failed ones included.
    pub samples: u64,
    pub with_warnings: u64,
    pub failed: u64,
    pub cells: u64,
    /// How many samples each cell is to get.
    pub samples_per_cell: u32,
    /// The host's name.
    pub host: String,
    /// Kernel release; of a run on targets those of the targets, each once, joined by `, `.
    pub kernel: String,
    /// The emulated machine; `None` for a real one.
    #[serde(alias = "emulated")]
    pub emulation: Option<Emulation>,
    pub nearfar: String,
    /// What other machines must have in common with its own to continue it.
    pub fingerprint: String,
    /// The process that carries it out, or did last.
    pub owner: Owner,
}

/// The rest of what is known of a run.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Detail {
    /// Everything that decides what a sample is.
    pub parameters: Value,
    /// What is varied, in the order of tables.
    pub factors: Vec<Factor>,
    /// The combinations that are measured, in the order of tables.
    pub plan: Vec<Cell>,
    /// What each sample has; exactly one is primary.
    pub metrics: Vec<Metric>,
    pub seed: u64,
    /// What may be wrong with the whole run, in sentences.
    pub warnings: Vec<String>,
    /// Version of the host's kernel build (`uname -v`).
    pub kernel_version: String,
    /// The host's kernel command line; empty where it could not be read.
    pub kernel_command_line: String,
    /// As [`NewRun::targets`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<RunTarget>,
}

impl Detail {
    /// Which block a round is in, from 0; `None` where samples were taken without time between them.
    pub fn block(&self, round: u32) -> Option<u32> {
        let rounds = self.parameters[ROUNDS_PER_BLOCK].as_u64()?;
        let block = u64::from(round.saturating_sub(1)).checked_div(rounds)?;
        u32::try_from(block).ok()
    }

    /// Whether it was decided from samples how many are taken, see [`UNTIL_CLEAR`].
    pub fn is_until_clear(&self) -> bool {
        self.parameters[UNTIL_CLEAR].as_bool() == Some(true)
    }

    /// The machine that took the samples of a cell; `None` where the run's own did.
    pub fn target(&self, cell: &Cell) -> Option<&RunTarget> {
        let has = |(factor, level)| cell.level(factor) == Some(level);
        let mut targets = self.targets.iter();
        targets.find(|target| target.levels.levels().all(has))
    }

    /// Factors and plan without what is varied by the targets: what the experiment itself declared.
    pub fn without_targets(&self) -> (Vec<Factor>, Vec<Cell>) {
        let is_own = |factor: &str| {
            let mut targets = self.targets.iter();
            targets.all(|target| target.levels.level(factor).is_none())
        };
        let factors = self.factors.iter().filter(|factor| is_own(&factor.name));
        // Each target has all cells.
        let mut seen = BTreeSet::new();
        let cells = self.plan.iter().map(|cell| cell.only(is_own));
        let cells = cells.filter(|cell| seen.insert(cell.clone())).collect();
        (factors.cloned().collect(), cells)
    }
}

#[derive(Clone, PartialEq, Debug)]
pub enum SampleResult {
    Measured {
        /// One for each metric of the run that is known; the primary one always is.
        values: Values,
        /// What may be wrong with the sample, in sentences.
        warnings: Vec<String>,
        /// All else that the experiment keeps of it.
        detail: Value,
    },
    Failed(String),
}

#[derive(Clone, PartialEq, Debug)]
pub struct NewSample {
    /// Which round it belongs to, from 1; a round has each cell once.
    pub round: u32,
    pub cell: Cell,
    /// When it was begun, in seconds since 1970.
    pub started_at_s: f64,
    /// How long it took with all preparations, in seconds.
    pub took_s: f64,
    pub result: SampleResult,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Which one of its run, from 1, in the order they were taken.
    pub number: u64,
    /// Which round it belongs to, from 1.
    pub round: u32,
    pub cell: Cell,
    /// When it was begun, in seconds since 1970.
    pub started_at_s: f64,
    /// How long it took with all preparations.
    pub took_s: f64,
    /// By the metric's name; empty where the attempt failed.
    pub values: Values,
    pub failed: Option<String>,
    /// What may be wrong with the sample, in sentences.
    pub warnings: Vec<String>,
    /// All else that the experiment kept of it; `null` where the attempt failed.
    pub detail: Value,
}

impl Sample {
    /// The value of a metric as one number (of a histogram: its median); `None` where it is unknown.
    pub fn number(&self, metric: &str) -> Option<f64> {
        Some(self.values.get(metric)?.number())
    }
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct Filter {
    /// Only those of this experiment.
    pub experiment: Option<String>,
    /// Only those with this label.
    pub label: Option<String>,
    /// Only those begun at or after this time, in seconds since 1970.
    pub since_s: Option<f64>,
    /// At most so many, the newest.
    pub limit: Option<u32>,
}

/// The time now, in seconds since 1970.
pub fn now_s() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar. Years are counted from March, so
/// that the leap day comes last.
pub fn utc_date(days: u64) -> (u64, u64, u64) {
    // From 0000-03-01.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Host {
    pub name: String,
    /// Kernel release, `6.12.0-1-amd64`.
    pub kernel: String,
    /// Version of the kernel's build (`uname -v`).
    pub kernel_version: String,
    /// The kernel's command line; empty where it cannot be read.
    pub kernel_command_line: String,
}

impl Host {
    pub fn here() -> Self {
        let uname = rustix::system::uname();
        Self {
            name: uname.nodename().to_string_lossy().into_owned(),
            kernel: uname.release().to_string_lossy().into_owned(),
            kernel_version: uname.version().to_string_lossy().into_owned(),
            kernel_command_line: std::fs::read_to_string("/proc/cmdline")
                .map_or_else(|_| String::new(), |t| t.trim().to_owned()),
        }
    }
}

/// A process, told apart from every other that had or will have its number.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Owner {
    /// The process number, as it sees it itself.
    pub pid: i32,
    /// When it started, in clock ticks after the boot (field 22 of `/proc/PID/stat`, proc_pid_stat(5)).
    pub started_ticks: u64,
    /// The boot (`/proc/sys/kernel/random/boot_id`).
    pub boot: String,
    /// The process number space (`/proc/self/ns/pid`), which differs between containers of one boot.
    pub pid_namespace: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Alive {
    Yes,
    No,
    /// It is, or was, on another host or in another container.
    CannotTell,
}

impl Owner {
    pub fn this_process() -> Self {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        Self {
            pid,
            started_ticks: started_ticks(pid).unwrap_or(0),
            boot: system::boot_id().unwrap_or_default(),
            pid_namespace: system::pid_namespace().unwrap_or_default(),
        }
    }

    /// Whether that process, of a host of this name, still runs, seen from `here` by `us`.
    pub(crate) fn alive(&self, its_host: &str, here: &Host, us: &Self) -> Alive {
        if self.boot != us.boot {
            // The same name with another boot: restarted since. Another name: who knows.
            return if its_host == here.name {
                Alive::No
            } else {
                Alive::CannotTell
            };
        }
        if self.pid_namespace != us.pid_namespace {
            return Alive::CannotTell;
        }
        match started_ticks(self.pid) {
            Some(ticks) if ticks == self.started_ticks => Alive::Yes,
            _ => Alive::No,
        }
    }
}

/// When a process started; `None` when it is gone, or dead and only waited for.
fn started_ticks(pid: i32) -> Option<u64> {
    let stat = tasks::stat(pid).ok()?;
    (!stat.is_ended()).then_some(stat.id.start)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_the_targets_vary_is_not_the_experiments_own() {
        let target = |append: &str| {
            let host =
                json!({"name": "", "kernel": "", "kernel_version": "", "kernel_command_line": ""});
            json!({"levels": {"append": append}, "fingerprint": "", "host": host, "emulation": null, "machine": null})
        };
        let mut stored = json!({
            "parameters": {}, "metrics": [], "seed": 1, "warnings": [], "kernel_version": "",
            "kernel_command_line": "",
            "factors": [
                {"name": "append", "levels": ["quiet", "none"]}, {"name": "speed", "levels": ["fast", "slow"]},
            ],
            "plan": [
                {"append": "quiet", "speed": "slow"}, {"append": "quiet", "speed": "fast"},
                {"append": "none", "speed": "slow"}, {"append": "none", "speed": "fast"},
            ],
            "targets": [target("quiet"), target("none")],
        });
        let detail: Detail = serde_json::from_value(stored.clone()).unwrap();
        let (factors, cells) = detail.without_targets();
        assert_eq!(factors, [Factor::new("speed", ["fast", "slow"])]);
        let speeds: Vec<String> = cells.iter().map(Cell::to_string).collect();
        assert_eq!(speeds, ["speed=slow", "speed=fast"]);
        stored["targets"] = json!([]);
        let here: Detail = serde_json::from_value(stored).unwrap();
        assert_eq!(
            here.without_targets(),
            (here.factors.clone(), here.plan.clone())
        );
    }

    #[test]
    fn this_process_is_alive_and_another_with_its_number_is_not() {
        let here = Host::here();
        let this = Owner::this_process();
        let us = this.clone();
        assert_eq!(this.alive(&here.name, &here, &us), Alive::Yes);
        let earlier = Owner {
            started_ticks: this.started_ticks.wrapping_sub(1),
            ..this.clone()
        };
        assert_eq!(earlier.alive(&here.name, &here, &us), Alive::No);
        let before_the_boot = Owner {
            boot: "another".into(),
            ..this.clone()
        };
        assert_eq!(before_the_boot.alive(&here.name, &here, &us), Alive::No);
        assert_eq!(
            before_the_boot.alive("elsewhere", &here, &us),
            Alive::CannotTell
        );
        let in_a_container = Owner {
            pid_namespace: "pid:[1]".into(),
            ..this
        };
        assert_eq!(
            in_a_container.alive(&here.name, &here, &us),
            Alive::CannotTell
        );
    }
}

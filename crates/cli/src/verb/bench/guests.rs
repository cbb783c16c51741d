//! Guests of the lab that take the samples of an experiment.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nearfar_experiment::{BoxError, Cell, Factor, Target, TargetError, TargetOutput, Targets};
use nearfar_lab::LabError;
use nearfar_lab::cache::Cache;
use nearfar_lab::delay::TimeSpec;
use nearfar_lab::guest::{Exec, Guest, PreparedGuest, Signals};
use nearfar_lab::request::GuestRequest;
use nearfar_machine::Machine;
use nearfar_runs::{Detail, Host, Run};

use crate::failure::{Failure, input};
use crate::output;
use crate::verb::lab::guest::{GuestArgs, booted, captured, failure};

/// The guests of `--guest KEY=VALUE ...`, understood and not booted.
pub struct Guests {
    /// The keys that are given several times.
    factors: Vec<Factor>,
    /// What differs between them, by guest; one cell without factors where there is one guest.
    pub levels: Vec<Cell>,
    requests: Vec<GuestRequest>,
}

/// The same with their kernels and the like.
pub struct PreparedGuests {
    factors: Vec<Factor>,
    guests: Vec<PreparedGuest>,
}

impl Guests {
    /// `None` without any such option. `time` is that of guests for which none is asked.
    ///
    /// # Errors
    /// The first option that is wrong, by its words.
    pub fn read(options: &[String], time: TimeSpec) -> Result<Option<Self>, Failure> {
        if options.is_empty() {
            return Ok(None);
        }
        let (same, factors) = split(options)?;
        let levels = Cell::all(&factors);
        let requests = levels
            .iter()
            .map(|levels| args(&same, levels)?.request(time));
        Ok(Some(Self {
            requests: requests.collect::<Result<_, Failure>>()?,
            factors,
            levels,
        }))
    }

    /// What they are made of.
    ///
    /// # Errors
    /// The first guest for which something is missing.
    pub fn prepare(self) -> Result<PreparedGuests, Failure> {
        let Self {
            factors,
            levels,
            requests,
        } = self;
        let cache = Cache::of_user().map_err(failure)?;
        let guests = GuestRequest::prepare_alike(&requests, &cache);
        let guests = guests.map_err(|(at, error)| {
            let (levels, error) = (levels[at].clone(), Box::new(error));
            refusal(TargetError::Open { levels, error })
        })?;
        Ok(PreparedGuests { factors, guests })
    }
}

impl PreparedGuests {
    /// Whether the samples are taken in simulated time, in all of them.
    pub fn are_simulated(&self) -> bool {
        self.guests.iter().all(PreparedGuest::is_simulated)
    }

    /// The guests, all up, and the path of this program in them.
    ///
    /// # Errors
    /// The first guest that cannot be booted; those before it are ended.
    pub fn boot(self, cancel: &AtomicBool) -> Result<(Targets, PathBuf), Failure> {
        let program = std::env::current_exe().map_err(Failure::refused)?;
        let mut guests = self.guests.into_iter();
        let targets = Targets::open(self.factors, |levels| {
            let prepared = guests.next().ok_or("no guest")?;
            output::say!("{}", starting(levels));
            let guest = booted(&prepared, cancel)?;
            Ok(Box::new(GuestTarget::new(guest, &program, cancel)?))
        });
        Ok((targets.map_err(refusal)?, program))
    }
}

/// Refuses to continue a run whose samples were taken in other guests than these, before one is booted.
///
/// # Errors
/// Where the samples were taken.
pub fn same_guests(run: &Run, detail: &Detail, guests: Option<&Guests>) -> Result<(), Failure> {
    let stored: BTreeSet<&Cell> = detail.targets.iter().map(|target| &target.levels).collect();
    let given: BTreeSet<&Cell> = guests.iter().flat_map(|guests| &guests.levels).collect();
    if stored == given {
        return Ok(());
    }
    let names: Vec<String> = stored.iter().map(ToString::to_string).collect();
    let of_run = match stored.first() {
        None => "on this machine: leave --guest out".to_owned(),
        Some(levels) if **levels == Cell::new() => {
            "in one guest: repeat the --guest options".to_owned()
        }
        Some(_) => format!(
            "in guests of {}: repeat the --guest options",
            names.join(", ")
        ),
    };
    let run = run.run;
    Err(input!(
        "run {run} cannot be continued so: its samples were taken {of_run}"
    ))
}

fn starting(levels: &Cell) -> String {
    match levels.levels().next() {
        Some(_) => format!("starting the guest of {levels}"),
        None => "starting the guest".to_owned(),
    }
}

/// A key that is given once is the same in all guests; one given several times is a factor.
fn split(options: &[String]) -> Result<(Cell, Vec<Factor>), Failure> {
    let mut factors: Vec<Factor> = Vec::new();
    for option in options {
        let wanted = || input!("--guest {option}: KEY=VALUE is wanted");
        let (key, value) = option.split_once('=').ok_or_else(wanted)?;
        match factors.iter_mut().find(|factor| factor.name == key) {
            Some(factor) if factor.levels.contains(&value.into()) => {
                return Err(input!("--guest {option}: given twice"));
            }
            Some(factor) => factor.levels.push(value.into()),
            None => factors.push(Factor::new(key, [value])),
        }
    }
    let (varied, same): (Vec<_>, Vec<_>) = factors.into_iter().partition(|it| it.levels.len() > 1);
    let same = same.into_iter().fold(Cell::new(), |same, factor| {
        same.with(factor.name, factor.levels[0].clone())
    });
    Ok((same, varied))
}

fn args(same: &Cell, levels: &Cell) -> Result<GuestArgs, Failure> {
    let mut pairs = same.levels().chain(levels.levels());
    pairs.try_fold(GuestArgs::default(), |guest, (key, value)| {
        let wrong = |reason| input!("--guest {key}={value}: {reason}");
        guest.with(key, &value.to_string()).map_err(wrong)
    })
}

/// What the lab refuses keeps its exit code; the guest that it refuses is said.
fn refusal(error: TargetError) -> Failure {
    let TargetError::Open { levels, error } = error else {
        return Failure::refused(error);
    };
    match error.downcast::<LabError>() {
        Ok(error) => match failure(*error) {
            Failure::Input(error) => Failure::Input(error.context(format!("--guest {levels}"))),
            other => other,
        },
        Err(error) => Failure::refused(TargetError::Open { levels, error }),
    }
}

struct GuestTarget {
    guest: Guest,
    machine: Machine,
    host: Host,
}

impl GuestTarget {
    fn new(mut guest: Guest, program: &Path, cancel: &AtomicBool) -> Result<Self, BoxError> {
        let topo = ["topo", "--no-tasks", "--format", "json"].map(OsString::from);
        let topo = [&[program.into()], &topo[..]].concat();
        let machine = serde_json::from_slice(&printed(&mut guest, &topo, cancel)?)?;
        let files = ["hostname", "osrelease", "version"];
        let files = files.map(|name| format!("/proc/sys/kernel/{name}").into());
        let cat = [&["cat".into()], &files[..], &["/proc/cmdline".into()]].concat();
        let text = String::from_utf8(printed(&mut guest, &cat, cancel)?)?;
        let mut lines = text.lines().map(str::to_owned);
        let mut line = || lines.next().unwrap_or_default();
        let host = Host {
            name: line(),
            kernel: line(),
            kernel_version: line(),
            kernel_command_line: line(),
        };
        Ok(Self {
            guest,
            machine,
            host,
        })
    }
}

impl Target for GuestTarget {
    fn machine(&self) -> &Machine {
        &self.machine
    }

    fn host(&self) -> &Host {
        &self.host
    }

    fn run(&mut self, command: &[OsString], cancel: &AtomicBool) -> Result<TargetOutput, BoxError> {
        run(&mut self.guest, command, cancel)
    }
}

fn run(
    guest: &mut Guest,
    command: &[OsString],
    cancel: &AtomicBool,
) -> Result<TargetOutput, BoxError> {
    let signals = Signals::of_process()?;
    let exec = Exec {
        is_sample: true,
        ..Exec::new(command)
    };
    let output = captured(guest, &exec, &signals)?;
    if cancel.load(Ordering::Relaxed) {
        return Err(LabError::Interrupted.into());
    }
    Ok(output)
}

/// The output of a command that has to succeed.
fn printed(
    guest: &mut Guest,
    command: &[OsString],
    cancel: &AtomicBool,
) -> Result<Vec<u8>, BoxError> {
    let TargetOutput {
        exit_code,
        stdout,
        stderr,
    } = run(guest, command, cancel)?;
    match exit_code {
        0 => Ok(stdout),
        _ => {
            let stderr = String::from_utf8_lossy(&stderr).trim().to_owned();
            Err(TargetError::Exit { exit_code, stderr }.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(options: &[&str]) -> Guests {
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        Guests::read(&options, TimeSpec::Host).unwrap().unwrap()
    }

    #[test]
    fn a_guest_is_named_where_there_are_several() {
        let said = |options: &[&str]| {
            let guests = read(options);
            guests.levels.iter().map(starting).collect::<Vec<_>>()
        };
        assert_eq!(said(&["machine=two-node"]), ["starting the guest"]);
        assert_eq!(
            said(&["machine=two-node", "append=quiet", "append=nokaslr"]),
            [
                "starting the guest of append=quiet",
                "starting the guest of append=nokaslr"
            ]
        );
    }
}

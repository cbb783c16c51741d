//! The machines that samples are taken on, where a factor needs more than one.
//!
//! ```text
//!  factor kernel_arguments: "", "numa=fake=4"
//!                            │        │
//!        Targets::open ──► guest    guest         both are up before the first sample
//!                            ▲        ▲
//!  round 1   cell B ─────────┼────────┘           the order is over all cells, so the targets take turns
//!            cell A ─────────┘
//! ```
//!
//! An experiment holds its [`Targets`], asks [`Targets::of`] for that of a cell, and puts [`Targets::describe`] into its
//! parameters: a run is continued only on equal machines, and each of them is in the stored run.

use std::ffi::OsString;

use nearfar_machine::Machine;
use nearfar_runs::{Cell, Factor, Host, Level};
use serde_json::{Value, json};
use thiserror::Error;

use crate::experiment::BoxError;
use crate::fingerprint::fingerprint;

/// A machine that runs commands: this one, a guest of the lab, another host.
pub trait Target {
    /// What a source saw of it.
    fn machine(&self) -> &Machine;

    /// Runs a command without input to its end.
    ///
    /// # Errors
    /// When it cannot be started, or the target is gone.
    fn run(&mut self, command: &[OsString]) -> Result<TargetOutput, BoxError>;
}

/// What a command printed on a target, and how it ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TargetOutput {
    /// 128 and the signal's number if a signal ended it.
    pub exit_code: i32,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
}

/// A target that is not there.
#[derive(Debug, Error)]
pub enum TargetError {
    /// It cannot be opened.
    #[error("cannot open the target of {factor} {level}: {error}")]
    Open {
        /// The factor that needs it.
        factor: String,
        /// Its level.
        level: Level,
        /// The reason.
        #[source]
        error: BoxError,
    },
    /// A cell without a level that has a target.
    #[error("no target for this cell: factor {factor} has no such level")]
    Cell {
        /// The factor that decides the target.
        factor: String,
    },
}

/// A target for each level of a factor.
#[derive(Debug)]
pub struct Targets<T> {
    factor: String,
    targets: Vec<(Level, T)>,
}

impl<T: Target> Targets<T> {
    /// Opens the target of each level, in the order of the levels. Dropping closes them.
    ///
    /// # Errors
    /// [`TargetError::Open`] for the first that cannot be opened; those before it are closed.
    pub fn open(
        factor: &Factor,
        mut open: impl FnMut(&Level) -> Result<T, BoxError>,
    ) -> Result<Self, TargetError> {
        let opened = factor.levels.iter().map(|level| {
            let target = open(level).map_err(|error| TargetError::Open {
                factor: factor.name.clone(),
                level: level.clone(),
                error,
            })?;
            Ok((level.clone(), target))
        });
        Ok(Self {
            factor: factor.name.clone(),
            targets: opened.collect::<Result<_, TargetError>>()?,
        })
    }

    /// The target of a cell.
    ///
    /// # Errors
    /// [`TargetError::Cell`] when the cell has not the factor, or a level that was not opened.
    pub fn of(&mut self, cell: &Cell) -> Result<&mut T, TargetError> {
        let level = cell.level(&self.factor);
        self.targets
            .iter_mut()
            .find(|(of, _)| Some(of) == level)
            .map(|(_, target)| target)
            .ok_or_else(|| TargetError::Cell {
                factor: self.factor.clone(),
            })
    }

    /// Level, fingerprint, kernel and emulation of each target, for the parameters of an experiment.
    pub fn describe(&self) -> Value {
        let one = |(level, target): &(Level, T)| {
            let machine = target.machine();
            let host = host_of(machine);
            json!({
                "level": level,
                "fingerprint": fingerprint(machine, &host),
                "kernel": host.kernel,
                "emulation": machine.origin.emulation,
            })
        };
        json!({ "factor": self.factor, "targets": self.targets.iter().map(one).collect::<Vec<_>>() })
    }
}

/// The host of a machine, as far as its source names it.
fn host_of(machine: &Machine) -> Host {
    Host {
        name: machine.origin.host.clone().unwrap_or_default(),
        kernel: machine.origin.kernel.get().cloned().unwrap_or_default(),
        kernel_version: String::new(),
        kernel_command_line: String::new(),
    }
}

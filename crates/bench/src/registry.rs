//! The experiments that `nearfar bench` has, as data: verb, help, arguments and output come from here.
//!
//! ```text
//!  EXPERIMENTS ─► Entry {declaration, carry_out} ─► cli: a verb, --help, --factor NAME=LEVELS, own arguments
//!                                  │
//!                  Arguments ──────┴─► Experiment ─► nearfar_experiment::carry_out ─► store
//!                                       └─ with --guest: OnTargets, which takes each sample with the same verb in a guest
//! ```

mod arguments;
mod declaration;

use std::ffi::OsString;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nearfar_experiment::{
    BoxError, Cell, Ended, Experiment, ExperimentError, Level, OnTargets, Options, RunId, RunPlan,
    Targets, carry_out,
};
use nearfar_machine::{CpuSet, Machine};
use nearfar_proc::affinity;
use nearfar_runs::Store;
use serde::{Deserialize, Serialize};

use crate::{command, conditions, io, matrix, mock, rps, scale, tags};

pub use arguments::{ArgumentError, Arguments, given};
pub(crate) use arguments::{node, number, size, within};
pub(crate) use declaration::SECONDS;
pub use declaration::{Declaration, Levels, Varied, simulated_default};

/// The experiments that are carried out as they declare.
pub const EXPERIMENTS: &[Entry] = &[
    matrix::ENTRY,
    tags::ENTRY,
    io::ENTRY,
    rps::ENTRY,
    scale::ENTRY,
    command::ENTRY,
    mock::ENTRY,
];

/// One experiment.
pub struct Entry {
    pub declaration: Declaration,
    pub carry_out: fn(Request<'_>) -> Result<Done, RunError>,
}

/// The hidden option of every experiment's verb that takes one sample and prints it as JSON, without storing it.
pub const ONE_SAMPLE: &str = "--one-sample";

/// The hidden option that prints what would be measured, an [`Announcement`] as JSON.
pub const PLAN: &str = "--plan";

/// A run that is asked for.
pub struct Request<'a> {
    pub arguments: Arguments,
    pub options: Options,
    pub store: &'a mut Store,
    pub machine: &'a Machine,
    /// Ends it when set.
    pub cancel: &'a AtomicBool,
    /// The machines that take the samples, and the path of `nearfar` there; `None` for this one.
    pub targets: Option<(Targets, PathBuf)>,
    /// Told what is about to be measured, before the first sample; nothing is where it breaks.
    pub announce: &'a dyn Fn(&Announcement) -> ControlFlow<()>,
}

/// What is about to be measured.
#[derive(Serialize, Deserialize)]
pub struct Announcement {
    /// On all targets.
    pub plan: RunPlan,
    /// What may be wrong with the whole run; stored with it.
    pub warnings: Vec<String>,
    /// What is not measured, in sentences.
    pub notes: Vec<String>,
    /// What a sample takes, where that is known.
    pub sample: Option<Duration>,
}

/// Where an experiment is made.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    pub machine: &'a Machine,
    /// Ends it when set.
    pub cancel: &'a AtomicBool,
    /// Whether `machine` takes the samples, and not another one.
    pub is_measured_here: bool,
}

impl Context<'_> {
    /// The CPUs that are online and that this process may use.
    pub fn allowed_cpus(&self) -> CpuSet {
        allowed_cpus(self.machine)
    }
}

/// The CPUs of a machine that are online and that this process may use.
pub(crate) fn allowed_cpus(machine: &Machine) -> CpuSet {
    let online = &machine.cpu_states.online;
    affinity::get(0).map_or(online.clone(), |allowed| allowed.intersection(online))
}

/// An experiment that is ready to be carried out.
pub struct Made<E> {
    pub experiment: E,
    /// What may be wrong with the whole run; stored with it.
    pub warnings: Vec<String>,
    /// What is not measured, in sentences.
    pub notes: Vec<String>,
    /// What a sample takes, where that is known.
    pub sample: Option<Duration>,
}

impl<E> From<E> for Made<E> {
    fn from(experiment: E) -> Self {
        Self {
            experiment,
            warnings: Vec::new(),
            notes: Vec::new(),
            sample: None,
        }
    }
}

/// A run that was carried out.
pub struct Done {
    pub run: RunId,
    pub ended: Ended,
}

/// Why a run was not carried out to its end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Arguments(#[from] ArgumentError),
    #[error(transparent)]
    Target(BoxError),
    #[error(transparent)]
    Prepare(BoxError),
    #[error("interrupted before the first sample: nothing is kept")]
    Interrupted,
    #[error(transparent)]
    Experiment(#[from] ExperimentError),
}

impl<'a> Request<'a> {
    /// Makes the experiment and carries it out.
    pub(crate) fn carry_out<E: Experiment>(
        mut self,
        make: impl FnOnce(&Arguments, Context<'a>) -> Result<Made<E>, RunError>,
    ) -> Result<Done, RunError> {
        let (machine, cancel) = (self.machine, self.cancel);
        let context = Context {
            machine,
            cancel,
            is_measured_here: self.targets.is_none(),
        };
        let mut made = make(&self.arguments, context)?;
        let governor = conditions::governor(machine).filter(|_| context.is_measured_here);
        let governor = governor.map(|warning| warning.to_string());
        made.warnings.extend(governor);
        let experiment = made.experiment;
        let Some((mut targets, program)) = self.targets.take() else {
            let announced = Announcement {
                plan: experiment.plan(),
                warnings: made.warnings,
                notes: made.notes,
                sample: made.sample,
            };
            return self.done(experiment, announced);
        };
        let name = experiment.name();
        let program: OsString = program.into();
        let mut command = self.arguments.of_plan(name)?;
        command.insert(0, program.clone());
        let asked = targets.ask::<Announcement>(&command, cancel);
        let asked = asked.map_err(|error| match cancel.load(Ordering::Relaxed) {
            true => RunError::Interrupted,
            false => RunError::Target(error),
        });
        let (mut warnings, mut notes, mut plans) = (Vec::new(), Vec::new(), Vec::new());
        for (levels, of_target) in asked? {
            let said = |said: String| match levels.levels().next() {
                None => said,
                Some(_) => format!("{levels}: {said}"),
            };
            warnings.extend(of_target.warnings.into_iter().map(said));
            notes.extend(of_target.notes.into_iter().map(said));
            plans.push(of_target.plan);
        }
        let [mut words, own] = self.arguments.of_one_sample(name)?;
        words.insert(0, program);
        let level = |(name, level): (&str, &Level)| format!("--factor={name}={level}").into();
        let command = move |cell: &Cell| {
            let levels: Vec<OsString> = cell.levels().map(level).collect();
            [words.as_slice(), &levels, &own].concat()
        };
        let experiment = OnTargets::new(experiment, targets, plans, command);
        let announced = Announcement {
            plan: experiment.plan(),
            warnings,
            notes,
            // What a guest adds to it is not known.
            sample: None,
        };
        self.done(experiment, announced)
    }

    fn done<E: Experiment>(
        mut self,
        mut experiment: E,
        announced: Announcement,
    ) -> Result<Done, RunError> {
        if (self.announce)(&announced).is_break() {
            return Err(RunError::Interrupted);
        }
        self.options.warnings.extend(announced.warnings);
        let (store, machine, cancel) = (self.store, self.machine, self.cancel);
        let outcome = carry_out(&mut experiment, self.options, store, machine, cancel)?;
        Ok(Done {
            run: outcome.run,
            ended: outcome.ended,
        })
    }
}

#[cfg(test)]
mod tests;

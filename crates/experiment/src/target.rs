//! Experiments on other machines than this one, such as guests of the lab.
//!
//! ```text
//!  factor append: none, numa=fake=4
//!                   │        │
//!  Targets::open ─► guest   guest      all are up before the first sample
//!                   ▲        ▲
//!  round 1  cell B ─┼────────┘         the order is over all cells, so the targets take turns
//!           cell A ─┘
//!           OnTargets::run: "nearfar bench NAME --one-sample --factor ..." on the target ─► sample as JSON
//! ```
//!
//! Guests in simulated time work at the same time ([`Ahead`]), each on its own cells in the order of the round.
//!
//! Each target is asked before the first sample which of the cells it has ([`Targets::ask`]).
//! Settings, setup and teardown of a sample take place on its target, by the command that takes the sample.

use std::ffi::OsString;
use std::sync::atomic::AtomicBool;

use nearfar_machine::Machine;
use nearfar_runs::{Cell, Factor, Host, Metric, MetricValue, RunTarget, Sample};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::ahead::{Ahead, Take};
use crate::experiment::{BoxError, Column, Experiment, RunPlan, Settled, named};
use crate::recording::fingerprint;
use crate::sampler::Order;

/// A machine that runs commands.
pub trait Target: Send {
    fn machine(&self) -> &Machine;

    fn host(&self) -> &Host;

    /// Runs a command without input to its end.
    ///
    /// # Errors
    /// When it cannot be started, when the target is gone, and once `cancel` is set.
    fn run(&mut self, command: &[OsString], cancel: &AtomicBool) -> Result<TargetOutput, BoxError>;
}

/// What a command printed on a target, and how it ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TargetOutput {
    /// 128 and the signal's number if a signal ended it.
    pub exit_code: i32,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

#[derive(Debug, Error)]
pub enum TargetError {
    #[error("cannot open the target of {}: {error}", named(.levels))]
    Open {
        levels: Cell,
        #[source]
        error: BoxError,
    },
    #[error("no target for the cell {cell}")]
    Cell { cell: Cell },
    #[error("the command on the target exited with code {exit_code}: {stderr}")]
    Exit { exit_code: i32, stderr: String },
    #[error("cannot read what the target printed: {0}")]
    Answer(#[source] serde_json::Error),
}

/// A target for each combination of levels of some factors.
pub struct Targets {
    factors: Vec<Factor>,
    targets: Vec<(Cell, Box<dyn Target>)>,
}

impl Targets {
    /// Opens the target of each combination, in the order of the levels. Dropping closes them. Without factors there is
    /// one target, for all cells.
    ///
    /// # Errors
    /// [`TargetError::Open`] for the first that cannot be opened; those before it are closed.
    pub fn open(
        factors: Vec<Factor>,
        mut open: impl FnMut(&Cell) -> Result<Box<dyn Target>, BoxError>,
    ) -> Result<Self, TargetError> {
        let targets = Cell::all(&factors).into_iter().map(|levels| {
            let target = open(&levels);
            match target {
                Ok(target) => Ok((levels, target)),
                Err(error) => Err(TargetError::Open { levels, error }),
            }
        });
        let targets = targets.collect::<Result<_, _>>()?;
        Ok(Self { factors, targets })
    }

    /// What a command prints on each of them, read from JSON, with the target's levels.
    ///
    /// # Errors
    /// Of the first that cannot run it, or prints something else.
    pub fn ask<A: DeserializeOwned>(
        &mut self,
        command: &[OsString],
        cancel: &AtomicBool,
    ) -> Result<Vec<(Cell, A)>, BoxError> {
        let all = self.targets.iter_mut();
        let answers = all.map(|(levels, target)| {
            let answer = answer(target.as_mut(), command, cancel)?;
            Ok((levels.clone(), answer))
        });
        answers.collect()
    }

    fn records(&self) -> Vec<RunTarget> {
        let record = |(levels, target): &(Cell, Box<dyn Target>)| {
            let (machine, host) = (target.machine(), target.host());
            RunTarget {
                levels: levels.clone(),
                fingerprint: fingerprint(machine, host),
                host: host.clone(),
                emulation: machine.origin.emulation.clone(),
                // A machine that came as JSON has some.
                machine: serde_json::to_value(machine).unwrap_or_default(),
            }
        };
        self.targets.iter().map(record).collect()
    }
}

fn answer<A: DeserializeOwned>(
    target: &mut dyn Target,
    command: &[OsString],
    cancel: &AtomicBool,
) -> Result<A, BoxError> {
    let output = target.run(command, cancel)?;
    if output.exit_code != 0 {
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let exit_code = output.exit_code;
        return Err(TargetError::Exit { exit_code, stderr }.into());
    }
    Ok(serde_json::from_slice(&output.stdout).map_err(TargetError::Answer)?)
}

/// An experiment whose samples are taken on targets, with their factors in front of its own.
pub struct OnTargets<E, C> {
    experiment: E,
    records: Vec<RunTarget>,
    plan: RunPlan,
    command: C,
    samples: Ahead<Sample>,
}

impl<E: Experiment, C: Fn(&Cell) -> Vec<OsString>> OnTargets<E, C> {
    /// `plans` has what each target measures, in their order. `command` takes one sample of a cell of the experiment and prints it as
    /// JSON of [`Sample`].
    pub fn new(experiment: E, targets: Targets, plans: Vec<RunPlan>, command: C) -> Self {
        let mut plan = experiment.plan();
        plan.cells.clear();
        for ((levels, _), of_target) in targets.targets.iter().zip(plans) {
            let cells = of_target.cells.into_iter();
            plan.cells.extend(cells.map(|cell| join(cell, levels)));
            for factor in of_target.factors {
                match plan.factors.iter_mut().find(|it| it.name == factor.name) {
                    Some(known) => {
                        let (old, mut new) = (&mut known.levels, factor.levels);
                        new.retain(|level| !old.contains(level));
                        old.append(&mut new);
                    }
                    None => plan.factors.push(factor),
                }
            }
        }
        let records = targets.records();
        plan.factors.splice(..0, targets.factors);
        let takes = targets.targets.into_iter().map(|(_, mut target)| {
            let take =
                move |command: &[OsString], end: &AtomicBool| answer(target.as_mut(), command, end);
            Box::new(take) as Take<Sample>
        });
        Self {
            experiment,
            samples: Ahead::new(&records, takes.collect()),
            records,
            plan,
            command,
        }
    }

    /// The place of a cell's target.
    fn target(&self, cell: &Cell) -> Result<usize, TargetError> {
        let is_of = |record: &RunTarget| {
            let mut levels = record.levels.levels();
            levels.all(|(factor, level)| cell.level(factor) == Some(level))
        };
        let place = self.records.iter().position(is_of);
        place.ok_or_else(|| TargetError::Cell { cell: cell.clone() })
    }

    fn command(&self, cell: &Cell, target: usize) -> Vec<OsString> {
        let is_own = |factor: &str| self.records[target].levels.level(factor).is_none();
        (self.command)(&cell.only(is_own))
    }
}

/// A sample that a target took, stored as the experiment's own sample.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TookOnTarget<S> {
    sample: S,
    /// All that the target knows of, in sentences. The store keeps the warnings of each sample in their own place.
    #[serde(skip)]
    warnings: Vec<String>,
}

impl<E: Experiment, C: Fn(&Cell) -> Vec<OsString>> Experiment for OnTargets<E, C> {
    type Sample = TookOnTarget<E::Sample>;

    fn name(&self) -> &str {
        self.experiment.name()
    }

    fn title(&self) -> String {
        self.experiment.title()
    }

    fn plan(&self) -> RunPlan {
        self.plan.clone()
    }

    fn targets(&self) -> Vec<RunTarget> {
        self.records.clone()
    }

    fn order(&self, seed: u64) -> Order {
        self.experiment.order(seed)
    }

    fn settled(&self) -> Option<Settled> {
        self.experiment.settled()
    }

    fn begin(&mut self, cells: &[&Cell]) {
        for cell in cells {
            // A cell without a target is refused when its turn comes.
            if let Ok(target) = self.target(cell) {
                let command = self.command(cell, target);
                self.samples.begin(target, cell, command);
            }
        }
    }

    fn has(&mut self, cell: &Cell) -> bool {
        self.samples.has(cell)
    }

    fn run(&mut self, cell: &Cell, cancel: &AtomicBool) -> Result<Self::Sample, BoxError> {
        let target = self.target(cell)?;
        let command = self.command(cell, target);
        let taken = self.samples.take(target, cell, command, cancel)?;
        match taken.failed {
            Some(reason) => Err(reason.into()),
            None => Ok(TookOnTarget {
                sample: serde_json::from_value(taken.detail).map_err(TargetError::Answer)?,
                warnings: taken.warnings,
            }),
        }
    }

    fn columns() -> Vec<Column<Self::Sample>> {
        let columns = E::columns().into_iter();
        columns
            .map(|it| it.within(|taken: &Self::Sample| &taken.sample))
            .collect()
    }

    fn further(taken: &Self::Sample) -> Vec<(Metric, MetricValue)> {
        E::further(&taken.sample)
    }

    fn warnings(taken: &Self::Sample) -> Vec<String> {
        taken.warnings.clone()
    }
}

fn join(cell: Cell, levels: &Cell) -> Cell {
    levels.levels().fold(cell, |cell, (factor, level)| {
        cell.with(factor, level.clone())
    })
}

//! What an experiment declares, what a run of it gave, and why a run could not be begun, or stopped.

use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use nearfar_change::Change;
use nearfar_runs::{
    Cell, CellSummary, Factor, Metric, MetricValue, RunId, RunTarget, StoreError, Values,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::sampler::Order;
use crate::settings::Resources;

/// Why a sample could not be taken.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// A metric, and where a sample has it.
pub struct Column<S> {
    pub metric: Metric,
    of: ValueOf<S>,
}

type ValueOf<S> = Box<dyn Fn(&S) -> Option<MetricValue>>;

impl<S: 'static> Column<S> {
    /// `of` has nothing where a sample does not know it.
    pub fn new<V: Into<MetricValue>>(
        metric: Metric,
        of: impl Fn(&S) -> Option<V> + 'static,
    ) -> Self {
        let of = Box::new(move |sample: &S| of(sample).map(Into::into));
        Self { metric, of }
    }

    /// The same of what has such a sample.
    pub(crate) fn within<T: 'static>(self, inner: fn(&T) -> &S) -> Column<T> {
        let of = self.of;
        Column::new(self.metric, move |outer| of(inner(outer)))
    }
}

/// The metrics that an experiment declares for all samples.
pub fn metrics<S>(columns: Vec<Column<S>>) -> Vec<Metric> {
    columns.into_iter().map(|it| it.metric).collect()
}

/// The values of a sample by the metric's name, without those that are unknown.
pub fn values<S>(columns: &[Column<S>], sample: &S) -> Values {
    let known = columns.iter();
    let known = known.filter_map(|it| Some((it.metric.name.clone(), (it.of)(sample)?)));
    known.collect()
}

/// The metrics that only this sample has, and all its values.
pub(crate) fn figures<E: Experiment>(sample: &E::Sample) -> (Vec<Metric>, Values) {
    let mut values = values(&E::columns(), sample);
    let further = E::further(sample).into_iter().map(|(metric, value)| {
        values.insert(metric.name.clone(), value);
        metric
    });
    (further.collect(), values)
}

/// What the samples of a run are of.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RunPlan {
    /// Everything that decides what a sample is, and is the same in all cells: a run is continued only by an
    /// experiment with equal parameters.
    pub parameters: Value,
    /// What is varied.
    pub factors: Vec<Factor>,
    /// The combinations that are measured, in the order of tables.
    pub cells: Vec<Cell>,
}

impl RunPlan {
    /// Every combination of the levels of these factors.
    pub fn of_factors(parameters: Value, factors: Vec<Factor>) -> Self {
        Self {
            parameters,
            cells: Cell::all(&factors),
            factors,
        }
    }

    /// These cells; the factors have the levels that they have.
    pub fn of_cells(parameters: Value, cells: Vec<Cell>) -> Self {
        Self {
            parameters,
            factors: Factor::of_cells(&cells),
            cells,
        }
    }
}

/// The cells of a run that need no more samples.
pub type Settled = fn(&nearfar_runs::Detail, &[nearfar_runs::Sample]) -> Vec<Cell>;

/// An experiment: what is varied, and how one sample is taken.
pub trait Experiment {
    /// All that is kept of one sample; stored as JSON, and read back when a run is continued.
    type Sample: Serialize + DeserializeOwned + 'static;

    /// Its name in lists of runs, such as "probe".
    fn name(&self) -> &str;

    /// A line that says what it is about.
    fn title(&self) -> String {
        self.name().to_owned()
    }

    /// What is measured.
    fn plan(&self) -> RunPlan;

    /// The machines that run the commands of its cells, where that is not this one. A run is continued only on equal ones.
    fn targets(&self) -> Vec<RunTarget> {
        Vec::new()
    }

    /// The order of the cells within a round.
    fn order(&self, seed: u64) -> Order {
        Order::Shuffled { seed }
    }

    /// Which cells need no more samples, by those that the run has; asked after the rounds of
    /// [`is_look`](nearfar_statistics::compare::sequential::is_look). `None` where each cell gets as many as were asked for.
    fn settled(&self) -> Option<Settled> {
        None
    }

    /// What has to be set in the system for a cell. What another cell sets and this one does not name is put back to
    /// what it was before the run.
    fn settings(&self, cell: &Cell) -> Vec<Change> {
        let _ = cell;
        Vec::new()
    }

    /// Prepares a run, before its first sample. What it makes of `resources` is removed after the last one, by the guard
    /// when this process is killed, or by the next nearfar. A continued run is prepared again.
    ///
    /// # Errors
    /// Why the run cannot be carried out; once the run's cancel flag is set, that the preparation was abandoned.
    fn setup(&mut self, resources: &mut Resources) -> Result<(), BoxError> {
        let _ = resources;
        Ok(())
    }

    /// Ends what [`Self::setup`] began and the removal of resources does not. Called after every run that was set up,
    /// also where that or the run failed; not after a kill.
    ///
    /// # Errors
    /// What is left.
    fn teardown(&mut self) -> Result<(), BoxError> {
        Ok(())
    }

    /// Prepares one sample of a cell, after its settings are made. What it makes of `resources` is removed after the
    /// sample.
    ///
    /// # Errors
    /// Why there is no sample; it counts as one that failed.
    fn setup_cell(&mut self, cell: &Cell, resources: &mut Resources) -> Result<(), BoxError> {
        let _ = (cell, resources);
        Ok(())
    }

    /// Ends what [`Self::setup_cell`] began and the removal of resources does not. Called after every sample, also
    /// where that or its preparation failed; not after a kill.
    ///
    /// # Errors
    /// What is left; a warning of the sample.
    fn teardown_cell(&mut self, cell: &Cell) -> Result<(), BoxError> {
        let _ = cell;
        Ok(())
    }

    /// A round takes samples of these cells in this order: those whose samples do not disturb each other may be begun.
    fn begin(&mut self, cells: &[&Cell]) {
        let _ = cells;
    }

    /// Whether a sample that was begun is there, so that [`Self::run`] need not wait for it.
    fn has(&mut self, cell: &Cell) -> bool {
        let _ = cell;
        false
    }

    /// Takes one sample. Looks at `cancel` now and then; once it is set, an error means that the sample was abandoned.
    ///
    /// # Errors
    /// Why there is no sample. It is stored, and the run goes on, unless too many fail one after the other.
    fn run(&mut self, cell: &Cell, cancel: &AtomicBool) -> Result<Self::Sample, BoxError>;

    /// What each sample has. Exactly one metric is primary, which every sample has a value of.
    fn columns() -> Vec<Column<Self::Sample>>;

    /// Further metrics, which only a sample shows, with its values. They are declared in the run when the first sample has them.
    fn further(sample: &Self::Sample) -> Vec<(Metric, MetricValue)> {
        let _ = sample;
        Vec::new()
    }

    /// What may be wrong with a sample, in sentences.
    fn warnings(sample: &Self::Sample) -> Vec<String> {
        let _ = sample;
        Vec::new()
    }
}

/// How a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// Every sample was taken.
    Complete,
    /// Every sample was tried, and some attempts failed; carrying out the same experiment again tries those again.
    Incomplete,
    /// It was cancelled; carrying out the same experiment again continues it.
    Interrupted,
}

/// One sample with its place in the run.
#[derive(Clone, PartialEq, Debug)]
pub struct Sampled<S> {
    /// Which one of its run, from 1, in the order they were taken.
    pub number: u64,
    /// Its round, from 1.
    pub round: u32,
    /// Its cell.
    pub cell: Cell,
    /// By the metric's name.
    pub values: Values,
    /// What may be wrong with it, in sentences.
    pub warnings: Vec<String>,
    /// All that the experiment keeps of it.
    pub sample: S,
}

/// A run that ended without an error.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome<S> {
    /// Its number in the store.
    pub run: RunId,
    /// How it ended.
    pub ended: Ended,
    /// How many of its samples had been taken before, when it was interrupted; 0 for a new one.
    pub already: usize,
    /// The samples, in the order they were taken, those of before included.
    pub samples: Vec<Sampled<S>>,
    /// How many attempts failed; their reasons are in the store.
    pub failed: usize,
    /// What the samples say together, by cell.
    pub cells: Vec<CellSummary>,
}

impl<S> Outcome<S> {
    /// The samples of a cell, in the order they were taken.
    pub fn of(&self, cell: &Cell) -> impl Iterator<Item = &Sampled<S>> {
        self.samples
            .iter()
            .filter(move |sampled| sampled.cell == *cell)
    }
}

/// What can go wrong with a run as a whole.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// The experiment declares nothing to measure, or a cell twice.
    #[error("the experiment {experiment} has {what}: nothing was run")]
    Plan {
        experiment: String,
        /// What is wrong with its cells.
        what: &'static str,
    },
    /// The store refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The run that was to be continued is of another experiment, machine, label, or has other parameters.
    #[error("run {run} cannot be continued: its {differs}; begin a new run instead")]
    Other {
        run: RunId,
        /// What differs, such as "parameters differ".
        differs: String,
    },
    /// The run that was to be continued was planned with more samples of each cell.
    #[error(
        "run {run} was planned with {planned} samples of each cell and cannot be continued with {asked}; ask for \
         {planned} or more"
    )]
    Fewer {
        run: RunId,
        /// Samples of each cell that it was planned with.
        planned: u32,
        /// How many were asked for.
        asked: u32,
    },
    /// What was stored of an interrupted run cannot be read back.
    #[error(
        "run {run} cannot be continued: its sample {number} cannot be read ({error}); begin a new run instead"
    )]
    Stored {
        run: RunId,
        /// The sample's number.
        number: u64,
        #[source]
        error: serde_json::Error,
    },
    /// A sample cannot be written as JSON.
    #[error("a sample of {experiment} cannot be stored: {error}")]
    Sample {
        /// The experiment's name.
        experiment: String,
        #[source]
        error: serde_json::Error,
    },
    /// The experiment could not prepare the run.
    #[error("{} stopped: cannot prepare it: {error}{}", named_run(*run), if_stored(*run, "; it can be continued"))]
    Setup {
        /// The run; `None` where it is not stored.
        run: Option<RunId>,
        /// The experiment's reason.
        #[source]
        error: BoxError,
    },
    /// A setting could not be made.
    #[error("{} stopped: cannot set {}: {error}{}", named_run(*run), path.display(), if_stored(*run, CONTINUED))]
    Setting {
        /// The run; `None` where it is not stored.
        run: Option<RunId>,
        path: PathBuf,
        #[source]
        error: BoxError,
    },
    /// Too many samples failed one after the other.
    #[error(
        "{} stopped: {count} samples failed one after the other, the last one: {last}{}",
        named_run(*run), if_stored(*run, CONTINUED)
    )]
    Failures {
        /// The run; `None` where it is not stored.
        run: Option<RunId>,
        /// How many.
        count: u32,
        /// Why the last one did.
        last: String,
    },
    /// Settings could not be put back. All samples are stored.
    #[error(
        "{} ended, but not every setting could be put back: {error}; the next nearfar tries again",
        named_run(*run)
    )]
    Restore {
        /// The run; `None` where it is not stored.
        run: Option<RunId>,
        #[source]
        error: BoxError,
    },
}

/// What can be done about a run that stopped.
const CONTINUED: &str = "; its samples are kept, and it can be continued";

fn named_run(run: Option<RunId>) -> String {
    run.map_or_else(|| "the run".to_owned(), |run| format!("run {run}"))
}

fn if_stored(run: Option<RunId>, text: &'static str) -> &'static str {
    run.map_or("", |_| text)
}

/// A target by the levels of its cells.
pub(crate) fn named(levels: &Cell) -> String {
    match levels.to_string() {
        text if text.is_empty() => "all cells".to_owned(),
        text => text,
    }
}

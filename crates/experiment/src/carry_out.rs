//! Carrying an experiment out: begin a run, or find the one that was interrupted and continue it, sample by sample, and put everything
//! back.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nearfar_change::Change;
use nearfar_change::lease::{Measuring, Presence};
use nearfar_machine::Machine;
use nearfar_runs::{
    Cell, Detail, Ending, Filter, Host, Metric, NewRun, NewSample, Run, RunId, RunState, RunTarget,
    Sample, SampleResult, Store, check_values, now_s, summarise,
};
use nearfar_statistics::compare::sequential::{is_look, last_look};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::experiment::{
    BoxError, Ended, Experiment, ExperimentError, Outcome, RunPlan, Sampled, figures, metrics,
    named,
};
use crate::guest_time::GuestTime;
use crate::progress::{Begun, Progress, Silent, Step};
use crate::recording::fingerprint;
use crate::sampler::{self, Attempt, End, Monotonic, Plan, Slot, Source, Turn};
use crate::settings::{Cells, Leased, Resources, Settings};
use crate::traced::Phase;

/// Which run is gone on with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resume {
    /// None: a new one is begun.
    Nothing,
    /// The newest of the same, where it was interrupted or failed; else a new one is begun.
    Newest,
    /// This one, and no other: that it cannot be gone on with is an error.
    Run(RunId),
}

/// How an experiment is carried out.
pub struct Options {
    /// How many samples each cell gets.
    pub samples: u32,
    /// The seed of the order; `None` takes a random one. A continued run keeps its own.
    pub seed: Option<u64>,
    /// Whether an earlier run is continued.
    pub resume: Resume,
    /// Whether the store is kept: the number of the run else means nothing, and it cannot be continued.
    pub is_kept: bool,
    /// What the user calls the run.
    pub label: Option<String>,
    /// What may be wrong with the whole run, in sentences, known as it begins.
    pub warnings: Vec<String>,
    /// How many samples may fail one after the other before the run stops.
    pub failures_in_a_row: u32,
    /// That this process measures; a sample during which another one measures gets a warning.
    pub presence: Option<Presence>,
    /// Receives the progress.
    pub progress: Box<dyn Progress>,
}

impl Options {
    /// This many samples a cell; continues an interrupted run, stops after three failures in a row, reports no progress.
    pub fn new(samples: u32) -> Self {
        Self {
            samples,
            seed: None,
            resume: Resume::Newest,
            is_kept: true,
            label: None,
            warnings: Vec::new(),
            failures_in_a_row: 3,
            presence: None,
            progress: Box::new(Silent),
        }
    }
}

/// What a warning says of another process.
pub const DISTURBS: &str =
    "measured at the same time: both have less of the CPUs, caches and memory";

/// Carries an experiment out on the running system. `machine` is what a source saw of it; a set `cancel` ends the run at
/// the next occasion, to be continued later.
///
/// # Errors
/// What stopped the run. Its samples are stored and its settings are put back, also then.
pub fn carry_out<E: Experiment>(
    experiment: &mut E,
    options: Options,
    store: &mut Store,
    machine: &Machine,
    cancel: &AtomicBool,
) -> Result<Outcome<E::Sample>, ExperimentError> {
    let what = format!("experiment {}", experiment.name());
    let (mut settings, mut resources) = (Leased::new(&what), Resources::new(&what));
    let (settings, resources) = (&mut settings, &mut resources);
    carry_out_with(
        experiment, options, store, machine, cancel, settings, resources,
    )
}

/// The same with settings and resources made elsewhere.
///
/// # Errors
/// As [`carry_out`].
pub fn carry_out_with<E: Experiment>(
    experiment: &mut E,
    mut options: Options,
    store: &mut Store,
    machine: &Machine,
    cancel: &AtomicBool,
    settings: &mut dyn Settings,
    resources: &mut Resources,
) -> Result<Outcome<E::Sample>, ExperimentError> {
    let targets = experiment.targets();
    let begun = begin(experiment, &targets, &options, store, machine)?;
    let run = begun.run;
    let named = options.is_kept.then_some(run);
    let already = begun.samples.len();
    let total = (begun.plan.len() as u64) * u64::from(options.samples);
    let title = experiment.title();
    options.progress.begin(&Begun {
        run: named,
        title,
        total: total.max(already as u64),
        already: already as u64,
    });
    let time = GuestTime::stopped(machine).map_err(|error| ExperimentError::Setup {
        run: named,
        error: error.into(),
    })?;
    let is_simulated_elsewhere = !targets.is_empty() && targets.iter().all(RunTarget::is_simulated);
    let mut work = Work {
        experiment,
        time,
        is_simulated_elsewhere,
        options: &mut options,
        store,
        cancel,
        settings: Cells::new(settings),
        resources,
        estimate: begun.estimate(),
        failed: 0,
        in_a_row: 0,
        begun,
    };
    let ended = match work.set_up() {
        Ok(()) => work.rounds(),
        // Abandoned because of the cancel flag, as a sample can be.
        Err(_) if cancel.load(Ordering::Relaxed) => Ok(Ended::Interrupted),
        Err(error) => Err(error),
    };
    let restored = work.tear_down();
    work.options.progress.end();
    let ended = match ended {
        Ok(ended) => {
            let ending = match ended {
                Ended::Complete => Ending::Complete,
                Ended::Incomplete => Ending::Failed(work.failures()),
                Ended::Interrupted => Ending::Interrupted,
            };
            work.store.finish(run, &ending)?;
            ended
        }
        Err(error) => {
            // The error that stopped the run says more than one about noting it.
            let _ = work.store.finish(run, &Ending::Failed(error.to_string()));
            return Err(error);
        }
    };
    restored.map_err(|error| ExperimentError::Restore { run: named, error })?;
    let Work { begun, store, .. } = work;
    let stored = store.samples(run)?;
    let cells = summarise(&store.detail(run)?, &stored);
    let failed = stored
        .iter()
        .filter(|sample| sample.failed.is_some())
        .count();
    Ok(Outcome {
        run,
        ended,
        already,
        samples: begun.samples,
        failed,
        cells,
    })
}

/// A run that was begun or is continued.
struct BegunRun<S> {
    run: RunId,
    seed: u64,
    plan: Vec<Cell>,
    metrics: Vec<Metric>,
    taken: BTreeSet<Slot>,
    samples: Vec<Sampled<S>>,
    stored: Vec<Sample>,
}

impl<S> BegunRun<S> {
    /// What samples took so far.
    fn estimate(&self) -> Estimate {
        let mut estimate = Estimate::new(self.plan.len());
        for sample in &self.stored {
            if let Some(cell) = self.plan.iter().position(|cell| *cell == sample.cell) {
                estimate.add(cell, sample.took_s);
            }
        }
        estimate
    }
}

fn begin<E: Experiment>(
    experiment: &E,
    targets: &[RunTarget],
    options: &Options,
    store: &mut Store,
    machine: &Machine,
) -> Result<BegunRun<E::Sample>, ExperimentError> {
    let RunPlan {
        parameters,
        factors,
        cells,
    } = experiment.plan();
    let wrong = match cells.iter().collect::<BTreeSet<_>>().len() {
        0 => Some("no cells"),
        different if different < cells.len() => Some("a cell twice"),
        _ => None,
    };
    if let Some(what) = wrong {
        return Err(ExperimentError::Plan {
            experiment: experiment.name().to_owned(),
            what,
        });
    }
    let host = Host::here();
    let metrics = metrics(E::columns());
    let fingerprint = fingerprint(machine, &host);
    let same = Same {
        experiment: experiment.name(),
        parameters: &parameters,
        plan: &cells,
        metrics: &metrics,
        fingerprint: &fingerprint,
        targets,
        label: options.label.as_deref(),
        seed: options.seed,
    };
    let earlier = match options.resume {
        Resume::Nothing => None,
        Resume::Newest => find(store, &same)?,
        Resume::Run(run) => Some(this(store, run, &same)?),
    };
    if let Some((run, detail)) = earlier {
        check_samples(&run, options.samples)?;
        // Taken over before it is read: until then another process may add to it.
        store.resume(run.run, options.samples)?;
        let stored = store.samples(run.run)?;
        let mut taken = taken(&cells, &stored);
        if experiment.settled().is_some() {
            // What was looked at stays as it was seen: another attempt would be chosen by what the others were.
            let last = last_look(last_whole_round(&stored));
            let seen = (1..=last).flat_map(|round| {
                let items = 0..cells.len();
                items.map(move |item| Slot { round, item })
            });
            taken.extend(seen);
        }
        let samples = read(&run, &stored)?;
        return Ok(BegunRun {
            run: run.run,
            seed: detail.seed,
            plan: cells,
            metrics: detail.metrics,
            taken,
            samples,
            stored,
        });
    }
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..));
    let run = store.begin(&NewRun {
        experiment: experiment.name(),
        title: &experiment.title(),
        label: options.label.as_deref(),
        parameters: &parameters,
        factors: &factors,
        cells: &cells,
        metrics: &metrics,
        samples_per_cell: options.samples,
        seed,
        warnings: &options.warnings,
        machine,
        fingerprint: &fingerprint,
        host: &host,
        targets,
    })?;
    Ok(BegunRun {
        run,
        seed,
        plan: cells,
        metrics,
        taken: BTreeSet::new(),
        samples: Vec::new(),
        stored: Vec::new(),
    })
}

/// A run at work.
struct Work<'a, E: Experiment> {
    experiment: &'a mut E,
    time: GuestTime,
    /// Whether guests of simulated time take the samples, whatever this system does meanwhile.
    is_simulated_elsewhere: bool,
    options: &'a mut Options,
    store: &'a mut Store,
    cancel: &'a AtomicBool,
    settings: Cells<'a>,
    resources: &'a mut Resources,
    estimate: Estimate,
    begun: BegunRun<E::Sample>,
    /// Attempts of this process that failed, and how many since the last one that did not.
    failed: u64,
    in_a_row: u32,
}

impl<E: Experiment> Work<'_, E> {
    fn rounds(&mut self) -> Result<Ended, ExperimentError> {
        let (cells, seed) = (self.begun.plan.len(), self.begun.seed);
        let plan = Plan {
            order: self.experiment.order(seed),
            taken: self.begun.taken.clone(),
            ..Plan::rounds(cells, self.options.samples, seed)
        };
        let cancel = self.cancel;
        let outcome = sampler::sample(&plan, &Monotonic::start(), cancel, self)?;
        Ok(match outcome.end {
            End::Complete | End::BudgetSpent if !outcome.lost.is_empty() => Ended::Incomplete,
            End::Complete | End::BudgetSpent => Ended::Complete,
            End::Cancelled => Ended::Interrupted,
        })
    }

    /// The number of the run, where it means something.
    fn named(&self) -> Option<RunId> {
        self.options.is_kept.then_some(self.begun.run)
    }

    /// Why samples are missing though all were tried.
    fn failures(&self) -> String {
        let wanted = self.begun.plan.len() as u64 * u64::from(self.options.samples);
        let failed = self.failed;
        format!("{failed} of {wanted} samples failed")
    }

    /// Other processes that measure now, where that disturbs samples.
    fn others(&self) -> BTreeSet<Measuring> {
        let presence = self.options.presence.iter();
        let presence = presence.filter(|_| !self.is_simulated_elsewhere);
        presence.flat_map(Presence::others).collect()
    }

    fn set_up(&mut self) -> Result<(), ExperimentError> {
        let run = self.named();
        self.experiment
            .setup(self.resources)
            .map_err(|error| ExperimentError::Setup { run, error })
    }

    /// Undoes everything, whatever of it fails; the first failure is the answer.
    fn tear_down(&mut self) -> Result<(), BoxError> {
        let own = self.experiment.teardown();
        let resources = self.resources.remove_all().map_err(BoxError::from);
        let settings = self.settings.restore();
        own.and(resources).and(settings)
    }

    /// One sample with what has to be made before and removed after it. What could not be removed is a warning.
    fn prepared(&mut self, cell: &Cell) -> (Result<E::Sample, BoxError>, Vec<String>) {
        let mark = self.resources.mark();
        let sample = || {
            Phase::Sample.during(|| {
                self.experiment.setup_cell(cell, self.resources)?;
                self.experiment.run(cell, self.cancel)
            })
        };
        let answer = self
            .time
            .during(sample)
            .unwrap_or_else(|error| Err(error.into()));
        let own = self.experiment.teardown_cell(cell);
        let resources = self.resources.remove_since(mark).map_err(BoxError::from);
        let left = [own, resources].into_iter().filter_map(Result::err);
        (answer, left.map(|error| whole(&*error)).collect())
    }

    /// One attempt, stored whatever it gave.
    fn attempt(&mut self, slot: Slot) -> Result<Attempt<()>, ExperimentError> {
        let cell = self.begun.plan[slot.item].clone();
        let wanted = self.experiment.settings(&cell);
        self.set(&wanted)?;
        let mut others = self.others();
        let (started_at_s, started) = (now_s(), Instant::now());
        let (answer, left) = self.prepared(&cell);
        let took_s = started.elapsed().as_secs_f64();
        let new = |result| NewSample {
            round: slot.round,
            cell: cell.clone(),
            started_at_s,
            took_s,
            result,
        };
        let sample = match answer {
            // Abandoned because of the cancel flag, which is no failure of the cell.
            Err(_) if self.cancel.load(Ordering::Relaxed) => return Ok(Attempt::Lost),
            Err(error) => return self.failure(&new(SampleResult::Failed(whole(&*error)))),
            Ok(sample) => sample,
        };
        let (further, values) = figures::<E>(&sample);
        self.declare(further)?;
        if let Err(error) = check_values(&self.begun.metrics, &values) {
            return self.failure(&new(SampleResult::Failed(error.to_string())));
        }
        others.extend(self.others());
        let others = others.iter().map(|it| format!("{it} {DISTURBS}")).collect();
        let changed = self.settings.changed(&wanted);
        let warnings = [E::warnings(&sample), changed, left, others].concat();
        let unwritable = |error| ExperimentError::Sample {
            experiment: self.experiment.name().to_owned(),
            error,
        };
        let json = serde_json::to_value(&sample).map_err(unwritable)?;
        let measured = SampleResult::Measured {
            values: values.clone(),
            warnings: warnings.clone(),
            detail: json,
        };
        let number = self.store.add_sample(self.begun.run, &new(measured))?;
        self.in_a_row = 0;
        self.estimate.add(slot.item, took_s);
        self.begun.samples.push(Sampled {
            number,
            round: slot.round,
            cell,
            values,
            warnings,
            sample,
        });
        Ok(Attempt::Value(()))
    }

    /// Declares the metrics that the run does not have yet.
    fn declare(&mut self, mut metrics: Vec<Metric>) -> Result<(), ExperimentError> {
        let known = &mut self.begun.metrics;
        metrics.retain(|metric| known.iter().all(|known| known.name != metric.name));
        if !metrics.is_empty() {
            self.store.add_metrics(self.begun.run, &metrics)?;
            known.append(&mut metrics);
        }
        Ok(())
    }

    fn set(&mut self, wanted: &[Change]) -> Result<(), ExperimentError> {
        let run = self.named();
        self.settings
            .make(wanted)
            .map_err(|(path, error)| ExperimentError::Setting { run, path, error })
    }

    fn failure(&mut self, new: &NewSample) -> Result<Attempt<()>, ExperimentError> {
        self.store.add_sample(self.begun.run, new)?;
        self.failed += 1;
        self.in_a_row += 1;
        match &new.result {
            SampleResult::Failed(last) if self.in_a_row >= self.options.failures_in_a_row => {
                let (run, count) = (self.named(), self.in_a_row);
                Err(ExperimentError::Failures {
                    run,
                    count,
                    last: last.clone(),
                })
            }
            _ => Ok(Attempt::Lost),
        }
    }
}

impl<E: Experiment> Source for Work<'_, E> {
    type Value = ();
    type Error = ExperimentError;

    fn begin(&mut self, slots: &[Slot]) {
        let plan = &self.begun.plan;
        let cells: Vec<&Cell> = slots.iter().map(|slot| &plan[slot.item]).collect();
        self.experiment.begin(&cells);
    }

    fn has(&mut self, slot: Slot) -> bool {
        self.experiment.has(&self.begun.plan[slot.item])
    }

    fn take(&mut self, turn: Turn) -> Result<Attempt<()>, ExperimentError> {
        self.attempt(turn.slot)
    }

    fn settled(&mut self, round: u32) -> Result<Vec<usize>, ExperimentError> {
        let Some(settled) = self.experiment.settled().filter(|_| is_look(round)) else {
            return Ok(Vec::new());
        };
        let (detail, mut samples) = (
            self.store.detail(self.begun.run)?,
            self.store.samples(self.begun.run)?,
        );
        // A run that is continued has samples of later rounds.
        samples.retain(|sample| sample.round <= round);
        let settled = settled(&detail, &samples);
        let plan = self.begun.plan.iter().enumerate();
        let settled = plan.filter(|(_, cell)| settled.contains(cell));
        Ok(settled.map(|(item, _)| item).collect())
    }

    fn progress(&mut self, progress: &sampler::SamplingProgress<'_>) {
        let step = Step {
            done: self.begun.samples.len() as u64,
            failed: self.failed,
            // A guest in simulated time does not know what the host takes.
            left: self
                .estimate
                .of(progress.missing)
                .filter(|_| !self.time.is_simulated()),
            next: progress.next.map(|slot| &self.begun.plan[slot.item]),
        };
        self.options.progress.step(&step);
    }
}

/// An error with its causes, each said once.
fn whole(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text += &format!(": {said}");
        }
        cause = error.source();
    }
    text
}

/// What a run has to have in common with the experiment for its samples to count.
pub(crate) struct Same<'a> {
    pub experiment: &'a str,
    pub parameters: &'a Value,
    pub plan: &'a [Cell],
    pub metrics: &'a [Metric],
    pub fingerprint: &'a str,
    pub targets: &'a [RunTarget],
    pub label: Option<&'a str>,
    /// Where the user wants a certain one.
    pub seed: Option<u64>,
}

impl Same<'_> {
    /// What of a run differs, for the sentence "its ...".
    fn difference(&self, run: &Run, detail: &Detail) -> Option<String> {
        let names = |metrics: &[Metric]| {
            let names = metrics.iter().map(|metric| metric.name.as_str());
            names.collect::<Vec<_>>().join(", ")
        };
        let differences = [
            (
                "experiment is another one",
                run.experiment != self.experiment,
            ),
            (
                "machine is another one",
                run.fingerprint != self.fingerprint,
            ),
            ("label is another one", run.label.as_deref() != self.label),
            ("parameters differ", detail.parameters != *self.parameters),
            ("cells differ", detail.plan != self.plan),
            (
                "seed differs",
                self.seed.is_some_and(|seed| seed != detail.seed),
            ),
        ];
        let found = differences.into_iter().find(|(_, differs)| *differs);
        let metrics = || {
            // Samples may have shown more.
            (!detail.metrics.starts_with(self.metrics)).then(|| {
                let (has, wanted) = (names(&detail.metrics), names(self.metrics));
                format!(
                    "samples, by nearfar {}, have other metrics ({has}) than this version's ({wanted})",
                    run.nearfar
                )
            })
        };
        let found = found.map(|(what, _)| what.to_owned());
        self.other_target(detail).or(found).or_else(metrics)
    }

    /// A target that is another one than in the run, or that only one of both has.
    fn other_target(&self, detail: &Detail) -> Option<String> {
        let same = |target: &RunTarget, other: &RunTarget| {
            target.levels == other.levels && target.fingerprint == other.fingerprint
        };
        let differs = |one: &[RunTarget], other: &[RunTarget]| {
            let mut one = one.iter();
            let differs = one.find(|target| !other.iter().any(|other| same(target, other)));
            differs.map(|target| {
                format!(
                    "target of {} is another machine or kernel",
                    named(&target.levels)
                )
            })
        };
        differs(self.targets, &detail.targets).or_else(|| differs(&detail.targets, self.targets))
    }
}

/// The newest run of the same, where it was interrupted or failed. One that is complete, or still going on, means that
/// nothing is to be continued.
pub(crate) fn find(
    store: &Store,
    same: &Same<'_>,
) -> Result<Option<(Run, Detail)>, ExperimentError> {
    let filter = Filter {
        experiment: Some(same.experiment.to_owned()),
        label: same.label.map(str::to_owned),
        ..Filter::default()
    };
    for run in store.list(&filter)? {
        // Its detail costs a look into the file, which most runs of a long list are not worth.
        if run.fingerprint != same.fingerprint {
            continue;
        }
        let detail = store.detail(run.run)?;
        if same.difference(&run, &detail).is_none() {
            let can_go_on = matches!(run.state, RunState::Interrupted | RunState::Failed);
            return Ok(can_go_on.then_some((run, detail)));
        }
    }
    Ok(None)
}

/// This run, if it is of the same. Whether it may be continued now is the store's to say, which lets only one process.
pub(crate) fn this(
    store: &Store,
    run: RunId,
    same: &Same<'_>,
) -> Result<(Run, Detail), ExperimentError> {
    let (found, detail) = (store.run(run)?, store.detail(run)?);
    match same.difference(&found, &detail) {
        None => Ok((found, detail)),
        Some(differs) => Err(ExperimentError::Other { run, differs }),
    }
}

/// Fails where each cell is to get fewer samples than the run was planned with: it would be complete with more than all.
fn check_samples(run: &Run, asked: u32) -> Result<(), ExperimentError> {
    match run.samples_per_cell {
        planned if asked < planned => Err(ExperimentError::Fewer {
            run: run.run,
            planned,
            asked,
        }),
        _ => Ok(()),
    }
}

/// The last round whose samples were all attempted, of a run whose cells stop after looks only; 0 for none.
fn last_whole_round(samples: &[Sample]) -> u32 {
    let last = samples.iter().map(|it| it.round).max().unwrap_or(0);
    let attempted = |round: u32| -> Vec<&Cell> {
        let of_round = samples.iter().filter(|it| it.round == round);
        of_round.map(|it| &it.cell).collect()
    };
    let (before, now) = (attempted(last.saturating_sub(1)), attempted(last));
    match before.iter().all(|cell| now.contains(cell)) {
        true => last,
        false => last - 1,
    }
}

/// The places in the order for which there is a sample. A failed one leaves its place open, to be tried again.
pub(crate) fn taken(plan: &[Cell], samples: &[Sample]) -> BTreeSet<Slot> {
    let place = |sample: &Sample| {
        let item = plan.iter().position(|cell| *cell == sample.cell)?;
        let round = sample.round;
        Some(Slot { round, item })
    };
    samples
        .iter()
        .filter(|sample| sample.failed.is_none())
        .filter_map(place)
        .collect()
}

/// Stored samples as the experiment's own.
pub(crate) fn read<S: DeserializeOwned>(
    run: &Run,
    samples: &[Sample],
) -> Result<Vec<Sampled<S>>, ExperimentError> {
    let one = |stored: &Sample| {
        if stored.failed.is_some() {
            return None;
        }
        let unreadable = |error| ExperimentError::Stored {
            run: run.run,
            number: stored.number,
            error,
        };
        Some(
            serde_json::from_value(stored.detail.clone())
                .map_err(unreadable)
                .map(|sample| Sampled {
                    number: stored.number,
                    round: stored.round,
                    cell: stored.cell.clone(),
                    values: stored.values.clone(),
                    warnings: stored.warnings.clone(),
                    sample,
                }),
        )
    };
    samples.iter().filter_map(one).collect()
}

/// Durations of samples by cell.
pub(crate) struct Estimate {
    by_cell: Vec<Vec<f64>>,
    all: Vec<f64>,
}

impl Estimate {
    /// Nothing is known of any of so many cells.
    pub(crate) fn new(cells: usize) -> Self {
        Self {
            by_cell: vec![Vec::new(); cells],
            all: Vec::new(),
        }
    }

    /// A sample of this cell took so long.
    fn add(&mut self, cell: usize, took_s: f64) {
        if took_s.is_finite() && took_s >= 0.0 {
            self.by_cell[cell].push(took_s);
            self.all.push(took_s);
        }
    }

    /// What so many samples of each cell would take: the median of the cell's own samples each, of all samples for a
    /// cell not seen yet. `None` before there are two samples, which say nothing.
    pub(crate) fn of(&self, missing: &[u32]) -> Option<Duration> {
        let of_all = (self.all.len() >= 2).then(|| median(&self.all)).flatten()?;
        let each = |(cell, &count): (usize, &u32)| {
            median(&self.by_cell[cell]).unwrap_or(of_all) * f64::from(count)
        };
        Duration::try_from_secs_f64(missing.iter().enumerate().map(each).sum()).ok()
    }
}

fn median(values: &[f64]) -> Option<f64> {
    nearfar_statistics::Summary::of(values).map(|summary| summary.median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_samples_are_needed_before_anything_is_said() {
        let mut estimate = Estimate::new(2);
        assert_eq!(estimate.of(&[5, 5]), None);
        estimate.add(0, 2.0);
        assert_eq!(estimate.of(&[4, 5]), None);
        estimate.add(1, 6.0);
        assert_eq!(estimate.of(&[4, 4]), Some(Duration::from_secs(32)));
    }

    #[test]
    fn a_cell_not_seen_counts_as_the_median_of_all() {
        let mut estimate = Estimate::new(3);
        for took in [1.0, 1.0, 100.0] {
            estimate.add(0, took);
        }
        estimate.add(1, 3.0);
        // Cell 0: 1 s, cell 1: 3 s, cell 2: the median of 1, 1, 3 and 100.
        assert_eq!(estimate.of(&[1, 1, 1]), Some(Duration::from_secs(6)));
        assert_eq!(estimate.of(&[0, 0, 0]), Some(Duration::ZERO));
    }
}

//! Runs that are measured first and stored afterwards.
//!
//! The frame writes each sample to disk before it takes the next. A quick measurement cannot: a write costs more than a
//! sample. It records its samples and hands the recording over when it is done.
//!
//! The fingerprint is what two systems must have in common for their samples to belong to one run.

use nearfar_machine::Machine;
use nearfar_runs::{Host, Metric, NewRun, NewSample, RunId, SampleResult, Store, StoreError};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::experiment::{Experiment, RunPlan, figures, metrics};
use crate::sampler::Taken;

/// A run that is measured and not stored yet.
#[derive(Clone, PartialEq, Debug)]
pub struct Recording {
    /// The experiment's name in lists of runs.
    pub experiment: String,
    /// A line that says what it is about.
    pub title: String,
    pub plan: RunPlan,
    /// Exactly one is primary.
    pub metrics: Vec<Metric>,
    /// How many samples each cell was to get.
    pub samples_per_cell: u32,
    /// Of the order.
    pub seed: u64,
    /// What may be wrong with the whole run, in sentences.
    pub warnings: Vec<String>,
    /// In the order they were taken.
    pub samples: Vec<NewSample>,
}

impl Recording {
    /// One without samples, and without their number and seed.
    pub fn new(experiment: &str, title: String, plan: RunPlan, metrics: Vec<Metric>) -> Self {
        Self {
            experiment: experiment.to_owned(),
            title,
            plan,
            metrics,
            samples_per_cell: 0,
            seed: 0,
            warnings: Vec::new(),
            samples: Vec::new(),
        }
    }

    /// The same of an experiment that declares itself.
    pub fn of<E: Experiment>(experiment: &E) -> Self {
        let metrics = metrics(E::columns());
        Self::new(
            experiment.name(),
            experiment.title(),
            experiment.plan(),
            metrics,
        )
    }

    /// Adds what a sampling of the cells took, which began at `began_at_s` seconds since 1970.
    pub fn add<V>(
        &mut self,
        began_at_s: f64,
        taken: &[Taken<V>],
        result: impl Fn(&Taken<V>) -> SampleResult,
    ) {
        let new = |taken: &Taken<V>| {
            let Taken {
                slot,
                started,
                took,
                ..
            } = taken;
            NewSample {
                round: slot.round,
                cell: self.plan.cells[slot.item].clone(),
                started_at_s: began_at_s + started.as_secs_f64(),
                took_s: took.as_secs_f64(),
                result: result(taken),
            }
        };
        self.samples.extend(taken.iter().map(new));
        let by_start = |a: &NewSample, b: &NewSample| a.started_at_s.total_cmp(&b.started_at_s);
        self.samples.sort_by(by_start);
    }

    /// Stores it as a complete run that was made on `machine`, on this system.
    ///
    /// # Errors
    /// The store's.
    pub fn store(
        &self,
        store: &mut Store,
        machine: &Machine,
        label: Option<&str>,
    ) -> Result<RunId, StoreError> {
        let host = Host::here();
        let new = NewRun {
            experiment: &self.experiment,
            title: &self.title,
            label,
            parameters: &self.plan.parameters,
            factors: &self.plan.factors,
            cells: &self.plan.cells,
            samples_per_cell: self.samples_per_cell,
            seed: self.seed,
            metrics: &self.metrics,
            warnings: &self.warnings,
            machine,
            fingerprint: &fingerprint(machine, &host),
            host: &host,
            targets: &[],
        };
        store.add_complete(&new, &self.samples)
    }
}

/// The result of one attempt of an experiment, as it is stored.
///
/// # Errors
/// A sample that cannot be written as JSON.
pub fn stored_result<E: Experiment>(
    result: Result<&E::Sample, String>,
) -> Result<SampleResult, serde_json::Error> {
    Ok(match result {
        Ok(sample) => SampleResult::Measured {
            values: figures::<E>(sample).1,
            warnings: E::warnings(sample),
            detail: serde_json::to_value(sample)?,
        },
        Err(reason) => SampleResult::Failed(reason),
    })
}

/// A digest of host, kernel, emulation with its delays, nodes, distances, CPUs and caches. Free memory, interrupts, devices
/// and tasks are left out: they change while a run is made. 32 hexadecimal digits.
pub fn fingerprint(machine: &Machine, host: &Host) -> String {
    let nodes: Vec<_> = machine
        .nodes
        .iter()
        .map(|node| json!([node.id, node.online, node.known_cpus()]))
        .collect();
    let same = json!({
        "host": host.name,
        "kernel": [host.kernel, host.kernel_version],
        "emulation": machine.origin.emulation,
        "overlays": machine.origin.overlays,
        "nodes": nodes,
        "distances": machine.distances,
        "cpus": machine.cpus,
        "caches": machine.caches,
    });
    Sha256::digest(same.to_string())
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

//! What `nearfar bench latency` measures as a whole: latency, bandwidth, both at once, and transfers within one budget.
//!
//! ```text
//!  budget  │ buffers │ latency ···· │ bandwidth ·· │ loaded ··· │ interleaved · │ transfer · │   what ends early leaves its time to the rest
//! ```
//!
//! All but transfers share the buffers: placing them takes longest where memory is slow. Streams overwrite what was written into a
//! buffer before.

use std::time::{Duration, Instant};

use clap::ValueEnum;
use nearfar_experiment::Recording;
use nearfar_machine::{CpuSet, Emulation, Machine};
use serde::{Deserialize, Serialize};

use crate::bandwidth::{self, BandwidthMatrix};
use crate::buffer_size::{self, Use};
use crate::interleaved::{self, InterleavedMemory};
use crate::latency::{self, Chases, LatencyMatrix};
use crate::loaded::{self, LoadedLatency};
use crate::node_buffers;
use crate::node_selection;
use crate::options::{ProbeError, ProbeOptions, check_live, on_own_thread};
use crate::registry::{number, within};
pub use crate::sampling::Measured;
use crate::streams::{Streams, cpus_of};
use crate::transfer::{self, HandOvers, TransferMatrix};
use nearfar_proc::affinity;

/// What can be measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Nanoseconds per load, node by node
    Latency,
    /// GB/s, node by node
    Bandwidth,
    /// Nanoseconds per load while the other CPUs of the node read, from few bytes per second to all they can
    Loaded,
    /// GB/s of all CPUs and nanoseconds per load of one, with all memory near, on one node, and interleaved
    Interleaved,
    /// Nanoseconds per round trip of a cache line, CPU by CPU
    Transfer,
}

impl Part {
    /// All of them, in the order they are measured.
    pub const ALL: [Self; 5] = [
        Self::Latency,
        Self::Bandwidth,
        Self::Loaded,
        Self::Interleaved,
        Self::Transfer,
    ];
    /// Those that are measured where none is asked for.
    pub const USUAL: [Self; 3] = [Self::Latency, Self::Bandwidth, Self::Transfer];

    /// How much of the time it gets, relative to the others.
    fn weight(self) -> f64 {
        match self {
            Self::Latency => 0.4,
            Self::Bandwidth | Self::Loaded | Self::Interleaved => 0.35,
            Self::Transfer => 0.25,
        }
    }
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = self.to_possible_value();
        value.map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}

/// How to measure all of it; what a command's options say of it.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct SurveyOptions {
    /// What to measure
    // Duplicates and order do not matter.
    #[arg(id = "what", long, value_name = "PARTS", value_enum, value_delimiter = ',', default_values_t = Part::USUAL)]
    pub parts: Vec<Part>,
    #[command(flatten)]
    pub probe: ProbeOptions,
    /// Most threads of a node that move memory; by default one on each of its CPUs
    #[arg(long, value_name = "N", value_parser = within(1..=u32::MAX as usize, number::<usize>))]
    pub threads: Option<usize>,
    /// Measure transfers between all pairs of CPUs, not one pair for each thing that CPUs share
    #[arg(long)]
    pub all_cpus: bool,
}

impl Default for SurveyOptions {
    fn default() -> Self {
        Self {
            parts: Part::USUAL.to_vec(),
            threads: None,
            all_cpus: false,
            probe: ProbeOptions::default(),
        }
    }
}

/// What was measured.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Survey {
    /// Nanoseconds a load, node by node.
    pub latency: Option<LatencyMatrix>,
    /// Bytes a second, node by node.
    pub bandwidth: Option<BandwidthMatrix>,
    /// Nanoseconds a load while other CPUs read, node by node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded: Option<LoadedLatency>,
    /// Bytes a second of all CPUs and nanoseconds a load of one, by where the memory is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interleaved: Option<InterleavedMemory>,
    /// Nanoseconds a round trip, CPU by CPU.
    pub transfer: Option<TransferMatrix>,
    /// Parts that were asked for and are not there.
    pub not_measured: Vec<NotMeasured>,
    /// How long all of it took, in seconds.
    pub elapsed_s: f64,
    /// The emulated machine; `None` for a real one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulation: Option<Emulation>,
}

impl Survey {
    fn has(&self, part: Part) -> bool {
        match part {
            Part::Latency => self.latency.is_some(),
            Part::Bandwidth => self.bandwidth.is_some(),
            Part::Loaded => self.loaded.is_some(),
            Part::Interleaved => self.interleaved.is_some(),
            Part::Transfer => self.transfer.is_some(),
        }
    }
}

/// A part without a figure.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NotMeasured {
    pub part: Part,
    #[serde(alias = "because")]
    pub reason: String,
}

/// Measures what was asked for, on the live system. Of a measurement that is cancelled the answer has what was measured until
/// then, with a warning, if that is something.
///
/// # Errors
/// When the machine is not the live system, a node that was asked for lacks what it takes, there is nothing to measure at
/// all, memory lacks, or the measurement was cancelled before anything was measured.
pub fn measure(machine: &Machine, options: &SurveyOptions) -> Result<Measured<Survey>, ProbeError> {
    check_live(machine)?;
    on_own_thread(|| {
        // Asked before the thread is pinned for the first time.
        let allowed = affinity::get(0).map_err(ProbeError::Thread)?;
        Measuring {
            machine,
            options,
            allowed,
            start: Instant::now(),
            budget_from: Instant::now(),
            recordings: Vec::new(),
        }
        .measure()
    })
}

struct Measuring<'a> {
    machine: &'a Machine,
    options: &'a SurveyOptions,
    /// Where this process may run.
    allowed: CpuSet,
    start: Instant,
    /// From when on the budget counts: in simulated time preparing the buffers, which takes the host little, is not part of it.
    budget_from: Instant,
    recordings: Vec<Recording>,
}

impl Measuring<'_> {
    fn wants(&self, part: Part) -> bool {
        self.options.parts.contains(&part)
    }

    /// When a part has to end, so that those after it have their share of what is left.
    fn deadline(&self, part: Part) -> Instant {
        let end = self.budget_from + self.options.probe.budget;
        let weights = Part::ALL
            .iter()
            .skip_while(|&&other| other != part)
            .filter(|&&other| self.wants(other));
        let all: f64 = weights.map(|part| part.weight()).sum();
        let left: Duration = end.saturating_duration_since(Instant::now());
        Instant::now() + left.mul_f64((part.weight() / all.max(part.weight())).min(1.0))
    }

    fn measure(mut self) -> Result<Measured<Survey>, ProbeError> {
        let mut survey = Survey {
            latency: None,
            bandwidth: None,
            loaded: None,
            interleaved: None,
            transfer: None,
            not_measured: Vec::new(),
            elapsed_s: 0.0,
            emulation: self.machine.origin.emulation.clone(),
        };
        match self.measure_parts(&mut survey) {
            // What there is took its time.
            Err(ProbeError::Cancelled) if !self.recordings.is_empty() => {
                let all = Part::ALL.into_iter();
                let missing = all.filter(|&part| self.wants(part) && !survey.has(part));
                survey.not_measured = missing
                    .map(|part| NotMeasured {
                        part,
                        reason: "interrupted".to_owned(),
                    })
                    .collect();
            }
            ended => ended?,
        }
        if let (true, Some(first)) = (self.recordings.is_empty(), survey.not_measured.first()) {
            let reason = first.reason.clone();
            return Err(ProbeError::NothingToMeasure { reason });
        }
        survey.elapsed_s = self.start.elapsed().as_secs_f64();
        Ok(Measured {
            answer: survey,
            recordings: self.recordings,
        })
    }

    fn measure_parts(&mut self, survey: &mut Survey) -> Result<(), ProbeError> {
        if Part::ALL
            .iter()
            .any(|&it| it != Part::Transfer && self.wants(it))
        {
            self.measure_memory(survey)?;
        }
        if self.wants(Part::Transfer) {
            let transfer = self.transfers();
            survey.transfer = self.unless_there_is_nothing(Part::Transfer, transfer, survey)?;
        }
        Ok(())
    }

    /// The answer of a part. On a machine with one CPU the other parts are still worth having.
    fn unless_there_is_nothing<T>(
        &mut self,
        part: Part,
        measured: Result<Measured<T>, ProbeError>,
        survey: &mut Survey,
    ) -> Result<Option<T>, ProbeError> {
        match measured {
            Ok(measured) => Ok(Some(self.keep(measured))),
            Err(ProbeError::NothingToMeasure { reason }) => {
                survey.not_measured.push(NotMeasured { part, reason });
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The answer of a part, whose recordings are kept.
    fn keep<T>(&mut self, measured: Measured<T>) -> T {
        self.recordings.extend(measured.recordings);
        measured.answer
    }

    fn measure_memory(&mut self, survey: &mut Survey) -> Result<(), ProbeError> {
        let (machine, options) = (self.machine, &self.options.probe);
        let node_selection::NodeSelection {
            sources,
            memory,
            skipped,
        } = node_selection::select(machine, &self.allowed, options)?;
        let [interleaved, loaded, bandwidth] =
            [Part::Interleaved, Part::Loaded, Part::Bandwidth].map(|it| self.wants(it));
        let threads = self.options.threads;
        let cpus = sources
            .iter()
            .map(|it| cpus_of(it, threads).iter().copied());
        let groups = match (interleaved, loaded || bandwidth) {
            (true, _) => vec![cpus.flatten().collect()],
            (false, true) => cpus.map(CpuSet::from_iter).collect(),
            (false, false) => Vec::new(),
        };
        let used_by = Use {
            groups,
            is_halved: loaded || interleaved,
            more: interleaved.into(),
        };
        let size = buffer_size::decide(
            machine,
            &memory,
            options,
            &used_by,
            buffer_size::spare_memory(),
        )?;
        let mut buffers =
            node_buffers::allocate(machine, &memory, &sources, size.buffer_bytes, options)?;
        buffers.skipped.splice(0..0, skipped);
        if machine.origin.is_simulated() {
            self.budget_from = Instant::now();
        }
        for part in Part::ALL {
            if !self.wants(part) {
                continue;
            }
            let deadline = self.deadline(part);
            let (sources, size, buffers) = (&sources, &size, &mut buffers);
            let streams = Streams {
                machine,
                options,
                sources,
                size,
                buffers,
                threads,
                deadline,
            };
            match part {
                Part::Latency => {
                    let chases = Chases {
                        machine,
                        options,
                        sources,
                        size,
                        buffers: streams.buffers,
                        deadline,
                    };
                    survey.latency = Some(self.keep(latency::measure_on(chases)?));
                }
                Part::Bandwidth => {
                    survey.bandwidth = Some(self.keep(bandwidth::measure_on(streams)?));
                }
                Part::Loaded => {
                    let measured = loaded::measure_on(streams);
                    survey.loaded = self.unless_there_is_nothing(part, measured, survey)?;
                }
                Part::Interleaved => {
                    let measured = interleaved::measure_on(streams);
                    survey.interleaved = self.unless_there_is_nothing(part, measured, survey)?;
                }
                // It needs no buffers.
                Part::Transfer => {}
            }
        }
        Ok(())
    }

    fn transfers(&self) -> Result<Measured<TransferMatrix>, ProbeError> {
        let (machine, options, all_cpus) =
            (self.machine, &self.options.probe, self.options.all_cpus);
        for nodes in [&options.from, &options.to].into_iter().flatten() {
            node_selection::check_cpus(machine, nodes)?;
        }
        let deadline = self.deadline(Part::Transfer);
        transfer::measure_on(HandOvers {
            machine,
            options,
            allowed: &self.allowed,
            all_cpus,
            deadline,
        })
    }
}

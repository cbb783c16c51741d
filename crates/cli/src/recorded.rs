//! Keeping what a command measured in the store.

use clap::Args;
use nearfar_bench::survey::Measured;
use nearfar_change::lease::{Leases, Measuring, Presence};
use nearfar_experiment::{DISTURBS, fingerprint};
use nearfar_machine::{Latency, Machine, NodeId, SourceKind, Timing};
use nearfar_runs::{CellSummary, Filter, Host, Level, RunId, RunState, Store, summarise};
use nearfar_sources::Want;
use tempfile::TempDir;

use crate::args::{StoreArgs, of_store, read_live};
use crate::failure::Failure;
use crate::output;

/// Gives the running system the latencies that `bench latency` or `checkup` measured last on it, as far as the usual store has them.
pub fn add_measured(machine: &mut Machine) {
    let is_here = machine.origin.kind == SourceKind::Live && machine.origin.overlays.is_empty();
    if is_here && machine.online_nodes().count() > 1 {
        machine.timing = stored_latencies();
    }
}

/// So many runs are looked at for pairs of nodes that newer ones lack.
const MOST_RUNS: usize = 8;

/// Those of this machine. `None` without such a run, and without a store that can be read: nothing was asked of it.
pub fn stored_latencies() -> Option<Timing> {
    let store = StoreArgs { store: None }.open_existing().ok()?;
    let filter = Filter {
        experiment: Some("latency".to_owned()),
        ..Filter::default()
    };
    let runs = store.list(&filter).ok().filter(|runs| !runs.is_empty())?;
    let machine = read_live(Want::topology()).ok()?;
    let here = fingerprint(&machine, &Host::here());
    let pairs = machine
        .online_nodes()
        .filter(|node| node.has_cpus() == Some(true));
    let pairs = pairs.count() * machine.nodes_for_any().len();
    let of_here = runs
        .iter()
        .filter(|run| run.state == RunState::Complete && run.fingerprint == here);
    let mut found = Timing::default();
    // A run may be of some nodes only; older ones have the others.
    for run in of_here.take(MOST_RUNS) {
        if found.latencies.len() >= pairs {
            break;
        }
        if let Some(of_run) = latencies(&store, run.run) {
            found = found.or(of_run);
        }
    }
    (!found.sources.is_empty()).then_some(found)
}

/// The medians of a run; `None` where it cannot be read.
fn latencies(store: &Store, run: RunId) -> Option<Timing> {
    let whole = store.whole(run).ok()?;
    let summaries = summarise(&whole.detail, &whole.taken);
    let latency = |summary: &CellSummary| {
        let node = |factor| match summary.cell.level(factor)? {
            Level::Number(node) => Some(NodeId(u32::try_from(*node).ok()?)),
            Level::Switch(_) | Level::Name(_) => None,
        };
        Some(Latency {
            cpu_node: node("cpu_node")?,
            memory_node: node("memory_node")?,
            ns: summary.metrics.first()?.median?.round() as u32,
        })
    };
    let source = format!("bench latency, run {run} of {}", store.path().display());
    let timing = Timing {
        sources: vec![source],
        ..Timing::default()
    };
    Some(timing.with_latencies(summaries.iter().filter_map(latency)))
}

/// Whether and where a measurement is stored.
#[derive(Args, Clone)]
pub struct RecordArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// Do not store what is measured
    #[arg(long, conflicts_with = "store")]
    pub no_store: bool,
}

/// The store of an experiment, which keeps every sample in one: the user's, or one that is removed when this is dropped.
pub struct ExperimentStore {
    pub store: Store,
    // After the store: it is closed before its directory is removed.
    _directory: Option<TempDir>,
}

impl ExperimentStore {
    pub fn open(args: &RecordArgs) -> Result<Self, Failure> {
        if args.no_store {
            return Self::temporary();
        }
        Ok(Self {
            store: args.store.open()?,
            _directory: None,
        })
    }

    pub fn temporary() -> Result<Self, Failure> {
        let directory = tempfile::tempdir().map_err(Failure::refused)?;
        let store = Store::open(&directory.path().join("runs.db")).map_err(of_store)?;
        Ok(Self {
            store,
            _directory: Some(directory),
        })
    }
}

/// Tells other processes of nearfar that this one measures, and says which of them do. `None` where that cannot be known.
pub fn presence(what: &str) -> Option<Presence> {
    let presence = Leases::of_user()
        .and_then(|leases| leases.announce(what))
        .ok()?;
    for other in presence.others() {
        output::say!("warning: {other} measures at the same time: both disturb each other");
    }
    Some(presence)
}

/// A store that is open, or none.
#[derive(Default)]
pub struct Recorder(Option<Store>);

impl RecordArgs {
    /// Opens the store, before anything is measured. One that was not named and cannot be had is no failure: the
    /// measurement is printed in any case.
    pub fn open(&self) -> Result<Recorder, Failure> {
        if self.no_store {
            return Ok(Recorder(None));
        }
        match self.store.open() {
            Ok(store) => Ok(Recorder(Some(store))),
            Err(failure) if self.store.is_named() => Err(failure),
            Err(failure) => {
                not_stored(&failure);
                Ok(Recorder(None))
            }
        }
    }
}

/// Notes in what was measured which other processes measured when it began and when it ended; the latter are said here.
pub fn note_others<T>(
    measured: &mut Measured<T>,
    at_start: Vec<Measuring>,
    presence: Option<&Presence>,
) {
    let mut all = at_start;
    for other in presence.map(Presence::others).unwrap_or_default() {
        if !all.contains(&other) {
            output::say!("warning: {other} {DISTURBS}");
            all.push(other);
        }
    }
    for recording in &mut measured.recordings {
        let warnings = all.iter().map(|other| format!("{other} {DISTURBS}"));
        recording.warnings.extend(warnings);
    }
}

impl Recorder {
    /// Stores what was measured and says under which numbers. A refusal of the store is no failure: it does not make
    /// what was measured worth less.
    pub fn keep<T>(&mut self, measured: &Measured<T>, machine: &Machine, label: Option<&str>) {
        match self.store(measured, machine, label) {
            Ok(runs) if runs.is_empty() => {}
            Ok(runs) => {
                let numbers: Vec<String> = runs.iter().map(ToString::to_string).collect();
                let plural = if runs.len() == 1 { "run" } else { "runs" };
                // What a guest writes is thrown away when it ends, and its runs have the next numbers of the host's store.
                let place = match machine.origin.emulation {
                    Some(_) => ", in a file of this guest",
                    None => "",
                };
                output::say!("stored as {plural} {}{place}", numbers.join(", "));
            }
            Err(failure) => not_stored(&failure),
        }
    }

    fn store<T>(
        &mut self,
        measured: &Measured<T>,
        machine: &Machine,
        label: Option<&str>,
    ) -> Result<Vec<RunId>, Failure> {
        let Some(store) = &mut self.0 else {
            return Ok(Vec::new());
        };
        let recordings = measured.recordings.iter();
        let ids = recordings.map(|recording| recording.store(store, machine, label));
        ids.collect::<Result<_, _>>().map_err(of_store)
    }
}

fn not_stored(failure: &Failure) {
    output::say!("nearfar: not stored: {}", failure.message());
}

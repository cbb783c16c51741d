//! The matrix as `nearfar bench probe` declares it, and how one is made of what was asked for.

use std::path::{Path, PathBuf};

use clap::Args as _;
use nearfar_experiment::Level;
use nearfar_machine::seconds;

use super::answer::Parameters;
use super::calibrate::{Calibrated, calibrate};
use super::choose::{Chosen, Places, Selection, choose};
use super::frame::{
    CPU_NODE, EXPERIMENT, MEMORY_NODE, NUMA_BALANCING, PREFERRED_NODE, balancing_of, place_of,
    preferred_of,
};
use super::kernel::{self, Tuning};
use super::take::{Matrix, places};
use super::{MatrixCell, stored};
use crate::probe::{ChildError, Where, default_buffer_bytes};
use crate::registry::{
    Arguments, Context, Declaration, Entry, Made, RunError, SECONDS, Varied, number, size, within,
};

/// The program that children are started from: this one, also when its file was replaced meanwhile.
const PROGRAM: &str = "/proc/self/exe";
/// How long a run takes unless it is said.
const RUN_S: f64 = 5.0;

const ONE_NODE: &str = "this machine has one node: every cell is the same, and what running far costs stays unknown. A guest of \
                        two nodes answers:\n  \
                        nearfar lab run --machine two-node --delay auto -- nearfar bench probe --seconds 2 --samples 8\n\
                        --factor and --cell measure what there is here";

pub const DECLARATION: Declaration = Declaration {
    name: EXPERIMENT,
    about: "Measure what placement costs a task under load: preferred node x NUMA balancing x memory x CPUs\n\n\
            A probe reads and writes a large buffer while one process on each CPU burns a constant share of it, so that the \
            scheduler moves the probe. Each cell binds its memory and CPUs to a node or leaves them unbound (F), with NUMA \
            balancing off or on, with or without a preferred node. A preferred node is measured with NUMA balancing on, \
            unless --factor numa_balancing says otherwise.\n\n\
            Cells run in random order within each round. Settings are restored at the end, also after a crash. Ctrl-C keeps \
            what was measured; --resume continues it.",
    examples: &[
        "",
        "--seconds 2 --samples 8",
        "--factor preferred_node=-1 --factor memory_node=0 --factor cpu_node=0,F",
        "--cell preferred_node=0,numa_balancing=1,memory_node=0,cpu_node=F",
        "--resume",
    ],
    is_hidden: false,
    is_of_machine: true,
    needs_devices: false,
    is_simulated: false,
    samples: 64,
    factors: &[
        Varied::of_machine(
            PREFERRED_NODE,
            "a node with CPUs, or -1 for none",
            read_preferred,
        ),
        Varied::of_machine(NUMA_BALANCING, "0 (off) or 1 (on)", read_balancing),
        Varied::of_machine(
            MEMORY_NODE,
            "a node with memory, or F for unbound",
            read_place,
        ),
        Varied::of_machine(CPU_NODE, "a node with CPUs, or F for unbound", read_place),
    ],
    options: Given::augment_args,
};

pub(crate) const ENTRY: Entry = Entry {
    declaration: DECLARATION,
    carry_out: |request| request.carry_out(make),
};

/// Its own options. A run stores what comes of them, [`Parameters`].
#[derive(clap::Args)]
struct Given {
    /// How the probe accesses its buffer
    #[arg(long, value_name = "NAME", default_value = "random-read-write", value_parser = [
        "random-read-write",
        "sequential-read-write",
        "random-read",
        "sequential-read",
        "random-write",
        "sequential-write",
        "chain",
    ])]
    pattern: String,
    /// Size of the buffer, such as 256M [default: four last-level caches]
    #[arg(long, value_name = "SIZE", value_parser = size(1..=u64::MAX))]
    bytes: Option<u64>,
    /// Rounds of the probe in one run
    #[arg(long, value_name = "N", default_value = "100", value_parser = within(1..=u32::MAX, number::<u32>))]
    counts: u32,
    /// Seconds a run takes; runs before the first sample find the number of accesses [default: 5]
    #[arg(long, value_name = SECONDS, value_parser = within(0.01..=86_400.0, seconds::parse))]
    seconds: Option<f64>,
    /// Accesses in each round, instead of --seconds
    #[arg(long, value_name = "N", value_parser = within(1..=u64::MAX, number::<u64>), conflicts_with = "seconds")]
    steps: Option<u64>,
    /// Use transparent huge pages
    #[arg(long)]
    huge: bool,
    /// The share of each CPU that the load burns, in percent; 0 for no load
    #[arg(long, value_name = "PERCENT", default_value = "60", value_parser = within(0.0..=99.0, number))]
    load: f64,
    /// Milliseconds between two scans of NUMA balancing at least (1000 in the kernel), for short runs
    #[arg(long, value_name = "N", value_parser = within(1..=u32::MAX, number::<u32>))]
    scan_period_ms: Option<u32>,
    /// Milliseconds a process has run before its first scan [default: as --scan-period-ms]
    #[arg(long, value_name = "N", value_parser = within(1..=u32::MAX, number::<u32>))]
    scan_delay_ms: Option<u32>,
    /// Nanoseconds for which the load balancer takes a task for cache-hot (500000 in the kernel)
    #[arg(long, value_name = "N", value_parser = within(0..=u64::MAX, number::<u64>))]
    migration_cost_ns: Option<u64>,
}

fn read_preferred(text: &str) -> Option<Level> {
    let level = Level::Number(text.parse().ok()?);
    preferred_of(&level).map(|_| level)
}

fn read_balancing(text: &str) -> Option<Level> {
    let level = Level::Number(text.parse().ok()?);
    balancing_of(&level).map(|_| level)
}

fn read_place(text: &str) -> Option<Level> {
    let place: Where = text.parse().ok()?;
    Some(place.to_string().into())
}

/// The matrix that was asked for: a new one, calibrated, or the one of a stored run.
fn make<'a>(arguments: &Arguments, context: Context<'a>) -> Result<Made<Matrix<'a>>, RunError> {
    let Context {
        machine, cancel, ..
    } = context;
    if let Some((run, detail)) = arguments.continued() {
        let parameters = stored::parameters(run, detail);
        let parameters = parameters.map_err(|error| RunError::Target(error.into()))?;
        return Ok(Matrix::new(machine, PathBuf::from(PROGRAM), parameters).into());
    }
    let places = places(machine);
    let selection = selection(arguments);
    let chosen = choose(&places, &kernel::balancing(machine), &selection);
    let chosen = chosen.map_err(|error| RunError::Target(error.into()))?;
    let mut parameters = parameters(arguments, &places, chosen)?;
    // Minutes of samples that all say the same; who names cells has a reason.
    if selection == Selection::default() && places.memory.len() < 2 && places.cpus.len() < 2 {
        return Err(RunError::Target(ONE_NODE.into()));
    }
    let mut warnings = Vec::new();
    if parameters.bytes == 0 {
        let (bytes, found) = default_buffer_bytes(machine, &places.memory);
        parameters.bytes = bytes;
        warnings.extend(found.iter().map(ToString::to_string));
    }
    let mut sample = None;
    if let Some(seconds) = parameters.calibrated_to_s {
        let found = calibrate(machine, Path::new(PROGRAM), &parameters, seconds, cancel);
        let Calibrated { steps, preparing } = found.map_err(of_child)?;
        parameters.steps = steps;
        sample = Some(preparing + std::time::Duration::from_secs_f64(seconds));
    }
    let left_out = parameters.left_out.iter();
    let notes = left_out.map(|left| format!("not measured: {}: {}", left.what, left.reason));
    let notes = notes.collect();
    let matrix = Matrix::new(machine, PathBuf::from(PROGRAM), parameters);
    let untraced = matrix.not_traced_because();
    warnings.extend(untraced.map(|reason| format!("migrations are not traced: {reason}")));
    Ok(Made {
        experiment: matrix,
        warnings,
        notes,
        sample,
    })
}

fn of_child(error: ChildError) -> RunError {
    match error {
        ChildError::BadSpec { .. } => RunError::Target(error.into()),
        ChildError::Cancelled { .. } => RunError::Interrupted,
        error => RunError::Prepare(error.into()),
    }
}

/// The declared factors, whose levels were read before.
fn selection(arguments: &Arguments) -> Selection {
    let levels = |name| arguments.levels(name).iter();
    Selection {
        preferred_node: levels(PREFERRED_NODE).filter_map(preferred_of).collect(),
        numa_balancing: levels(NUMA_BALANCING).filter_map(balancing_of).collect(),
        memory_node: levels(MEMORY_NODE).filter_map(place_of).collect(),
        cpu_node: levels(CPU_NODE).filter_map(place_of).collect(),
        cells: arguments
            .named_cells()
            .iter()
            .filter_map(MatrixCell::of)
            .collect(),
    }
}

/// What is the same in all cells. `bytes` is 0 where no size was given, `steps` 1 where it has to be calibrated.
fn parameters(
    arguments: &Arguments,
    places: &Places,
    chosen: Chosen,
) -> Result<Parameters, RunError> {
    let given: Given = arguments.parameters()?;
    let tuning = Tuning {
        scan_delay_ms: given.scan_delay_ms,
        scan_period_ms: given.scan_period_ms,
        migration_cost_ns: given.migration_cost_ns,
    };
    let settings = tuning.settings();
    // Names in options are those of JSON in kebab-case.
    let pattern = serde_json::from_value(given.pattern.replace('-', "_").into());
    let seconds = given.seconds.unwrap_or(RUN_S);
    Ok(Parameters {
        pattern: pattern.map_err(|error| arguments.wrong("pattern", error.to_string()))?,
        bytes: given.bytes.unwrap_or(0),
        counts: given.counts,
        steps: given.steps.unwrap_or(1),
        calibrated_to_s: given.steps.is_none().then_some(seconds),
        load_percent: given.load,
        huge_pages: given.huge,
        settings: settings.map_err(|error| RunError::Prepare(error.into()))?,
        nodes: places.cpus.clone(),
        cells: chosen.cells,
        left_out: chosen.left_out,
    })
}

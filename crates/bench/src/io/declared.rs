//! The experiment as `nearfar bench io` declares it, and how one is made of what was asked for.

mod parameters;

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nearfar_experiment::{BoxError, Cell, Change, Experiment, Factor, Metric, Resources, Values};
use nearfar_machine::{CpuSet, IoPolicy, Machine, NodeId};
use nearfar_proc::affinity;
use nearfar_trace::locks::Recorder;
use serde_json::Value;

use super::EXPERIMENT;
use super::job::{Job, Running, engine};
use super::meanwhile::{DiskCounts, Paths};
use super::null::Null;
use super::sample::{self, Sample};
use super::target::{Surroundings, Target, TargetError, usable};
use super::warnings::of_machine;
use super::writable::{claim, is_same, name};
use crate::planned::{self, PlannedChanges};
use crate::registry::{Argument, Arguments, Context, Declaration, Kind, Made, RunError, Varied};
use parameters::{Asked, Parameters};

const PATTERN: &str = "pattern";
const BLOCK_SIZE: &str = "block_size";
const DEPTH: &str = "depth";
const MEMORY_NODE: &str = "memory_node";
const CPU_NODE: &str = "cpu_node";
const IOPOLICY: &str = "iopolicy";
const KEEP: &str = "keep";

/// How often it is looked whether fio has ended.
const CHECK_EVERY: Duration = Duration::from_millis(20);
/// fio may take so much longer than the measured time, and so many times that: an emulated machine is slow to start it.
const MAX_EXTRA: Duration = Duration::from_secs(120);
const MAX_TIMES: f64 = 4.0;

pub const DECLARATION: Declaration = Declaration {
    name: EXPERIMENT,
    about: "Measure I/O with fio from near and far CPUs: node of CPUs and memory x depth x I/O policy x plan\n\n\
            Runs fio on a device, a file or a null block device, from the CPUs nearest to it and those most distant, with \
            its memory near or far. near and far follow nearfar's model, also for a device that the kernel has no node \
            for. A device is only read unless a pattern that writes is asked for; one that is mounted, has partitions, a \
            signature or holders, or is in use is not written to unless --destroy names it again.",
    examples: &[
        "--device nvme0n1",
        "--device nvme0n1 --factor iopolicy=numa,round-robin --factor plan=before,after --override-device-node",
        "--null 0 --factor depth=1,32",
        "--file /var/tmp --factor pattern=randread,randwrite",
    ],
    is_hidden: false,
    is_of_machine: false,
    needs_devices: true,
    samples: 10,
    factors: &[
        Varied::new(
            PATTERN,
            &["randread", "randwrite", "randrw", "read", "write", "rw"],
            &["randread"],
        ),
        Varied::numbers(BLOCK_SIZE, 512..=16 << 20, &[4096]),
        Varied::numbers(DEPTH, 1..=4096, &[32]),
        Varied::new(
            IOPOLICY,
            &[KEEP, "numa", "round-robin", "queue-depth"],
            &[KEEP],
        ),
        planned::FACTOR,
        Varied::node(MEMORY_NODE, &["near"]),
        Varied::node(CPU_NODE, &["near", "far"]),
    ],
    arguments: &[
        Argument::optional(
            "device",
            "The block device: nvme0n1, sda, a path, an NVMe controller or subsystem, a PCI address",
            Kind::Text,
        ),
        Argument::optional(
            "file",
            "A regular file instead, or a directory: a file is made there and removed",
            Kind::Text,
        ),
        Argument::optional(
            "null",
            "A null block device instead, with its structures in memory of this node; it is removed afterwards",
            Kind::Text,
        ),
        Argument::optional(
            "device-node",
            "The device's node [default: by the model]",
            Kind::Text,
        ),
        Argument::new("seconds", "Seconds a sample takes", "2"),
        Argument::new("ramp-seconds", "Seconds of I/O before that", "0.2"),
        Argument::new("jobs", "Jobs of fio, each with the depth", "1"),
        Argument {
            kind: Kind::OneOf(&["auto", "io_uring", "libaio"]),
            ..Argument::new(
                "engine",
                "How fio submits: io_uring, or libaio where the kernel refuses that",
                "auto",
            )
        },
        Argument {
            kind: Kind::Size,
            ..Argument::new("size", "Size of a file that is made in a directory", "256M")
        },
        Argument::optional(
            "buffered",
            "Through the page cache, for file systems that have no direct I/O",
            Kind::Flag,
        ),
        Argument {
            kind: Kind::OneOf(&["auto", "off"]),
            ..Argument::new(
                "trace",
                "Trace which path NVMe commands take, where the disk has several paths",
                "auto",
            )
        },
        Argument::optional(
            "locks",
            "Trace which kernel locks are waited for on the CPUs of fio; this costs time where waits are many",
            Kind::Flag,
        ),
        Argument::new(
            "null-queues",
            "Submission queues of the null block device",
            "1",
        ),
        Argument::new(
            "null-delay-us",
            "Microseconds after which the null block device completes an I/O",
            "0",
        ),
        Argument::optional(
            "destroy",
            "Write to this device or file although something is on it",
            Kind::Text,
        ),
        planned::OVERRIDE_DEVICE_NODE,
    ],
};

/// The experiment, on this machine or, with targets, on theirs.
pub(crate) struct IoExperiment<'a> {
    machine: &'a Machine,
    parameters: Parameters,
    factors: Vec<Factor>,
    cells: Vec<Cell>,
    /// CPUs that this process may use.
    allowed: CpuSet,
    /// Known once it is made, and only where it is measured.
    target: Option<Target>,
    around: Option<Surroundings>,
    planned: Option<PlannedChanges>,
    engine: (&'static str, Option<String>),
    paths: Option<Paths>,
    /// Why there are no paths where there could be.
    path_warning: Option<String>,
    running: Option<Started>,
}

/// A sample that is being taken.
struct Started {
    fio: Running,
    job: Job,
    cpu_node: NodeId,
    disks: DiskCounts,
    locks: Option<Recorder>,
    /// Keeps others from mounting what is written to.
    _claim: Option<File>,
}

pub(crate) fn make<'a>(
    arguments: &Arguments,
    context: Context<'a>,
) -> Result<Made<IoExperiment<'a>>, RunError> {
    let Context { machine, .. } = context;
    let online = machine.cpu_states.online.clone();
    let allowed = affinity::get(0).map_or(online.clone(), |allowed| allowed.intersection(&online));
    let parameters = Parameters::read(arguments)?;
    let seconds = parameters.seconds + parameters.ramp_seconds + 0.3;
    let mut experiment = IoExperiment {
        machine,
        parameters,
        factors: arguments.factors(),
        cells: arguments.cells(),
        allowed,
        target: None,
        around: None,
        planned: None,
        engine: ("io_uring", None),
        paths: None,
        path_warning: None,
        running: None,
    };
    let (mut notes, mut warnings) = (Vec::new(), Vec::new());
    if context.is_measured_here {
        let wrong = |error: BoxError| RunError::Target(error);
        experiment
            .find_target()
            .map_err(|error| wrong(error.into()))?;
        notes = experiment.leave_out_cells().map_err(wrong)?;
        experiment.check_writes().map_err(wrong)?;
        warnings = experiment.warnings_of_run();
    }
    Ok(Made {
        experiment,
        warnings,
        notes,
        sample: Some(Duration::from_secs_f64(seconds)),
    })
}

impl IoExperiment<'_> {
    /// What is measured and what is around it; not yet the path of a device or file that is made.
    fn find_target(&mut self) -> Result<(), TargetError> {
        let machine = self.machine;
        let target = match &self.parameters.asked {
            Asked::Device(name) => Some(Target::device(machine, name)?),
            Asked::File(path) => {
                let found = std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
                match found.is_dir() {
                    true => Some(Target::directory(machine, found)?),
                    false => Some(Target::at(machine, found)?),
                }
            }
            Asked::Null(_) => None,
        };
        let named = self.parameters.device_node;
        let node = match self.parameters.asked {
            Asked::Null(node) => Some((node, "--null")),
            _ => named.map(|node| (node, "--device-node")),
        };
        let functions = target.as_ref().map_or(&[][..], |it| &it.functions);
        let what = self.parameters.asked.to_string();
        self.around = Some(Surroundings::new(
            machine,
            &self.allowed,
            functions,
            node,
            &what,
        )?);
        let is_overridden = self.parameters.override_device_node;
        self.planned = Some(PlannedChanges::new(machine, functions, is_overridden));
        self.engine = engine(&self.parameters.engine);
        self.target = target;
        Ok(())
    }

    /// Leaves out the cells that this machine has no node or no paths for. What was left out and why, in sentences.
    fn leave_out_cells(&mut self) -> Result<Vec<String>, BoxError> {
        let around = self.around.as_ref().ok_or("the device is unknown")?;
        let subsystem = self.subsystem();
        let mut notes: Vec<String> = Vec::new();
        let mut note = |reason: String| {
            if !notes.contains(&reason) {
                notes.push(reason);
            }
        };
        let mut cells = self.cells.clone();
        cells.retain(|cell| {
            let (cpus, memory) = (cell.text(CPU_NODE), cell.text(MEMORY_NODE));
            let policy = cell.text(IOPOLICY);
            let reason = match (around.cpu_node(&cpus), around.memory_node(&memory)) {
                (Err(reason), _) => Some(format!("cpu_node={cpus}: {reason}")),
                (_, Err(reason)) => Some(format!("memory_node={memory}: {reason}")),
                _ if policy != KEEP && subsystem.is_none() => Some(format!(
                    "iopolicy={policy}: {} is no NVMe disk with native multipath",
                    self.parameters.asked
                )),
                _ => None,
            };
            let is_measured = reason.is_none();
            if let Some(reason) = reason {
                note(format!("not measured: {reason}"));
            }
            is_measured
        });
        self.cells = cells;
        let has_plan = self
            .cells
            .iter()
            .any(|cell| cell.text(planned::PLAN) == planned::AFTER);
        if let (true, Some(planned)) = (has_plan, &self.planned) {
            notes.extend(planned.notes());
        }
        match self.cells.is_empty() {
            true => Err(notes.join("\n").into()),
            false => Ok(notes),
        }
    }

    /// Refuses a run with cells that write where that is not allowed.
    fn check_writes(&self) -> Result<(), BoxError> {
        let writes = self
            .cells
            .iter()
            .any(|cell| Job::writes(&cell.text(PATTERN)));
        let (Some(target), Some(destroy)) = (&self.target, &self.parameters.destroy) else {
            return match (writes, &self.target) {
                (true, Some(_)) => self.claim().map(|_| ()),
                _ => Ok(()),
            };
        };
        match is_same(&target.path, destroy.as_ref()) {
            true => Ok(()),
            false => Err(format!(
                "--destroy {destroy}: what is measured is {}",
                target.path.display()
            )
            .into()),
        }
    }

    /// Keeps what is written to from being mounted or claimed meanwhile.
    fn claim(&self) -> Result<Option<File>, BoxError> {
        let target = self.target.as_ref().ok_or("the device is unknown")?;
        let path = target.path.display();
        if self.parameters.destroy.is_some() {
            return Ok(None);
        }
        match &self.parameters.asked {
            Asked::Device(_) => {
                let refused = |error| {
                    format!(
                        "cannot write to {path}: {error}\n--destroy {path} writes to it all the same and destroys what \
                         is on it"
                    )
                };
                Ok(Some(claim(&target.path).map_err(refused)?))
            }
            Asked::File(_) if !target.is_made => Err(format!(
                "cannot write to {path}: nearfar did not make this file\n--destroy {path} writes to it all the same; \
                 --file with a directory makes a file there"
            )
            .into()),
            Asked::File(_) | Asked::Null(_) => Ok(None),
        }
    }

    fn warnings_of_run(&self) -> Vec<String> {
        let planned = self.planned.as_ref();
        let after = Cell::new().with(planned::PLAN, planned::AFTER);
        let planned = planned.map(|it| it.settings(&after)).unwrap_or_default();
        let mut warnings = of_machine(self.machine, &planned, self.allowed.iter().next());
        warnings.extend(self.engine.1.clone());
        warnings
    }

    /// The subsystem of a disk with native multipath, and how many paths the disk has.
    fn subsystem(&self) -> Option<(String, usize)> {
        let disk = name(self.target.as_ref()?.disks.first()?);
        let subsystems = self.machine.nvme.get().into_iter().flatten();
        let mut found = subsystems
            .filter(|it| it.iopolicy.get().is_some())
            .filter_map(|it| {
                let namespace = it
                    .namespaces
                    .iter()
                    .find(|namespace| namespace.name == disk)?;
                Some((it.name.clone(), namespace.paths.len()))
            });
        found.next()
    }

    fn make_target(&mut self, resources: &mut Resources) -> Result<(), BoxError> {
        let parameters = &self.parameters;
        match &parameters.asked {
            Asked::Null(node) => {
                let null = Null {
                    node: *node,
                    queues: parameters.null_queues,
                    completion_ns: (1e3 * parameters.null_delay_us) as u64,
                };
                let path = null.make(resources)?;
                self.target = Some(Target::at(self.machine, path)?);
            }
            Asked::File(_) => {
                let Some(target) = self.target.as_mut().filter(|it| it.is_made) else {
                    return Ok(());
                };
                if target.path.is_dir() {
                    let path = resources.file_in(&target.path, parameters.size)?;
                    fill(&path, parameters.size)?;
                    target.path = path;
                }
            }
            Asked::Device(_) => {}
        }
        Ok(())
    }

    fn job(&self, cell: &Cell) -> Result<(Job, NodeId), BoxError> {
        let target = self.target.as_ref().ok_or("the device is unknown")?;
        let around = self.around.as_ref().ok_or("the device is unknown")?;
        let cpu_node = around.cpu_node(&cell.text(CPU_NODE))?;
        let cpus = usable(self.machine, &self.allowed, cpu_node);
        let Parameters {
            seconds,
            ramp_seconds,
            jobs,
            buffered,
            ..
        } = self.parameters;
        let job = Job {
            path: target.path.clone(),
            engine: self.engine.0,
            pattern: cell.text(PATTERN),
            block_size: cell.text(BLOCK_SIZE),
            depth: cell.text(DEPTH),
            jobs,
            seconds,
            ramp_seconds,
            cpus: cpus.ok_or("the node has no CPU that may be used")?,
            memory_node: around.memory_node(&cell.text(MEMORY_NODE))?,
            is_buffered: buffered,
        };
        Ok((job, cpu_node))
    }

    /// Waits for fio, counting paths meanwhile.
    fn wait(&mut self, cancel: &AtomicBool) -> Result<(), BoxError> {
        let started = self.running.as_mut().ok_or("fio was not started")?;
        let measured = self.parameters.seconds + self.parameters.ramp_seconds;
        let until = Instant::now() + MAX_EXTRA + Duration::from_secs_f64(MAX_TIMES * measured);
        while started.fio.is_running()? {
            if cancel.load(Ordering::Relaxed) {
                started.fio.kill();
                return Err("interrupted".into());
            }
            if Instant::now() > until {
                started.fio.kill();
                return Err("fio did not end in time and was killed".into());
            }
            match &mut self.paths {
                Some(paths) => paths.wait(CHECK_EVERY)?,
                None => std::thread::sleep(CHECK_EVERY),
            }
        }
        Ok(())
    }
}

/// Gives a file content, so that reads reach the disk.
fn fill(path: &Path, bytes: u64) -> std::io::Result<()> {
    const PIECE_BYTES: u64 = 1 << 20;
    let mut file = File::options().write(true).open(path)?;
    let mut random = fastrand::Rng::with_seed(1);
    let mut piece = vec![0; PIECE_BYTES as usize];
    random.fill(&mut piece);
    let mut left = bytes;
    while left > 0 {
        let now = left.min(PIECE_BYTES);
        file.write_all(&piece[..now as usize])?;
        left -= now;
    }
    file.sync_all()
}

impl Experiment for IoExperiment<'_> {
    type Sample = Sample;

    fn name(&self) -> &str {
        DECLARATION.name
    }

    fn title(&self) -> String {
        let Parameters { asked, jobs, .. } = &self.parameters;
        format!("fio on {asked}, {jobs} jobs")
    }

    fn parameters(&self) -> Value {
        self.parameters.stored()
    }

    fn factors(&self) -> Vec<Factor> {
        self.factors.clone()
    }

    fn cells(&self) -> Vec<Cell> {
        self.cells.clone()
    }

    fn metrics(&self) -> Vec<Metric> {
        sample::metrics()
    }

    fn settings(&self, cell: &Cell) -> Vec<Change> {
        let planned = self.planned.as_ref();
        let mut settings = planned.map(|it| it.settings(cell)).unwrap_or_default();
        let policy = cell.text(IOPOLICY);
        if let (true, Some((subsystem, _))) = (policy != KEEP, self.subsystem()) {
            settings.push(Change::NvmeIoPolicy {
                subsystem,
                policy: IoPolicy::from(policy.as_str()),
            });
        }
        settings
    }

    fn setup(&mut self, resources: &mut Resources) -> Result<(), BoxError> {
        self.make_target(resources)?;
        let several = self.subsystem().is_some_and(|(_, paths)| paths > 1);
        if several && self.parameters.trace == "auto" {
            let disk = self.target.as_ref().and_then(|it| it.disks.first());
            let disk = disk.map(|it| name(it)).unwrap_or_default();
            match Paths::open(self.machine, &disk) {
                Ok(paths) => self.paths = Some(paths),
                Err(error) => {
                    let warning = format!("which path the commands took is unknown: {error}");
                    self.path_warning = Some(warning);
                }
            }
        }
        Ok(())
    }

    fn setup_cell(&mut self, cell: &Cell, resources: &mut Resources) -> Result<(), BoxError> {
        let (job, cpu_node) = self.job(cell)?;
        let claim = match Job::writes(&job.pattern) {
            true => self.claim()?,
            false => None,
        };
        let directory: PathBuf = resources.temporary_directory()?;
        if let Some(paths) = &mut self.paths {
            paths.begin()?;
        }
        let disks = self.target.as_ref().map_or(&[][..], |it| &it.disks);
        let disks = DiskCounts::now(disks);
        let locks = match self.parameters.locks {
            true => Some(Recorder::start(&job.cpus)?),
            false => None,
        };
        let fio = job.start(resources, directory)?;
        self.running = Some(Started {
            fio,
            job,
            cpu_node,
            disks,
            locks,
            _claim: claim,
        });
        Ok(())
    }

    fn teardown_cell(&mut self, _: &Cell) -> Result<(), BoxError> {
        self.running = None;
        Ok(())
    }

    fn run(&mut self, _: &Cell, cancel: &AtomicBool) -> Result<Sample, BoxError> {
        self.wait(cancel)?;
        let share = self
            .paths
            .as_mut()
            .map(|paths| paths.nearest_share(self.machine));
        let started = self.running.as_mut().ok_or("fio was not started")?;
        let disks = self.target.as_ref().map_or(&[][..], |it| &it.disks);
        let now = DiskCounts::now(disks);
        let locks = started.locks.take().map(Recorder::finish).transpose()?;
        let fio = started.fio.answer()?;
        let Job {
            seconds,
            ramp_seconds,
            ..
        } = started.job;
        let bytes = fio.bytes_per_s * (seconds + ramp_seconds);
        let others = now.others_since(&started.disks, bytes);
        let unknown = share
            .as_ref()
            .and_then(|it| it.as_ref().err())
            .map(|reason| format!("which path the commands took is unknown: {reason}"));
        let warnings = self.path_warning.clone().into_iter();
        Ok(Sample {
            fio,
            command: started.job.command_line(),
            engine: started.job.engine.to_owned(),
            device_nodes: self
                .around
                .as_ref()
                .map_or(&[][..], |it| it.nodes())
                .to_vec(),
            cpu_node: started.cpu_node,
            cpus: started.job.cpus.clone(),
            memory_node: started.job.memory_node,
            nearest_path_share: share.and_then(Result::ok),
            locks: locks.map(|it| it.locks),
            warnings: warnings.chain(others).chain(unknown).collect(),
        })
    }

    fn values(sample: &Sample) -> Values {
        sample::values(sample)
    }

    fn warnings(sample: &Sample) -> Vec<String> {
        sample.warnings.clone()
    }
}

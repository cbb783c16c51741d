//! What a run takes: the target, a null block device if that is it, the cells that this machine has, whether they may write, fio's job
//! for each, and what may be wrong with the whole run.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nearfar_experiment::{BoxError, Change, Resources, RunPlan};
use nearfar_machine::{CpuId, CpuSet, Machine, NodeId};
use nearfar_proc::error_text;
use nearfar_runs::Cell;

use super::fio::{Job, engine};
use super::measure::{Paths, StartedSample};
use super::target::{
    NotWritableError, Surroundings, Target, TargetError, claim, is_same, name, usable,
};
use super::{Asked, BLOCK_SIZE, CPU_NODE, DEPTH, IOPOLICY, KEEP, MEMORY_NODE, PATTERN, Parameters};
use crate::planned::{self, PlannedChanges};
use crate::registry::{Arguments, Context, Made, RunError};

/// The experiment, on this machine or, with targets, on theirs.
pub(crate) struct IoExperiment<'a> {
    pub(super) machine: &'a Machine,
    /// Ends what waits when set.
    pub(super) cancel: &'a AtomicBool,
    pub(super) parameters: Parameters,
    pub(super) asked: Asked,
    pub(super) plan: RunPlan,
    /// CPUs that this process may use.
    pub(super) allowed: CpuSet,
    /// Known once it is made, and only where it is measured.
    pub(super) target: Option<Target>,
    pub(super) around: Option<Surroundings>,
    pub(super) planned: Option<PlannedChanges>,
    pub(super) engine: (&'static str, Option<String>),
    pub(super) paths: Option<Paths>,
    /// Why there are no paths where there could be.
    pub(super) path_warning: Option<String>,
    pub(super) running: Option<StartedSample>,
    /// What is measured: a regular file from the setup of the run on, a device while a sample is taken.
    pub(super) file: Option<File>,
}

pub(crate) fn make<'a>(
    arguments: &Arguments,
    context: Context<'a>,
) -> Result<Made<IoExperiment<'a>>, RunError> {
    let (machine, cancel) = (context.machine, context.cancel);
    let allowed = context.allowed_cpus();
    let parameters: Parameters = arguments.parameters()?;
    let asked = parameters.asked()?;
    let seconds = parameters.seconds + parameters.ramp_seconds + 0.3;
    let mut experiment = IoExperiment {
        machine,
        cancel,
        plan: arguments.plan(&parameters),
        parameters,
        asked,
        allowed,
        target: None,
        around: None,
        planned: None,
        engine: ("io_uring", None),
        paths: None,
        path_warning: None,
        running: None,
        file: None,
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
        let target = match &self.asked {
            Asked::Device(name) => Some(Target::device(machine, name)?),
            Asked::File(path) => {
                let found = std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
                match found.is_dir() {
                    true => Some(Target::directory(machine, found)?),
                    false => Some(Target::file(machine, found)?),
                }
            }
            Asked::Null(_) => None,
        };
        let named = self.parameters.device_node;
        let node = match self.asked {
            Asked::Null(node) => Some((node, "--null")),
            _ => named.map(|node| (node, "--device-node")),
        };
        let functions = target.as_ref().map_or(&[][..], |it| &it.functions);
        let what = self.asked.to_string();
        self.around = Some(Surroundings::new(
            machine,
            &self.allowed,
            functions,
            node,
            &what,
        )?);
        let is_overridden = self.parameters.planned.override_device_node;
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
        let is_after = |cell: &Cell| cell.text(planned::PLAN) == planned::AFTER;
        let is_empty = self.planned.as_ref().is_none_or(PlannedChanges::is_empty);
        let has_plan = self.plan.cells.iter().any(is_after);
        let mut cells = self.plan.cells.clone();
        cells.retain(|cell| {
            let (cpus, memory) = (cell.text(CPU_NODE), cell.text(MEMORY_NODE));
            let policy = cell.text(IOPOLICY);
            let reason = match (around.cpu_node(&cpus), around.memory_node(&memory)) {
                (Err(reason), _) => Some(format!("cpu_node={cpus}: {reason}")),
                (_, Err(reason)) => Some(format!("memory_node={memory}: {reason}")),
                _ if is_after(cell) && is_empty => {
                    Some("plan=after: the plan for the device is empty".to_owned())
                }
                _ if policy != KEEP && subsystem.is_none() => Some(format!(
                    "iopolicy={policy}: {} is no NVMe disk with native multipath",
                    self.asked
                )),
                _ => None,
            };
            let is_measured = reason.is_none();
            if let Some(reason) = reason {
                note(format!("not measured: {reason}"));
            }
            is_measured
        });
        self.plan.cells = cells;
        if let (true, Some(planned)) = (has_plan, &self.planned) {
            notes.extend(planned.notes());
        }
        match self.plan.cells.is_empty() {
            true => Err(notes.join("\n").into()),
            false => Ok(notes),
        }
    }

    /// Refuses a run with cells that write where that is not allowed.
    fn check_writes(&self) -> Result<(), BoxError> {
        let (Some(target), destroy) = (&self.target, &self.parameters.destroy) else {
            return Ok(());
        };
        if let Some(destroy) = destroy
            .as_ref()
            .filter(|it| !is_same(&target.path, it.as_ref()))
        {
            let measured = target.path.display();
            return Err(format!("--destroy {destroy}: what is measured is {measured}").into());
        }
        let mut cells = self.plan.cells.iter();
        match cells.any(|cell| Job::writes(&cell.text(PATTERN))) {
            true => self.claim().map(|_| ()),
            false => Ok(()),
        }
    }

    /// Whether what is measured may be written to. A device is open exclusively then.
    fn claim(&self) -> Result<Option<File>, BoxError> {
        let target = self.target.as_ref().ok_or("the device is unknown")?;
        self.claim_at(&target.path, target.is_made)
    }

    fn claim_at(&self, path: &Path, is_made: bool) -> Result<Option<File>, BoxError> {
        let shown = path.display();
        let may_destroy = self.parameters.destroy.is_some();
        match &self.asked {
            Asked::Device(_) => {
                let refused = |error: NotWritableError| {
                    let hint = match error.is_content() {
                        true => format!(
                            "--destroy {shown} writes to it all the same and destroys what is on it"
                        ),
                        false => "a device that something uses is never written to".to_owned(),
                    };
                    format!("cannot write to {shown}: {error}\n{hint}")
                };
                Ok(Some(claim(path, may_destroy).map_err(refused)?))
            }
            Asked::File(_) if !is_made && !may_destroy => Err(format!(
                "cannot write to {shown}: nearfar did not make this file\n--destroy {shown} writes to it all the same; \
                 --file with a directory makes a file there"
            )
            .into()),
            Asked::File(_) | Asked::Null(_) => Ok(None),
        }
    }

    /// Opens the device that is measured, exclusively if it is written to; the same disk as at first, whatever its name is by now.
    pub(super) fn open_device(&mut self, writes: bool) -> Result<(), BoxError> {
        let Some(Target {
            path,
            identity: Some(identity),
            is_made,
            ..
        }) = self.target.clone()
        else {
            return Ok(());
        };
        if !matches!(self.asked, Asked::Device(_)) {
            return Ok(());
        }
        let open = |path: &Path| -> Result<File, BoxError> {
            match writes {
                true => self
                    .claim_at(path, is_made)?
                    .ok_or_else(|| "it is no device".into()),
                false => File::open(path).map_err(|error| {
                    format!("cannot open {}: {}", path.display(), error_text(&error)).into()
                }),
            }
        };
        let (now, file) = identity.open_with(&path, open)?;
        if now != path {
            self.target = Some(Target::at(self.machine, now)?);
        }
        self.file = Some(file);
        Ok(())
    }

    pub(super) fn close_device(&mut self) {
        if matches!(self.asked, Asked::Device(_)) {
            self.file = None;
        }
    }

    fn warnings_of_run(&self) -> Vec<String> {
        let planned = self.planned.as_ref();
        let after = Cell::new().with(planned::PLAN, planned::AFTER);
        let planned = planned.map(|it| it.settings(&after)).unwrap_or_default();
        let mut warnings = of_machine(&planned, self.allowed.iter().next());
        warnings.extend(self.engine.1.clone());
        warnings
    }

    /// The subsystem of a disk with native multipath, and how many paths the disk has.
    pub(super) fn subsystem(&self) -> Option<(String, usize)> {
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

    pub(super) fn make_target(&mut self, resources: &mut Resources) -> Result<(), BoxError> {
        let parameters = &self.parameters;
        match &self.asked {
            Asked::Null(node) => {
                let null = Null {
                    node: *node,
                    queues: parameters.null_queues,
                    completion_ns: (1e3 * parameters.null_delay_us) as u64,
                };
                let path = null.make(resources)?;
                self.target = Some(Target::at(self.machine, path)?);
            }
            Asked::File(_) => self.open_file(resources)?,
            Asked::Device(_) => {}
        }
        Ok(())
    }

    /// Opens the file that is measured, and makes it first where that was asked for. fio gets what is open: another user who can
    /// write to the directory can put another file in its place.
    fn open_file(&mut self, resources: &mut Resources) -> Result<(), BoxError> {
        let bytes = self.parameters.size;
        let target = self.target.as_mut().ok_or("the file is unknown")?;
        let file = match target.path.is_dir() {
            true => {
                let (path, mut file) = resources.file_in(&target.path, bytes)?;
                fill(&mut file, bytes, self.cancel)?;
                target.path = path;
                file
            }
            false => {
                let shown = target.path.display().to_string();
                let file = File::open(&target.path);
                file.map_err(|error| format!("cannot open {shown}: {}", error_text(&error)))?
            }
        };
        self.file = Some(file);
        Ok(())
    }

    pub(super) fn job(&self, cell: &Cell) -> Result<(Job, NodeId), BoxError> {
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
            file: self.file.as_ref().map(AsRawFd::as_raw_fd),
            made_bytes: target.is_made.then_some(self.parameters.size),
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
}

/// Gives a file content, so that reads reach the disk. Ends early when `cancel` is set, which is an error.
fn fill(file: &mut File, bytes: u64, cancel: &AtomicBool) -> Result<(), BoxError> {
    const PIECE_BYTES: u64 = 1 << 20;
    /// Written to the disk at once: the wait for it cannot be interrupted.
    const SYNCED_BYTES: u64 = 64 << 20;
    let mut random = fastrand::Rng::with_seed(1);
    let mut piece = vec![0; PIECE_BYTES as usize];
    random.fill(&mut piece);
    let mut left = bytes;
    while left > 0 {
        let now = left.min(PIECE_BYTES);
        file.write_all(&piece[..now as usize])?;
        left -= now;
        if left.is_multiple_of(SYNCED_BYTES) {
            file.sync_data()?;
        }
        if cancel.load(Ordering::Relaxed) {
            return Err("interrupted".into());
        }
    }
    Ok(file.sync_all()?)
}

const CONFIGURATION: &str = "/sys/kernel/config/nullb";
/// Mebibytes; nothing is stored.
const SIZE_MIB: &str = "1024";
/// A timer completes each request (Documentation/block/null_blk.rst, `irqmode`).
const BY_TIMER: &str = "2";
const BY_SOFTIRQ: &str = "1";

/// What null_blk is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Null {
    pub(super) node: NodeId,
    pub(super) queues: u32,
    /// 0 for at once.
    completion_ns: u64,
}

impl Null {
    /// Makes the device, after loading the module where it is not there.
    ///
    /// # Errors
    /// When the kernel has no null_blk, or refuses.
    pub(super) fn make(&self, resources: &mut Resources) -> Result<PathBuf, BoxError> {
        if !Path::new(CONFIGURATION).is_dir() {
            load();
        }
        let node = self.node.to_string();
        let queues = self.queues.to_string();
        let delay = self.completion_ns.to_string();
        let mode = match self.completion_ns {
            0 => BY_SOFTIRQ,
            _ => BY_TIMER,
        };
        let attributes = [
            ("size", SIZE_MIB),
            ("home_node", &node),
            ("submit_queues", &queues),
            ("irqmode", mode),
            ("completion_nsec", &delay),
        ];
        Ok(resources.null_block(&attributes)?)
    }
}

/// What fails here is said by the lease, with the command to repeat by hand.
fn load() {
    let _ = Command::new("modprobe")
        .args(["null_blk", "nr_devices=0"])
        .output();
    let configuration = Path::new("/sys/kernel/config");
    if configuration.is_dir() && !Path::new(CONFIGURATION).is_dir() {
        let _ = Command::new("mount")
            .args(["-t", "configfs", "configfs"])
            .arg(configuration)
            .output();
    }
}

/// Idle states that take longer to leave count.
const MAX_EXIT_LATENCY_US: u32 = 10;

/// Sentences about idle states and the interrupts of the device.
fn of_machine(planned: &[Change], cpu: Option<CpuId>) -> Vec<String> {
    let idle = cpu.and_then(|cpu| {
        idle_states(Path::new(&format!(
            "/sys/devices/system/cpu/cpu{cpu}/cpuidle"
        )))
    });
    idle.into_iter().chain(interrupts(planned)).collect()
}

/// A warning about the deepest idle state that is enabled, where leaving it takes long.
fn idle_states(directory: &Path) -> Option<String> {
    let states = fs::read_dir(directory).ok()?.filter_map(|state| {
        let state = state.ok()?.path();
        let text = |name: &str| Some(fs::read_to_string(state.join(name)).ok()?.trim().to_owned());
        let latency_us: u32 = text("latency")?.parse().ok()?;
        (text("disable")? == "0").then_some((latency_us, text("name")?))
    });
    let (latency_us, name) = states.max()?;
    (latency_us > MAX_EXIT_LATENCY_US).then(|| {
        format!(
            "CPUs may enter idle state {name}, which takes {latency_us} us to leave: latency at low depth includes \
             that; cpupower idle-set -D {MAX_EXIT_LATENCY_US} disables it"
        )
    })
}

/// A warning when the plan for the device moves its interrupts.
fn interrupts(planned: &[Change]) -> Option<String> {
    let is_interrupt = |change: &&Change| matches!(change, Change::InterruptAffinity { .. });
    let far = planned.iter().filter(is_interrupt).count();
    (far > 0).then(|| {
        format!(
            "{far} interrupts of the device are not on the CPUs nearest to it: nearfar audit lists them, plan=after \
             measures with them moved"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_enabled_idle_state_is_named() {
        let place = tempfile::tempdir().unwrap();
        let state = |number: u32, name: &str, latency: &str, disable: &str| {
            let directory = place.path().join(format!("state{number}"));
            fs::create_dir(&directory).unwrap();
            for (file, value) in [("name", name), ("latency", latency), ("disable", disable)] {
                fs::write(directory.join(file), format!("{value}\n")).unwrap();
            }
        };
        state(0, "POLL", "0", "0");
        assert_eq!(idle_states(place.path()), None);
        state(1, "C6", "133", "0");
        state(2, "C10", "890", "1");
        let warning = idle_states(place.path()).unwrap();
        assert!(warning.contains("C6, which takes 133 us"), "{warning}");
    }
}

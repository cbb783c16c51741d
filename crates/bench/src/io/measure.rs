//! The run of the experiment: fio for each sample, and what is counted meanwhile: NVMe commands by path, and I/O of others.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nearfar_experiment::{BoxError, Change, Column, Experiment, Resources, RunPlan, unmeasured};
use nearfar_machine::{CpuId, IoPolicy, Known, Machine, NodeId, PciAddress};
use nearfar_proc::affinity;
use nearfar_runs::Cell;
use nearfar_trace::locks::{self, Recorder};
use nearfar_trace::nvme::{self, Commands, Decoder};
use nearfar_trace::symbols::Symbols;
use nearfar_trace::{Plan, Session, TraceError, Tracefs, records};

use super::fio::{CHECK_EVERY, Job, Running};
use super::prepare::IoExperiment;
use super::target::name;
use super::{DECLARATION, IOPOLICY, KEEP, PATTERN, Sample, Waited};
use crate::conditions::{seconds_of, usage_of};

/// fio may take so much longer than the measured time, and so many times that: an emulated machine is slow to start it.
const MAX_EXTRA: Duration = Duration::from_secs(120);
const MAX_TIMES: f64 = 4.0;

/// A sample that is being taken.
pub(super) struct StartedSample {
    fio: Running,
    job: Job,
    cpu_node: NodeId,
    disks: DiskCounts,
    locks: Option<Recorder>,
    /// System time of all children that had ended before it.
    system_s: f64,
}

/// System time of the children that have ended, in seconds.
fn children_system_s() -> f64 {
    seconds_of(usage_of(libc::RUSAGE_CHILDREN).ru_stime)
}

impl IoExperiment<'_> {
    /// Waits for fio, counting paths meanwhile: on other CPUs than fio's where there are some, which have its time for itself.
    fn wait_apart(&mut self, cancel: &AtomicBool) -> Result<(), BoxError> {
        let of_fio = self.running.as_ref().map(|it| it.job.cpus.clone());
        let own = self.paths.as_ref().and_then(|_| affinity::get(0).ok());
        let apart = own
            .as_ref()
            .map(|own| own.difference(&of_fio.unwrap_or_default()));
        // Refused, it counts from where it is.
        if let Some(apart) = apart.filter(|it| !it.is_empty()) {
            let _ = affinity::set(0, &apart);
        }
        let waited = self.wait(cancel);
        if let Some(own) = own {
            let _ = affinity::set(0, &own);
        }
        waited
    }

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
            started.fio.note_jobs();
            match &mut self.paths {
                Some(paths) => paths.wait(CHECK_EVERY)?,
                None => std::thread::sleep(CHECK_EVERY),
            }
        }
        Ok(())
    }
}

impl Experiment for IoExperiment<'_> {
    type Sample = Sample;

    fn name(&self) -> &str {
        DECLARATION.name
    }

    fn title(&self) -> String {
        let asked = &self.asked;
        match self.parameters.jobs {
            1 => format!("fio on {asked}"),
            jobs => format!("fio on {asked}, {jobs} jobs"),
        }
    }

    fn plan(&self) -> RunPlan {
        self.plan.clone()
    }

    fn columns() -> Vec<Column<Sample>> {
        super::columns()
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
        self.open_device(Job::writes(&cell.text(PATTERN)))?;
        let (job, cpu_node) = self.job(cell)?;
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
        let system_s = children_system_s();
        // fio measures its clock for a tenth of a second when it starts, a look of which takes the host long in simulated time.
        let waits = self.machine.origin.is_simulated();
        let start = || {
            let mut fio = job.start(resources, directory, waits)?;
            fio.wait_until_set_up(job.jobs, MAX_EXTRA, self.cancel)?;
            Ok::<_, BoxError>(fio)
        };
        let mut fio = match waits {
            true => unmeasured(self.machine, start)??,
            false => start()?,
        };
        fio.go(job.jobs)?;
        self.running = Some(StartedSample {
            fio,
            job,
            cpu_node,
            disks,
            locks,
            system_s,
        });
        Ok(())
    }

    fn teardown_cell(&mut self, _: &Cell) -> Result<(), BoxError> {
        self.running = None;
        self.close_device();
        Ok(())
    }

    fn run(&mut self, _: &Cell, cancel: &AtomicBool) -> Result<Sample, BoxError> {
        self.wait_apart(cancel)?;
        let share = self
            .paths
            .as_mut()
            .map(|paths| paths.nearest_share(self.machine));
        let started = self.running.as_mut().ok_or("fio was not started")?;
        let disks = self.target.as_ref().map_or(&[][..], |it| &it.disks);
        let now = DiskCounts::now(disks);
        let locks = started.locks.take();
        let processes = Some(started.fio.processes());
        let locks = locks.map(Recorder::finish).map(|recorded| {
            recorded.map(|it| locks::answer(it.waits, processes, &Symbols::read()))
        });
        let fio = started.fio.answer()?;
        // fio and its jobs have ended: their system time from begin to end, as the trace is.
        let system_s = children_system_s() - started.system_s;
        let locks = locks.transpose()?.map(|locks| Waited { locks, system_s });
        let untraced = locks
            .as_ref()
            .and_then(|it| it.locks.no_spin_reason.clone());
        let bytes = fio.bytes_per_s * (started.job.seconds + started.job.ramp_seconds);
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
            waited: locks,
            warnings: warnings
                .chain(others)
                .chain(unknown)
                .chain(untraced)
                .collect(),
        })
    }

    fn warnings(sample: &Sample) -> Vec<String> {
        sample.warnings.clone()
    }
}

/// Others' I/O below this share of all is what any system shows, and what fio does between warm-up and measured time.
const MIN_OTHER_SHARE: f64 = 0.05;
/// The same in bytes: a journal that is written meanwhile.
const MIN_OTHER_BYTES: f64 = 1e6;

/// NVMe commands of a disk with several paths.
pub(super) struct Paths {
    session: Session,
    decoder: Decoder,
    commands: Commands,
    namespace: String,
}

impl Paths {
    /// Opens the trace for a namespace. It stays open for the whole run, and takes nothing before [`Self::begin`].
    ///
    /// # Errors
    /// When the kernel does not let this user trace.
    pub(super) fn open(machine: &Machine, namespace: &str) -> Result<Self, BoxError> {
        let format = Tracefs::find()?.tracepoint(nvme::SYSTEM, nvme::EVENT)?;
        let decoder = Decoder::new(&format)?;
        let plan = Plan {
            cpus: &machine.cpu_states.online,
            tracepoints: &[(&format, None)],
            names: false,
            mappings: false,
            callers_of: None,
        };
        let mut session = Session::open(&plan)?;
        session.enable()?;
        Ok(Self {
            session,
            commands: Commands::new(decoder),
            decoder,
            namespace: namespace.to_owned(),
        })
    }

    /// Forgets what came so far.
    fn begin(&mut self) -> Result<(), TraceError> {
        self.session.settle(&mut |_, _: &records::Sample<'_>| ())?;
        self.commands = Commands::new(self.decoder);
        Ok(())
    }

    /// Counts what came, and waits for more.
    pub(super) fn wait(&mut self, time: Duration) -> Result<(), TraceError> {
        let Self {
            session, commands, ..
        } = self;
        session.drain(&mut |cpu: CpuId, sample: &records::Sample<'_>| commands.take(cpu, sample));
        session.wait(time, &[])
    }

    /// The share of commands since [`Self::begin`] that took a path nearest to their CPU.
    ///
    /// # Errors
    /// Why it is unknown.
    fn nearest_share(&mut self, machine: &Machine) -> Result<f64, String> {
        let Self {
            session, commands, ..
        } = self;
        session
            .settle(&mut |cpu, sample| commands.take(cpu, sample))
            .map_err(|error| error.to_string())?;
        let machine = with_names(machine, current_controller);
        let answer = nvme::answer(commands, &machine, None).map_err(|error| error.to_string())?;
        let of_disk = answer
            .namespaces
            .into_iter()
            .find(|it| it.namespace == self.namespace);
        let share = of_disk.map(|it| it.nearest_share);
        match share.as_ref().map(|it| (it.get(), it.unknown_reason())) {
            Some((Some(&share), _)) => Ok(share),
            Some((None, Some(reason))) => Err(reason.to_string()),
            _ => Err("the disk is not among the machine's namespaces".to_owned()),
        }
    }
}

/// The machine with the names that its NVMe controllers have now: a controller whose driver is bound again, as `plan` does and undoes,
/// may get another number, and its paths with it.
fn with_names(machine: &Machine, current: impl Fn(PciAddress) -> Option<String>) -> Machine {
    let mut machine = machine.clone();
    let Known::Yes(subsystems) = &mut machine.nvme else {
        return machine;
    };
    for subsystem in subsystems {
        let mut new_names: HashMap<String, String> = HashMap::new();
        for controller in &mut subsystem.controllers {
            if let Some(name) = controller.device.and_then(&current) {
                let old = std::mem::replace(&mut controller.name, name.clone());
                new_names.insert(old, name);
            }
        }
        let namespaces = subsystem.namespaces.iter_mut();
        for path in namespaces.flat_map(|namespace| &mut namespace.paths) {
            if let Some(name) = new_names.get(&path.controller) {
                path.name = path_name(&path.name, name).unwrap_or_else(|| path.name.clone());
                path.controller = name.clone();
            }
        }
    }
    machine
}

/// nvme0c1n1 as a path through nvme2: nvme0c2n1 (`nvme_mpath_set_disk_name` in drivers/nvme/host/multipath.c).
fn path_name(path: &str, controller: &str) -> Option<String> {
    let (subsystem, rest) = path.strip_prefix("nvme")?.split_once('c')?;
    let (_, namespace) = rest.split_once('n')?;
    let number = controller.strip_prefix("nvme")?;
    Some(format!("nvme{subsystem}c{number}n{namespace}"))
}

/// The name of a PCI function's NVMe controller.
fn current_controller(function: PciAddress) -> Option<String> {
    let directory = format!("/sys/bus/pci/devices/{function}/nvme");
    let entry = fs::read_dir(directory).ok()?.next()?.ok()?;
    entry.file_name().into_string().ok()
}

/// Bytes that disks have read and written since boot, for all programs.
pub(super) struct DiskCounts(Vec<Option<u64>>);

impl DiskCounts {
    /// Of disks in sysfs.
    pub(super) fn now(disks: &[PathBuf]) -> Self {
        let moved = |disk: &PathBuf| moved(&fs::read_to_string(disk.join("stat")).ok()?);
        Self(disks.iter().map(moved).collect())
    }

    /// A warning when more than a twentieth since then was not fio's. `bytes` are fio's, those of its warm-up among them.
    fn others_since(&self, before: &Self, bytes: f64) -> Option<String> {
        let pairs = self.0.iter().zip(&before.0);
        let all = pairs.map(|(now, then)| now.as_ref()?.checked_sub((*then)?));
        let all = all.sum::<Option<u64>>()? as f64;
        let others = all - bytes;
        let is_much = others > MIN_OTHER_BYTES && others > MIN_OTHER_SHARE * all;
        is_much.then(|| {
            format!(
                "{:.0} % of the disk's I/O in the sample was not fio's: other programs use the disk",
                100.0 * others / all
            )
        })
    }
}

/// Bytes read and written (Documentation/block/stat.rst, fields 3 and 7).
fn moved(stat: &str) -> Option<u64> {
    const SECTOR_BYTES: u64 = 512;
    let fields: Vec<&str> = stat.split_whitespace().collect();
    let field = |index: usize| fields.get(index)?.parse::<u64>().ok();
    field(2)?.checked_add(field(6)?)?.checked_mul(SECTOR_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_that_was_bound_again_takes_its_paths_along() {
        let request = nearfar_sources::Request {
            sources: vec!["x86-case1".to_owned()],
            ..nearfar_sources::Request::live(nearfar_sources::Want::audit())
        };
        let machine = nearfar_sources::read(&request).unwrap();
        let before = machine.nvme.get().unwrap()[0].clone();
        let moved = before.controllers[0].device;
        let renamed = with_names(&machine, |it| {
            (Some(it) == moved).then(|| "nvme7".to_owned())
        });
        let after = &renamed.nvme.get().unwrap()[0];
        assert_eq!(after.controllers[0].name, "nvme7");
        assert_eq!(after.controllers[1..], before.controllers[1..]);
        let names = |paths: &[nearfar_machine::NvmePath]| -> Vec<(String, String)> {
            let names = paths.iter();
            names
                .map(|it| (it.name.clone(), it.controller.clone()))
                .collect()
        };
        let old = names(&before.namespaces[0].paths);
        let expected: Vec<_> = old
            .into_iter()
            .map(
                |(path, controller)| match controller == before.controllers[0].name {
                    true => (path_name(&path, "nvme7").unwrap(), "nvme7".to_owned()),
                    false => (path, controller),
                },
            )
            .collect();
        assert_eq!(names(&after.namespaces[0].paths), expected);
        assert_eq!(path_name("nvme0c1n1", "nvme12").unwrap(), "nvme0c12n1");
    }

    #[test]
    fn others_are_what_fio_did_not_do() {
        let (before, after) = (
            DiskCounts(vec![Some(100)]),
            DiskCounts(vec![Some(20_000_100)]),
        );
        assert_eq!(after.others_since(&before, 2e7), None);
        let warning = after.others_since(&before, 1e7).unwrap();
        assert!(warning.starts_with("50 % of"), "{warning}");
        let unknown = DiskCounts(vec![None]);
        assert_eq!(unknown.others_since(&before, 0.0), None);
        assert_eq!(moved("5 0 40 1 7 0 8 2 0 1 1"), Some(48 * 512));
        assert_eq!(moved(""), None);
    }
}

//! The run of the experiment: fio for each sample, and what is counted meanwhile.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nearfar_experiment::{BoxError, Cell, Change, Column, Experiment, Factor, Resources};
use nearfar_machine::{IoPolicy, NodeId};
use nearfar_trace::locks::{self, Recorder, Symbols};
use serde_json::{Value, json};

use super::declared::{DECLARATION, IOPOLICY, KEEP, PATTERN};
use super::job::{Job, Running};
use super::meanwhile::{DiskCounts, Paths};
use super::prepare::IoExperiment;
use super::sample::{self, Sample, Waited};
use super::writable::name;
use crate::conditions::usage_of;

/// How often it is looked whether fio has ended.
const CHECK_EVERY: Duration = Duration::from_millis(20);
/// fio may take so much longer than the measured time, and so many times that: an emulated machine is slow to start it.
const MAX_EXTRA: Duration = Duration::from_secs(120);
const MAX_TIMES: f64 = 4.0;

/// A sample that is being taken.
pub(super) struct Started {
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
    let time = usage_of(libc::RUSAGE_CHILDREN).ru_stime;
    time.tv_sec as f64 + time.tv_usec as f64 / 1e6
}

impl IoExperiment<'_> {
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

    fn parameters(&self) -> Value {
        json!(self.parameters)
    }

    fn factors(&self) -> Vec<Factor> {
        self.factors.clone()
    }

    fn cells(&self) -> Vec<Cell> {
        self.cells.clone()
    }

    fn columns() -> Vec<Column<Sample>> {
        sample::columns()
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
        let fio = job.start(resources, directory)?;
        self.running = Some(Started {
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
        self.wait(cancel)?;
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

//! `nearfar tasks`: which process runs where its memory is not; which use a device.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use nearfar_live::used::{self, WatchError, Watched};
use nearfar_machine::{Known, Machine, alternatives};
use nearfar_placement::tasks::{self, DeviceUsers, GroupPlacement, TaskPlacement};
use nearfar_report::document::Document;
use nearfar_sources::{TaskScope, Want, device_numbers};
use serde::Serialize;

use crate::args::TaskFilterArgs;
use crate::args::{Colour, Format, FormatArgs, SourceArgs, seconds};
use crate::failure::{Failure, Outcome, input};
use crate::output;
use crate::recorded::add_measured;

const SCHEMA: &str = "tasks/1";
/// For how long memory is watched without `--seconds`.
const WATCH_S: f64 = 2.0;

/// Show which tasks run far from their memory, the cost, and the remedy
///
/// Memory of large processes is sampled: counting it stops them from mapping memory for as long as it takes. Each share has its
/// error (docs/tasks.md).
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar tasks\n  nearfar tasks --seconds 5 --groups\n  \
                             nearfar tasks --name postgres --threads\n  nearfar tasks --pid 4711 --used\n  nearfar tasks --device nvme0\n  nearfar tasks --file /var/lib/db/table.ibd\n  nearfar tasks --source server.nearfar"
)]
pub struct Tasks {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    filter: TaskFilterArgs,
    /// Show the tasks that have this device open or use files on it, those far from it first: nvme0, nvme0n1, sda, a PCI address
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// Show on which nodes the page cache has what of this file instead of tasks; its owner or who may write it can see that
    #[arg(long, value_name = "PATH", conflicts_with_all = ["source", "root", "device", "seconds", "threads", "groups"])]
    file: Option<PathBuf>,
    /// Count CPU time for this long instead of since each task started
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with_all = ["source", "root"])]
    seconds: Option<f64>,
    /// Watch for --seconds (2 without it) which memory the costliest tasks use, and weigh it by that; needs root and DAMON (Linux 6.2)
    #[arg(long, conflicts_with_all = ["source", "root", "groups", "file"])]
    used: bool,
    /// Show the threads of each task as well
    #[arg(long, conflicts_with = "groups")]
    threads: bool,
    /// Show control groups instead of tasks
    #[arg(long)]
    groups: bool,
    /// Show at most this many rows of the table; 0 for all
    #[arg(long, value_name = "ROWS", default_value_t = 20)]
    limit: usize,
    #[command(flatten)]
    format: FormatArgs,
}

/// The answer by control group.
#[derive(Serialize)]
struct Groups<'a> {
    seconds: Option<f64>,
    groups: Vec<GroupPlacement>,
    unknown: &'a [tasks::UnknownMemory],
}

/// The page cache of a file.
fn page_cache(file: &Path, format: &FormatArgs, colour: Colour) -> Outcome {
    let cache = nearfar_proc::move_pages::page_cache_of(file).map_err(|error| {
        let reason = match rustix::io::Errno::from_io_error(&error) {
            // The kernel shows others nothing of it.
            Some(rustix::io::Errno::PERM) => {
                "only its owner and who may write it can see what of it is cached".to_owned()
            }
            _ => nearfar_proc::error_text(&error),
        };
        input!("cannot read the page cache of {}: {reason}", file.display())
    })?;
    let document = || nearfar_report::tasks::page_cache(&file.display().to_string(), &cache);
    format.print(colour, "page-cache/1", None, &cache, document)
}

impl Tasks {
    /// Reads, judges, prints.
    pub fn run(self, colour: Colour) -> Outcome {
        if let Some(file) = &self.file {
            return page_cache(file, &self.format, colour);
        }
        let device = self.device.as_deref();
        if let Some(device) = device.filter(|_| !self.is_here()) {
            return Err(not_here(device));
        }
        let (mut machine, seconds) = self.machine()?;
        add_measured(&mut machine);
        if let (Known::Yes(tasks), true) = (&mut machine.tasks, self.is_of_all_here()) {
            let own = std::process::id().cast_signed();
            tasks.retain(|task| task.pid != own);
        }
        let mut filter = self.filter.filter(&machine, self.is_here())?;
        self.filter.check_group(&machine)?;
        if let Some(device) = device {
            filter.device = Some(device_users(&machine, device)?);
            filter.min_bytes = 0;
        }
        let judge = |machine: &Machine| match tasks::tasks(machine, &filter, seconds) {
            Known::Yes(tasks) => Ok(tasks),
            Known::No { unknown_reason } => Err(input!(
                "the tasks of {} are unknown: {unknown_reason}",
                machine.origin.place
            )),
        };
        let mut tasks = judge(&machine)?;
        if self.used {
            used::check().map_err(cannot_watch)?;
            self.watch(&mut machine, &tasks)?;
            tasks = judge(&machine)?;
        }
        let rows = match self.limit {
            0 => usize::MAX,
            rows => rows,
        };
        let origin = Some(&machine.origin);
        let groups = self.groups.then(|| tasks::by_group(&tasks));
        let text = |mut document: Document| {
            document.emulated(machine.origin.emulation.as_ref());
            document.to_text(&output::style(colour))
        };
        output::print(&match (self.format.format, groups) {
            (Format::Table, None) => text(nearfar_report::tasks::document(&tasks, rows)),
            (Format::Table, Some(groups)) => {
                text(nearfar_report::tasks::groups(&tasks, &groups, rows))
            }
            (Format::Json, None) => output::json(SCHEMA, origin, &tasks)?,
            (Format::Json, Some(groups)) => {
                let answer = Groups {
                    seconds,
                    groups,
                    unknown: &tasks.unknown,
                };
                output::json("task-groups/1", origin, &answer)?
            }
        })
    }

    /// The machine with its tasks, and for how long their CPU time was counted.
    fn machine(&self) -> Result<(Machine, Option<f64>), Failure> {
        let scope = match self.filter.pid.is_empty() {
            true => TaskScope::All,
            false => TaskScope::Of(self.filter.pid.clone()),
        };
        let want = Want {
            tasks: scope,
            min_task_bytes: match self.device {
                Some(_) => 0,
                None => self.filter.min_bytes(),
            },
            devices: self.device.is_some(),
            threads: self.threads,
            ..Want::placement()
        };
        let Some(seconds) = self.seconds else {
            let mut machine = self.source.read(want)?;
            self.keep_threads(&mut machine);
            return Ok((machine, None));
        };
        let begun = Instant::now();
        // Of all sizes, since a process may grow; what counts is its CPU time.
        let earlier = self.source.read(Want {
            task_memory: false,
            min_task_bytes: 0,
            threads: true,
            ..want.clone()
        })?;
        std::thread::sleep(Duration::from_secs_f64(seconds));
        // One that ended meanwhile is left out.
        let mut later = self.source.read(Want {
            tasks: TaskScope::All,
            threads: true,
            ..want
        })?;
        let elapsed_s = begun.elapsed().as_secs_f64();
        if let (Known::Yes(earlier), Known::Yes(later)) = (&earlier.tasks, &mut later.tasks) {
            later.retain(|task| self.filter.pid.is_empty() || self.filter.pid.contains(&task.pid));
            tasks::within(earlier, later);
        }
        self.keep_threads(&mut later);
        Ok((later, Some(elapsed_s)))
    }

    /// Adds what the costliest of these tasks use of their memory.
    fn watch(&self, machine: &mut Machine, judged: &tasks::Tasks) -> Result<(), Failure> {
        let is_far = |task: &&TaskPlacement| task.at.remote.get().is_some_and(|it| it.share > 0.0);
        let far = judged.tasks.iter().filter(is_far);
        let far: Vec<&TaskPlacement> = far.take(used::MAX_TASKS).collect();
        let Known::Yes(tasks) = &mut machine.tasks else {
            return Ok(());
        };
        let start = |pid| {
            tasks
                .iter()
                .find(|task| task.pid == pid)?
                .start
                .get()
                .copied()
        };
        let watched = far.iter().map(|task| Watched {
            pid: task.pid,
            start: start(task.pid),
            bytes: task.at.memory_bytes(),
        });
        let watched: Vec<Watched> = watched.collect();
        if watched.is_empty() {
            output::say!("nearfar: none was watched: no task is known to have far memory");
            return Ok(());
        }
        let seconds = self.seconds.unwrap_or(WATCH_S);
        let mut used =
            used::watch(&watched, Duration::from_secs_f64(seconds)).map_err(cannot_watch)?;
        for task in tasks {
            task.used = used.remove(&task.pid);
        }
        Ok(())
    }

    fn keep_threads(&self, machine: &mut Machine) {
        if let (Known::Yes(tasks), false) = (&mut machine.tasks, self.threads) {
            tasks.iter_mut().for_each(|task| task.threads.clear());
        }
    }

    fn is_here(&self) -> bool {
        self.source.source.is_empty() && self.source.root.is_none()
    }

    /// Whether this process is among the tasks without having been asked for.
    fn is_of_all_here(&self) -> bool {
        self.filter.pid.is_empty() && self.is_here()
    }
}

fn cannot_watch(error: WatchError) -> Failure {
    Failure::Refused(anyhow::Error::new(error).context("cannot watch which memory is used"))
}

/// Another machine's processes have no open files here.
fn not_here(device: &str) -> Failure {
    input!(
        "cannot find the tasks that use {device}: open files are unknown: they are read of the running system only, without \
         --source and --root"
    )
}

/// The tasks of the machine that have something of the device open.
///
/// # Errors
/// When there is no such device, or none that a task opens.
fn device_users(machine: &Machine, device: &str) -> Result<DeviceUsers, Failure> {
    let name = device.strip_prefix("/dev/").unwrap_or(device);
    if machine.functions_named(name).is_empty() {
        return Err(input!(
            "there is no device {device:?}; {}; any other has a PCI address (lspci)",
            alternatives(name, &machine.device_names())
        ));
    }
    let networks = machine.networks.get().into_iter().flatten();
    if networks.into_iter().any(|network| network.name == name) {
        return Err(input!(
            "cannot find the tasks that use {device}: the kernel does not say which process uses a network interface; with its PCI \
             address, the tasks that have its device files open (RDMA, VFIO, PTP) are shown"
        ));
    }
    let numbers = device_numbers(machine, name).map_err(Failure::input)?;
    if numbers.is_empty() {
        return Err(input!(
            "cannot find the tasks that use {device}: it has no block or character device that a task could open"
        ));
    }
    let Known::Yes(tasks) = &machine.tasks else {
        return Ok(DeviceUsers::new(machine, name, Vec::new()));
    };
    let pids: Vec<i32> = tasks.iter().map(|task| task.pid).collect();
    Ok(DeviceUsers::new(machine, name, numbers.users(&pids)))
}

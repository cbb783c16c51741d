//! `nearfar tasks`: which process runs where its memory is not.

use std::time::{Duration, Instant};

use clap::Args;
use nearfar_machine::{Known, Machine, NodeId, alternatives};
use nearfar_placement::tasks::{self, Filter, GroupPlacement};
use nearfar_proc::users;
use nearfar_sources::{TaskScope, Want};
use serde::Serialize;

use crate::args::{Colour, Format, FormatArgs, SourceArgs, pid, size};
use crate::failure::{Failure, Outcome};
use crate::output;

const SCHEMA: &str = "tasks/1";

/// Show which tasks run where their memory is not, what that costs, what keeps them there, and the remedy
///
/// Memory of large processes is sampled: counting it stops them from mapping memory for as long as it takes. Each share has its
/// error (docs/tasks.md).
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar tasks\n  nearfar tasks --seconds 5 --cgroups\n  \
                             nearfar tasks --name postgres --threads\n  nearfar tasks --source server.nearfar"
)]
pub struct Tasks {
    #[command(flatten)]
    source: SourceArgs,
    /// Show this process (may be repeated) instead of all
    #[arg(long, value_name = "PID", value_parser = pid)]
    pid: Vec<i32>,
    /// Show tasks with this text in their name
    #[arg(long, value_name = "TEXT")]
    name: Option<String>,
    /// Show tasks of this user: a name or number
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Show tasks of this control group and of those below it, or of this unit (redis.service)
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// Show tasks that run or have memory on this node
    #[arg(long, value_name = "N")]
    node: Option<u32>,
    /// Leave out tasks with less memory than this; those of --pid are always shown
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = size_or_zero)]
    min_memory: u64,
    /// Count CPU time for this long instead of since each task started
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with_all = ["source", "root"])]
    seconds: Option<f64>,
    /// Show the threads of each task as well
    #[arg(long, conflicts_with = "cgroups")]
    threads: bool,
    /// Show control groups instead of tasks
    #[arg(long)]
    cgroups: bool,
    /// Show at most this many rows of the table; 0 for all
    #[arg(long, value_name = "ROWS", default_value_t = 20)]
    top: usize,
    #[command(flatten)]
    format: FormatArgs,
}

fn size_or_zero(text: &str) -> Result<u64, String> {
    match text {
        "0" => Ok(0),
        _ => size(text),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    const MAX_SECONDS: f64 = 86_400.0;
    text.parse()
        .ok()
        .filter(|seconds| (0.1..=MAX_SECONDS).contains(seconds))
        .ok_or_else(|| "a number from 0.1 to 86400".to_owned())
}

/// The answer by control group.
#[derive(Serialize)]
struct Groups<'a> {
    seconds: Option<f64>,
    groups: Vec<GroupPlacement>,
    unknown: &'a [tasks::UnknownMemory],
}

impl Tasks {
    /// Reads, judges, prints.
    pub fn run(self, colour: Colour) -> Outcome {
        let (mut machine, seconds) = self.machine()?;
        if let (Known::Yes(tasks), true) = (&mut machine.tasks, self.is_of_all_here()) {
            let own = std::process::id().cast_signed();
            tasks.retain(|task| task.pid != own);
        }
        let filter = self.filter(&machine)?;
        self.check_group(&machine)?;
        let tasks = match tasks::tasks(&machine, &filter, seconds) {
            Known::Yes(tasks) => tasks,
            Known::No { unknown_reason } => {
                return Err(Failure::input(anyhow::anyhow!(
                    "the tasks of {} are unknown: {unknown_reason}",
                    machine.origin.place
                )));
            }
        };
        let rows = match self.top {
            0 => usize::MAX,
            rows => rows,
        };
        let origin = Some(&machine.origin);
        let groups = self.cgroups.then(|| tasks::by_group(&tasks));
        output::print(&match (self.format.format, groups) {
            (Format::Table, None) => {
                nearfar_report::tasks::document(&tasks, rows).to_text(&output::style(colour))
            }
            (Format::Table, Some(groups)) => {
                nearfar_report::tasks::groups(&tasks, &groups, rows).to_text(&output::style(colour))
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
        let scope = match self.pid.is_empty() {
            true => TaskScope::All,
            false => TaskScope::Of(self.pid.clone()),
        };
        let want = Want {
            tasks: scope,
            min_task_bytes: self.min_bytes(),
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
            later.retain(|task| self.pid.is_empty() || self.pid.contains(&task.pid));
            tasks::within(earlier, later);
        }
        self.keep_threads(&mut later);
        Ok((later, Some(elapsed_s)))
    }

    fn keep_threads(&self, machine: &mut Machine) {
        if let (Known::Yes(tasks), false) = (&mut machine.tasks, self.threads) {
            tasks.iter_mut().for_each(|task| task.threads.clear());
        }
    }

    /// Whether this process is among the tasks without having been asked for.
    fn is_of_all_here(&self) -> bool {
        self.pid.is_empty() && self.source.source.is_none() && self.source.root.is_none()
    }

    fn min_bytes(&self) -> u64 {
        match self.pid.is_empty() {
            true => self.min_memory,
            false => 0,
        }
    }

    /// A group that no task is in is a target that does not exist.
    fn check_group(&self, machine: &Machine) -> Outcome {
        let Some(group) = &self.group else {
            return Ok(());
        };
        let filter = Filter {
            group: Some(group.clone()),
            ..Filter::default()
        };
        let all = |filter| tasks::tasks(machine, filter, None).known();
        if all(&filter).is_none_or(|found| !found.tasks.is_empty()) {
            return Ok(());
        }
        let groups = all(&Filter::default()).map(|all| tasks::by_group(&all));
        let mut known: Vec<String> = groups
            .into_iter()
            .flatten()
            .filter_map(|it| it.service.or(it.group.known()))
            .collect();
        known.sort();
        known.dedup();
        Err(Failure::input(anyhow::anyhow!(
            "no task with {} MiB or more is in group {group:?}; {}",
            self.min_bytes() >> 20,
            alternatives(group, &known)
        )))
    }

    fn filter(&self, machine: &Machine) -> Result<Filter, Failure> {
        let node = self.node.map(NodeId);
        if let Some(missing) = node.filter(|&id| machine.node(id).is_none()) {
            let known: Vec<String> = machine.nodes.iter().map(|it| it.id.to_string()).collect();
            return Err(Failure::input(anyhow::anyhow!(
                "there is no node {missing}; {}",
                alternatives(&missing.to_string(), &known)
            )));
        }
        let is_here = self.source.source.is_none() && self.source.root.is_none();
        let user = self.user.as_deref().map(|user| match user.parse() {
            Ok(number) => Ok(number),
            Err(_) if !is_here => Err(Failure::input(anyhow::anyhow!(
                "user {user:?} of another machine is known by number only"
            ))),
            Err(_) => users::id_of(user).ok_or_else(|| {
                Failure::input(anyhow::anyhow!("there is no user {user:?} on this system"))
            }),
        });
        Ok(Filter {
            name: self.name.clone(),
            user: user.transpose()?,
            group: self.group.clone(),
            node,
            min_bytes: self.min_bytes(),
        })
    }
}

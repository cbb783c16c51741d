//! `--group`: a control group as a whole.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use nearfar_machine::{Machine, NodeId};
use nearfar_prefer::KeeperOptions;
use nearfar_prefer::cgroup::{Group, KeptGroup, KeptGroupReport, Through};
use nearfar_prefer::near::Home;
use nearfar_report::Style;
use serde::Serialize;

use super::{LOOK, failure};
use crate::args::Format;
use crate::failure::Failure;
use crate::output;

/// `--group` and what belongs to it.
#[derive(Args)]
pub struct GroupArgs {
    /// Keep the tasks of this control group and of those below it, by its path as in /proc/PID/cgroup
    #[arg(long, value_name = "GROUP")]
    pub group: Option<String>,
    /// Keep the group through this instead of through its cpuset where that can be put back, else its threads
    #[arg(long, value_enum, value_name = "MEANS", requires = "group")]
    through: Option<ThroughArg>,
}

/// `--through`.
#[derive(Clone, Copy, ValueEnum)]
enum ThroughArg {
    /// Its cpuset; an empty one is left with all CPUs
    Cpuset,
    /// The affinities of its threads, one by one
    Threads,
}

/// What was done to a group.
#[derive(Serialize)]
pub struct Kept {
    /// How the node was found, with --near.
    #[serde(skip_serializing_if = "Option::is_none")]
    near: Option<Home>,
    /// Its path below the root of its hierarchy.
    group: String,
    /// How it was kept, in a sentence.
    how: String,
    /// What was done.
    kept: KeptGroupReport,
}

impl Kept {
    /// The report.
    pub fn text(
        mut self,
        format: Format,
        machine: &Machine,
        near: Option<&Home>,
        style: &Style,
    ) -> Result<String, Failure> {
        self.near = near.cloned();
        let near = near.map(ToString::to_string);
        let near = near.as_deref();
        Ok(match (format, &self.kept) {
            (Format::Json, _) => {
                output::json("prefer-group/1", Some(&machine.origin), &self)? + "\n"
            }
            (Format::Table, KeptGroupReport::Cpuset(report)) => {
                let emulation = machine.origin.emulation.as_ref();
                nearfar_report::prefer::group(
                    &self.group,
                    &self.how,
                    near,
                    report,
                    emulation,
                )
                .to_text(style)
            }
            (Format::Table, KeptGroupReport::Threads(report)) => {
                let how = format!("control group {}, {}\n", self.group, self.how);
                how + &nearfar_report::prefer::document(
                    report,
                    near,
                    machine.origin.emulation.as_ref(),
                )
                .to_text(style)
            }
        })
    }
}

/// Keeps a group until the time is over, Ctrl-C, or it can be kept no longer.
pub fn keep(
    name: &str,
    arguments: &GroupArgs,
    node: NodeId,
    machine: &Machine,
    options: KeeperOptions,
    limit: Option<Duration>,
    cancel: &AtomicBool,
) -> Result<Kept, Failure> {
    let group = Group::find(name).map_err(|error| failure(error.into()))?;
    let through = arguments.through.map(|through| match through {
        ThroughArg::Cpuset => Through::Cpuset,
        ThroughArg::Threads => Through::Threads,
    });
    let keeper = KeptGroup::start(&group, node, machine, through, options).map_err(failure)?;
    let mut how = keeper.how();
    let begun = Instant::now();
    // A group that is gone fills no more: the kernel lets only an empty one go.
    let is_there = || group.directory().is_dir();
    while !cancel.load(Ordering::Relaxed) && keeper.is_running() && is_there() {
        let left = limit.map_or(LOOK, |limit| limit.saturating_sub(begun.elapsed()));
        if left.is_zero() {
            break;
        }
        std::thread::sleep(left.min(LOOK));
    }
    if matches!(keeper, KeptGroup::Threads { .. }) && !is_there() {
        how += "; ended before it was stopped: the group is gone";
    }
    let kept = keeper.stop().map_err(failure)?;
    Ok(Kept {
        near: None,
        group: group.name().to_owned(),
        how,
        kept,
    })
}

//! `nearfar prefer`: tasks with a preferred node.

mod command;
mod group;
mod service;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use nearfar_machine::{Machine, NodeId};
use nearfar_prefer::cgroup::CgroupError;
use nearfar_prefer::keeper::{MemoryPolicy, OpenProcess};
use nearfar_prefer::near::{self, Home};
use nearfar_prefer::{Keeper, KeeperError, KeeperOptions, KeeperReport, Memory, Targets};
use nearfar_sources::{Request, Want};
use nearfar_trace::Ended;
use serde::Serialize;

use crate::args::{Colour, Format, FormatArgs};
use crate::failure::{Failure, Outcome};
use crate::{output, signals};

/// Give tasks a preferred node, on any kernel
///
/// The tasks, their threads and the processes they make run on the node's CPUs whenever one of them can take them, elsewhere
/// while the node is full, and come back when it is not. Memory policy is left alone unless --memory asks for something.
/// Affinities are as before when this ends or is killed. COMMAND's exit code becomes this one's; the report is written to
/// standard error.
#[derive(Args)]
#[command(group = ArgGroup::new("where").required(true).args(["node", "near"]))]
#[command(group = ArgGroup::new("whom").required(true).args(["pid", "group", "command"]))]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
#[command(
    after_long_help = "Examples:\n  nearfar prefer --node 1 -- ./server --port 8080\n  \
                             nearfar prefer --near eth0 --pid 4711 --pid 4712\n  \
                             nearfar prefer --node 0 --memory follow --pid 4711 --seconds 60 --format json"
)]
pub struct Prefer {
    #[command(subcommand)]
    verb: Option<PreferVerb>,
    /// The node they prefer
    #[arg(long, value_name = "N")]
    node: Option<u32>,
    /// The node of this device: a network card, disk, NVMe controller, GPU or PCI address
    #[arg(long, value_name = "DEVICE")]
    near: Option<String>,
    /// Keep this process (may be repeated), until it has ended or Ctrl-C
    #[arg(long, value_name = "PID", value_parser = crate::args::pid)]
    pid: Vec<i32>,
    #[command(flatten)]
    group: group::GroupArgs,
    /// Stop after this long
    #[arg(long, value_name = "SECONDS", value_parser = crate::args::seconds, conflicts_with = "command")]
    seconds: Option<f64>,
    /// Where the memory of the tasks is
    #[arg(long, value_enum, value_name = "WHAT")]
    memory: Option<MemoryArg>,
    #[command(flatten)]
    format: FormatArgs,
    /// Write the report into this file instead of to standard error
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Run and keep this
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// What else there is.
#[derive(Subcommand)]
enum PreferVerb {
    Service(service::Service),
}

/// `--memory`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum MemoryArg {
    /// Allocated on the node while it has some (only for COMMAND)
    Preferred,
    /// Allocated on the node only (only for COMMAND)
    Bind,
    /// Allocated on every node in turn, page by page: for what all of the machine uses alike (only for COMMAND)
    Interleave,
    /// Moved to the node when the task runs there again
    Follow,
}

/// What was done, in JSON.
#[derive(Serialize)]
struct Answer<'a> {
    /// How the node was found, with --near.
    #[serde(skip_serializing_if = "Option::is_none")]
    near: Option<&'a Home>,
    #[serde(flatten)]
    kept: &'a KeeperReport,
    /// How COMMAND ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<Ended>,
}

impl Prefer {
    /// Whether this is the service, which says what it does without being asked.
    pub fn is_service(&self) -> bool {
        matches!(self.verb, Some(PreferVerb::Service(_)))
    }

    /// Keeps, reports.
    pub fn run(mut self, colour: Colour) -> Outcome {
        if let Some(PreferVerb::Service(service)) = self.verb.take() {
            return service.run(colour);
        }
        let policy = self.policy()?;
        self.output.as_deref().map(output::can_write).transpose()?;
        // Before anything else takes its time: a number may be another process's by then.
        let processes = self.processes()?;
        let want = Want {
            devices: self.near.is_some(),
            ..Want::topology()
        };
        let machine = nearfar_sources::read(&Request {
            sources: Vec::new(),
            root: None,
            fake: None,
            want,
        });
        let machine = machine.map_err(Failure::input)?;
        let (node, near) = self.home(&machine)?;
        let memory = if self.memory == Some(MemoryArg::Follow) {
            Memory::Follow
        } else {
            Memory::Untouched
        };
        let nodes = Some(PathBuf::from("/sys/devices/system/node"));
        let options = KeeperOptions {
            memory,
            observe: true,
            nodes,
            ..KeeperOptions::default()
        };
        if let Some(name) = &self.group.group {
            let kept = group::keep(
                name,
                &self.group,
                node,
                &machine,
                options,
                self.limit()?,
                &signals::cancel_flag(),
            )?;
            return self.write(&kept.text(
                self.format.format,
                &machine,
                near.as_ref(),
                &self.style(colour),
            )?);
        }
        let (kept, ended) = if self.command.is_empty() {
            (self.adopt(processes, node, &machine, options)?, None)
        } else {
            let (kept, ended) = command::run(&self.command, policy, node, &machine, options)?;
            (kept, Some(ended))
        };
        self.give(&machine, &kept, near.as_ref(), ended.clone(), colour)?;
        match ended.as_ref().map(super::trace::exit_code) {
            Some(code @ 1..) => Err(Failure::CommandEnded(code)),
            _ => Ok(()),
        }
    }

    fn processes(&self) -> Result<Vec<OpenProcess>, Failure> {
        let open = |&pid: &i32| {
            OpenProcess::open(pid)
                .map_err(|_| failure(KeeperError::NoProcess { pid, ended: false }))
        };
        self.pid.iter().map(open).collect()
    }

    fn policy(&self) -> Result<Option<MemoryPolicy>, Failure> {
        let policy = match self.memory {
            Some(MemoryArg::Preferred) => MemoryPolicy::Preferred,
            Some(MemoryArg::Bind) => MemoryPolicy::Bind,
            Some(MemoryArg::Interleave) => MemoryPolicy::Interleave,
            _ => return Ok(None),
        };
        if self.command.is_empty() {
            return Err(Failure::input(anyhow!(
                "--memory preferred, bind and interleave are for COMMAND: only a process itself can set its memory policy \
                 (set_mempolicy(2)). For one that runs already use --memory follow, which moves its pages"
            )));
        }
        Ok(Some(policy))
    }

    fn home(&self, machine: &Machine) -> Result<(NodeId, Option<Home>), Failure> {
        if let Some(device) = &self.near {
            let home = near::find(machine, std::path::Path::new("/sys"), device)
                .map_err(Failure::input)?;
            return Ok((home.node, Some(home)));
        }
        let node = NodeId(self.node.unwrap_or_default());
        near::node(machine, node)
            .map(|node| (node, None))
            .map_err(Failure::input)
    }

    fn limit(&self) -> Result<Option<Duration>, Failure> {
        let seconds = self.seconds.map(Duration::try_from_secs_f64).transpose();
        seconds.context("--seconds").map_err(Failure::input)
    }

    /// How the report looks: it is not on standard output.
    fn style(&self, colour: Colour) -> nearfar_report::Style {
        nearfar_report::Style {
            colour: colour == Colour::Always,
            ..Default::default()
        }
    }

    /// Until all have ended, the time is over, or Ctrl-C.
    fn adopt(
        &self,
        processes: Vec<OpenProcess>,
        node: NodeId,
        machine: &Machine,
        options: KeeperOptions,
    ) -> Result<KeeperReport, Failure> {
        let seconds = self.limit()?;
        let cancel = signals::cancel_flag();
        let keeper = Keeper::start(Targets::Processes(processes), node, machine, options)
            .map_err(failure)?;
        let begun = Instant::now();
        while !cancel.load(Ordering::Relaxed) && !keeper.is_idle() {
            let left = seconds.map_or(LOOK, |seconds| seconds.saturating_sub(begun.elapsed()));
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(LOOK));
        }
        keeper.stop().map_err(failure)
    }

    fn give(
        &self,
        machine: &Machine,
        kept: &KeeperReport,
        near: Option<&Home>,
        command: Option<Ended>,
        colour: Colour,
    ) -> Outcome {
        let text = match self.format.format {
            Format::Json => {
                output::json(
                    "prefer/1",
                    Some(&machine.origin),
                    &Answer {
                        near,
                        kept,
                        command,
                    },
                )? + "\n"
            }
            Format::Table => {
                let style = self.style(colour);
                let near = near.map(ToString::to_string);
                nearfar_report::prefer::document(
                    kept,
                    near.as_deref(),
                    machine.origin.emulation.as_ref(),
                )
                .to_text(&style)
            }
        };
        self.write(&text)
    }

    fn write(&self, text: &str) -> Outcome {
        match &self.output {
            Some(file) => output::write_answer(file, text),
            None => {
                output::say_part!("{text}");
                Ok(())
            }
        }
    }
}

/// Between two looks at Ctrl-C, the clock and whether anybody is left.
const LOOK: Duration = Duration::from_millis(250);

/// What was asked for wrongly, and what the system refused.
fn failure(error: KeeperError) -> Failure {
    match error {
        KeeperError::Node(_)
        | KeeperError::NoProcess { .. }
        | KeeperError::Elsewhere { .. }
        | KeeperError::NotByCpuset { .. }
        | KeeperError::Cgroup(
            CgroupError::NoHierarchy
            | CgroupError::NoSuchGroup { .. }
            | CgroupError::Root { .. }
            | CgroupError::Elsewhere { .. },
        ) => Failure::input(error),
        KeeperError::Spawn { program, reason } => Failure::not_started(program.as_ref(), reason),
        _ => Failure::refused(error),
    }
}

//! NVMe commands: which CPU handed which controller how many (`nvme:nvme_setup_cmd`, drivers/nvme/host/trace.h).
//!
//! The driver fires it in the context that hands the command to the controller, as a rule the task that does the I/O; buffered
//! writes come from the kernel's own threads, later and perhaps from elsewhere. Its fields, the same from Linux 6.1 to 6.12:
//!
//! ```text
//! disk      the disk the command went through: with native multipath the hidden path, nvme0c1n1; empty for admin commands
//! ctrl_id   N of the controller nvmeN
//! qid       queue: 0 is the admin queue, I/O is above
//! opcode    of the command: 0 flush, 1 write, 2 read (NVM command set specification, figure "Opcodes for I/O Commands")
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nearfar_machine::{
    CpuId, CpuSet, Distance, IoPolicy, Known, Machine, NodeId, NvmeNamespace, NvmeSubsystem,
    alternatives,
};
use nearfar_placement::locality::EffectiveNode;
use nearfar_placement::path::{self, NamespacePaths, PathView, Standing};
use serde::{Deserialize, Serialize};

use crate::format::{Format, FormatError, Number, Text};
use crate::records::Sample;

pub const SYSTEM: &str = "nvme";
pub const EVENT: &str = "nvme_setup_cmd";

/// Reads `nvme_setup_cmd` events.
#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    disk: Text,
    controller: Number,
    queue: Number,
    opcode: Number,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Command<'a> {
    /// The disk it went through; empty for commands to the controller itself.
    pub disk: &'a [u8],
    /// The controller's instance: N of `nvmeN`.
    pub controller: u32,
    /// 0 is the admin queue.
    pub queue: u32,
    /// What it asks for.
    pub opcode: u8,
}

impl Decoder {
    /// Finds the fields in this kernel's layout.
    ///
    /// # Errors
    /// When one is missing or is of another kind.
    pub fn new(format: &Format) -> Result<Self, FormatError> {
        Ok(Self {
            disk: format.text("disk")?,
            controller: format.number("ctrl_id")?,
            queue: format.number("qid")?,
            opcode: format.number("opcode")?,
        })
    }

    /// The command of an event; `None` where its bytes do not hold one.
    pub fn decode<'a>(&self, event: &'a [u8]) -> Option<Command<'a>> {
        Some(Command {
            disk: self.disk.read(event)?,
            controller: u32::try_from(self.controller.read(event)?).ok()?,
            queue: u32::try_from(self.queue.read(event)?).ok()?,
            opcode: u8::try_from(self.opcode.read(event)?).ok()?,
        })
    }
}

/// Numbers of commands by what they ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Kinds {
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    /// Anything else: discards, zeroes, zones, passed through by a tool.
    pub others: u64,
}

impl Kinds {
    pub fn total(&self) -> u64 {
        self.reads + self.writes + self.flushes + self.others
    }

    pub fn add(&mut self, other: &Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.flushes += other.flushes;
        self.others += other.others;
    }

    fn count(&mut self, opcode: u8) {
        *match opcode {
            0x00 => &mut self.flushes,
            0x01 => &mut self.writes,
            0x02 => &mut self.reads,
            _ => &mut self.others,
        } += 1;
    }
}

/// Where commands came from and went.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Way {
    disk: u32,
    controller: u32,
    cpu: CpuId,
    pid: i32,
}

/// The commands of a trace, counted as they come: memory grows with CPUs, disks and processes, not with time.
#[derive(Clone, Debug)]
pub struct Commands {
    decoder: Decoder,
    disks: Vec<String>,
    ways: HashMap<Way, Kinds>,
    names: BTreeMap<i32, Option<String>>,
    admin: u64,
    unreadable: u64,
}

impl Commands {
    pub fn new(decoder: Decoder) -> Self {
        Self {
            decoder,
            disks: Vec::new(),
            ways: HashMap::new(),
            names: BTreeMap::new(),
            admin: 0,
            unreadable: 0,
        }
    }

    /// Counts one event that was submitted from this CPU.
    pub fn take(&mut self, cpu: CpuId, sample: &Sample<'_>) {
        let Some(command) = self.decoder.decode(sample.event) else {
            self.unreadable += 1;
            return;
        };
        if command.queue == 0 {
            self.admin += 1;
            return;
        }
        let disk = self.disk(command.disk);
        let way = Way {
            disk,
            controller: command.controller,
            cpu,
            pid: sample.pid,
        };
        self.ways.entry(way).or_default().count(command.opcode);
        self.names.entry(sample.pid).or_default();
    }

    /// Asks for the names of processes that have none yet. To be called now and then: those that have ended are gone.
    pub fn name(&mut self, name_of: impl Fn(i32) -> Option<String>) {
        for (pid, name) in self.names.iter_mut().filter(|(_, name)| name.is_none()) {
            *name = name_of(*pid);
        }
    }

    /// How many commands went to a controller from a CPU; each may come several times.
    pub(crate) fn ways(&self) -> impl Iterator<Item = (u32, CpuId, u64)> {
        let ways = self.ways.iter();
        ways.map(|(way, kinds)| (way.controller, way.cpu, kinds.total()))
    }

    /// The number of a disk among those seen: few enough to look through.
    fn disk(&mut self, name: &[u8]) -> u32 {
        let known = self.disks.iter().position(|disk| disk.as_bytes() == name);
        let position = known.unwrap_or_else(|| {
            self.disks.push(String::from_utf8_lossy(name).into_owned());
            self.disks.len() - 1
        });
        position as u32
    }
}

/// What a trace of NVMe commands says about a machine.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct NvmeAnswer {
    /// Namespace by namespace, in the machine's order.
    pub namespaces: Vec<Namespace>,
    /// Commands through disks that the machine's description does not have.
    pub unplaced: Vec<Unplaced>,
    /// Who submitted, most first.
    pub submitters: Vec<Submitter>,
    /// Commands to controllers themselves (admin queue), of all controllers.
    pub admin_commands: u64,
    pub unreadable: u64,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Namespace {
    /// The disk's name, `nvme0n1`.
    pub namespace: String,
    pub subsystem: String,
    /// The I/O policy in force when the machine was read.
    pub policy: Known<IoPolicy>,
    pub controllers: Vec<ControllerView>,
    /// Node by node of the submitting CPUs: every online node with CPUs, and `null` for CPUs on no known node.
    pub nodes: Vec<NodeTraffic>,
    pub commands: Kinds,
    /// The share of all commands that took the path nearest to their CPU, 0 to 1.
    pub nearest_share: Known<f64>,
}

/// A controller as one way to a namespace.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ControllerView {
    /// The kernel's name.
    pub controller: String,
    pub path: String,
    /// Whether the kernel would use it, when the machine was read.
    pub standing: Standing,
    /// The kernel's node; `null` where the kernel says none.
    pub kernel_node: Known<Option<NodeId>>,
    /// Where it is, as far as can be told.
    pub locality: Option<EffectiveNode>,
}

/// What CPUs of one node submitted to one namespace.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct NodeTraffic {
    /// The node; `null` for CPUs of which it is unknown.
    pub node: Option<NodeId>,
    pub cpus: CpuSet,
    /// The paths that are nearest from here.
    pub nearest: Known<Vec<String>>,
    pub commands: Kinds,
    /// Path by path, those without a command too.
    pub through: Vec<Through>,
    /// The share of its commands that took a nearest path, 0 to 1.
    pub nearest_share: Known<f64>,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Through {
    pub path: String,
    pub controller: String,
    /// From the submitting node to where the controller is.
    pub distance: Option<Distance>,
    pub commands: Kinds,
}

/// Traffic of a disk that the machine does not list.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Unplaced {
    /// The disk as the kernel named it; empty where the command belonged to none.
    pub disk: String,
    pub controller: String,
    pub commands: Kinds,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Submitter {
    /// The process; 0 where the kernel sent the command on in an interrupt.
    pub pid: i32,
    /// Its name; `null` where it had ended before it could be read.
    pub name: Option<String>,
    /// From these CPUs.
    pub cpus: CpuSet,
    pub commands: Kinds,
}

/// A question about a subsystem that is not there.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NvmeTraceError {
    #[error("NVMe subsystems are unknown: {reason}")]
    NotKnown { reason: String },
    #[error("there is no NVMe subsystem {name:?}; {}", alternatives(name, .known))]
    NoSubsystem { name: String, known: Vec<String> },
}

/// What the commands say about the machine; with `subsystem`, about that one only.
///
/// # Errors
/// When the machine's subsystems are unknown, or it has none of that name.
pub fn answer(
    commands: &Commands,
    machine: &Machine,
    subsystem: Option<&str>,
) -> Result<NvmeAnswer, NvmeTraceError> {
    let subsystems = subsystems(machine, subsystem)?;
    let (mut places, mut namespaces) = (HashMap::new(), Vec::new());
    for found in &subsystems {
        for listed in &found.namespaces {
            for path in &listed.paths {
                let key = (path.name.as_str(), path.controller.clone());
                places.insert(key, namespaces.len());
            }
            namespaces.push(Traffic {
                machine,
                subsystem: found,
                namespace: listed,
                ways: Vec::new(),
            });
        }
    }
    let (mut unplaced_commands, mut counted) = (BTreeMap::<_, Kinds>::new(), Vec::new());
    for (way, kinds) in &commands.ways {
        let disk = commands.disks[way.disk as usize].as_str();
        let controller = format!("nvme{}", way.controller);
        match places.get(&(disk, controller.clone())) {
            Some(&place) => namespaces[place].ways.push((*way, disk, *kinds)),
            // Of another subsystem than the one asked for, or in none.
            None if subsystem.is_some() => continue,
            None => {
                let key = (disk.to_owned(), controller);
                unplaced_commands.entry(key).or_default().add(kinds);
            }
        }
        counted.push((*way, *kinds));
    }
    let unplaced = |((disk, controller), commands)| Unplaced {
        disk,
        controller,
        commands,
    };
    Ok(NvmeAnswer {
        namespaces: namespaces.iter().map(Traffic::namespace).collect(),
        unplaced: unplaced_commands.into_iter().map(unplaced).collect(),
        submitters: submitters(commands, &counted),
        admin_commands: commands.admin,
        unreadable: commands.unreadable,
    })
}

/// The subsystems to answer about.
///
/// # Errors
/// As [`answer`]; to be asked before a trace as well, so that a wrong name does not cost one.
pub fn subsystems<'a>(
    machine: &'a Machine,
    only: Option<&str>,
) -> Result<Vec<&'a NvmeSubsystem>, NvmeTraceError> {
    let all = match &machine.nvme {
        Known::Yes(subsystems) => subsystems,
        Known::No { unknown_reason } => {
            let reason = unknown_reason.to_string();
            return Err(NvmeTraceError::NotKnown { reason });
        }
    };
    let is_wanted = |it: &&NvmeSubsystem| only.is_none_or(|name| name == it.name);
    let found: Vec<_> = all.iter().filter(is_wanted).collect();
    match only {
        Some(name) if found.is_empty() => Err(NvmeTraceError::NoSubsystem {
            name: name.to_owned(),
            known: all.iter().map(|subsystem| subsystem.name.clone()).collect(),
        }),
        _ => Ok(found),
    }
}

struct Traffic<'a> {
    machine: &'a Machine,
    subsystem: &'a NvmeSubsystem,
    namespace: &'a NvmeNamespace,
    /// Each way with the disk, which names the path.
    ways: Vec<(Way, &'a str, Kinds)>,
}

impl Traffic<'_> {
    fn namespace(&self) -> Namespace {
        let online = self.machine.online_nodes();
        let with_cpus = online.filter(|node| !node.known_cpus().is_empty());
        let with_cpus = with_cpus.map(|node| Some(node.id));
        let ways = self.ways.iter();
        let submitting = ways.map(|(way, ..)| self.machine.node_of(way.cpu));
        let nodes: BTreeSet<_> = submitting.chain(with_cpus).collect();
        let nodes: Vec<_> = nodes.into_iter().map(|node| self.node(node)).collect();
        Namespace {
            namespace: self.namespace.name.clone(),
            subsystem: self.subsystem.name.clone(),
            policy: self.subsystem.iopolicy.clone(),
            controllers: self.controllers(),
            commands: sum(nodes.iter().map(|node| &node.commands)),
            nearest_share: share(&nodes),
            nodes,
        }
    }

    fn controllers(&self) -> Vec<ControllerView> {
        let first = self.machine.cpu_states.online.first();
        let seen = first.and_then(|cpu| self.seen_from(cpu));
        let views = seen.into_iter().flat_map(|seen| seen.paths);
        let views = views.map(|view| ControllerView {
            controller: view.controller,
            path: view.name,
            standing: view.standing,
            kernel_node: view.kernel_node,
            locality: view.locality,
        });
        views.collect()
    }

    fn seen_from(&self, cpu: CpuId) -> Option<NamespacePaths> {
        let seen = path::paths(self.machine, &self.subsystem.name, cpu).ok()?;
        seen.namespaces
            .into_iter()
            .find(|seen| seen.namespace == self.namespace.name)
    }

    fn node(&self, node: Option<NodeId>) -> NodeTraffic {
        let is_of_node = |(way, ..): &&(Way, &str, Kinds)| self.machine.node_of(way.cpu) == node;
        let ways = || self.ways.iter().filter(is_of_node);
        let of_node = node.and_then(|node| self.machine.node(node));
        let online = of_node.and_then(|node| {
            let online = &self.machine.cpu_states.online;
            node.known_cpus().intersection(online).first()
        });
        let seen = online.and_then(|cpu| self.seen_from(cpu));
        let through: Vec<Through> = (self.namespace.paths.iter())
            .map(|path| Through {
                path: path.name.clone(),
                controller: path.controller.clone(),
                distance: seen.as_ref().and_then(|seen| {
                    seen.paths
                        .iter()
                        .find(|view| view.name == path.name)?
                        .distance
                }),
                commands: sum(ways()
                    .filter(|(_, disk, _)| *disk == path.name)
                    .map(|(.., kinds)| kinds)),
            })
            .collect();
        let nearest = nearest(node, seen.as_ref());
        let commands = sum(through.iter().map(|through| &through.commands));
        let nearest_share = nearest.as_ref().and_then(|nearest| {
            if commands.total() == 0 {
                return Known::no("nothing was submitted from here");
            }
            let near = through.iter().filter(|it| nearest.contains(&it.path));
            let near = sum(near.map(|it| &it.commands));
            Known::Yes(near.total() as f64 / commands.total() as f64)
        });
        let cpus = ways().map(|(way, ..)| way.cpu).collect();
        NodeTraffic {
            node,
            cpus,
            nearest,
            commands,
            through,
            nearest_share,
        }
    }
}

/// The paths nearest from a node. That one of them is nearest can only be said when it is known of all how far they are.
fn nearest(node: Option<NodeId>, seen: Option<&NamespacePaths>) -> Known<Vec<String>> {
    if node.is_none() {
        return Known::no("the node of these CPUs is unknown");
    }
    let Some(seen) = seen else {
        return Known::no("no CPU of this node is online");
    };
    let mut usable = seen
        .paths
        .iter()
        .filter(|path| path.standing != Standing::Unusable)
        .peekable();
    if usable.peek().is_none() {
        return Known::no("no path was usable when the machine was read");
    }
    match usable.find(|path| path.distance.is_none()) {
        None => Known::Yes(seen.nearest.clone()),
        Some(PathView {
            controller,
            locality: Some(EffectiveNode { node: Some(at), .. }),
            ..
        }) => Known::no(format!(
            "no table gives a distance to node {at}, where {controller} is"
        )),
        Some(PathView { controller, .. }) => {
            Known::no(format!("nothing tells where {controller} is"))
        }
    }
}

/// Over all nodes that submitted; unknown as soon as it is so for one of them.
fn share(nodes: &[NodeTraffic]) -> Known<f64> {
    let (mut near, mut all) = (0.0, 0.0);
    for node in nodes.iter().filter(|node| node.commands.total() > 0) {
        match &node.nearest_share {
            Known::Yes(share) => near += share * node.commands.total() as f64,
            unknown => return unknown.clone(),
        }
        all += node.commands.total() as f64;
    }
    match all == 0.0 {
        true => Known::no("nothing was submitted"),
        false => Known::Yes(near / all),
    }
}

fn submitters(commands: &Commands, counted: &[(Way, Kinds)]) -> Vec<Submitter> {
    let mut by_pid: BTreeMap<i32, (CpuSet, Kinds)> = BTreeMap::new();
    for (way, kinds) in counted {
        let (cpus, sum) = by_pid.entry(way.pid).or_default();
        cpus.insert(way.cpu);
        sum.add(kinds);
    }
    let named = |(pid, (cpus, commands_of))| Submitter {
        pid,
        name: commands.names.get(&pid).cloned().flatten(),
        cpus,
        commands: commands_of,
    };
    let mut submitters: Vec<_> = by_pid.into_iter().map(named).collect();
    submitters.sort_by_key(|submitter| std::cmp::Reverse(submitter.commands.total()));
    submitters
}

fn sum<'a>(kinds: impl Iterator<Item = &'a Kinds>) -> Kinds {
    kinds.fold(Kinds::default(), |mut sum, kinds| {
        sum.add(kinds);
        sum
    })
}

//! Who submitted where, which controller served it, and was that the nearest.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nearfar_machine::{
    CpuId, CpuSet, Distance, IoPolicy, Known, Machine, NodeId, NvmeNamespace, NvmeSubsystem,
    alternatives,
};
use nearfar_placement::locality::EffectiveNode;
use nearfar_placement::path::{self, NamespacePaths, PathView, Standing};
use serde::Serialize;

use super::{Commands, Kinds, Way};

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
                places.insert(
                    (path.name.as_str(), path.controller.clone()),
                    namespaces.len(),
                );
            }
            namespaces.push((*found, listed, Vec::new()));
        }
    }
    let (mut unplaced, mut counted) = (BTreeMap::<_, Kinds>::new(), Vec::new());
    for (way, kinds) in &commands.ways {
        let (disk, controller) = (
            commands.disks[way.disk as usize].as_str(),
            format!("nvme{}", way.controller),
        );
        match places.get(&(disk, controller.clone())) {
            Some(&place) => namespaces[place].2.push((*way, disk, *kinds)),
            // Of another subsystem than the one asked for, or in none.
            None if subsystem.is_some() => continue,
            None => unplaced
                .entry((disk.to_owned(), controller))
                .or_default()
                .add(kinds),
        }
        counted.push((*way, *kinds));
    }
    let unplaced = unplaced
        .into_iter()
        .map(|((disk, controller), commands)| Unplaced {
            disk,
            controller,
            commands,
        });
    Ok(NvmeAnswer {
        namespaces: namespaces
            .into_iter()
            .map(|(subsystem, namespace, ways)| {
                Traffic {
                    machine,
                    subsystem,
                    namespace,
                    ways,
                }
                .namespace()
            })
            .collect(),
        unplaced: unplaced.collect(),
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
            return Err(NvmeTraceError::NotKnown {
                reason: unknown_reason.to_string(),
            });
        }
    };
    let found: Vec<_> = all
        .iter()
        .filter(|subsystem| only.is_none_or(|name| name == subsystem.name))
        .collect();
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
        let with_cpus = self
            .machine
            .online_nodes()
            .filter(|node| !node.known_cpus().is_empty())
            .map(|node| Some(node.id));
        let submitting = self
            .ways
            .iter()
            .map(|(way, ..)| self.machine.node_of(way.cpu));
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
        let seen = self
            .machine
            .cpu_states
            .online
            .first()
            .and_then(|cpu| self.seen_from(cpu));
        let views = seen.into_iter().flat_map(|seen| seen.paths);
        let views = views.map(
            |PathView {
                 name,
                 controller,
                 standing,
                 kernel_node,
                 locality,
                 ..
             }| ControllerView {
                controller,
                path: name,
                standing,
                kernel_node,
                locality,
            },
        );
        views.collect()
    }

    fn seen_from(&self, cpu: CpuId) -> Option<NamespacePaths> {
        let seen = path::paths(self.machine, &self.subsystem.name, cpu).ok()?;
        seen.namespaces
            .into_iter()
            .find(|seen| seen.namespace == self.namespace.name)
    }

    fn node(&self, node: Option<NodeId>) -> NodeTraffic {
        let ways = || {
            self.ways
                .iter()
                .filter(|(way, ..)| self.machine.node_of(way.cpu) == node)
        };
        let of_node = node
            .and_then(|node| self.machine.node(node))
            .map(|node| node.known_cpus());
        let online =
            of_node.and_then(|cpus| cpus.intersection(&self.machine.cpu_states.online).first());
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
        let nearest_share = match &nearest {
            Known::No { unknown_reason } => Known::No {
                unknown_reason: unknown_reason.clone(),
            },
            Known::Yes(_) if commands.total() == 0 => Known::no("nothing was submitted from here"),
            Known::Yes(nearest) => {
                let near = sum(through
                    .iter()
                    .filter(|t| nearest.contains(&t.path))
                    .map(|t| &t.commands));
                Known::Yes(near.total() as f64 / commands.total() as f64)
            }
        };
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
    let submitting = || nodes.iter().filter(|node| node.commands.total() > 0);
    let (mut near, mut all) = (0.0, 0.0);
    for node in submitting() {
        match &node.nearest_share {
            Known::Yes(share) => near += share * node.commands.total() as f64,
            Known::No { unknown_reason } => {
                return Known::No {
                    unknown_reason: unknown_reason.clone(),
                };
            }
        }
        all += node.commands.total() as f64;
    }
    if all == 0.0 {
        Known::no("nothing was submitted")
    } else {
        Known::Yes(near / all)
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

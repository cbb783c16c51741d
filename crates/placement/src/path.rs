//! Which path of an NVMe subsystem I/O takes from a CPU, under each I/O policy, and which path is nearest.
//!
//! The rules are those of `drivers/nvme/host/multipath.c`:
//!
//! ```text
//! usable      controller "live" or "deleting", not "new", "resetting", "connecting", "deleting (no IO)" or "dead";
//!             ANA state optimized or non-optimized
//! class       the optimized paths where there are any, else the non-optimized ones: decides before locality does
//! numa          nearest of the class: node_distance(node of the CPU, node of the controller), first found on a tie
//! round-robin   each of the class in turn
//! queue-depth   of the class, the controller with the fewest commands in flight
//! ```
//!
//! Where the kernel says which nodes it sends through a path (`numa_nodes`, since Linux 6.15), that is the answer for
//! `numa`. For a controller on no node `numa` compares 10 since Linux 6.9, and something undefined before (`path/kernel.rs`).

mod choice;
pub(crate) mod kernel;

use nearfar_machine::{
    AnaState, CpuId, CpuSet, Distance, IoPolicy, Known, Machine, NodeId, NodeSet, NvmeController,
    NvmeNamespace, NvmePath, NvmeSubsystem, alternatives,
};
use serde::Serialize;

use crate::locality::{EffectiveNode, Localities};
use kernel::NoNode;

/// What [`paths`] answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PathAnswer {
    /// The kernel's name of the subsystem.
    pub subsystem: String,
    pub cpu: CpuId,
    pub node: Option<NodeId>,
    pub policy: Known<IoPolicy>,
    /// Namespace by namespace.
    pub namespaces: Vec<NamespacePaths>,
}

/// The paths to one namespace and who would take which.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct NamespacePaths {
    pub namespace: String,
    /// Every path, by name.
    pub paths: Vec<PathView>,
    /// What each policy would choose: numa, round-robin, queue-depth, and the one in force where it is another.
    pub choices: Vec<PolicyChoice>,
    /// The usable paths nearest to the CPU by effective node, whatever their ANA state; empty if unknown.
    pub nearest: Vec<String>,
}

/// One path as seen from the CPU.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PathView {
    /// The kernel's name.
    pub name: String,
    pub controller: String,
    /// Whether the kernel would send I/O through it at all, and in which class.
    pub standing: Standing,
    /// Why, where it is not used or the class is an assumption.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The kernel's node of the controller; `null` where the kernel says none.
    pub kernel_node: Known<Option<NodeId>>,
    /// What the policy `numa` compares: for a controller without a node 10 where the kernel counts it as local, else
    /// unknown.
    pub kernel_distance: Option<Distance>,
    /// Where the controller is, as far as is known.
    pub locality: Option<EffectiveNode>,
    /// From the CPU's node to that; for a guessed node, to the firmware's node itself.
    pub distance: Option<Distance>,
    /// The nodes whose I/O the kernel itself says it sends through it under the policy `numa`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_nodes: Option<NodeSet>,
    /// Commands in flight on this path when the source looked.
    pub queue_depth: Option<u32>,
}

/// How the kernel ranks a path.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// Used.
    Optimized,
    /// Used while no optimized path is usable.
    NonOptimized,
    /// Not used.
    Unusable,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PolicyChoice {
    pub policy: IoPolicy,
    pub current: bool,
    /// The paths it takes: one; several that share the I/O; or candidates, of which the policy takes one.
    pub paths: Vec<String>,
    /// False where `paths` are candidates, one of which is taken.
    pub certain: bool,
    pub reason: String,
}

/// A question without an answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PathError {
    #[error("NVMe subsystems are unknown: {reason}")]
    NotKnown { reason: String },
    #[error("there is no NVMe subsystem {name:?}; {}", alternatives(name, .known))]
    UnknownSubsystem { name: String, known: Vec<String> },
    #[error("CPU {cpu} {}; CPUs that are online: {online}", if *.offline { "is offline" } else { "is not in this machine" })]
    NoCpu {
        cpu: CpuId,
        offline: bool,
        online: CpuSet,
    },
}

/// Which paths of a subsystem each I/O policy takes from a CPU. The name may also be that of a controller of it, or of a
/// namespace, whose paths alone are answered then.
///
/// # Errors
/// When the machine has no such subsystem or CPU, or the source could not see NVMe subsystems.
pub fn paths(machine: &Machine, subsystem: &str, cpu: CpuId) -> Result<PathAnswer, PathError> {
    let subsystems = match &machine.nvme {
        Known::Yes(subsystems) => subsystems,
        Known::No { unknown_reason } => {
            return Err(PathError::NotKnown {
                reason: unknown_reason.to_string(),
            });
        }
    };
    let subsystem = subsystem.strip_prefix("/dev/").unwrap_or(subsystem);
    let found = subsystems
        .iter()
        .find(|found| is_named(found, subsystem))
        .ok_or_else(|| PathError::UnknownSubsystem {
            name: subsystem.to_owned(),
            known: subsystems
                .iter()
                .map(|subsystem| subsystem.name.clone())
                .collect(),
        })?;
    let no_cpu = |offline| PathError::NoCpu {
        cpu,
        offline,
        online: machine.cpu_states.online.clone(),
    };
    let listed = machine.cpu(cpu).ok_or_else(|| no_cpu(false))?;
    if listed.is_offline() {
        return Err(no_cpu(true));
    }
    let of_one = has_namespace(found, subsystem);
    let localities = Localities::new(machine);
    let view = View::new(machine, &localities, found, listed.node);
    Ok(PathAnswer {
        subsystem: found.name.clone(),
        cpu,
        node: listed.node,
        policy: found.iopolicy.clone(),
        namespaces: found
            .namespaces
            .iter()
            .filter(|namespace| !of_one || namespace.name == subsystem)
            .map(|namespace| view.namespace(namespace))
            .collect(),
    })
}

fn is_named(subsystem: &NvmeSubsystem, name: &str) -> bool {
    let mut controllers = subsystem.controllers.iter();
    subsystem.name == name
        || controllers.any(|controller| controller.name == name)
        || has_namespace(subsystem, name)
}

fn has_namespace(subsystem: &NvmeSubsystem, name: &str) -> bool {
    let mut namespaces = subsystem.namespaces.iter();
    namespaces.any(|namespace| namespace.name == name)
}

/// A subsystem as seen from a node.
pub(crate) struct View<'a> {
    pub machine: &'a Machine,
    pub localities: &'a Localities<'a>,
    pub subsystem: &'a NvmeSubsystem,
    pub node: Option<NodeId>,
    no_node: NoNode,
}

impl<'a> View<'a> {
    pub fn new(
        machine: &'a Machine,
        localities: &'a Localities<'a>,
        subsystem: &'a NvmeSubsystem,
        node: Option<NodeId>,
    ) -> Self {
        Self {
            machine,
            localities,
            subsystem,
            node,
            no_node: NoNode::of(&machine.origin),
        }
    }

    /// The paths to one namespace and who would take which.
    pub fn namespace(&self, namespace: &NvmeNamespace) -> NamespacePaths {
        let paths: Vec<PathView> = namespace.paths.iter().map(|path| self.path(path)).collect();
        let usable = || {
            paths
                .iter()
                .filter(|path| path.standing != Standing::Unusable)
        };
        let least = usable().filter_map(|path| path.distance).min();
        let nearest = usable().filter(|path| least.is_some() && path.distance == least);
        let nearest = nearest.map(|path| path.name.clone()).collect();
        let choices = choice::of_each_policy(
            &paths,
            namespace.paths_unknown_reason.as_deref(),
            self.node,
            self.subsystem.iopolicy.get(),
            &self.no_node,
        );
        NamespacePaths {
            namespace: namespace.name.clone(),
            choices,
            nearest,
            paths,
        }
    }

    fn path(&self, path: &NvmePath) -> PathView {
        let controller = self
            .subsystem
            .controllers
            .iter()
            .find(|controller| controller.name == path.controller);
        let (standing, reason) = standing(
            path,
            controller,
            kernel::deleting_is_usable(&self.machine.origin),
        );
        let kernel_node = controller.map_or_else(
            || {
                Known::no(format!(
                    "the source does not list controller {}",
                    path.controller
                ))
            },
            |controller| controller.node.clone(),
        );
        let kernel_distance = self.kernel_distance(&kernel_node);
        let locality = controller.and_then(|controller| self.locality(controller));
        PathView {
            name: path.name.clone(),
            controller: path.controller.clone(),
            standing,
            reason,
            kernel_distance,
            kernel_node,
            distance: locality
                .as_ref()
                .and_then(|locality| self.distance(locality)),
            locality,
            numa_nodes: path.numa_nodes.clone(),
            queue_depth: path.queue_depth,
        }
    }

    /// The kernel's `node_distance()`, and what it takes where there is no node to ask for.
    fn kernel_distance(&self, kernel_node: &Known<Option<NodeId>>) -> Option<Distance> {
        match (kernel_node.get()?, &self.no_node) {
            (Some(to), _) => self.machine.distances.get()?.get(self.node?, *to),
            (None, NoNode::Local { .. }) => Some(Distance::LOCAL),
            (None, _) => None,
        }
    }

    fn locality(&self, controller: &NvmeController) -> Option<EffectiveNode> {
        let by_device = controller.device.map(|device| self.localities.of(device));
        let by_kernel = controller.node.get().copied().flatten();
        let by_kernel = by_kernel.map(|node| EffectiveNode {
            node: Some(node),
            how: crate::locality::How::Kernel,
        });
        by_device
            .filter(|locality| locality.node.is_some())
            .or(by_kernel)
    }

    fn distance(&self, locality: &EffectiveNode) -> Option<Distance> {
        use crate::locality::How;
        let to = match locality.how {
            // The device is on the firmware's node, offline as it may be; the guessed one is only where to work from.
            How::NearestToFirmware { firmware, .. } => Some(firmware),
            _ => locality.node,
        };
        self.machine.distance(self.node?, to?)
    }
}

/// `nvme_path_is_disabled()` and the ANA state.
fn standing(
    path: &NvmePath,
    controller: Option<&NvmeController>,
    deleting: bool,
) -> (Standing, Option<String>) {
    let state = controller.and_then(|controller| controller.state.get());
    match state.map(String::as_str) {
        // "deleting": I/O is to complete as long as the controller is connected.
        None | Some("live") => {}
        Some("deleting") if deleting => {}
        Some(state) => {
            return (
                Standing::Unusable,
                Some(format!("controller {} is {state}", path.controller)),
            );
        }
    }
    match &path.ana_state {
        Known::Yes(AnaState::Optimized) => (Standing::Optimized, None),
        Known::Yes(AnaState::NonOptimized) => (Standing::NonOptimized, None),
        Known::Yes(other) => (
            Standing::Unusable,
            Some(format!("its ANA state is {other}")),
        ),
        // Without ANA the kernel has no such file and takes every path for optimized.
        Known::No { .. } => (
            Standing::Optimized,
            Some("the ANA state is unknown: counts as optimized".to_owned()),
        ),
    }
}

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
//! `numa`. For a controller on no node `numa` compares 10 since Linux 6.9, and something undefined before.
//! `__nvme_find_path()` asked for `node_distance(node, -1)`: an entry outside of the table, so any value. Commit
//! 863fe60ed27f ("nvme: find numa distance only if controller has valid numa id") takes 10 instead, the distance of a
//! node from itself. It is in Linux 6.9 and in the stable releases of `FIXED_IN`.

use nearfar_machine::{
    AnaState, CpuId, CpuSet, Distance, IoPolicy, Known, Machine, NodeId, NodeSet, NvmeController,
    NvmeNamespace, NvmePath, NvmeSubsystem, Origin, alternatives,
};
use serde::Serialize;

use crate::locality::{EffectiveNode, Localities};

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

impl NamespacePaths {
    /// What the policy `numa` would choose.
    pub(crate) fn numa(&self) -> Option<&PolicyChoice> {
        let mut choices = self.choices.iter();
        choices.find(|choice| choice.policy == IoPolicy::Numa)
    }
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
        let choices = of_each_policy(
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
        let (standing, reason) =
            standing(path, controller, deleting_is_usable(&self.machine.origin));
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

/// The three policies of the kernel, and the one in force where it is another.
fn of_each_policy(
    paths: &[PathView],
    unknown: Option<&str>,
    node: Option<NodeId>,
    current: Option<&IoPolicy>,
    no_node: &NoNode,
) -> Vec<PolicyChoice> {
    let mut policies = vec![IoPolicy::Numa, IoPolicy::RoundRobin, IoPolicy::QueueDepth];
    policies.extend(
        current
            .filter(|policy| matches!(policy, IoPolicy::Other(_)))
            .cloned(),
    );
    policies
        .into_iter()
        .map(|policy| of(policy, paths, unknown, node, current, no_node))
        .collect()
}

fn of(
    policy: IoPolicy,
    paths: &[PathView],
    unknown: Option<&str>,
    node: Option<NodeId>,
    current: Option<&IoPolicy>,
    no_node: &NoNode,
) -> PolicyChoice {
    let class = class(paths);
    let (taken, certain, reason) = match (&class[..], &policy) {
        ([], _) => (
            Vec::new(),
            unknown.is_none(),
            unknown.map_or_else(
                || "no path is usable: I/O waits or fails".to_owned(),
                |reason| format!("the paths are unknown: {reason}"),
            ),
        ),
        ([only], _) => (vec![*only], true, only_one(only, paths)),
        (_, IoPolicy::Numa) => numa(&class, node, no_node),
        (_, IoPolicy::RoundRobin) => round_robin(&class),
        (_, IoPolicy::QueueDepth) => queue_depth(&class),
        (_, IoPolicy::Other(word)) => (
            class.clone(),
            false,
            format!("this version does not know the policy {word:?}"),
        ),
    };
    PolicyChoice {
        current: current == Some(&policy),
        policy,
        paths: taken.iter().map(|path| path.name.clone()).collect(),
        certain,
        reason,
    }
}

/// The paths among which a policy chooses: the best standing there is.
pub(crate) fn class(paths: &[PathView]) -> Vec<&PathView> {
    let best = paths.iter().map(|path| path.standing).min();
    let usable = best.filter(|&best| best != Standing::Unusable);
    let of_class = paths.iter().filter(|path| Some(path.standing) == usable);
    of_class.collect()
}

fn only_one(only: &PathView, paths: &[PathView]) -> String {
    let usable = paths
        .iter()
        .filter(|path| path.standing != Standing::Unusable)
        .count();
    match (paths.len(), usable) {
        (1, _) => "there is no other path".to_owned(),
        (_, 1) => "no other path is usable".to_owned(),
        _ => format!(
            "only {} is optimized: the ANA state decides before distance",
            only.name
        ),
    }
}

type Taken<'a> = (Vec<&'a PathView>, bool, String);

fn numa<'a>(class: &[&'a PathView], node: Option<NodeId>, no_node: &NoNode) -> Taken<'a> {
    let Some(node) = node else {
        return (
            class.to_vec(),
            false,
            "the CPU's node is unknown".to_owned(),
        );
    };
    let is_kernels = |path: &&&PathView| {
        let nodes = path.numa_nodes.as_ref();
        nodes.is_some_and(|nodes| nodes.contains(node))
    };
    if let Some(&path) = class.iter().find(is_kernels) {
        let told = format!(
            "the kernel lists node {node} in numa_nodes of {}",
            path.name
        );
        return (vec![path], true, told);
    }
    let nearest = class.iter().filter_map(|path| path.kernel_distance).min();
    let at = |distance: Option<Distance>| {
        class
            .iter()
            .copied()
            .filter(move |path| path.kernel_distance == distance)
    };
    let vague: Vec<_> = at(None).collect();
    let Some(distance) = nearest else {
        let told = vague
            .first()
            .map(|path| no_distance(path, no_node))
            .unwrap_or_default();
        return (vague, false, told);
    };
    let mut taken: Vec<_> = at(nearest).collect();
    if let [first, ..] = vague[..] {
        taken.extend(&vague);
        return (taken, false, no_distance(first, no_node));
    }
    let counted: Vec<&str> = taken
        .iter()
        .filter(|path| is_nowhere(path))
        .map(|path| path.controller.as_str())
        .collect();
    let counted = match counted[..] {
        [] => String::new(),
        _ => format!(
            "; the kernel has no node for {}: {}",
            counted.join(", "),
            no_node.rule()
        ),
    };
    match taken[..] {
        [path] if !counted.is_empty() => (
            taken.clone(),
            true,
            format!("{} is the nearest{counted}", path.controller),
        ),
        [path] => (
            taken.clone(),
            true,
            format!(
                "{} is nearest to node {node}, at {distance}",
                path.controller
            ),
        ),
        _ => {
            let told = format!(
                "all at {distance} from node {node}: the kernel keeps to the one it found first{counted}"
            );
            (taken, false, told)
        }
    }
}

/// Why the kernel's distance to a path is unknown.
fn no_distance(path: &PathView, no_node: &NoNode) -> String {
    match is_nowhere(path) {
        true => format!(
            "the kernel has no node for {}: {}",
            path.controller,
            no_node.rule()
        ),
        false => format!("the kernel's distance to {} is unknown", path.controller),
    }
}

/// Whether the kernel has no node for the controller.
fn is_nowhere(path: &PathView) -> bool {
    path.kernel_node.get() == Some(&None)
}

fn round_robin<'a>(class: &[&'a PathView]) -> Taken<'a> {
    (
        class.to_vec(),
        true,
        format!("{} in turn, near or far", each(class)),
    )
}

fn queue_depth<'a>(class: &[&'a PathView]) -> Taken<'a> {
    let depths: Option<Vec<u32>> = class.iter().map(|path| path.queue_depth).collect();
    let Some(least) = depths.and_then(|depths| depths.into_iter().min()) else {
        let reason =
            "the one with the fewest commands in flight, which the source does not have; since Linux 6.11".to_owned();
        return (class.to_vec(), false, reason);
    };
    let taken: Vec<_> = class
        .iter()
        .copied()
        .filter(|path| path.queue_depth == Some(least))
        .collect();
    let reason = format!(
        "fewest commands in flight when the source looked ({least}); follows the load, not distance; since Linux 6.11"
    );
    (taken, false, reason)
}

fn each(class: &[&PathView]) -> &'static str {
    match class.first().map(|path| path.standing) {
        Some(Standing::NonOptimized) => "none is optimized: each usable path",
        _ => "each optimized path",
    }
}

/// The first release with the fix, by stable series.
const FIXED_IN: [(Series, u32); 6] = [
    ((5, 4), 278),
    ((5, 10), 219),
    ((5, 15), 161),
    ((6, 1), 93),
    ((6, 6), 33),
    ((6, 8), 12),
];
/// The first series whose first release has it.
const FIXED_SINCE: Series = (6, 9);
/// Since when "deleting (no IO)" is a state of its own and "deleting" still takes I/O (commit ecca390e8056).
const DELETING_USABLE_SINCE: Series = (5, 9);

/// Major and minor number.
type Series = (u32, u32);

/// What the policy `numa` takes for the distance to a controller without a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum NoNode {
    /// 10: as near as a controller of the CPU's own node.
    Local {
        /// "Linux 6.12.1".
        kernel: String,
    },
    /// An entry outside of the table of distances.
    OutsideTable {
        /// "Linux 6.1.90".
        kernel: String,
        /// The first release of its series that has the fix, or the first of all: "6.1.93".
        fixed_in: String,
    },
    /// One of these; it depends on a kernel of which too little is known.
    Unknown { reason: String },
}

impl NoNode {
    /// By the kernel that the machine ran.
    pub fn of(origin: &Origin) -> Self {
        let release = match &origin.kernel {
            Known::Yes(release) => release,
            Known::No { unknown_reason } => {
                return Self::Unknown {
                    reason: format!("the kernel's release is unknown: {unknown_reason}"),
                };
            }
        };
        let Some(version) = Version::parse(release) else {
            return Self::Unknown {
                reason: format!("{release:?} is not a release of Linux"),
            };
        };
        let base = origin.kernel_base.as_deref().and_then(Version::parse);
        let kernel = match &origin.kernel_base {
            Some(base) => format!("Linux {release} (from {base})"),
            None => format!("Linux {release}"),
        };
        if version.series >= FIXED_SINCE || base.is_some_and(Version::is_fixed) {
            return Self::Local { kernel };
        }
        match base.or_else(|| version.is_from_kernel_org(release).then_some(version)) {
            Some(exact) if exact.is_fixed() => Self::Local { kernel },
            Some(exact) => Self::OutsideTable {
                kernel,
                fixed_in: exact.fixed_in(),
            },
            None => Self::Unknown {
                reason: format!("{kernel} is a distribution's: it may have the fix"),
            },
        }
    }

    /// The rule, with what decides it, as the end of a sentence about a controller without a node.
    pub fn rule(&self) -> String {
        match self {
            Self::Local { kernel } => format!("{kernel} counts it as local (10)"),
            Self::OutsideTable { kernel, fixed_in } => {
                format!("{kernel} reads any value as its distance (fixed in {fixed_in}: local, 10)")
            }
            Self::Unknown { reason } => {
                format!(
                    "kernels with the fix (Linux 6.9, 6.1.93 and other stable releases) count it as local (10), others read any value; {reason}"
                )
            }
        }
    }
}

/// Whether `__nvme_find_path()` still uses a controller in the state "deleting"; true where the kernel is unknown.
fn deleting_is_usable(origin: &Origin) -> bool {
    let version = origin
        .kernel
        .get()
        .and_then(|release| Version::parse(release));
    version.is_none_or(|version| version.series >= DELETING_USABLE_SINCE)
}

/// The numbers at the start of a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Version {
    pub(crate) series: Series,
    patch: u32,
}

impl Version {
    /// `6.1.90`, `6.1.0-21-amd64`, `6.9-rc1`, `5.14.0-503.el9.x86_64`.
    pub(crate) fn parse(release: &str) -> Option<Self> {
        let numbers = release
            .split(|c: char| !c.is_ascii_digit() && c != '.')
            .next()?;
        let mut numbers = numbers.split('.').map(str::parse::<u32>);
        let series = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        let patch = numbers.next().and_then(Result::ok).unwrap_or(0);
        Some(Self { series, patch })
    }

    fn is_fixed(self) -> bool {
        self.series >= FIXED_SINCE
            || FIXED_IN
                .iter()
                .any(|&(series, patch)| series == self.series && patch <= self.patch)
    }

    fn fixed_in(self) -> String {
        let stable = FIXED_IN.iter().find(|&&(series, _)| series == self.series);
        let (major, minor) = FIXED_SINCE;
        stable.map_or_else(
            || format!("{major}.{minor}"),
            |((major, minor), patch)| format!("{major}.{minor}.{patch}"),
        )
    }

    /// Whether the numbers are those of kernel.org: a distribution's kernel that stays on one number
    /// (`5.14.0-503.el9`, `6.1.0-21-amd64`) or on a series that kernel.org gave up (`5.14.21-150500.55-default`) has fixes
    /// that its number does not tell.
    fn is_from_kernel_org(self, release: &str) -> bool {
        let suffix = release.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let stable = FIXED_IN.iter().any(|&(series, _)| series == self.series);
        suffix.is_empty() || suffix.starts_with("-rc") || (stable && self.patch > 0)
    }
}

#[cfg(test)]
mod tests {
    use nearfar_machine::SourceKind;

    use super::*;

    fn kind(release: &str, base: Option<&str>) -> &'static str {
        let mut origin = Origin::new(SourceKind::Tree, "test");
        origin.kernel = Known::Yes(release.to_owned());
        origin.kernel_base = base.map(str::to_owned);
        match NoNode::of(&origin) {
            NoNode::Local { .. } => "local",
            NoNode::OutsideTable { .. } => "outside",
            NoNode::Unknown { .. } => "unknown",
        }
    }

    #[test]
    fn the_fix_is_in_6_9_and_in_the_stable_releases() {
        for fixed in [
            "6.9.0",
            "6.9",
            "6.10.3-arch1-1",
            "6.12.0-generated",
            "7.0.1",
            "6.12.95+deb13-amd64",
        ] {
            assert_eq!(kind(fixed, None), "local", "{fixed}");
        }
        for ((major, minor), patch) in FIXED_IN {
            assert_eq!(kind(&format!("{major}.{minor}.{patch}"), None), "local");
            assert_eq!(
                kind(&format!("{major}.{minor}.{}", patch - 1), None),
                "outside"
            );
        }
        for old in [
            "6.7.12",
            "5.8",
            "4.19.316",
            "6.8-rc3",
            "6.8.10-300.fc40.x86_64",
            "3.10.0",
        ] {
            assert_eq!(kind(old, None), "outside", "{old}");
        }
    }

    #[test]
    fn a_distribution_s_number_tells_nothing_without_its_base() {
        for vendor in [
            "6.1.0-21-amd64",
            "5.14.0-503.el9.x86_64",
            "4.18.0-553.el8",
            "5.14.21-150500.55-default",
            "6.5.0-9-generic",
        ] {
            assert_eq!(kind(vendor, None), "unknown", "{vendor}");
        }
        assert_eq!(kind("6.1.0-21-amd64", Some("6.1.90")), "outside");
        assert_eq!(kind("6.1.0-22-amd64", Some("6.1.94")), "local");
        assert_eq!(kind("5.15.0-112-generic", Some("5.15.152")), "outside");
        for odd in ["", "six", "6", "6.x", "99999999999.1"] {
            assert_eq!(kind(odd, None), "unknown", "{odd}");
        }
    }
}

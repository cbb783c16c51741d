//! What each I/O policy makes of the paths to a namespace.

use nearfar_machine::{Distance, IoPolicy, NodeId};

use super::kernel::NoNode;
use super::{PathView, PolicyChoice, Standing};

/// The three policies of the kernel, and the one in force where it is another.
pub(super) fn of_each_policy(
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

fn class(paths: &[PathView]) -> Vec<&PathView> {
    let of = |standing| {
        paths
            .iter()
            .filter(|path| path.standing == standing)
            .collect::<Vec<_>>()
    };
    let optimized = of(Standing::Optimized);
    if optimized.is_empty() {
        of(Standing::NonOptimized)
    } else {
        optimized
    }
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

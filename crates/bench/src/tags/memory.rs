//! The memory of the device, on its node.

use nearfar_machine::{CpuSet, Machine, NodeId, NodeSet};

use crate::mapping::Mapping;
use crate::options::{HugePages, ProbeError, ProbeOptions, on_own_thread};
use crate::warning::Warning;
use crate::{node_buffers, node_selection};

/// Memory on a node, and sentences about what of it may be elsewhere.
///
/// # Errors
/// When there is no such memory.
pub(super) fn on_node(
    machine: &Machine,
    allowed: &CpuSet,
    node: NodeId,
    bytes: usize,
) -> Result<(Mapping, Vec<String>), ProbeError> {
    on_own_thread(|| place(machine, allowed, node, bytes))
}

/// Leaves the calling thread pinned.
fn place(
    machine: &Machine,
    allowed: &CpuSet,
    node: NodeId,
    bytes: usize,
) -> Result<(Mapping, Vec<String>), ProbeError> {
    let options = ProbeOptions {
        to: Some(NodeSet::single(node)),
        // Those of the pool may be all that other programs can use.
        huge_pages: HugePages::Transparent,
        ..ProbeOptions::default()
    };
    let sources = node_selection::select(machine, allowed, &options)?.sources;
    let buffers = node_buffers::allocate(machine, &[node], &sources, bytes as u64, &options)?;
    // Translations of addresses are not what is compared.
    let is_about_pages = |warning: &&Warning| matches!(warning, Warning::BasePages);
    let warnings = buffers.warnings.iter().filter(|it| !is_about_pages(it));
    let warnings = warnings.map(ToString::to_string).collect();
    let buffer = buffers.buffers.into_iter().next();
    let reason = format!("node {node} has no memory for it");
    let buffer = buffer.ok_or(ProbeError::NothingToMeasure { reason })?;
    Ok((buffer.memory, warnings))
}

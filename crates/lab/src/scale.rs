//! Scaling a machine down to what a laptop can emulate: so many CPUs and so much memory on each node.
//!
//! ```text
//! node 0  0-23   63 GiB  ──►  0-1  512 MiB      --scale cpus=2,memory=512M
//! node 1  24-47  64 GiB  ──►  2-3  512 MiB      nodes, distances, devices and their nodes stay
//! node 2         32 GiB  ──►       512 MiB      a node without CPUs or memory stays without
//! ```

mod cut;

use nearfar_machine::{Known, Machine, Memory, NodeLimits};
use nearfar_sources::fake;

use crate::design::fakes;
use crate::error::LabError;

/// The machine with each node cut down. A node that has more CPUs than are asked for keeps those with the lowest numbers;
/// CPUs are then numbered without gaps in the order they had, and sets and affinities follow. Fake nodes are laid again over
/// what is left. Tasks and cpusets are left out.
///
/// # Errors
/// When the fake nodes do not fit the smaller machine.
pub fn scaled(machine: &Machine, limits: NodeLimits) -> Result<Machine, LabError> {
    if limits.is_empty() {
        return Ok(machine.clone());
    }
    let (mut scaled, spec) = fakes::real(machine);
    let reason = "the machine was scaled down";
    scaled.tasks = Known::no(reason);
    scaled.cpusets = Known::no(reason);
    if let Some(bytes) = limits.memory_bytes {
        for node in scaled
            .nodes
            .iter_mut()
            .filter(|node| node.has_memory() != Some(false))
        {
            node.memory = Known::Yes(Memory::of(bytes));
        }
    }
    if let Some(most) = limits.cpus {
        cut::cut(&mut scaled, most as usize);
    }
    match spec {
        Some(spec) => {
            fake::lay(scaled, &spec).map_err(|problem| LabError::Design(problem.to_string()))
        }
        None => Ok(scaled),
    }
}

//! hwloc's XML: what `lstopo topology.xml` writes, versions 2 and 3, in and out.
//!
//! ```text
//! <topology version="2.0">
//!   <object type="Machine" cpuset="0x000000ff" ...>      objects nest by the CPUs they hold
//!     <info name="OSRelease" value="6.1.0"/>             facts about an object (version 3: about the topology too)
//!     <object type="Package" os_index="0">
//!       <object type="NUMANode" os_index="0" .../>       memory is next to the CPUs that are near it
//!       <object type="L3Cache"> ... <object type="Core"> ... <object type="PU" os_index="0"/>
//!     <object type="Bridge" bridge_type="0-1" bridge_pci="0000:[00-ff]"> ... <object type="PCIDev"/>
//!   <distances2 type="NUMANode" name="NUMALatency"> <indexes/> <u64values/>
//! ```
//!
//! Version 1 has no `version`; there, nodes hold their CPUs as packages do, and `<distances>` are below an object.
//!
//! What hwloc has no place for is left out on the way out, and unknown on the way in: nodes that are not online,
//! interrupts, network queues, NVMe paths, settings. What it has, but means otherwise than the kernel, travels as an
//! `<info>` of ours, which hwloc keeps: the CPUs of a node (`KernelCpus`), those that are offline (`KernelOffline`), the
//! node and driver of a PCI device (`KernelNode`, `KernelDriver`). Without them `nodes.rs` says whose CPUs are whose, and
//! a device is on the node that all CPUs near it are on.

mod arrange;
mod build;
mod distances;
mod elements;
mod nodes;
mod pci;
mod pci_tree;
mod write;

use nearfar_machine::Machine;

use crate::error::TextError;

/// Reads XML that hwloc of version 1, 2 or 3 wrote, in a text that may have other lines before and after it.
///
/// # Errors
/// When it is no XML, not hwloc's, or names no CPU and no node. Entities are not expanded, and what nests
/// deeper or numbers more than a machine can is refused.
pub fn parse(text: &str, place: &str) -> Result<Machine, TextError> {
    build::machine(elements::read(text, place)?, place)
}

/// Writes a machine as XML of version 2.0, which all releases of hwloc since 2.0 read.
pub fn render(machine: &Machine) -> String {
    write::document(machine)
}

//! The live system and extracted trees: what sysfs and procfs say of a machine.

mod notes;
mod value;

use nearfar_machine::{Machine, Origin, SourceKind};

use crate::tree::Tree;
use crate::want::Want;
use notes::Notes;

/// Why a tree gives no machine at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SysfsError {
    /// Neither sysfs nor procfs names a single CPU.
    #[error(
        "{place}: no CPU found in sys/devices/system/cpu, sys/devices/system/node or proc/cpuinfo; \
         the directory that holds `sys` and `proc` is wanted"
    )]
    NotATree {
        /// The root that was read.
        place: String,
    },
}

/// Reads the machine that a tree describes.
///
/// # Errors
/// When the tree names no CPU: then it is no tree of a Linux system. Everything else that is wrong with it becomes a
/// diagnostic or a [`Known::No`](nearfar_machine::Known).
pub fn read(tree: &Tree, want: &Want) -> Result<Machine, SysfsError> {
    let notes = Notes::default();
    let kind = if tree.is_live() { SourceKind::Live } else { SourceKind::Tree };
    let mut machine = Machine::empty(Origin::new(kind, tree.display("")), "not read yet");
    read_devices(tree, want, &notes, &mut machine);
    machine.diagnostics = notes.into_diagnostics(tree);
    Ok(machine)
}

/// Everything that is not nodes, CPUs, memory and caches. `machine` holds those already.
fn read_devices(_tree: &Tree, _want: &Want, _notes: &Notes, _machine: &mut Machine) {
    // pci, firmware, interrupts, networks, nvme, tasks, cpusets, settings, writers: their readers are called here,
    // each of them total.
}

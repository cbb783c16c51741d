//! Settings of the system that decide over locality.

use nearfar_machine::{Known, Settings};

use super::attribute;
use super::notes::Notes;
use crate::tree::Tree;
use crate::value::{self, ValueError};

/// Reads the settings; each that is not there is unknown for itself.
pub(crate) fn read(tree: &Tree, notes: &Notes) -> Settings {
    Settings {
        numa_balancing: file(
            tree,
            notes,
            "proc/sys/kernel",
            "numa_balancing",
            value::natural32,
        ),
        default_interrupt_affinity: file(
            tree,
            notes,
            "proc/irq",
            "default_smp_affinity",
            value::mask,
        ),
        governor: file(
            tree,
            notes,
            "sys/devices/system/cpu/cpu0/cpufreq",
            "scaling_governor",
            value::word,
        ),
        transparent_huge_pages: file(
            tree,
            notes,
            "sys/kernel/mm/transparent_hugepage",
            "enabled",
            chosen,
        ),
        zone_reclaim_mode: file(
            tree,
            notes,
            "proc/sys/vm",
            "zone_reclaim_mode",
            value::natural32,
        ),
    }
}

fn file<T>(
    tree: &Tree,
    notes: &Notes,
    directory: &str,
    name: &str,
    parse: impl FnOnce(&[u8]) -> Result<T, ValueError>,
) -> Known<T> {
    match tree.directory(directory) {
        Ok(directory) => attribute::known(&directory, name, notes, parse),
        Err(error) => Known::no(
            tree.unreadable(&format!("{directory}/{name}"), error.reason)
                .to_string(),
        ),
    }
}

/// The word in brackets of `always [madvise] never`.
fn chosen(bytes: &[u8]) -> Result<String, ValueError> {
    let text = value::text(bytes)?;
    nearfar_proc::choice::chosen(text)
        .map(str::to_owned)
        .ok_or_else(|| ValueError::malformed(text, "a list with one word in brackets"))
}

//! Settings of the system that decide over locality.

use nearfar_machine::{Known, Settings};

use super::attribute;
use super::notes::Notes;
use super::value;
use crate::tree::Tree;

/// Reads the settings; each that is not there is unknown for itself.
pub(crate) fn read(tree: &Tree, notes: &Notes) -> Settings {
    Settings {
        numa_balancing: file(tree, notes, "proc/sys/kernel", "numa_balancing", |bytes| {
            u32::try_from(value::natural(bytes)?).map_err(|_| "too large a number".to_owned())
        }),
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
            attribute::word,
        ),
        transparent_huge_pages: file(
            tree,
            notes,
            "sys/kernel/mm/transparent_hugepage",
            "enabled",
            chosen,
        ),
    }
}

fn file<T>(
    tree: &Tree,
    notes: &Notes,
    directory: &str,
    name: &str,
    parse: impl FnOnce(&[u8]) -> Result<T, String>,
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
fn chosen(bytes: &[u8]) -> Result<String, String> {
    let text = value::text(bytes)?;
    let word = nearfar_proc::choice::chosen(text).map(str::to_owned);
    word.ok_or_else(|| format!("{:?} has no word in brackets", value::shorten(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_in_brackets_is_the_one_in_force() {
        assert_eq!(
            chosen(b"always [madvise] never\n").as_deref(),
            Ok("madvise")
        );
        assert!(chosen(b"always\n").is_err());
        assert!(chosen(b"]x[").is_err());
    }
}

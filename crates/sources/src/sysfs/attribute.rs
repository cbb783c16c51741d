//! Reading one attribute into a [`Known`]: what cannot be read, or makes no sense, is unknown with its file's name.

use nearfar_machine::{Known, MOST_NODES, NodeId};

use super::notes::Notes;
use crate::tree::{Directory, Reason, Tree};
use crate::value::{self, ValueError};

pub(crate) type Parser<T> = fn(&[u8]) -> Result<T, ValueError>;

/// Reads an attribute. A content that the parser refuses is also noted as a warning.
pub(crate) fn known<T>(
    directory: &Directory<'_>,
    name: &str,
    notes: &Notes,
    parse: impl FnOnce(&[u8]) -> Result<T, ValueError>,
) -> Known<T> {
    match directory.with_bytes(name, parse) {
        Ok(parsed) => notes.known(|| directory.display(name), parsed),
        Err(reason) => Known::no(directory.unreadable(name, reason).to_string()),
    }
}

/// Reads the first of several files that is there, which stand in for the usual one; the reason why none is known names the
/// first one.
pub(crate) fn first_known<T>(
    directory: &Directory<'_>,
    usual: &str,
    candidates: &[(&str, Parser<T>)],
    notes: &Notes,
) -> Known<T> {
    let mut because = None;
    for &(name, parse) in candidates {
        match known(directory, name, notes, parse) {
            Known::Yes(value) => {
                notes.read_instead(directory.below(usual), directory.below(name));
                return Known::Yes(value);
            }
            Known::No { unknown_reason } => {
                because.get_or_insert(unknown_reason);
            }
        }
    }
    Known::no(because.unwrap_or_default())
}

/// A number of a node as `numa_node` gives it: -1 is "none" (`NUMA_NO_NODE`).
pub(crate) fn node(bytes: &[u8]) -> Result<Option<NodeId>, ValueError> {
    match value::integer(bytes)? {
        -1 => Ok(None),
        number => match u32::try_from(number) {
            Ok(number) if number < MOST_NODES => Ok(Some(NodeId(number))),
            _ => Err(ValueError::malformed(
                number.to_string(),
                "the number of a node",
            )),
        },
    }
}

/// The text of a file of a tree, without the white space around it.
pub(crate) fn text_of(tree: &Tree, path: &str) -> Option<String> {
    tree.with_bytes(path, value::word).ok()?.ok()
}

/// Whether the reason is that the file is not there, as opposed to something that keeps us from reading it.
pub(crate) fn is_absent(reason: &Reason) -> bool {
    *reason == Reason::Absent
}

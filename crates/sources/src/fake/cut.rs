//! Cuts the memory of real nodes into parts, in the order in which mm/numa_emulation.c does it.

use nearfar_machine::{Machine, NodeId};

use super::{Cut, FakeError, FakeSpec};
use crate::limits::MOST_NODES;

/// `FAKE_NODE_MIN_SIZE`: memory is cut in steps of this many bytes.
const STEP: u64 = 32 << 20;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Part {
    /// The real node of its first block of memory: its CPUs and distances are that node's.
    pub real: NodeId,
    /// Its memory in bytes; unknown where the real nodes' is.
    pub bytes: Option<u64>,
}

/// What is left of a real node.
struct Rest {
    real: NodeId,
    bytes: u64,
}

/// The fake nodes, by number.
pub(super) fn parts(machine: &Machine, spec: &FakeSpec) -> Result<Vec<Part>, FakeError> {
    let text = || spec.to_string();
    let known = machine
        .online_nodes()
        .map(|node| node.total_bytes())
        .all(|bytes| bytes.is_some());
    let rests: Vec<Rest> = if known {
        let sizes = machine
            .online_nodes()
            .map(|node| (node.id, node.total_bytes().unwrap_or(0)));
        sizes
            .filter(|&(_, bytes)| bytes > 0)
            .map(|(real, bytes)| Rest { real, bytes })
            .collect()
    } else {
        let reason = machine
            .online_nodes()
            .find_map(|node| node.memory.unknown_reason())
            .unwrap_or("unknown");
        if let Cut::Size(_) = spec.cut {
            return Err(FakeError::UnknownSizes {
                text: text(),
                reason: reason.to_owned(),
            });
        }
        // Without sizes all real nodes count as equal, which is what decides over numbers and CPUs; the parts' sizes
        // stay unknown. A node that is known to have none still gets no fake.
        const PRETENDED: u64 = 1 << 50;
        let with_memory = machine
            .online_nodes()
            .filter(|node| node.has_memory() != Some(false));
        with_memory
            .map(|node| Rest {
                real: node.id,
                bytes: PRETENDED,
            })
            .collect()
    };
    if rests.is_empty() {
        return Err(FakeError::NoMemory { text: text() });
    }
    let mut parts = match spec.cut {
        Cut::Each(count) => each(rests, count, spec)?,
        Cut::Count(count) => in_turn(rests, count, spec)?,
        Cut::Size(bytes) => of_size(rests, bytes),
    };
    if parts.len() > MOST_NODES {
        return Err(FakeError::TooMany {
            text: text(),
            nodes: parts.len() as u64,
        });
    }
    if !known {
        parts.iter_mut().for_each(|part| part.bytes = None);
    }
    Ok(parts)
}

/// `NU`: every real node into as many parts, one real node after the other. Parts are rounded up to 32 MiB, and the
/// last one is smaller; where that leaves nothing for it the kernel refuses, and so does this.
fn each(rests: Vec<Rest>, count: u32, spec: &FakeSpec) -> Result<Vec<Part>, FakeError> {
    let nodes = rests.len() as u64 * u64::from(count);
    if nodes > MOST_NODES as u64 {
        return Err(FakeError::TooMany {
            text: spec.to_string(),
            nodes,
        });
    }
    let mut parts = Vec::new();
    for Rest { real, bytes } in rests {
        let size = (bytes / u64::from(count))
            .div_ceil(STEP)
            .saturating_mul(STEP)
            .max(STEP);
        let before = size.checked_mul(u64::from(count - 1));
        let last = before
            .and_then(|before| bytes.checked_sub(before))
            .filter(|&last| last > 0);
        let last = last.ok_or_else(|| FakeError::TooSmall {
            text: spec.to_string(),
            bytes,
            parts: count,
        })?;
        parts.extend((1..count).map(|_| Part {
            real,
            bytes: Some(size),
        }));
        parts.push(Part {
            real,
            bytes: Some(last),
        });
    }
    Ok(parts)
}

/// `N`: as many parts of equal size, dealt out over the real nodes in turn. The remainder makes the first parts 32 MiB
/// larger each, and what is left of a real node and too small for a part goes to its last one.
fn in_turn(mut rests: Vec<Rest>, count: u32, spec: &FakeSpec) -> Result<Vec<Part>, FakeError> {
    let total = rests
        .iter()
        .fold(0u64, |sum, rest| sum.saturating_add(rest.bytes));
    let exact = total / u64::from(count);
    let larger = (exact % STEP).saturating_mul(u64::from(count)) / STEP;
    let size = exact / STEP * STEP;
    if size == 0 {
        return Err(FakeError::TooSmall {
            text: spec.to_string(),
            bytes: total,
            parts: count,
        });
    }
    let mut parts: Vec<Part> = Vec::new();
    let mut dealt: u64 = 0;
    while !rests.is_empty() {
        for rest in &mut rests {
            let wanted = if dealt < larger { size + STEP } else { size };
            let bytes = if rest.bytes.saturating_sub(wanted) < size {
                rest.bytes
            } else {
                wanted
            };
            rest.bytes -= bytes;
            // More pieces than parts come about where real nodes are not multiples of a part: they go round again.
            match parts.get_mut((dealt % u64::from(count)) as usize) {
                Some(part) => part.bytes = part.bytes.map(|before| before.saturating_add(bytes)),
                None => parts.push(Part {
                    real: rest.real,
                    bytes: Some(bytes),
                }),
            }
            dealt += 1;
        }
        rests.retain(|rest| rest.bytes > 0);
    }
    Ok(parts)
}

/// A size: parts of at least that size, dealt out in turn; the last part of a real node takes what is left of it.
fn of_size(mut rests: Vec<Rest>, asked: u64) -> Vec<Part> {
    let total = rests
        .iter()
        .fold(0u64, |sum, rest| sum.saturating_add(rest.bytes));
    // The kernel raises a size that would make more nodes than it can have.
    let least = (total / MOST_NODES as u64).max(1).div_ceil(STEP) * STEP;
    let size = asked.max(least) / STEP * STEP;
    let mut parts = Vec::new();
    while !rests.is_empty() {
        for rest in &mut rests {
            let bytes = if rest.bytes.saturating_sub(size) < size {
                rest.bytes
            } else {
                size
            };
            rest.bytes -= bytes;
            parts.push(Part {
                real: rest.real,
                bytes: Some(bytes),
            });
        }
        rests.retain(|rest| rest.bytes > 0);
    }
    parts
}

//! Why memory is not moved, looked at before the first page.

use std::collections::BTreeMap;
use std::io;

use nearfar_machine::{NodeId, NodeSet};
use nearfar_proc::status::Status;
use nearfar_proc::{error_text, zoneinfo};

use super::survey::Survey;
use super::{MoveRequest, size};
use crate::system::{System, text};

/// What has to be free beyond the size to move: what others take meanwhile.
const SPARE_PERCENT: u64 = 10;
pub(crate) const NODES: &str = "/sys/devices/system/node";

/// Why memory is not moved. Each names the figures it was judged by.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("node {to} is not online (online: {online})")]
    NotOnline { to: NodeId, online: NodeSet },
    #[error("node {to} has no memory (nodes with memory: {having})")]
    NoMemory { to: NodeId, having: NodeSet },
    #[error("process {pid} may not have memory on node {to} (Mems_allowed_list {allowed})")]
    NotAllowed {
        pid: i32,
        to: NodeId,
        allowed: NodeSet,
    },
    #[error(
        "a memory policy of process {pid} keeps its mapping at {start:x} from node {to} ({policy})"
    )]
    Bound {
        pid: i32,
        to: NodeId,
        start: u64,
        policy: String,
    },
    #[error(
        "node {to} has {} above its high watermarks ({} free), and {} are needed: {} to move and {SPARE_PERCENT} % to spare",
        size(*unreserved), size(*free), size(*needed), size(*to_move)
    )]
    TooFull {
        to: NodeId,
        unreserved: u64,
        free: u64,
        needed: u64,
        to_move: u64,
    },
    #[error("cannot read {file}: {reason}")]
    Read { file: String, reason: String },
}

/// What the system says of a move.
#[derive(Clone)]
pub(crate) struct MoveConditions {
    pub(crate) survey: Survey,
    online: NodeSet,
    having_memory: NodeSet,
    allowed: NodeSet,
    /// Of the target, in bytes.
    free: u64,
    /// Free beyond the high watermarks.
    unreserved: u64,
}

impl MoveConditions {
    /// Reads them from the running system.
    pub(crate) fn read(system: &dyn System, request: &MoveRequest) -> Result<Self, Refusal> {
        let (pid, to) = (request.pid, request.to);
        let survey = Survey::of(request)
            .map_err(|error| unread(&format!("/proc/{pid}/numa_maps"), &error))?;
        let zones = bytes(system, "/proc/zoneinfo")?;
        let pages = zoneinfo::of_node(&zones, to).unwrap_or_default();
        let page_bytes = rustix::param::page_size() as u64;
        let nodes = |name: &str| {
            let file = format!("{NODES}/{name}");
            node_list(system, &file).map_err(|reason| Refusal::Read { file, reason })
        };
        let online = nodes("online")?;
        Ok(Self {
            survey,
            // Since Linux 2.6.30; without memory the node has no zones either.
            having_memory: nodes("has_memory").unwrap_or_else(|_| online.clone()),
            online,
            allowed: allowed(system, pid)?,
            free: pages.free.saturating_mul(page_bytes),
            unreserved: pages.above_high().saturating_mul(page_bytes),
        })
    }
}

impl MoveConditions {
    fn check_room(&self, to: NodeId, to_move: u64) -> Result<(), Refusal> {
        let needed = with_spare(to_move);
        if to_move == 0 || self.unreserved >= needed {
            return Ok(());
        }
        Err(Refusal::TooFull {
            to,
            unreserved: self.unreserved,
            free: self.free,
            needed,
            to_move,
        })
    }
}

/// Whether the memory may be moved.
pub(crate) fn check(request: &MoveRequest, conditions: &MoveConditions) -> Result<(), Refusal> {
    let (pid, to) = (request.pid, request.to);
    if !conditions.online.contains(to) {
        let online = conditions.online.clone();
        return Err(Refusal::NotOnline { to, online });
    }
    if !conditions.having_memory.contains(to) {
        let having = conditions.having_memory.clone();
        return Err(Refusal::NoMemory { to, having });
    }
    if !conditions.allowed.contains(to) {
        let allowed = conditions.allowed.clone();
        return Err(Refusal::NotAllowed { pid, to, allowed });
    }
    if let Some(bound) = conditions.survey.bound() {
        return Err(Refusal::Bound {
            pid,
            to,
            start: bound.start,
            policy: bound.policy.to_owned(),
        });
    }
    conditions.check_room(to, conditions.survey.to_move_bytes())
}

/// Whether a node has room for all that several processes move to it.
pub(super) fn check_room_for_all(moves: &[(MoveRequest, MoveConditions)]) -> Result<(), Refusal> {
    let mut sums: BTreeMap<NodeId, u64> = BTreeMap::new();
    for (request, conditions) in moves {
        let sum = sums.entry(request.to).or_default();
        *sum = sum.saturating_add(conditions.survey.part_bytes());
    }
    for (request, conditions) in moves {
        let to_move = sums.get(&request.to).copied().unwrap_or_default();
        conditions.check_room(request.to, to_move)?;
    }
    Ok(())
}

/// Whether the memory may be moved on the running system now: for plans.
pub(super) fn conditions(
    system: &dyn System,
    request: &MoveRequest,
) -> Result<MoveConditions, Refusal> {
    let conditions = MoveConditions::read(system, request)?;
    if conditions.survey.has_far() {
        check(request, &conditions)?;
    }
    Ok(conditions)
}

fn allowed(system: &dyn System, pid: i32) -> Result<NodeSet, Refusal> {
    let file = format!("/proc/{pid}/status");
    let status = bytes(system, &file)?;
    Status::of(&status)
        .allowed_nodes()
        .ok_or_else(|| Refusal::Read {
            file,
            reason: "it has no field Mems_allowed_list".to_owned(),
        })
}

/// What has to be free for so many bytes.
pub(crate) fn with_spare(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 100 * SPARE_PERCENT)
}

/// The list of nodes in a file.
///
/// # Errors
/// Why there is none.
pub(crate) fn node_list(system: &dyn System, file: &str) -> Result<NodeSet, String> {
    let text = text(system, file).map_err(|error| error_text(&error))?;
    NodeSet::parse_list(text.trim()).map_err(|_| "it has no list of nodes".to_owned())
}

fn bytes(system: &dyn System, file: &str) -> Result<Vec<u8>, Refusal> {
    system.read(file).map_err(|error| unread(file, &error))
}

fn unread(file: &str, error: &io::Error) -> Refusal {
    Refusal::Read {
        file: file.to_owned(),
        reason: error_text(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(list: &str) -> NodeSet {
        list.parse().unwrap()
    }

    fn request() -> MoveRequest {
        MoveRequest {
            pid: 4711,
            from: nodes("0"),
            to: NodeId(1),
            shared: false,
        }
    }

    fn good() -> MoveConditions {
        let text = b"1000 default anon=3 N0=1000 kernelpagesize_kB=4\n";
        MoveConditions {
            survey: Survey::read(&text[..], &nodes("0"), NodeId(1)).unwrap(),
            online: nodes("0-1"),
            having_memory: nodes("0-1"),
            allowed: nodes("0-1"),
            free: 9 << 20,
            unreserved: 8 << 20,
        }
    }

    fn refused(conditions: &MoveConditions) -> String {
        check(&request(), conditions).unwrap_err().to_string()
    }

    #[test]
    fn several_processes_need_room_for_all_of_them() {
        let together = |unreserved, to: [u32; 2]| {
            let one = |to| {
                let conditions = MoveConditions {
                    unreserved,
                    ..good()
                };
                let request = MoveRequest {
                    to: NodeId(to),
                    ..request()
                };
                (request, conditions)
            };
            check_room_for_all(&to.map(one)).map_err(|refusal| refusal.to_string())
        };
        // 3.9 MiB each.
        together(9 << 20, [1, 1]).unwrap();
        together(5 << 20, [1, 2]).unwrap();
        let refused = together(8 << 20, [1, 1]).unwrap_err();
        assert!(
            refused.contains("8.6 MiB are needed: 7.8 MiB to move"),
            "{refused}"
        );
    }

    #[test]
    fn each_refusal_names_its_figures() {
        check(&request(), &good()).unwrap();
        let only_first = nodes("0");
        let offline = MoveConditions {
            online: only_first.clone(),
            ..good()
        };
        assert_eq!(refused(&offline), "node 1 is not online (online: 0)");
        let empty = MoveConditions {
            having_memory: only_first.clone(),
            ..good()
        };
        assert_eq!(
            refused(&empty),
            "node 1 has no memory (nodes with memory: 0)"
        );
        let confined = MoveConditions {
            allowed: only_first,
            ..good()
        };
        assert_eq!(
            refused(&confined),
            "process 4711 may not have memory on node 1 (Mems_allowed_list 0)"
        );
        let full = MoveConditions {
            unreserved: 4_300_000,
            ..good()
        };
        assert_eq!(
            refused(&full),
            "node 1 has 4.1 MiB above its high watermarks (9.0 MiB free), and 4.3 MiB are needed: 3.9 MiB to move and 10 % \
             to spare"
        );
        let text = b"1000 bind:0 anon=3 N0=1 kernelpagesize_kB=4\n";
        let bound = MoveConditions {
            survey: Survey::read(&text[..], &nodes("0"), NodeId(1)).unwrap(),
            ..good()
        };
        assert_eq!(
            refused(&bound),
            "a memory policy of process 4711 keeps its mapping at 1000 from node 1 (bind:0)"
        );
    }
}

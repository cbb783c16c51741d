//! Why memory is not moved, looked at before the first page: how much of it is where, and what its policies say, in one read of
//! numa_maps; the free memory of the target.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader};

use nearfar_machine::{NodeBytes, NodeId, NodeSet};
use nearfar_proc::Status;
use nearfar_proc::numa_maps::{self, binds_elsewhere};
use nearfar_proc::{error_text, maps, tasks, zoneinfo};

use crate::system::{System, text};
use crate::task_memory::{MoveRequest, size};

/// What has to be free beyond the size to move: what others take meanwhile.
const SPARE_PERCENT: u64 = 10;
pub(crate) const NODES: &str = "/sys/devices/system/node";

/// Why memory is not moved, with the figures it was judged by.
type Refusal = String;

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
            node_list(system, &file).map_err(|reason| format!("cannot read {file}: {reason}"))
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

    fn check_room(&self, to: NodeId, to_move: u64) -> Result<(), Refusal> {
        let needed = with_spare(to_move);
        if to_move == 0 || self.unreserved >= needed {
            return Ok(());
        }
        Err(format!(
            "node {to} has {} above its high watermarks ({} free), and {} are needed: {} to move and {SPARE_PERCENT} % to spare",
            size(self.unreserved),
            size(self.free),
            size(needed),
            size(to_move)
        ))
    }
}

/// Whether the memory may be moved.
pub(crate) fn check(request: &MoveRequest, conditions: &MoveConditions) -> Result<(), Refusal> {
    let (pid, to) = (request.pid, request.to);
    let MoveConditions {
        online,
        having_memory,
        allowed,
        ..
    } = conditions;
    if !online.contains(to) {
        return Err(format!("node {to} is not online (online: {online})"));
    }
    if !having_memory.contains(to) {
        return Err(format!(
            "node {to} has no memory (nodes with memory: {having_memory})"
        ));
    }
    if !allowed.contains(to) {
        return Err(format!(
            "process {pid} may not have memory on node {to} (Mems_allowed_list {allowed})"
        ));
    }
    if let Some((start, policy)) = conditions.survey.bound() {
        return Err(format!(
            "a memory policy of process {pid} keeps its mapping at {start:x} from node {to} ({policy})"
        ));
    }
    conditions.check_room(to, conditions.survey.to_move_bytes())
}

/// Whether a node has room for all that several processes move to it.
pub(crate) fn check_room_for_all(moves: &[(MoveRequest, MoveConditions)]) -> Result<(), Refusal> {
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
pub(crate) fn conditions(
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
        .ok_or_else(|| format!("cannot read {file}: it has no field Mems_allowed_list"))
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
    format!("cannot read {file}: {}", error_text(error))
}

/// What numa_maps says of a process.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Survey {
    bytes: BTreeMap<NodeId, u64>,
    /// The mappings with memory on the source nodes, by address.
    far: Vec<FarMapping>,
}

/// A mapping with memory on the source nodes.
#[derive(Clone, PartialEq, Eq, Debug)]
struct FarMapping {
    start: u64,
    /// Bytes on the source nodes.
    bytes: u64,
    /// Of those, what may move.
    movable_bytes: u64,
    /// Its part of them where several processes move: each page divided by the number of its mappings.
    part_bytes: u64,
    /// Whether they are pages of hugetlbfs, which take free ones of the target's pool, or memory in blocks of their size.
    is_hugetlb: bool,
    /// Whether other processes map some of its pages.
    is_mapped_by_others: bool,
    /// The policy that binds it to nodes without the target, as numa_maps writes it: `bind:0`.
    bound: Option<String>,
}

impl Survey {
    /// Of a process of the running system.
    pub(crate) fn of(request: &MoveRequest) -> io::Result<Self> {
        let open = |name| Ok::<_, io::Error>(BufReader::new(tasks::open(request.pid, name)?));
        let mut survey = Self::read(open("numa_maps")?, &request.from, request.to)?;
        if survey.far.iter().any(|mapping| mapping.is_mapped_by_others) {
            survey.read_shares(open("smaps")?, request.shared)?;
        }
        Ok(survey)
    }

    pub(crate) fn read(text: impl BufRead, from: &NodeSet, to: NodeId) -> io::Result<Self> {
        let system_page = rustix::param::page_size() as u64;
        let mut survey = Self::default();
        numa_maps::each(text, |mapping| {
            let page_bytes = mapping.page_bytes.unwrap_or(system_page);
            let mut far = 0u64;
            for (node, pages) in &mapping.pages {
                let bytes = pages.saturating_mul(page_bytes);
                let sum = survey.bytes.entry(*node).or_default();
                *sum = sum.saturating_add(bytes);
                if from.contains(*node) {
                    far = far.saturating_add(bytes);
                }
            }
            if far > 0 {
                let is_bound = binds_elsewhere(&String::from_utf8_lossy(mapping.policy), to);
                survey.far.push(FarMapping {
                    start: mapping.start,
                    bytes: far,
                    movable_bytes: far,
                    part_bytes: far,
                    is_hugetlb: page_bytes > system_page,
                    is_mapped_by_others: mapping.most_mappings > 1,
                    bound: is_bound.then(|| String::from_utf8_lossy(mapping.policy).into_owned()),
                });
            }
        })?;
        Ok(survey)
    }

    /// Of mappings that other processes share, only what smaps calls private may move, unless shared pages move, too.
    /// numa_maps says of a mapping only that it has such pages, not how many.
    fn read_shares(&mut self, smaps: impl BufRead, moves_shared: bool) -> io::Result<()> {
        let mut shared: BTreeMap<u64, &mut FarMapping> = self
            .far
            .iter_mut()
            .filter(|mapping| mapping.is_mapped_by_others)
            .map(|mapping| (mapping.start, mapping))
            .collect();
        maps::each_size(smaps, |of| {
            let Some(mapping) = shared.get_mut(&of.start) else {
                return;
            };
            if moves_shared {
                let part = u128::from(mapping.bytes) * u128::from(of.proportional);
                let part = part / u128::from(of.resident.max(1));
                mapping.part_bytes = mapping.bytes.min(u64::try_from(part).unwrap_or(u64::MAX));
            } else {
                mapping.movable_bytes = mapping.bytes.min(of.private);
                mapping.part_bytes = mapping.movable_bytes;
            }
        })
    }

    fn sum(&self, bytes: impl Fn(&FarMapping) -> u64) -> u64 {
        self.far.iter().map(bytes).fold(0, u64::saturating_add)
    }

    /// Bytes to move in the system's pages, transparent huge ones included.
    fn to_move_bytes(&self) -> u64 {
        self.sum(|it| u64::from(!it.is_hugetlb) * it.movable_bytes)
    }

    /// Bytes to move in pages of hugetlbfs.
    pub(crate) fn hugetlb_bytes(&self) -> u64 {
        self.sum(|it| u64::from(it.is_hugetlb) * it.movable_bytes)
    }

    /// As [`Self::to_move_bytes`], to be added to that of other processes that move: a page that several of them map counts
    /// once.
    pub(crate) fn part_bytes(&self) -> u64 {
        self.sum(|it| u64::from(!it.is_hugetlb) * it.part_bytes)
    }

    /// Bytes on the source nodes that stay, because other processes map them.
    pub(crate) fn staying_bytes(&self) -> u64 {
        self.sum(|it| it.bytes.saturating_sub(it.movable_bytes))
    }

    /// All that is to be moved.
    pub(crate) fn far_bytes(&self) -> u64 {
        self.sum(|it| it.movable_bytes)
    }

    /// Whether something is on the source nodes, shared or not.
    pub(crate) fn has_far(&self) -> bool {
        !self.far.is_empty()
    }

    /// Address and policy of the first mapping with memory to move that is bound to nodes without the target.
    fn bound(&self) -> Option<(u64, &str)> {
        let mut movable = self.far.iter().filter(|mapping| mapping.movable_bytes > 0);
        movable.find_map(|mapping| Some((mapping.start, mapping.bound.as_deref()?)))
    }

    /// By node, those without any left out.
    pub(crate) fn by_node(&self) -> Vec<NodeBytes> {
        let all = self.bytes.iter();
        all.map(|(&node, &bytes)| NodeBytes { node, bytes })
            .collect()
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
        check(&request(), conditions).unwrap_err()
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
            check_room_for_all(&to.map(one))
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

    const TEXT: &[u8] = b"1000 default anon=3 N0=2 N1=1 kernelpagesize_kB=4\n\
        200000 bind:0-1 huge anon=1 N0=1 kernelpagesize_kB=2048\n\
        300000 bind=static:2 anon=1 N2=1 kernelpagesize_kB=4\n\
        400000 bind:0 anon=1 N0=1 kernelpagesize_kB=4\n";

    fn survey(from: &str) -> Survey {
        Survey::read(TEXT, &from.parse().unwrap(), NodeId(1)).unwrap()
    }

    #[test]
    fn bytes_are_by_node_and_a_policy_counts_only_where_memory_is_to_move() {
        let found = survey("0");
        assert_eq!(
            (found.to_move_bytes(), found.hugetlb_bytes()),
            (3 * 4096, 2 << 20)
        );
        assert_eq!(found.far_bytes(), 3 * 4096 + (2 << 20));
        let by_node: Vec<_> = found
            .by_node()
            .iter()
            .map(|on| (on.node.0, on.bytes))
            .collect();
        assert_eq!(by_node, [(0, 3 * 4096 + (2 << 20)), (1, 4096), (2, 4096)]);
        assert_eq!(found.bound().unwrap().1, "bind:0");
        assert_eq!(survey("2").bound().unwrap().0, 0x30_0000);
        assert_eq!(survey("3").bound(), None);
    }

    #[test]
    fn shared_pages_that_will_not_move_need_no_memory_and_no_policy() {
        let numa_maps = b"1000 default anon=3 N0=3 kernelpagesize_kB=4\n\
            9000 bind:0 file=/lib mapped=5 mapmax=7 N0=5 kernelpagesize_kB=4\n\
            20000 default anon=9 mapmax=2 N0=9 kernelpagesize_kB=4\n";
        let smaps = b"1000-4000 rw-p 0 00:00 0\nPrivate_Dirty: 0 kB\n\
            9000-e000 r-xp 0 00:00 0 /lib\nShared_Clean: 20 kB\nPrivate_Clean: 0 kB\n\
            20000-29000 rw-p 0 00:00 0\nPrivate_Dirty: 8 kB\n";
        let mut found =
            Survey::read(&numa_maps[..], &NodeSet::single(NodeId(0)), NodeId(1)).unwrap();
        assert_eq!(found.far_bytes(), 17 * 4096);
        assert!(found.bound().is_some());
        found.read_shares(&smaps[..], false).unwrap();
        assert_eq!(found.far_bytes(), 5 * 4096);
        assert_eq!(
            (found.part_bytes(), found.staying_bytes()),
            (5 * 4096, 12 * 4096)
        );
        assert_eq!(found.bound(), None);
        assert_eq!(found.by_node()[0].bytes, 17 * 4096);
    }

    #[test]
    fn pages_of_several_processes_that_move_together_count_once() {
        let numa_maps = b"9000 default anon=3 mapmax=2 N0=3 N1=1 kernelpagesize_kB=4\n";
        let smaps = b"9000-e000 rw-s 0 00:00 0\nRss: 16 kB\nPss: 8 kB\nPrivate_Dirty: 0 kB\n";
        let mut found =
            Survey::read(&numa_maps[..], &NodeSet::single(NodeId(0)), NodeId(1)).unwrap();
        found.read_shares(&smaps[..], true).unwrap();
        assert_eq!(
            (found.far_bytes(), found.part_bytes()),
            (3 * 4096, 6 * 1024)
        );
        assert_eq!(found.staying_bytes(), 0);
    }
}

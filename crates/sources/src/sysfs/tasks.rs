//! Processes: where they may run, where they ran last, and where their memory is.
//!
//! ```text
//! proc/PID/status      Cpus_allowed_list, Mems_allowed_list, VmLck, VmPin
//! proc/PID/stat        times, last CPU
//! proc/PID/numa_maps   a line a mapping: policy, and pages by node (N0=12)
//! proc/PID/sched       numa_preferred_nid
//! ```
//!
//! A process can end between two of these files: then what could not be read is unknown, and a process of which
//! neither `stat` nor `status` is left was never there. Command lines and environments are not read.

mod numa_maps;

use std::io::BufReader;

use nearfar_machine::{CpuId, CpuSet, Known, MAX_NUMBER, NodeId, NodeSet, Task};

use super::notes::{Notes, read_noted};
use crate::parallel;
use crate::tree::{Directory, Reason, Tree};
use crate::want::TaskScope;

/// `PID_MAX_LIMIT` of 64-bit kernels.
const MOST_TASKS: usize = 4_194_304;
/// Length of a clock tick as procfs counts: `USER_HZ` is 100 on every architecture that is left.
const TICK_MS: u64 = 10;
const MALFORMED: &str = "not there, or not as the kernel writes it";

/// Reads the processes that were asked for, by number.
pub(crate) fn read(tree: &Tree, scope: &TaskScope, notes: &Notes) -> Known<Vec<Task>> {
    let mut pids: Vec<i32> = match scope {
        TaskScope::None => return Known::no("not asked for"),
        TaskScope::Of(pids) => pids.clone(),
        TaskScope::All => match tree.list("proc") {
            Ok(names) => names
                .iter()
                .filter_map(|name| name.parse().ok())
                .take(MOST_TASKS)
                .collect(),
            Err(error) => return Known::no(error.to_string()),
        },
    };
    pids.retain(|&pid| pid > 0);
    pids.sort_unstable();
    pids.dedup();
    let read = parallel::map(&pids, |&pid| read_one(tree, notes, pid));
    Known::Yes(read.into_iter().flatten().collect())
}

fn read_one(tree: &Tree, notes: &Notes, pid: i32) -> Option<Task> {
    let directory = tree.directory(&format!("proc/{pid}")).ok()?;
    let stat = read_noted(&directory, "stat", notes, |bytes| {
        Stat::parse(bytes).ok_or_else(|| MALFORMED.to_owned())
    });
    let status = directory.with_bytes("status", Status::parse);
    if stat.is_none() && matches!(status, Err(Reason::Absent)) {
        return None;
    }
    let status = status.map_err(|reason| directory.unreadable("status", reason).to_string());
    let from_status =
        |line: &str| format!("{}: no usable line {line}", directory.display("status"));
    let known = |value: Option<String>, line: &str| match (&status, value) {
        (Err(because), _) => Err(because.clone()),
        (Ok(_), None) => Err(from_status(line)),
        (Ok(_), Some(value)) => Ok(value),
    };
    let field = |get: fn(&Status) -> &Option<String>| {
        status.as_ref().ok().and_then(|status| get(status).clone())
    };
    let cpus = known(field(|status| &status.cpus), "Cpus_allowed_list");
    let nodes = known(field(|status| &status.nodes), "Mems_allowed_list");
    let (memory, policies) = memory(tree, &directory);
    let no_stat = || format!("{}: {MALFORMED}", directory.display("stat"));
    Some(Task {
        pid,
        name: stat
            .as_ref()
            .map_or_else(String::new, |stat| stat.name.clone()),
        allowed_cpus: set(
            cpus,
            |text| CpuSet::parse_list(text).ok(),
            || from_status("Cpus_allowed_list"),
        ),
        allowed_nodes: set(
            nodes,
            |text| NodeSet::parse_list(text).ok(),
            || from_status("Mems_allowed_list"),
        ),
        last_cpu: stat
            .as_ref()
            .and_then(|stat| stat.last_cpu)
            .map_or_else(|| Known::no(no_stat()), Known::Yes),
        memory,
        policies,
        preferred_node: preferred_node(&directory),
        pinned_bytes: match &status {
            Ok(status) => status
                .pinned_bytes
                .map_or_else(|| Known::no(from_status("VmLck")), Known::Yes),
            Err(because) => Known::no(because.clone()),
        },
        cpu_ms: stat
            .as_ref()
            .map_or_else(|| Known::no(no_stat()), |stat| Known::Yes(stat.cpu_ms)),
    })
}

fn set<T>(
    text: Result<String, String>,
    parse: impl Fn(&str) -> Option<T>,
    because: impl Fn() -> String,
) -> Known<T> {
    match text {
        Ok(text) => parse(&text).map_or_else(|| Known::no(because()), Known::Yes),
        Err(because) => Known::no(because),
    }
}

type Memory = (
    Known<Vec<nearfar_machine::NodeBytes>>,
    Known<Vec<nearfar_machine::PolicyBytes>>,
);

/// `numa_maps` of a process that belongs to somebody else opens and then fails, or gives nothing at all.
fn memory(tree: &Tree, directory: &Directory<'_>) -> Memory {
    let path = format!("{}/numa_maps", directory.path());
    let because = match tree.file(&path) {
        Ok(file) => match numa_maps::read(BufReader::with_capacity(64 << 10, file)) {
            Ok(maps) => return (Known::Yes(maps.nodes()), Known::Yes(maps.policies())),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                tree.unreadable(&path, Reason::Denied).to_string()
            }
            Err(error) => format!("{}: {error}", tree.display(&path)),
        },
        Err(error) => error.to_string(),
    };
    (Known::no(because.clone()), Known::no(because))
}

/// `numa_preferred_nid`, which `sched` has with CONFIG_SCHED_DEBUG and CONFIG_NUMA_BALANCING; -1 is none.
fn preferred_node(directory: &Directory<'_>) -> Known<Option<NodeId>> {
    let found = directory.with_bytes("sched", |bytes| {
        let text = String::from_utf8_lossy(bytes);
        // The name of the process stands in the first line and could say anything.
        let line = text
            .lines()
            .skip(1)
            .find_map(|line| line.trim_start().strip_prefix("numa_preferred_nid"));
        line.and_then(|rest| {
            rest.trim_start_matches([' ', '\t', ':'])
                .trim_end()
                .parse::<i64>()
                .ok()
        })
    });
    match found {
        Ok(Some(-1)) => Known::Yes(None),
        Ok(Some(node @ 0..)) if node <= MAX_NUMBER.into() => Known::Yes(Some(NodeId(node as u32))),
        Ok(_) => Known::no(format!(
            "{}: no numa_preferred_nid in it",
            directory.display("sched")
        )),
        Err(reason) => Known::no(directory.unreadable("sched", reason).to_string()),
    }
}

/// What is of interest in `status`.
#[derive(Default)]
struct Status {
    cpus: Option<String>,
    nodes: Option<String>,
    pinned_bytes: Option<u64>,
}

impl Status {
    fn parse(bytes: &[u8]) -> Self {
        let mut status = Self::default();
        // Kernel threads have no memory of their own and no such lines.
        let mut pinned = 0;
        for line in bytes.split(|&byte| byte == b'\n') {
            let Ok(line) = std::str::from_utf8(line) else {
                continue;
            };
            match line.split_once(':') {
                Some(("Cpus_allowed_list", list)) => status.cpus = Some(list.trim().to_owned()),
                Some(("Mems_allowed_list", list)) => status.nodes = Some(list.trim().to_owned()),
                Some(("VmLck" | "VmPin", size)) => match kilobytes(size) {
                    Some(bytes) => pinned = bytes.saturating_add(pinned),
                    None => {
                        return Self {
                            pinned_bytes: None,
                            ..status
                        };
                    }
                },
                _ => {}
            }
        }
        status.pinned_bytes = Some(pinned);
        status
    }
}

fn kilobytes(text: &str) -> Option<u64> {
    let number: u64 = text.trim().strip_suffix("kB")?.trim().parse().ok()?;
    number.checked_mul(1024)
}

/// What is of interest in `stat`.
struct Stat {
    name: String,
    cpu_ms: u64,
    last_cpu: Option<CpuId>,
}

impl Stat {
    /// `1 (a (strange) name) S ...`: the name ends at the last parenthesis, whatever is in it. Field numbers as in
    /// proc(5), which counts from 1; the state is the third.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let open = bytes.iter().position(|&byte| byte == b'(')?;
        let close = bytes.iter().rposition(|&byte| byte == b')')?;
        let name = bytes.get(open + 1..close)?;
        let fields = std::str::from_utf8(bytes.get(close + 1..)?).ok()?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        let ticks = number(14)?.saturating_add(number(15)?);
        let last_cpu = number(39)
            .filter(|&cpu| cpu <= MAX_NUMBER.into())
            .map(|cpu| CpuId(cpu as u32));
        Some(Self {
            name: printable(name),
            cpu_ms: ticks.saturating_mul(TICK_MS),
            last_cpu,
        })
    }
}

/// A process may call itself anything: what would move a terminal's cursor is replaced.
fn printable(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    name.chars()
        .map(|c| {
            if c.is_control() {
                char::REPLACEMENT_CHARACTER
            } else {
                c
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_parentheses_newlines_and_no_text() {
        let rest = " S 1 2 3 0 -1 4194560 1 2 3 4 120 30 5 6 20 0 1 0 100 2048 300 1 1 1 1 1 1 0 0 0 0 0 0 0 17 5 0 0 0";
        for (name, shown) in [("a) R (b", "a) R (b"), ("x\ny", "x\u{fffd}y"), ("", "")] {
            let stat = Stat::parse(format!("7 ({name}){rest}").as_bytes()).unwrap();
            assert_eq!((stat.name.as_str(), stat.cpu_ms), (shown, 1500));
            assert_eq!(stat.last_cpu, Some(CpuId(5)));
        }
        let odd = [b"7 (\xff\x1b[2J)".as_slice(), rest.as_bytes()].concat();
        assert_eq!(Stat::parse(&odd).unwrap().name, "\u{fffd}\u{fffd}[2J");
    }

    #[test]
    fn locked_and_pinned_memory_is_added_up_and_a_kernel_thread_has_none() {
        let status = Status::parse(
            b"Name:\tx\nVmLck:\t      64 kB\nVmPin:\t 4 kB\nMems_allowed_list:\t0-1\n",
        );
        assert_eq!(status.pinned_bytes, Some(68 * 1024));
        assert_eq!(status.nodes.as_deref(), Some("0-1"));
        assert_eq!(Status::parse(b"Name:\tkthreadd\n").pinned_bytes, Some(0));
        assert_eq!(
            Status::parse(b"VmLck:\t99999999999999999999 kB\n").pinned_bytes,
            None
        );
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, text in "[0-9() \n:a-zA-Z_]{0,300}") {
            for bytes in [bytes.as_slice(), text.as_bytes()] {
                Stat::parse(bytes);
                Status::parse(bytes);
            }
        }
    }
}

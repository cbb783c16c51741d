//! How large the buffers should be, and how large they may be: the caches decide, memory and time limit.

use std::path::Path;
use std::time::Duration;

use nearfar_machine::{Cache, CpuSet, Emulation, Machine, NodeId};
use nearfar_proc::{cgroup, meminfo, tasks};

use crate::options::{ProbeError, ProbeOptions};
use crate::warning::Warning;

/// Buffers are at least this large, whatever the caches say.
const DEFAULT_MIN_BYTES: u64 = 64 << 20;
/// The same on an emulated machine, whose caches are small and whose time is dear.
const DEFAULT_MIN_BYTES_EMULATED: u64 = 32 << 20;
/// Below this a chase would measure caches and nothing else on any machine of today.
const MIN_BYTES: u64 = 4 << 20;
/// How many times the last-level cache a buffer should be.
const CACHE_MULTIPLE: u64 = 4;
/// How many times what all caches hold, when several CPUs work on the buffer.
const ALL_CACHES_MULTIPLE: u64 = 2;
/// A line number fits 32 bits, and no cache asks for more.
const MAX_BYTES: u64 = 16 << 30;
/// Bytes a second that mapping, clearing and linking go at when huge pages lack: a cautious guess.
const PREPARED_BYTES_PER_S: f64 = 1.0e9;
/// The same under emulation in the host's time, with delays.
const PREPARED_BYTES_PER_S_EMULATED: f64 = 80.0e6;
/// The share of the budget that preparation may take.
const MAX_PREPARATION_SHARE: f64 = 0.4;

/// What the buffers are for. One CPU at a time reads them in any case.
#[derive(Clone, Default, Debug)]
pub(crate) struct Use {
    /// CPUs that then read a buffer together, each a part of its own.
    pub(crate) groups: Vec<CpuSet>,
    /// Whether these use a half of it, and one CPU the other.
    pub(crate) is_halved: bool,
    /// How many buffers more there are than nodes.
    pub(crate) more: u64,
}

/// The size decided on.
#[derive(Debug, PartialEq)]
pub(crate) struct BufferSize {
    pub(crate) buffer_bytes: u64,
    /// As much of the buffer as one CPU needs.
    pub(crate) one_cpu_bytes: u64,
    pub(crate) line_bytes: u64,
    pub(crate) last_level_cache_bytes: Option<u64>,
    pub(crate) warnings: Vec<Warning>,
}

/// A reason to keep buffers small, and the size it allows.
struct Limit {
    bytes: u64,
    reason: String,
}

/// Decides the size of the buffers on these nodes: as it was asked for where memory can hold that at all.
///
/// # Errors
/// When the size that was asked for is larger than memory, or so small that only caches would be measured.
pub(crate) fn decide(
    machine: &Machine,
    nodes: &[NodeId],
    options: &ProbeOptions,
    used_by: &Use,
    spare: Option<u64>,
) -> Result<BufferSize, ProbeError> {
    if let Some(bytes) = options.buffer_bytes {
        check_asked(machine, nodes, bytes, spare)?;
    }
    Ok(size_of(machine, nodes, options, used_by, spare))
}

fn check_asked(
    machine: &Machine,
    nodes: &[NodeId],
    bytes: u64,
    spare: Option<u64>,
) -> Result<(), ProbeError> {
    if bytes < MIN_BYTES {
        return Err(ProbeError::BufferTooSmall {
            bytes,
            least: MIN_BYTES,
        });
    }
    let mebibytes = |bytes: u64| format!("{} MiB", bytes >> 20);
    let of_nodes = nodes.iter().filter_map(|&node| {
        let total = machine.node(node)?.memory.get()?.total_bytes;
        Some((
            total,
            format!("node {node} has {} of memory", mebibytes(total)),
        ))
    });
    let of_process = spare.map(|spare| {
        let each = spare / nodes.len().max(1) as u64;
        (
            each,
            format!(
                "this process may take {} more memory, for {} nodes together",
                mebibytes(spare),
                nodes.len()
            ),
        )
    });
    let most = (MAX_BYTES, format!("the most is {}", mebibytes(MAX_BYTES)));
    let least = of_nodes
        .chain(of_process)
        .chain([most])
        .min_by_key(|(limit, _)| *limit);
    match least {
        Some((limit, reason)) if limit < bytes => Err(ProbeError::BufferTooLarge { bytes, reason }),
        _ => Ok(()),
    }
}

pub(crate) fn size_of(
    machine: &Machine,
    nodes: &[NodeId],
    options: &ProbeOptions,
    used_by: &Use,
    spare: Option<u64>,
) -> BufferSize {
    let last_level_cache_bytes = last_level_cache(machine);
    let line_bytes = machine
        .caches
        .iter()
        .filter_map(|cache| cache.line_bytes)
        .max()
        .unwrap_or(64);
    // A line of 512 bytes is the largest there is; a wrong file must not make the stride absurd.
    let line_bytes = u64::from(line_bytes).clamp(64, 512).next_power_of_two();
    let least = if machine.origin.emulation.is_some() {
        DEFAULT_MIN_BYTES_EMULATED
    } else {
        DEFAULT_MIN_BYTES
    };
    let for_one = last_level_cache_bytes.map_or(0, |bytes| bytes.saturating_mul(CACHE_MULTIPLE));
    let groups = used_by.groups.iter();
    let for_all = groups.map(|group| all_caches(machine, group)).max();
    let times = ALL_CACHES_MULTIPLE * if used_by.is_halved { 2 } else { 1 };
    let for_all = for_all.unwrap_or(0).saturating_mul(times);
    let by_cache = for_one.max(for_all);
    let wanted = options
        .buffer_bytes
        .unwrap_or(by_cache.max(least))
        .clamp(MIN_BYTES, MAX_BYTES);
    let count = (nodes.len() as u64 + used_by.more).max(1);
    let limit = limits(machine, nodes, count, options.budget, spare)
        .into_iter()
        .min_by_key(|limit| limit.bytes);
    let mut warnings = Vec::new();
    if last_level_cache_bytes.is_none() {
        warnings.push(Warning::UnknownCache);
    }
    let mut buffer_bytes = wanted;
    if let Some(limit) = limit.filter(|limit| limit.bytes.max(MIN_BYTES) < wanted) {
        buffer_bytes = limit.bytes.max(MIN_BYTES);
        let reason = limit.reason;
        warnings.push(Warning::SmallBuffer {
            wanted_bytes: wanted,
            got_bytes: buffer_bytes,
            reason,
        });
    } else if wanted < by_cache {
        let reason = "that size was asked for".to_owned();
        warnings.push(Warning::SmallBuffer {
            wanted_bytes: by_cache,
            got_bytes: wanted,
            reason,
        });
    }
    // Whole megabytes, so that huge pages can fill them.
    let whole = |bytes: u64| bytes & !((2 << 20) - 1);
    let buffer_bytes = whole(buffer_bytes);
    let one_cpu_bytes = match options.buffer_bytes {
        Some(_) => buffer_bytes,
        None => whole(for_one.max(least)).min(buffer_bytes),
    };
    BufferSize {
        buffer_bytes,
        one_cpu_bytes,
        line_bytes,
        last_level_cache_bytes,
        warnings,
    }
}

/// What limits each of so many buffers, which together are spread evenly over the nodes.
fn limits(
    machine: &Machine,
    nodes: &[NodeId],
    count: u64,
    budget: Duration,
    spare: Option<u64>,
) -> Vec<Limit> {
    // In simulated time it is not part of the budget.
    let emulation = machine.origin.emulation.as_ref();
    let speed = match emulation.map(Emulation::is_simulated) {
        Some(true) => f64::INFINITY,
        Some(false) => PREPARED_BYTES_PER_S_EMULATED,
        None => PREPARED_BYTES_PER_S,
    };
    let by_time = budget.as_secs_f64() * MAX_PREPARATION_SHARE * speed / count as f64;
    let by_time = Limit {
        bytes: by_time as u64,
        reason: "a larger one could not be prepared in the time".into(),
    };
    let by_node = nodes.iter().filter_map(|&node| {
        let free = machine.node(node)?.memory.get()?.free_bytes?;
        Some(Limit {
            bytes: free / 2 / count * nodes.len() as u64,
            reason: format!("node {node} has {} MiB free", free >> 20),
        })
    });
    let by_spare = spare.map(|spare| Limit {
        bytes: spare / 2 / count,
        reason: format!("this process may take {} MiB more memory", spare >> 20),
    });
    by_node.chain(by_spare).chain([by_time]).collect()
}

/// The largest last-level cache, in bytes, as far as sizes are known: the one that is modelled where that is known.
pub(crate) fn last_level_cache(machine: &Machine) -> Option<u64> {
    let modelled = machine.origin.emulation.as_ref().and_then(modelled_cache);
    modelled.or_else(|| machine.last_level_caches().filter_map(size).max())
}

fn size(cache: &Cache) -> Option<u64> {
    cache.size_bytes.get().copied()
}

/// The cache that a guest with delays has, in bytes (docs/delays.md). The caches that such a guest lists itself are those of
/// the processor that QEMU imitates, which delay nothing.
fn modelled_cache(emulation: &Emulation) -> Option<u64> {
    Some(emulation.delays()?.cache.bytes)
}

/// How large a buffer is of which each of these CPUs has an equal part, and the parts of those that share a last-level cache fill it,
/// whichever that is; of the size that is modelled where that is known.
pub(crate) fn all_caches(machine: &Machine, group: &CpuSet) -> u64 {
    let modelled = machine.origin.emulation.as_ref().and_then(modelled_cache);
    let needs = machine.last_level_caches().filter_map(|cache| {
        let sharing = cache.cpus.intersection(group).len() as u64;
        let bytes = modelled.or_else(|| size(cache))?;
        bytes
            .saturating_mul(group.len() as u64)
            .checked_div(sharing)
    });
    needs.max().unwrap_or(0)
}

/// How much memory this process may still take: what the system has available, or what its control group leaves
/// it, whichever is less. A probe must not get anybody killed for lack of memory.
pub(crate) fn spare_memory() -> Option<u64> {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let available = std::fs::read("/proc/meminfo").ok();
    let available = available.and_then(|content| meminfo::bytes(&content, "MemAvailable"));
    let groups = tasks::groups(std::process::id().cast_signed()).unwrap_or_default();
    let below_limit = |directory: &Path, limit: &str, used: &str| {
        let number = |file: &str| read(&directory.join(file))?.trim().parse::<u64>().ok();
        Some(number(limit)?.saturating_sub(number(used)?))
    };
    let unified = cgroup::groups(&groups).find(|group| group.version_2);
    let unified = unified.map_or(Path::new(""), |group| group.path);
    let unified = Path::new("/sys/fs/cgroup").join(unified.strip_prefix("/").unwrap_or(unified));
    let ancestors = unified
        .ancestors()
        .take_while(|directory| directory.starts_with("/sys/fs/cgroup"));
    let groups =
        ancestors.filter_map(|directory| below_limit(directory, "memory.max", "memory.current"));
    let version_1 = below_limit(
        Path::new("/sys/fs/cgroup/memory"),
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
    );
    groups.chain(version_1).chain(available).min()
}

#[cfg(test)]
mod tests {
    use nearfar_machine::{Cache, CpuId, CpuSet, Known, Memory, Node, Origin, SourceKind};

    use nearfar_machine::{
        Acceleration, Bandwidth, CacheKind, CacheModel, Delays, EmulatedGuest, NodeDelay,
        NodeLimits,
    };

    use super::*;

    fn machine(cache: Option<u64>, free: u64) -> Machine {
        let mut machine = Machine::empty(Origin::new(SourceKind::Live, "test"), "test");
        let mut node = Node::new(NodeId(0), CpuSet::single(CpuId(0)));
        node.memory = Known::Yes(Memory {
            free_bytes: Some(free),
            ..Memory::of(1 << 40)
        });
        machine.nodes.push(node);
        machine.caches.extend(cache.map(|bytes| Cache {
            level: 3,
            kind: CacheKind::Unified,
            cpus: CpuSet::single(CpuId(0)),
            size_bytes: Known::Yes(bytes),
            line_bytes: Some(64),
            ways: None,
        }));
        machine
    }

    fn buffer_size(machine: &Machine, spare: Option<u64>) -> BufferSize {
        decide(
            machine,
            &[NodeId(0)],
            &ProbeOptions::default(),
            &Use::default(),
            spare,
        )
        .unwrap()
    }

    #[test]
    fn a_size_that_memory_cannot_hold_is_refused_with_the_limit() {
        let asked = |bytes, spare| {
            let options = ProbeOptions {
                buffer_bytes: Some(bytes),
                ..ProbeOptions::default()
            };
            decide(
                &machine(Some(32 << 20), 1 << 40),
                &[NodeId(0)],
                &options,
                &Use::default(),
                spare,
            )
        };
        let refused = |bytes, spare| asked(bytes, spare).unwrap_err().to_string();
        assert!(refused(99_999 << 40, None).contains("the most is 16384 MiB"));
        assert!(refused(2 << 30, Some(1 << 30)).contains("may take 1024 MiB more memory"));
        assert!(refused(1 << 20, None).contains("less than 4194304"));
        assert!(asked(64 << 20, Some(1 << 30)).is_ok());
        let mut small = machine(None, 1 << 30);
        small.nodes[0].memory = Known::Yes(Memory::of(8 << 30));
        let options = ProbeOptions {
            buffer_bytes: Some(9 << 30),
            ..ProbeOptions::default()
        };
        let error = decide(&small, &[NodeId(0)], &options, &Use::default(), None).unwrap_err();
        assert!(
            error.to_string().contains("node 0 has 8192 MiB of memory"),
            "{error}"
        );
    }

    #[test]
    fn a_buffer_is_four_times_the_cache_and_at_least_64_mib() {
        assert_eq!(
            buffer_size(&machine(Some(32 << 20), 1 << 40), None).buffer_bytes,
            128 << 20
        );
        assert_eq!(
            buffer_size(&machine(Some(1 << 20), 1 << 40), None).buffer_bytes,
            64 << 20
        );
        let unknown = buffer_size(&machine(None, 1 << 40), None);
        assert_eq!(
            (unknown.buffer_bytes, unknown.warnings),
            (64 << 20, vec![Warning::UnknownCache])
        );
    }

    #[test]
    fn a_buffer_shrinks_to_half_of_what_is_free_and_says_so() {
        for (free, spare) in [(80 << 20, None), (1 << 40, Some(80 << 20))] {
            let size = buffer_size(&machine(Some(32 << 20), free), spare);
            assert_eq!(size.buffer_bytes, 40 << 20);
            assert!(
                matches!(size.warnings[..], [Warning::SmallBuffer { wanted_bytes, .. }] if wanted_bytes == 128 << 20)
            );
        }
    }

    #[test]
    fn all_cpus_together_need_more_than_all_their_caches() {
        let mut machine = machine(Some(32 << 20), 1 << 40);
        machine.nodes[0].cpus = CpuSet::range(CpuId(0), CpuId(2)).into();
        for cpu in [1, 2] {
            let cpus = CpuSet::single(CpuId(cpu));
            machine.caches.push(Cache {
                cpus,
                ..machine.caches[0].clone()
            });
        }
        let options = ProbeOptions::default();
        let mut together = Use {
            groups: vec![CpuSet::range(CpuId(0), CpuId(2))],
            ..Use::default()
        };
        let size = decide(&machine, &[NodeId(0)], &options, &together, None).unwrap();
        assert_eq!(
            (size.one_cpu_bytes, size.buffer_bytes),
            (128 << 20, 192 << 20)
        );
        let asked = ProbeOptions {
            buffer_bytes: Some(16 << 20),
            ..options
        };
        let size = decide(&machine, &[NodeId(0)], &asked, &together, None).unwrap();
        assert_eq!(
            (size.one_cpu_bytes, size.buffer_bytes),
            (16 << 20, 16 << 20)
        );
        assert!(matches!(size.warnings[..], [Warning::SmallBuffer { .. }]));
        // Of two CPUs of one cache and one of another, that one has a third of the half; and there is one buffer more.
        machine.caches.truncate(2);
        machine.caches[0].cpus = CpuSet::range(CpuId(0), CpuId(1));
        machine.caches[1].cpus = CpuSet::single(CpuId(2));
        (together.is_halved, together.more) = (true, 1);
        let options = ProbeOptions {
            buffer_bytes: None,
            ..asked
        };
        let mut size = |free| {
            machine.nodes[0].memory = Known::Yes(Memory {
                free_bytes: Some(free),
                ..Memory::of(1 << 40)
            });
            decide(&machine, &[NodeId(0)], &options, &together, None).unwrap()
        };
        assert_eq!(size(1 << 40).buffer_bytes, 2 * 2 * 3 * (32 << 20));
        assert_eq!(size(256 << 20).buffer_bytes, 64 << 20);
    }

    #[test]
    fn an_emulated_machine_is_content_with_less() {
        let mut machine = machine(Some(2 << 20), 1 << 40);
        machine.origin.emulation = Some(Emulation::Label("emulated machine".to_owned()));
        assert_eq!(buffer_size(&machine, None).buffer_bytes, 32 << 20);
    }

    #[test]
    fn the_cache_of_delays_counts_and_not_that_of_the_imitated_processor() {
        let mut machine = machine(Some(16 << 20), 1 << 40);
        let delays = Delays {
            pairs: Vec::new(),
            cache: CacheModel {
                bytes: 12 << 20,
                ways: 16,
                hit_ns: 0,
            },
            transfer: NodeDelay {
                same_node_ns: 5,
                other_node_ns: 9,
                is_by_distance: false,
            }
            .into(),
            bandwidth: Bandwidth::default(),
            device: None,
        };
        let mut guest = EmulatedGuest {
            machine: "x".to_owned(),
            node_limits: NodeLimits::default(),
            kernel: "6.12".to_owned(),
            kernel_arguments: Vec::new(),
            architecture: "x86_64".to_owned(),
            acceleration: Acceleration::Tcg,
            qemu: None,
            delays: Some(delays),
            simulated_time: None,
        };
        machine.origin.emulation = Some(guest.clone().into());
        assert_eq!(buffer_size(&machine, None).buffer_bytes, 48 << 20);
        guest.delays = None;
        machine.origin.emulation = Some(guest.into());
        assert_eq!(buffer_size(&machine, None).buffer_bytes, 64 << 20);
    }

    #[test]
    fn absurd_caches_and_no_memory_leave_a_buffer_that_can_be_had() {
        assert!(buffer_size(&machine(Some(u64::MAX), 1 << 60), None).buffer_bytes <= MAX_BYTES);
        assert_eq!(
            buffer_size(&machine(Some(32 << 20), 0), Some(0)).buffer_bytes,
            MIN_BYTES
        );
    }
}

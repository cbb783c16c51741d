//! How often an event occurs in a process and those that it starts, as `perf stat` counts it.

use std::fmt;
use std::io;
use std::str::FromStr;

use perf_event_open_sys::bindings::{
    PERF_COUNT_HW_BRANCH_INSTRUCTIONS, PERF_COUNT_HW_BRANCH_MISSES, PERF_COUNT_HW_BUS_CYCLES,
    PERF_COUNT_HW_CACHE_BPU, PERF_COUNT_HW_CACHE_DTLB, PERF_COUNT_HW_CACHE_ITLB,
    PERF_COUNT_HW_CACHE_L1D, PERF_COUNT_HW_CACHE_L1I, PERF_COUNT_HW_CACHE_LL,
    PERF_COUNT_HW_CACHE_MISSES, PERF_COUNT_HW_CACHE_NODE, PERF_COUNT_HW_CACHE_OP_PREFETCH,
    PERF_COUNT_HW_CACHE_OP_READ, PERF_COUNT_HW_CACHE_OP_WRITE, PERF_COUNT_HW_CACHE_REFERENCES,
    PERF_COUNT_HW_CACHE_RESULT_ACCESS, PERF_COUNT_HW_CACHE_RESULT_MISS, PERF_COUNT_HW_CPU_CYCLES,
    PERF_COUNT_HW_INSTRUCTIONS, PERF_COUNT_HW_REF_CPU_CYCLES, PERF_COUNT_HW_STALLED_CYCLES_BACKEND,
    PERF_COUNT_HW_STALLED_CYCLES_FRONTEND, PERF_COUNT_SW_CONTEXT_SWITCHES,
    PERF_COUNT_SW_CPU_MIGRATIONS, PERF_COUNT_SW_PAGE_FAULTS, PERF_COUNT_SW_PAGE_FAULTS_MAJ,
    PERF_COUNT_SW_PAGE_FAULTS_MIN, PERF_FORMAT_TOTAL_TIME_ENABLED, PERF_FORMAT_TOTAL_TIME_RUNNING,
    PERF_TYPE_HARDWARE, PERF_TYPE_HW_CACHE, PERF_TYPE_RAW, PERF_TYPE_SOFTWARE, perf_event_attr,
};

use crate::TraceError;
use crate::open::PerfEvent;

/// An event that can be counted, by its name in perf-list(1): `cycles`, `node-load-misses`, `page-faults`, or a CPU's own, `r1d3`.
#[derive(Clone, Debug)]
pub struct CountableEvent {
    name: String,
    kind: u32,
    config: u64,
}

impl CountableEvent {
    /// Whether it is another name of the same event.
    pub fn is(&self, other: &Self) -> bool {
        (self.kind, self.config) == (other.kind, other.config)
    }

    /// Whether it never occurs in user space.
    fn is_of_kernel(&self) -> bool {
        let of_kernel = [PERF_COUNT_SW_CONTEXT_SWITCHES, PERF_COUNT_SW_CPU_MIGRATIONS];
        self.kind == PERF_TYPE_SOFTWARE && of_kernel.map(u64::from).contains(&self.config)
    }
}

impl fmt::Display for CountableEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

const SOFTWARE: [(&str, u32); 8] = [
    ("page-faults", PERF_COUNT_SW_PAGE_FAULTS),
    ("minor-faults", PERF_COUNT_SW_PAGE_FAULTS_MIN),
    ("major-faults", PERF_COUNT_SW_PAGE_FAULTS_MAJ),
    ("context-switches", PERF_COUNT_SW_CONTEXT_SWITCHES),
    ("cpu-migrations", PERF_COUNT_SW_CPU_MIGRATIONS),
    ("faults", PERF_COUNT_SW_PAGE_FAULTS),
    ("cs", PERF_COUNT_SW_CONTEXT_SWITCHES),
    ("migrations", PERF_COUNT_SW_CPU_MIGRATIONS),
];
const HARDWARE: [(&str, u32); 12] = [
    ("cycles", PERF_COUNT_HW_CPU_CYCLES),
    ("instructions", PERF_COUNT_HW_INSTRUCTIONS),
    ("cache-references", PERF_COUNT_HW_CACHE_REFERENCES),
    ("cache-misses", PERF_COUNT_HW_CACHE_MISSES),
    ("branches", PERF_COUNT_HW_BRANCH_INSTRUCTIONS),
    ("branch-misses", PERF_COUNT_HW_BRANCH_MISSES),
    ("bus-cycles", PERF_COUNT_HW_BUS_CYCLES),
    (
        "stalled-cycles-frontend",
        PERF_COUNT_HW_STALLED_CYCLES_FRONTEND,
    ),
    (
        "stalled-cycles-backend",
        PERF_COUNT_HW_STALLED_CYCLES_BACKEND,
    ),
    ("ref-cycles", PERF_COUNT_HW_REF_CPU_CYCLES),
    ("cpu-cycles", PERF_COUNT_HW_CPU_CYCLES),
    ("branch-instructions", PERF_COUNT_HW_BRANCH_INSTRUCTIONS),
];
/// Events of these are their name and one of [`OPERATIONS`].
const CACHES: [(&str, u32); 7] = [
    ("L1-dcache", PERF_COUNT_HW_CACHE_L1D),
    ("L1-icache", PERF_COUNT_HW_CACHE_L1I),
    ("LLC", PERF_COUNT_HW_CACHE_LL),
    ("dTLB", PERF_COUNT_HW_CACHE_DTLB),
    ("iTLB", PERF_COUNT_HW_CACHE_ITLB),
    ("branch", PERF_COUNT_HW_CACHE_BPU),
    ("node", PERF_COUNT_HW_CACHE_NODE),
];
const OPERATIONS: [(&str, u32, u32); 6] = {
    const ACCESS: u32 = PERF_COUNT_HW_CACHE_RESULT_ACCESS;
    const MISS: u32 = PERF_COUNT_HW_CACHE_RESULT_MISS;
    [
        ("loads", PERF_COUNT_HW_CACHE_OP_READ, ACCESS),
        ("load-misses", PERF_COUNT_HW_CACHE_OP_READ, MISS),
        ("stores", PERF_COUNT_HW_CACHE_OP_WRITE, ACCESS),
        ("store-misses", PERF_COUNT_HW_CACHE_OP_WRITE, MISS),
        ("prefetches", PERF_COUNT_HW_CACHE_OP_PREFETCH, ACCESS),
        ("prefetch-misses", PERF_COUNT_HW_CACHE_OP_PREFETCH, MISS),
    ]
};

impl FromStr for CountableEvent {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let of = |table: &[(&str, u32)]| {
            let found = table.iter().find(|(known, _)| *known == name);
            found.map(|(_, number)| u64::from(*number))
        };
        let of_cache = || {
            CACHES.iter().find_map(|(cache, number)| {
                let what = name.strip_prefix(cache)?.strip_prefix('-')?;
                let (_, operation, result) = OPERATIONS.iter().find(|(it, ..)| *it == what)?;
                // "config" of PERF_TYPE_HW_CACHE, perf_event_open(2).
                Some(u64::from(number | operation << 8 | result << 16))
            })
        };
        let of_cpu = || {
            let digits = name.strip_prefix('r')?;
            let is_number = digits.bytes().all(|it| it.is_ascii_hexdigit());
            is_number.then(|| u64::from_str_radix(digits, 16).ok())?
        };
        let (kind, config) = of(&SOFTWARE)
            .map(|config| (PERF_TYPE_SOFTWARE, config))
            .or_else(|| of(&HARDWARE).map(|config| (PERF_TYPE_HARDWARE, config)))
            .or_else(|| of_cache().map(|config| (PERF_TYPE_HW_CACHE, config)))
            .or_else(|| of_cpu().map(|config| (PERF_TYPE_RAW, config)))
            .ok_or_else(|| {
"not an event: expected one of perf's generic ones, such as cycles, cache-misses, LLC-load-misses, node-load-misses, \
                 page-faults, or a CPU's own, r and a hexadecimal number"
                    .to_owned()
            })?;
        Ok(Self {
            name: name.to_owned(),
            kind,
            config,
        })
    }
}

/// When a process is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CountedFrom {
    /// From its next execve(2) on.
    Exec,
    /// From [`ProcessCounter::begin`] on.
    Begin,
}

/// A counter of one event in a process and those that it starts from now on.
pub struct ProcessCounter {
    event: PerfEvent,
    is_of_user_space: bool,
}

/// What was counted.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ProcessCount {
    /// Extrapolated, where the counter was another event's part of the time.
    pub count: f64,
    /// The share of the time in which it was this event's.
    pub share: f64,
}

impl ProcessCounter {
    /// Of a process; 0 is this one. Without permission to count the kernel's part, what is in user space is counted.
    ///
    /// # Errors
    /// Without permission; an event that the CPU or the kernel does not have.
    pub fn open(event: &CountableEvent, pid: i32, from: CountedFrom) -> Result<Self, TraceError> {
        let mut attributes = perf_event_attr {
            type_: event.kind,
            size: size_of::<perf_event_attr>() as u32,
            config: event.config,
            read_format: u64::from(PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING),
            ..Default::default()
        };
        attributes.set_disabled(1);
        attributes.set_inherit(1);
        attributes.set_enable_on_exec((from == CountedFrom::Exec).into());
        let mut opened = PerfEvent::of_process(&mut attributes, pid);
        let is_denied = |it: &io::Result<_>| {
            it.as_ref()
                .is_err_and(|it| it.kind() == io::ErrorKind::PermissionDenied)
        };
        let is_of_user_space = is_denied(&opened) && !event.is_of_kernel();
        if is_of_user_space {
            attributes.set_exclude_kernel(1);
            attributes.set_exclude_hv(1);
            opened = PerfEvent::of_process(&mut attributes, pid);
        }
        let opened = opened.map_err(|source| TraceError::NotCounted {
            event: event.name.clone(),
            source,
        })?;
        Ok(Self {
            event: opened,
            is_of_user_space,
        })
    }

    /// Whether only what happens in user space is counted.
    pub fn is_of_user_space(&self) -> bool {
        self.is_of_user_space
    }

    /// Counts from now on.
    ///
    /// # Errors
    /// The system's answer.
    pub fn begin(&self) -> io::Result<()> {
        self.event.enable()
    }

    /// What was counted until now, of processes that have ended as well; `None` where it never was this event's turn.
    ///
    /// # Errors
    /// The system's answer.
    pub fn counted(&self) -> io::Result<Option<ProcessCount>> {
        Ok(ProcessCount::of(self.event.numbers()?))
    }
}

impl ProcessCount {
    /// Of what reading an event gives: its count, the nanoseconds in which it was to be counted, and those in which it was.
    fn of([count, enabled_ns, running_ns]: [u64; 3]) -> Option<Self> {
        // The time of a process that does not run does not go on.
        let share = match enabled_ns {
            0 => 1.0,
            _ => running_ns as f64 / enabled_ns as f64,
        };
        (share > 0.0).then(|| Self {
            count: count as f64 / share,
            share,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_perfs_names() {
        let numbers = |name: &str| {
            let it: CountableEvent = name.parse().unwrap();
            assert_eq!(it.to_string(), name);
            (it.kind, it.config)
        };
        // `perf stat -vv` shows these.
        assert_eq!(numbers("page-faults"), (1, 2));
        assert_eq!(numbers("cycles"), (0, 0));
        assert_eq!(numbers("node-load-misses"), (3, 0x1_0006));
        assert_eq!(numbers("L1-dcache-stores"), (3, 0x100));
        assert_eq!(numbers("branch-misses"), (0, 5));
        assert_eq!(numbers("r1d3"), (4, 0x1d3));
        let is = |one: &str, other: &str| {
            let [one, other] = [one, other].map(|it| it.parse::<CountableEvent>().unwrap());
            one.is(&other)
        };
        assert!(is("r1d3", "r01D3") && is("faults", "page-faults") && !is("cycles", "branches"));
        for name in ["", "r", "rx", "r+1", "node", "node-", "cycles:u", "Cycles"] {
            let error = name.parse::<CountableEvent>().unwrap_err();
            assert!(error.starts_with("not an event"), "{name}: {error}");
        }
    }

    #[test]
    fn what_was_counted_in_turns_is_extrapolated() {
        let of = |numbers| ProcessCount::of(numbers).map(|it| (it.count, it.share));
        assert_eq!(of([60, 100, 100]), Some((60.0, 1.0)));
        assert_eq!(of([60, 100, 25]), Some((240.0, 0.25)));
        assert_eq!(of([0, 100, 0]), None);
        assert_eq!(of([0, 0, 0]), Some((0.0, 1.0)));
    }
}

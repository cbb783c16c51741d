//! Waits for locks, by call site.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nearfar_machine::{CpuId, Known};
use serde::{Deserialize, Serialize};

use super::{Decoder, Event, LockKind, Symbols, Waiter};
use crate::Ordered;
use crate::records::Sample;

/// What waits there were.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LockWaits {
    /// Seconds that all tasks together waited. A wait within another one counts once.
    pub wait_s: f64,
    /// Those of them in spinlocks and rwlocks, which keep the CPU busy.
    pub spin_s: f64,
    pub waits: u64,
    /// Waits whose begin or end was not seen: they had begun before, or lasted on, or an event was lost. Not in the other figures.
    pub incomplete: u64,
    /// Events that could not be parsed.
    pub unreadable: u64,
    /// Why call sites have no names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_names_reason: Option<String>,
    /// Why there may be waits for spinlocks although none is here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_spin_reason: Option<String>,
    /// By call site and kind of lock, the longest wait in all first.
    pub sites: Vec<Site>,
    /// By process, the longest wait in all first.
    #[serde(default)]
    pub processes: Vec<ProcessWaits>,
}

/// What the tasks of a process waited.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ProcessWaits {
    /// 0 for what interrupts waited for on idle CPUs.
    pub pid: i32,
    /// `None` once it has ended.
    pub name: Option<String>,
    pub waits: u64,
    pub wait_s: f64,
}

/// Where a lock is taken.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Site {
    /// The kernel function that takes the lock, or its address.
    pub call_site: String,
    pub kind: LockKind,
    pub waits: u64,
    pub wait_s: f64,
    pub longest_s: f64,
}

/// Why this kernel may take contended spinlocks without tracing them, by its /proc/cpuinfo: on x86 under a hypervisor without
/// paravirtual spinlocks it does not get to the queue, which has the tracepoints (`virt_spin_lock` in
/// arch/x86/include/asm/qspinlock.h).
fn untraced(cpuinfo: &str) -> Option<String> {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
    let is_guest = flags.is_some_and(|it| it.split_whitespace().any(|flag| flag == "hypervisor"));
    is_guest.then(|| {
        "no wait for a spinlock was seen, and an x86 kernel under a hypervisor may not trace them; booted with \
         clearcpuid=hypervisor it does"
            .to_owned()
    })
}

/// Collects events into [`LockWaits`].
#[derive(Debug)]
pub struct Waits {
    decoder: Decoder,
    order: Ordered<Event>,
    found: Found,
    unreadable: u64,
}

#[derive(Debug, Default)]
struct Found {
    /// Of each task the waits that have not ended, the innermost last.
    open: HashMap<Waiter, Vec<Open>>,
    ended: HashMap<Waited, Times>,
    incomplete: u64,
}

/// Who waited, where, for what.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Waited {
    process: i32,
    callers: Box<[u64]>,
    kind: LockKind,
}

#[derive(Debug)]
struct Open {
    lock: u64,
    since_ns: u64,
    /// Time in waits within this one.
    inner_ns: u64,
    waited: Waited,
}

#[derive(Clone, Copy, Debug, Default)]
struct Times {
    waits: u64,
    wait_ns: u64,
    longest_ns: u64,
}

impl Times {
    fn wait_s(self) -> f64 {
        self.wait_ns as f64 / 1e9
    }

    fn add(&mut self, other: Self) {
        self.waits += other.waits;
        self.wait_ns += other.wait_ns;
        self.longest_ns = self.longest_ns.max(other.longest_ns);
    }
}

impl Waits {
    pub fn new(decoder: Decoder) -> Self {
        let (order, found) = (Ordered::default(), Found::default());
        Self {
            decoder,
            order,
            found,
            unreadable: 0,
        }
    }

    /// Takes an event.
    pub fn take(&mut self, cpu: CpuId, sample: &Sample<'_>) {
        match self.decoder.decode(cpu, sample) {
            Some(event) => self.order.push(sample.time_ns, event),
            None => self.unreadable += 1,
        }
    }

    /// Every CPU's events have been read once more.
    pub fn end_round(&mut self) {
        let found = &mut self.found;
        self.order
            .end_round(&mut |time, event| found.take(time, event));
    }

    /// Nothing more will come. Waits of all tasks, or of those of some processes; events that are incomplete or unreadable are
    /// counted for all. `cpuinfo`: the machine's /proc/cpuinfo, which says whether it may take contended spinlocks untraced.
    pub fn finish(
        self,
        symbols: &Known<Symbols>,
        processes: Option<&BTreeSet<i32>>,
        cpuinfo: &str,
    ) -> LockWaits {
        let mut found = self.found;
        self.order
            .finish(&mut |time, event| found.take(time, event));
        // A wait of any process shows that the kernel traces them.
        let has_spun = found.ended.keys().any(|it| it.kind.is_spinning());
        if let Some(processes) = processes {
            found.ended.retain(|it, _| processes.contains(&it.process));
        }
        let answer = found.answer(symbols, self.unreadable);
        LockWaits {
            no_spin_reason: untraced(cpuinfo).filter(|_| !has_spun),
            ..answer
        }
    }
}

impl Found {
    fn take(&mut self, time_ns: u64, event: Event) {
        match event {
            Event::Began {
                waiter,
                process,
                lock,
                kind,
                callers,
            } => {
                let open = self.open.entry(waiter).or_default();
                // A mutex is first spun for, then slept for: two begins, one end (kernel/locking/mutex.c).
                if open.last().is_none_or(|it| it.lock != lock) {
                    open.push(Open {
                        lock,
                        since_ns: time_ns,
                        inner_ns: 0,
                        waited: Waited {
                            process,
                            callers,
                            kind,
                        },
                    });
                }
            }
            Event::Ended { waiter, lock } => self.end(waiter, lock, time_ns),
        }
    }

    fn end(&mut self, waiter: Waiter, lock: u64, time_ns: u64) {
        let open = self.open.entry(waiter).or_default();
        let Some(place) = open.iter().rposition(|it| it.lock == lock) else {
            self.incomplete += 1;
            return;
        };
        // Those within it whose end was not seen.
        self.incomplete += (open.len() - place - 1) as u64;
        open.truncate(place + 1);
        let Some(ended) = open.pop() else { return };
        let all_ns = time_ns.saturating_sub(ended.since_ns);
        if let Some(outer) = open.last_mut() {
            outer.inner_ns += all_ns;
        }
        let wait_ns = all_ns.saturating_sub(ended.inner_ns);
        let times = self.ended.entry(ended.waited).or_default();
        times.add(Times {
            waits: 1,
            wait_ns,
            longest_ns: wait_ns,
        });
    }

    fn answer(self, symbols: &Known<Symbols>, unreadable: u64) -> LockWaits {
        let open: usize = self.open.values().map(Vec::len).sum();
        let mut by_site: BTreeMap<(String, LockKind), Times> = BTreeMap::new();
        let mut by_process: BTreeMap<i32, Times> = BTreeMap::new();
        for (waited, times) in self.ended {
            let site = (call_site(symbols, &waited.callers), waited.kind);
            by_site.entry(site).or_default().add(times);
            by_process.entry(waited.process).or_default().add(times);
        }
        let process = |(pid, times): (i32, Times)| ProcessWaits {
            pid,
            name: None,
            waits: times.waits,
            wait_s: times.wait_s(),
        };
        let mut processes: Vec<ProcessWaits> = by_process.into_iter().map(process).collect();
        processes.sort_by(|a, b| b.wait_s.total_cmp(&a.wait_s));
        let mut sites: Vec<Site> = by_site.into_iter().map(site).collect();
        sites.sort_by(|a, b| b.wait_s.total_cmp(&a.wait_s));
        let no_names_reason = match symbols {
            Known::Yes(_) => None,
            Known::No { unknown_reason } => Some(unknown_reason.to_string()),
        };
        LockWaits {
            wait_s: sum(&sites),
            spin_s: sum(sites.iter().filter(|it| it.kind.is_spinning())),
            waits: sites.iter().map(|it| it.waits).sum(),
            incomplete: self.incomplete + open as u64,
            unreadable,
            no_names_reason,
            no_spin_reason: None,
            sites,
            processes,
        }
    }
}

/// A sum of no waits is 0, not -0.
fn sum<'a>(sites: impl IntoIterator<Item = &'a Site>) -> f64 {
    sites.into_iter().fold(0.0, |sum, site| sum + site.wait_s)
}

fn call_site(symbols: &Known<Symbols>, callers: &[u64]) -> String {
    let name = symbols.get().and_then(|symbols| symbols.call_site(callers));
    match (name, callers.first()) {
        (Some(name), _) => name.to_owned(),
        (None, Some(address)) if *address != 0 => format!("{address:#x}"),
        _ => "unknown".to_owned(),
    }
}

fn site(((call_site, kind), times): ((String, LockKind), Times)) -> Site {
    Site {
        call_site,
        kind,
        waits: times.waits,
        wait_s: times.wait_s(),
        longest_s: times.longest_ns as f64 / 1e9,
    }
}

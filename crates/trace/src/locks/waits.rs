//! Waits for locks, by call site.

use std::collections::{BTreeMap, HashMap};

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

impl LockWaits {
    /// Notes where this kernel may take contended spinlocks without tracing them, by its /proc/cpuinfo: on x86 under a hypervisor
    /// without paravirtual spinlocks it does not get to the queue, which has the tracepoints (`virt_spin_lock` in
    /// arch/x86/include/asm/qspinlock.h).
    pub fn note_untraced(&mut self, cpuinfo: &str) {
        let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
        let is_guest =
            flags.is_some_and(|it| it.split_whitespace().any(|flag| flag == "hypervisor"));
        self.no_spin_reason = (is_guest && self.spin_s == 0.0).then(|| {
            "an x86 kernel under a hypervisor may not trace waits for spinlocks; booted with clearcpuid=hypervisor it does".to_owned()
        });
    }
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
    ended: HashMap<(Box<[u64]>, LockKind), Times>,
    incomplete: u64,
}

#[derive(Debug)]
struct Open {
    lock: u64,
    since_ns: u64,
    /// Time in waits within this one.
    inner_ns: u64,
    kind: LockKind,
    callers: Box<[u64]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Times {
    waits: u64,
    wait_ns: u64,
    longest_ns: u64,
}

impl Times {
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

    /// Nothing more will come.
    pub fn finish(self, symbols: &Known<Symbols>) -> LockWaits {
        let mut found = self.found;
        self.order
            .finish(&mut |time, event| found.take(time, event));
        found.answer(symbols, self.unreadable)
    }
}

impl Found {
    fn take(&mut self, time_ns: u64, event: Event) {
        match event {
            Event::Began {
                waiter,
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
                        kind,
                        callers,
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
        let times = self.ended.entry((ended.callers, ended.kind)).or_default();
        times.add(Times {
            waits: 1,
            wait_ns,
            longest_ns: wait_ns,
        });
    }

    fn answer(self, symbols: &Known<Symbols>, unreadable: u64) -> LockWaits {
        let open: usize = self.open.values().map(Vec::len).sum();
        let mut by_site: BTreeMap<(String, LockKind), Times> = BTreeMap::new();
        for ((callers, kind), times) in self.ended {
            by_site
                .entry((call_site(symbols, &callers), kind))
                .or_default()
                .add(times);
        }
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
        wait_s: times.wait_ns as f64 / 1e9,
        longest_s: times.longest_ns as f64 / 1e9,
    }
}

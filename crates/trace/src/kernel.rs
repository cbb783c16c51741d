//! What a kernel did during some time, in one list: to be compared with what another kernel did meanwhile.
//!
//! ```text
//! /proc/stat, interrupts, softirqs, vmstat ──► Counted, before and after ──┐
//! sched_migrate_task, nvme_setup_cmd ────────► Events ─────────────────────┼──► KernelActivity
//! contention_begin, contention_end ──────────► LockWaits ──────────────────┤
//! host of a guest ───────────────────────────► HotLines ───────────────────┘
//! ```

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use nearfar_machine::{CpuId, Known, Machine};
use nearfar_proc::cpu_counts::{self, Counts};
use nearfar_proc::cpu_times::{self, CpuTimes};
use nearfar_proc::meminfo;
use serde::{Deserialize, Serialize};

use crate::format::{Format, FormatError, Number, Tracefs};
use crate::lines::HotLines;
use crate::locks::{self, Waits};
use crate::migrations::{self, ClassCounts, Sharing};
use crate::nvme::{self, Commands};
use crate::records::Sample;
use crate::symbols::Symbols;
use crate::{TraceError, now_ns};

/// What kind of thing a kernel does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActivityKind {
    /// Waits for spinlocks and rwlocks, which keep the CPU busy, by call site.
    SpinningLocks,
    /// Waits for other locks of the kernel, by call site.
    SleepingLocks,
    /// Cache lines that came from other CPUs, by the function that got them.
    LineTransfers,
    /// Of tasks, by what the two CPUs share.
    Migrations,
    /// By controller and the node of the submitting CPU.
    NvmeCommands,
    /// By device and the node of the CPU that took them.
    Interrupts,
    /// By kind and the node of the CPU.
    Softirqs,
    /// By mode and the node of the CPU.
    CpuTime,
    /// Of `/proc/vmstat`.
    Counters,
}

/// One thing that the kernel did.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Activity {
    pub kind: ActivityKind,
    /// What did it: a function, a device and a node, a counter. The same for the same thing in another kernel.
    pub name: String,
    /// How often; `None` for what has a time only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Seconds that it took all CPUs or tasks together; `None` for what is only counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_s: Option<f64>,
}

/// What a kernel did.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct KernelActivity {
    /// How many samples of experiments, with what was set up for them, it is of: what came outside of them is left out. 0: of all the
    /// time.
    #[serde(default)]
    pub samples: u32,
    /// By kind; within one, what took longest or came most often first.
    pub activities: Vec<Activity>,
    /// Kinds that could not be gathered, and why.
    pub unknown_reasons: BTreeMap<ActivityKind, String>,
}

impl ActivityKind {
    /// All, in order.
    pub const ALL: [Self; 9] = [
        Self::SpinningLocks,
        Self::SleepingLocks,
        Self::LineTransfers,
        Self::Migrations,
        Self::NvmeCommands,
        Self::Interrupts,
        Self::Softirqs,
        Self::CpuTime,
        Self::Counters,
    ];

    /// Those that are counted from events, of which some can be lost.
    pub const OF_EVENTS: [Self; 4] = [
        Self::SpinningLocks,
        Self::SleepingLocks,
        Self::Migrations,
        Self::NvmeCommands,
    ];

    /// As it is printed.
    pub fn name(self) -> &'static str {
        match self {
            Self::SpinningLocks => "spinning locks",
            Self::SleepingLocks => "sleeping locks",
            Self::LineTransfers => "line transfers",
            Self::Migrations => "migrations",
            Self::NvmeCommands => "NVMe commands",
            Self::Interrupts => "interrupts",
            Self::Softirqs => "softirqs",
            Self::CpuTime => "CPU time",
            Self::Counters => "counters",
        }
    }
}

impl Activity {
    /// The seconds, or else how often.
    pub fn amount(&self) -> f64 {
        let count = self.count.map(|count| count as f64);
        self.time_s.or(count).unwrap_or(0.0)
    }
}

impl KernelActivity {
    /// Sums up what has the same kind and name, and puts it in order.
    fn of(
        activities: impl IntoIterator<Item = Activity>,
        unknown_reasons: BTreeMap<ActivityKind, String>,
    ) -> Self {
        let mut sums = BTreeMap::<(ActivityKind, String), Activity>::new();
        for it in activities {
            let key = (it.kind, it.name.clone());
            let add = |sum: &mut Activity| {
                sum.count = sum.count.zip(it.count).map(|(a, b)| a.saturating_add(b));
                sum.time_s = sum.time_s.zip(it.time_s).map(|(a, b)| a + b);
            };
            sums.entry(key)
                .and_modify(add)
                .or_insert_with(|| it.clone());
        }
        let mut activities = Vec::from_iter(sums.into_values());
        activities.retain(|it| it.amount() > 0.0);
        activities.sort_by(|a, b| {
            let kinds = a.kind.cmp(&b.kind);
            kinds.then(b.amount().total_cmp(&a.amount()))
        });
        Self {
            samples: 0,
            activities,
            unknown_reasons,
        }
    }

    /// Those of a kind.
    pub fn of_kind(&self, kind: ActivityKind) -> impl Iterator<Item = &Activity> {
        self.activities.iter().filter(move |it| it.kind == kind)
    }
}

/// The events of the kernel as it describes them.
#[derive(Debug)]
pub struct Formats {
    migrate: Format,
    nvme: Known<Format>,
    locks: Known<locks::Formats>,
}

impl Formats {
    /// Reads the descriptions. What a kernel without NVMe disks, or before Linux 5.19, does not have is unknown.
    ///
    /// # Errors
    /// When the kernel has no `sched_migrate_task`, or it cannot be read.
    pub fn read(tracefs: &Tracefs) -> Result<Self, TraceError> {
        Ok(Self {
            migrate: tracefs.tracepoint(migrations::SYSTEM, "sched_migrate_task")?,
            nvme: Known::from_result(tracefs.tracepoint(nvme::SYSTEM, nvme::EVENT)),
            locks: Known::from_result(locks::Formats::read(tracefs)),
        })
    }

    /// What a session has to trace.
    pub fn tracepoints(&self) -> Vec<(&Format, Option<String>)> {
        let locks = self.locks.get().into_iter();
        let single = [Some(&self.migrate), self.nvme.get()].into_iter().flatten();
        let single = single.map(|format| (format, None));
        single
            .chain(locks.flat_map(locks::Formats::tracepoints))
            .collect()
    }

    /// See [`Plan::callers_of`](crate::Plan::callers_of).
    pub fn callers_of(&self) -> Option<u16> {
        self.locks.get().map(locks::Formats::callers_of)
    }
}

/// Collects events and counts, in one interval or several.
#[derive(Debug)]
pub struct Events {
    kind: Number,
    sharing: Sharing,
    migrate: (u16, Number, Number),
    migrations: ClassCounts,
    nvme: Known<(u16, Commands)>,
    locks: Known<Waits>,
    /// The device of each interrupt, by its label in /proc/interrupts.
    devices: BTreeMap<String, String>,
    /// When the interval that has not ended began, and what was counted then.
    open: Option<Interval>,
    /// The interval before: its events may still come.
    last: Range<u64>,
    /// What the kernel counted in the intervals that have ended.
    counted: Vec<Activity>,
    passed: Duration,
}

/// A time in which what the kernel does counts.
#[derive(Debug)]
struct Interval {
    /// As [`now_ns`].
    begin: u64,
    before: Counted,
    end: Option<(u64, Counted)>,
}

impl Interval {
    fn has(&self, time_ns: u64) -> bool {
        time_ns >= self.begin && self.end.as_ref().is_none_or(|(end, _)| time_ns < *end)
    }
}

impl Events {
    /// None yet.
    ///
    /// # Errors
    /// When an event lacks a field.
    pub fn new(formats: &Formats, machine: &Machine) -> Result<Self, FormatError> {
        let migrate = &formats.migrate;
        let nvme = formats.nvme.as_ref().map(|format| {
            let decoder = nvme::Decoder::new(format);
            decoder.map(|decoder| (format.id(), Commands::new(decoder)))
        });
        let locks = formats.locks.as_ref();
        let locks = locks.map(|formats| locks::Decoder::new(formats).map(Waits::new));
        Ok(Self {
            kind: migrate.number("common_type")?,
            sharing: Sharing::new(machine),
            migrate: (
                migrate.id(),
                migrate.number("orig_cpu")?,
                migrate.number("dest_cpu")?,
            ),
            migrations: ClassCounts::default(),
            nvme: nvme.and_then(Known::from_result),
            locks: locks.and_then(Known::from_result),
            devices: devices(machine),
            open: None,
            last: 0..0,
            counted: Vec::new(),
            passed: Duration::ZERO,
        })
    }

    /// An event on this CPU. It counts if it came in an interval.
    pub fn take(&mut self, cpu: CpuId, sample: &Sample<'_>) {
        let is_in_open = |open: &Interval| open.has(sample.time_ns);
        if !self.open.as_ref().is_some_and(is_in_open) && !self.last.contains(&sample.time_ns) {
            return;
        }
        let kind = self.kind.read(sample.event);
        let kind = kind.and_then(|kind| u16::try_from(kind).ok());
        let (migrate, from, to) = &self.migrate;
        match (kind, &mut self.nvme, &mut self.locks) {
            (Some(kind), ..) if kind == *migrate => {
                let cpu = |number: &Number| {
                    let cpu = number.read(sample.event)?;
                    u32::try_from(cpu).ok().map(CpuId)
                };
                // The kernel also says so of a task that stays (set_task_cpu() in kernel/sched/core.c).
                if let Some((from, to)) = cpu(from).zip(cpu(to)).filter(|(from, to)| from != to) {
                    *self.migrations.of(self.sharing.class(from, to)) += 1;
                }
            }
            (Some(kind), Known::Yes((nvme, commands)), _) if kind == *nvme => {
                commands.take(cpu, sample);
            }
            (.., Known::Yes(waits)) => waits.take(cpu, sample),
            _ => {}
        }
    }

    /// Every CPU's events have been read once more.
    pub fn end_round(&mut self) {
        if let Known::Yes(waits) = &mut self.locks {
            waits.end_round();
        }
    }

    /// Begins an interval whose events count, if none is open.
    ///
    /// # Errors
    /// When what the kernel counts cannot be read.
    pub fn begin(&mut self) -> Result<(), TraceError> {
        if self.open.is_none() {
            let before = Counted::read()?;
            self.open = Some(Interval {
                begin: now_ns(),
                before,
                end: None,
            });
        }
        Ok(())
    }

    /// Ends the interval now, if one is open. Its events may still come, until [`Self::settled`].
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub fn end(&mut self) -> Result<(), TraceError> {
        if let Some(Interval { end, .. }) = &mut self.open {
            let now = now_ns();
            *end = Some((now, Counted::read()?));
        }
        Ok(())
    }

    /// All events of the interval that ended have been taken. A wait that lasted on is not known.
    pub fn settled(&mut self) {
        let ended = self.open.take_if(|open| open.end.is_some());
        if let Some(Interval {
            begin,
            before,
            end: Some((end, after)),
        }) = ended
        {
            self.last = begin..end;
            self.passed += Duration::from_nanos(end.saturating_sub(begin));
            let counted = after.since(&before, &self.sharing, &self.devices);
            self.counted.extend(counted);
            if let Known::Yes(waits) = &mut self.locks {
                waits.cut();
            }
        }
    }

    /// How long the intervals were.
    pub fn passed(&self) -> Duration {
        self.passed
    }

    /// What the kernel did in the intervals; `lines` are those that passed meanwhile.
    pub fn finish(self, lines: Known<HotLines>, symbols: &Known<Symbols>) -> KernelActivity {
        let mut unknown = BTreeMap::new();
        let mut all = self.counted;
        let node_of = |cpu| of_node(&self.sharing, cpu);
        let classes = self.migrations.by_class().into_iter();
        all.extend(classes.map(|(name, count)| counts(ActivityKind::Migrations, name, count)));
        let nvme = known(ActivityKind::NvmeCommands, self.nvme, &mut unknown);
        let commands = nvme.iter().flat_map(|(_, commands)| commands.ways());
        all.extend(commands.map(|(controller, cpu, count)| {
            let name = format!("nvme{controller}, {}", node_of(cpu));
            counts(ActivityKind::NvmeCommands, name, count)
        }));
        let locks = self.locks.map(|waits| locks::answer(waits, None, symbols));
        // A place without a name has another address after each boot.
        let no_names = symbols.unknown_reason();
        let no_names = no_names.map(|reason| format!("call sites have no names: {reason}"));
        for kind in [ActivityKind::SpinningLocks, ActivityKind::SleepingLocks] {
            let is_spinning = kind == ActivityKind::SpinningLocks;
            let locks = locks.as_ref().and_then(|locks| {
                let untraced = locks.no_spin_reason.clone().filter(|_| is_spinning);
                match untraced.or_else(|| no_names.clone()) {
                    Some(reason) => Known::no(reason),
                    None => Known::Yes(locks),
                }
            });
            let sites = known(kind, locks, &mut unknown).into_iter();
            let sites = sites.flat_map(|locks| &locks.sites);
            let sites = sites.filter(|it| it.kind.is_spinning() == is_spinning);
            all.extend(sites.map(|site| Activity {
                kind,
                name: format!("{} of {}", site.kind.name(), source_name(&site.call_site)),
                count: Some(site.waits),
                time_s: Some(site.wait_s),
            }));
        }
        let lines = known(ActivityKind::LineTransfers, lines, &mut unknown);
        let functions = lines.into_iter().flat_map(|it| it.functions);
        all.extend(functions.map(|it| Activity {
            kind: ActivityKind::LineTransfers,
            // An address of its own says nothing of another guest.
            name: match it.file.as_deref() {
                None => "unknown code".to_owned(),
                Some(crate::lines::KERNEL_FILE) => source_name(&it.name).to_owned(),
                Some(file) => {
                    format!("{} in {}", it.name, file.rsplit('/').next().unwrap_or(file))
                }
            },
            count: Some(it.sum.count()),
            time_s: Some(it.sum.wait_s),
        }));
        KernelActivity::of(all, unknown)
    }
}

/// A function without what compilers put behind the names of its parts and copies, which differs from one build to the next.
fn source_name(function: &str) -> &str {
    let end = [".constprop.", ".isra.", ".part.", ".cold", ".llvm."]
        .iter()
        .filter_map(|suffix| function.find(suffix));
    &function[..end.min().unwrap_or(function.len())]
}

fn counts(kind: ActivityKind, name: impl Into<String>, count: u64) -> Activity {
    Activity {
        kind,
        name: name.into(),
        count: Some(count),
        time_s: None,
    }
}

/// What is known; notes why it is not.
fn known<T>(
    kind: ActivityKind,
    it: Known<T>,
    unknown: &mut BTreeMap<ActivityKind, String>,
) -> Option<T> {
    match it {
        Known::Yes(it) => Some(it),
        Known::No { unknown_reason } => {
            unknown.insert(kind, unknown_reason.into_owned());
            None
        }
    }
}

fn of_node(sharing: &Sharing, cpu: CpuId) -> String {
    let node = sharing.node_of(cpu);
    node.map_or_else(|| "no node".to_owned(), |node| format!("node {node}"))
}

/// What the kernel has counted since boot.
#[derive(Debug)]
struct Counted {
    cpus: BTreeMap<CpuId, CpuTimes>,
    interrupts: BTreeMap<String, Counts>,
    softirqs: BTreeMap<String, Counts>,
    counters: BTreeMap<String, u64>,
}

impl Counted {
    /// # Errors
    /// When a file cannot be read.
    fn read() -> Result<Self, TraceError> {
        let failed = |file: &str| {
            let file = file.to_owned();
            |source| TraceError::Unreadable { file, source }
        };
        let read = |file| std::fs::read(file).map_err(failed(file));
        let interrupts = cpu_counts::interrupts(|_| true);
        let softirqs = cpu_counts::softirqs(|_| true);
        Ok(Self {
            cpus: cpu_times::parse(&read("/proc/stat")?).collect(),
            interrupts: interrupts.map_err(failed("/proc/interrupts"))?,
            softirqs: softirqs.map_err(failed("/proc/softirqs"))?,
            counters: meminfo::events(&read("/proc/vmstat")?),
        })
    }

    /// What came since `before`, on CPUs that were online at both times.
    fn since(
        &self,
        before: &Self,
        sharing: &Sharing,
        devices: &BTreeMap<String, String>,
    ) -> Vec<Activity> {
        let mut all = Vec::new();
        let per_second = rustix::param::clock_ticks_per_second() as f64;
        for (cpu, now) in &self.cpus {
            let Some(then) = before.cpus.get(cpu) else {
                continue;
            };
            for (mode, now, then) in [
                ("user", now.user, then.user),
                ("system", now.system, then.system),
                ("interrupt", now.interrupt, then.interrupt),
                ("softirq", now.softirq, then.softirq),
            ] {
                all.push(Activity {
                    kind: ActivityKind::CpuTime,
                    name: format!("{mode}, {}", of_node(sharing, *cpu)),
                    count: None,
                    time_s: Some(now.saturating_sub(then) as f64 / per_second),
                });
            }
        }
        for (kind, now, then) in [
            (
                ActivityKind::Interrupts,
                &self.interrupts,
                &before.interrupts,
            ),
            (ActivityKind::Softirqs, &self.softirqs, &before.softirqs),
        ] {
            for (label, counted) in now {
                let none = Counts::default();
                let then = then.get(label);
                let by_cpu = counted.since(then.unwrap_or(&none));
                let by_cpu = by_cpu
                    .into_iter()
                    .filter(|(cpu, _)| then.is_none_or(|then| then.cpus.contains_key(cpu)));
                let device = devices
                    .get(label)
                    .filter(|_| kind == ActivityKind::Interrupts);
                let source = device.map_or(label.as_str(), String::as_str);
                all.extend(by_cpu.map(|(cpu, count)| {
                    let name = format!("{source}, {}", of_node(sharing, cpu));
                    counts(kind, name, count)
                }));
            }
        }
        all.extend(self.counters.iter().map(|(name, now)| {
            let then = before.counters.get(name).copied().unwrap_or(0);
            counts(ActivityKind::Counters, name, now.saturating_sub(then))
        }));
        all
    }
}

/// What each interrupt serves: its device's name or address, or else its handlers; by its label in `/proc/interrupts`. The kernel's own
/// (`LOC`, `TLB`) are not among them.
fn devices(machine: &Machine) -> BTreeMap<String, String> {
    let interrupts = machine.interrupts.get().into_iter().flatten();
    let named = interrupts.map(|it| {
        let of_device = |device| {
            let names = machine.names_on(device);
            let first = names.first().map(|&name| name.to_owned());
            first.unwrap_or_else(|| device.to_string())
        };
        let name = it.device.map_or_else(|| it.name.clone(), of_device);
        (it.irq.to_string(), name)
    });
    named.filter(|(_, name)| !name.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use nearfar_sources::Want;

    use super::*;

    #[test]
    fn a_function_has_one_name_in_all_builds() {
        for name in [
            "lru_add_fn.isra.0",
            "lru_add_fn.constprop.12.cold",
            "lru_add_fn",
        ] {
            assert_eq!(source_name(name), "lru_add_fn");
        }
    }

    fn activity(kind: ActivityKind, name: &str, count: u64, time_s: Option<f64>) -> Activity {
        Activity {
            time_s,
            ..counts(kind, name, count)
        }
    }

    #[test]
    fn what_has_one_name_is_one_activity_and_the_largest_come_first() {
        let lock = |name, time_s| activity(ActivityKind::SleepingLocks, name, 2, Some(time_s));
        let moved = |name, count| activity(ActivityKind::Migrations, name, count, None);
        let found = KernelActivity::of(
            [
                moved("same core", 5),
                moved("cross node", 0),
                lock("a", 0.5),
                lock("b", 1.0),
                lock("a", 0.75),
                lock("c", 0.01),
            ],
            BTreeMap::new(),
        );
        let names = |found: &KernelActivity| {
            let names = found.activities.iter().map(|it| it.name.clone());
            Vec::from_iter(names)
        };
        assert_eq!(names(&found), ["a", "b", "c", "same core"]);
        assert_eq!(
            found.activities[0],
            activity(ActivityKind::SleepingLocks, "a", 4, Some(1.25))
        );
    }

    #[test]
    fn counts_of_this_kernel_grow_and_nothing_is_counted_twice() {
        let want = Want {
            devices: true,
            interrupts: true,
            ..Want::topology()
        };
        let machine = nearfar_sources::read(&nearfar_sources::Request::live(want)).unwrap();
        let (sharing, devices) = (Sharing::new(&machine), devices(&machine));
        let before = Counted::read().unwrap();
        std::fs::read_dir("/proc").unwrap().count();
        let after = Counted::read().unwrap();
        let found = after.since(&before, &sharing, &devices);
        let counters = found.iter().filter(|it| it.kind == ActivityKind::Counters);
        let names = Vec::from_iter(counters.map(|it| it.name.as_str()));
        let mut interrupts = after
            .interrupts
            .iter()
            .map(|(label, counts)| (label, counts.name.as_str()));
        assert!(interrupts.all(|(label, name)| {
            let is_numbered = label.bytes().all(|it| it.is_ascii_digit());
            !is_numbered || name.is_empty() || devices.contains_key(label)
        }));
        assert!(names.contains(&"pgfault") && !names.contains(&"nr_free_pages"));
        assert_eq!(BTreeSet::from_iter(&names).len(), names.len());
        assert!(
            before
                .since(&after, &sharing, &devices)
                .iter()
                .all(|it| it.amount() == 0.0)
        );
    }
}

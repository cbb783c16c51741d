//! What is known of descent and choice beyond what /proc shows: from forks, execs and changes of affinity, by the kernel's tracepoints,
//! where this user may use them.
//!
//! ```text
//! sched_process_fork               the thread that made it and the new one           descent
//! sched_process_exec               the number that a thread had before               a thread becomes its process's first
//! sys_enter/exit_sched_setaffinity the caller, whose affinity, whether it was done   the choice of a program
//! ```
//!
//! /proc does not tell these three apart from what looks the same: a thread that inherited a mask from one that set the same
//! mask itself, for example. Opening them takes root, tracefs and the initial pid namespace, since two of the events name tasks
//! by their numbers there. The events are closed with this value.
//!
//! sched_setaffinity(2) is called with a number of the caller's pid namespace. In a container that is another one than here, so
//! such a choice is reported with the namespace, and the thread is looked for.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use nearfar_machine::CpuSet;
use nearfar_proc::{affinity, tasks};
use nearfar_trace::format::{Format, Number};
use nearfar_trace::migrations::{FIRST_PID_NAMESPACE, in_first_pid_namespace};
use nearfar_trace::records::Sample;
use nearfar_trace::{Ordered, Plan, Session, TraceError, Tracefs, now_ns};

use crate::keeper::look::THOROUGH;
use crate::keeper::threads::ThreadMasks;

/// By thread, what it inherited.
#[derive(Default)]
pub(crate) struct Lineage {
    observer: Option<Observer>,
    /// Threads that were made by a kept one or a descendant of one, and not taken in yet: the masks that they inherited;
    /// none for one that has or inherited a mask of the program's own choice.
    made: HashMap<i32, Option<usize>>,
    /// Makers that were not known: what they made may be found when their own making is, in the next round.
    open: Vec<(i32, i32)>,
}

impl Lineage {
    pub(crate) fn new(observer: Option<Observer>) -> Self {
        Self {
            observer,
            ..Self::default()
        }
    }

    /// What a thread that is not taken in yet has inherited.
    pub(crate) fn of(&self, tid: i32) -> Option<Option<usize>> {
        self.made.get(&tid).copied()
    }

    pub(crate) fn take(&mut self, tid: i32) {
        self.made.remove(&tid);
    }

    /// A thread that is known to be made by one of these masks.
    pub(crate) fn put(&mut self, tid: i32, group: Option<usize>) {
        self.made.insert(tid, group);
    }

    /// Threads that are not taken in yet.
    pub(crate) fn waiting(&self) -> Vec<i32> {
        self.made.keys().copied().collect()
    }

    /// From now on, makers that are not known by now are ignored: one may be kept from now on.
    pub(crate) fn close(&mut self) {
        self.open.clear();
    }
}

impl ThreadMasks {
    /// Takes in what happened since the last time.
    pub(crate) fn observe(&mut self) {
        let Some(observer) = &mut self.lineage.observer else {
            return;
        };
        let (events, lost) = (observer.events(), observer.lost());
        if !events.is_empty() {
            self.masks.cpusets.refresh();
        }
        if lost > 0 {
            // What was made or chose meanwhile is judged by /proc alone.
            tracing::warn!(lost, "events of forks and affinity changes were lost");
            self.unsettled = true;
        }
        let mut within = None;
        for (maker, made) in std::mem::take(&mut self.lineage.open) {
            self.was_made(maker, made);
        }
        for event in events {
            match event {
                Event::Made { maker, made } => {
                    self.lineage.made.remove(&made);
                    if !self.was_made(maker, made) {
                        self.lineage.open.push((maker, made));
                    }
                }
                Event::Executed { before, now } => self.executed(before, now),
                Event::Chose { tid } => self.chose(tid),
                Event::ChoseWithin { namespace, number } => {
                    let within = within.get_or_insert_with(|| {
                        Within::of(self.threads.keys().chain(self.lineage.made.keys()).copied())
                    });
                    let tids = within.numbered(namespace.as_deref(), number);
                    tids.into_iter().for_each(|tid| self.chose(tid));
                }
            }
        }
        self.observe_new_cpus();
        if self.counts.looks.is_multiple_of(THOROUGH) {
            self.lineage.made.retain(|&tid, _| tasks::stat(tid).is_ok());
        }
    }

    /// Opens the events again where CPUs have come online since; now and then.
    fn observe_new_cpus(&mut self) {
        let online = self.masks.cpusets.online();
        let Some(observer) = &self.lineage.observer else {
            return;
        };
        if self.counts.looks.is_multiple_of(THOROUGH / 8)
            && !online.is_empty()
            && !online.is_subset(observer.cpus())
        {
            // The old one was read a moment ago.
            let opened = Observer::open(online);
            self.lineage.observer = opened.or(self.lineage.observer.take());
        }
    }

    /// Whether the maker is known.
    fn was_made(&mut self, maker: i32, made: i32) -> bool {
        let group = match self.threads.get(&maker) {
            Some(thread) => Some(thread.group),
            None => self.lineage.of(maker),
        };
        if let Some(group) = group.filter(|_| !self.threads.contains_key(&made)) {
            self.lineage.made.insert(made, group);
        }
        group.is_some()
    }

    /// Its program, or another process, has set its affinity.
    fn chose(&mut self, tid: i32) {
        if let Some(thread) = self.threads.get_mut(&tid) {
            let process = thread.process;
            match affinity::get(tid) {
                _ if thread.group.is_none() => {}
                Ok(mask) => self.skip(tid, process, mask),
                // It has ended since. What it made after its choice, a later event, has inherited that.
                Err(_) => {
                    thread.group = None;
                    self.unsettled = true;
                }
            }
        } else if let Some(group) = self.lineage.made.get_mut(&tid) {
            *group = None;
        }
    }

    /// A thread has become the first one of its process. It keeps its mask, and gets the start of the thread whose number it
    /// takes (`de_thread()` in fs/exec.c).
    fn executed(&mut self, before: i32, now: i32) {
        let Some(former) = self.threads.get(&before) else {
            if let Some(group) = self.lineage.made.remove(&before) {
                self.lineage.put(now, group);
                self.becomes(now, group, None);
            }
            return;
        };
        let (group, place) = (former.group, self.controller.place(before));
        self.forget(before);
        self.becomes(now, group, place);
    }

    /// The thread of this number has these masks from now on, also on record.
    fn becomes(&mut self, tid: i32, group: Option<usize>, place: Option<crate::rule::Place>) {
        let Some(process) = self.threads.get(&tid).map(|thread| thread.process) else {
            return;
        };
        let Ok(mask) = affinity::get(tid) else { return };
        let Some(group) = group else {
            return self.skip(tid, process, mask);
        };
        if self.note(group, &[(process, tid)]).is_err() {
            return;
        }
        let place = place.or_else(|| self.masks.place_of(tid, &mask, group));
        self.controller.remove(tid);
        if let Some(thread) = self.threads.get_mut(&tid) {
            (thread.group, thread.before, thread.moving) = (Some(group), None, true);
        }
        if let Some(place) = place.filter(|_| self.masks.confines(group)) {
            self.controller.put(tid, place);
        }
    }
}

/// Bytes of all rings together: an event takes about 100.
const RINGS_BYTES: usize = 16 << 20;
/// Something that happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// A thread or process was made.
    Made {
        /// The thread that made it.
        maker: i32,
        /// It.
        made: i32,
    },
    /// A thread became another program, and with that the first thread of its process.
    Executed {
        /// The number that it had.
        before: i32,
        /// The number that it has: its process's.
        now: i32,
    },
    /// The affinity of a thread was set, by a program that is not this process.
    Chose {
        /// The thread.
        tid: i32,
    },
    /// The same in another pid namespace.
    ChoseWithin {
        /// The namespace, where this user may see it.
        namespace: Option<Namespace>,
        /// The thread's number there.
        number: i32,
    },
}

/// A pid namespace, as the links of /proc/PID/ns name it: `pid:[4026531836]`.
type Namespace = PathBuf;

/// What a record of the kernel says, before two are put together.
enum Raw {
    Event(Event),
    Called { caller: i32, target: i32 },
    Answered { caller: i32, done: bool },
}

/// The open events.
pub(crate) struct Observer {
    session: Session,
    fields: Fields,
    order: Ordered<Raw>,
    /// The CPUs that it was opened on.
    cpus: CpuSet,
    /// The number that a thread named in the call it is in.
    calls: HashMap<i32, i32>,
    /// The maker of each task, for callers that have ended before their call is read.
    makers: HashMap<i32, i32>,
    /// Events lost until the last time.
    lost: u64,
}

/// As many are remembered in [`Observer::makers`]: a minute of a thousand forks a second.
const MAX_MAKERS: usize = 1 << 16;

struct Fields {
    fork: (u16, Number, Number),
    exec: (u16, Number, Number),
    enter: (u16, Number),
    exit: (u16, Number),
}

impl Observer {
    /// Opens the events on these CPUs. None where this user may not, or the kernel has none of them; the log says which.
    pub(crate) fn open(cpus: &CpuSet) -> Option<Self> {
        if !in_first_pid_namespace() {
            tracing::info!(
                "forks and affinity changes are not observed: not in the initial pid namespace"
            );
            return None;
        }
        let opened = Self::try_open(cpus);
        opened
            .inspect_err(
                |error| tracing::info!(%error, "forks and affinity changes are not observed"),
            )
            .ok()
    }

    /// The CPUs that it was opened on: what happens on others is not observed.
    pub(crate) fn cpus(&self) -> &CpuSet {
        &self.cpus
    }

    fn try_open(cpus: &CpuSet) -> Result<Self, TraceError> {
        let tracefs = Tracefs::find()?;
        let fork = tracefs.tracepoint("sched", "sched_process_fork")?;
        let exec = tracefs.tracepoint("sched", "sched_process_exec")?;
        let enter = tracefs.tracepoint("syscalls", "sys_enter_sched_setaffinity")?;
        let exit = tracefs.tracepoint("syscalls", "sys_exit_sched_setaffinity")?;
        let number = |format: &Format, field| {
            format.number(field).map_err(|problem| TraceError::Format {
                file: format.name().to_owned(),
                problem,
            })
        };
        let fields = Fields {
            fork: (
                fork.id(),
                number(&fork, "parent_pid")?,
                number(&fork, "child_pid")?,
            ),
            exec: (exec.id(), number(&exec, "old_pid")?, number(&exec, "pid")?),
            enter: (enter.id(), number(&enter, "pid")?),
            exit: (exit.id(), number(&exit, "ret")?),
        };
        let tracepoints = [&fork, &exec, &enter, &exit].map(|format| (format, None));
        let plan = Plan {
            cpus,
            tracepoints: &tracepoints,
            names: false,
            mappings: false,
            callers_of: None,
        };
        let mut session = Session::open_within(&plan, RINGS_BYTES)?;
        session.enable()?;
        let (calls, makers) = Default::default();
        Ok(Self {
            session,
            fields,
            order: Ordered::default(),
            cpus: cpus.clone(),
            calls,
            makers,
            lost: 0,
        })
    }

    /// How many events were lost since this was last asked.
    pub(crate) fn lost(&mut self) -> u64 {
        let lost = self.session.lost();
        lost - std::mem::replace(&mut self.lost, lost)
    }

    /// What happened since the last time and before this call, in order of time.
    pub(crate) fn events(&mut self) -> Vec<Event> {
        let Self {
            session,
            fields,
            order,
            calls,
            makers,
            ..
        } = self;
        let me = std::process::id().cast_signed();
        let until = now_ns();
        session.drain(&mut |_, sample| {
            if let Some(raw) = fields
                .read(sample)
                .filter(|raw| sample.pid != me || matches!(raw, Raw::Event(_)))
            {
                order.push(sample.time_ns, raw);
            }
        });
        if makers.len() > MAX_MAKERS {
            makers.clear();
        }
        let mut events = Vec::new();
        order.until(until, &mut |_, raw| match raw {
            Raw::Event(event) => {
                if let Event::Made { maker, made } = event {
                    makers.insert(made, maker);
                }
                events.push(event);
            }
            Raw::Called { caller, target } => drop(calls.insert(caller, target)),
            Raw::Answered { caller, done } => {
                events.extend(
                    calls
                        .remove(&caller)
                        .filter(|_| done)
                        .map(|target| chosen(caller, target, makers)),
                );
            }
        });
        events
    }
}

/// Whose affinity a call has set: 0 is the caller.
fn chosen(caller: i32, target: i32, makers: &HashMap<i32, i32>) -> Event {
    match target {
        0 => Event::Chose { tid: caller },
        _ => match numbering_of(caller, makers) {
            Numbering::Ours => Event::Chose { tid: target },
            Numbering::Other(namespace) => Event::ChoseWithin {
                namespace,
                number: target,
            },
        },
    }
}

/// The numbers that a thread names tasks by.
enum Numbering {
    Ours,
    Other(Option<Namespace>),
}

/// How a caller numbers tasks. One that has ended numbered them as its maker's children do. Where none of its makers is left, it is
/// taken for one of this namespace: `taskset` is short, and its shell usually there.
fn numbering_of(caller: i32, makers: &HashMap<i32, i32>) -> Numbering {
    let (mut at, mut link) = (caller, "pid");
    // No line of makers is longer; numbers that were used again could make a circle.
    for _ in 0..64 {
        if let Ok(numbers) = tasks::numbers_of(at) {
            let namespace = tasks::namespace(at, link).ok();
            let is_ours = namespace.as_deref().map_or(numbers.len() == 1, is_initial);
            return if is_ours {
                Numbering::Ours
            } else {
                Numbering::Other(namespace)
            };
        }
        let Some(&maker) = makers.get(&at) else { break };
        // unshare(2) and setns(2) move a thread's children and not itself.
        (at, link) = (maker, "pid_for_children");
    }
    Numbering::Ours
}

/// Of the threads given, the one with a number in another pid namespace.
struct Within(Vec<(i32, i32, Option<Namespace>)>);

impl Within {
    /// Those of these threads that are in another pid namespace.
    pub(crate) fn of(tids: impl Iterator<Item = i32>) -> Self {
        let of_thread = |tid: i32| {
            let numbers = tasks::numbers_of(tid)
                .ok()
                .filter(|numbers| numbers.len() > 1)?;
            Some((tid, *numbers.last()?, tasks::namespace(tid, "pid").ok()))
        };
        Self(tids.filter_map(of_thread).collect())
    }

    /// The threads of this number; several only where their namespaces cannot be distinguished.
    fn numbered(&self, namespace: Option<&Path>, number: i32) -> Vec<i32> {
        let is_same =
            |other: Option<&Path>| namespace.is_none() || other.is_none() || namespace == other;
        let found = self
            .0
            .iter()
            .filter(|(_, own, other)| *own == number && is_same(other.as_deref()));
        found.map(|(tid, ..)| *tid).collect()
    }
}

impl Fields {
    fn read(&self, sample: &Sample<'_>) -> Option<Raw> {
        let number = |field: &Number| i32::try_from(field.read(sample.event)?).ok();
        // The first field of every event: its kind (common_type).
        let kind = u16::from_ne_bytes(sample.event.get(..2)?.try_into().ok()?);
        let caller = sample.tid;
        match kind {
            _ if kind == self.fork.0 => Some(Raw::Event(Event::Made {
                maker: number(&self.fork.1)?,
                made: number(&self.fork.2)?,
            })),
            _ if kind == self.exec.0 => {
                let (before, now) = (number(&self.exec.1)?, number(&self.exec.2)?);
                (before != now).then_some(Raw::Event(Event::Executed { before, now }))
            }
            // The argument's register may have anything in its upper half.
            _ if kind == self.enter.0 => Some(Raw::Called {
                caller,
                target: self.enter.1.read(sample.event)? as i32,
            }),
            _ if kind == self.exit.0 => Some(Raw::Answered {
                caller,
                done: self.exit.1.read(sample.event)? == 0,
            }),
            _ => None,
        }
    }
}

/// Whether a link of /proc/PID/ns is that of the initial pid namespace.
fn is_initial(namespace: &Path) -> bool {
    namespace
        .to_str()
        .is_some_and(|link| link == format!("pid:[{FIRST_PID_NAMESPACE}]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_that_has_ended_numbered_tasks_as_its_makers_children_do() {
        let me = std::process::id().cast_signed();
        let (ended, unknown) = (i32::MAX, i32::MAX - 1);
        let makers = HashMap::from([(ended, me)]);
        let here = tasks::namespace(me, "pid_for_children").unwrap();
        for caller in [me, ended] {
            match numbering_of(caller, &makers) {
                Numbering::Ours => assert!(is_initial(&here)),
                Numbering::Other(namespace) => assert_eq!(namespace, Some(here.clone())),
            }
        }
        assert!(matches!(
            numbering_of(unknown, &HashMap::from([(unknown, unknown)])),
            Numbering::Ours
        ));
        assert_eq!(chosen(7, 0, &makers), Event::Chose { tid: 7 });
    }

    #[test]
    fn numbers_of_other_namespaces_are_looked_up_there() {
        let [a, b] = ["pid:[1]", "pid:[2]"].map(PathBuf::from);
        let within = Within(vec![
            (100, 7, Some(a.clone())),
            (200, 7, Some(b.clone())),
            (300, 8, None),
        ]);
        assert_eq!(within.numbered(Some(&a), 7), [100]);
        assert_eq!(within.numbered(Some(&b), 7), [200]);
        assert_eq!(within.numbered(None, 7), [100, 200]);
        assert_eq!(within.numbered(Some(&a), 8), [300]);
        assert_eq!(within.numbered(Some(&a), 9), [0; 0]);
        assert_eq!(
            Within::of([std::process::id().cast_signed()].into_iter())
                .0
                .len(),
            {
                let numbers = tasks::numbers_of(std::process::id().cast_signed()).unwrap();
                usize::from(numbers.len() > 1)
            }
        );
    }
}

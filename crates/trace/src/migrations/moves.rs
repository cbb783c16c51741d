//! Events in order of time become lives of tasks: where each was, for how long, and how often it was moved.

use std::collections::{BTreeMap, HashMap, HashSet};

use nearfar_machine::{Cache, CacheKind, CpuId, Known, Machine, NodeId};
use serde::{Deserialize, Serialize};

use super::{Balanced, Event};
use crate::numa_balancing::MachineCounts;

/// The lives of the followed tasks so far. Feed it events in order of time.
#[derive(Clone, Debug)]
pub struct Moves {
    sharing: Sharing,
    follow: bool,
    /// Tasks that are alive, by number.
    living: HashMap<i32, Life>,
    ended: Vec<TaskMoves>,
    /// What numbers did that had just ended, until it is known whose they are now: see [`Event::Renumbered`].
    unclaimed: HashMap<i32, Vec<(u64, Event)>>,
    /// Numbers that another thread has taken.
    renumbered: HashSet<i32>,
    /// Followed tasks that could not be found at the last look.
    missing: HashSet<i32>,
    matrix: BTreeMap<(Option<NodeId>, Option<NodeId>), u64>,
    gaps: u64,
    balancing: Known<()>,
}

/// No thread does more than this between taking its process' number and saying so.
const MAX_UNCLAIMED_EVENTS: usize = 1000;

#[derive(Clone, Debug, Default)]
struct Life {
    name: String,
    /// Where it is and since when; unknown until an event tells.
    cpu: Option<CpuId>,
    /// Where it was once seen to be: where it is all along if no event ever tells.
    seen_on: Option<CpuId>,
    /// Until when that was at the latest; `None` where it is not known.
    seen_before_ns: Option<u64>,
    since_ns: u64,
    followed_ns: u64,
    counts: ClassCounts,
    time_ns: BTreeMap<Option<NodeId>, u64>,
    balanced: Balanced,
    /// What was decided and then not done, which the kernel may say in this order or the other.
    undone: u64,
}

/// Numbers of migrations by class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ClassCounts {
    /// Between SMT siblings.
    pub same_core: u64,
    /// Within a last-level cache.
    pub same_cache: u64,
    /// Within a node, to another last-level cache.
    pub same_node: u64,
    /// To another node.
    pub cross_node: u64,
    /// From or to a CPU of which no node is known.
    pub unknown: u64,
}

impl ClassCounts {
    pub fn total(&self) -> u64 {
        let classes = self.by_class().into_iter();
        // Counts that were stored come from files, which may hold anything.
        classes.fold(0, |sum, (_, count)| sum.saturating_add(count))
    }

    /// How many of each class, by the class' name.
    pub fn by_class(&self) -> [(&'static str, u64); 5] {
        [
            ("same core", self.same_core),
            ("same last-level cache", self.same_cache),
            ("same node", self.same_node),
            ("cross node", self.cross_node),
            ("unknown", self.unknown),
        ]
    }

    pub(crate) fn of(&mut self, class: Class) -> &mut u64 {
        match class {
            Class::SameCore => &mut self.same_core,
            Class::SameCache => &mut self.same_cache,
            Class::SameNode => &mut self.same_node,
            Class::CrossNode => &mut self.cross_node,
            Class::Unknown => &mut self.unknown,
        }
    }

    fn add(&mut self, other: &Self) {
        self.same_core += other.same_core;
        self.same_cache += other.same_cache;
        self.same_node += other.same_node;
        self.cross_node += other.cross_node;
        self.unknown += other.unknown;
    }
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Migrations {
    pub migrations: ClassCounts,
    /// Whether it is known which CPUs share a last-level cache; if not, `same_cache` is within `same_node`.
    pub caches_known: bool,
    /// Node by node: how many from where to where; also within a node.
    pub matrix: Vec<FromTo>,
    /// How long tasks were on CPUs of each node, summed over tasks.
    pub time: Vec<NodeTime>,
    /// Task by task, the one that changed nodes most often first.
    pub tasks: Vec<TaskMoves>,
    /// Moves that did not begin where the task was last known to be, and tasks that were not there in the end: a move in
    /// between was not seen.
    pub gaps: u64,
    pub numa_balancing: NumaBalancing,
}

/// What NUMA balancing did while migrations were traced.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NumaBalancing {
    /// To the followed tasks; unknown where the kernel has no such tracepoints.
    pub tasks: Known<Balanced>,
    /// On the whole machine, whichever task used the memory.
    pub machine: Known<MachineCounts>,
}

/// Moves from one node to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FromTo {
    /// From; `null` where the CPU's node is unknown.
    pub from: Option<NodeId>,
    pub to: Option<NodeId>,
    pub migrations: u64,
}

#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct NodeTime {
    /// The node; `null` where the CPU, or its node, is unknown.
    pub node: Option<NodeId>,
    /// Running, waiting or asleep on one of its CPUs.
    pub seconds: f64,
}

/// One task's life as far as it was traced.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TaskMoves {
    pub tid: i32,
    /// The kernel's name of it, the last one seen.
    pub name: String,
    pub ended: bool,
    /// How often it was moved.
    pub migrations: ClassCounts,
    /// Where it was.
    pub time: Vec<NodeTime>,
    /// What NUMA balancing did to it; `null` where that is not traced.
    pub numa_balancing: Option<Balanced>,
}

impl Moves {
    /// No task yet. With `follow`, tasks that a followed one makes are followed as well. `balancing` says whether the events
    /// tell what NUMA balancing does ([`Formats::balancing`](super::Formats::balancing)).
    pub fn new(sharing: Sharing, follow: bool, balancing: Known<()>) -> Self {
        let (living, ended, matrix) = Default::default();
        let (unclaimed, renumbered, missing) = Default::default();
        Self {
            sharing,
            follow,
            living,
            ended,
            unclaimed,
            renumbered,
            missing,
            matrix,
            gaps: 0,
            balancing,
        }
    }

    /// Follows a task that is there since `since_ns`, the trace's beginning. `seen_on` is where it was seen to be at any
    /// time since then: it counts only if no event says otherwise, so it need not be in step with the events.
    pub fn adopt(&mut self, tid: i32, name: &str, seen_on: Option<CpuId>, since_ns: u64) {
        let name = name.to_owned();
        let life = Life {
            name,
            seen_on,
            since_ns,
            followed_ns: since_ns,
            ..Life::default()
        };
        self.living.entry(tid).or_insert(life);
    }

    /// Tasks were seen where [`Self::adopt`] has them before `time_ns`, by now: where the first event of one is younger and begins elsewhere,
    /// a move was not seen.
    pub fn were_seen_before(&mut self, time_ns: u64) {
        for life in self.living.values_mut() {
            life.seen_before_ns = Some(time_ns);
        }
    }

    /// A task was seen on `cpu` at some time after `time_ns`. Call this when all events until then are taken: where none is
    /// younger and the last one leaves the task elsewhere, a move was not seen.
    pub fn was_seen(&mut self, tid: i32, cpu: Option<CpuId>, time_ns: u64) {
        let Some(life) = self.life(tid, time_ns) else {
            return;
        };
        let known = life.cpu.or(life.seen_on);
        let is_elsewhere =
            life.since_ns <= time_ns && known.is_some() && cpu.is_some() && known != cpu;
        self.gaps += u64::from(is_elsewhere);
    }

    pub fn any_alive(&self) -> bool {
        !self.living.is_empty()
    }

    /// Whether the number of this task was taken by another thread of its process, which became another program.
    pub fn is_renumbered(&self, tid: i32) -> bool {
        self.renumbered.contains(&tid)
    }

    /// Ends the lives of tasks that are not there any more and whose end no event told, because it was lost: those that were
    /// missing here and the last time this was called. Leave enough time in between for events to be read.
    pub fn end_missing(&mut self, time_ns: u64, is_there: impl Fn(i32) -> bool) {
        let missing: HashSet<i32> = self
            .living
            .keys()
            .copied()
            .filter(|&tid| !is_there(tid))
            .collect();
        let before = std::mem::replace(&mut self.missing, missing.clone());
        for tid in missing.intersection(&before) {
            if let Some(life) = self.living.remove(tid) {
                self.close(*tid, life, time_ns, true);
            }
        }
    }

    /// Takes the next event. What happened to a task before it was followed is left out.
    pub fn take(&mut self, time_ns: u64, event: Event) {
        if let Event::Moved { tid, .. } | Event::PagesMoved { tid, .. } = event
            && !self.living.contains_key(&tid)
            && let Some(events) = self.unclaimed.get_mut(&tid)
        {
            if events.len() < MAX_UNCLAIMED_EVENTS {
                events.push((time_ns, event));
            }
            return;
        }
        match event {
            Event::Renumbered { old, new } => self.renumber(time_ns, old, new),
            Event::Forked {
                parent,
                child,
                name,
            } => {
                // The number is given out again.
                self.unclaimed.remove(&child);
                if self.follow && self.life(parent, time_ns).is_some() {
                    // Either adopted before this event was read, or a number given out again after an end that was lost.
                    match self.living.remove(&child) {
                        Some(life) if life.cpu.is_some() => self.close(child, life, time_ns, false),
                        _ => {}
                    }
                    self.adopt(child, &name, None, time_ns);
                }
            }
            Event::Born { tid, cpu } => {
                if let Some(life) = self.life(tid, time_ns) {
                    // From its making until here it was nowhere.
                    (life.cpu, life.since_ns) = (Some(cpu), time_ns);
                }
            }
            Event::Moved {
                tid,
                name,
                from,
                to,
            } => self.moved(time_ns, tid, name, from, to),
            Event::Ended { tid, name } => {
                if self.life(tid, time_ns).is_some()
                    && let Some(life) = self.living.remove(&tid)
                {
                    self.close(tid, Life { name, ..life }, time_ns, true);
                    self.unclaimed.insert(tid, Vec::new());
                }
            }
            Event::Steered { tid, with } => {
                self.each(tid, with, time_ns, |life| life.balanced.task_moves += 1)
            }
            Event::Stuck { tid, with } => self.each(tid, with, time_ns, |life| life.undone += 1),
            Event::PagesMoved { tid, pages } => {
                self.each(tid, None, time_ns, |life| {
                    life.balanced.pages_migrated += pages
                });
            }
        }
    }

    /// A thread has taken the number of its process' first thread: its life goes on under that.
    fn renumber(&mut self, time_ns: u64, old: i32, new: i32) {
        let unclaimed = self.unclaimed.remove(&new).unwrap_or_default();
        if self.life(old, time_ns).is_none() {
            return;
        }
        let Some(life) = self.living.remove(&old) else {
            return;
        };
        // Its end was lost: it had ended before its number could be taken.
        if let Some(first) = self.living.remove(&new) {
            self.close(new, first, time_ns, true);
        }
        self.living.insert(new, life);
        self.renumbered.insert(new);
        // What it did between taking the number and saying so.
        unclaimed
            .into_iter()
            .for_each(|(time_ns, event)| self.take(time_ns, event));
    }

    /// A task that was followed by then.
    fn life(&mut self, tid: i32, time_ns: u64) -> Option<&mut Life> {
        self.living
            .get_mut(&tid)
            .filter(|life| time_ns >= life.followed_ns)
    }

    /// Something that NUMA balancing did to one or two of the followed tasks.
    fn each(&mut self, tid: i32, with: Option<i32>, time_ns: u64, change: impl Fn(&mut Life)) {
        [Some(tid), with].into_iter().flatten().for_each(|tid| {
            self.life(tid, time_ns).map(&change);
        });
    }

    fn moved(&mut self, time_ns: u64, tid: i32, name: String, from: CpuId, to: CpuId) {
        // set_task_cpu() in kernel/sched/core.c says this before it looks whether there is anything to do.
        if from == to {
            return;
        }
        let Some(life) = self
            .living
            .get_mut(&tid)
            .filter(|life| time_ns >= life.followed_ns)
        else {
            return;
        };
        let is_after_look = life.seen_before_ns.is_some_and(|seen| seen <= time_ns);
        let known = life.cpu.or(life.seen_on.filter(|_| is_after_look));
        self.gaps += u64::from(known.is_some_and(|cpu| cpu != from));
        // If the task's CPU was unknown, this event gives it.
        life.cpu = life.cpu.or(Some(from));
        life.pass(time_ns, &self.sharing);
        (life.cpu, life.name) = (Some(to), name);
        *life.counts.of(self.sharing.class(from, to)) += 1;
        *self
            .matrix
            .entry((self.sharing.node_of(from), self.sharing.node_of(to)))
            .or_default() += 1;
    }

    fn close(&mut self, tid: i32, mut life: Life, time_ns: u64, ended: bool) {
        life.cpu = life.cpu.or(life.seen_on);
        life.pass(time_ns, &self.sharing);
        let traced = self.balancing.get().is_some();
        self.ended.push(life.told(tid, ended, traced));
    }

    /// The trace is over: what was found, and what NUMA balancing did on the whole machine.
    pub fn finish(mut self, time_ns: u64, machine: Known<MachineCounts>) -> Migrations {
        for (tid, life) in std::mem::take(&mut self.living) {
            self.close(tid, life, time_ns, false);
        }
        let mut tasks = self.ended;
        tasks.sort_by_key(|task| {
            let ClassCounts { cross_node, .. } = task.migrations;
            (
                std::cmp::Reverse((cross_node, task.migrations.total())),
                task.tid,
            )
        });
        let mut migrations = ClassCounts::default();
        let mut time: BTreeMap<Option<NodeId>, f64> = BTreeMap::new();
        let mut balanced = Balanced::default();
        for task in &tasks {
            balanced.add(&task.numa_balancing.unwrap_or_default());
            migrations.add(&task.migrations);
            task.time
                .iter()
                .for_each(|spent| *time.entry(spent.node).or_default() += spent.seconds);
        }
        let matrix = self
            .matrix
            .into_iter()
            .map(|((from, to), migrations)| FromTo {
                from,
                to,
                migrations,
            });
        Migrations {
            migrations,
            caches_known: self.sharing.caches_known(),
            matrix: matrix.collect(),
            time: time
                .into_iter()
                .map(|(node, seconds)| NodeTime { node, seconds })
                .collect(),
            tasks,
            gaps: self.gaps,
            numa_balancing: NumaBalancing {
                tasks: self.balancing.map(|()| balanced),
                machine,
            },
        }
    }
}

impl Life {
    /// Books the time since the last event to the node where the task was.
    fn pass(&mut self, time_ns: u64, sharing: &Sharing) {
        let node = self.cpu.and_then(|cpu| sharing.node_of(cpu));
        *self.time_ns.entry(node).or_default() += time_ns.saturating_sub(self.since_ns);
        self.since_ns = self.since_ns.max(time_ns);
    }

    fn told(self, tid: i32, ended: bool, traced: bool) -> TaskMoves {
        let time = self.time_ns.into_iter().filter(|(_, spent)| *spent > 0);
        let time = time
            .map(|(node, spent)| NodeTime {
                node,
                seconds: spent as f64 / 1e9,
            })
            .collect();
        let task_moves = self.balanced.task_moves.saturating_sub(self.undone);
        let numa_balancing = traced.then_some(Balanced {
            task_moves,
            ..self.balanced
        });
        TaskMoves {
            tid,
            name: self.name,
            ended,
            migrations: self.counts,
            time,
            numa_balancing,
        }
    }
}

/// How far a move went: the narrowest thing that both CPUs are in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// SMT siblings: all caches stay.
    SameCore,
    /// The last-level cache stays, the core's own are left behind.
    SameCache,
    /// Another last-level cache of the same node; also where it is unknown which CPUs share one.
    SameNode,
    /// Another node: caches left behind, and memory is as far as it is.
    CrossNode,
    /// A CPU of which no node is known.
    Unknown,
}

/// What CPUs share, looked up once for a machine.
#[derive(Clone, Debug)]
pub struct Sharing {
    cpus: HashMap<CpuId, Place>,
    caches_known: bool,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    node: Option<NodeId>,
    core: Option<CpuId>,
    cache: Option<usize>,
}

impl Sharing {
    /// Looks through the CPUs and caches of a machine.
    pub fn new(machine: &Machine) -> Self {
        let mut last: HashMap<CpuId, usize> = HashMap::new();
        for (index, cache) in machine.caches.iter().enumerate() {
            if cache.kind == CacheKind::Instruction {
                continue;
            }
            for cpu in cache.cpus.iter() {
                let place = last.entry(cpu).or_insert(index);
                let level =
                    |index: usize| machine.caches.get(index).map(|cache: &Cache| cache.level);
                if level(*place) < Some(cache.level) {
                    *place = index;
                }
            }
        }
        let place = |cpu: &nearfar_machine::Cpu| Place {
            node: cpu.node,
            core: cpu.core,
            cache: last.get(&cpu.id).copied(),
        };
        Self {
            cpus: machine
                .cpus
                .iter()
                .map(|cpu| (cpu.id, place(cpu)))
                .collect(),
            caches_known: !last.is_empty(),
        }
    }

    /// Whether it is known which CPUs share a last-level cache; if not, no move is ever [`Class::SameCache`].
    pub fn caches_known(&self) -> bool {
        self.caches_known
    }

    pub fn node_of(&self, cpu: CpuId) -> Option<NodeId> {
        self.cpus.get(&cpu)?.node
    }

    /// The class of a move. The node decides first: with sub-NUMA clusters a last-level cache may span nodes.
    pub fn class(&self, from: CpuId, to: CpuId) -> Class {
        let (Some(from), Some(to)) = (self.cpus.get(&from), self.cpus.get(&to)) else {
            return Class::Unknown;
        };
        let same = |a: Option<_>, b: Option<_>| a.is_some() && a == b;
        match (from.node, to.node) {
            (Some(a), Some(b)) if a != b => Class::CrossNode,
            (Some(_), Some(_)) if same(from.core, to.core) => Class::SameCore,
            (Some(_), Some(_)) if from.cache.is_some() && from.cache == to.cache => {
                Class::SameCache
            }
            (Some(_), Some(_)) => Class::SameNode,
            _ => Class::Unknown,
        }
    }
}

//! What is known of descent and choice beyond what /proc shows: from the [`super::observer`], if there is one.

use std::collections::HashMap;

use nearfar_proc::{affinity, tasks};

use super::look::THOROUGH;
use super::observer::{Event, Observer, Within};
use super::threads::ThreadMasks;

/// By thread, what it inherited.
#[derive(Default)]
pub(super) struct Lineage {
    observer: Option<Observer>,
    /// Threads that were made by a kept one or a descendant of one, and not taken in yet: the masks that they inherited;
    /// none for one that has or inherited a mask of the program's own choice.
    made: HashMap<i32, Option<usize>>,
    /// Makers that were not known: what they made may be found when their own making is, in the next round.
    open: Vec<(i32, i32)>,
}

impl Lineage {
    pub(super) fn new(observer: Option<Observer>) -> Self {
        Self {
            observer,
            ..Self::default()
        }
    }

    /// What a thread that is not taken in yet has inherited.
    pub(super) fn of(&self, tid: i32) -> Option<Option<usize>> {
        self.made.get(&tid).copied()
    }

    pub(super) fn take(&mut self, tid: i32) {
        self.made.remove(&tid);
    }

    /// A thread that is known to be made by one of these masks.
    pub(super) fn put(&mut self, tid: i32, group: Option<usize>) {
        self.made.insert(tid, group);
    }

    /// Threads that are not taken in yet.
    pub(super) fn waiting(&self) -> Vec<i32> {
        self.made.keys().copied().collect()
    }

    /// From now on, makers that are not known by now are ignored: one may be kept from now on.
    pub(super) fn close(&mut self) {
        self.open.clear();
    }
}

impl ThreadMasks {
    /// Takes in what happened since the last time.
    pub(super) fn observe(&mut self) {
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

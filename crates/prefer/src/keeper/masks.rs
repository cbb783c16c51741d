//! The masks of kept threads: what each asked for (its *own*), and the part of that on the preferred node (*narrow*).

use std::collections::{BTreeMap, HashMap};
use std::io;

use nearfar_change::lease::Masks;
use nearfar_machine::CpuSet;
use nearfar_proc::affinity;
use nearfar_proc::cpuset::Cpusets;

use crate::rule::Place;

/// Threads that asked for the same are one group, named by its place here.
pub(super) struct MaskTable {
    pub(super) home: CpuSet,
    pub(super) groups: Vec<Masks>,
    pub(super) cpusets: Cpusets,
    /// By what was asked for and whether that was nothing.
    index: HashMap<(CpuSet, bool), usize>,
    asker: affinity::Asker,
    /// By group and whether on the preferred node, the mask that was found to be ours at the last look, as the kernel gives it.
    ours: BTreeMap<(usize, bool), Vec<libc::c_ulong>>,
}

/// A mask that was found to be ours in the cpuset of a thread: whether on the preferred node, and as the kernel gives it.
pub(super) type SeenMask = (bool, Vec<libc::c_ulong>);

impl MaskTable {
    pub(super) fn new(home: CpuSet) -> Self {
        Self {
            home,
            groups: Vec::new(),
            cpusets: Cpusets::of_this_system(),
            index: HashMap::new(),
            asker: affinity::Asker::default(),
            ours: BTreeMap::new(),
        }
    }

    /// Whether the narrow mask differs from the own one.
    pub(super) fn confines(&self, group: usize) -> bool {
        self.groups[group].confines()
    }

    /// The group of a thread with this mask; none where none of its CPUs is the node's.
    pub(super) fn group_of(&mut self, tid: i32, mask: &CpuSet) -> Option<usize> {
        if !mask.intersects(&self.home) {
            return None;
        }
        let unconfined = self.cpusets.asked_for_none(tid, mask);
        let own = if unconfined {
            self.cpusets.possible().clone()
        } else {
            mask.clone()
        };
        let key = (own, unconfined);
        if let Some(&group) = self.index.get(&key) {
            return Some(group);
        }
        self.groups.push(self.masks_of(&key.0, unconfined));
        self.index.insert(key, self.groups.len() - 1);
        Some(self.groups.len() - 1)
    }

    /// What threads that asked for these CPUs get while they are kept.
    fn masks_of(&self, own: &CpuSet, unconfined: bool) -> Masks {
        // The preferred node's CPUs as a whole also where a cpuset allows fewer: it may allow more later.
        let narrow = match unconfined && self.cpusets.online().is_subset(&self.home) {
            true => own.clone(),
            false if unconfined => self.home.clone(),
            false => own.intersection(&self.home),
        };
        match unconfined {
            true => Masks::unconfined(&self.cpusets, narrow, Vec::new()),
            false => Masks::new(own.clone(), narrow, Vec::new()),
        }
    }

    /// The node has these CPUs from now on. The groups whose narrow masks change, with the new ones.
    pub(super) fn rehome(&mut self, home: CpuSet) -> Vec<(usize, Masks)> {
        self.cpusets.refresh();
        self.home = home;
        self.ours.clear();
        let new = |old: &Masks| self.masks_of(&old.own, old.unconfined);
        let renewed = self.groups.iter().map(new).enumerate();
        renewed
            .filter(|(group, new)| {
                new.narrow != self.groups[*group].narrow && !new.narrow.is_empty()
            })
            .collect()
    }

    /// Where a thread with this mask is, if it has one of the group's two.
    pub(super) fn place_of(&mut self, tid: i32, mask: &CpuSet, group: usize) -> Option<Place> {
        [Place::Home, Place::Anywhere]
            .into_iter()
            .find(|&place| self.is_at(tid, mask, group, place))
    }

    fn is_at(&mut self, tid: i32, mask: &CpuSet, group: usize, place: Place) -> bool {
        let masks = &self.groups[group];
        match place {
            Place::Home => masks.is_narrow(tid, mask, &mut self.cpusets),
            Place::Anywhere => masks.is_own(tid, mask, &mut self.cpusets),
        }
    }

    /// The mask of a thread, where it is not as we left it. `seen`: what was found to be ours at the last look.
    ///
    /// # Errors
    /// When the thread is gone.
    pub(super) fn foreign(
        &mut self,
        tid: i32,
        group: usize,
        place: Place,
        seen: &mut Option<SeenMask>,
    ) -> io::Result<Option<CpuSet>> {
        let words = self.asker.ask(tid)?;
        let key = (group, place == Place::Home);
        let is_known = self.ours.get(&key).is_some_and(|known| known == words);
        if is_known || matches!(seen, Some((at_home, seen)) if *at_home == key.1 && seen == words) {
            return Ok(None);
        }
        let (mask, words) = (affinity::cpus_of(words), words.to_vec());
        let masks = &self.groups[group];
        let requested = if key.1 { &masks.narrow } else { &masks.own };
        if mask == requested.intersection(self.cpusets.online()) {
            self.ours.insert(key, words);
            return Ok(None);
        }
        // Its cpuset or the CPUs that are online may have changed.
        self.cpusets.refresh();
        if self.is_at(tid, &mask, group, place) {
            *seen = Some((key.1, words));
            return Ok(None);
        }
        Ok(Some(mask))
    }
}

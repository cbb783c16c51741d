//! The CPUs of the home node, which may change while tasks are kept: CPUs come online and go.

use std::collections::BTreeMap;

use nearfar_machine::CpuSet;
use nearfar_proc::affinity;
use nearfar_proc::cpuset;

use super::look::THOROUGH;
use super::threads::ThreadMasks;
use crate::rule::Place;

impl ThreadMasks {
    /// Reads the node's CPUs again; now and then.
    pub(super) fn rehome(&mut self) {
        let Some(nodes) = self
            .options
            .nodes
            .as_ref()
            .filter(|_| self.counts.looks.is_multiple_of(THOROUGH / 8))
        else {
            return;
        };
        let file = nodes.join(format!("node{}/cpulist", self.counts.node));
        // A node that has gone, or has no CPU now: its tasks run where the kernel puts them, and it may return.
        let Ok(home) = cpuset::list_in(&file) else {
            return;
        };
        if home != self.masks.home && !home.is_empty() {
            self.move_home(home);
        }
    }

    /// The threads on the preferred node run on these CPUs from now on.
    fn move_home(&mut self, home: CpuSet) {
        self.counts.cpus = home.clone();
        for (group, new) in self.masks.rehome(home) {
            let threads = self.threads.iter();
            let threads: BTreeMap<i32, i32> = threads
                .filter(|(_, it)| it.group == Some(group))
                .map(|(&tid, it)| (tid, it.process))
                .collect();
            let listed: Vec<(i32, i32)> = threads
                .iter()
                .map(|(&tid, &process)| (process, tid))
                .collect();
            let old = std::mem::replace(&mut self.masks.groups[group], new);
            // Not on record, not changed: they stay on the CPUs that they have, and the next change is another chance.
            let Ok(noted) = self.note(group, &listed) else {
                self.masks.groups[group] = old;
                continue;
            };
            for tid in noted {
                if self
                    .controller
                    .place(tid)
                    .is_none_or(|place| place == Place::Home)
                {
                    self.renew(tid, threads[&tid], group, &old);
                }
            }
        }
    }

    fn renew(&mut self, tid: i32, process: i32, group: usize, old: &nearfar_change::lease::Masks) {
        let Ok(mask) = affinity::get(tid) else { return };
        if !old.is_narrow(tid, &mask, &mut self.masks.cpusets) {
            return self.skip(tid, process, mask);
        }
        let masks = &self.masks.groups[group];
        let renewed = if masks.confines() {
            affinity::set(tid, &masks.narrow)
        } else {
            masks.give_back(tid)
        };
        // Where its cpuset has none of them, the kernel still has the earlier ones.
        if renewed.is_ok() {
            self.controller.remove(tid);
            if self.masks.confines(group) {
                self.controller.put(tid, Place::Home);
            }
        }
    }
}

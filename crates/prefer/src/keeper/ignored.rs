//! Processes that were looked at and are not kept.

use std::collections::BTreeMap;

use nearfar_proc::tasks;

/// Start times, in clock ticks since boot, by process: a number is given again.
#[derive(Default)]
pub(super) struct Ignored(BTreeMap<i32, u64>);

impl Ignored {
    pub(super) fn add(&mut self, pid: i32) {
        // One that has ended meanwhile is not found again.
        if let Ok(stat) = tasks::stat(pid) {
            self.0.insert(pid, stat.id.start);
        }
    }

    pub(super) fn remove(&mut self, pid: i32) {
        self.0.remove(&pid);
    }

    pub(super) fn has(&self, pid: i32) -> bool {
        self.0.get(&pid).is_some_and(|&start| is_same(pid, start))
    }

    pub(super) fn forget_ended(&mut self) {
        self.0.retain(|&pid, &mut start| is_same(pid, start));
    }
}

fn is_same(pid: i32, start: u64) -> bool {
    tasks::stat(pid).is_ok_and(|stat| stat.id.start == start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_with_the_same_number_is_not_ignored() {
        let pid = std::process::id().cast_signed();
        let mut ignored = Ignored::default();
        ignored.add(pid);
        assert!(ignored.has(pid) && !ignored.has(1));
        // As one that had the number before.
        *ignored.0.get_mut(&pid).unwrap() -= 1;
        assert!(!ignored.has(pid));
        ignored.forget_ended();
        assert!(ignored.0.is_empty());
    }
}

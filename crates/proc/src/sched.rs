//! `/proc/PID/sched`: what the scheduler and NUMA balancing know of a task (proc_sched_show_task() in
//! kernel/sched/debug.c; with CONFIG_SCHED_DEBUG, and only while the task is alive).
//!
//! ```text
//! sh (7, #threads: 1)
//! se.nr_migrations                             :                   12
//! numa_preferred_nid                           :                   -1
//! numa_faults node=0 task_private=3 task_shared=0 group_private=0 group_shared=0
//! ```

use nearfar_machine::{MAX_NUMBER, NodeId};

use crate::text;

/// The content of a sched file.
#[derive(Clone, Copy, Debug)]
pub struct Sched<'a>(&'a [u8]);

impl<'a> Sched<'a> {
    pub fn of(content: &'a [u8]) -> Self {
        Self(content)
    }

    /// The number behind a key, such as `se.nr_migrations`.
    pub fn number(&self, key: &str) -> Option<i64> {
        self.lines().find_map(|line| {
            let rest = line.strip_prefix(key.as_bytes())?.trim_ascii_start();
            text::number(rest.strip_prefix(b":")?)
        })
    }

    /// How often the kernel moved the task from CPU to CPU since it started.
    pub fn migrations(&self) -> Option<u64> {
        u64::try_from(self.number("se.nr_migrations")?).ok()
    }

    /// The node on which NUMA balancing would run the task; `Some(None)` when it has none (-1).
    pub fn preferred_node(&self) -> Option<Option<NodeId>> {
        match self.number("numa_preferred_nid")? {
            -1 => Some(None),
            node => Some(Some(node_id(node)?)),
        }
    }

    /// Recent hint faults of the task itself, private and shared, by the node of the memory.
    pub fn faults_by_node(&self) -> Vec<(NodeId, u64)> {
        self.lines().filter_map(faults_of_line).collect()
    }

    /// The first line begins with the name of the task, which could say anything.
    fn lines(&self) -> impl Iterator<Item = &'a [u8]> {
        text::lines(self.0).skip(1)
    }
}

fn faults_of_line(line: &[u8]) -> Option<(NodeId, u64)> {
    let rest = std::str::from_utf8(line.strip_prefix(b"numa_faults ")?).ok()?;
    let value = |key: &str| {
        rest.split(' ')
            .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
            .and_then(|text| text.parse::<u64>().ok())
    };
    let node = node_id(i64::try_from(value("node")?).ok()?)?;
    Some((
        node,
        value("task_private")?.saturating_add(value("task_shared")?),
    ))
}

fn node_id(number: i64) -> Option<NodeId> {
    let number = u32::try_from(number).ok()?;
    (number <= MAX_NUMBER).then_some(NodeId(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_their_whole_key() {
        let text = b"sh (7, #threads: 1)\nse.nr_migrations_cold : 3\nse.nr_migrations     :   12\n\
            numa_preferred_nid : -1\nnuma_faults node=1 task_private=3 task_shared=4 group_private=9 group_shared=9\n";
        let sched = Sched::of(text);
        assert_eq!(sched.migrations(), Some(12));
        assert_eq!(sched.preferred_node(), Some(None));
        assert_eq!(sched.faults_by_node(), [(NodeId(1), 7)]);
        let other = Sched::of(b"x\nnuma_preferred_nid : 3\nse.nr_migrations : -1\n");
        assert_eq!(other.preferred_node(), Some(Some(NodeId(3))));
        assert_eq!(other.migrations(), None);
    }

    #[test]
    fn the_name_in_the_first_line_is_not_a_value() {
        let sched = Sched::of(b"se.nr_migrations : 1 (7, #threads: 1)\n\xff\n");
        assert_eq!(sched.migrations(), None);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, line in "\n(numa_faults node|numa_preferred_nid :|se.nr_migrations)\\PC*") {
            for content in [&bytes[..], line.as_bytes()] {
                let sched = Sched::of(content);
                let _ = (sched.migrations(), sched.preferred_node(), sched.faults_by_node());
            }
        }
    }
}

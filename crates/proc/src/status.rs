//! `/proc/PID/status`: a line for each field (proc_pid_status(5)).
//!
//! It begins with the task's name. The kernel escapes line feeds and backslashes of names there and nothing else
//! (proc_task_name() in fs/proc/array.c), so the text may be no UTF-8.

use nearfar_machine::{CpuSet, NodeSet};

use crate::text;

/// The content of a status file. A field is searched for when it is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Status<'a>(&'a [u8]);

impl<'a> Status<'a> {
    pub fn of(content: &'a [u8]) -> Self {
        Self(content)
    }

    /// The process that the thread belongs to (`Tgid`).
    pub fn process(&self) -> Option<i32> {
        text::number(self.field("Tgid:")?)
    }

    /// The numbers of the thread, from this pid namespace's to its own's; one where that is the same (`NSpid`). Since
    /// Linux 4.1.
    pub fn numbers(&self) -> Option<Vec<i32>> {
        self.field("NSpid:").map(text::numbers)
    }

    /// The CPUs it may run on (`Cpus_allowed_list`).
    pub fn allowed_cpus(&self) -> Option<CpuSet> {
        CpuSet::parse_list(self.text("Cpus_allowed_list:")?).ok()
    }

    /// The nodes that its memory may come from (`Mems_allowed_list`).
    pub fn allowed_nodes(&self) -> Option<NodeSet> {
        NodeSet::parse_list(self.text("Mems_allowed_list:")?).ok()
    }

    /// Bytes that cannot be swapped out or moved (`VmLck` and `VmPin`). Threads of the kernel have neither line: 0.
    /// `None` when a line is malformed.
    pub fn pinned_bytes(&self) -> Option<u64> {
        ["VmLck:", "VmPin:"].iter().try_fold(0u64, |sum, key| {
            let bytes = match self.field(key) {
                Some(size) => text::kilobytes(size)?,
                None => 0,
            };
            Some(sum.saturating_add(bytes))
        })
    }

    /// The user that it runs as: the real user id, the first of `Uid`.
    pub fn user(&self) -> Option<u32> {
        text::numbers(self.field("Uid:")?).first().copied()
    }

    /// Threads of its process (`Threads`).
    pub fn threads(&self) -> Option<u32> {
        text::number(self.field("Threads:")?)
    }

    /// A size in bytes by its key, `RssAnon`; `None` when there is no such line: threads of the kernel have no memory.
    pub fn bytes(&self, key: &str) -> Option<u64> {
        let line = text::lines(self.0).find_map(|line| {
            let rest = line.strip_prefix(key.as_bytes())?;
            rest.strip_prefix(b":")
        });
        text::kilobytes(line?)
    }

    fn field(&self, key: &str) -> Option<&'a [u8]> {
        text::after(self.0, key)
    }

    fn text(&self, key: &str) -> Option<&'a str> {
        Some(std::str::from_utf8(self.field(key)?).ok()?.trim())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_that_is_not_utf8_does_not_hide_the_process() {
        let process = |text: &[u8]| Status::of(text).process();
        assert_eq!(process(b"Name:\t\xff\nTgid:\t4711\n"), Some(4711));
        let first = b"Name:\t\xd1\x81\nTgid: 9\nUmask:\t0022\nTgid:\t4711\n";
        assert_eq!(process(first), Some(9), "a line is a field");
        assert_eq!(process(b"Name:\tTgid: 7\n"), None);
        assert_eq!(process(b"Tgid:\t\xff\n"), None);
    }

    #[test]
    fn fields_are_read_with_their_units() {
        let status = Status::of(
            b"Name:\tx\nNSpid:\t7\t1\nVmLck:\t 4 kB\nVmPin:\t8 kB\nCpus_allowed_list:\t0-3,8\nMems_allowed_list:\t1\n",
        );
        assert_eq!(status.numbers(), Some(vec![7, 1]));
        assert_eq!(status.pinned_bytes(), Some(12 << 10));
        assert_eq!(status.allowed_cpus(), CpuSet::parse_list("0-3,8").ok());
        assert_eq!(status.allowed_nodes(), NodeSet::parse_list("1").ok());
        assert_eq!(Status::of(b"").pinned_bytes(), Some(0));
        let status = Status::of(b"Uid:\t1000\t0\t0\t0\nRssAnon:\t  8 kB\nThreads:\t3\n");
        assert_eq!((status.user(), status.threads()), (Some(1000), Some(3)));
        assert_eq!(
            (
                status.bytes("RssAnon"),
                status.bytes("Rss"),
                status.bytes("RssFile")
            ),
            (Some(8192), None, None)
        );
        assert_eq!(Status::of(b"VmLck:\t4 MB\n").pinned_bytes(), None);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, line in "(VmLck|VmPin|Tgid|NSpid|Cpus_allowed_list|Mems_allowed_list):\\PC*") {
            for content in [&bytes[..], line.as_bytes()] {
                let status = Status::of(content);
                let _ = (status.process(), status.numbers(), status.allowed_cpus(), status.allowed_nodes());
                let _ = (status.pinned_bytes(), status.user(), status.threads(), status.bytes("VmLck"));
            }
        }
    }
}

//! What the small files of /proc/PID say of a task.
//!
//! ```text
//! stat       state, descent, times and CPU (proc_pid_stat(5), which counts fields from 1)
//! comm       its name: bytes, since the kernel cuts it after 15 of them, also within a character
//! status     a line for each field (proc_pid_status(5))
//! schedstat  how long a thread ran and waited (Documentation/scheduler/sched-stats.rst)
//! sched      what the scheduler and NUMA balancing know of it (proc_sched_show_task() in kernel/sched/debug.c; with
//!            CONFIG_SCHED_DEBUG, and only while the task is alive)
//! ```
//!
//! `status` begins with the task's name. The kernel escapes line feeds and backslashes of names there and nothing else
//! (proc_task_name() in fs/proc/array.c), so the text may be no UTF-8. `sched`:
//!
//! ```text
//! sh (7, #threads: 1)
//! se.nr_migrations                             :                   12
//! numa_preferred_nid                           :                   -1
//! numa_faults node=0 task_private=3 task_shared=0 group_private=0 group_shared=0
//! ```

use std::fmt;

use nearfar_machine::{CpuId, CpuSet, MAX_NUMBER, NodeId, NodeSet};
use serde::{Deserialize, Serialize};

use crate::text;

/// `PF_EXITING` of include/linux/sched.h: set before the memory is given back, which comes before the state of a zombie
/// (do_exit() in kernel/exit.c).
const EXITING: u32 = 0x4;
/// `PF_KTHREAD`.
const KERNEL_THREAD: u32 = 0x0020_0000;
/// Field 3, the state, is the first one after the name.
const FIRST_FIELD: usize = 3;

/// A thread, told apart from every later one with its number.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct TaskId {
    pub tid: i32,
    /// When it started, in clock ticks since boot (field 22).
    pub start: u64,
}

/// What /proc/PID/stat says of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stat {
    pub id: TaskId,
    /// The letter of its state: R, S, D, Z...
    pub state: char,
    pub parent: i32,
    /// Its process group.
    pub group: i32,
    pub session: i32,
    /// `PF_*` of include/linux/sched.h.
    pub flags: u32,
    /// Page faults without I/O of all its threads so far (field 10).
    pub minor_faults: u64,
    /// Time in user mode, in clock ticks.
    pub user_ticks: u64,
    /// Time in kernel mode, in clock ticks.
    pub system_ticks: u64,
    /// Threads of its process (field 20).
    pub threads: u32,
    /// Memory of its process in pages (field 24), as of when the kernel last added its counts up; 0 in recordings that were cut.
    pub resident_pages: u64,
    /// The CPU it runs on or ran on last (field 39). `None` in recordings that were cut.
    pub cpu: Option<CpuId>,
}

impl Stat {
    /// `4711 (a name) S 1 4711 4711 ...`; the name may hold anything, brackets as well.
    pub fn parse(stat: &[u8]) -> Option<Self> {
        let (before, _, after) = split(stat)?;
        let mut fields = std::str::from_utf8(after).ok()?.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let mut at = FIRST_FIELD;
        let mut field = |wanted: usize| {
            let found = fields.nth(wanted - at - 1);
            at = wanted;
            found
        };
        Some(Self {
            state,
            parent: field(4)?.parse().ok()?,
            group: field(5)?.parse().ok()?,
            session: field(6)?.parse().ok()?,
            flags: field(9)?.parse().ok()?,
            minor_faults: field(10)?.parse().ok()?,
            user_ticks: field(14)?.parse().ok()?,
            system_ticks: field(15)?.parse().ok()?,
            threads: field(20)?.parse().ok()?,
            id: TaskId {
                tid: text::number(before)?,
                start: field(22)?.parse().ok()?,
            },
            resident_pages: field(24).and_then(|it| it.parse().ok()).unwrap_or(0),
            cpu: field(39)
                .and_then(|cpu| cpu.parse().ok())
                .filter(|&cpu| cpu <= MAX_NUMBER)
                .map(CpuId),
        })
    }

    /// Also the name, which the same line has.
    pub fn parse_with_name(stat: &[u8]) -> Option<(Self, Comm)> {
        let (_, name, _) = split(stat)?;
        Some((Self::parse(stat)?, Comm::new(name)))
    }

    /// Whether the thread has ended and only its number is left, until its parent has waited for it.
    pub fn is_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }

    /// Whether the thread ends or has ended: it may have no memory any more.
    pub fn is_ending(&self) -> bool {
        self.flags & EXITING != 0 || self.is_ended()
    }

    /// Whether it is a thread of the kernel's own.
    pub fn is_kernel_thread(&self) -> bool {
        self.flags & KERNEL_THREAD != 0
    }

    /// Time on a CPU, in seconds; the clock of /proc has 100 ticks a second.
    pub fn cpu_seconds(&self) -> f64 {
        let ticks = self.user_ticks.saturating_add(self.system_ticks);
        ticks as f64 / rustix::param::clock_ticks_per_second() as f64
    }

    /// When it started, in seconds since boot, rounded down to a clock tick.
    pub fn started_seconds(&self) -> f64 {
        self.id.start as f64 / rustix::param::clock_ticks_per_second() as f64
    }
}

/// What distinguishes a program's memory from that of the program a process ran before: where its code and its stack begin
/// (fields 26 and 28), which the kernel chooses at random with each execve(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Image {
    pub code: u64,
    pub stack: u64,
}

impl Image {
    /// Of the content of /proc/PID/stat; `None` where it does not say. Without ptrace access the code is at 1 and the stack at
    /// 0; of a thread that has ended, both are at 0 (do_task_stat in fs/proc/array.c).
    pub fn parse(stat: &[u8]) -> Option<Self> {
        let (_, _, after) = split(stat)?;
        let mut fields = std::str::from_utf8(after).ok()?.split_ascii_whitespace();
        let code = fields.nth(26 - FIRST_FIELD)?.parse().ok()?;
        let stack = fields.nth(1)?.parse().ok()?;
        (code > 1 && stack > 0).then_some(Self { code, stack })
    }
}

/// What stands before the brackets of the name, in them, and after them.
fn split(stat: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let open = stat.iter().position(|&byte| byte == b'(')?;
    let close = stat.iter().rposition(|&byte| byte == b')')?;
    Some((
        &stat[..open],
        stat.get(open + 1..close)?,
        stat.get(close + 1..)?,
    ))
}

/// The name of a task. Not UTF-8 by contract, and not only of one line: `prctl(PR_SET_NAME)` takes any bytes but NUL.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Comm(Vec<u8>);

impl Comm {
    /// From the bytes between the brackets of /proc/PID/stat, or from /proc/PID/comm with its line end.
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    pub(crate) fn of_file(content: &[u8]) -> Self {
        Self::new(content.strip_suffix(b"\n").unwrap_or(content))
    }

    /// The bytes that the kernel gives.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// As text, with the replacement character for what is not UTF-8.
    pub fn to_text(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }
}

/// For a terminal: what is not UTF-8 and control characters, which would move its cursor, become replacement characters.
impl fmt::Display for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = String::from_utf8_lossy(&self.0);
        f.write_str(&shown.replace(char::is_control, "\u{fffd}"))
    }
}

/// The content of a status file. A field is searched for when it is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Status<'a>(&'a [u8]);

impl<'a> Status<'a> {
    pub fn of(content: &'a [u8]) -> Self {
        Self(content)
    }

    /// The process that the thread belongs to (`Tgid`).
    pub fn process(&self) -> Option<i32> {
        text::number(self.field("Tgid")?)
    }

    /// The numbers of the thread, from this pid namespace's to its own's; one where that is the same (`NSpid`). Since
    /// Linux 4.1.
    pub fn numbers(&self) -> Option<Vec<i32>> {
        self.field("NSpid").map(text::numbers)
    }

    /// The CPUs it may run on (`Cpus_allowed_list`).
    pub fn allowed_cpus(&self) -> Option<CpuSet> {
        CpuSet::parse_list(self.text("Cpus_allowed_list")?).ok()
    }

    /// The nodes that its memory may come from (`Mems_allowed_list`).
    pub fn allowed_nodes(&self) -> Option<NodeSet> {
        NodeSet::parse_list(self.text("Mems_allowed_list")?).ok()
    }

    /// Bytes that cannot be swapped out or moved (`VmLck` and `VmPin`). Threads of the kernel have neither line: 0.
    /// `None` when a line is malformed.
    pub fn pinned_bytes(&self) -> Option<u64> {
        ["VmLck", "VmPin"].iter().try_fold(0u64, |sum, key| {
            let bytes = match self.field(key) {
                Some(size) => text::kilobytes(size)?,
                None => 0,
            };
            Some(sum.saturating_add(bytes))
        })
    }

    /// The user that it runs as: the real user id, the first of `Uid`.
    pub fn user(&self) -> Option<u32> {
        text::numbers(self.field("Uid")?).first().copied()
    }

    /// Threads of its process (`Threads`).
    pub fn threads(&self) -> Option<u32> {
        text::number(self.field("Threads")?)
    }

    /// A size in bytes by its key, `RssAnon`; `None` when there is no such line: threads of the kernel have no memory.
    pub fn bytes(&self, key: &str) -> Option<u64> {
        text::kilobytes(self.field(key)?)
    }

    fn field(&self, key: &str) -> Option<&'a [u8]> {
        text::after(self.0, key, b":")
    }

    fn text(&self, key: &str) -> Option<&'a str> {
        Some(std::str::from_utf8(self.field(key)?).ok()?.trim())
    }
}

/// Time of a thread since it started. Needs CONFIG_SCHED_INFO.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct RunTime {
    /// On a CPU.
    pub run_ns: u64,
    /// Ready to run, without a CPU. A wait counts when it is over.
    pub wait_ns: u64,
    /// How often it began to run; 0 for a thread that runs where the kernel does not count.
    pub starts: u64,
}

impl RunTime {
    /// The three numbers of a schedstat file.
    pub fn parse(content: &[u8]) -> Option<Self> {
        let mut words = text::words(content);
        Some(Self {
            run_ns: text::number(words.next()?)?,
            wait_ns: text::number(words.next()?)?,
            starts: text::number(words.next()?)?,
        })
    }
}

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
    use proptest::prelude::*;

    use super::*;

    const AFTER: &str = "R 12 13 14 0 -1 4194560 1 0 0 0 120 30 3 4 20 0 1 0 815 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 3 0 0";

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_move_the_fields() {
        let line = format!("4711 (a) S (b c) {AFTER}\n");
        let (stat, name) = Stat::parse_with_name(line.as_bytes()).unwrap();
        let expected = Stat {
            id: TaskId {
                tid: 4711,
                start: 815,
            },
            state: 'R',
            parent: 12,
            group: 13,
            session: 14,
            flags: 4_194_560,
            minor_faults: 1,
            user_ticks: 120,
            system_ticks: 30,
            threads: 1,
            resident_pages: 7,
            cpu: Some(CpuId(3)),
        };
        assert_eq!((stat, name.as_bytes()), (expected, &b"a) S (b c"[..]));
        assert!(!stat.is_ended() && !stat.is_kernel_thread());
        let image = Image::parse(line.as_bytes());
        assert_eq!(image, Some(Image { code: 9, stack: 11 }));
        for hidden in [" 1 1 0 ", " 0 0 0 "] {
            let line = line.replace(" 9 10 11 ", hidden);
            assert_eq!(Image::parse(line.as_bytes()), None, "{hidden}");
        }
    }

    #[test]
    fn a_line_without_what_identifies_a_task_is_refused_and_one_without_a_cpu_is_not() {
        for line in ["4711", "1 )(", "", "7 (a", "7 (a) S 1 2 3", "x (a) S 1 2 3"] {
            assert_eq!(Stat::parse(line.as_bytes()), None, "{line}");
        }
        let cut = &AFTER[..AFTER.find(" 815 ").unwrap() + 4];
        let stat = Stat::parse(format!("1 (a) {cut}").as_bytes()).unwrap();
        assert_eq!((stat.id.start, stat.cpu), (815, None));
        let line = format!("1 (a) {}", AFTER.replace(" 3 0 0", " 99999999 0 0"));
        assert_eq!(Stat::parse(line.as_bytes()).unwrap().cpu, None);
    }

    #[test]
    fn a_task_that_was_not_waited_for_has_ended() {
        for (state, is_ended) in [("Z", true), ("X", true), ("S", false), ("D", false)] {
            let line = format!("7 (a) b) {state}{}", &AFTER[1..]);
            assert_eq!(Stat::parse(line.as_bytes()).unwrap().is_ended(), is_ended);
        }
    }

    #[test]
    fn a_task_that_gives_its_memory_back_is_ending_and_not_ended() {
        let line = format!("7 (a) {}", AFTER.replace(" 4194560 ", " 4194564 "));
        let stat = Stat::parse(line.as_bytes()).unwrap();
        assert!(stat.is_ending() && !stat.is_ended());
        let zombie = Stat::parse(format!("7 (a) Z{}", &AFTER[1..]).as_bytes()).unwrap();
        assert!(zombie.is_ending());
    }

    proptest! {
        #[test]
        fn no_bytes_panic_as_stat(bytes: Vec<u8>) {
            let _ = (Stat::parse_with_name(&bytes), Image::parse(&bytes));
        }

        #[test]
        fn names_of_any_bytes_do_not_mislead(name in prop::collection::vec(1u8.., 0..16), start: u64) {
            let mut line = b"7 (".to_vec();
            line.extend(&name);
            line.extend(format!(") {}", AFTER.replace("815", &start.to_string())).bytes());
            let (stat, comm) = Stat::parse_with_name(&line).unwrap();
            prop_assert_eq!((stat.id.start, comm.as_bytes()), (start, &name[..]));
        }
    }

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
        fn no_bytes_panic_as_status(bytes: Vec<u8>, line in "(VmLck|VmPin|Tgid|NSpid|Cpus_allowed_list|Mems_allowed_list):\\PC*") {
            for content in [&bytes[..], line.as_bytes()] {
                let status = Status::of(content);
                let _ = (status.process(), status.numbers(), status.allowed_cpus(), status.allowed_nodes());
                let _ = (status.pinned_bytes(), status.user(), status.threads(), status.bytes("VmLck"));
            }
        }
    }

    #[test]
    fn the_numbers_are_run_wait_and_starts() {
        let expected = RunTime {
            run_ns: 12,
            wait_ns: 7,
            starts: 3,
        };
        assert_eq!(RunTime::parse(b"12 7 3\n"), Some(expected));
        for content in [&b"12 7"[..], b"12 x 3", b"", b"\xff 1 2", b"-1 2 3"] {
            assert_eq!(RunTime::parse(content), None);
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic_as_schedstat(bytes: Vec<u8>) {
            let _ = RunTime::parse(&bytes);
        }
    }

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
        fn no_bytes_panic_as_sched(bytes: Vec<u8>, line in "\n(numa_faults node|numa_preferred_nid :|se.nr_migrations)\\PC*") {
            for content in [&bytes[..], line.as_bytes()] {
                let sched = Sched::of(content);
                let _ = (sched.migrations(), sched.preferred_node(), sched.faults_by_node());
            }
        }
    }
}

//! `/proc/PID/stat`: state, descent, times and CPU of a task (proc_pid_stat(5), which counts fields from 1).

use nearfar_machine::{CpuId, MAX_NUMBER};
use serde::{Deserialize, Serialize};

use crate::comm::Comm;
use crate::text;

/// `PF_KTHREAD` of include/linux/sched.h.
const KERNEL_THREAD: u32 = 0x0020_0000;
/// Field 3, the state, is the first one after the name.
const FIRST_FIELD: usize = 3;

/// A thread, told apart from every later one with its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct TaskId {
    pub tid: i32,
    /// When it started, in clock ticks since boot (field 22).
    pub start: u64,
}

/// What /proc/PID/stat says of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
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
}

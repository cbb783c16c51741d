//! The timed part, and the clock's readings in it.
//!
//! ```text
//!  start │ round round round │ round round round │ round │ end         │ = the clock is read, without a system call
//!        └───── figure ──────┴───── figure ──────┴ the rest ┘
//! ```

use std::time::Instant;

use nearfar_loops::access::Loop;

/// Most figures that are kept.
const MOST_FIGURES: u32 = 1000;
/// Clocks that are read without a system call, on all architectures (their `vdso_clock_mode` is not none).
const CLOCKS_WITHOUT_CALL: [&str; 7] = [
    "tsc",
    "kvm-clock",
    "hyperv_clocksource_tsc_page",
    "arch_sys_counter",
    "timebase",
    "riscv_clocksource",
    "tod",
];

/// The timed part of a run.
pub(super) struct Timed {
    counts: u32,
    rounds_a_figure: u32,
    start: Instant,
    /// Where each figure ends.
    ends: Vec<Instant>,
}

impl Timed {
    /// Room for the readings of `counts` rounds, which are at least one. All its pages are there.
    pub(super) fn prepare(counts: u32) -> Self {
        let rounds_a_figure = if clock_needs_no_call() {
            counts.div_ceil(MOST_FIGURES)
        } else {
            counts
        };
        // Written to and not only reserved: the first writing to a page would be a fault in the timed part.
        let start = Instant::now();
        Self {
            counts,
            rounds_a_figure,
            start,
            ends: vec![start; counts.div_ceil(rounds_a_figure) as usize],
        }
    }

    /// The timed part: nothing in here enters the kernel.
    #[inline(never)]
    pub(super) fn run(&mut self, way: &mut Loop, words: &mut [u64], steps: u64) {
        let mut left = self.counts;
        self.start = Instant::now();
        for end in &mut self.ends {
            let rounds = self.rounds_a_figure.min(left);
            for _ in 0..rounds {
                way.round(words, steps);
            }
            left -= rounds;
            *end = Instant::now();
        }
    }

    /// When it ended.
    pub(super) fn end(&self) -> Instant {
        self.ends.last().copied().unwrap_or(self.start)
    }

    /// How long it took.
    pub(super) fn seconds(&self) -> f64 {
        self.end().duration_since(self.start).as_secs_f64()
    }

    /// Rounds that a figure stands for; the last may stand for fewer.
    pub(super) fn rounds_a_figure(&self) -> u32 {
        self.rounds_a_figure
    }

    /// Seconds a round, figure by figure; none where one figure stands for several rounds, as it tells nothing new.
    pub(super) fn round_s(&self) -> Vec<f64> {
        if self.ends.len() < 2 && self.counts > 1 {
            return Vec::new();
        }
        let starts = std::iter::once(&self.start).chain(&self.ends);
        let rounds = (0..self.counts).step_by(self.rounds_a_figure as usize);
        let rounds = rounds.map(|before| self.rounds_a_figure.min(self.counts - before));
        let spans = starts
            .zip(&self.ends)
            .map(|(start, end)| end.duration_since(*start).as_secs_f64());
        spans
            .zip(rounds)
            .map(|(span, rounds)| span / f64::from(rounds))
            .collect()
    }
}

fn clock_needs_no_call() -> bool {
    let clock =
        std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    clock.is_ok_and(|clock| CLOCKS_WITHOUT_CALL.contains(&clock.trim()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::probe::Pattern;

    #[test]
    fn figures_are_means_of_their_rounds_and_the_last_stands_for_the_rest() {
        let start = Instant::now();
        let ends = [60, 120, 130]
            .map(|ms| start + Duration::from_millis(ms))
            .to_vec();
        let timed = Timed {
            counts: 7,
            rounds_a_figure: 3,
            start,
            ends,
        };
        let expected = [0.02, 0.02, 0.01];
        let figures = timed.round_s();
        assert_eq!(figures.len(), 3);
        assert!(
            figures
                .iter()
                .zip(expected)
                .all(|(figure, expected)| (figure - expected).abs() < 1e-9),
            "{figures:?}"
        );
        assert!((timed.seconds() - 0.13).abs() < 1e-9);
    }

    #[test]
    fn any_number_of_rounds_gives_at_most_a_thousand_figures_and_all_rounds_are_run() {
        for counts in [1, 2, 999, 1000, 1001, 2500] {
            let mut timed = Timed::prepare(counts);
            let mut words = vec![0; 64];
            timed.run(&mut Loop::new(Pattern::RandomReadWrite), &mut words, 3);
            assert_eq!(words.iter().sum::<u64>(), 3 * u64::from(counts));
            let figures = timed.round_s();
            assert!(
                figures.len() <= MOST_FIGURES as usize && (counts == 1 || figures.len() != 1),
                "{counts}"
            );
        }
    }

    /// A filter that ends the process at any system call but the one that ends it (seccomp(2)).
    fn forbid_system_calls() -> bool {
        let op = |code: u32, jump: u8, value: u32| libc::sock_filter {
            code: code as u16,
            jt: jump,
            jf: 0,
            k: value,
        };
        let filter = [
            op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
            op(
                libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
                1,
                libc::SYS_exit_group as u32,
            ),
            op(
                libc::BPF_RET | libc::BPF_K,
                0,
                libc::SECCOMP_RET_KILL_PROCESS,
            ),
            op(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog {
            len: filter.len() as u16,
            filter: filter.as_ptr().cast_mut(),
        };
        // SAFETY: the first call takes numbers only; the second reads the program, which outlives it.
        unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
        }
    }

    /// What became of a process that ran `work` where system calls are deadly; `None` where there is no such filter.
    fn without_system_calls(work: impl FnOnce()) -> Option<libc::c_int> {
        const NO_FILTER: libc::c_int = 77;
        // SAFETY: the child only computes in memory that is there already and ends; it takes no lock and allocates nothing.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let code = if forbid_system_calls() { 0 } else { NO_FILTER };
            if code == 0 {
                work();
            }
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(code) }
        }
        let mut status = 0;
        // SAFETY: the status is written to an integer of this function.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        (!libc::WIFEXITED(status) || libc::WEXITSTATUS(status) != NO_FILTER).then_some(status)
    }

    #[test]
    fn the_timed_part_makes_no_system_call() {
        if !clock_needs_no_call() {
            return println!("skipped: kernel: reading this machine's clock is a system call");
        }
        for pattern in Pattern::ALL {
            let mut words = vec![0; 1 << 16];
            let (mut timed, mut way) = (Timed::prepare(50), Loop::new(pattern));
            match without_system_calls(|| timed.run(&mut way, &mut words, 10_000)) {
                None => {
                    return println!("skipped: kernel: the kernel takes no seccomp filter here");
                }
                Some(status) => assert_eq!(status, 0, "{pattern}: the process was ended"),
            }
        }
        let deadly = without_system_calls(|| _ = std::fs::exists("/"));
        assert!(
            deadly.is_some_and(|status| libc::WIFSIGNALED(status)),
            "the filter lets nothing pass: {deadly:?}"
        );
    }
}

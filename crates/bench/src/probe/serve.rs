//! The child: maps the buffer, puts it where the spec says and fills it, waits for its caller, runs, answers. The timed part:
//!
//! ```text
//!  start │ round round round │ round round round │ round │ end         │ = the clock is read, without a system call
//!        └───── figure ──────┴───── figure ──────┴ the rest ┘
//! ```

use std::sync::atomic::AtomicBool;
use std::time::Instant;
use std::{fs, io};

use nearfar_loops::access::{Loop, Pattern};
use nearfar_loops::chase;
use nearfar_machine::{CpuSet, Known, NodeId, NodeSet};
use nearfar_proc::{affinity, meminfo, system, tasks};
use rustix::time::{ClockId, clock_gettime};

use super::counters::Counters;
use super::{NodePages, PagesByNode, ProbeResult, ProbeSpec, Ready, SampleWarning, Where};
use crate::buffer_size;
use crate::child::{Conversation, DoneLine, ReadyLine, ServeError};
use crate::node_buffers::{self, Backing, Mapping};
use crate::options::HugePages;
use crate::sampling::SEED;

/// Accesses before anybody times: the loop's instructions and the stack are there then.
const WARM_UP_STEPS: u64 = 4096;

/// Does what `nearfar bench child probe` is for: one run of the probe, described and started over standard input.
///
/// # Errors
/// When what standard input describes cannot be run here, or the system refuses what it needs.
pub fn serve() -> Result<(), ServeError> {
    let mut caller = Conversation::open("probe");
    let spec: ProbeSpec = caller.spec()?;
    spec.check().map_err(ServeError::BadSpec)?;
    let bound_cpus = cpus_to_bind(&spec)?;
    // Floating memory is where the process happens to be. Of bound memory it is the caches that remember who touched it.
    let floats = spec.memory == Where::Floating;
    let touch_cpus = if floats {
        &spec.touch_cpus
    } else {
        &bound_cpus
    };
    if let Some(cpus) = touch_cpus {
        bind(cpus)?;
    }
    let buffer = prepare(&spec)?;
    if let Some(cpus) = bound_cpus.as_ref().filter(|_| floats) {
        bind(cpus)?;
    }
    let mut prepared = Prepared {
        spec,
        bound_cpus,
        buffer,
    };
    let ready = prepared.ready()?;
    caller.answer(&ReadyLine { ready: &ready })?;
    caller.wait_for("go")?;
    let done = prepared.run(ready)?;
    caller.answer(&DoneLine { done })?;
    // What the kernel counted for this process goes with it: the caller may still want to ask.
    caller.wait_for_end()
}

/// The CPUs to bind to; none when they are unbound.
fn cpus_to_bind(spec: &ProbeSpec) -> Result<Option<CpuSet>, ServeError> {
    let Where::Node(node) = spec.cpus else {
        return Ok(None);
    };
    check_node(node, "has_cpu", "CPUs")?;
    match &spec.cpu_set {
        Some(cpus) => Ok(Some(cpus.clone())),
        None => cpus_of(node).map(Some),
    }
}

fn cpus_of(node: NodeId) -> Result<CpuSet, ServeError> {
    let file = format!("/sys/devices/system/node/node{node}/cpulist");
    match fs::read_to_string(&file) {
        Ok(list) => list
            .trim()
            .parse()
            .map_err(|error| ServeError::BadSpec(format!("{file}: {error}"))),
        // A kernel without NUMA has no such file: its only node is the whole machine.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => allowed(),
        Err(error) => Err(ServeError::refused(file, error)),
    }
}

fn allowed() -> Result<CpuSet, ServeError> {
    affinity::get(0)
        .map_err(|error| ServeError::refused("asking where this process may run", error))
}

/// Confines this process to these CPUs, which is verified.
fn bind(cpus: &CpuSet) -> Result<(), ServeError> {
    affinity::run_on(cpus).map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => ServeError::BadSpec(format!(
            "none of the CPUs {cpus} can be used: they are not there, not online, or not in this process's cpuset"
        )),
        _ => ServeError::refused(format!("binding the probe to CPUs {cpus}"), error),
    })?;
    match allowed()? {
        got if got.is_subset(cpus) => Ok(()),
        got => Err(ServeError::BadSpec(format!(
            "bound to CPUs {cpus}, the process may nevertheless run on {got}"
        ))),
    }
}

/// A probe that can start at once.
struct Prepared {
    spec: ProbeSpec,
    bound_cpus: Option<CpuSet>,
    buffer: ProbeBuffer,
}

impl Prepared {
    fn ready(&self) -> Result<Ready, ServeError> {
        Ok(Ready {
            pid: i32::try_from(std::process::id()).unwrap_or(i32::MAX),
            cpus: allowed()?,
            buffer_bytes: self.buffer.memory.bytes() as u64,
            page_kind: self.buffer.memory.page_kind(),
            pages: self.buffer.pages(),
        })
    }

    fn run(&mut self, ready: Ready) -> Result<ProbeResult, ServeError> {
        // A keeper may have narrowed the affinity since: what counts is where a floating probe could be.
        let counted = ready.cpus.union(&allowed()?);
        let numa_balancing = numa_balancing();
        let pages_before = self.buffer.pages();
        let (mut way, steps) = (Loop::new(self.spec.pattern), self.spec.steps);
        let mut timed = Timed::prepare(self.spec.counts);
        let words = self.buffer.memory.words_mut();
        // All that runs between the two readings runs once before: the first call into a page of the program is a fault.
        Counters::before(&counted);
        Timed::prepare(1).run(&mut way, words, WARM_UP_STEPS);
        Counters::after(&counted);
        let before = Counters::before(&counted);
        timed.run(&mut way, words, steps);
        let after = Counters::after(&counted);
        let elapsed_life_s = life_until(timed.end());
        let difference = after.since(&before, &counted);
        let seconds = timed.seconds();
        let (pages_after, cpus) = (self.buffer.pages(), allowed()?);
        let mut warnings = std::mem::take(&mut self.buffer.warnings);
        warnings.extend(difference.warnings(seconds, numa_balancing.get() == Some(&true)));
        warnings.extend(self.moved(&pages_before, &pages_after));
        warnings.extend(self.rebound(&ready.cpus, &cpus));
        Ok(ProbeResult {
            seconds,
            on_cpu_s: difference.on_cpu_s,
            // The kernel's count is read a moment before and after: a wait there is none of the timed part.
            waited_s: difference
                .waited_s
                .map(|waited| waited.min((seconds - difference.on_cpu_s).max(0.0))),
            elapsed_life_s,
            counts: self.spec.counts,
            steps,
            round_s: timed.round_s(),
            rounds_a_figure: timed.rounds_a_figure(),
            faults: difference.faults,
            switches: difference.switches,
            stolen_s: difference.stolen_s,
            throttled: difference.throttled,
            numa_balancing,
            cpus,
            buffer_bytes: ready.buffer_bytes,
            page_kind: ready.page_kind,
            pages_before,
            pages_after,
            warnings,
        })
    }

    /// Whether bound pages left their node.
    fn moved(
        &self,
        before: &Known<PagesByNode>,
        after: &Known<PagesByNode>,
    ) -> Option<SampleWarning> {
        let node = self.spec.memory.node()?;
        let lost = before.get()?.share_on(node) - after.get()?.share_on(node);
        (lost > 0.0).then_some(SampleWarning::Moved {
            node,
            percent: 100.0 * lost,
        })
    }

    /// Whether bound CPUs are others now.
    fn rebound(&self, before: &CpuSet, after: &CpuSet) -> Option<SampleWarning> {
        (self.bound_cpus.is_some() && before != after).then(|| SampleWarning::Rebound {
            cpus: after.clone(),
        })
    }
}

/// Whether automatic NUMA balancing brings pages near.
fn numa_balancing() -> Known<bool> {
    match system::numa_balancing() {
        Ok(mode) => Known::Yes(mode.is_normal()),
        Err(error) => Known::no(format!("{}: {error}", system::NUMA_BALANCING_FILE)),
    }
}

/// Seconds from the fork of this process to `end`. The kernel remembers the fork in clock ticks since boot.
fn life_until(end: Instant) -> f64 {
    let since_end = end.elapsed().as_secs_f64();
    let now = clock_gettime(ClockId::Boottime);
    let now = now.tv_sec as f64 + now.tv_nsec as f64 / 1e9;
    let me = std::process::id().cast_signed();
    let forked = tasks::stat(me).map_or(now, |stat| stat.started_seconds());
    (now - forked - since_end).max(0.0)
}

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

const NODES: &str = "/sys/devices/system/node";
/// Most pages that are asked for their node: all of 64 MiB of base pages.
const PAGES_ASKED: usize = 16 << 10;
/// Distance of a chain's stops, in words: a cache line of 64 bytes.
const LINE_WORDS: usize = 8;

/// The buffer, and what is with_warnings about it.
pub(super) struct ProbeBuffer {
    pub(super) memory: Mapping,
    pub(super) warnings: Vec<SampleWarning>,
}

/// Makes the buffer that `spec` asks for. All its pages are there when this returns, in a chain's case linked.
pub(super) fn prepare(spec: &ProbeSpec) -> Result<ProbeBuffer, ServeError> {
    check_room(spec)?;
    // Bound memory means all of the process, as under numactl --membind: were only the buffer bound, NUMA balancing would
    // still scan stack and data, and settle the process on the node of a handful of their pages. A caller's own policy is
    // not inherited. What refuses this refuses to bind the buffer too, and that is looked into.
    let _ = node_buffers::set_policy(spec.memory.node());
    let memory = map(spec)?;
    let refused = match spec.memory {
        Where::Node(node) => memory.bind(node).err().map(|error| (node, error)),
        Where::Floating => None,
    };
    if matches!(spec.huge_pages, HugePages::Pool) {
        let what = format!(
            "taking {} bytes of huge pages from the pool (fill it: nr_hugepages)",
            spec.bytes
        );
        memory
            .populate()
            .map_err(|error| ServeError::refused(what, error))?;
    }
    let mut buffer = ProbeBuffer {
        memory,
        warnings: Vec::new(),
    };
    let bytes = buffer.memory.bytes();
    buffer.memory.touch(0..bytes);
    if let Where::Node(node) = spec.memory {
        buffer.verify(node, refused.map(|(_, error)| error))?;
    }
    if spec.pattern == Pattern::Chain {
        buffer.link()?;
    }
    Ok(buffer)
}

impl ProbeBuffer {
    /// Where its pages are.
    pub(super) fn pages(&self) -> Known<PagesByNode> {
        match self.memory.nodes_of_pages(PAGES_ASKED) {
            Ok(nodes) => Known::Yes(sum_up(&nodes)),
            Err(error) => Known::no(format!("move_pages: {error}")),
        }
    }

    /// Looks whether bound memory is where it should be. A refusal to bind it is forgiven where it is there anyway.
    fn verify(&mut self, node: NodeId, refused: Option<io::Error>) -> Result<(), ServeError> {
        let pages = self
            .memory
            .nodes_of_pages(PAGES_ASKED)
            .map(|nodes| sum_up(&nodes));
        let (share, error) = match &pages {
            Ok(pages) => (pages.share_on(node), None),
            Err(error) => (
                if is_only_node(node) { 1.0 } else { 0.0 },
                Some(error.to_string()),
            ),
        };
        match (refused, error) {
            (Some(error), _) if share < 1.0 => {
                return Err(ServeError::refused(
                    format!("binding memory to node {node} (mbind)"),
                    error,
                ));
            }
            (Some(error), None) => self.warnings.push(SampleWarning::BindRefused {
                node,
                error: error.to_string(),
            }),
            // On the only node there is, memory is nowhere else.
            (_, Some(error)) if share < 1.0 => self
                .warnings
                .push(SampleWarning::Unverified { node, error }),
            (None, None) if share < 1.0 => {
                self.warnings.push(SampleWarning::Elsewhere {
                    node,
                    percent: 100.0 * (1.0 - share),
                });
            }
            _ => {}
        }
        Ok(())
    }

    /// Links its lines into one random cycle.
    fn link(&mut self) -> Result<(), ServeError> {
        let lines = self.memory.words().len() / LINE_WORDS;
        let lines = u32::try_from(lines).map_err(|_| {
            ServeError::BadSpec(format!(
                "a chain has at most {} lines of 64 bytes",
                u32::MAX
            ))
        })?;
        let go_on = AtomicBool::new(false);
        if let Some(next) = chase::cycle(lines, &mut fastrand::Rng::with_seed(SEED), &go_on) {
            chase::link(self.memory.words_mut(), &next, LINE_WORDS, &go_on);
        }
        Ok(())
    }
}

fn map(spec: &ProbeSpec) -> Result<Mapping, ServeError> {
    let backing = match spec.huge_pages {
        HugePages::Auto | HugePages::Off => Backing::Base,
        HugePages::Transparent => Backing::Transparent,
        HugePages::Pool => Backing::Pool {
            page_bytes: pool_page_bytes()?,
        },
    };
    let bytes = usize::try_from(spec.bytes).unwrap_or(usize::MAX);
    Mapping::new(bytes, backing)
        .map_err(|error| ServeError::refused(format!("mapping {bytes} bytes"), error))
}

/// The size of pages of the default pool, `Hugepagesize` of `/proc/meminfo`.
fn pool_page_bytes() -> Result<u64, ServeError> {
    let meminfo = fs::read("/proc/meminfo").unwrap_or_default();
    let bytes = meminfo::bytes(&meminfo, "Hugepagesize").filter(|bytes| bytes.is_power_of_two());
    bytes.ok_or_else(|| {
        ServeError::BadSpec("this kernel has no pool of huge pages (hugetlb)".to_owned())
    })
}

/// That the memory can be had without getting anybody killed: the kernel's out-of-memory killer does not ask.
fn check_room(spec: &ProbeSpec) -> Result<(), ServeError> {
    if let Where::Node(node) = spec.memory {
        check_node(node, "has_memory", "memory")?;
    }
    // Those are set aside, and refused one by one.
    if spec.huge_pages == HugePages::Pool {
        return Ok(());
    }
    let too_much = |has: u64, who: &str| {
        ServeError::BadSpec(format!(
            "a buffer of {} MiB is too large: {who} has {} MiB left",
            spec.bytes >> 20,
            has >> 20
        ))
    };
    if let Some(spare) = buffer_size::spare_memory().filter(|&spare| spare < spec.bytes) {
        return Err(too_much(spare, "this process"));
    }
    let Where::Node(node) = spec.memory else {
        return Ok(());
    };
    let meminfo = fs::read(format!("{NODES}/node{node}/meminfo")).unwrap_or_default();
    // What files hold can be dropped.
    let of = |name| meminfo::bytes(&meminfo, name).unwrap_or(0);
    match of("MemFree") + of("Active(file)") + of("Inactive(file)") + of("SReclaimable") {
        left if !meminfo.is_empty() && left < spec.bytes => {
            Err(too_much(left, &format!("node {node}")))
        }
        _ => Ok(()),
    }
}

/// That a node is online and listed in this file, where the kernel lists them.
fn check_node(node: NodeId, list: &str, of_what: &str) -> Result<(), ServeError> {
    let read = |list: &str| {
        fs::read_to_string(format!("{NODES}/{list}"))
            .ok()?
            .trim()
            .parse::<NodeSet>()
            .ok()
    };
    // Kernels without NUMA have no such folder, and one node.
    let online = read("online").unwrap_or_else(|| NodeSet::single(NodeId(0)));
    if !online.contains(node) {
        return Err(ServeError::BadSpec(format!(
            "there is no node {node}: online are {online}"
        )));
    }
    match read(list).filter(|nodes| !nodes.contains(node)) {
        Some(nodes) => Err(ServeError::BadSpec(format!(
            "node {node} has no {of_what}; nodes with {of_what}: {nodes}"
        ))),
        None => Ok(()),
    }
}

fn is_only_node(node: NodeId) -> bool {
    let online = fs::read_to_string(format!("{NODES}/online"));
    online.map_or(node == NodeId(0), |online| {
        online.trim() == node.to_string()
    })
}

fn sum_up(nodes: &[Option<NodeId>]) -> PagesByNode {
    let mut counts = std::collections::BTreeMap::new();
    for node in nodes.iter().flatten() {
        *counts.entry(*node).or_insert(0u64) += 1;
    }
    PagesByNode {
        looked_at: nodes.len() as u64,
        nowhere: nodes.len() as u64 - counts.values().sum::<u64>(),
        by_node: counts
            .into_iter()
            .map(|(node, pages)| NodePages { node, pages })
            .collect(),
    }
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

    #[test]
    fn pages_are_counted_by_node_in_ascending_order() {
        let (zero, one) = (Some(NodeId(0)), Some(NodeId(1)));
        let pages = sum_up(&[one, zero, one, None]);
        assert_eq!((pages.looked_at, pages.nowhere), (4, 1));
        let (zero, one) = (
            NodePages {
                node: NodeId(0),
                pages: 1,
            },
            NodePages {
                node: NodeId(1),
                pages: 2,
            },
        );
        assert_eq!(pages.by_node, [zero, one]);
        assert_eq!(
            (pages.share_on(NodeId(1)), pages.share_on(NodeId(7))),
            (0.5, 0.0)
        );
    }
}

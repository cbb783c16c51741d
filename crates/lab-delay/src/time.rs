// SPDX-License-Identifier: GPL-2.0-or-later
//! Simulated time: each vCPU executes instructions at a stated speed, and all clocks of the guest follow.
//!
//! ```text
//!   block of guest code ──► its instructions are added to the vCPU's local time
//!        │ as far as it may go
//!        ▼
//!   turns          who goes on: one vCPU at a time, none a window ahead of another
//!   preload        QEMU's clocks, waits of its main loop and of its threads, in this time
//!                  the host's time stamp counter, which QEMU's emulation of x86 reads itself
//!   HostCpu        where the threads run meanwhile
//! ```
//!
//! It begins and ends with the gate, while no vCPU runs. The guest's clocks go on without a jump: outside, they are the host's
//! and as far from them as when it ended.

pub mod counter;
pub mod preload;
pub mod turns;

use std::cell::Cell;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU64, AtomicUsize};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};

use crate::config::TimeConfig;
use crate::time::counter::Counter;
use crate::time::turns::{Polled, ThreadState, Turn, Turns};

/// A block calls back when its vCPU's counter has reached this.
pub const LIMIT_PS: u64 = 1 << 62;
/// How far a vCPU goes that waits for none: the gate is looked at in between.
const MOST_ROOM_PS: u64 = 1_000_000_000;
const PS_PER_NS: u64 = 1000;
/// In guests with more vCPUs they let each other run in the host's time. The kernel boots on one there (`maxcpus=1`): while it changes
/// the memory map, others that leave guest code more often make QEMU abort (`iotlb_to_section`).
const MOST_CPUS_AT_BOOT: usize = 32;
/// How long nothing may go on before that is said, by the host's clock.
const STALL_NS: u64 = 5_000_000_000;

thread_local! {
    /// The vCPU that this thread runs.
    static VCPU: Cell<Option<usize>> = const { Cell::new(None) };
}

/// A vCPU's counter of picoseconds: QEMU's code adds to it.
pub trait PsCounters {
    fn get(&self, vcpu: usize) -> u64;
    fn set(&self, vcpu: usize, ps: u64);
    /// So many nanoseconds of simulated time have passed, outside of it not counted.
    fn passed(&self, ns: u64);
}

/// Local times, turns, and what the clocks show.
#[derive(Debug)]
pub struct Time<C> {
    config: TimeConfig,
    counters: C,
    is_on: AtomicBool,
    turns: Mutex<Turns>,
    vcpus: Box<[VcpuThread]>,
    /// Where the main loop is woken.
    event: OwnedFd,
    /// The host's clock when QEMU started: where times begin.
    origin_ns: u64,
    /// How far the guest's clocks are from the host's outside of simulated time.
    ahead_ps: AtomicI64,
    /// How much time had passed outside of simulated time when it began last, and when it ended last.
    outside_ps: AtomicU64,
    ended_ps: AtomicU64,
    /// The latest time that any clock has shown.
    shown_ps: AtomicU64,
    /// The time that the main loop's thread saw last: its timeouts count from there.
    main_loop_saw_ps: AtomicU64,
    has_stalled: AtomicBool,
    counter: Counter,
    host_cpu: HostCpu,
}

#[derive(Default, Debug)]
struct VcpuThread {
    /// Local time when the counter was set, and what it was set to.
    base_ps: AtomicU64,
    set_ps: AtomicU64,
    /// Its thread and the kernel's number of it, once it has asked for a turn: it sleeps until it has one.
    thread: OnceLock<(Thread, i32)>,
    has_turn: AtomicBool,
    is_idle: AtomicBool,
    /// The condition that its thread waits for while it is idle or blocked; 0 if it has never waited.
    condition: AtomicUsize,
    /// The one for idle, which QEMU also signals to interrupt it.
    halt_condition: AtomicUsize,
}

impl<C: PsCounters> Time<C> {
    /// Simulated time for so many vCPUs, which has not begun.
    ///
    /// # Errors
    /// When the host has no descriptor for waking the main loop.
    pub fn new(config: TimeConfig, vcpus: usize, counters: C) -> io::Result<Self> {
        // SAFETY: makes a descriptor, or returns -1.
        let event = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if event < 0 {
            return Err(io::Error::last_os_error());
        }
        let vcpu = |_| VcpuThread {
            is_idle: AtomicBool::new(true),
            ..VcpuThread::default()
        };
        Ok(Self {
            config,
            counters,
            is_on: AtomicBool::new(false),
            turns: Mutex::new(Turns::new(vcpus, [1, 1], 0, 0)),
            vcpus: (0..vcpus).map(vcpu).collect(),
            // SAFETY: the descriptor was just made, and is owned by nothing else.
            event: unsafe { OwnedFd::from_raw_fd(event) },
            origin_ns: preload::host_ns(),
            ahead_ps: AtomicI64::new(0),
            outside_ps: AtomicU64::new(0),
            ended_ps: AtomicU64::new(0),
            shown_ps: AtomicU64::new(0),
            main_loop_saw_ps: AtomicU64::new(0),
            has_stalled: AtomicBool::new(false),
            counter: Counter::started(),
            host_cpu: HostCpu::new(),
        })
    }

    /// Picoseconds of an instruction.
    pub fn ps_per_instruction(&self) -> u64 {
        self.config.ps_per_instruction
    }

    pub fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// Begins while no vCPU runs.
    pub fn begin(&self) {
        let now_ps = self.host_ps().max(self.shown_ps.load(Relaxed));
        let mut turns = self.turns();
        let windows_ps = [self.config.window_ps, self.config.wide_window_ps];
        *turns = Turns::new(self.vcpus.len(), windows_ps, self.config.seed, now_ps);
        for (number, vcpu) in self.vcpus.iter().enumerate() {
            self.set(number, now_ps, 0);
            vcpu.has_turn.store(false, Relaxed);
            if !vcpu.is_idle.load(Relaxed) {
                turns.wake(number, now_ps);
            }
        }
        let outside_ps = now_ps - self.ended_ps.load(Relaxed);
        self.outside_ps.fetch_add(outside_ps, Relaxed);
        self.counter.begin(now_ps);
        self.host_cpu.share(self.threads());
        self.is_on.store(true, Relaxed);
        self.wake_main_loop();
    }

    /// Ends while no vCPU runs.
    pub fn end(&self) {
        let turns = self.turns();
        let of_vcpu = |number| turns.local_ps(number);
        let locals = (0..self.vcpus.len()).map(of_vcpu).max().unwrap_or(0);
        let now_ps = locals.max(turns.now_ps()).max(self.shown_ps.load(Relaxed));
        let ahead = now_ps as i64 - self.host_since_start_ps() as i64;
        self.ahead_ps.store(ahead, Relaxed);
        self.ended_ps.store(now_ps, Relaxed);
        self.show_passed(now_ps);
        self.is_on.store(false, Relaxed);
        drop(turns);
        self.host_cpu.release(self.threads());
        let threads = self.vcpus.iter().filter_map(|vcpu| vcpu.thread.get());
        threads.for_each(|(thread, _)| thread.unpark());
        self.wake_main_loop();
    }

    /// The kernel's numbers of the threads that run vCPUs, and of the main loop's, which is the process'.
    fn threads(&self) -> impl Iterator<Item = i32> {
        let threads = self.vcpus.iter().filter_map(|vcpu| vcpu.thread.get());
        let main_loop = std::process::id().cast_signed();
        threads.map(|(_, number)| *number).chain([main_loop])
    }

    /// The local time of the vCPU that this thread runs and that has the turn.
    pub fn local_ps(&self, vcpu: usize) -> u64 {
        self.vcpus[vcpu].base_ps.load(Relaxed) + self.executed_ps(vcpu)
    }

    /// Adds to the local time of the vCPU that this thread runs and that has the turn.
    pub fn charge(&self, vcpu: usize, ps: u64) {
        if self.is_on() {
            let ps = self.counters.get(vcpu).saturating_add(ps);
            self.counters.set(vcpu, ps);
        }
    }

    /// A line has come from another vCPU at a vCPU's local time.
    pub fn line_passes(&self, at_ps: u64) {
        if self.is_on() {
            self.turns().line_passes(at_ps);
        }
    }

    /// A vCPU's thread is before a block of guest code and has gone as far as it may. Returns when it has the turn.
    pub fn ask(&self, vcpu: usize) {
        self.wait_for_turn(vcpu, |turns| turns.ask(vcpu));
    }

    /// A vCPU will find these lines as they are until another writes to them. Returns when it has the turn.
    pub fn poll(&self, vcpu: usize, polled: Polled) {
        self.wait_for_turn(vcpu, |turns| turns.poll(vcpu, polled));
    }

    fn wait_for_turn(&self, vcpu: usize, ask: impl FnOnce(&mut Turns)) {
        VCPU.set(Some(vcpu));
        if !self.is_on() {
            return;
        }
        self.prepare_thread(vcpu);
        let it = &self.vcpus[vcpu];
        let mut turns = self.turns();
        self.fold(vcpu, &mut turns);
        ask(&mut turns);
        self.go_on(turns);
        while !it.has_turn.swap(false, Acquire) && self.is_on() {
            thread::park();
        }
    }

    /// A vCPU has nothing to do any more.
    pub fn idle(&self, vcpu: usize) {
        VCPU.set(Some(vcpu));
        self.vcpus[vcpu].is_idle.store(true, Relaxed);
        if self.is_on() {
            let mut turns = self.turns();
            self.fold(vcpu, &mut turns);
            turns.idle(vcpu);
            self.go_on(turns);
        }
    }

    /// A vCPU has something to do again.
    pub fn resume(&self, vcpu: usize) {
        VCPU.set(Some(vcpu));
        self.vcpus[vcpu].is_idle.store(false, Relaxed);
        // Outside of simulated time as well: the counter follows the guest's time by then, and has to be the same on all vCPUs.
        if self.counter.has_begun() {
            self.prepare_thread(vcpu);
        }
        if self.is_on() {
            let mut turns = self.turns();
            let now_ps = turns.now_ps();
            turns.wake(vcpu, now_ps);
        }
    }

    /// From now on this thread of a vCPU sees the counter of simulated time, and can be woken.
    fn prepare_thread(&self, vcpu: usize) {
        self.vcpus[vcpu].thread.get_or_init(|| {
            self.counter.trap_on_this_thread();
            self.host_cpu.join();
            // SAFETY: asks for a number.
            (thread::current(), unsafe { libc::gettid() })
        });
    }

    /// This thread is about to wait for a condition of QEMU.
    fn waits_for(&self, condition: usize) {
        let vcpu = VCPU.get();
        if let Some(vcpu) = vcpu.map(|vcpu| &self.vcpus[vcpu]) {
            vcpu.condition.store(condition, Relaxed);
            if vcpu.is_idle.load(Relaxed) {
                vcpu.halt_condition.store(condition, Relaxed);
            }
        }
        if !self.is_on() {
            return;
        }
        let mut turns = self.turns();
        match vcpu {
            Some(vcpu) if self.vcpus[vcpu].is_idle.load(Relaxed) => turns.idle(vcpu),
            Some(vcpu) => {
                self.fold(vcpu, &mut turns);
                turns.block(Some(vcpu));
            }
            None if preload::is_main_thread() => turns.block(None),
            None => return,
        }
        self.go_on(turns);
    }

    /// This thread wakes those that wait for a condition, or one of them.
    fn wakes(&self, condition: usize, only_one: bool) {
        if !self.is_on() {
            return;
        }
        let mut turns = self.turns();
        let is_halt = |&at: &usize| self.vcpus[at].halt_condition.load(Relaxed) == condition;
        if let Some(vcpu) = (0..self.vcpus.len()).find(is_halt) {
            turns.kick(vcpu);
        }
        let waits = |at: &usize| match turns.state(*at) {
            ThreadState::Idle | ThreadState::Blocked => {
                self.vcpus[*at].condition.load(Relaxed) == condition
            }
            ThreadState::Ready => turns.polls(*at) && is_halt(at),
            ThreadState::Coming | ThreadState::Running => false,
        };
        let waiting: Vec<usize> = (0..self.vcpus.len()).filter(waits).collect();
        // Which of several is woken is the host's choice.
        if waiting.is_empty() || only_one && waiting.len() > 1 {
            return;
        }
        let at_ps = match VCPU.get() {
            Some(vcpu) if turns.state(vcpu) == ThreadState::Running => {
                self.fold(vcpu, &mut turns);
                turns.local_ps(vcpu)
            }
            _ => turns.now_ps(),
        };
        for vcpu in waiting {
            turns.wake(vcpu, at_ps);
        }
        if VCPU.get().is_none() {
            // No thread may be on its way that decides.
            self.go_on(turns);
        }
    }

    /// This thread leaves guest code, for instance at `pause`. Of many vCPUs that wait for a lock the host would otherwise run each for
    /// milliseconds before the one that is next, and 90 of them stood still for minutes.
    fn leaves_guest_code(&self) {
        if self.vcpus.len() > MOST_CPUS_AT_BOOT && !self.is_on() && VCPU.get().is_some() {
            thread::yield_now();
        }
    }

    /// This thread has written to an event that the main loop may wait for.
    fn has_notified(&self) {
        let Some(vcpu) = VCPU.get().filter(|_| self.is_on()) else {
            return;
        };
        let mut turns = self.turns();
        if turns.state(vcpu) == ThreadState::Running {
            self.fold(vcpu, &mut turns);
            turns.notify_main_loop();
        }
    }

    /// Adds what the vCPU has executed to its local time. It asks before its next block.
    fn fold(&self, vcpu: usize, turns: &mut Turns) {
        turns.spend(vcpu, self.executed_ps(vcpu));
        self.set(vcpu, turns.local_ps(vcpu), 0);
    }

    fn executed_ps(&self, vcpu: usize) -> u64 {
        let set = self.vcpus[vcpu].set_ps.load(Relaxed);
        self.counters.get(vcpu).saturating_sub(set)
    }

    fn set(&self, vcpu: usize, local_ps: u64, room_ps: u64) {
        let it = &self.vcpus[vcpu];
        it.base_ps.store(local_ps, Relaxed);
        it.set_ps.store(LIMIT_PS - room_ps, Relaxed);
        self.counters.set(vcpu, LIMIT_PS - room_ps);
    }

    /// Gives the turn to whom it belongs.
    fn go_on(&self, mut turns: MutexGuard<'_, Turns>) {
        let turn = self.decide(&mut turns);
        // The thread that is woken needs them.
        drop(turns);
        match turn {
            Turn::Of(vcpu) => self.wake(vcpu),
            Turn::MainLoop | Turn::AllIdle => self.wake_main_loop(),
            Turn::Later => {}
        }
    }

    /// Decides whose turn it is, and lets a vCPU have it.
    fn decide(&self, turns: &mut Turns) -> Turn {
        let turn = turns.decide();
        self.show_passed(turns.now_ps());
        if let Turn::Of(vcpu) = turn {
            let room_ps = turns.room_ps(vcpu).min(MOST_ROOM_PS);
            self.set(vcpu, turns.local_ps(vcpu), room_ps);
            self.vcpus[vcpu].has_turn.store(true, Release);
        }
        turn
    }

    fn show_passed(&self, now_ps: u64) {
        let passed_ps = now_ps.saturating_sub(self.outside_ps.load(Relaxed));
        self.counters.passed(passed_ps / PS_PER_NS);
    }

    fn wake(&self, vcpu: usize) {
        let is_other = VCPU.get() != Some(vcpu);
        if let Some((thread, _)) = self.vcpus[vcpu].thread.get().filter(|_| is_other) {
            thread.unpark();
        }
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_main_loop(&self) {
        preload::signal(self.event.as_raw_fd());
    }

    fn host_since_start_ps(&self) -> u64 {
        preload::host_ns().saturating_sub(self.origin_ns) * PS_PER_NS
    }

    /// The guest's time outside of simulated time.
    fn host_ps(&self) -> u64 {
        let ahead = self.ahead_ps.load(Relaxed);
        self.host_since_start_ps().saturating_add_signed(ahead)
    }

    /// What a clock of QEMU shows to this thread, in picoseconds since the start. It never goes back.
    fn shown_ps(&self) -> u64 {
        let ps = if !self.is_on() {
            self.host_ps()
        } else {
            match VCPU.get() {
                Some(vcpu) if !self.vcpus[vcpu].is_idle.load(Relaxed) => {
                    let base = self.vcpus[vcpu].base_ps.load(Relaxed);
                    base + self.executed_ps(vcpu)
                }
                _ => self.turns().now_ps(),
            }
        };
        let shown_ps = self.shown_ps.fetch_max(ps, Relaxed).max(ps);
        if preload::is_main_thread() {
            self.main_loop_saw_ps.store(shown_ps, Relaxed);
        }
        shown_ps
    }

    /// The time stamp counter.
    fn ticks(&self) -> u64 {
        self.counter.at(self.shown_ps())
    }

    /// The monotonic clock, in nanoseconds.
    fn monotonic_ns(&self) -> u64 {
        self.origin_ns + self.shown_ps() / PS_PER_NS
    }

    /// Says once which vCPUs have neither run nor been idle for long.
    fn say_stall(&self, turns: &Turns) {
        if !self.has_stalled.swap(true, Relaxed) {
            let states = turns.busy_states();
            let states: Vec<String> = states.map(|(vcpu, it)| format!("{vcpu} {it:?}")).collect();
            let seconds = STALL_NS / 1_000_000_000;
            let text = format!(
                "nearfar-lab-delay: simulated time has not gone on for {seconds} s; vCPUs: {}\n",
                states.join(", ")
            );
            // At once: a write of eight bytes may be a notice to the main loop (`has_notified`), and waits for this lock. `eprintln!`
            // panics when stderr is closed.
            let _ = io::stderr().write_all(text.as_bytes());
        }
    }

    /// When a disk answers what the main loop has handed to it. QEMU sleeps in whole milliseconds for disks.
    fn disk_answers(&self, handed_ps: u64) -> Option<u64> {
        let disk_ps = Some(self.config.disk_ps).filter(|&ps| ps != 0);
        disk_ps.map(|ps| handed_ps.saturating_add(ps))
    }

    /// Waits as the main loop does: for events until a timeout in simulated time. `wait` waits for events and for the
    /// descriptor that is given to it, at most so many nanoseconds of the host.
    fn main_loop_waits(
        &self,
        timeout_ns: Option<u64>,
        mut wait: impl FnMut(RawFd, Option<u64>) -> Waited,
    ) -> Waited {
        let event = self.event.as_raw_fd();
        let mut turns = self.turns();
        if !self.is_on() {
            drop(turns);
            return wait(event, timeout_ns);
        }
        let saw_ps = self.main_loop_saw_ps.load(Relaxed);
        let due = |ns: u64| saw_ps.saturating_add(ns.saturating_mul(PS_PER_NS));
        turns.main_loop_waits(timeout_ns.map(due), self.disk_answers(saw_ps));
        loop {
            let given = turns.given();
            let turn = self.decide(&mut turns);
            let rest_ps = turns.due_ps().map(|due| due.saturating_sub(turns.now_ps()));
            let jumps_ps = rest_ps.filter(|_| self.config.jumps_when_idle);
            drop(turns);
            if let Turn::Of(vcpu) = turn {
                self.wake(vcpu);
            }
            let started_ns = preload::host_ns();
            let waited = match turn {
                Turn::MainLoop => wait(event, Some(0)),
                Turn::AllIdle if jumps_ps.is_some() => wait(event, Some(0)),
                Turn::AllIdle => wait(event, rest_ps.map(|rest| rest.div_ceil(PS_PER_NS))),
                Turn::Of(_) | Turn::Later => wait(event, Some(STALL_NS)),
            };
            turns = self.turns();
            if matches!(turn, Turn::Of(_) | Turn::Later)
                && turns.given() <= given + 1
                && preload::host_ns() >= started_ns + STALL_NS
            {
                self.say_stall(&turns);
            }
            if turn == Turn::AllIdle {
                let passed_ns = preload::host_ns().saturating_sub(started_ns);
                let jumped_ps = jumps_ps.filter(|_| waited == Waited::Nothing);
                turns.pass(jumped_ps.unwrap_or(passed_ns.saturating_mul(PS_PER_NS)));
            }
            if waited != Waited::Nothing || turns.is_due() || !self.is_on() {
                turns.main_loop_goes_on();
                return waited;
            }
            if turn == Turn::MainLoop {
                turns.main_loop_has_nothing(self.disk_answers(saw_ps));
            }
        }
    }
}

/// How the main loop's wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waited {
    /// What `ppoll` returns: so many descriptors have events, or -1.
    Events(i32),
    /// The time is over, or only the plugin's own descriptor was ready.
    Nothing,
}

/// Words of a set of CPUs: Linux has at most 8192.
const CPU_WORDS: usize = 8192 / libc::c_ulong::BITS as usize;
const NO_CPU: i32 = -1;

/// The CPUs of a thread (sched_setaffinity(2)).
type Cpus = [libc::c_ulong; CPU_WORDS];

/// Where the threads of a guest run: one CPU of the host for all that take turns. Only one of them runs at a time, and to wake one on
/// another CPU takes the host longer than a turn.
#[derive(Debug)]
struct HostCpu {
    /// The CPU that they share; [`NO_CPU`] outside of simulated time.
    shared: AtomicI32,
    /// Where they run otherwise.
    own: OnceLock<Box<Cpus>>,
}

impl HostCpu {
    fn new() -> Self {
        Self {
            shared: AtomicI32::new(NO_CPU),
            own: OnceLock::new(),
        }
    }

    /// From now on these threads, and each that [`Self::join`]s, share the CPU that the calling one runs on.
    fn share(&self, threads: impl Iterator<Item = i32>) {
        self.own.get_or_init(|| Box::new(cpus_of_this_thread()));
        // SAFETY: asks for a number.
        self.shared.store(unsafe { libc::sched_getcpu() }, Relaxed);
        threads.for_each(|thread| self.confine(thread));
    }

    /// These threads run where they did before.
    fn release(&self, threads: impl Iterator<Item = i32>) {
        self.shared.store(NO_CPU, Relaxed);
        if let Some(own) = self.own.get() {
            threads.for_each(|thread| set_cpus(thread, own));
        }
    }

    /// The calling thread is one more.
    fn join(&self) {
        self.confine(0);
    }

    fn confine(&self, thread: i32) {
        if let Ok(cpu) = usize::try_from(self.shared.load(Relaxed)) {
            let mut cpus: Cpus = [0; CPU_WORDS];
            let bits = libc::c_ulong::BITS as usize;
            if let Some(word) = cpus.get_mut(cpu / bits) {
                *word = 1 << (cpu % bits);
                set_cpus(thread, &cpus);
            }
        }
    }
}

/// All, where the kernel does not say.
fn cpus_of_this_thread() -> Cpus {
    let mut cpus = [0; CPU_WORDS];
    // SAFETY: the kernel writes at most as many bytes as the array has.
    let written = unsafe {
        libc::syscall(
            libc::SYS_sched_getaffinity,
            0,
            size_of::<Cpus>(),
            cpus.as_mut_ptr(),
        )
    };
    match written > 0 {
        true => cpus,
        false => [libc::c_ulong::MAX; CPU_WORDS],
    }
}

/// A thread that is gone, or may not be moved, is none the worse for it: turns only take longer.
fn set_cpus(thread: i32, cpus: &Cpus) {
    // SAFETY: the kernel reads as many bytes as the array has.
    unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            thread,
            size_of::<Cpus>(),
            cpus.as_ptr(),
        )
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_a_cpu_and_are_released_to_where_they_were() {
        let before = cpus_of_this_thread();
        let count = |cpus: &Cpus| cpus.iter().map(|word| word.count_ones()).sum::<u32>();
        let host = HostCpu::new();
        host.join();
        assert_eq!(cpus_of_this_thread(), before, "nothing is shared yet");
        host.share([0].into_iter());
        let shared = cpus_of_this_thread();
        assert_eq!(count(&shared), 1);
        std::thread::scope(|scope| {
            let joined = scope.spawn(|| {
                set_cpus(0, &before);
                host.join();
                cpus_of_this_thread()
            });
            assert_eq!(joined.join().unwrap(), shared);
        });
        host.release([0].into_iter());
        assert_eq!(cpus_of_this_thread(), before);
    }
}

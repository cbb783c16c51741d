// SPDX-License-Identifier: GPL-2.0-or-later
//! Whose turn it is in simulated time: one vCPU at a time runs guest code, and none gets further ahead of another than the
//! window.
//!
//! ```text
//!   local time ──►   0        window      2 x window
//!   vCPU 0           ████████            ░░ waits: 1 is behind it
//!   vCPU 1           ░░░░░░░░██████      has the turn until it is a window ahead of 0
//!   vCPU 2           ─ idle ─ ─ ─ ▲      woken by 1, at 1's local time: no turn is given before its thread is there
//!   main loop                        │   a timer is due: no vCPU passes that moment before its handler has run
//! ```
//!
//! Arithmetic on local times, without clocks and threads: the same calls give the same turns. Times are picoseconds.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::model::channel::Stores;

/// How long the window stays narrow after a line has passed from a vCPU to another. Lines that pass less often are seen too late by a
/// wide window at most, which is a hundredth of this.
const PASSING_PS: u64 = 100_000_000;

/// How long a vCPU polls at most before it gets a turn: others than vCPUs may write to what it polls.
const MOST_POLL_PS: u64 = 20_000_000;

/// Lines that a vCPU polls in a loop which changes nothing.
#[derive(Clone, Debug)]
pub struct Polled {
    pub lines: Vec<PolledLine>,
    /// Where stores are noted.
    pub stores: &'static Stores,
}

/// A line that a vCPU polls.
#[derive(Clone, Copy, Debug)]
pub struct PolledLine {
    /// The line's word, and what it was.
    pub word: &'static AtomicU64,
    pub before: u64,
    /// Its number.
    pub number: u32,
}

/// A vCPU polls.
#[derive(Clone, Debug)]
struct Poll {
    polled: Polled,
    since_ps: u64,
}

impl Poll {
    /// When another vCPU has stored to one of the lines, or loaded one, or one has left a cache; `None` where none has changed.
    fn changed_ps(&self, now_ps: u64) -> Option<u64> {
        let lines = self.polled.lines.iter();
        let changed = lines.filter(|it| it.word.load(Relaxed) != it.before);
        let stored_ps = changed.map(|it| self.polled.stores.seen_late(it.number, now_ps));
        // What was stored before is what it polls.
        let since = |ps: u64| if ps > self.since_ps { ps } else { now_ps };
        stored_ps.min().map(since)
    }
}

/// What a vCPU's thread does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ThreadState {
    /// The vCPU has nothing to do.
    Idle,
    /// It was woken or released, and its thread is on its way: to guest code, or back to waiting.
    Coming,
    /// It waits for its turn.
    Ready,
    /// It has the turn.
    Running,
    /// Its thread waits in QEMU for other threads, for instance until they have all left guest code.
    Blocked,
}

/// What QEMU's main loop does, which runs timers and devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum MainLoop {
    /// Whether a vCPU has given it something to do.
    Busy { is_notified: bool },
    /// It waits for events until this moment, when its next timer is due; `u64::MAX` without a timer.
    Waits(u64),
}

/// Who goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// This vCPU, for as long as its room.
    Of(usize),
    /// The main loop: a timer is due, or a vCPU has notified it.
    MainLoop,
    /// No one yet: a vCPU has the turn, or a thread is on its way.
    Later,
    /// No one: all vCPUs are idle, and time passes until one is woken.
    AllIdle,
}

#[derive(Clone, Debug)]
struct VcpuTurns {
    state: ThreadState,
    local_ps: u64,
    room_ps: u64,
    /// It has to leave guest code for another thread, which it does at the end of a block.
    must_leave: bool,
    /// It is ready, and would find what it polls as it was: no turn is given. Its local time stands still until that ends.
    polls: Option<Poll>,
    /// QEMU has interrupted it since it polled last.
    is_kicked: bool,
}

/// The turns of a guest's vCPUs.
#[derive(Debug)]
pub struct Turns {
    vcpus: Vec<VcpuTurns>,
    /// The vCPUs that have something to do, in no order: what is decided takes no time for the others.
    busy: Vec<usize>,
    /// While lines pass between vCPUs, and while none does.
    windows_ps: [u64; 2],
    passing_until_ps: u64,
    /// Who is first among equals; then the ones after it, and then those before.
    first_vcpu: usize,
    now_ps: u64,
    main_loop: MainLoop,
    is_notified: bool,
    /// When disks answer what vCPUs have asked them for, ascending.
    disks_ps: VecDeque<u64>,
    given: u64,
}

impl Turns {
    /// All vCPUs idle at this moment, and the main loop busy. How far one may be ahead of another while lines pass between vCPUs, and
    /// while none does. `seed` chooses who is first among equals.
    pub fn new(vcpus: usize, windows_ps: [u64; 2], seed: u64, now_ps: u64) -> Self {
        let idle = VcpuTurns {
            state: ThreadState::Idle,
            local_ps: now_ps,
            room_ps: 0,
            must_leave: false,
            polls: None,
            is_kicked: false,
        };
        Self {
            vcpus: vec![idle; vcpus],
            busy: Vec::with_capacity(vcpus),
            windows_ps: windows_ps.map(|ps| ps.max(1)),
            passing_until_ps: 0,
            first_vcpu: usize::try_from(seed % vcpus.max(1) as u64).unwrap_or(0),
            now_ps,
            main_loop: MainLoop::Busy { is_notified: false },
            is_notified: false,
            disks_ps: VecDeque::new(),
            given: 0,
        }
    }

    /// A line has come from another vCPU at a vCPU's local time.
    pub fn line_passes(&mut self, at_ps: u64) {
        self.passing_until_ps = self.passing_until_ps.max(at_ps.saturating_add(PASSING_PS));
    }

    /// How many turns there were.
    pub fn given(&self) -> u64 {
        self.given
    }

    /// The vCPUs that have something to do, and what their threads do.
    pub fn busy_states(&self) -> impl Iterator<Item = (usize, ThreadState)> + '_ {
        self.busy.iter().map(|&vcpu| (vcpu, self.state(vcpu)))
    }

    /// The machine's time: no vCPU that has something to do is before it, but for one that polled, by a window at most. It never goes back.
    pub fn now_ps(&self) -> u64 {
        self.now_ps
    }

    pub fn state(&self, vcpu: usize) -> ThreadState {
        self.vcpus[vcpu].state
    }

    /// A vCPU's own time, which is at most the window ahead of the machine's.
    pub fn local_ps(&self, vcpu: usize) -> u64 {
        self.vcpus[vcpu].local_ps
    }

    /// How long a vCPU with the turn may execute guest code before it asks again.
    pub fn room_ps(&self, vcpu: usize) -> u64 {
        self.vcpus[vcpu].room_ps
    }

    /// A vCPU has executed guest code for so long.
    pub fn spend(&mut self, vcpu: usize, ps: u64) {
        let it = &mut self.vcpus[vcpu];
        it.local_ps = it.local_ps.saturating_add(ps);
        self.advance();
    }

    /// A vCPU's thread is before the next block of guest code, and asks for the turn.
    pub fn ask(&mut self, vcpu: usize) {
        let now_ps = self.now_ps;
        let it = &mut self.vcpus[vcpu];
        if it.state == ThreadState::Idle {
            it.local_ps = it.local_ps.max(now_ps);
        }
        self.enter(vcpu, ThreadState::Ready);
    }

    /// The same for a vCPU that will find these lines as they were until another writes to them.
    pub fn poll(&mut self, vcpu: usize, polled: Polled) {
        self.ask(vcpu);
        let it = &mut self.vcpus[vcpu];
        // An interrupt may be pending.
        if !std::mem::take(&mut it.is_kicked) {
            it.polls = Some(Poll {
                polled,
                since_ps: it.local_ps,
            });
        }
        self.advance();
    }

    /// QEMU interrupts a vCPU, which looks for that at the beginning of a block.
    pub fn kick(&mut self, vcpu: usize) {
        self.vcpus[vcpu].is_kicked = true;
    }

    /// Whether a vCPU waits until what it polls changes.
    pub fn polls(&self, vcpu: usize) -> bool {
        self.vcpus[vcpu].polls.is_some()
    }

    /// A vCPU may find something new from this moment on, if it polls.
    fn end_poll(&mut self, vcpu: usize, at_ps: u64) {
        let it = &mut self.vcpus[vcpu];
        if it.polls.take().is_some() {
            it.local_ps = it.local_ps.max(at_ps);
        }
    }

    /// Ends polls at moments; `None` where one goes on.
    fn end_polls(&mut self, ends: impl Fn(&Poll) -> Option<u64>) {
        for position in 0..self.busy.len() {
            let at = self.busy[position];
            if let Some(at_ps) = self.vcpus[at].polls.as_ref().and_then(&ends) {
                self.end_poll(at, at_ps);
            }
        }
    }

    /// Lets those go on that find something new, and all where no vCPU does anything else: time passes then, but not past a timer.
    fn look_at_polls(&mut self) {
        let polls = |at: &usize| self.vcpus[*at].polls.is_some();
        if !self.busy.is_empty() && self.busy.iter().all(polls) {
            let to = self.now_ps.saturating_add(self.windows_ps[1]);
            self.now_ps = self.due_ps().map_or(to, |due| to.min(due)).max(self.now_ps);
            let now_ps = self.now_ps;
            return self.end_polls(|_| Some(now_ps));
        }
        let now_ps = self.now_ps;
        self.end_polls(|it| {
            let is_long = now_ps >= it.since_ps.saturating_add(MOST_POLL_PS);
            it.changed_ps(now_ps).or(is_long.then_some(now_ps))
        });
    }

    /// A vCPU has nothing to do any more.
    pub fn idle(&mut self, vcpu: usize) {
        self.enter(vcpu, ThreadState::Idle);
        if self.busy.is_empty() {
            self.now_ps = self.now_ps.max(self.vcpus[vcpu].local_ps);
        }
        self.advance();
    }

    /// A thread waits in QEMU for others, and all vCPUs may have to leave guest code for it. `vcpu` is `None` for a thread
    /// that runs no vCPU.
    pub fn block(&mut self, vcpu: Option<usize>) {
        if let Some(vcpu) = vcpu {
            self.enter(vcpu, ThreadState::Blocked);
        }
        for &at in &self.busy {
            self.vcpus[at].must_leave |= Some(at) != vcpu;
        }
    }

    /// A vCPU that is idle, blocked or polls is woken at this moment of another thread.
    pub fn wake(&mut self, vcpu: usize, at_ps: u64) {
        let at_ps = at_ps.max(self.now_ps);
        let it = &mut self.vcpus[vcpu];
        match it.state {
            ThreadState::Idle => it.local_ps = it.local_ps.max(at_ps),
            ThreadState::Blocked => {}
            ThreadState::Ready => return self.end_poll(vcpu, at_ps),
            ThreadState::Coming | ThreadState::Running => return,
        }
        self.enter(vcpu, ThreadState::Coming);
    }

    /// The main loop waits for events, at most until its next timer is due. If a vCPU has asked a disk for something, it answers
    /// at this moment.
    pub fn main_loop_waits(&mut self, due_ps: Option<u64>, disk_answers_ps: Option<u64>) {
        // The notice may come while the main loop already does what it asks for.
        if self.is_notified || self.main_loop == (MainLoop::Busy { is_notified: true }) {
            self.disks_ps.extend(disk_answers_ps);
        }
        self.main_loop = MainLoop::Waits(due_ps.unwrap_or(u64::MAX));
        // A device may have written to what is polled.
        let now_ps = self.now_ps;
        self.end_polls(|_| Some(now_ps));
    }

    /// The main loop has something to do.
    pub fn main_loop_goes_on(&mut self) {
        let is_notified = std::mem::take(&mut self.is_notified);
        self.main_loop = MainLoop::Busy { is_notified };
        let now_ps = self.now_ps;
        while self
            .disks_ps
            .pop_front_if(|due_ps| *due_ps <= now_ps)
            .is_some()
        {}
    }

    /// The main loop has looked for events, and there were none: it had done before what a notice asked for.
    pub fn main_loop_has_nothing(&mut self, disk_answers_ps: Option<u64>) {
        if std::mem::take(&mut self.is_notified) {
            self.disks_ps.extend(disk_answers_ps);
        }
    }

    /// A vCPU has given the main loop something to do.
    pub fn notify_main_loop(&mut self) {
        self.is_notified = true;
    }

    /// Whether the main loop's next timer or disk is due.
    pub fn is_due(&self) -> bool {
        self.due_ps().is_some_and(|due| due <= self.now_ps)
    }

    /// When the main loop's next timer or disk is due; `None` without one, and while it is busy.
    pub fn due_ps(&self) -> Option<u64> {
        let MainLoop::Waits(due_ps) = self.main_loop else {
            return None;
        };
        let disk_ps = self.disks_ps.front().copied();
        let due_ps = due_ps.min(disk_ps.unwrap_or(u64::MAX));
        (due_ps != u64::MAX).then_some(due_ps)
    }

    /// All vCPUs are idle, and so much time passes, but not past a timer.
    pub fn pass(&mut self, ps: u64) {
        if self.busy.is_empty() {
            let to = self.now_ps.saturating_add(ps);
            let to = self.due_ps().map_or(to, |due| to.min(due));
            self.now_ps = self.now_ps.max(to);
        }
    }

    /// Decides who goes on.
    pub fn decide(&mut self) -> Turn {
        self.look_at_polls();
        let due_ps = self.due_ps().unwrap_or(u64::MAX);
        let (mut leaving, mut ready, mut is_coming) = (None, None, false);
        for &at in &self.busy {
            let it = &self.vcpus[at];
            match it.state {
                ThreadState::Running => return Turn::Later,
                ThreadState::Coming => is_coming = true,
                ThreadState::Ready => {
                    let first =
                        |best: Option<_>| Some(best.map_or(at, |best| self.first(best, at)));
                    if it.must_leave {
                        leaving = first(leaving);
                    }
                    if it.polls.is_none() && it.local_ps < due_ps {
                        ready = first(ready);
                    }
                }
                ThreadState::Blocked | ThreadState::Idle => {}
            }
        }
        // Another thread waits for these, so they wait for nothing: one block each, in order.
        if let Some(vcpu) = leaving {
            return self.give(vcpu, 0);
        }
        if is_coming || matches!(self.main_loop, MainLoop::Busy { .. }) {
            return Turn::Later;
        }
        if self.is_notified || self.is_due() {
            return Turn::MainLoop;
        }
        match ready {
            Some(vcpu) => self.give(vcpu, self.free_ps(vcpu)),
            None if self.busy.is_empty() => Turn::AllIdle,
            None => Turn::Later,
        }
    }

    fn give(&mut self, vcpu: usize, room_ps: u64) -> Turn {
        self.end_poll(vcpu, self.now_ps);
        self.enter(vcpu, ThreadState::Running);
        let it = &mut self.vcpus[vcpu];
        it.room_ps = room_ps;
        it.must_leave = false;
        self.given += 1;
        Turn::Of(vcpu)
    }

    /// How far a vCPU may go: the window beyond the one that is furthest behind, and not past a timer.
    fn free_ps(&self, vcpu: usize) -> u64 {
        let others = self.busy.iter().filter(|&&at| at != vcpu);
        let of_other = |&at: &usize| match &self.vcpus[at] {
            VcpuTurns {
                polls: Some(_),
                local_ps,
                ..
            } => self.now_ps.max(*local_ps),
            it => it.local_ps,
        };
        let behind = others.map(of_other).min();
        let [narrow_ps, wide_ps] = self.windows_ps;
        let window_ps = match self.now_ps < self.passing_until_ps {
            true => narrow_ps,
            false => wide_ps,
        };
        let most = behind.map_or(u64::MAX, |behind| behind.saturating_add(window_ps));
        let most = self.due_ps().map_or(most, |due| most.min(due));
        most.saturating_sub(self.vcpus[vcpu].local_ps)
    }

    fn enter(&mut self, vcpu: usize, state: ThreadState) {
        let before = std::mem::replace(&mut self.vcpus[vcpu].state, state);
        match (before, state) {
            (ThreadState::Idle, ThreadState::Idle) => {}
            (ThreadState::Idle, _) => self.busy.push(vcpu),
            (_, ThreadState::Idle) => self.busy.retain(|&at| at != vcpu),
            _ => {}
        }
    }

    /// Which of two goes first: the one that is behind, or the first among equals.
    fn first(&self, one: usize, other: usize) -> usize {
        let order = |at: usize| {
            let is_before = at < self.first_vcpu;
            (self.vcpus[at].local_ps, is_before, at)
        };
        if order(other) < order(one) {
            other
        } else {
            one
        }
    }

    fn advance(&mut self) {
        let busy = self.busy.iter().map(|&at| &self.vcpus[at]);
        let others = busy.filter(|it| it.polls.is_none());
        let least = others.map(|it| it.local_ps).min();
        self.now_ps = self.now_ps.max(least.unwrap_or(0));
    }
}

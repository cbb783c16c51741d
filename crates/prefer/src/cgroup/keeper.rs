//! Keeps a group on a node through its cpuset.
//!
//! ```text
//!            PSI trigger, or none there: always         waits too long, twice
//!   quiet ───────────────────────────────────────► listening ─────────────────────────► wide
//!   narrow ◄─────────────────────────────────────── narrow                               │
//!     ▲            half a second without need                                            │
//!     └──────────────────────────────────────────────────────────────────────────────────┘
//!                                 room on the preferred node for what is away, twice
//! ```
//!
//! The PSI trigger only says that some task of the group waited; whether the group as a whole waits too long is what its tasks'
//! own times say, by the same rule as for single threads ([`crate::rule`]). So a quiet group costs nothing at all.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nearfar_lease::{Lease, LeaseError};
use nearfar_machine::CpuSet;
use serde::Serialize;

use super::members::Look;
use super::{CgroupError, Group};
use crate::idle::IdleTime;
use crate::keeper::cpu_time;
use crate::psi::{Trigger, Woken, wait};
use crate::rule::{Decision, FULL_OFFER_CPUS, Place, Rule, RuleOptions, offer};

/// Between two looks at the group's tasks, while there is something to decide.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// The trigger fires when some task of the group waits for this part of the window.
const TRIGGER_STALL: Duration = Duration::from_millis(100);
/// The shortest window that the kernel takes.
const TRIGGER_WINDOW: Duration = Duration::from_millis(500);
/// So many looks after the PSI trigger without need to widen, and it is waited for again.
const LOOKS_AFTER_TRIGGER: u32 = 5;
/// In CPUs, what may lack: a task that always runs finds its place on a CPU that does a little else.
const SPARE_CPUS: f64 = 0.2;
/// Looks cost at most this part of a CPU: with many tasks they become rarer, not dearer. The first is for the moment after
/// the PSI trigger, in which tasks wait; the second for as long as the group is out, or where there is no PSI trigger.
const MIN_PAUSE_TO_COST: (u32, u32) = (30, 120);
/// Where there is no PSI trigger, a look every so often.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Keeps a group on a node until it is stopped.
#[derive(Debug)]
pub struct GroupKeeper {
    thread: JoinHandle<Result<GroupReport, LeaseError>>,
    stop: OwnedFd,
    by_pressure: bool,
}

/// What a keeper of a group did.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct GroupReport {
    /// The CPUs on the preferred node that it was confined to.
    pub cpus: CpuSet,
    /// How long it kept the group, in seconds.
    pub seconds: f64,
    /// CPU time that it took, in seconds.
    pub cpu_s: f64,
    /// How often the group was released to other nodes.
    pub widened: u64,
    /// How often it was confined again.
    pub narrowed: u64,
    /// How long it was released, in seconds.
    pub wide_s: f64,
    /// Why it ended before it was stopped: the group is gone, or somebody else has set its cpuset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
}

impl GroupKeeper {
    /// Narrows the group's cpuset to those of its CPUs that are on the preferred node, and keeps it from then on in a thread of this
    /// process. The lease puts the cpuset back if the process dies. An empty cpuset is given all `possible` CPUs first, and
    /// has these at the end: it cannot be empty again.
    ///
    /// # Errors
    /// When none of the group's CPUs is on the preferred node, another keeper has the group, or its cpuset cannot be written.
    pub fn start(
        group: &Group,
        home: &CpuSet,
        possible: &CpuSet,
        options: RuleOptions,
    ) -> Result<Self, CgroupError> {
        let allowed = group.allowed()?;
        let narrow = allowed.intersection(home);
        if narrow.is_empty() {
            let (allowed, home) = (allowed.to_string(), home.to_string());
            return Err(CgroupError::Elsewhere {
                name: group.name().to_owned(),
                allowed,
                home,
            });
        }
        let file = group.directory().join("cpuset.cpus");
        let unreadable = |error: std::io::Error| super::file_error(&file, &error);
        let mut wide = std::fs::read_to_string(&file).map_err(unreadable)?;
        if wide.trim().is_empty() {
            // Before the lease: whatever happens then, it finds something that it can put back.
            wide = possible.to_string();
            std::fs::write(&file, &wide).map_err(unreadable)?;
        }
        let mut lease = Lease::take(&format!(
            "prefer a node for the control group {}",
            group.name()
        ))?;
        lease.set_file(&file, narrow.to_string().as_bytes())?;
        let trigger = Trigger::arm(
            &group.directory().join("cpu.pressure"),
            TRIGGER_STALL,
            TRIGGER_WINDOW,
        )
        .ok();
        let by_pressure = trigger.is_some();
        let (stopped, stop) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(|error| super::file_error("pipe", &error.into()))?;
        let keeping = Keeping {
            directory: group.directory().to_owned(),
            file,
            home: narrow.clone(),
            narrow: narrow.to_string(),
            wide,
            lease,
            trigger,
            rule: Rule::new(options, Place::Home),
            look: Look::default(),
            idle: IdleTime::default(),
            looked: None,
            report: GroupReport {
                cpus: narrow,
                ..GroupReport::default()
            },
        };
        let run = move || keeping.run(&stopped);
        let thread = std::thread::Builder::new()
            .name("nearfar-group".to_owned())
            .spawn(run);
        let thread = thread.map_err(|error| super::file_error("a thread", &error))?;
        Ok(Self {
            thread,
            stop,
            by_pressure,
        })
    }

    /// Whether the kernel's pressure trigger tells when the group waits; otherwise its tasks are looked at all the time.
    pub fn is_by_pressure(&self) -> bool {
        self.by_pressure
    }

    /// Whether it keeps the group still.
    pub fn is_running(&self) -> bool {
        !self.thread.is_finished()
    }

    /// Puts the cpuset back, and says what was done.
    ///
    /// # Errors
    /// When it could not be put back.
    pub fn stop(self) -> Result<GroupReport, LeaseError> {
        drop(self.stop);
        self.thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// The keeper's thread.
struct Keeping {
    directory: PathBuf,
    file: PathBuf,
    home: CpuSet,
    narrow: String,
    wide: String,
    lease: Lease,
    trigger: Option<Trigger>,
    rule: Rule,
    look: Look,
    idle: IdleTime,
    looked: Option<Instant>,
    report: GroupReport,
}

/// What is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The PSI trigger, narrow.
    Quiet,
    /// So many more looks, narrow.
    Listening(u32),
    /// Room on the preferred node, since then.
    Wide(Instant),
}

impl Keeping {
    fn run(mut self, stop: &OwnedFd) -> Result<GroupReport, LeaseError> {
        let begun = Instant::now();
        let (mut state, mut pause) = (State::Quiet, LOOK_INTERVAL);
        let ended = loop {
            let woken = match (state, &self.trigger) {
                (State::Quiet, Some(trigger)) => trigger.wait(stop.as_fd(), None),
                (State::Quiet, None) => wait(None, stop.as_fd(), Some(pause.max(POLL_INTERVAL))),
                _ => wait(None, stop.as_fd(), Some(pause)),
            };
            match woken {
                Ok(Woken::ByOther) => break None,
                Ok(Woken::ByEnd) => break Some("the group is gone".to_owned()),
                Ok(Woken::ByPressure | Woken::ByTime) => {}
                Err(error) => break Some(format!("waiting for its pressure: {error}")),
            }
            let before = cpu_time();
            match self.step(state, begun) {
                Ok(next) => state = next,
                Err(because) => break Some(because),
            }
            let dearest = if matches!(state, State::Listening(_)) {
                MIN_PAUSE_TO_COST.0
            } else {
                MIN_PAUSE_TO_COST.1
            };
            pause = LOOK_INTERVAL.max(cpu_time().saturating_sub(before) * dearest);
        };
        if let State::Wide(since) = state {
            self.report.wide_s += since.elapsed().as_secs_f64();
        }
        self.report.cpu_s = cpu_time().as_secs_f64();
        self.report.seconds = begun.elapsed().as_secs_f64();
        self.report.ended = ended;
        let Self { lease, report, .. } = self;
        lease.release()?;
        Ok(report)
    }

    /// One look, and what follows from it.
    fn step(&mut self, state: State, begun: Instant) -> Result<State, String> {
        let span = self
            .look
            .again(
                &self.directory,
                matches!(state, State::Wide(_)).then_some(&self.home),
            )
            .map_err(|error| error.to_string())?;
        let shares = self.idle.since_last(&self.home);
        if state == State::Quiet && self.trigger.is_some() {
            // What was before the PSI trigger says nothing of now.
            return Ok(State::Listening(LOOKS_AFTER_TRIGGER));
        }
        let room = shares.is_some_and(|shares| self.room(state, offer(shares), span.away_ns));
        let decision = self.rule.step(begun.elapsed(), span.share_waiting(), room);
        match (decision, state) {
            (Some(Decision::Widen), State::Quiet | State::Listening(_)) => {
                self.change(true)?;
                self.report.widened += 1;
                Ok(State::Wide(Instant::now()))
            }
            (Some(Decision::Narrow), State::Wide(since)) => {
                self.change(false)?;
                self.report.narrowed += 1;
                self.report.wide_s += since.elapsed().as_secs_f64();
                Ok(State::Listening(LOOKS_AFTER_TRIGGER))
            }
            (_, State::Listening(0..=1)) => Ok(State::Quiet),
            (_, State::Listening(looks)) => Ok(State::Listening(looks - 1)),
            (_, state) => Ok(state),
        }
    }

    /// Whether home has room: for more while the group is there, for all of it that is away when it is released.
    fn room(&mut self, state: State, offer: f64, away_ns: u64) -> bool {
        let seconds = self
            .looked
            .replace(Instant::now())
            .map_or(LOOK_INTERVAL, |then| then.elapsed())
            .as_secs_f64();
        let away = away_ns as f64 * 1e-9 / seconds.max(1e-3);
        offer
            >= match state {
                State::Wide(_) => FULL_OFFER_CPUS.max(away - SPARE_CPUS),
                State::Quiet | State::Listening(_) => FULL_OFFER_CPUS,
            }
    }

    /// Gives the group the other set, if it has the one it was left with.
    fn change(&mut self, widen: bool) -> Result<(), String> {
        let (before, after) = if widen {
            (&self.narrow, &self.wide)
        } else {
            (&self.wide, &self.narrow)
        };
        let now = std::fs::read_to_string(&self.file).map_err(|error| error.to_string())?;
        if !same(&now, before) {
            return Err(format!("somebody else has given it CPUs {}", now.trim()));
        }
        self.lease
            .set_file(&self.file, after.as_bytes())
            .map_err(|error| error.to_string())
    }
}

/// Whether two texts name the same CPUs.
fn same(one: &str, other: &str) -> bool {
    let set = |text: &str| text.trim().parse::<CpuSet>().ok();
    one.trim() == other.trim() || set(one).is_some_and(|one| Some(one) == set(other))
}

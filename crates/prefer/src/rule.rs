//! When a task leaves its node and when it is confined again: numbers in, decisions out, no system.
//!
//! ```text
//!             waits for a CPU, and the node offers none, twice in a row
//!   on the preferred node ────────────────────────────────────────────────────────► released
//!  (narrow) ◄──────────────────────────────────────────────────────── (its own mask)
//!             the node offers what it needs, twice in a row, and its pause is over
//! ```
//!
//! *Waits* is its own run-queue delay as a share of the time it wanted to run. *The node offers* is the time the node's CPUs
//! were idle. A task that waits while a CPU of the node is idle is not released: the kernel's balancing within the node takes
//! milliseconds, and a wait that a rule by wait alone sees (a burst of load under emulation) is no reason to go far.
//!
//! Of those that wait only the surplus leaves, the one that waits most first: [`NodeController`] adds up how many CPUs' worth of
//! waiting there is, releases so many, and decides again when that has had its effect. A task that is confined again and has to leave
//! again at once pauses for twice as long each time.

use std::collections::BTreeMap;
use std::time::Duration;

/// The thresholds. The defaults were measured, see docs/prefer.md.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RuleOptions {
    /// Waiting above this share of the time it wanted to run is a reason to leave. 0 to 1.
    pub waiting: f64,
    /// Looks in a row that must agree.
    pub looks: u32,
    /// Having to leave again within this time after coming back makes the next return later.
    pub too_soon: Duration,
    /// The longest time before a return is tried again.
    pub longest_pause: Duration,
}

impl Default for RuleOptions {
    fn default() -> Self {
        Self {
            waiting: 0.25,
            looks: 2,
            too_soon: Duration::from_secs(2),
            longest_pause: Duration::from_secs(32),
        }
    }
}

/// What CPUs that were idle for these shares of the time offer to one more task, in CPUs. A CPU that is idle for a sliver
/// offers nothing: a hundred of them together are no CPU for a task that always runs.
pub fn offer(idle_shares: impl IntoIterator<Item = f64>) -> f64 {
    idle_shares
        .into_iter()
        .map(|idle| (idle - MIN_IDLE_SHARE).max(0.0))
        .sum()
}

const MIN_IDLE_SHARE: f64 = 0.1;

/// An offer of so many CPUs takes any task that waits.
pub(crate) const FULL_OFFER_CPUS: f64 = 0.5;

/// A task that always runs finds its place on a CPU that does a little else: in CPUs, what may lack.
pub(crate) const SPARE_CPUS: f64 = 0.2;
/// What part of the threshold counts for a wait that may become a reason to leave.
pub(crate) const THRESHOLD_SHARE: f64 = 0.5;

/// What to do with a subject's CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Confine it to its node.
    Narrow,
    /// Let it run wherever it may.
    Widen,
}

/// Where a subject may run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// On its node's CPUs.
    Home,
    /// Wherever it may.
    Anywhere,
}

/// What is remembered of one subject.
#[derive(Clone, PartialEq, Debug)]
pub struct Rule {
    options: RuleOptions,
    place: Place,
    /// Looks in a row that spoke for a move.
    in_a_row: u32,
    came_home: Option<Duration>,
    /// No return before this.
    not_before: Duration,
    pause: Duration,
}

impl Rule {
    /// A subject that may run here. The times of all looks count from the same moment.
    pub fn new(options: RuleOptions, place: Place) -> Self {
        let pause = options.too_soon;
        Self {
            options,
            place,
            in_a_row: 0,
            came_home: None,
            not_before: Duration::ZERO,
            pause,
        }
    }

    /// Where it may run by what was decided.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Takes a look and decides: `waiting` is its wait as a share (0 to 1) of the time it wanted to run since the last look,
    /// `room` whether a CPU of its node could take it.
    pub fn step(&mut self, now: Duration, waiting: f64, room: bool) -> Option<Decision> {
        let decision = self.wants(now, waiting, room)?;
        self.done(now, decision);
        Some(decision)
    }

    /// Takes a look and says what it should do; nothing is decided.
    pub(crate) fn wants(&mut self, now: Duration, waiting: f64, room: bool) -> Option<Decision> {
        let (speaks, decision) = match self.place {
            Place::Home => (waiting > self.options.waiting && !room, Decision::Widen),
            Place::Anywhere => (room, Decision::Narrow),
        };
        self.in_a_row = if speaks {
            self.in_a_row.saturating_add(1)
        } else {
            0
        };
        let paused = self.place == Place::Anywhere && now < self.not_before;
        (self.in_a_row >= self.options.looks && !paused).then_some(decision)
    }

    /// Looks before this one no longer count: something else has changed meanwhile.
    pub(crate) fn restart(&mut self) {
        self.in_a_row = 0;
    }

    /// It was decided.
    pub(crate) fn done(&mut self, now: Duration, decision: Decision) {
        self.in_a_row = 0;
        match decision {
            Decision::Narrow => {
                self.place = Place::Home;
                self.came_home = Some(now);
            }
            Decision::Widen => {
                let soon = self
                    .came_home
                    .is_some_and(|came| now < came + self.options.too_soon);
                self.pause = match soon {
                    true => (self.pause * 2).min(self.options.longest_pause),
                    false => self.options.too_soon,
                };
                if soon {
                    self.not_before = now + self.pause;
                }
                self.place = Place::Anywhere;
            }
        }
    }
}

/// What was seen of one thread since the last look.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sample {
    /// How long it ran, in CPUs (1 is all the time).
    pub ran: f64,
    /// How long it waited for a CPU, in CPUs.
    pub waited: f64,
    /// Whether it was last seen on another node's CPU.
    pub away: bool,
}

/// What was seen since the last look.
#[derive(Clone, PartialEq, Debug)]
pub struct Look {
    /// Since an arbitrary moment, the same for all looks.
    pub now: Duration,
    /// What the node's idle CPUs offer ([`offer`]); none where it was not read.
    pub offer: Option<f64>,
    /// By thread.
    pub samples: BTreeMap<i32, Sample>,
}

/// What is remembered of all threads.
#[derive(Clone, PartialEq, Debug)]
pub struct NodeController {
    options: RuleOptions,
    rules: BTreeMap<i32, Rule>,
}

impl Sample {
    /// Of the time it wanted to run. 0 where it did not.
    fn waiting(&self) -> f64 {
        let wanted = self.ran + self.waited;
        if wanted > 0.0 {
            self.waited / wanted
        } else {
            0.0
        }
    }
}

impl NodeController {
    /// Without threads.
    pub fn new(options: RuleOptions) -> Self {
        Self {
            options,
            rules: BTreeMap::new(),
        }
    }

    /// A thread that is there from now on, or is somewhere else than was decided.
    pub fn put(&mut self, tid: i32, place: Place) {
        self.rules.insert(tid, Rule::new(self.options, place));
    }

    /// A thread that has ended, or is skipped.
    pub fn remove(&mut self, tid: i32) {
        self.rules.remove(&tid);
    }

    /// Where it may run by what was decided.
    pub fn place(&self, tid: i32) -> Option<Place> {
        self.rules.get(&tid).map(Rule::place)
    }

    /// Whether a thread on the preferred node waits so much that what the node offers matters: it costs something to find out.
    pub fn is_contended(&self, samples: &BTreeMap<i32, Sample>) -> bool {
        let at_home = self
            .rules
            .iter()
            .filter(|(_, rule)| rule.place() == Place::Home);
        at_home
            .filter_map(|(tid, _)| samples.get(tid))
            .any(|sample| self.waits_too_long(sample))
    }

    /// Whether a thread was released. What the node offers matters then, too.
    pub fn has_released(&self) -> bool {
        self.rules
            .values()
            .any(|rule| rule.place() == Place::Anywhere)
    }

    /// A wait that matters: a few per cent of a task that hardly runs cost nothing.
    fn waits_too_long(&self, sample: &Sample) -> bool {
        sample.waiting() > THRESHOLD_SHARE * self.options.waiting && sample.waited > MIN_WAIT_CPUS
    }

    /// Takes a look and decides.
    pub fn step(&mut self, look: &Look) -> Vec<(i32, Decision)> {
        let Some(offer) = look.offer else {
            return Vec::new();
        };
        let leave = self.surplus(look, offer);
        let decisions = if leave.is_empty() {
            self.returning(look, offer)
        } else {
            leave
        };
        for &(tid, decision) in &decisions {
            if let Some(rule) = self.rules.get_mut(&tid) {
                rule.done(look.now, decision);
            }
        }
        if !decisions.is_empty() {
            // Its effect has to show before the next one.
            self.rules.values_mut().for_each(Rule::restart);
        }
        decisions
    }

    /// Those on the preferred node that have to leave, the one that waits most first, as many as are too many.
    fn surplus(&mut self, look: &Look, offer: f64) -> Vec<(i32, Decision)> {
        let mut waiting_too_long = Vec::new();
        let at_home = self
            .rules
            .iter_mut()
            .filter(|(_, rule)| rule.place() == Place::Home);
        let at_home: Vec<_> = at_home
            .filter_map(|(&tid, rule)| Some((tid, rule, look.samples.get(&tid)?)))
            .collect();
        let waited: f64 = at_home.iter().map(|(_, _, sample)| sample.waited).sum();
        // The kernel's balancing will find it: an idle CPU, or less where less is waited for.
        let room = offer >= waited.clamp(MIN_OFFER_CPUS, FULL_OFFER_CPUS);
        // Where all of them together lack a CPU, a smaller share of each is reason enough.
        let weight = if waited - offer >= MIN_SURPLUS_CPUS {
            1.0 / THRESHOLD_SHARE
        } else {
            1.0
        };
        for (tid, rule, sample) in at_home {
            let waiting = if sample.waited > MIN_WAIT_CPUS {
                weight * sample.waiting()
            } else {
                0.0
            };
            if let Some(decision) = rule.wants(look.now, waiting, room) {
                waiting_too_long.push((tid, decision, waiting));
            }
        }
        waiting_too_long.sort_by(|one, other| other.2.total_cmp(&one.2));
        // One that waits too long is too many, however the sum is rounded.
        let surplus = (waited - offer).round().max(1.0) as usize;
        waiting_too_long
            .into_iter()
            .take(surplus)
            .map(|(tid, decision, _)| (tid, decision))
            .collect()
    }

    /// Those released that the preferred node can take, one after the other.
    fn returning(&mut self, look: &Look, mut offer: f64) -> Vec<(i32, Decision)> {
        let mut coming = Vec::new();
        for (&tid, rule) in self
            .rules
            .iter_mut()
            .filter(|(_, rule)| rule.place() == Place::Anywhere)
        {
            let Some(sample) = look.samples.get(&tid) else {
                continue;
            };
            let (room, takes) = match sample.away {
                // One that sleeps takes nothing now; that it finds a place when it wakes up is all that can be asked.
                true => (
                    offer >= FULL_OFFER_CPUS.max(sample.ran + sample.waited - SPARE_CPUS),
                    sample.ran + sample.waited,
                ),
                // It runs on the preferred node already and would go on as it does.
                false => (sample.waiting() <= self.options.waiting / 2.0, 0.0),
            };
            if let Some(decision) = rule.wants(look.now, sample.waiting(), room) {
                offer -= takes;
                coming.push((tid, decision));
            }
        }
        coming
    }
}

/// Less than this is no offer, in CPUs.
const MIN_OFFER_CPUS: f64 = 0.1;
/// In CPUs, what is waited for beyond what is offered: more than half a task.
const MIN_SURPLUS_CPUS: f64 = 0.5;
/// In CPUs, see [`NodeController::waits_too_long`].
const MIN_WAIT_CPUS: f64 = 0.02;

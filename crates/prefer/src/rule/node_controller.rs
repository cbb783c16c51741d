//! The rule for all threads of one keeper: they share a node, so only as many leave as are too many.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Decision, FULL_OFFER_CPUS, Place, Rule, RuleOptions, SPARE_CPUS, THRESHOLD_SHARE};

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
    /// What the node's idle CPUs offer ([`super::offer`]); none where it was not read.
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

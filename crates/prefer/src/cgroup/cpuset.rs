//! A group that is kept: as one through its cpuset where that serves, and otherwise thread by thread.
//!
//! ```text
//!                   waits too long, twice
//!   confined ───────────────────────────────────────────────────────► released
//!   (narrow) ◄─────────────────────────────────────────────────────── (wide)
//!                   room on the preferred node for what is away, twice
//! ```
//!
//! The PSI trigger only says that some task of the group waited; whether the group as a whole waits too long is what its tasks'
//! own times say, by the same rule as for single threads ([`crate::rule`]). So a confined group none of whose tasks waits costs
//! nothing at all.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use nearfar_change::lease::{Lease, Leases};
use nearfar_machine::{CpuSet, Machine, NodeId};
use serde::Serialize;

use crate::cgroup::{CgroupError, Group, Means, Span, TaskTimes};
use crate::keeper::{
    Actuator, Effort, Keeper, KeeperError, KeeperOptions, KeeperReport, Load, Looked, Memory,
    Targets,
};
use crate::near;
use crate::psi::Trigger;
use crate::rule::{Decision, FULL_OFFER_CPUS, Place, Rule, SPARE_CPUS, THRESHOLD_SHARE};

/// The trigger fires when some task of the group waits for this part of the window.
const TRIGGER_STALL: Duration = Duration::from_millis(100);
/// The shortest window that the kernel takes.
const TRIGGER_WINDOW: Duration = Duration::from_millis(500);

/// What a keeper of a group did.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct GroupReport {
    /// The CPUs on the preferred node that it was confined to.
    pub cpus: CpuSet,
    /// How long it kept the group.
    pub seconds: f64,
    /// CPU time that it took.
    pub cpu_s: f64,
    /// How often the group was released to other nodes.
    pub widened: u64,
    /// How often it was confined again.
    pub narrowed: u64,
    /// How long it was released.
    pub wide_s: f64,
    /// Why it ended before it was stopped: the group is gone, or another program has set its cpuset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
}

/// The cpuset of a group, and what its tasks did.
pub struct GroupCpuset {
    directory: PathBuf,
    file: PathBuf,
    narrow: String,
    wide: String,
    lease: Lease,
    trigger: Option<Trigger>,
    rule: Rule,
    /// The wait of the group as a share of the time it wanted to run that may become a reason to release it.
    waiting: f64,
    times: TaskTimes,
    released: Option<Instant>,
    report: GroupReport,
}

impl GroupCpuset {
    /// Narrows the group's cpuset to those of its CPUs that are on the preferred node (`home`). The lease puts the cpuset back if
    /// the process dies. An empty cpuset is given all `possible` CPUs first, and has these at the end: it cannot be empty again.
    ///
    /// # Errors
    /// When none of the group's CPUs is on the preferred node, another keeper has the group, or its cpuset cannot be written.
    pub(crate) fn confine(
        group: &Group,
        home: &CpuSet,
        possible: &CpuSet,
        options: &KeeperOptions,
    ) -> Result<Self, KeeperError> {
        let allowed = group.allowed()?;
        let cpus = allowed.intersection(home);
        if cpus.is_empty() {
            return Err(KeeperError::Cgroup(CgroupError::Elsewhere {
                name: group.name().to_owned(),
                allowed,
                home: home.clone(),
            }));
        }
        let directory = group.directory().to_owned();
        let file = directory.join("cpuset.cpus");
        let failed = |error| crate::cgroup::file_error(&file, &error);
        let mut wide = std::fs::read_to_string(&file).map_err(failed)?;
        if wide.trim().is_empty() {
            // Before the lease: whatever happens then, it finds something that it can put back.
            wide = possible.to_string();
            std::fs::write(&file, &wide).map_err(failed)?;
        }
        let what = format!("prefer a node for the control group {}", group.name());
        let mut lease = match &options.leases {
            Some(leases) => leases.take(&what)?,
            None => Leases::of_user()?.take(&what)?,
        };
        let narrow = cpus.to_string();
        lease.set_file(&file, narrow.as_bytes())?;
        let pressure = directory.join("cpu.pressure");
        Ok(Self {
            trigger: Trigger::arm(&pressure, TRIGGER_STALL, TRIGGER_WINDOW).ok(),
            directory,
            file,
            narrow,
            wide,
            lease,
            rule: Rule::new(options.rule, Place::Home),
            waiting: THRESHOLD_SHARE * options.rule.waiting,
            times: TaskTimes::default(),
            released: None,
            report: GroupReport {
                cpus,
                ..GroupReport::default()
            },
        })
    }

    /// Gives the group the other set, if it has the one it was left with.
    fn set(&mut self, wide: bool) -> Result<(), KeeperError> {
        let (before, after) = match wide {
            true => (&self.narrow, &self.wide),
            false => (&self.wide, &self.narrow),
        };
        let failed = |error| crate::cgroup::file_error(&self.file, &error);
        let now = std::fs::read_to_string(&self.file).map_err(failed)?;
        if !is_same(&now, before) {
            let cpus = now.trim().to_owned();
            return Err(KeeperError::CpusetChanged { cpus });
        }
        Ok(self.lease.set_file(&self.file, after.as_bytes())?)
    }
}

impl Actuator for GroupCpuset {
    type Samples = (Span, Duration);
    type Report = GroupReport;

    fn trigger(&self) -> Option<&Trigger> {
        self.trigger.as_ref().filter(|_| self.released.is_none())
    }

    fn home(&self) -> &CpuSet {
        &self.report.cpus
    }

    fn look(&mut self, passed: Duration) -> Result<Looked<Self::Samples>, KeeperError> {
        let home = self.released.is_some().then_some(&self.report.cpus);
        let span = self.times.since_last(&self.directory, home)?;
        let load = match self.released {
            Some(_) => Load::Spilled,
            None if span.share_waiting() > self.waiting => Load::Contended,
            None => Load::Idle,
        };
        Ok(Looked {
            load,
            has_newcomers: false,
            samples: (span, passed),
        })
    }

    fn act(
        &mut self,
        now: Duration,
        offer: Option<f64>,
        (span, passed): Self::Samples,
    ) -> Result<(), KeeperError> {
        let away = span.away_ns as f64 / passed.as_nanos() as f64;
        // Room for more while the group is there, for all of it that is away when it is released. Where the offer is unknown
        // the group stays as it is.
        let room = match (offer, self.released) {
            (None, released) => released.is_none(),
            (Some(offer), None) => offer >= FULL_OFFER_CPUS,
            (Some(offer), Some(_)) => offer >= FULL_OFFER_CPUS.max(away - SPARE_CPUS),
        };
        match self.rule.step(now, span.share_waiting(), room) {
            Some(Decision::Widen) => {
                self.set(true)?;
                self.report.widened += 1;
                self.released = Some(Instant::now());
            }
            Some(Decision::Narrow) => {
                self.set(false)?;
                self.report.narrowed += 1;
                self.report.wide_s += seconds_since(self.released.take());
            }
            None => {}
        }
        Ok(())
    }

    fn report(&self, effort: &Effort) -> GroupReport {
        GroupReport {
            seconds: effort.seconds(),
            cpu_s: effort.cpu.as_secs_f64(),
            wide_s: self.report.wide_s + seconds_since(self.released),
            ..self.report.clone()
        }
    }

    fn restore(
        self,
        ended: Option<KeeperError>,
        effort: &Effort,
    ) -> Result<GroupReport, KeeperError> {
        let mut report = self.report(effort);
        report.ended = ended.map(|error| error.to_string());
        self.lease.release()?;
        Ok(report)
    }
}

fn seconds_since(then: Option<Instant>) -> f64 {
    then.map_or(0.0, |then| then.elapsed().as_secs_f64())
}

/// Whether two texts name the same CPUs.
fn is_same(one: &str, other: &str) -> bool {
    let set = |text: &str| text.trim().parse::<CpuSet>().ok();
    one.trim() == other.trim() || set(one).is_some_and(|one| Some(one) == set(other))
}

/// Through what a group is to be kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Through {
    /// Its cpuset; refused where that does not serve.
    Cpuset,
    /// Its threads one by one.
    Threads,
}

/// A group that is kept.
pub enum KeptGroup {
    /// `was_empty`: the cpuset was empty, and will not be so again.
    Cpuset {
        keeper: Keeper<GroupCpuset>,
        by_pressure: bool,
        was_empty: bool,
    },
    /// Its threads one by one; `reason`: why not through its cpuset.
    Threads { keeper: Keeper, reason: String },
}

/// What was done to a group.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(tag = "means", rename_all = "snake_case")]
pub enum KeptGroupReport {
    Cpuset(GroupReport),
    Threads(KeeperReport),
}

impl KeptGroup {
    /// Keeps a group on a node from now on, in a thread of this process; through whatever leaves nothing behind unless
    /// something is asked for.
    ///
    /// # Errors
    /// When the node has no CPUs, none of them is the group's, what is asked for does not serve, or the system refuses.
    pub fn start(
        group: &Group,
        node: NodeId,
        machine: &Machine,
        through: Option<Through>,
        options: KeeperOptions,
    ) -> Result<Self, KeeperError> {
        let node = near::node(machine, node)?;
        match chosen(group, through, options.memory)? {
            Means::Threads { reason } => {
                let targets = Targets::Cgroup(group.directory().to_owned());
                Ok(Self::Threads {
                    keeper: Keeper::start(targets, node, machine, options)?,
                    reason,
                })
            }
            means => {
                let online = &machine.cpu_states.online;
                let home = machine
                    .node(node)
                    .map(|node| node.known_cpus().intersection(online))
                    .unwrap_or_default();
                let possible = machine.cpu_states.possible.get().unwrap_or(online);
                let cpuset = GroupCpuset::confine(group, &home, possible, &options)?;
                Ok(Self::Cpuset {
                    by_pressure: cpuset.trigger().is_some(),
                    keeper: Keeper::run(cpuset, options.interval)?,
                    was_empty: means == Means::EmptyCpuset,
                })
            }
        }
    }

    /// How it is kept, as a sentence for people.
    pub fn how(&self) -> String {
        match self {
            Self::Cpuset {
                by_pressure,
                was_empty,
                ..
            } => {
                let by = match by_pressure {
                    true => "by its pressure (PSI)",
                    false => {
                        "and its tasks watched all the time, since the kernel has no PSI for it"
                    }
                };
                let left = match was_empty {
                    true => {
                        "; it was empty and is left with all CPUs, for an empty one is not taken back"
                    }
                    false => "",
                };
                format!("through its cpuset, {by}{left}")
            }
            Self::Threads { reason, .. } => format!("thread by thread: {reason}"),
        }
    }

    /// Whether it is kept still: the group may be gone, or another program may have set its CPUs.
    pub fn is_running(&self) -> bool {
        match self {
            Self::Cpuset { keeper, .. } => keeper.is_running(),
            Self::Threads { keeper, .. } => keeper.is_running(),
        }
    }

    /// Leaves the group as it was.
    ///
    /// # Errors
    /// When something could not be put back; the next nearfar tries again.
    pub fn stop(self) -> Result<KeptGroupReport, KeeperError> {
        match self {
            Self::Cpuset { keeper, .. } => keeper.stop().map(KeptGroupReport::Cpuset),
            Self::Threads { keeper, .. } => keeper.stop().map(KeptGroupReport::Threads),
        }
    }
}

/// What is asked for where that serves; otherwise what leaves nothing behind.
fn chosen(group: &Group, through: Option<Through>, memory: Memory) -> Result<Means, KeeperError> {
    let threads = |reason: &str| Means::Threads {
        reason: reason.to_owned(),
    };
    if through == Some(Through::Threads) {
        return Ok(threads("as asked"));
    }
    let means = match memory {
        Memory::Untouched => group.means()?,
        Memory::Follow => threads("its memory is to follow, process by process"),
    };
    match (through, means) {
        (Some(_), Means::Threads { reason }) => Err(KeeperError::NotByCpuset { reason }),
        (None, Means::EmptyCpuset) => Ok(threads(
            "its cpuset is empty, and the kernel takes no empty one back while it has tasks",
        )),
        (_, means) => Ok(means),
    }
}

//! Asking every host that has not answered yet.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nearfar_runs::now_s;
use serde::Serialize;

use crate::engine::{Engine, EngineError, StepEnd};
use crate::folder::{Event, Folder, FolderError, HostEvent, outcome_of};
use crate::hosts::HostName;

#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("a job of this rollout still runs")]
    StepRuns,
}

/// A host, and why it is named.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct HostReason {
    pub host: HostName,
    pub reason: String,
}

/// What became of all hosts of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Summary {
    pub answered: Vec<HostName>,
    /// nearfar ran there and failed.
    pub failed: Vec<HostReason>,
    /// No answer came.
    pub lost: Vec<HostReason>,
    /// Not asked, or not waited for, because the run was interrupted.
    pub not_asked: Vec<HostName>,
}

impl Summary {
    /// What the folder says of each host.
    ///
    /// # Errors
    /// The events cannot be read.
    pub fn of(folder: &Folder) -> Result<Self, FolderError> {
        let events = LastEvents::of(folder)?;
        let mut summary = Self::default();
        for host in &folder.manifest.hosts {
            summary.add(host, events.with_answer(host, folder.outcome(host)));
        }
        Ok(summary)
    }

    /// Counts a host by the last that is known of it.
    pub(crate) fn add(&mut self, host: &HostName, last: Option<HostEvent>) {
        let with = |reason| HostReason {
            host: host.clone(),
            reason,
        };
        match last {
            Some(HostEvent::Answered) => self.answered.push(host.clone()),
            Some(HostEvent::Failed { reason }) => self.failed.push(with(reason)),
            Some(HostEvent::Lost { reason, .. }) => self.lost.push(with(reason)),
            Some(HostEvent::Starting | HostEvent::Started { .. }) | None => {
                self.not_asked.push(host.clone())
            }
        }
    }

    /// Whether every host answered.
    pub fn is_complete(&self) -> bool {
        self.failed.is_empty() && self.lost.is_empty() && self.not_asked.is_empty()
    }
}

/// The last event of each host.
pub(crate) struct LastEvents(BTreeMap<HostName, HostEvent>);

impl LastEvents {
    pub fn of(folder: &Folder) -> Result<Self, FolderError> {
        let events = folder.events()?.into_iter();
        Ok(Self(
            events.map(|event| (event.host, event.event)).collect(),
        ))
    }

    /// The answer itself counts more than what was noted of it: it may have come after its nearfar was gone.
    pub fn with_answer(&self, host: &HostName, answer: Option<HostEvent>) -> Option<HostEvent> {
        answer.or_else(|| match self.0.get(host)? {
            HostEvent::Answered => Some(HostEvent::Lost {
                reason: "its answer is no longer in the folder".to_owned(),
                is_not_begun: false,
            }),
            event => Some(event.clone()),
        })
    }
}

/// What becomes of steps that run when the request is cancelled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnCancel {
    EndSteps,
    /// They are waited for: a step that changes its host is not cut off between the change and what is measured of it.
    FinishSteps,
}

/// How long an engine may fail to answer before the request is given up, in seconds. Its steps go on all the while.
const MAX_ENGINE_FAILURE_S: u64 = 600;

/// Asks each of `hosts` that has not answered, and tells `on_event` what becomes of each; if that breaks, no further step is started.
///
/// Ends when every one has ended, or when `cancel` is set.
///
/// # Errors
/// The folder cannot be written, or the engine is not there. Steps that run go on; with [`OnCancel::FinishSteps`] they are waited for.
pub fn carry_out(
    folder: &Folder,
    hosts: &[HostName],
    engine: &mut dyn Engine,
    by: &str,
    (cancel, on_cancel): (&AtomicBool, OnCancel),
    on_event: &mut dyn FnMut(&HostName, &HostEvent) -> ControlFlow<()>,
) -> Result<(), FleetError> {
    let mut asking = Asking::new(folder, engine, by, on_event);
    let asked = asking
        .begin(hosts)
        .and_then(|()| asking.until_all_ended(cancel, on_cancel));
    if asked.is_err() && on_cancel == OnCancel::FinishSteps {
        asking.finish_running();
    }
    asked?;
    if cancel.load(Ordering::SeqCst) && on_cancel == OnCancel::EndSteps {
        asking.engine.cancel();
    }
    Ok(())
}

/// Waits for the steps that an earlier request started, and starts none.
///
/// # Errors
/// As [`carry_out`].
pub fn wait_for_started(
    folder: &Folder,
    engine: &mut dyn Engine,
    by: &str,
    cancel: &AtomicBool,
) -> Result<(), FleetError> {
    engine.cancel_waiting()?;
    let mut on_event = |_: &HostName, _: &HostEvent| ControlFlow::Continue(());
    let mut asking = Asking::new(folder, engine, by, &mut on_event);
    asking.is_stopped = true;
    let mut jobs = asking.jobs()?;
    jobs.retain(|host, _| folder.outcome(host).is_none());
    asking.running = asking.engine.adopt(&jobs)?;
    asking.until_all_ended(cancel, OnCancel::EndSteps)
}

struct Asking<'a> {
    folder: &'a Folder,
    engine: &'a mut dyn Engine,
    by: &'a str,
    on_event: &'a mut dyn FnMut(&HostName, &HostEvent) -> ControlFlow<()>,
    running: BTreeSet<HostName>,
    waiting: VecDeque<HostName>,
    /// No further step is to begin.
    is_stopped: bool,
}

impl<'a> Asking<'a> {
    fn new(
        folder: &'a Folder,
        engine: &'a mut dyn Engine,
        by: &'a str,
        on_event: &'a mut dyn FnMut(&HostName, &HostEvent) -> ControlFlow<()>,
    ) -> Self {
        Self {
            folder,
            engine,
            by,
            on_event,
            running: BTreeSet::new(),
            waiting: VecDeque::new(),
            is_stopped: false,
        }
    }

    /// Sorts hosts into those that answered, those whose step still runs, those that cannot take one, and the rest.
    fn begin(&mut self, hosts: &[HostName]) -> Result<(), FleetError> {
        let mut of_earlier = self.jobs()?;
        let (mut missing, mut jobs) = (Vec::new(), BTreeMap::new());
        for host in hosts {
            let job = of_earlier.remove(host);
            match (self.folder.outcome(host), job) {
                // It answered after the nearfar that asked it was gone.
                (Some(HostEvent::Answered), Some(_)) => self.note(host, HostEvent::Answered)?,
                (Some(HostEvent::Answered), None) => {}
                (_, job) => {
                    missing.push(host.clone());
                    jobs.extend(job.map(|job| (host.clone(), job)));
                }
            }
        }
        let mut unavailable: BTreeMap<HostName, String> =
            self.engine.unavailable(&missing)?.into_iter().collect();
        self.running = self.engine.adopt(&jobs)?;
        for host in missing {
            if self.running.contains(&host) {
                continue;
            }
            if let Some(reason) = unavailable.remove(&host) {
                self.note_lost(&host, reason, true)?;
            } else if !self.is_stopped {
                self.waiting.push_back(host);
            }
        }
        Ok(())
    }

    /// The steps that were started and of which no end is known.
    fn jobs(&self) -> Result<BTreeMap<HostName, String>, FleetError> {
        let mut jobs = BTreeMap::new();
        for event in self.folder.events()? {
            match event.event {
                HostEvent::Starting => {}
                HostEvent::Started { job } => {
                    jobs.insert(event.host, job);
                }
                _ => {
                    jobs.remove(&event.host);
                }
            }
        }
        Ok(jobs)
    }

    fn until_all_ended(
        &mut self,
        cancel: &AtomicBool,
        on_cancel: OnCancel,
    ) -> Result<(), FleetError> {
        let mut failing_since: Option<Instant> = None;
        loop {
            if cancel.load(Ordering::SeqCst) {
                if on_cancel == OnCancel::EndSteps {
                    return Ok(());
                }
                self.stop();
            }
            self.start_some(cancel)?;
            if self.running.is_empty() && self.waiting.is_empty() {
                return Ok(());
            }
            match self.engine.ended() {
                Ok(ended) => {
                    failing_since = None;
                    // All of them, whatever becomes of one: the engine does not name them again.
                    let mut noted = Ok(());
                    for end in ended {
                        let (host, event) = self.take_end(end);
                        noted = noted.and(self.note(&host, event));
                    }
                    noted?;
                }
                // A controller is started again, or has too much to do.
                Err(error) => {
                    let since = failing_since.get_or_insert_with(Instant::now);
                    if since.elapsed().as_secs() > MAX_ENGINE_FAILURE_S {
                        return Err(error.into());
                    }
                }
            }
            if !self.running.is_empty() {
                self.pause(cancel);
            }
        }
    }

    /// Begins no further step, and ends those that the engine has not begun.
    fn stop(&mut self) {
        self.waiting.clear();
        if !std::mem::replace(&mut self.is_stopped, true) {
            // Where that fails they begin and are waited for.
            let _ = self.engine.cancel_waiting();
        }
    }

    fn start_some(&mut self, cancel: &AtomicBool) -> Result<(), FleetError> {
        while self.running.len() < self.folder.manifest.at_once
            && !self.is_stopped
            && !cancel.load(Ordering::SeqCst)
            && let Some(host) = self.waiting.pop_front()
        {
            self.folder.forget(&host)?;
            self.note(&host, HostEvent::Starting)?;
            if self.is_stopped {
                // `on_event` could not note it.
                let reason = "it was stopped before it began".to_owned();
                return self.note_lost(&host, reason, true);
            }
            match self.engine.start(&host) {
                Ok(job) => {
                    self.running.insert(host.clone());
                    self.note(&host, HostEvent::Started { job })?;
                }
                // sbatch can fail after the controller has taken the job.
                Err(error @ EngineError::Failed { .. }) => {
                    self.note_lost(&host, error.to_string(), false)?;
                }
                // Perhaps there are no more processes or files now.
                Err(_) if !self.running.is_empty() => {
                    self.waiting.push_front(host);
                    return Ok(());
                }
                Err(error) => {
                    self.note_lost(&host, error.to_string(), true)?;
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    /// After an error: waits for the steps that run, so that it is known what became of them.
    fn finish_running(&mut self) {
        self.stop();
        let since = Instant::now();
        while !self.running.is_empty() {
            match self.engine.ended() {
                Ok(ended) => {
                    for end in ended {
                        let (host, event) = self.take_end(end);
                        if self.note(&host, event.clone()).is_err() {
                            let _ = (self.on_event)(&host, &event);
                        }
                    }
                }
                Err(_) if since.elapsed().as_secs() > MAX_ENGINE_FAILURE_S => return,
                Err(_) => {}
            }
            self.pause(&AtomicBool::new(false));
        }
    }

    /// A step that runs no longer, and what it has given: its answer decides, whatever the engine says.
    fn take_end(&mut self, end: StepEnd) -> (HostName, HostEvent) {
        let StepEnd {
            host,
            problem,
            is_not_begun,
        } = end;
        self.running.remove(&host);
        // All of it, once: what collect could not use is asked for again by --resume.
        if let Some(outcome) = outcome_of(&self.folder.result(&host), |it| &it.ended) {
            return (host, outcome);
        }
        let mut reason = problem.unwrap_or_else(|| "its step ended without an answer".to_owned());
        let words = self.folder.last_log_line(&host);
        if !words.is_empty() {
            reason = format!("{reason}: {words}");
        }
        let event = HostEvent::Lost {
            reason,
            is_not_begun,
        };
        (host, event)
    }

    fn note(&mut self, host: &HostName, event: HostEvent) -> Result<(), FleetError> {
        self.folder.append(&Event {
            at_s: now_s(),
            by: self.by.to_owned(),
            host: host.clone(),
            event: event.clone(),
        })?;
        if (self.on_event)(host, &event).is_break() {
            self.stop();
        }
        Ok(())
    }

    fn note_lost(
        &mut self,
        host: &HostName,
        reason: String,
        is_not_begun: bool,
    ) -> Result<(), FleetError> {
        let event = HostEvent::Lost {
            reason,
            is_not_begun,
        };
        self.note(host, event)
    }

    /// Waits for the engine's interval; less when the request is cancelled meanwhile.
    fn pause(&self, cancel: &AtomicBool) {
        const STEP_MS: u64 = 50;
        let was_cancelled = cancel.load(Ordering::SeqCst);
        let mut left = self.engine.interval_ms();
        while left > 0 && cancel.load(Ordering::SeqCst) == was_cancelled {
            let step = left.min(STEP_MS);
            std::thread::sleep(Duration::from_millis(step));
            left -= step;
        }
    }
}

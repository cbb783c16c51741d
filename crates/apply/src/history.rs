//! The runs that were made here, from their journals.

use serde::Serialize;

use crate::error::ApplyError;
use crate::journal::{self, Contents, Progress, Written};
use crate::run_id::RunId;
use crate::setting::Setting;
use crate::state::StateDir;
use crate::target::Target;

/// A run of apply that wrote something, or was about to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Run {
    /// Its number.
    pub run: RunId,
    /// When it began, in seconds since 1970; 0 where the journal cannot be read.
    pub at_s: u64,
    /// Host name, where the target told.
    pub host: Option<String>,
    /// CRC-32 of the plan's JSON: the same for the same plan.
    pub plan: Option<String>,
    /// The process that made it.
    pub pid: Option<u32>,
    /// What has become of it.
    pub state: RunState,
    /// Its writes, in order.
    pub changes: Vec<RunChange>,
}

/// What has become of a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum RunState {
    /// It ended, and at least one of its writes stands.
    Made,
    /// It did not end: killed, or still running. `rollback` undoes it.
    Interrupted,
    /// None of its writes stands.
    Undone,
    /// Nothing it tried was taken by the system.
    NothingMade,
    /// It was made in an earlier boot; the reboot has reset what it wrote.
    GoneWithReboot,
    /// Its journal cannot be read or does not hold.
    Unreadable {
        /// The journal, the line, and what is wrong.
        because: String,
    },
}

/// A write of a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RunChange {
    /// What was written.
    pub setting: Setting,
    /// Its file.
    pub file: String,
    /// The value before, without its line end.
    pub old: String,
    /// The value written, without its line end.
    pub new: String,
    /// What has become of it.
    pub state: RunChangeState,
}

/// What has become of a write.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum RunChangeState {
    /// It stands.
    Made,
    /// Killed around the write: the file holds the old or the new value.
    InDoubt,
    /// The system refused it.
    Failed {
        /// Its answer.
        error: String,
    },
    /// Put back.
    Undone,
}

/// All runs, oldest first. Takes no lock: a run that is being made shows as interrupted.
///
/// # Errors
/// When the state directory cannot be read. A journal that does not hold is a run that says so.
pub fn history(target: &Target) -> Result<Vec<Run>, ApplyError> {
    let Some(state) = StateDir::find(target)? else { return Ok(Vec::new()) };
    let boot = target.boot(&target.system()?);
    let runs = state.runs()?.into_iter();
    Ok(runs.filter_map(|run| describe(run, journal::read(&state, run), boot.as_deref())).collect())
}

fn describe(run: RunId, read: Result<Contents, ApplyError>, boot: Option<&str>) -> Option<Run> {
    let contents = match read {
        Ok(contents) => contents,
        Err(error) => {
            let state = RunState::Unreadable { because: error.to_string() };
            return Some(Run { run, at_s: 0, host: None, plan: None, pid: None, state, changes: Vec::new() });
        }
    };
    let state = state_of(&contents, boot);
    // A crash during the first record: the run never was.
    let header = contents.header?;
    Some(Run {
        run,
        at_s: contents.at_s,
        host: header.host,
        plan: Some(header.plan),
        pid: Some(header.pid),
        state,
        changes: contents.writes.into_iter().map(describe_write).collect(),
    })
}

/// What has become of a run, seen from a boot.
pub(crate) fn state_of(contents: &Contents, boot: Option<&str>) -> RunState {
    let any = |test: fn(&Written) -> bool| contents.writes.iter().any(test);
    let made_in = contents.header.as_ref().and_then(|header| header.boot.as_deref());
    if any(Written::is_open) {
        match (made_in, boot) {
            (Some(then), Some(now)) if then != now => RunState::GoneWithReboot,
            _ if contents.finished => RunState::Made,
            _ => RunState::Interrupted,
        }
    } else if any(|written| written.progress == Progress::Undone) {
        RunState::Undone
    } else {
        RunState::NothingMade
    }
}

fn describe_write(written: Written) -> RunChange {
    let Written { intent, now, progress } = written;
    RunChange {
        file: intent.setting.path(),
        setting: intent.setting,
        old: intent.old.trim_end().to_owned(),
        new: now.unwrap_or(intent.new).trim_end().to_owned(),
        state: match progress {
            Progress::Done => RunChangeState::Made,
            Progress::Intended | Progress::Undoing => RunChangeState::InDoubt,
            Progress::Failed { error } => RunChangeState::Failed { error },
            Progress::Undone => RunChangeState::Undone,
        },
    }
}

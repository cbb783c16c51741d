//! What a step did to its host.

use serde::{Deserialize, Serialize};

use super::audit::AuditAction;

/// What a host's step did to it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Rollout {
    #[serde(flatten)]
    pub outcome: RolloutOutcome,
    /// The change set on the host, which `nearfar rollback --change` undoes there.
    pub change_set: Option<u64>,
    /// The files that were written, each with the value before and after.
    pub changes: Vec<String>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum RolloutOutcome {
    /// The changes were made and the host did not get worse.
    Kept,
    /// The host had nothing to change.
    NothingToChange,
    /// The host got significantly worse.
    Worse {
        /// The metric; `None` where more samples failed than before.
        metric: Option<String>,
        /// The share in its worst cell; `None` where the value before was 0.
        by: Option<f64>,
        is_undone: bool,
    },
    /// Not every change could be made, or a measurement failed.
    NotMade { reason: String, is_undone: bool },
}

impl Rollout {
    /// What the audit log says of it.
    pub(super) fn action(&self) -> AuditAction {
        match &self.outcome {
            RolloutOutcome::Kept => AuditAction::Applied,
            RolloutOutcome::NothingToChange => AuditAction::NothingToChange,
            RolloutOutcome::Worse { is_undone, .. } | RolloutOutcome::NotMade { is_undone, .. } => {
                match (is_undone, self.change_set) {
                    (false, _) => AuditAction::Unknown,
                    (true, Some(_)) => AuditAction::AppliedAndUndone,
                    (true, None) => AuditAction::NotApplied,
                }
            }
        }
    }
}

impl RolloutOutcome {
    /// Why the rollout stops at such a host; `None` where it goes on.
    pub fn problem(&self) -> Option<String> {
        let (problem, is_undone) = match self {
            Self::Kept | Self::NothingToChange => return None,
            Self::NotMade { reason, is_undone } => (reason.clone(), is_undone),
            Self::Worse {
                metric,
                by,
                is_undone,
            } => {
                let metric = metric.as_deref().unwrap_or("failed samples");
                let problem = match by {
                    Some(by) => format!("it got worse: {metric} by {:.0} %", 100.0 * by),
                    None => format!("it got worse: {metric}, which was 0"),
                };
                let undone = if *is_undone { "; undone" } else { "" };
                (format!("{problem}{undone}"), is_undone)
            }
        };
        Some(match is_undone {
            true => problem,
            false => format!("{problem}; the changes could not be undone"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worse(by: Option<f64>, is_undone: bool) -> RolloutOutcome {
        RolloutOutcome::Worse {
            metric: Some("elapsed_s".to_owned()),
            by,
            is_undone,
        }
    }

    #[test]
    fn a_host_that_got_worse_says_in_what() {
        for (outcome, problem) in [
            (
                worse(Some(0.251), true),
                "it got worse: elapsed_s by 25 %; undone",
            ),
            (
                worse(None, false),
                "it got worse: elapsed_s, which was 0; the changes could not be undone",
            ),
        ] {
            assert_eq!(outcome.problem().as_deref(), Some(problem));
            let text = serde_json::to_string(&outcome).unwrap();
            let read: RolloutOutcome = serde_json::from_str(&text).unwrap();
            assert_eq!(read, outcome);
        }
        assert_eq!(RolloutOutcome::Kept.problem(), None);
    }
}

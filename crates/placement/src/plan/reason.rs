//! Why a change is planned, and what it takes and saves.

use nearfar_change::MoveEstimate;

use crate::audit::Finding;
use crate::tasks::{Action, Remedy};

pub(super) fn estimate(finding: &Finding) -> Option<&MoveEstimate> {
    finding.remedy.as_ref()?.estimate.as_ref()
}

pub(super) fn of(finding: &Finding) -> String {
    let mut reason = format!("{}: {}", finding.subject, finding.message);
    if let Some(estimate) = estimate(finding) {
        reason.push_str(&format!(" {estimate}"));
    }
    // The plan moves the memory only, the task has to go first.
    let is_both = |remedy: &Remedy| remedy.action == Action::MoveBoth;
    if let (true, Some(advice)) = (
        finding.remedy.as_ref().is_some_and(is_both),
        &finding.advice,
    ) {
        reason.push_str(&format!(" {advice}"));
    }
    reason
}

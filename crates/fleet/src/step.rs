//! What a step does on its host.

use serde::{Deserialize, Serialize};

use crate::folder::Manifest;

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Step {
    /// Runs the verb and answers.
    Verb,
    /// The same of `apply`, between two measurements, and undoes what made the host worse.
    Change {
        /// The verb that measures, with its arguments, separated by blanks.
        measure: String,
        /// What the host may be worse by, as a share.
        margin: f64,
    },
    /// Undoes what a rollout changed.
    Undo {
        /// The id of the rollout.
        rollout: String,
    },
}

impl Manifest {
    /// Whether it is of `fleet apply`: its steps change hosts.
    pub fn is_rollout(&self) -> bool {
        matches!(self.step, Step::Change { .. })
    }

    /// The words after the command, which `nearfar fleet on-host` reads; a host's name and the arguments follow.
    pub(crate) fn step_words(&self) -> Vec<String> {
        let mut words = vec!["fleet".to_owned(), "on-host".to_owned()];
        let rollout = match &self.step {
            Step::Verb => return words,
            Step::Change { measure, margin } => {
                words.extend(["--measure".to_owned(), measure.clone()]);
                words.extend(["--margin".to_owned(), margin.to_string()]);
                &self.id
            }
            Step::Undo { rollout } => rollout,
        };
        words.extend(["--change-label".to_owned(), change_label(rollout)]);
        words
    }
}

/// What the change sets of a rollout are called on every host. Their numbers are not theirs alone: a host that was installed again counts
/// from 1.
pub(crate) fn change_label(rollout: &str) -> String {
    format!("fleet-{rollout}")
}

//! Questions of programs in the guest, and the answers: a line each, over the link.
//!
//! | question | answer |
//! |---|---|
//! | `plug DEVICE [node=N]` | `ok` once QEMU has the device; `ok NAME` for one that drmgr has to configure |
//! | `plugged` | `ok`; delays, which ended for the plug, begin again |
//! | `time simulated`, `time host` | `ok` once simulated time has begun, or has ended |
//! | `counts` | `ok` and the line transfers of all vCPUs so far, as JSON ([`Transfers`]) |
//!
//! Any other answer says why there is none of these.

use serde::Serialize;

use super::Guest;
use super::plug::PlugError;
use crate::delay::Counts;

/// A question without the answer that was asked for. The guest gets the text.
#[derive(Debug, thiserror::Error)]
enum QuestionError {
    #[error("{0}: not something that can be asked for")]
    Unknown(String),
    #[error(transparent)]
    Plug(#[from] PlugError),
    #[error("the guest has no delays, so nothing is counted")]
    NoDelays,
    #[error("delays are suspended, so nothing is counted")]
    NotCounting,
    #[error("the guest follows the host's time")]
    HostTime,
    #[error("the guest's CPUs did not reach a point where its time can change")]
    Gate,
}

/// Line transfers of all vCPUs since the guest started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
struct Transfers {
    same_node: u64,
    other_node: u64,
}

impl Transfers {
    /// # Errors
    /// When the plugin does not count at the moment.
    fn of(counts: &Counts) -> Result<Self, QuestionError> {
        let mut sum = Self {
            same_node: 0,
            other_node: 0,
        };
        for vcpu in &counts.vcpus {
            sum.same_node += vcpu.transfers_same_node;
            sum.other_node += vcpu.transfers_other_node;
        }
        match counts.counting {
            true => Ok(sum),
            false => Err(QuestionError::NotCounting),
        }
    }
}

impl Guest {
    /// Answers a question.
    pub(super) fn asked(&mut self, words: &str) -> String {
        self.answer(words).unwrap_or_else(|error| error.to_string())
    }

    fn answer(&mut self, words: &str) -> Result<String, QuestionError> {
        let ok = || "ok".to_owned();
        match words {
            "plugged" => {
                self.resume_delays(false).map_err(PlugError::from)?;
                Ok(ok())
            }
            "time simulated" | "time host" => {
                let delays = self.delays.as_ref().filter(|delays| delays.is_simulated());
                let delays = delays.ok_or(QuestionError::HostTime)?;
                match delays.switch(words == "time simulated") {
                    true => Ok(ok()),
                    false => Err(QuestionError::Gate),
                }
            }
            "counts" => {
                let counts = self.delay_counts().ok_or(QuestionError::NoDelays)?;
                let transfers = Transfers::of(&counts)?;
                // Two numbers always are JSON.
                let json = serde_json::to_string(&transfers).unwrap_or_default();
                Ok(format!("ok {json}"))
            }
            _ => {
                let plug = words.strip_prefix("plug ");
                let plug = plug.ok_or_else(|| QuestionError::Unknown(words.to_owned()))?;
                let name = self.plug(plug.parse()?)?;
                Ok(name.map_or_else(ok, |name| format!("ok {name}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delay::VcpuCounts;

    #[test]
    fn transfers_are_those_of_all_vcpus_while_they_are_counted() {
        let vcpu = |same_node, other_node| VcpuCounts {
            transfers_same_node: same_node,
            transfers_other_node: other_node,
            ..VcpuCounts::default()
        };
        let mut counts = Counts {
            counting: true,
            vcpus: vec![vcpu(1, 20), vcpu(3, 40)],
            ..Counts::default()
        };
        let sum = Transfers {
            same_node: 4,
            other_node: 60,
        };
        assert_eq!(Transfers::of(&counts).unwrap(), sum);
        // The keys that `bench tags` reads in the guest.
        let json = serde_json::to_string(&sum).unwrap();
        assert_eq!(json, r#"{"same_node":4,"other_node":60}"#);
        counts.counting = false;
        assert!(Transfers::of(&counts).is_err());
    }
}

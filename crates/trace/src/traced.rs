//! What stands around the answer of every trace.

use nearfar_machine::{CpuSet, Emulation, Machine};
use serde::Serialize;

use crate::{Finished, Losses};

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Traced<T> {
    pub seconds: f64,
    pub losses: Losses,
    /// CPUs that were offline when the trace began; one that comes online later is not traced either.
    pub cpus_not_traced: CpuSet,
    /// The emulated machine that was traced; `None` for a real one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub emulation: Option<Emulation>,
    /// The command that ran meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Ended>,
    #[serde(flatten)]
    pub answer: T,
}

impl<T> Traced<T> {
    /// An answer of a session on that machine, while that command ran.
    pub fn new(finished: Finished, machine: &Machine, command: Option<Ended>, answer: T) -> Self {
        let Finished {
            elapsed,
            losses,
            cpus_not_traced,
        } = finished;
        let emulation = machine.origin.emulation.clone();
        Self {
            seconds: elapsed.as_secs_f64(),
            losses,
            cpus_not_traced,
            emulation,
            command,
            answer,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Ended {
    pub command: Vec<String>,
    /// Its exit code; `null` where a signal ended it.
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
}

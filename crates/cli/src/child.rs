//! What nearfar starts itself as: a probe, the load on a CPU, tasks that want one kernel lock, and the guard that undoes what a nearfar that
//! was killed had changed. Where there was no guard, the next nearfar does that ([`recover`]).
//!
//! Users do not type it: it is not part of the definitions from which help, man pages and completions come, and clap never sees
//! it. What goes over the standard input and output of `nearfar bench child` is described in nearfar_bench.

use std::ffi::OsString;
use std::path::PathBuf;

use nearfar_bench::probe::ServeError;
use nearfar_bench::{load, probe, scale};
use nearfar_change::UndoResult;
use nearfar_change::lease::{self as lease, Recovered};

use crate::failure::{Failure, Outcome};
use crate::output;

/// What a child is for.
#[derive(Clone, PartialEq, Debug)]
pub enum Child {
    /// `nearfar bench child probe`: one run of the probe.
    Probe,
    /// `nearfar bench child load`: the load on one CPU.
    Load,
    /// `nearfar bench child scale`: tasks that want one kernel lock.
    Scale,
    /// `nearfar lease-guard DIRECTORY OWNER`: runs for a moment after the end of its owner.
    LeaseGuard {
        /// Where its owner's leases are.
        directory: PathBuf,
        /// Its owner's number.
        owner: u32,
    },
}

impl Child {
    /// The child that this process was started as, by its arguments (its own name first); mostly none.
    pub fn asked_for(arguments: impl IntoIterator<Item = OsString>) -> Option<Self> {
        let arguments: Vec<OsString> = arguments.into_iter().skip(1).take(4).collect();
        match &arguments[..] {
            [bench, child, what] if bench == "bench" && child == "child" => match what.to_str()? {
                "probe" => Some(Self::Probe),
                "load" => Some(Self::Load),
                "scale" => Some(Self::Scale),
                _ => None,
            },
            [verb, directory, owner] if verb == lease::GUARD => Some(Self::LeaseGuard {
                directory: directory.into(),
                owner: owner.to_str()?.parse().ok()?,
            }),
            _ => None,
        }
    }

    /// Works until it is done or its caller hangs up.
    pub fn run(self) -> Outcome {
        let served = match self {
            Self::Probe => probe::serve(),
            Self::Load => load::serve(),
            Self::Scale => scale::serve(),
            Self::LeaseGuard { directory, owner } => {
                let undone = lease::guard(&directory, owner);
                return undone.map(drop).map_err(Failure::refused);
            }
        };
        served.map_err(|error| match error {
            ServeError::BadSpec(_) => Failure::input(error),
            ServeError::Refused { .. } => Failure::refused(error),
            ServeError::Unheard => Failure::OutputClosed,
        })
    }
}

/// Puts back what a nearfar that was killed had changed for a while, and lets this one have guards. Does not keep a verb
/// from running: what cannot be put back is said.
pub fn recover() {
    if let Ok(program) = std::env::current_exe() {
        lease::guard_with(program);
    }
    match lease::recover() {
        Ok(recovered) => recovered.iter().for_each(say),
        // No state directory, so no leases.
        Err(lease::LeaseError::NoHome) => {}
        Err(error) => output::say!("nearfar: {error}"),
    }
}

fn say(recovered: &Recovered) {
    let Recovered { what, pid, undone } = recovered;
    for undone in undone {
        let result = match &undone.result {
            UndoResult::Restored { .. } | UndoResult::MasksBack => "put back".to_owned(),
            UndoResult::Removed => "removed".to_owned(),
            UndoResult::ChangedSince { now, .. } => {
                format!(
                    "not restored: another program has set it since ({})",
                    now.trim()
                )
            }
            UndoResult::Failed { error } => format!("not put back: {error}"),
            _ => continue,
        };
        output::say!(
            "nearfar: process {pid} ({what}) was killed: {} {result}",
            undone.subject
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_asked_for_in_three_words_and_no_others() {
        let asked = |words: &str| Child::asked_for(words.split(' ').map(OsString::from));
        assert_eq!(asked("nearfar bench child probe"), Some(Child::Probe));
        assert_eq!(asked("/proc/self/exe bench child load"), Some(Child::Load));
        for other in [
            "nearfar",
            "nearfar bench",
            "nearfar bench child",
            "nearfar bench child probe --help",
            "bench child load",
        ] {
            assert_eq!(asked(other), None, "{other}");
        }
    }
}

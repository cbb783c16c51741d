//! What is to be undone after a nearfar that was killed: by its guard at once, else by the next one.

use std::ffi::OsString;
use std::path::PathBuf;

use nearfar_change::UndoResult;
use nearfar_change::lease::{self as lease, Recovered};

use crate::failure::{Failure, Outcome};
use crate::output;

/// `nearfar lease-guard DIRECTORY OWNER`: what nearfar starts itself as, to run for a moment after its own end. No user types
/// it, see [`super::bench::child`].
#[derive(Clone, PartialEq, Debug)]
pub struct LeaseGuard {
    /// Where its owner's leases are.
    directory: PathBuf,
    /// Its owner's number.
    owner: u32,
}

impl LeaseGuard {
    /// The guard that this process was started as, by its arguments (its own name first); mostly none.
    pub fn asked_for(arguments: impl IntoIterator<Item = OsString>) -> Option<Self> {
        let arguments: Vec<OsString> = arguments.into_iter().skip(1).take(4).collect();
        match &arguments[..] {
            [verb, directory, owner] if verb == lease::GUARD => Some(Self {
                directory: directory.into(),
                owner: owner.to_str()?.parse().ok()?,
            }),
            _ => None,
        }
    }

    /// Stands guard.
    pub fn run(self) -> Outcome {
        lease::guard(&self.directory, self.owner)
            .map(drop)
            .map_err(Failure::refused)
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

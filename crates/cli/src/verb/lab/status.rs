//! `lab run --status FILE`: how the guest started and ended, for programs.

use std::path::PathBuf;

use nearfar_lab::guest::{Guest, PreparedGuest};
use nearfar_lab::{LabError, Start};
use nearfar_machine::Emulation;
use serde::Serialize;

use crate::failure::Outcome;
use crate::output;

/// What is known so far.
#[derive(Serialize)]
pub struct Status {
    #[serde(skip)]
    file: PathBuf,
    emulation: Emulation,
    /// `None` while the guest is not up.
    start: Option<Start>,
    unsaved_reason: Option<String>,
    failed_boots: Vec<Problem>,
    exit_code: Option<i32>,
    error: Option<Problem>,
}

#[derive(Serialize)]
struct Problem {
    /// A word that does not change.
    code: &'static str,
    message: String,
}

impl Status {
    /// Of a guest that is about to start.
    pub fn new(file: PathBuf, prepared: &PreparedGuest) -> Self {
        Self {
            file,
            emulation: prepared.emulation(),
            start: None,
            unsaved_reason: None,
            failed_boots: Vec::new(),
            exit_code: None,
            error: None,
        }
    }

    /// The guest is up.
    pub fn up(&mut self, guest: &Guest) {
        self.start = Some(guest.start());
        self.unsaved_reason = guest.unsaved_reason().map(ToString::to_string);
        self.failed_boots = guest
            .failed_boots()
            .iter()
            .map(|failure| Problem {
                code: failure.code(),
                message: failure.to_string(),
            })
            .collect();
    }

    /// Writes the file: the command's exit code, or the error.
    pub fn finish(mut self, ended: Result<i32, &LabError>) -> Outcome {
        match ended {
            Ok(code) => self.exit_code = Some(code),
            Err(error) => {
                self.error = Some(Problem {
                    code: error.code(),
                    message: error.to_string(),
                });
            }
        }
        let text = output::json("lab-status/1", None, &self)?;
        output::write_file(&self.file, text.as_bytes())
    }
}

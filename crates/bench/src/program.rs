//! A program that a run starts, of a lease, with its output in a file.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nearfar_experiment::{BoxError, Process, Resources};
use regex_lite::Regex;

/// The last lines of its output that an error has.
const LAST_LINES: usize = 5;

/// A program of a lease.
pub(crate) struct Program {
    pub(crate) process: Process,
    /// What is kept of its output.
    log: PathBuf,
}

/// What of a program's output is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KeptOutput {
    All,
    /// Its errors: what it writes otherwise would only keep a disk busy.
    Errors,
}

impl Program {
    /// Starts it with its output in a file of this directory.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn start(
        mut command: Command,
        kept: KeptOutput,
        directory: &Path,
        resources: &mut Resources,
    ) -> Result<Self, BoxError> {
        let log = directory.join("output");
        let output = File::create(&log)?;
        match kept {
            KeptOutput::All => command.stdout(output.try_clone()?),
            KeptOutput::Errors => command.stdout(Stdio::null()),
        };
        command.stderr(output);
        Ok(Self {
            process: resources.start(command)?,
            log,
        })
    }

    /// Lets a program begin that waits for a line of its standard input, a pipe.
    pub(crate) fn begin(&mut self) -> io::Result<()> {
        let stdin = self.process.child.stdin.take();
        match stdin.map_or(Ok(()), |mut pipe| pipe.write_all(b"\n")) {
            // It has ended, which `ended` tells with the reason.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written,
        }
    }

    /// How it ended, with its last lines; `None` while it runs.
    pub(crate) fn ended(&mut self) -> io::Result<Option<Ended>> {
        let status = self.process.child.try_wait()?;
        Ok(status.map(|status| Ended {
            is_success: status.success(),
            what: format!("ended: {status}{}", self.last_lines()),
        }))
    }

    /// What it printed.
    pub(crate) fn output(&self) -> io::Result<String> {
        let bytes = fs::read(&self.log)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The last lines that it printed, to be appended to a sentence.
    pub(crate) fn last_lines(&self) -> String {
        let text = self.output().unwrap_or_default();
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| !line.trim().is_empty())
            .collect();
        match lines.is_empty() {
            true => String::new(),
            false => format!(
                ": {}",
                lines[lines.len().saturating_sub(LAST_LINES)..].join("; ")
            ),
        }
    }
}

/// The end of a program.
pub(crate) struct Ended {
    pub(crate) is_success: bool,
    /// `ended: exit status: 1: its last lines`.
    pub(crate) what: String,
}

/// The number in the first group of the last match; programs overwrite what they print while they run.
pub(crate) fn last_number(rate: &Regex, output: &str) -> Option<f64> {
    let found = rate.captures_iter(output).last()?.get(1)?;
    // 12,345 and 12.3k are other numbers than what stands before the comma or unit.
    let goes_on = |c: char| c == ',' || c.is_alphanumeric();
    if output[found.end()..].starts_with(goes_on) {
        return None;
    }
    let number: f64 = found.as_str().parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_the_last_number_that_is_found() {
        let redis = Regex::new("GET: ([0-9.]+) requests per second").unwrap();
        let output = "GET: rps=0.0\rGET: 10 requests per second\nGET: 12345.67 requests per second, p50=0.1 msec\n";
        assert_eq!(last_number(&redis, output), Some(12345.67));
        assert_eq!(last_number(&redis, "GET: . requests per second"), None);
        assert_eq!(last_number(&redis, ""), None);
        let huge = Regex::new("(.+)").unwrap();
        assert_eq!(last_number(&huge, "1e999"), None);
        assert_eq!(last_number(&huge, "-1"), None);
        for other in [
            "GET: 12,345 requests per second",
            "GET: 12.3k requests per second",
        ] {
            let number = Regex::new("GET: ([0-9.]+)").unwrap();
            assert_eq!(last_number(&number, other), None);
        }
    }
}

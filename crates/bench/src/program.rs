//! A program that a run starts, of a lease, with its output in files.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nearfar_experiment::{BoxError, Process, Resources};
use regex_lite::Regex;

/// The last lines of its output that an error has, of so many bytes together.
const LAST_LINES: usize = 5;
const MAX_SHOWN_BYTES: u64 = 1024;
/// The longest output that a number is looked for in.
const MAX_OUTPUT_BYTES: u64 = 64 << 20;

/// A program of a lease.
pub(crate) struct Program {
    pub(crate) process: Process,
    /// What it printed, where that is kept.
    output: PathBuf,
    /// Its errors; the same file where both are kept together.
    errors: PathBuf,
}

/// What of a program's output is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KeptOutput {
    /// Output and errors in one file, as on a terminal.
    Together,
    Apart,
    /// Its errors: what it writes otherwise would only keep a disk busy.
    Errors,
}

impl Program {
    /// Starts it with its output in files of this directory.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn start(
        mut command: Command,
        kept: KeptOutput,
        directory: &Path,
        resources: &mut Resources,
    ) -> Result<Self, BoxError> {
        let output = directory.join("output");
        let errors = match kept {
            KeptOutput::Together => output.clone(),
            KeptOutput::Apart | KeptOutput::Errors => directory.join("errors"),
        };
        let file = File::create(&output)?;
        match kept {
            KeptOutput::Together => command.stderr(file.try_clone()?),
            KeptOutput::Apart | KeptOutput::Errors => command.stderr(File::create(&errors)?),
        };
        match kept {
            KeptOutput::Together | KeptOutput::Apart => command.stdout(file),
            KeptOutput::Errors => command.stdout(Stdio::null()),
        };
        Ok(Self {
            process: resources.start(command)?,
            output,
            errors,
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
    ///
    /// # Errors
    /// When that is longer than what a number is looked for in.
    pub(crate) fn output(&self) -> io::Result<String> {
        let mut bytes = Vec::new();
        let file = File::open(&self.output)?;
        file.take(MAX_OUTPUT_BYTES + 1).read_to_end(&mut bytes)?;
        match bytes.len() as u64 > MAX_OUTPUT_BYTES {
            true => Err(io::Error::other("it printed more than 64 MiB")),
            false => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        }
    }

    /// The last lines of its errors, or of its output without any, to be appended to a sentence.
    pub(crate) fn last_lines(&self) -> String {
        let files = [&self.errors, &self.output];
        let texts = files.map(|file| end_of(file).unwrap_or_default());
        let text = texts.iter().find(|text| !text.trim().is_empty());
        let lines = text.into_iter().flat_map(|text| text.lines());
        let lines: Vec<&str> = lines.filter(|line| !line.trim().is_empty()).collect();
        match lines.is_empty() {
            true => String::new(),
            false => format!(
                ": {}",
                lines[lines.len().saturating_sub(LAST_LINES)..].join("; ")
            ),
        }
    }
}

/// The end of a file, which may be large.
fn end_of(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let start = file.metadata()?.len().saturating_sub(MAX_SHOWN_BYTES);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(MAX_SHOWN_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
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
    // 12,345 and 12.3k are other numbers than what stands before the comma or unit, and 1.5 than what stands before the point.
    let goes_on = |c: char| c == ',' || c.is_alphanumeric();
    let rest = &output[found.end()..];
    let has_digits = |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit());
    if rest.starts_with(goes_on) || rest.strip_prefix('.').is_some_and(has_digits) {
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
        let whole = Regex::new("a: ([0-9]+)").unwrap();
        assert_eq!(last_number(&whole, "a: 1.5"), None);
        assert_eq!(last_number(&whole, "a: 1."), Some(1.0));
    }
}

//! Programs that a run starts, servers and clients: each with a command that has placeholders, on CPUs of its own, with its output
//! in a file.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nearfar_experiment::{BoxError, Process, Resources};
use nearfar_machine::CpuSet;
use nearfar_proc::affinity;

/// The last lines of its output that an error has.
const LAST_LINES: usize = 5;

/// A program of the lease of a cell.
pub(super) struct Started {
    process: Process,
    /// Its output and errors.
    log: PathBuf,
}

/// Fills in a command's placeholders; `{{` and `}}` are braces.
///
/// # Errors
/// The placeholder that is none of `known`.
pub(super) fn filled(
    command: &str,
    known: &[&str],
    value: impl Fn(&str) -> String,
) -> Result<String, String> {
    let (mut text, mut rest) = (String::new(), command);
    while let Some(position) = rest.find(['{', '}']) {
        let (before, brace) = rest.split_at(position);
        text += before;
        if let Some(after) = brace.strip_prefix("{{").or(brace.strip_prefix("}}")) {
            text += &brace[..1];
            rest = after;
            continue;
        }
        let named = brace.strip_prefix('{').ok_or("a } has no {")?;
        let (name, after) = named.split_once('}').ok_or("a { has no }")?;
        if !known.contains(&name) {
            let known: Vec<String> = known.iter().map(|name| format!("{{{name}}}")).collect();
            return Err(format!("{{{name}}} is none of {}", known.join(" ")));
        }
        text += &value(name);
        rest = after;
    }
    Ok(text + rest)
}

/// Refuses a command with other placeholders, or without that of the port, which each server has of its own.
///
/// # Errors
/// Why it is refused.
pub(super) fn check(command: &str, known: &[&str]) -> Result<(), String> {
    filled(command, known, |_| String::new())?;
    match command.contains("{port}") {
        true => Ok(()),
        false => Err("expected {port}: each server has a port of its own".to_owned()),
    }
}

impl Started {
    /// Starts a shell's script on these CPUs, in a directory of its own. Its memory is that of the CPUs' node, since it runs there
    /// from its first instruction on.
    ///
    /// # Errors
    /// When it cannot be started, or not there.
    pub(super) fn new(
        script: &str,
        cpus: &CpuSet,
        stdin: Stdio,
        resources: &mut Resources,
        prepare: impl FnOnce(&mut Command) -> std::io::Result<()>,
    ) -> Result<Self, BoxError> {
        let directory = resources.temporary_directory()?;
        let log = directory.join("output");
        let output = File::create(&log)?;
        let mut shell = Command::new("sh");
        shell
            .args(["-c", script])
            .current_dir(&directory)
            .stdin(stdin)
            .stdout(output.try_clone()?)
            .stderr(output);
        prepare(&mut shell)?;
        // A child has the CPUs of the thread that starts it.
        let own = affinity::get(0)?;
        affinity::set(0, cpus)
            .map_err(|error| format!("cannot start a server or client on CPUs {cpus}: {error}"))?;
        let started = resources.start(shell);
        affinity::set(0, &own)?;
        Ok(Self {
            process: started?,
            log,
        })
    }

    /// Lets a program begin that waits for a line of its standard input, a pipe.
    pub(super) fn begin(&mut self) -> std::io::Result<()> {
        let stdin = self.process.child.stdin.take();
        match stdin.map_or(Ok(()), |mut pipe| pipe.write_all(b"\n")) {
            // It has ended, which `ended` tells with the reason.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            written => written,
        }
    }

    /// How it ended, with its last lines; `None` while it runs.
    pub(super) fn ended(&mut self) -> std::io::Result<Option<Ended>> {
        let status = self.process.child.try_wait()?;
        Ok(status.map(|status| Ended {
            is_success: status.success(),
            what: format!("ended: {status}{}", self.last_lines()),
        }))
    }

    /// What it printed.
    pub(super) fn output(&self) -> std::io::Result<String> {
        let bytes = fs::read(&self.log)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The last lines that it printed, to be appended to a sentence.
    pub(super) fn last_lines(&self) -> String {
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
pub(super) struct Ended {
    pub(super) is_success: bool,
    /// `ended: exit status: 1: its last lines`.
    pub(super) what: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_the_values_of_its_placeholders() {
        let filled = |command| filled(command, &["address", "port"], |_| "6400".to_owned());
        assert_eq!(filled("serve -p {port} x").unwrap(), "serve -p 6400 x");
        assert_eq!(filled("serve").unwrap(), "serve");
        let error = filled("serve {host}").unwrap_err();
        assert_eq!(error, "{host} is none of {address} {port}");
        assert_eq!(
            filled("awk '{{print}}' {port}").unwrap(),
            "awk '{print}' 6400"
        );
        assert!(filled("serve {port").is_err() && filled("serve port}").is_err());
        assert!(check("serve {address}", &["address", "port"]).is_err());
    }
}

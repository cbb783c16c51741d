//! Steps as processes of this machine: the step itself, or ssh.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};

use super::{Engine, EngineError, StepCommands, StepEnd, os_words};
use crate::hosts::HostName;

/// A process for each host.
pub(super) struct Processes<W> {
    steps: StepCommands,
    /// The words of the process that carries out the words of a step on a host.
    words: W,
    /// Its standard input: a pipe ends with this process.
    input: fn() -> Stdio,
    running: Vec<(HostName, Child)>,
}

impl<W: Fn(&HostName, Vec<String>) -> Vec<String>> Processes<W> {
    pub fn new(steps: StepCommands, words: W, input: fn() -> Stdio) -> Self {
        Self {
            steps,
            words,
            input,
            running: Vec::new(),
        }
    }

    fn file(&self, path: std::path::PathBuf) -> Result<File, EngineError> {
        crate::folder::create_new_file(&path).map_err(|reason| EngineError::File {
            path: path.display().to_string(),
            reason,
        })
    }

    /// The step ended: its output is the answer if it ended well.
    fn finish(&self, host: HostName, status: ExitStatus) -> StepEnd {
        let problem = match status.success() {
            true => fs::rename(
                self.steps.layout.partial(&host),
                self.steps.layout.answer(&host),
            )
            .err()
            .map(|reason| {
                format!(
                    "cannot rename {}: {reason}",
                    self.steps.layout.partial(&host).display()
                )
            }),
            false if is_no_command(status) => {
                Some("there is no such command (--command names it)".to_owned())
            }
            false => Some(format!("its step ended with {status}")),
        };
        StepEnd {
            host,
            problem,
            is_not_begun: is_no_command(status),
        }
    }
}

impl<W: Fn(&HostName, Vec<String>) -> Vec<String>> Engine for Processes<W> {
    fn start(&mut self, host: &HostName) -> Result<String, EngineError> {
        let words = (self.words)(host, self.steps.words(host));
        let (out, log) = (
            self.file(self.steps.layout.partial(host))?,
            self.file(self.steps.layout.log(host))?,
        );
        let child = Command::new(&words[0])
            .args(os_words(&words[1..]))
            .stdin((self.input)())
            .stdout(out)
            .stderr(log)
            // A Ctrl-C is for this process, which ends the steps.
            .process_group(0)
            .spawn()
            .map_err(|reason| EngineError::NotStarted {
                program: words[0].clone(),
                reason,
            })?;
        let job = child.id().to_string();
        self.running.push((host.clone(), child));
        Ok(job)
    }

    fn adopt(&mut self, _: &BTreeMap<HostName, String>) -> Result<BTreeSet<HostName>, EngineError> {
        // A process is no child of another nearfar, and its number may be another's by now.
        Ok(BTreeSet::new())
    }

    fn ended(&mut self) -> Result<Vec<StepEnd>, EngineError> {
        let mut ended = Vec::new();
        let mut index = 0;
        while index < self.running.len() {
            match self.running[index].1.try_wait() {
                Ok(None) => index += 1,
                Ok(Some(status)) => {
                    let (host, _) = self.running.swap_remove(index);
                    ended.push(self.finish(host, status));
                }
                Err(error) => {
                    let (host, _) = self.running.swap_remove(index);
                    let problem = Some(format!("cannot wait for its step: {error}"));
                    ended.push(StepEnd {
                        host,
                        problem,
                        is_not_begun: false,
                    });
                }
            }
        }
        Ok(ended)
    }

    fn cancel(&mut self) {
        for (_, child) in &mut self.running {
            if let Some(group) = i32::try_from(child.id())
                .ok()
                .and_then(rustix::process::Pid::from_raw)
            {
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::TERM);
            }
        }
        for (host, mut child) in self.running.drain(..) {
            let _ = child.wait();
            let _ = fs::remove_file(self.steps.layout.partial(&host));
        }
    }

    fn interval_ms(&self) -> u64 {
        50
    }
}

/// Whether a POSIX shell, here or at the other end of ssh, found no command or may not run it.
fn is_no_command(status: ExitStatus) -> bool {
    matches!(status.code(), Some(126 | 127))
}

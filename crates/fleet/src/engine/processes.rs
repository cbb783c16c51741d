//! Steps as processes of this machine: the step itself, or ssh.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::{Engine, EngineError, StepCommands, StepEnd, os_words};
use crate::folder::MAX_FILE_BYTES;
use crate::hosts::HostName;

/// How long a step may take to end after SIGTERM, as with Slurm (KillWait).
const MAX_END: Duration = Duration::from_secs(30);
/// The most that a step may write to standard error, in bytes.
const MAX_LOG_BYTES: u64 = 16 << 20;

/// A process for each host.
pub(super) struct Processes<W> {
    steps: StepCommands,
    /// The words of the process that carries out the words of a step on a host.
    words: W,
    /// Its standard input: a pipe ends with this process.
    input: fn() -> Stdio,
    time_limit: Duration,
    running: Vec<Running>,
}

struct Running {
    host: HostName,
    child: Child,
    since: Instant,
    /// Why it was told to end, and when.
    ended_for: Option<(&'static str, Instant)>,
}

impl Running {
    fn signal(&self, signal: Signal) {
        let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(group) = group {
            let _ = kill_process_group(group, signal);
        }
    }
}

impl<W: Fn(&HostName, Vec<String>) -> Vec<String>> Processes<W> {
    pub fn new(
        steps: StepCommands,
        words: W,
        input: fn() -> Stdio,
        time_limit_minutes: u32,
    ) -> Self {
        Self {
            steps,
            words,
            input,
            time_limit: Duration::from_secs(60 * u64::from(time_limit_minutes)),
            running: Vec::new(),
        }
    }

    fn file(&self, path: std::path::PathBuf) -> Result<File, EngineError> {
        crate::folder::create_new_file(&path).map_err(|reason| EngineError::File {
            path: path.display().to_string(),
            reason,
        })
    }

    /// Why a step is not waited for any longer: a hanging host answers no more, a broken one without end.
    fn excess(&self, running: &Running) -> Option<&'static str> {
        let layout = &self.steps.layout;
        let is_large = |path, most| fs::metadata(path).is_ok_and(|it| it.len() > most);
        if running.since.elapsed() > self.time_limit {
            Some("its step was over its time limit (--time-limit)")
        } else if is_large(layout.partial(&running.host), MAX_FILE_BYTES) {
            Some("its answer is larger than 64 MiB")
        } else if is_large(layout.log(&running.host), MAX_LOG_BYTES) {
            Some("its step wrote more than 16 MiB to standard error")
        } else {
            None
        }
    }

    /// The step ended: its output is the answer if it ended well.
    fn finish(&self, running: &Running, status: ExitStatus) -> StepEnd {
        let (layout, host) = (&self.steps.layout, &running.host);
        let problem = match (status.success(), running.ended_for) {
            (true, _) => fs::rename(layout.partial(host), layout.answer(host))
                .err()
                .map(|reason| {
                    format!("cannot rename {}: {reason}", layout.partial(host).display())
                }),
            (false, Some((reason, _))) => {
                // It may be what was too large.
                let _ = fs::remove_file(layout.partial(host));
                Some(reason.to_owned())
            }
            (false, None) if is_no_command(status) => {
                Some("there is no such command (--command names it)".to_owned())
            }
            (false, None) => Some(format!("its step ended with {status}")),
        };
        StepEnd {
            host: host.clone(),
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
        self.running.push(Running {
            host: host.clone(),
            child,
            since: Instant::now(),
            ended_for: None,
        });
        Ok(job)
    }

    fn adopt(&mut self, _: &BTreeMap<HostName, String>) -> Result<BTreeSet<HostName>, EngineError> {
        // A process is no child of another nearfar, and its number may be another's by now.
        Ok(BTreeSet::new())
    }

    fn ended(&mut self) -> Result<Vec<StepEnd>, EngineError> {
        let (mut ended, mut going_on) = (Vec::new(), Vec::new());
        for mut running in std::mem::take(&mut self.running) {
            let problem = match running.child.try_wait() {
                Ok(Some(status)) => {
                    ended.push(self.finish(&running, status));
                    continue;
                }
                Err(error) => Some(format!("cannot wait for its step: {error}")),
                Ok(None) => match running.ended_for {
                    None => {
                        if let Some(reason) = self.excess(&running) {
                            running.signal(Signal::TERM);
                            running.ended_for = Some((reason, Instant::now()));
                        }
                        None
                    }
                    Some((reason, since)) if since.elapsed() > MAX_END => {
                        running.signal(Signal::KILL);
                        let _ = fs::remove_file(self.steps.layout.partial(&running.host));
                        Some(format!(
                            "{reason}, and it did not end within 30 s of SIGTERM"
                        ))
                    }
                    Some(_) => None,
                },
            };
            match problem {
                None => going_on.push(running),
                problem => ended.push(StepEnd {
                    host: running.host,
                    problem,
                    is_not_begun: false,
                }),
            }
        }
        self.running = going_on;
        Ok(ended)
    }

    fn cancel(&mut self) {
        for running in &self.running {
            running.signal(Signal::TERM);
        }
        for mut running in self.running.drain(..) {
            let _ = running.child.wait();
            let _ = fs::remove_file(self.steps.layout.partial(&running.host));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Layout;

    /// A limit of no time: the step is over it whenever it is looked at.
    #[test]
    fn a_step_that_hangs_is_ended_at_its_time_limit() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout {
            folder: directory.path().to_owned(),
        };
        for part in [layout.answers(), layout.logs()] {
            fs::create_dir(part).unwrap();
        }
        let steps = StepCommands {
            layout,
            command: Vec::new(),
            step: Vec::new(),
            arguments: Vec::new(),
        };
        let hang = |_: &HostName, _| ["sleep", "1000"].map(str::to_owned).to_vec();
        let mut engine = Processes::new(steps, hang, Stdio::null, 0);
        engine.start(&"n1".parse().unwrap()).unwrap();
        let end = loop {
            if let Some(end) = engine.ended().unwrap().pop() {
                break end;
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let problem = end.problem.unwrap();
        assert!(problem.contains("over its time limit"), "{problem}");
        assert!(!end.is_not_begun);
    }
}

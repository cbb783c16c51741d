//! What goes on while a trace runs: a command, some time, or waiting for Ctrl-C.

use std::ffi::OsString;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nearfar_trace::{Ended, Session};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use super::refused;
use crate::failure::Failure;
use crate::signals;

/// The longest time between two looks at the rings, the clock and Ctrl-C. A ring that fills, or a command that ends, is
/// noticed at once.
const LOOK: Duration = Duration::from_millis(100);
/// How long a command has to end by itself after Ctrl-C, which its terminal sends to it as well.
const GRACE: Duration = Duration::from_secs(2);

/// When a trace ends, apart from Ctrl-C.
pub struct Meanwhile {
    seconds: Option<Duration>,
    running: Option<Running>,
    cancel: Arc<AtomicBool>,
}

struct Running {
    words: Vec<OsString>,
    child: Child,
    /// Becomes readable when the command ends; none before Linux 5.3.
    end: Option<OwnedFd>,
    asked_to_end: Option<Instant>,
}

impl Meanwhile {
    /// Starts the command, if there is one. From now on Ctrl-C ends the trace and not this process.
    pub fn start(seconds: Option<f64>, command: &[OsString]) -> Result<Self, Failure> {
        let seconds = seconds.map(Duration::try_from_secs_f64).transpose();
        let seconds = seconds.context("--seconds").map_err(Failure::input)?;
        let cancel = signals::cancel_flag();
        let running = command.split_first().map(|(program, arguments)| {
            let started = Command::new(program).args(arguments).spawn();
            let child = started.map_err(|error| Failure::not_started(program, error))?;
            let end = pidfd_open(pid(&child), PidfdFlags::empty()).ok();
            Ok(Running {
                words: command.to_vec(),
                child,
                end,
                asked_to_end: None,
            })
        });
        Ok(Self {
            seconds,
            running: running.transpose()?,
            cancel,
        })
    }

    /// The command's process.
    pub fn pid(&self) -> Option<i32> {
        self.running
            .as_ref()
            .map(|running| running.child.id().cast_signed())
    }

    /// Calls `round` again and again until the command has ended, the time is over, `round` has enough (false) or
    /// Ctrl-C. Says how the command ended.
    pub fn pass(
        mut self,
        session: &mut Session,
        round: &mut dyn FnMut(&mut Session) -> bool,
    ) -> Result<Option<Ended>, Failure> {
        let begin = Instant::now();
        loop {
            let left = self.seconds.map_or(LOOK, |seconds| {
                seconds.saturating_sub(begin.elapsed()).min(LOOK)
            });
            let end = self
                .running
                .as_ref()
                .and_then(|running| running.end.as_ref());
            let ends: Vec<_> = end.iter().map(|end| end.as_fd()).collect();
            session.wait(left, &ends).map_err(refused)?;
            let enough = !round(session);
            let cancelled = self.cancel.load(Ordering::Relaxed);
            match &mut self.running {
                Some(running) => {
                    if let Some(status) = running
                        .child
                        .try_wait()
                        .context("waiting")
                        .map_err(Failure::refused)?
                    {
                        return Ok(Some(running.ended(status)));
                    }
                    if cancelled {
                        running.ask_to_end();
                    }
                }
                None if cancelled
                    || enough
                    || self
                        .seconds
                        .is_some_and(|seconds| begin.elapsed() >= seconds) =>
                {
                    return Ok(None);
                }
                None => {}
            }
        }
    }
}

impl Running {
    /// Once, after a delay.
    fn ask_to_end(&mut self) {
        let now = Instant::now();
        match self.asked_to_end {
            None => self.asked_to_end = Some(now + GRACE),
            Some(patience) if now >= patience => {
                // It may have ended by itself; `try_wait` has not seen it, so its number is still its own.
                let _ = kill_process(pid(&self.child), Signal::TERM);
                self.asked_to_end = Some(now + GRACE);
            }
            Some(_) => {}
        }
    }

    fn ended(&self, status: ExitStatus) -> Ended {
        let command = self
            .words
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        Ended {
            command,
            exit_code: status.code(),
            signal: status.signal(),
        }
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

//! Signals of this process, as something to wait for together with a guest.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH};

use crate::error::LabError;

/// Signals within this time of the first are the same request. timeout(1) sends SIGTERM to its command and once more to the
/// command's process group; a terminal that is closed sends SIGHUP as its shell does. A person who presses Ctrl-C twice takes longer.
pub const SAME_REQUEST: Duration = Duration::from_millis(200);

/// Signals that are passed on to the command in the guest.
#[derive(Debug, Default)]
pub struct Signals {
    arrived: Option<UnixStream>,
    registered: Vec<SigId>,
}

impl Signals {
    /// Passes nothing on.
    pub fn none() -> Self {
        Self::default()
    }

    /// Passes on what this process gets: SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGWINCH, as long as this value lives.
    ///
    /// # Errors
    /// When the system refuses a handler.
    pub fn of_process() -> Result<Self, LabError> {
        let fail = |error| LabError::system("waiting for signals", error);
        let (arrived, noted) = UnixStream::pair().map_err(fail)?;
        arrived.set_nonblocking(true).map_err(fail)?;
        noted.set_nonblocking(true).map_err(fail)?;
        let mut signals = Self {
            arrived: Some(arrived),
            registered: Vec::new(),
        };
        for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH] {
            let noted = noted.try_clone().map_err(fail)?;
            let note = move || {
                // A full socket holds more signals than anyone waits for.
                _ = rustix::io::write(&noted, &[u8::try_from(signal).unwrap_or(0)]);
            };
            // SAFETY: the handler does one write(2), which is safe in a signal handler, and cannot panic.
            let id = unsafe { signal_hook::low_level::register(signal, note) }.map_err(fail)?;
            signals.registered.push(id);
        }
        Ok(signals)
    }

    /// What to poll.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.arrived.as_ref().map(AsFd::as_fd)
    }

    /// Signals since the last call, in order.
    pub(super) fn take(&self) -> Vec<i32> {
        let mut bytes = [0; 64];
        let count = self
            .arrived
            .as_ref()
            .and_then(|mut arrived| arrived.read(&mut bytes).ok())
            .unwrap_or(0);
        bytes[..count].iter().map(|byte| i32::from(*byte)).collect()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for id in self.registered.drain(..) {
            signal_hook::low_level::unregister(id);
        }
    }
}

/// What the guest's `kill` calls a signal.
pub(super) fn name(signal: i32) -> Option<&'static str> {
    match signal {
        SIGINT => Some("INT"),
        SIGTERM => Some("TERM"),
        SIGHUP => Some("HUP"),
        SIGQUIT => Some("QUIT"),
        _ => None,
    }
}

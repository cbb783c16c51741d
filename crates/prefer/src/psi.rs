//! A pressure stall trigger (PSI): wakes up when the tasks of a group wait (Documentation/accounting/psi.rst).
//!
//! ```text
//! write "some 100000 500000" into cpu.pressure ──► poll() with POLLPRI returns once in any half second in which
//!                                                  some task of the group waited for a CPU for a tenth of a second
//! ```
//!
//! Costs nothing while it is quiet. A kernel without PSI (`psi=0`, CONFIG_PSI off) has no such file or does not open it, and
//! one group can be without it (`cgroup.pressure` 0).

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A trigger; it ends when this is dropped.
#[derive(Debug)]
pub struct Trigger {
    file: File,
}

/// Why a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    /// The tasks of the group waited longer than the trigger allows.
    ByPressure,
    /// The other descriptor can be read, or was closed at its other end.
    ByOther,
    /// Neither, for as long as was to be waited.
    ByTime,
    /// The group is gone, its trigger with it.
    ByEnd,
}

impl Trigger {
    /// Arms a trigger at a `cpu.pressure`: more than `stall` of waiting in any `window`. Windows are from 0.5 to 10 s, and
    /// multiples of 2 s for those without CAP_SYS_RESOURCE (since Linux 6.5; before they have none).
    ///
    /// # Errors
    /// When the kernel has no PSI, or refuses the trigger.
    pub fn arm(pressure: &Path, stall: Duration, window: Duration) -> io::Result<Self> {
        let mut file = File::options().read(true).write(true).open(pressure)?;
        // The kernel wants the string with its final zero, in one write.
        let request = format!("some {} {}\0", stall.as_micros(), window.as_micros());
        file.write_all(request.as_bytes())?;
        Ok(Self { file })
    }

    /// Waits for the PSI trigger, for the other descriptor, or until the time is over (`None`: without end).
    ///
    /// # Errors
    /// When poll(2) fails other than by a signal.
    pub fn wait(&self, other: BorrowedFd<'_>, limit: Option<Duration>) -> io::Result<Woken> {
        wait(Some(self), other, limit)
    }
}

/// The same where there may be no trigger.
///
/// # Errors
/// When poll(2) fails other than by a signal.
pub fn wait(
    trigger: Option<&Trigger>,
    other: BorrowedFd<'_>,
    limit: Option<Duration>,
) -> io::Result<Woken> {
    let other = PollFd::from_borrowed_fd(other, PollFlags::IN);
    let limit = limit
        .map(Timespec::try_from)
        .transpose()
        .map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut asked = vec![other];
    asked.extend(trigger.map(|trigger| PollFd::new(&trigger.file, PollFlags::PRI)));
    match poll(&mut asked, limit.as_ref()) {
        Ok(_) => {}
        // Another thread handles the signal; here it is a short wait.
        Err(rustix::io::Errno::INTR) => return Ok(Woken::ByTime),
        Err(error) => return Err(error.into()),
    }
    let events_of = |index: usize| asked.get(index).map_or(PollFlags::empty(), PollFd::revents);
    if !events_of(0).is_empty() {
        return Ok(Woken::ByOther);
    }
    match events_of(1) {
        // A group that is removed leaves its trigger with an error.
        events if events.contains(PollFlags::ERR) => Ok(Woken::ByEnd),
        events if events.contains(PollFlags::PRI) => Ok(Woken::ByPressure),
        _ => Ok(Woken::ByTime),
    }
}

//! The guard: a child that outlives its owner by just as long as undoing takes.
//!
//! It is this program again (`nearfar lease-guard DIRECTORY OWNER`), with the reading end of a pipe as its standard input.
//! When the owner is gone, of whatever, the pipe ends. One guard serves all leases of a process in one directory. An owner
//! that needs it no longer sends it home with a word: it must not wait for what other threads of its owner hold meanwhile.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use crate::lease::{LeaseError, Recovered, live, recover};
use crate::state::Location;

static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
static RUNNING: Mutex<Vec<(PathBuf, Weak<Guard>)>> = Mutex::new(Vec::new());

/// The first argument of a guard.
pub const GUARD: &str = "lease-guard";
/// What an owner says that lives on.
const GO_HOME: &[u8] = b".";

/// Says which program stands guard: one that calls [`guard`] when it is started as `PROGRAM lease-guard DIRECTORY OWNER`.
/// Before this is called leases have no guards.
pub fn guard_with(program: PathBuf) {
    let _ = PROGRAM.set(program);
}

/// Stands guard: returns when the owner of standard input's other end is gone and its leases are undone, or when that says
/// that it needs no guard.
///
/// # Errors
/// As [`crate::lease::recover()`].
pub fn guard(directory: &Path, owner: u32) -> Result<Vec<Recovered>, LeaseError> {
    // Ctrl-C and a service manager's SIGTERM are for the owner. In a session of its own the terminal does not reach it.
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
        // SAFETY: ignoring a signal installs no handler.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let _ = rustix::process::setsid();
    let _ = std::env::set_current_dir("/");
    // "I stand". The owner may be gone already, and then none reads it.
    let mut out = std::io::stdout();
    let _ = out.write_all(b"!").and_then(|()| out.flush());
    let mut word = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut word);
    let system = live()?;
    let target = Location::Directory(directory.to_owned());
    // What the owner could not put back has no owner now.
    if word == GO_HOME {
        recover::recover(&target, &system)
    } else {
        recover::after(&target, &system, owner)
    }
}

/// A guard that stands by; goes home when dropped.
pub(crate) struct Guard(Child);

impl Guard {
    /// The one of this process, started where there is none yet. None where it cannot be had.
    pub(crate) fn of_this_process(directory: &Path) -> Option<Arc<Self>> {
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|(_, guard)| guard.strong_count() > 0);
        let known = running
            .iter()
            .find(|(place, _)| place == directory)
            .and_then(|(_, guard)| guard.upgrade());
        known.or_else(|| {
            let guard = Arc::new(Self::start(PROGRAM.get()?, directory)?);
            running.push((directory.to_owned(), Arc::downgrade(&guard)));
            Some(guard)
        })
    }

    fn start(program: &Path, directory: &Path) -> Option<Self> {
        let mut command = Command::new(program);
        command
            .arg(GUARD)
            .arg(directory)
            .arg(std::process::id().to_string());
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut guard = Self(command.spawn().ok()?);
        let mut ready = [0];
        let stands = guard.0.stdout.take()?.read_exact(&mut ready).is_ok();
        stands.then_some(guard)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(mut stdin) = self.0.stdin.take() {
            // If it is not read, no process has to end.
            let _ = stdin.write_all(GO_HOME);
        }
        // The lease is released or, in the worst case, undone by the guard now; either takes moments.
        let _ = self.0.wait();
    }
}

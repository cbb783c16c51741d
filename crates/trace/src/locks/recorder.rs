//! Waits for locks while something else runs: a session that a thread of its own reads.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use nearfar_machine::CpuSet;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd as _, OwnedFd};

use super::{Decoder, Formats, Waits};
use crate::{Finished, Plan, Session, TraceError, Tracefs};

/// The longest time between two looks at the rings.
const LOOK: Duration = Duration::from_millis(100);

/// A trace of lock contention on some CPUs. Dropping it ends it.
pub struct Recorder {
    wake: Arc<OwnedFd>,
    /// Until it begins.
    opened: Option<(Session, Waits)>,
    thread: Option<JoinHandle<Result<Recorded, TraceError>>>,
}

/// What a [`Recorder`] saw, without names yet ([`super::answer`]). Dropping it closes the events, as dropping a [`Session`] does.
pub struct Recorded {
    pub waits: Waits,
    pub finished: Finished,
    _session: Session,
}

impl Recorder {
    /// Opens the trace of all tasks on these CPUs, which takes nothing before [`Self::begin`]. To be opened before a load begins,
    /// see [`Session::open`].
    ///
    /// # Errors
    /// When the kernel has no such events, or does not let this user trace.
    pub fn open(cpus: &CpuSet) -> Result<Self, TraceError> {
        let formats = Tracefs::find().and_then(|tracefs| Formats::read(&tracefs))?;
        let decoder = Decoder::new(&formats).map_err(|problem| TraceError::Format {
            file: "lock:contention_begin".to_owned(),
            problem,
        })?;
        let plan = Plan {
            cpus,
            tracepoints: &formats.tracepoints(),
            names: false,
            callers_of: Some(formats.callers_of()),
        };
        let session = Session::open(&plan)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = Arc::new(wake.map_err(|error| TraceError::Thread(error.into()))?);
        let opened = Some((session, Waits::new(decoder)));
        Ok(Self {
            wake,
            opened,
            thread: None,
        })
    }

    /// Opens the trace and begins.
    ///
    /// # Errors
    /// As [`Self::open`] and [`Self::begin`].
    pub fn start(cpus: &CpuSet) -> Result<Self, TraceError> {
        let mut recorder = Self::open(cpus)?;
        recorder.begin()?;
        Ok(recorder)
    }

    /// Counts from now on.
    ///
    /// # Errors
    /// When the kernel refuses, or it has begun already.
    pub fn begin(&mut self) -> Result<(), TraceError> {
        let (mut session, waits) = self.opened.take().ok_or(TraceError::Ended)?;
        session.enable()?;
        let end = Arc::clone(&self.wake);
        let thread = std::thread::Builder::new()
            .name("locks".to_owned())
            .spawn(move || record(session, waits, &end));
        self.thread = Some(thread.map_err(TraceError::Thread)?);
        Ok(())
    }

    /// Ends it; what was waited for until now.
    ///
    /// # Errors
    /// When reading the events failed.
    pub fn finish(mut self) -> Result<Recorded, TraceError> {
        self.end();
        let thread = self.thread.take().ok_or(TraceError::Ended)?;
        thread.join().map_err(|_| TraceError::Ended)?
    }

    fn end(&self) {
        // An eventfd has room for this.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn record(mut session: Session, mut waits: Waits, end: &OwnedFd) -> Result<Recorded, TraceError> {
    loop {
        session.wait(LOOK, &[end.as_fd()])?;
        if rustix::io::read(end, &mut [0; 8]).is_ok() {
            break;
        }
        session.drain(&mut |cpu, sample| waits.take(cpu, sample));
        waits.end_round();
    }
    let finished = session.finish(&mut |cpu, sample| waits.take(cpu, sample))?;
    Ok(Recorded {
        waits,
        finished,
        _session: session,
    })
}

//! Tells a trace that an experiment runs under (`nearfar trace kernel`) when its samples are taken.
//!
//! ```text
//! trace:       listens at $NEARFAR_TRACE_SOCKET          answers once it counts       answers once it no longer does
//! experiment:  connects, writes "s" before a sample ───► takes it, ends writing ────► goes on
//!              connects, writes "p" before a pause in one, such as to start programs
//! ```
//!
//! An experiment that is killed ends its connections, too.

use std::ffi::OsStr;
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The variable with the path of the trace's socket.
pub const TRACE_SOCKET: &str = "NEARFAR_TRACE_SOCKET";

/// How long a trace may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long an experiment may take from connecting to writing.
const SOON: Duration = Duration::from_millis(100);

/// What an experiment tells of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// A sample, with what is set up for it.
    Sample,
    /// What a sample does not measure.
    Pause,
}

impl Phase {
    fn byte(self) -> u8 {
        match self {
            Self::Sample => b's',
            Self::Pause => b'p',
        }
    }

    /// Does the work in this phase, of which the trace knows, if there is one. One that is gone is no error of the experiment.
    pub(crate) fn during<T>(self, work: impl FnOnce() -> T) -> T {
        let trace = std::env::var_os(TRACE_SOCKET).and_then(|path| self.begin(&path).ok());
        let done = work();
        if let Some(trace) = trace {
            let _ = end(trace);
        }
        done
    }

    fn begin(self, path: &OsStr) -> io::Result<UnixStream> {
        let mut trace = UnixStream::connect(path)?;
        trace.set_read_timeout(Some(PATIENCE))?;
        trace.write_all(&[self.byte()])?;
        trace.read_exact(&mut [0])?;
        Ok(trace)
    }

    /// What an experiment has connected for; it waits until [`answer`] is called. `None` of anything else.
    ///
    /// # Errors
    /// When nothing comes in time.
    pub fn read(experiment: &mut UnixStream) -> io::Result<Option<Self>> {
        experiment.set_read_timeout(Some(SOON))?;
        let mut byte = [0];
        experiment.read_exact(&mut byte)?;
        let phases = [Self::Sample, Self::Pause];
        Ok(phases.into_iter().find(|it| it.byte() == byte[0]))
    }
}

fn end(mut trace: UnixStream) -> io::Result<()> {
    trace.shutdown(Shutdown::Write)?;
    trace.read_exact(&mut [0])
}

/// Lets the experiment go on.
pub fn answer(experiment: &mut UnixStream) {
    // One that has been killed does not wait.
    let _ = experiment.write_all(b".");
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    #[test]
    fn an_experiment_waits_for_the_trace_before_and_after() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        let listener = UnixListener::bind(&path).unwrap();
        let phases = [Phase::Sample, Phase::Pause];
        let experiment = thread::spawn(move || {
            for phase in phases {
                end(phase.begin(path.as_os_str()).unwrap()).unwrap();
            }
        });
        for phase in phases {
            let (mut stream, _) = listener.accept().unwrap();
            assert_eq!(Phase::read(&mut stream).unwrap(), Some(phase));
            answer(&mut stream);
            assert_eq!(stream.read(&mut [0]).unwrap(), 0, "it ends");
            answer(&mut stream);
        }
        experiment.join().unwrap();
    }

    #[test]
    fn a_trace_that_is_gone_is_no_error_of_the_experiment() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        assert!(Phase::Sample.begin(path.as_os_str()).is_err());
        drop(UnixListener::bind(&path).unwrap());
        let begun = Phase::Sample.begin(path.as_os_str());
        assert!(begun.is_err(), "and does not wait");
    }
}

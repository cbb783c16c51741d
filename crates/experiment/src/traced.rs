//! Tells a trace that an experiment runs under (`nearfar trace kernel`) when its samples are taken.
//!
//! ```text
//! trace:       listens at $NEARFAR_TRACE_SOCKET                          answers when what comes counts, or no longer
//! experiment:  connects, writes "b" before a sample, "e" after it ────►  waits for that
//! ```

use std::ffi::OsStr;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The variable with the path of the trace's socket.
pub const TRACE_SOCKET: &str = "NEARFAR_TRACE_SOCKET";

/// How long a trace may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// What an experiment tells the trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// What comes now is a sample.
    Begin,
    /// The sample has ended.
    End,
}

impl Mark {
    /// Tells it to the trace, if there is one, and waits until it knows. One that is gone is no error of the experiment.
    pub(crate) fn tell(self) {
        if let Some(path) = std::env::var_os(TRACE_SOCKET) {
            let _ = self.send(&path);
        }
    }

    fn send(self, path: &OsStr) -> io::Result<()> {
        let mut trace = UnixStream::connect(path)?;
        trace.set_read_timeout(Some(PATIENCE))?;
        trace.write_all(match self {
            Self::Begin => b"b",
            Self::End => b"e",
        })?;
        trace.read_exact(&mut [0])
    }

    /// What an experiment tells; it waits until [`answer`] is called. `None` of anything else.
    ///
    /// # Errors
    /// When nothing comes in time.
    pub fn read(experiment: &mut UnixStream) -> io::Result<Option<Self>> {
        experiment.set_read_timeout(Some(Duration::from_millis(100)))?;
        let mut byte = [0];
        experiment.read_exact(&mut byte)?;
        Ok(match byte {
            [b'b'] => Some(Self::Begin),
            [b'e'] => Some(Self::End),
            _ => None,
        })
    }
}

/// Lets the experiment go on.
pub fn answer(mut experiment: UnixStream) {
    // One that did not wait is not there.
    let _ = experiment.write_all(b".");
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    #[test]
    fn an_experiment_waits_for_the_trace_that_it_tells() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        let listener = UnixListener::bind(&path).unwrap();
        let told = [Mark::Begin, Mark::End];
        let experiment = thread::spawn(move || told.map(|it| it.send(path.as_os_str()).unwrap()));
        for mark in told {
            let (mut stream, _) = listener.accept().unwrap();
            assert_eq!(Mark::read(&mut stream).unwrap(), Some(mark));
            answer(stream);
        }
        experiment.join().unwrap();
    }

    #[test]
    fn a_trace_that_is_gone_is_no_error_of_the_experiment() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        assert!(Mark::Begin.send(path.as_os_str()).is_err());
        drop(UnixListener::bind(&path).unwrap());
        assert!(
            Mark::Begin.send(path.as_os_str()).is_err(),
            "and does not wait"
        );
    }
}

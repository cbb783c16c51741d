//! A command that runs: its outputs as they come, signals, its end.

use std::io::Read;
use std::ops::{Deref, DerefMut};
use std::process::{Child, Output};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{Answer, Sandbox};

/// The longest wait for a line or an end: several times what any of them takes.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// A child that is killed when it is dropped. A test that fails must leave no process behind: a runner that reads the
/// test's output to its end would wait for every process that can write to it.
#[derive(Debug)]
pub struct Owned(pub Child);

impl Deref for Owned {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Owned {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A command that has started. It is killed when this is dropped.
#[derive(Debug)]
pub struct Running {
    child: Owned,
    pub stdout: Lines,
    pub stderr: Lines,
    words: String,
    sandbox: Sandbox,
}

impl Running {
    pub(super) fn new(mut child: Child, words: String, sandbox: Sandbox) -> Self {
        let stdout = child.stdout.take().map_or_else(Lines::none, Lines::of);
        let stderr = child.stderr.take().map_or_else(Lines::none, Lines::of);
        Self {
            child: Owned(child),
            stdout,
            stderr,
            words,
            sandbox,
        }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.id() as i32).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits for a line with this in it on standard error.
    #[track_caller]
    pub fn wait_for_error(&mut self, part: &str) -> String {
        self.stderr.wait_for(part)
    }

    /// Waits for its end, and for the end of its outputs.
    #[track_caller]
    pub fn wait(mut self) -> Answer {
        let (stdout, stderr) = (self.stdout.read_to_end(), self.stderr.read_to_end());
        let status = self.child.wait().unwrap();
        Answer {
            output: Output {
                status,
                stdout,
                stderr,
            },
            words: std::mem::take(&mut self.words),
            sandbox: self.sandbox.clone(),
        }
    }

    /// Sends a signal and waits for the end.
    #[track_caller]
    pub fn end_by(self, signal: Signal) -> Answer {
        self.signal(signal);
        self.wait()
    }
}

#[derive(Debug, Default)]
struct Received {
    bytes: Vec<u8>,
    has_ended: bool,
}

/// An output of a child, read by a thread as it comes.
#[derive(Debug)]
pub struct Lines {
    received: Arc<(Mutex<Received>, Condvar)>,
    /// Bytes that [`Lines::wait_for`] has looked at.
    seen: usize,
}

impl Lines {
    /// Reads a stream to its end.
    pub fn of(mut stream: impl Read + Send + 'static) -> Self {
        let lines = Self {
            received: Arc::default(),
            seen: 0,
        };
        let received = Arc::clone(&lines.received);
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            loop {
                let count = stream.read(&mut buffer).unwrap_or(0);
                let mut state = received.0.lock().unwrap();
                state.bytes.extend_from_slice(&buffer[..count]);
                state.has_ended = count == 0;
                received.1.notify_all();
                if state.has_ended {
                    return;
                }
            }
        });
        lines
    }

    fn none() -> Self {
        Self::of(std::io::empty())
    }

    /// All that has come so far.
    pub fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.received.0.lock().unwrap().bytes).into_owned()
    }

    /// The next complete line that contains this. Lines before it are passed over.
    #[track_caller]
    pub fn wait_for(&mut self, part: &str) -> String {
        let deadline = Instant::now() + MAX_WAIT;
        let received = Arc::clone(&self.received);
        let mut state = received.0.lock().unwrap();
        loop {
            while let Some(length) = state.bytes[self.seen..]
                .iter()
                .position(|byte| *byte == b'\n')
            {
                let line = &state.bytes[self.seen..self.seen + length];
                self.seen += length + 1;
                let line = String::from_utf8_lossy(line).into_owned();
                if line.contains(part) {
                    return line;
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if state.has_ended || left.is_zero() {
                let why = if state.has_ended {
                    "it ended"
                } else {
                    "it took too long"
                };
                let text = String::from_utf8_lossy(&state.bytes).into_owned();
                drop(state);
                panic!("no line with {part:?}: {why}; all lines:\n{text}");
            }
            state = received.1.wait_timeout(state, left).unwrap().0;
        }
    }

    /// All of it, after its end.
    fn read_to_end(&mut self) -> Vec<u8> {
        let mut state = self.received.0.lock().unwrap();
        while !state.has_ended {
            state = self.received.1.wait(state).unwrap();
        }
        std::mem::take(&mut state.bytes)
    }

    /// All of it as text, after its end.
    pub fn all(mut self) -> String {
        String::from_utf8_lossy(&self.read_to_end()).into_owned()
    }
}

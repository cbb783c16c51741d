//! What passes between a command in the guest and this process while the command runs: bytes, a thread a direction; keys and the size of
//! the terminal; signals.
//!
//! What one command wrote is cut out of what a port carries:
//!
//! ```text
//! ... leftovers of a background process | TOKEN.begin.7. | the command's bytes | TOKEN.end.7. | ...
//! ```
//!
//! A port never ends while the guest lives, and bytes may be anything, so the agent marks begin and end with a token that
//! was drawn for this guest.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH};

use crate::error::LabError;

/// So much input goes to the guest as one block.
const BLOCK: usize = 64 << 10;

/// Where a command's input comes from.
#[derive(Debug)]
pub enum Input {
    /// There is none: the command finds an end of file.
    Nothing,
    /// These bytes, then the end of file.
    Bytes(Vec<u8>),
    /// A descriptor, until its end of file.
    Descriptor(OwnedFd),
}

/// Where a command's bytes come from and go to.
pub struct Streams<'a> {
    /// Its standard input.
    pub input: Input,
    /// Takes its standard output.
    pub output: Box<dyn Write + Send + 'a>,
    /// Takes its standard error.
    pub errors: Box<dyn Write + Send + 'a>,
}

impl Streams<'_> {
    /// Those of this process.
    ///
    /// # Errors
    /// When standard input cannot be duplicated.
    pub fn inherited() -> io::Result<Self> {
        let input = io::stdin().as_fd().try_clone_to_owned()?;
        Ok(Self {
            input: Input::Descriptor(input),
            output: Box::new(io::stdout()),
            errors: Box::new(io::stderr()),
        })
    }
}

impl fmt::Debug for Streams<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streams")
            .field("input", &self.input)
            .finish_non_exhaustive()
    }
}

/// Copies a command's bytes from its port until their end, or that of the guest.
///
/// # Errors
/// The first refusal of `sink`, after which the rest is read and dropped, so that the port stays usable; `refused` is called
/// at once.
pub fn copy_out(
    mut port: &UnixStream,
    mut cut: Cut,
    sink: &mut dyn Write,
    refused: &dyn Fn(),
) -> io::Result<()> {
    let mut buffer = vec![0; BLOCK];
    let mut outcome = Ok(());
    while !cut.ended() {
        let count = match port.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let piece = cut.feed(&buffer[..count]);
        if outcome.is_ok() && !piece.is_empty() {
            outcome = sink.write_all(&piece).and_then(|()| sink.flush());
            if outcome.is_err() {
                refused();
            }
        }
    }
    outcome
}

/// Sends input in blocks, each behind a line with its length, until its end or until `stop` can be read.
pub fn send_framed(mut port: &UnixStream, input: Input, stop: BorrowedFd<'_>) -> io::Result<()> {
    port.write_all(b"open\n")?;
    match input {
        Input::Nothing => {}
        Input::Bytes(bytes) => {
            for block in bytes.chunks(BLOCK) {
                if told(stop)? {
                    break;
                }
                send(port, block)?;
            }
        }
        Input::Descriptor(source) => {
            let mut buffer = vec![0; BLOCK];
            while let Some(count @ 1..) = read_next(&source, &mut buffer, stop)? {
                send(port, &buffer[..count])?;
            }
        }
    }
    port.write_all(b"end\n")
}

/// Sends keys as they are. `true` when the way out was typed.
pub fn send_keys(
    mut port: &UnixStream,
    source: &OwnedFd,
    stop: BorrowedFd<'_>,
) -> io::Result<bool> {
    let mut buffer = [0; 1024];
    let mut escape = Escape::default();
    while let Some(count @ 1..) = read_next(source, &mut buffer, stop)? {
        if escape.completed_by(&buffer[..count]) {
            return Ok(true);
        }
        port.write_all(&buffer[..count])?;
    }
    Ok(false)
}

/// Whether the other side wants no more.
fn told(stop: BorrowedFd<'_>) -> io::Result<bool> {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut wait = [PollFd::from_borrowed_fd(stop, PollFlags::IN)];
    Ok(poll(&mut wait, Some(&now))? > 0)
}

fn send(mut port: &UnixStream, block: &[u8]) -> io::Result<()> {
    port.write_all(format!("data {}\n", block.len()).as_bytes())?;
    port.write_all(block)
}

/// Reads what there is; `None` when told to stop.
fn read_next(
    source: &OwnedFd,
    buffer: &mut [u8],
    stop: BorrowedFd<'_>,
) -> io::Result<Option<usize>> {
    loop {
        let mut wait = [
            PollFd::new(source, PollFlags::IN),
            PollFd::from_borrowed_fd(stop, PollFlags::IN),
        ];
        match poll(&mut wait, None) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other?,
        };
        if !wait[1].revents().is_empty() {
            return Ok(None);
        }
        match rustix::io::read(source, &mut *buffer) {
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            // A terminal that hung up.
            Err(rustix::io::Errno::IO) => return Ok(Some(0)),
            other => return Ok(Some(other?)),
        }
    }
}

/// Where in a port's bytes we are.
#[derive(Debug)]
pub struct Cut {
    begin: Vec<u8>,
    end: Vec<u8>,
    state: CutState,
    /// Bytes that may be the start of a mark.
    held: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CutState {
    Before,
    Inside,
    After,
}

impl Cut {
    /// The bytes of the command with this number. A terminal has no mark at the begin.
    pub fn new(token: &str, id: u64, terminal: bool) -> Self {
        Self {
            begin: format!("{token}.begin.{id}.").into_bytes(),
            end: format!("{token}.end.{id}.").into_bytes(),
            state: match terminal {
                true => CutState::Inside,
                false => CutState::Before,
            },
            held: Vec::new(),
        }
    }

    /// Takes what the port carried, gives what of it is the command's.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.held.extend_from_slice(bytes);
        if self.state == CutState::Before {
            self.skip_to_begin();
        }
        match self.state {
            CutState::Before | CutState::After => Vec::new(),
            CutState::Inside => self.pass_to_end(),
        }
    }

    /// Whether the command's last byte was seen.
    pub fn ended(&self) -> bool {
        self.state == CutState::After
    }

    fn skip_to_begin(&mut self) {
        if let Some(at) = find(&self.held, &self.begin) {
            self.held.drain(..at + self.begin.len());
            self.state = CutState::Inside;
        } else {
            let keep = unfinished(&self.held, &self.begin);
            self.held.drain(..self.held.len() - keep);
        }
    }

    fn pass_to_end(&mut self) -> Vec<u8> {
        if let Some(at) = find(&self.held, &self.end) {
            self.state = CutState::After;
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let passed = self.held.len() - unfinished(&self.held, &self.end);
        self.held.drain(..passed).collect()
    }
}

fn find(bytes: &[u8], mark: &[u8]) -> Option<usize> {
    bytes.windows(mark.len()).position(|window| window == mark)
}

/// How many bytes at the end may be the start of a mark.
fn unfinished(bytes: &[u8], mark: &[u8]) -> usize {
    let mut counts = (1..mark.len().min(bytes.len() + 1)).rev();
    let longest = counts.find(|count| bytes.ends_with(&mark[..*count]));
    longest.unwrap_or(0)
}

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
        let arrived = self.arrived.as_ref();
        let count = arrived.and_then(|mut arrived| arrived.read(&mut bytes).ok());
        bytes[..count.unwrap_or(0)]
            .iter()
            .map(|byte| i32::from(*byte))
            .collect()
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
pub(super) fn signal_name(signal: i32) -> Option<&'static str> {
    match signal {
        SIGINT => Some("INT"),
        SIGTERM => Some("TERM"),
        SIGHUP => Some("HUP"),
        SIGQUIT => Some("QUIT"),
        _ => None,
    }
}

/// This process's terminal in raw mode, while a command in the guest has it: every key goes to the guest. Set back when this is dropped.
#[derive(Debug)]
pub struct RawTerminal {
    terminal: OwnedFd,
    before: Termios,
}

impl RawTerminal {
    /// Puts standard input into raw mode, if it is a terminal.
    pub fn standard_input() -> Option<Self> {
        let input = rustix::stdio::stdin();
        if !isatty(input) {
            return None;
        }
        let terminal = input.try_clone_to_owned().ok()?;
        let before = tcgetattr(&terminal).ok()?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&terminal, OptionalActions::Drain, &raw).ok()?;
        Some(Self { terminal, before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // Nothing is left to try if a terminal that took one mode refuses another.
        _ = tcsetattr(&self.terminal, OptionalActions::Drain, &self.before);
    }
}

/// Rows and columns of the terminal at standard output.
pub fn terminal_size() -> Option<(u16, u16)> {
    let size = tcgetwinsize(rustix::stdio::stdout()).ok()?;
    (size.ws_row > 0 && size.ws_col > 0).then_some((size.ws_row, size.ws_col))
}

/// Looks for the way out of a guest that hangs: Ctrl-] three times in a row, as in systemd-nspawn.
#[derive(Debug, Default)]
pub struct Escape {
    seen: usize,
}

impl Escape {
    /// Whether these keys complete it.
    pub fn completed_by(&mut self, keys: &[u8]) -> bool {
        for key in keys {
            self.seen = if *key == 0x1d { self.seen + 1 } else { 0 };
            if self.seen == 3 {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_between_the_marks_comes_out_however_it_arrives(
            mut content in proptest::collection::vec(prop_oneof![Just(b't'), Just(b'.'), any::<u8>()], 0..200),
            cuts in proptest::collection::vec(1_usize..40, 1..40),
        ) {
            // Where the mark's own first byte stands before it, the mark begins there.
            if content.ends_with(b"t") {
                content.push(b'.');
            }
            let mut port = b"leftover tt.begin.6.".to_vec();
            port.extend_from_slice(b"tt.begin.7.");
            port.extend_from_slice(&content);
            port.extend_from_slice(b"tt.end.7.later");
            prop_assume!(find(&content, b"tt.end.7.").is_none());
            let mut cut = Cut::new("tt", 7, false);
            let mut seen = Vec::new();
            let mut rest = &port[..];
            for size in cuts.iter().cycle() {
                if rest.is_empty() || cut.ended() {
                    break;
                }
                let (piece, later) = rest.split_at((*size).min(rest.len()));
                seen.extend(cut.feed(piece));
                rest = later;
            }
            prop_assert!(cut.ended());
            prop_assert_eq!(seen, content);
        }
    }

    #[test]
    fn three_in_a_row_is_the_way_out_even_in_pieces() {
        let mut escape = Escape::default();
        assert!(!escape.completed_by(b"\x1d\x1dx\x1d"));
        assert!(!escape.completed_by(b"\x1d"));
        assert!(escape.completed_by(b"\x1drest"));
    }
}

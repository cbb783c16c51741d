//! Bytes between a command in the guest and this process: a thread a direction while the command runs.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::marks::Cut;
use super::terminal::Escape;

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
pub fn out(
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
pub fn framed(mut port: &UnixStream, input: Input, stop: BorrowedFd<'_>) -> io::Result<()> {
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
            while let Some(count @ 1..) = next(&source, &mut buffer, stop)? {
                send(port, &buffer[..count])?;
            }
        }
    }
    port.write_all(b"end\n")
}

/// Sends keys as they are. `true` when the way out was typed.
pub fn keys(mut port: &UnixStream, source: &OwnedFd, stop: BorrowedFd<'_>) -> io::Result<bool> {
    let mut buffer = [0; 1024];
    let mut escape = Escape::default();
    while let Some(count @ 1..) = next(source, &mut buffer, stop)? {
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
    Ok(poll(
        &mut [PollFd::from_borrowed_fd(stop, PollFlags::IN)],
        Some(&now),
    )? > 0)
}

fn send(mut port: &UnixStream, block: &[u8]) -> io::Result<()> {
    port.write_all(format!("data {}\n", block.len()).as_bytes())?;
    port.write_all(block)
}

/// Reads what there is; `None` when told to stop.
fn next(source: &OwnedFd, buffer: &mut [u8], stop: BorrowedFd<'_>) -> io::Result<Option<usize>> {
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

//! The last that the kernel's console and QEMU itself said, for the error message of a guest that died.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// So much of the end is kept.
const KEPT: usize = 16 << 10;

/// What was said, its end; shared with the threads that listen.
#[derive(Clone, Debug, Default)]
pub struct Console {
    said: Arc<Mutex<Said>>,
}

#[derive(Debug, Default)]
struct Said {
    end: Vec<u8>,
    bytes: u64,
}

impl Console {
    /// Listens in a thread of its own until the source ends; shows on standard error what it hears, if asked to.
    pub fn listen(&self, mut source: impl Read + Send + 'static, show: bool) {
        let console = self.clone();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = source.read(&mut buffer) {
                console.hear(&buffer[..count]);
                if show {
                    // A standard error that is closed is no reason to stop listening.
                    drop(std::io::stderr().write_all(&buffer[..count]));
                }
            }
        });
    }

    /// Keeps what was said.
    pub fn hear(&self, words: &[u8]) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.bytes += words.len() as u64;
        said.end.extend_from_slice(words);
        let surplus = said.end.len().saturating_sub(KEPT);
        said.end.drain(..surplus);
    }

    /// Bytes heard since the start.
    pub fn bytes(&self) -> u64 {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).bytes
    }

    /// The last lines, at most so many.
    pub fn last_lines(&self, count: usize) -> String {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&said.end).replace('\r', "");
        let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(count)..].join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_is_kept_and_empty_lines_are_left_out() {
        let console = Console::default();
        console.hear(&[b'x'; 2 * KEPT]);
        console.hear(b"\r\n\r\nfirst\r\nsecond\n");
        assert_eq!(console.last_lines(2), "first\nsecond");
        assert_eq!(console.bytes(), 2 * KEPT as u64 + 18);
        assert!(console.last_lines(9).len() <= KEPT);
    }
}

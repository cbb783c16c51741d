//! The last that the kernel's console and QEMU itself said, for the error message of a guest that died.

use std::io::{Read, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// So much of the end is kept.
const KEPT: usize = 16 << 10;
/// How long a source that has ended may take until all of it is heard.
const LAG: Duration = Duration::from_secs(2);

/// What was said, its end; shared with the threads that listen.
#[derive(Clone, Debug, Default)]
pub struct Console {
    heard: Arc<Heard>,
}

#[derive(Debug, Default)]
struct Heard {
    said: Mutex<Received>,
    /// Notified when a listener ends.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Received {
    end: Vec<u8>,
    bytes: u64,
    listeners: usize,
}

impl Console {
    /// Listens in a thread of its own until the source ends; shows on standard error what it hears, if asked to.
    pub fn listen(&self, mut source: impl Read + Send + 'static, show: bool) {
        let console = self.clone();
        self.said().listeners += 1;
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = source.read(&mut buffer) {
                console.hear(&buffer[..count]);
                if show {
                    // A standard error that is closed is no reason to stop listening.
                    drop(std::io::stderr().write_all(&buffer[..count]));
                }
            }
            console.said().listeners -= 1;
            console.heard.ended.notify_all();
        });
    }

    fn said(&self) -> MutexGuard<'_, Received> {
        self.heard
            .said
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all was heard of sources that have ended: the last words of one that died come after the news of it.
    pub fn drain(&self) {
        drop(
            self.heard
                .ended
                .wait_timeout_while(self.said(), LAG, |said| said.listeners > 0),
        );
    }

    /// Keeps what was said.
    pub fn hear(&self, words: &[u8]) {
        let mut said = self.said();
        said.bytes += words.len() as u64;
        said.end.extend_from_slice(words);
        let surplus = said.end.len().saturating_sub(KEPT);
        said.end.drain(..surplus);
    }

    /// Bytes heard since the start.
    pub fn bytes(&self) -> u64 {
        self.said().bytes
    }

    /// The last lines, at most so many.
    pub fn last_lines(&self, count: usize) -> String {
        let said = self.said();
        let text = String::from_utf8_lossy(&said.end).replace('\r', "");
        let lines: Vec<_> = text
            .lines()
            .filter(|line| !line.trim().is_empty())
            .collect();
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

    #[test]
    fn the_last_words_of_a_source_that_has_ended_are_waited_for() {
        let console = Console::default();
        console.drain();
        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        console.listen(reader, false);
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            writer.write_all(b"Oops").expect("a reader");
        });
        console.drain();
        assert_eq!(console.last_lines(1), "Oops");
    }
}

//! This process's terminal while a command in the guest has it.

use std::os::fd::OwnedFd;

use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};

/// A terminal in raw mode: every key goes to the guest. Set back when this is dropped.
#[derive(Debug)]
pub struct Raw {
    terminal: OwnedFd,
    before: Termios,
}

impl Raw {
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

impl Drop for Raw {
    fn drop(&mut self) {
        // Nothing is left to try if a terminal that took one mode refuses another.
        _ = tcsetattr(&self.terminal, OptionalActions::Drain, &self.before);
    }
}

/// Rows and columns of the terminal at standard output.
pub fn size() -> Option<(u16, u16)> {
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
    use super::*;

    #[test]
    fn three_in_a_row_is_the_way_out_even_in_pieces() {
        let mut escape = Escape::default();
        assert!(!escape.completed_by(b"\x1d\x1dx\x1d"));
        assert!(!escape.completed_by(b"\x1d"));
        assert!(escape.completed_by(b"\x1drest"));
    }
}

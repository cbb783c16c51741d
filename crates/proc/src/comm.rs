//! The name of a task (`comm`): bytes, since the kernel cuts it after 15 of them, also within a character.

use std::fmt;

/// The name of a task. Not UTF-8 by contract, and not only of one line: `prctl(PR_SET_NAME)` takes any bytes but NUL.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Comm(Vec<u8>);

impl Comm {
    /// From the bytes between the brackets of /proc/PID/stat, or from /proc/PID/comm with its line end.
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    pub(crate) fn of_file(content: &[u8]) -> Self {
        Self::new(content.strip_suffix(b"\n").unwrap_or(content))
    }

    /// The bytes that the kernel gives.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// As text, with the replacement character for what is not UTF-8.
    pub fn to_text(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }
}

/// For a terminal: what is not UTF-8 and control characters, which would move its cursor, become replacement characters.
impl fmt::Display for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in String::from_utf8_lossy(&self.0).chars() {
            let shown = if character.is_control() {
                char::REPLACEMENT_CHARACTER
            } else {
                character
            };
            fmt::Write::write_char(f, shown)?;
        }
        Ok(())
    }
}

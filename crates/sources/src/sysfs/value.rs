//! The few shapes that values have in sysfs: a number, a list of CPUs or nodes, a mask, a word. Parsed from raw bytes;
//! what is wrong comes back as a message for a warning.

use nearfar_machine::{Id, IdSet};

/// A file's content as text without the white space (and the terminating NUL of device-tree strings) around it.
pub(crate) fn text(bytes: &[u8]) -> Result<&str, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "not text".to_owned())?;
    Ok(text.trim_matches(|c: char| c.is_whitespace() || c == '\0'))
}

/// A decimal number, perhaps negative.
pub(crate) fn integer(bytes: &[u8]) -> Result<i64, String> {
    let text = text(bytes)?;
    text.parse()
        .map_err(|_| format!("{:?} is not a number", shorten(text)))
}

/// A decimal number that is not negative.
pub(crate) fn natural(bytes: &[u8]) -> Result<u64, String> {
    let text = text(bytes)?;
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits
        .then(|| text.parse().ok())
        .flatten()
        .ok_or_else(|| format!("{:?} is not a number", shorten(text)))
}

/// A list such as `0-3,8`.
pub(crate) fn list<T: Id>(bytes: &[u8]) -> Result<IdSet<T>, String> {
    IdSet::parse_list(text(bytes)?).map_err(|error| error.to_string())
}

/// A mask such as `00000000,0000010f`.
pub(crate) fn mask<T: Id>(bytes: &[u8]) -> Result<IdSet<T>, String> {
    IdSet::parse_mask(text(bytes)?).map_err(|error| error.to_string())
}

/// Text cut to what fits into a message.
pub(crate) fn shorten(text: &str) -> String {
    const LONGEST: usize = 40;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

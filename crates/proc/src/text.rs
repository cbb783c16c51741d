//! Numbers and lines in bytes that need not be UTF-8 as a whole.

use std::io::{self, BufRead, Read as _};
use std::str::FromStr;

/// A line of numa_maps or maps holds one path: at most 4096 bytes, each escaped as four characters.
const MAX_LINE_BYTES: u64 = 64 << 10;

/// A number in text, with white space around it.
pub(crate) fn number<T: FromStr>(bytes: &[u8]) -> Option<T> {
    std::str::from_utf8(bytes).ok()?.trim().parse().ok()
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(bytes).ok()?, 16).ok()
}

/// The words that are numbers.
pub(crate) fn numbers<T: FromStr>(bytes: &[u8]) -> Vec<T> {
    words(bytes).filter_map(number).collect()
}

/// `123 kB`, in bytes.
pub(crate) fn kilobytes(bytes: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(bytes).ok()?;
    let number: u64 = text.trim().strip_suffix("kB")?.trim().parse().ok()?;
    number.checked_mul(1024)
}

pub(crate) fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|&byte| byte == b'\n')
}

/// What follows `key` and `separator` at the start of a line.
pub(crate) fn after<'a>(bytes: &'a [u8], key: &str, separator: &[u8]) -> Option<&'a [u8]> {
    lines(bytes).find_map(|line| line.strip_prefix(key.as_bytes())?.strip_prefix(separator))
}

pub(crate) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let words = line.split(u8::is_ascii_whitespace);
    words.filter(|word| !word.is_empty())
}

/// Reads line by line, since a database has a hundred thousand mappings. The rest of an overlong line is skipped.
pub(crate) fn each_line(mut text: impl BufRead, mut take: impl FnMut(&[u8])) -> io::Result<()> {
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = text
            .by_ref()
            .take(MAX_LINE_BYTES)
            .read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(());
        }
        let is_whole = line.last() == Some(&b'\n');
        take(line.strip_suffix(b"\n").unwrap_or(&line));
        if !is_whole {
            text.skip_until(b'\n')?;
        }
    }
}

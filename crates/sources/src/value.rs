//! Words and numbers of files and texts. What is wrong with one is a [`ValueError`], of whatever source it is.

use nearfar_machine::{Id, IdSet, MAX_NUMBER, MOST_NODES, NodeId, PciAddressError, SetError};

use crate::error::excerpt;

/// Why the content of a file, or a word of a text, is not the value that belongs there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ValueError {
    #[error("not text")]
    NotText,
    #[error("{:?} is not {expected}", excerpt(found))]
    Malformed {
        found: String,
        expected: &'static str,
    },
    /// The content ends before what it announces, is larger than anything real, or does not fit other parts of the input.
    #[error("{0}")]
    Faulty(String),
    #[error(transparent)]
    Set(#[from] SetError),
    #[error(transparent)]
    Address(#[from] PciAddressError),
}

impl ValueError {
    /// `expected` completes "X is not ...".
    pub(crate) fn malformed(found: impl Into<String>, expected: &'static str) -> Self {
        let found = found.into();
        Self::Malformed { found, expected }
    }

    pub(crate) fn faulty(problem: impl Into<String>) -> Self {
        Self::Faulty(problem.into())
    }
}

/// A number of a kind of which sets are made; none for a text that is no such number.
pub(crate) fn id<T: Id>(text: &str) -> Option<T> {
    let number = text.parse().ok().filter(|&number| number <= MAX_NUMBER);
    number.map(T::from_number)
}

/// A file's content as text without the white space (and the terminating NUL of device-tree strings) around it.
pub(crate) fn text(bytes: &[u8]) -> Result<&str, ValueError> {
    let text = std::str::from_utf8(bytes).map_err(|_| ValueError::NotText)?;
    Ok(text.trim_matches(|c: char| c.is_whitespace() || c == '\0'))
}

/// A word or line, without the white space around it.
pub(crate) fn word(bytes: &[u8]) -> Result<String, ValueError> {
    text(bytes).map(str::to_owned)
}

/// A decimal number, perhaps negative.
pub(crate) fn integer(bytes: &[u8]) -> Result<i64, ValueError> {
    let text = text(bytes)?;
    text.parse()
        .map_err(|_| ValueError::malformed(text, "a number"))
}

/// A decimal number that is not negative and has no sign.
pub(crate) fn natural(bytes: &[u8]) -> Result<u64, ValueError> {
    digits(bytes, 10, "a number")
}

/// A decimal number of at most 32 bits.
pub(crate) fn natural32(bytes: &[u8]) -> Result<u32, ValueError> {
    narrow(bytes, natural(bytes)?)
}

/// A hexadecimal number of at most 32 bits, with or without `0x`.
pub(crate) fn hexadecimal32(bytes: &[u8]) -> Result<u32, ValueError> {
    let plain = bytes.strip_prefix(b"0x").unwrap_or(bytes);
    narrow(bytes, digits(plain, 16, "a hexadecimal number")?)
}

fn digits(bytes: &[u8], radix: u32, expected: &'static str) -> Result<u64, ValueError> {
    let text = text(bytes)?;
    // from_str_radix also takes a sign.
    let is_plain = text.chars().all(|c| c.is_digit(radix));
    let number = u64::from_str_radix(text, radix).ok().filter(|_| is_plain);
    number.ok_or_else(|| ValueError::malformed(text, expected))
}

fn narrow(bytes: &[u8], number: u64) -> Result<u32, ValueError> {
    let found = || String::from_utf8_lossy(bytes).trim().to_owned();
    u32::try_from(number).map_err(|_| ValueError::malformed(found(), "a number of 32 bits"))
}

/// A number of a node as `numa_node` gives it: -1 is "none" (`NUMA_NO_NODE`).
pub(crate) fn node(bytes: &[u8]) -> Result<Option<NodeId>, ValueError> {
    match integer(bytes)? {
        -1 => Ok(None),
        number => match u32::try_from(number) {
            Ok(number) if number < MOST_NODES => Ok(Some(NodeId(number))),
            _ => {
                let number = number.to_string();
                Err(ValueError::malformed(number, "the number of a node"))
            }
        },
    }
}

/// The 32-bit big-endian cells of a property of the device tree.
pub(crate) fn cells(bytes: &[u8]) -> Vec<u32> {
    let (cells, _) = bytes.as_chunks();
    cells.iter().map(|&cell| u32::from_be_bytes(cell)).collect()
}

/// A list such as `0-3,8`.
pub(crate) fn list<T: Id>(bytes: &[u8]) -> Result<IdSet<T>, ValueError> {
    Ok(IdSet::parse_list(text(written(bytes)?)?)?)
}

/// A mask such as `00000000,0000010f`.
pub(crate) fn mask<T: Id>(bytes: &[u8]) -> Result<IdSet<T>, ValueError> {
    Ok(IdSet::parse_mask(text(written(bytes)?)?)?)
}

/// Refuses what a gatherer leaves where it copied nothing: such a file is not the kernel's empty set, which is a newline.
fn written(bytes: &[u8]) -> Result<&[u8], ValueError> {
    let problem = match bytes {
        [] => "the file is empty, and the kernel writes at least a newline",
        _ if bytes.iter().all(|&byte| byte == 0) => "the file holds only NUL bytes",
        _ => return Ok(bytes),
    };
    Err(ValueError::faulty(problem))
}

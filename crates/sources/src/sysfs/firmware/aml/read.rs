//! The elements of AML: lengths, names, constants. Each takes the code up to the end of what surrounds it and a place
//! in it, and gives the place behind what it read, or nothing where no such element stands there.

use super::Segment;

/// Longest path in one name; the encoding allows 255.
const MOST_SEGMENTS: usize = 32;
/// How many members of a package are looked at: `_CID` lists have two or three.
const MOST_MEMBERS: usize = 16;

/// A name as it is written: `\_SB_.PC40`, `^PC40`, `_PXM`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Name {
    /// Whether it starts at the root.
    pub(super) from_root: bool,
    /// How many levels it goes up before.
    pub(super) up: usize,
    /// Its parts, at least one.
    pub(super) segments: Vec<Segment>,
}

/// A constant.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// An integer.
    Number(u64),
    /// A string.
    Text(Vec<u8>),
    /// The first members of a package.
    List(Vec<Value>),
    /// A buffer, or the result of a method.
    Computed,
}

/// Reads a package length (20.2.4): the place behind it, and the end of what it measures.
pub(super) fn package_end(code: &[u8], at: usize) -> Option<(usize, usize)> {
    let lead = *code.get(at)?;
    let more = usize::from(lead >> 6);
    let length = if more == 0 {
        usize::from(lead & 0x3f)
    } else {
        let rest = code.get(at + 1..at + 1 + more)?;
        let high = rest
            .iter()
            .rev()
            .fold(0, |high, &byte| high << 8 | usize::from(byte));
        high << 4 | usize::from(lead & 0x0f)
    };
    let (inside, end) = (at + 1 + more, at + length);
    (inside <= end && end <= code.len()).then_some((inside, end))
}

/// Reads a name (20.2.2) that is not empty.
pub(super) fn name(code: &[u8], at: usize) -> Option<(usize, Name)> {
    let mut at = at;
    let from_root = *code.get(at)? == b'\\';
    at += usize::from(from_root);
    let up = code
        .get(at..)?
        .iter()
        .take_while(|&&byte| byte == b'^')
        .count();
    at += up;
    let count = match *code.get(at)? {
        0x2e => {
            at += 1;
            2
        }
        0x2f => {
            at += 2;
            usize::from(*code.get(at - 1)?)
        }
        _ => 1,
    };
    if count == 0 || count > MOST_SEGMENTS {
        return None;
    }
    let end = at + 4 * count;
    let parts = code.get(at..end)?.chunks_exact(4);
    let segments = parts
        .map(|part| part.try_into().ok().filter(is_segment))
        .collect::<Option<Vec<Segment>>>()?;
    Some((
        end,
        Name {
            from_root,
            up,
            segments,
        },
    ))
}

fn is_segment(segment: &Segment) -> bool {
    let [lead, rest @ ..] = segment;
    let lead_fits = lead.is_ascii_uppercase() || *lead == b'_';
    lead_fits
        && rest
            .iter()
            .all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || *byte == b'_')
}

/// Reads a constant (20.2.3).
pub(super) fn value(code: &[u8], at: usize) -> Option<(usize, Value)> {
    if code.get(at) != Some(&0x12) {
        return scalar(code, at);
    }
    let (inside, end) = package_end(code, at + 1)?;
    let package = &code[..end];
    // A byte says how many members there are; each may be missing at the end.
    let mut at = inside + 1;
    let mut members = Vec::new();
    while members.len() < MOST_MEMBERS
        && let Some((next, member)) = scalar(package, at)
    {
        members.push(member);
        at = next;
    }
    Some((end, Value::List(members)))
}

/// Reads a constant that holds no others.
fn scalar(code: &[u8], at: usize) -> Option<(usize, Value)> {
    let number = |width: usize| {
        let bytes = code.get(at + 1..at + 1 + width)?;
        let number = bytes
            .iter()
            .rev()
            .fold(0u64, |number, &byte| number << 8 | u64::from(byte));
        Some((at + 1 + width, Value::Number(number)))
    };
    match *code.get(at)? {
        0x00 => Some((at + 1, Value::Number(0))),
        0x01 => Some((at + 1, Value::Number(1))),
        0xff => Some((at + 1, Value::Number(u64::MAX))),
        0x0a => number(1),
        0x0b => number(2),
        0x0c => number(4),
        0x0e => number(8),
        0x0d => {
            let text: Vec<u8> = code[at + 1..]
                .iter()
                .copied()
                .take_while(|&byte| byte != 0)
                .collect();
            let end = at + 1 + text.len() + 1;
            (end <= code.len()).then_some((end, Value::Text(text)))
        }
        0x11 | 0x13 => package_end(code, at + 1).map(|(_, end)| (end, Value::Computed)),
        _ => None,
    }
}

/// The constant that a method returns, where returning it is all it does.
pub(super) fn method_constant(body: &[u8]) -> Option<u64> {
    const RETURN: u8 = 0xa4;
    if body.first() != Some(&RETURN) {
        return None;
    }
    match scalar(body, 1)? {
        (end, Value::Number(number)) if end == body.len() => Some(number),
        _ => None,
    }
}

//! A small reader of AML, ACPI's byte code: it finds devices and the few constants that say what and where they are.
//!
//! ```text
//! 10 <length> \_SB_              Scope
//!    5b 82 <length> PC40           Device
//!       08 _HID 0c 41 d0 0a 08       Name, EISA number of PNP0A08
//!       08 _BBN 0a 40                Name, first bus
//!       08 _PXM 0a 02                Name, proximity domain
//!       14 <length> _OSC ...         Method: only looked into when it is one of these names
//! ```
//!
//! AML cannot be parsed to the letter without running it: how many arguments a call takes is not in the code. What
//! declares something carries its length, though, so everything of interest can be found by walking the declarations,
//! and by going on with the next byte where something else stands (a call at the level of declarations, the condition
//! of an `If`). A declaration found that way must have a length that fits its surroundings and a well-formed name, which
//! random bytes do not have. Nothing is executed: a value that is computed is reported as [`Number::Computed`].
//! Encoding: ACPI 6.5, chapter 20.
//!
//! Functions that read an element (a length, a name, a constant) take the code up to the end of what surrounds it and a place
//! in it, and give the place behind what they read, or nothing where no such element stands there.

use std::collections::HashMap;
use std::fmt;

/// One part of a name: four bytes, `_SB_`.
type Segment = [u8; 4];

/// How deep declarations are followed; real tables stay below 12.
const DEEPEST: usize = 48;
/// How many objects are kept; the largest servers declare some 20,000.
const MOST_OBJECTS: usize = 65_536;
/// `PNP0A08` and `PNP0A03`: PCI Express and PCI host bridges, as compressed EISA numbers.
const HOST_BRIDGES: [u64; 2] = [0x080a_d041, 0x030a_d041];

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(super) struct Path(Vec<Segment>);

impl Path {
    /// Reads what the kernel writes into a device's `path` file: `\_SB_.PC40`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let segments = text.trim().strip_prefix('\\')?.split('.');
        let segments = segments.map(|part| part.as_bytes().try_into().ok());
        segments.collect::<Option<Vec<Segment>>>().map(Self)
    }

    /// The object above it.
    pub(super) fn parent(&self) -> Option<Self> {
        let (_, above) = self.0.split_last()?;
        Some(Self(above.to_vec()))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\\")?;
        for (index, segment) in self.0.iter().enumerate() {
            let separator = if index > 0 { "." } else { "" };
            write!(f, "{separator}{}", String::from_utf8_lossy(segment))?;
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Number {
    /// It stands in the table.
    Constant(u64),
    /// It is the result of a method.
    Computed,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AmlObject {
    /// Whether its `_HID` or `_CID` names a PCI host bridge.
    is_host_bridge: bool,
    /// `_SEG`: PCI domain.
    pub(super) segment: Option<Number>,
    /// `_BBN`: first bus.
    pub(super) bus: Option<Number>,
    /// `_PXM`: proximity domain, and the number of the table that says so.
    pub(super) proximity: Option<(Number, usize)>,
}

#[derive(Debug, Default)]
pub(super) struct Namespace {
    objects: HashMap<Path, AmlObject>,
}

struct Block {
    end: usize,
    path: Path,
}

impl Namespace {
    /// Adds the content of a DSDT or SSDT (without its header). `table` is the number it is remembered by.
    pub(super) fn add(&mut self, code: &[u8], table: usize) {
        let mut open = vec![Block {
            end: code.len(),
            path: Path::default(),
        }];
        let mut at = 0;
        while let Some(block) = open.last() {
            if at >= block.end {
                open.pop();
                continue;
            }
            let step = self.step(code, at, block, table);
            at = step.next;
            if let Some(inner) = step.opened
                && open.len() < DEEPEST
            {
                open.push(inner);
            }
        }
    }

    pub(super) fn get(&self, path: &Path) -> Option<&AmlObject> {
        self.objects.get(path)
    }

    /// All host bridges, by path.
    pub(super) fn host_bridges(&self) -> Vec<(&Path, &AmlObject)> {
        let bridges = self.objects.iter();
        let bridges = bridges.filter(|(_, object)| object.is_host_bridge);
        let mut found: Vec<_> = bridges.collect();
        found.sort_unstable_by_key(|&(path, _)| path);
        found
    }

    fn step(&mut self, code: &[u8], at: usize, block: &Block, table: usize) -> Step {
        let here = &code[..block.end];
        let stepped = match here[at..] {
            [0x10, ..] => open_block(here, at + 1, 0, block),
            [0x5b, 0x82 | 0x85, ..] => open_block(here, at + 2, 0, block),
            [0x5b, 0x83, ..] => open_block(here, at + 2, 6, block),
            [0x5b, 0x84, ..] => open_block(here, at + 2, 3, block),
            // Fields hold nothing of interest.
            [0x5b, 0x81 | 0x86 | 0x87, ..] => {
                package_end(here, at + 2).map(|(_, end)| Step::to(end))
            }
            [0x08, ..] => self.named(here, at + 1, block, table),
            [0x14, ..] => self.method(here, at + 1, block, table),
            // If, Else, While: what they contain is taken as declared, whatever the condition.
            [0xa0..=0xa2, ..] => package_end(here, at + 1).map(|(inside, end)| Step {
                next: inside,
                opened: Some(Block {
                    end,
                    path: block.path.clone(),
                }),
            }),
            [0x15, ..] => name(here, at + 1).map(|(next, _)| Step::to((next + 2).min(block.end))),
            _ => None,
        };
        stepped.unwrap_or(Step::to(at + 1))
    }

    /// `Name(_PXM, 2)`.
    fn named(&mut self, code: &[u8], at: usize, block: &Block, table: usize) -> Option<Step> {
        let (behind_name, name) = name(code, at)?;
        let (next, value) = value(code, behind_name)?;
        let (owner, property) = resolve(&name, &block.path)?;
        self.declare(owner, property, &value, table);
        Some(Step::to(next))
    }

    /// `Method(_PXM) { Return (2) }`. Other methods are passed over.
    fn method(&mut self, code: &[u8], at: usize, block: &Block, table: usize) -> Option<Step> {
        let (inside, end) = package_end(code, at)?;
        let (flags, name) = name(&code[..end], inside)?;
        let (owner, property) = resolve(&name, &block.path)?;
        let body = code[..end].get(flags + 1..).unwrap_or_default();
        let value = method_constant(body).map_or(Value::Computed, Value::Number);
        self.declare(owner, property, &value, table);
        Some(Step::to(end))
    }

    fn declare(&mut self, owner: Path, property: Segment, value: &Value, table: usize) {
        if !matches!(&property, b"_HID" | b"_CID" | b"_SEG" | b"_BBN" | b"_PXM") {
            return;
        }
        if self.objects.len() >= MOST_OBJECTS && !self.objects.contains_key(&owner) {
            return;
        }
        let object = self.objects.entry(owner).or_default();
        let number = match *value {
            Value::Number(number) => Number::Constant(number),
            _ => Number::Computed,
        };
        match &property {
            b"_HID" | b"_CID" => object.is_host_bridge |= names_host_bridge(value),
            b"_SEG" => object.segment = Some(number),
            b"_BBN" => object.bus = Some(number),
            _ => object.proximity = Some((number, table)),
        }
    }
}

/// Where the walk goes on, and the declaration it went into.
struct Step {
    next: usize,
    opened: Option<Block>,
}

impl Step {
    fn to(next: usize) -> Self {
        Self { next, opened: None }
    }
}

/// Enters a declaration: length, name, some fixed bytes, then what it contains.
fn open_block(code: &[u8], at: usize, fixed: usize, block: &Block) -> Option<Step> {
    let (inside, end) = package_end(code, at)?;
    let (behind_name, name) = name(&code[..end], inside)?;
    let path = absolute(&name, &block.path)?;
    Some(Step {
        next: (behind_name + fixed).min(end),
        opened: Some(Block { end, path }),
    })
}

/// The absolute path of a name that is declared within `current`. (A `Scope` may also name something further up by its
/// last part alone; compilers write such names out.)
fn absolute(name: &Name, current: &Path) -> Option<Path> {
    let kept = match name.from_root {
        true => 0,
        false => current.0.len().checked_sub(name.up)?,
    };
    if kept + name.segments.len() > DEEPEST {
        return None;
    }
    let segments = [&current.0[..kept], &name.segments].concat();
    Some(Path(segments))
}

/// The object a declaration belongs to, and the last part of its name.
fn resolve(name: &Name, current: &Path) -> Option<(Path, Segment)> {
    let mut path = absolute(name, current)?;
    let property = path.0.pop()?;
    Some((path, property))
}

fn names_host_bridge(value: &Value) -> bool {
    match value {
        Value::Number(number) => HOST_BRIDGES.contains(number),
        Value::Text(text) => matches!(text.as_slice(), b"PNP0A08" | b"PNP0A03"),
        Value::List(values) => values.iter().any(names_host_bridge),
        Value::Computed => false,
    }
}

/// Longest path in one name; the encoding allows 255.
const MOST_SEGMENTS: usize = 32;
/// How many members of a package are looked at: `_CID` lists have two or three.
const MOST_MEMBERS: usize = 16;

/// A name as it is written: `\_SB_.PC40`, `^PC40`, `_PXM`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Name {
    /// Whether it starts at the root.
    from_root: bool,
    /// How many levels it goes up before.
    pub(super) up: usize,
    /// Its parts, at least one.
    segments: Vec<Segment>,
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
fn package_end(code: &[u8], at: usize) -> Option<(usize, usize)> {
    let lead = *code.get(at)?;
    let more = usize::from(lead >> 6);
    let length = if more == 0 {
        usize::from(lead & 0x3f)
    } else {
        let rest = code.get(at + 1..at + 1 + more)?;
        (little_endian(rest) << 4) as usize | usize::from(lead & 0x0f)
    };
    let (inside, end) = (at + 1 + more, at + length);
    (inside <= end && end <= code.len()).then_some((inside, end))
}

/// The number that these bytes are, the lowest first.
fn little_endian(bytes: &[u8]) -> u64 {
    let bytes = bytes.iter().rev();
    bytes.fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Reads a name (20.2.2) that is not empty.
pub(super) fn name(code: &[u8], at: usize) -> Option<(usize, Name)> {
    let mut at = at;
    let from_root = *code.get(at)? == b'\\';
    at += usize::from(from_root);
    let marks = code.get(at..)?.iter();
    let up = marks.take_while(|&&byte| byte == b'^').count();
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
    let segments = parts.map(|part| part.try_into().ok().filter(is_segment));
    let name = Name {
        from_root,
        up,
        segments: segments.collect::<Option<_>>()?,
    };
    Some((end, name))
}

fn is_segment(segment: &Segment) -> bool {
    let is_lead = |byte: &u8| byte.is_ascii_uppercase() || *byte == b'_';
    let [lead, rest @ ..] = segment;
    is_lead(lead)
        && rest
            .iter()
            .all(|byte| is_lead(byte) || byte.is_ascii_digit())
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
        Some((at + 1 + width, Value::Number(little_endian(bytes))))
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
            let text = code[at + 1..].iter().copied();
            let text: Vec<u8> = text.take_while(|&byte| byte != 0).collect();
            let end = at + 1 + text.len() + 1;
            (end <= code.len()).then_some((end, Value::Text(text)))
        }
        0x11 | 0x13 => package_end(code, at + 1).map(|(_, end)| (end, Value::Computed)),
        _ => None,
    }
}

/// The constant that a method returns, where returning it is all it does.
fn method_constant(body: &[u8]) -> Option<u64> {
    const RETURN: u8 = 0xa4;
    if body.first() != Some(&RETURN) {
        return None;
    }
    match scalar(body, 1)? {
        (end, Value::Number(number)) if end == body.len() => Some(number),
        _ => None,
    }
}

#[cfg(test)]
mod tests;

//! The words of a synthetic string.

use nearfar_machine::{CacheKind, Distance};

use crate::error::TextError;
use crate::value::ValueError;
use crate::warnings::excerpt;
use nearfar_machine::size;

/// What a synthetic string says.
#[derive(Default)]
pub(super) struct Spec {
    /// From the outside in; the last one is the CPUs.
    pub levels: Vec<Level>,
    pub memory: Option<u64>,
    pub distances: Option<Distant>,
}

/// One level: how many objects of a kind each object of the level before holds.
pub(super) struct Level {
    pub kind: Kind,
    pub count: u32,
    pub bytes: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Package,
    Die,
    Cluster,
    Group,
    Node,
    Cache(u32, CacheKind),
    Core,
    Pu,
}

pub(super) enum Distant {
    Others(Distance),
    Row(Vec<Option<Distance>>),
    Rows(Vec<Vec<Option<Distance>>>),
}

const EXAMPLE: &str =
    "write it like \"package:2 node:2 l3:1(size=32M) core:4 pu:2 memory:16G distance:10,12,20,22\"";

/// What a message calls the string.
pub(super) fn place(text: &str) -> String {
    format!("synthetic string {:?}", excerpt(text))
}

/// Whether a text looks like a synthetic string: every word has a colon, and the first one names a level.
pub(crate) fn resembles(text: &str) -> bool {
    let mut words = text.split_whitespace().peekable();
    let known = |word: &&str| {
        word.split_once(':')
            .is_some_and(|(name, _)| kind(&name.to_ascii_lowercase()).is_some())
    };
    words.peek().is_some() && words.any(|word| known(&word))
}

/// Reads a synthetic string.
pub(super) fn parse(text: &str) -> Result<Spec, TextError> {
    let fail = |error: ValueError| TextError::new(&place(text), None, error.to_string(), EXAMPLE);
    let mut spec = Spec::default();
    for word in split(text) {
        let (name, value) = word
            .split_once(':')
            .ok_or_else(|| fail(ValueError::malformed(&word, "a word with a colon")))?;
        let name = name.to_ascii_lowercase();
        match name.as_str() {
            "memory" | "mem" => spec.memory = Some(memory(value).map_err(fail)?),
            "distance" | "distances" => spec.distances = Some(distances(value).map_err(fail)?),
            _ => {
                let kind =
                    kind(&name).ok_or_else(|| fail(ValueError::malformed(&name, "a level")))?;
                let (level, memory) = level(kind, value).map_err(fail)?;
                spec.memory = spec.memory.or(memory);
                spec.levels.push(level);
            }
        }
    }
    order(&mut spec.levels).map_err(fail)?;
    Ok(spec)
}

/// Words, with what stands in parentheses kept together.
fn split(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut depth = 0usize;
    for c in text.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        match words.last_mut() {
            Some(word) if depth > 0 || !c.is_whitespace() => word.push(c),
            _ => words.push(String::new()),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

fn kind(name: &str) -> Option<Kind> {
    Some(match name {
        "package" | "pack" | "socket" => Kind::Package,
        "die" => Kind::Die,
        "cluster" => Kind::Cluster,
        "group" => Kind::Group,
        "node" | "numa" | "numanode" => Kind::Node,
        "core" => Kind::Core,
        "pu" | "thread" => Kind::Pu,
        _ => return cache(name),
    })
}

/// `l3`, `l1d`, `l1i`, `l2cache`.
fn cache(name: &str) -> Option<Kind> {
    let name = name.strip_suffix("cache").unwrap_or(name);
    let (level, letter) = name.strip_prefix('l')?.split_at_checked(1)?;
    let level = level.parse().ok().filter(|level| (1..=5).contains(level))?;
    let kind = match letter {
        "" if level == 1 => CacheKind::Data,
        "" | "u" => CacheKind::Unified,
        "d" => CacheKind::Data,
        "i" => CacheKind::Instruction,
        _ => return None,
    };
    Some(Kind::Cache(level, kind))
}

/// `4`, `1(size=32M)`, `2(memory=16G)`.
fn level(kind: Kind, value: &str) -> Result<(Level, Option<u64>), ValueError> {
    let (count, attributes) = match value.split_once('(') {
        Some((count, rest)) => (
            count,
            rest.strip_suffix(')')
                .ok_or_else(|| ValueError::Truncated("a parenthesis is not closed".to_owned()))?,
        ),
        None => (value, ""),
    };
    let not_a_count = || ValueError::malformed(count, "a count of at least 1");
    let count: u32 = count
        .parse()
        .ok()
        .filter(|&count| count > 0)
        .ok_or_else(not_a_count)?;
    let (mut bytes, mut held) = (None, None);
    for attribute in attributes.split_whitespace() {
        match (attribute.split_once('='), kind) {
            (Some(("size", size)), Kind::Cache(..)) => bytes = Some(memory(size)?),
            (Some(("memory", size)), Kind::Node) => held = Some(memory(size)?),
            _ => {
                return Err(ValueError::malformed(
                    attribute,
                    "an attribute of this level",
                ));
            }
        }
    }
    Ok((Level { kind, count, bytes }, held))
}

fn memory(value: &str) -> Result<u64, ValueError> {
    size::parse(value, 1).ok_or_else(|| ValueError::malformed(value, "a size such as 512M or 16G"))
}

fn distances(value: &str) -> Result<Distant, ValueError> {
    let rows: Vec<_> = value.split(';').map(row).collect::<Result<_, _>>()?;
    Ok(match &rows[..] {
        [row] => match row[..] {
            [Some(distance)] => Distant::Others(distance),
            _ => Distant::Row(row.clone()),
        },
        _ => Distant::Rows(rows),
    })
}

fn row(text: &str) -> Result<Vec<Option<Distance>>, ValueError> {
    text.split(',')
        .map(|entry| entry.trim())
        .map(entry)
        .collect()
}

fn entry(text: &str) -> Result<Option<Distance>, ValueError> {
    if text == "-" {
        return Ok(None);
    }
    let distance = text.parse().ok().filter(|&distance| distance > 0);
    distance
        .map(|distance| Some(Distance(distance)))
        .ok_or_else(|| ValueError::malformed(text, "a distance"))
}

fn contradiction(problem: impl Into<String>) -> Result<(), ValueError> {
    Err(ValueError::Contradiction(problem.into()))
}

/// Levels stand each once; cores hold CPUs, and nodes hold cores. Without CPUs a core has one.
fn order(levels: &mut Vec<Level>) -> Result<(), ValueError> {
    for (at, level) in levels.iter().enumerate() {
        if levels[..at]
            .iter()
            .any(|before| before.kind == level.kind && level.kind != Kind::Group)
        {
            return contradiction(format!("{:?} is given twice", level.kind));
        }
        let inner = &levels[at + 1..];
        if level.kind == Kind::Pu && !inner.is_empty() {
            return contradiction("pu must be the last level");
        }
        if level.kind == Kind::Core
            && inner
                .iter()
                .any(|inner| !matches!(inner.kind, Kind::Pu | Kind::Cache(..)))
        {
            return contradiction("a core can only hold caches and pu");
        }
    }
    if levels.is_empty() {
        return contradiction("it has no levels");
    }
    if levels.last().is_none_or(|last| last.kind != Kind::Pu) {
        levels.push(Level {
            kind: Kind::Pu,
            count: 1,
            bytes: None,
        });
    }
    Ok(())
}

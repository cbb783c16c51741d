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
    /// The kernel's numbers of nodes and of CPUs in the order of the string, where it gives them.
    pub node_indexes: Option<Indexes>,
    pub cpu_indexes: Option<Indexes>,
}

/// `indexes=` of hwloc.
pub(super) enum Indexes {
    /// `0,2,1,3`
    List(Vec<u32>),
    /// `2*16:1*2`: loops as steps and counts, the first one counting by one.
    Loops(Vec<(u32, u32)>),
}

impl Indexes {
    /// The numbers of so many objects: each once, and below `most`.
    pub(super) fn numbers(&self, count: u32, most: u32) -> Result<Vec<u32>, ValueError> {
        let numbers: Vec<u32> = match self {
            Self::List(list) => list.clone(),
            // hwloc_synthetic_process_indexes() in hwloc/topology-synthetic.c.
            Self::Loops(loops) => {
                let product = loops.iter().fold(1u64, |product, (_, count)| {
                    product.saturating_mul((*count).into())
                });
                let rest = u32::try_from(u64::from(count) / product).unwrap_or(0);
                let is_missing = u64::from(rest) * product == u64::from(count) && rest > 1;
                let last = is_missing.then_some((1, rest));
                let of = |at: u32| {
                    let mut weight = 1u64;
                    let mut number = 0u64;
                    for &(step, count) in loops.iter().chain(&last) {
                        let digit = u64::from(at / step % count);
                        number = number.saturating_add(digit.saturating_mul(weight));
                        weight = weight.saturating_mul(count.into());
                    }
                    u32::try_from(number).unwrap_or(u32::MAX)
                };
                (0..count).map(of).collect()
            }
        };
        let mut each = numbers.clone();
        each.sort_unstable();
        each.dedup();
        match each.len() == count as usize
            && numbers.len() == each.len()
            && each.last() < Some(&most)
        {
            true => Ok(numbers),
            false => Err(ValueError::Contradiction(format!(
                "its indexes are not {count} different numbers below {most}"
            ))),
        }
    }
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
        let name = word.split_once(':').map(|(name, _)| name);
        let attached = || word.strip_prefix('[')?.split(['(', ']']).next();
        name.or_else(attached)
            .is_some_and(|name| kind(&name.to_ascii_lowercase()).is_some())
    };
    words.peek().is_some() && words.any(|word| known(&word))
}

/// Reads a synthetic string.
pub(super) fn parse(text: &str) -> Result<Spec, TextError> {
    let fail = |error: ValueError| TextError::new(&place(text), None, error.to_string(), EXAMPLE);
    let mut spec = Spec::default();
    for word in split(text) {
        // hwloc attaches the node of each object of the level before in brackets.
        let attached = word
            .strip_prefix('[')
            .and_then(|word| word.strip_suffix(']'));
        let attached = attached.map(|word| {
            let end = word.find('(').unwrap_or(word.len());
            (&word[..end], format!("1{}", &word[end..]))
        });
        let (name, value) = match &attached {
            Some((name, value)) => (*name, value.as_str()),
            None => word
                .split_once(':')
                .ok_or_else(|| fail(ValueError::malformed(&word, "a word with a colon")))?,
        };
        let name = name.to_ascii_lowercase();
        match name.as_str() {
            "memory" | "mem" => spec.memory = Some(memory(value).map_err(fail)?),
            "distance" | "distances" => spec.distances = Some(distances(value).map_err(fail)?),
            _ => {
                let kind =
                    kind(&name).ok_or_else(|| fail(ValueError::malformed(&name, "a level")))?;
                let level = level(kind, value, &mut spec).map_err(fail)?;
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
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
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

/// `4`, `1(size=32M)`, `2(memory=16G)`, `2(indexes=2*16:1*2)`.
fn level(kind: Kind, value: &str, spec: &mut Spec) -> Result<Level, ValueError> {
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
    let mut bytes = None;
    for attribute in attributes.split_whitespace() {
        match (attribute.split_once('='), kind) {
            (Some(("size", size)), Kind::Cache(..)) => bytes = Some(memory(size)?),
            (Some(("memory", size)), Kind::Node) => {
                spec.memory = spec.memory.or(Some(memory(size)?))
            }
            (Some(("indexes", list)), Kind::Node) => spec.node_indexes = Some(indexes(list)?),
            (Some(("indexes", list)), Kind::Pu) => spec.cpu_indexes = Some(indexes(list)?),
            // The numbers of cores and packages, which decide nothing.
            (Some(("indexes", _)), _) => {}
            _ => {
                return Err(ValueError::malformed(
                    attribute,
                    "an attribute of this level",
                ));
            }
        }
    }
    Ok(Level { kind, count, bytes })
}

/// `0,2,1,3` or `2*16:1*2`.
fn indexes(text: &str) -> Result<Indexes, ValueError> {
    let malformed = || ValueError::malformed(text, "indexes such as 0,2,1,3 or 2*16:1*2");
    if text.contains('*') {
        let one = |part: &str| {
            let (step, count) = part.split_once('*')?;
            let numbers = (step.parse().ok()?, count.parse().ok()?);
            (numbers.0 > 0 && numbers.1 > 0).then_some(numbers)
        };
        let loops = text.split(':').map(one).collect::<Option<Vec<_>>>();
        return loops.map(Indexes::Loops).ok_or_else(malformed);
    }
    let list = text
        .split(',')
        .map(|number| number.parse().ok())
        .collect::<Option<Vec<_>>>();
    list.map(Indexes::List).ok_or_else(malformed)
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

//! Sets of CPUs and nodes, and the two formats in which the kernel writes them.
//!
//! ```text
//! list   0-3,8         what cpulist, smp_affinity_list and isolated hold
//! mask   00000000,0000010f   what cpumap, smp_affinity and xps_cpus hold
//! ```
//!
//! A set is a bitmap that leaves out the empty words at its start, so the affinity of one interrupt costs one
//! word however high its CPU's number is: a machine with 8192 CPUs and as many interrupts stays small.

mod list;
mod mask;

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::id::{CpuId, Id, NodeId};

pub type CpuSet = IdSet<CpuId>;
pub type NodeSet = IdSet<NodeId>;

/// The highest number a set takes. The largest kernels have 8192 CPUs and 1024 nodes; the bound keeps a hostile
/// "0-4294967295" from taking half a gigabyte.
pub const MAX_NUMBER: u32 = 65_535;

/// The most nodes a kernel can have: `CONFIG_NODES_SHIFT` is at most 10.
pub const MOST_NODES: u32 = 1024;

const BITS: u32 = u64::BITS;

/// A set of numbers of one kind, in ascending order.
///
/// Equality is by members: no two representations of one set differ.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct IdSet<T> {
    /// How many empty words stand before `words`; 0 for the empty set.
    skipped: u32,
    /// Neither the first nor the last word is zero.
    words: Vec<u64>,
    kind: PhantomData<T>,
}

/// Text that is not a set, with the position of the error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    #[error(
        "{noun} list {text:?}: {item:?} at character {at} is not a number or a range such as 0-3"
    )]
    NotARange {
        /// "CPU" or "node".
        noun: &'static str,
        /// The text, cut to a readable length.
        text: String,
        /// The part that was not understood.
        item: String,
        /// Where that part starts, from 0.
        at: usize,
    },
    #[error("{noun} list {text:?}: range {item:?} at character {at} ends before it starts")]
    Backwards {
        /// "CPU" or "node".
        noun: &'static str,
        /// The text, cut to a readable length.
        text: String,
        item: String,
        /// Where it starts, from 0.
        at: usize,
    },
    #[error("{noun} {number} is above {MAX_NUMBER}, the highest number supported")]
    TooHigh {
        /// "CPU" or "node".
        noun: &'static str,
        /// The number, as far as it could be read.
        number: u64,
    },
    #[error("{noun} mask {text:?}: word {item:?} is not 1 to 8 hex digits")]
    NotAMask {
        /// "CPU" or "node".
        noun: &'static str,
        /// The text, cut to a readable length.
        text: String,
        item: String,
    },
}

impl<T: Id> Default for IdSet<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Id> IdSet<T> {
    pub const fn new() -> Self {
        Self {
            skipped: 0,
            words: Vec::new(),
            kind: PhantomData,
        }
    }

    /// The set of one number.
    ///
    /// # Panics
    /// When the number is above [`MAX_NUMBER`]; readers of foreign text check before.
    pub fn single(id: T) -> Self {
        let mut set = Self::new();
        set.insert(id);
        set
    }

    /// All numbers from `first` to `last`, both included; empty when `last` is before `first`.
    ///
    /// # Panics
    /// When `last` is above [`MAX_NUMBER`].
    pub fn range(first: T, last: T) -> Self {
        let (first, last) = (first.number(), last.number());
        assert!(
            last <= MAX_NUMBER,
            "{} {last} is above {MAX_NUMBER}",
            T::NOUN
        );
        if last < first {
            return Self::new();
        }
        let skipped = first / BITS;
        let mut words = vec![u64::MAX; (last / BITS - skipped + 1) as usize];
        words[0] &= u64::MAX << (first % BITS);
        if let Some(word) = words.last_mut() {
            *word &= u64::MAX >> (BITS - 1 - last % BITS);
        }
        Self {
            skipped,
            words,
            kind: PhantomData,
        }
    }

    /// Adds a number; true when it was not there.
    ///
    /// # Panics
    /// When the number is above [`MAX_NUMBER`]; readers of foreign text check before.
    pub fn insert(&mut self, id: T) -> bool {
        let number = id.number();
        assert!(
            number <= MAX_NUMBER,
            "{} {number} is above {MAX_NUMBER}",
            T::NOUN
        );
        let (word, bit) = (number / BITS, 1u64 << (number % BITS));
        if self.words.is_empty() {
            self.skipped = word;
        }
        if word < self.skipped {
            let missing = (self.skipped - word) as usize;
            self.words.splice(0..0, std::iter::repeat_n(0, missing));
            self.skipped = word;
        }
        let index = (word - self.skipped) as usize;
        if index >= self.words.len() {
            self.words.resize(index + 1, 0);
        }
        let new = self.words[index] & bit == 0;
        self.words[index] |= bit;
        new
    }

    /// Takes a number out; true when it was there.
    pub fn remove(&mut self, id: T) -> bool {
        if !self.contains(id) {
            return false;
        }
        let number = id.number();
        self.words[(number / BITS - self.skipped) as usize] &= !(1u64 << (number % BITS));
        self.trim();
        true
    }

    pub fn contains(&self, id: T) -> bool {
        self.word(id.number() / BITS) >> (id.number() % BITS) & 1 == 1
    }

    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// How many members there are.
    pub fn len(&self) -> usize {
        self.words
            .iter()
            .map(|word| word.count_ones() as usize)
            .sum()
    }

    /// The lowest member.
    pub fn first(&self) -> Option<T> {
        let word = self.words.first()?;
        Some(T::from_number(self.skipped * BITS + word.trailing_zeros()))
    }

    /// The highest member.
    pub fn last(&self) -> Option<T> {
        let word = self.words.last()?;
        let index = self.skipped + self.words.len() as u32 - 1;
        Some(T::from_number(
            index * BITS + BITS - 1 - word.leading_zeros(),
        ))
    }

    /// The members in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        (self.skipped..)
            .zip(&self.words)
            .flat_map(|(index, &word)| {
                let mut rest = word;
                std::iter::from_fn(move || {
                    let bit = (rest != 0).then(|| rest.trailing_zeros())?;
                    rest &= rest - 1;
                    Some(T::from_number(index * BITS + bit))
                })
            })
    }

    /// Members of both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        self.combine(
            other,
            self.skipped.max(other.skipped)..self.end().min(other.end()),
            |a, b| a & b,
        )
    }

    /// Members of either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        match (self.is_empty(), other.is_empty()) {
            (true, _) => other.clone(),
            (_, true) => self.clone(),
            _ => self.combine(
                other,
                self.skipped.min(other.skipped)..self.end().max(other.end()),
                |a, b| a | b,
            ),
        }
    }

    /// Members of this set that are not in the other.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        self.combine(other, self.skipped..self.end(), |a, b| a & !b)
    }

    /// Whether every member is also in the other; true for the empty set.
    pub fn is_subset(&self, other: &Self) -> bool {
        (self.skipped..)
            .zip(&self.words)
            .all(|(index, word)| word & !other.word(index) == 0)
    }

    /// Whether there is a member of both.
    pub fn intersects(&self, other: &Self) -> bool {
        (self.skipped..)
            .zip(&self.words)
            .any(|(index, word)| word & other.word(index) != 0)
    }

    /// The set with only its `count` lowest members.
    #[must_use]
    pub fn lowest(&self, count: usize) -> Self {
        self.iter().take(count).collect()
    }

    fn word(&self, index: u32) -> u64 {
        let index = index.checked_sub(self.skipped);
        index
            .and_then(|index| self.words.get(index as usize))
            .copied()
            .unwrap_or(0)
    }

    fn end(&self) -> u32 {
        self.skipped + self.words.len() as u32
    }

    /// Combines the words in a range outside of which the result is empty.
    fn combine(&self, other: &Self, range: Range<u32>, f: impl Fn(u64, u64) -> u64) -> Self {
        let words = |index| f(self.word(index), other.word(index));
        let start = range
            .clone()
            .find(|&index| words(index) != 0)
            .unwrap_or(range.end);
        // Empty words at either end are not even stored for a moment: sets are kept by the thousand.
        let end = (start..range.end)
            .rev()
            .find(|&index| words(index) != 0)
            .map_or(start, |last| last + 1);
        let words: Vec<u64> = (start..end).map(words).collect();
        Self {
            skipped: if words.is_empty() { 0 } else { start },
            words,
            kind: PhantomData,
        }
    }

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
        let leading = self.words.iter().take_while(|&&word| word == 0).count();
        self.words.drain(..leading);
        self.skipped = if self.words.is_empty() {
            0
        } else {
            self.skipped + leading as u32
        };
    }
}

impl<T: Id> FromIterator<T> for IdSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(ids: I) -> Self {
        let mut set = Self::new();
        set.extend(ids);
        set
    }
}

impl<T: Id> Extend<T> for IdSet<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, ids: I) {
        for id in ids {
            self.insert(id);
        }
    }
}

impl<T: Id> fmt::Debug for IdSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}s {{{self}}}", T::NOUN)
    }
}

impl<T: Id> Serialize for IdSet<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de, T: Id> Deserialize<'de> for IdSet<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        Self::parse_list(&text).map_err(serde::de::Error::custom)
    }
}

/// Text cut to what fits into a message.
fn excerpt(text: &str) -> String {
    const LONGEST: usize = 80;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

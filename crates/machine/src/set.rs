//! Sets of CPUs and nodes, and the two formats in which the kernel writes them.
//!
//! ```text
//! list   0-3,8         what cpulist, smp_affinity_list and isolated hold
//! mask   00000000,0000010f   what cpumap, smp_affinity and xps_cpus hold
//! ```
//!
//! A set is a bitmap that leaves out the empty words at its start, so the affinity of one interrupt costs one
//! word however high its CPU's number is: a machine with 8192 CPUs and as many interrupts stays small.
//!
//! The list format, `0-3,8`, as `bitmap_parselist` in the kernel's lib/bitmap-str.c reads it.
//!
//! The mask format, `00000100,00000000`: 32-bit hex words, most significant first, as `%*pb` in the kernel's
//! lib/vsprintf.c writes it and `bitmap_parse` in lib/bitmap-str.c reads it.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::str::FromStr;

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

/// The members of any of these sets.
impl<'a, T: Id + 'a> FromIterator<&'a Self> for IdSet<T> {
    fn from_iter<I: IntoIterator<Item = &'a Self>>(sets: I) -> Self {
        let sets = sets.into_iter();
        sets.fold(Self::new(), |all, set| all.union(set))
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
        let text = Cow::<str>::deserialize(deserializer)?;
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

impl<T: Id> IdSet<T> {
    /// Reads a list: numbers and ranges, comma separated, white space around them ignored, and ranges of groups
    /// (`0-31:2/8`: of each 8 the first 2). Nothing at all is the empty set, as in the kernel's files.
    ///
    /// # Errors
    /// Names the part that was not understood and where it stands.
    pub fn parse_list(text: &str) -> Result<Self, SetError> {
        let mut set = Self::new();
        let mut at = 0;
        for item in text.split(',') {
            let trimmed = item.trim_matches(|c: char| c.is_whitespace() || c == '\0');
            if !trimmed.is_empty() {
                Item {
                    noun: T::NOUN,
                    text,
                    item: trimmed,
                    at,
                }
                .add_to(&mut set)?;
            }
            at += item.len() + 1;
        }
        Ok(set)
    }
}

/// One part of a list between two commas, with what a message about it needs.
struct Item<'a> {
    noun: &'static str,
    text: &'a str,
    item: &'a str,
    at: usize,
}

impl Item<'_> {
    fn add_to<T: Id>(&self, set: &mut IdSet<T>) -> Result<(), SetError> {
        let (range, group) = self.item.split_once(':').unzip();
        let range = range.unwrap_or(self.item);
        let (first, last) = match range.split_once('-') {
            Some((first, last)) => (self.number(first)?, self.number(last)?),
            None => (self.number(range)?, self.number(range)?),
        };
        if last < first {
            return Err(SetError::Backwards {
                noun: self.noun,
                text: excerpt(self.text),
                item: excerpt(self.item),
                at: self.at,
            });
        }
        let Some(group) = group else {
            *set = set.union(&IdSet::range(T::from_number(first), T::from_number(last)));
            return Ok(());
        };
        let (used, size) = group.split_once('/').ok_or_else(|| self.not_a_range())?;
        let (used, size) = (self.number(used)?, self.number(size)?);
        if size == 0 || used == 0 || used > size {
            return Err(self.not_a_range());
        }
        set.extend(
            (first..=last)
                .filter(|number| (number - first) % size < used)
                .map(T::from_number),
        );
        Ok(())
    }

    fn number(&self, digits: &str) -> Result<u32, SetError> {
        let digits = digits.trim();
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(self.not_a_range());
        }
        let number = digits.parse::<u64>().unwrap_or(u64::MAX);
        if number > MAX_NUMBER.into() {
            return Err(SetError::TooHigh {
                noun: self.noun,
                number,
            });
        }
        Ok(number as u32)
    }

    fn not_a_range(&self) -> SetError {
        SetError::NotARange {
            noun: self.noun,
            text: excerpt(self.text),
            item: excerpt(self.item),
            at: self.at,
        }
    }
}

impl<T: Id> FromStr for IdSet<T> {
    type Err = SetError;

    fn from_str(text: &str) -> Result<Self, SetError> {
        Self::parse_list(text)
    }
}

impl<T: Id> fmt::Display for IdSet<T> {
    /// Writes the list as the kernel does: ascending, runs of two or more as ranges.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ids = self.iter().map(Id::number).peekable();
        let mut comma = "";
        while let Some(first) = ids.next() {
            let mut last = first;
            while let Some(next) = ids.next_if_eq(&(last + 1)) {
                last = next;
            }
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
            comma = ",";
        }
        Ok(())
    }
}

const WORD: u32 = 32;
const HEX: [char; 16] = [
    '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f',
];

impl<T: Id> IdSet<T> {
    /// Reads a mask: comma-separated words of at most 8 hex digits, or one run of hex digits of any length as
    /// scripts write it, with or without `0x`. Nothing at all is the empty set.
    ///
    /// # Errors
    /// Names the word that was not understood, or the number that is too high.
    pub fn parse_mask(text: &str) -> Result<Self, SetError> {
        let digits = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
        let digits = digits.strip_prefix("0x").unwrap_or(digits);
        let mut set = Self::new();
        if digits.is_empty() {
            return Ok(set);
        }
        let mut base = 0u64;
        for word in words_from_the_right(digits) {
            // Most words of a long mask.
            if word == "00000000" {
                base += u64::from(WORD);
                continue;
            }
            let fits = (1..=8).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_hexdigit());
            let value = u32::from_str_radix(word, 16).ok().filter(|_| fits);
            let value = value.ok_or_else(|| SetError::NotAMask {
                noun: T::NOUN,
                text: excerpt(text),
                item: excerpt(word),
            })?;
            for bit in (0..WORD).filter(|bit| value >> bit & 1 == 1) {
                let number = base + u64::from(bit);
                if number > MAX_NUMBER.into() {
                    return Err(SetError::TooHigh {
                        noun: T::NOUN,
                        number,
                    });
                }
                set.insert(T::from_number(number as u32));
            }
            base += u64::from(WORD);
        }
        Ok(set)
    }

    /// Writes the mask as a kernel with `width` possible CPUs (or nodes) does: the first word is only as wide as
    /// it has to be. A set with members beyond `width` widens it.
    pub fn to_mask(&self, width: u32) -> String {
        let width = width
            .max(self.last().map_or(0, |last| last.number() + 1))
            .max(1);
        let mut mask = String::new();
        for word in (0..width.div_ceil(WORD)).rev() {
            let bits = (width - word * WORD).min(WORD);
            let digits = bits.div_ceil(4) as usize;
            let half = self.word(word / 2) >> (WORD * (word % 2)) & u64::from(u32::MAX);
            // By hand, for masks are long (2 KiB with 8192 CPUs) and many, and formatting is ten times slower.
            mask.extend(
                (0..digits)
                    .rev()
                    .map(|digit| HEX[(half >> (4 * digit) & 0xf) as usize]),
            );
            if word > 0 {
                mask.push(',');
            }
        }
        mask
    }
}

/// The words of a mask, least significant first. Without a comma the digits are cut in eights.
fn words_from_the_right(digits: &str) -> impl Iterator<Item = &str> {
    let in_words = digits.contains(',') || !digits.is_ascii();
    let mut rest = Some(digits);
    std::iter::from_fn(move || {
        let text = rest?;
        // A look at nine bytes finds the comma of a sound mask faster than a search built for long texts.
        let comma = text.bytes().rev().take(9).position(|byte| byte == b',');
        let (before, word) = match comma {
            _ if !in_words => text.split_at(text.len().saturating_sub(8)),
            Some(behind) => (
                &text[..text.len() - behind - 1],
                &text[text.len() - behind..],
            ),
            None => text.rsplit_once(',').unwrap_or(("", text)),
        };
        let more = if in_words {
            before.len() + word.len() < text.len()
        } else {
            !before.is_empty()
        };
        rest = more.then_some(before);
        Some(word)
    })
}

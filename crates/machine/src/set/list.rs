//! The list format, `0-3,8`, as `bitmap_parselist` in the kernel's lib/bitmap-str.c reads it.

use std::fmt;
use std::str::FromStr;

use super::{IdSet, MAX_NUMBER, SetError, excerpt};
use crate::id::Id;

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
        let (range, group) = match self.item.split_once(':') {
            Some((range, group)) => (range, Some(group)),
            None => (self.item, None),
        };
        let (first, last) = match range.split_once('-') {
            Some((first, last)) => (self.number(first)?, self.number(last)?),
            None => (self.number(range)?, self.number(range)?),
        };
        if last < first {
            let (text, item) = (excerpt(self.text), excerpt(self.item));
            return Err(SetError::Backwards {
                noun: self.noun,
                text,
                item,
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

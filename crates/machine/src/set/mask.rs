//! The mask format, `00000100,00000000`: 32-bit hex words, most significant first, as `%*pb` in the kernel's
//! lib/vsprintf.c writes it and `bitmap_parse` in lib/bitmap-str.c reads it.

use super::{IdSet, MAX_NUMBER, SetError, excerpt};
use crate::id::Id;

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
            let value = fits.then(|| u32::from_str_radix(word, 16).ok()).flatten();
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

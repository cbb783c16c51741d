//! Debian's package versions and their order (deb-version(7)).

use std::cmp::Ordering;

/// A version of a package, `[EPOCH:]UPSTREAM[-REVISION]`. Any text is one: what is malformed is compared all the same.
#[derive(Clone, Debug)]
pub struct Version {
    epoch: u64,
    upstream: String,
    revision: String,
}

impl Version {
    /// Takes a version apart.
    pub fn new(text: &str) -> Self {
        let (epoch, rest) = match text.split_once(':') {
            Some((epoch, rest)) => (epoch.parse().unwrap_or(0), rest),
            None => (0, text),
        };
        let (upstream, revision) = rest.rsplit_once('-').unwrap_or((rest, ""));
        Self {
            epoch,
            upstream: upstream.to_owned(),
            revision: revision.to_owned(),
        }
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        self.epoch
            .cmp(&other.epoch)
            .then_with(|| compare(self.upstream.as_bytes(), other.upstream.as_bytes()))
            .then_with(|| compare(self.revision.as_bytes(), other.revision.as_bytes()))
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Version {
    /// `1.0` and `1.00` are the same version.
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Version {}

/// Compares by turns what is no digits, by [`weight`], and what is digits, as numbers.
fn compare(mut left: &[u8], mut right: &[u8]) -> Ordering {
    while !left.is_empty() || !right.is_empty() {
        let words = (
            split(&mut left, |byte| !byte.is_ascii_digit()),
            split(&mut right, |byte| !byte.is_ascii_digit()),
        );
        let numbers = (
            split(&mut left, u8::is_ascii_digit),
            split(&mut right, u8::is_ascii_digit),
        );
        let order =
            compare_words(words.0, words.1).then_with(|| compare_numbers(numbers.0, numbers.1));
        if order.is_ne() {
            return order;
        }
    }
    Ordering::Equal
}

/// Cuts off what the rule holds for.
fn split<'a>(text: &mut &'a [u8], rule: impl Fn(&u8) -> bool) -> &'a [u8] {
    let length = text.iter().take_while(|byte| rule(byte)).count();
    let (head, rest) = text.split_at(length);
    *text = rest;
    head
}

fn compare_words(left: &[u8], right: &[u8]) -> Ordering {
    let at = |word: &[u8], index: usize| weight(word.get(index).copied());
    let longest = left.len().max(right.len());
    (0..longest)
        .map(|index| at(left, index).cmp(&at(right, index)))
        .find(|order| order.is_ne())
        .unwrap_or(Ordering::Equal)
}

/// A tilde comes before the end, the end before letters, letters before everything else.
fn weight(byte: Option<u8>) -> i32 {
    match byte {
        Some(b'~') => -1,
        None => 0,
        Some(letter) if letter.is_ascii_alphabetic() => i32::from(letter),
        Some(other) => i32::from(other) + 256,
    }
}

/// Without turning them into numbers: dates and hashes in versions are longer than any integer.
fn compare_numbers(left: &[u8], right: &[u8]) -> Ordering {
    let significant = |digits: &[u8]| {
        digits
            .iter()
            .position(|digit| *digit != b'0')
            .unwrap_or(digits.len())
    };
    let (left, right) = (&left[significant(left)..], &right[significant(right)..]);
    left.len().cmp(&right.len()).then_with(|| left.cmp(right))
}

//! Debian's control format (deb822(5)): paragraphs of fields, in package lists as in apt's `.sources` files; and the order of versions
//! in it (deb-version(7)).
//!
//! ```text
//! Package: busybox-static          a field
//! # a comment                      nothing
//! Signed-By:                       a field of several lines:
//!  -----BEGIN PGP ...              those that start with a blank
//!                                  an empty line ends the paragraph
//! ```

use std::cmp::Ordering;

/// A paragraph: its fields in their order.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Paragraph {
    fields: Vec<(String, String)>,
}

impl Paragraph {
    /// A field's value by name, which knows no case. Lines after the first keep the blank that they start with, so that
    /// the value can be written again as it is.
    pub fn get(&self, name: &str) -> Option<&str> {
        let mut fields = self.fields.iter();
        let (_, value) = fields.find(|(field, _)| field.eq_ignore_ascii_case(name))?;
        Some(value)
    }

    /// The words of a field.
    pub fn words(&self, name: &str) -> Vec<String> {
        let words = self.get(name).unwrap_or_default().split_whitespace();
        words.map(str::to_owned).collect()
    }
}

/// Reads paragraphs. Lines that are no field are passed over.
pub fn paragraphs(text: &str) -> Vec<Paragraph> {
    let mut all = Vec::new();
    let mut current = Paragraph::default();
    for line in text.lines() {
        if line.trim().is_empty() {
            all.push(std::mem::take(&mut current));
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = current.fields.last_mut() {
                value.push('\n');
                value.push_str(line.trim_end());
            }
        } else if line.starts_with('#') {
            continue;
        } else if let Some((name, value)) = line.split_once(':') {
            let field = (name.trim().to_owned(), value.trim().to_owned());
            current.fields.push(field);
        }
    }
    all.push(current);
    all.retain(|paragraph| !paragraph.fields.is_empty());
    all
}

/// A package in a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stanza {
    pub package: String,
    /// Its version.
    pub version: String,
    /// The size of the package's file in bytes.
    pub bytes: u64,
    /// The SHA-256 of the package's file, 64 hexadecimal digits in lower case.
    pub sha256: String,
}

/// The packages in a list, as `apt-cache show` prints it. Those without a SHA-256 could not be checked and are left
/// out.
pub fn packages(text: &str) -> Vec<Stanza> {
    paragraphs(text).iter().filter_map(stanza).collect()
}

fn stanza(paragraph: &Paragraph) -> Option<Stanza> {
    let sha256 = paragraph.get("SHA256")?.to_ascii_lowercase();
    let is_sum = sha256.len() == 64 && sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
    let name = |field| {
        let value = paragraph.get(field).filter(|value| is_name(value));
        value.map(str::to_owned)
    };
    let bytes = paragraph.get("Size")?.parse().ok()?;
    let (package, version) = (name("Package")?, name("Version")?);
    is_sum.then_some(Stanza {
        package,
        version,
        bytes,
        sha256,
    })
}

/// Names and versions are given to apt as arguments and become part of paths.
fn is_name(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.~:".contains(&byte);
    text.starts_with(|first: char| first.is_ascii_alphanumeric()) && text.bytes().all(is_part)
}

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
        let compare = |one: &str, other: &str| compare(one.as_bytes(), other.as_bytes());
        (self.epoch.cmp(&other.epoch))
            .then_with(|| compare(&self.upstream, &other.upstream))
            .then_with(|| compare(&self.revision, &other.revision))
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
fn compare<'a>(mut left: &'a [u8], mut right: &'a [u8]) -> Ordering {
    while !left.is_empty() || !right.is_empty() {
        let [one, other] = [&mut left, &mut right].map(|it| split(it, |it| !it.is_ascii_digit()));
        let words = compare_words(one, other);
        let [one, other] = [&mut left, &mut right].map(|it| split(it, u8::is_ascii_digit));
        let order = words.then_with(|| compare_numbers(one, other));
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
    let indices = 0..left.len().max(right.len());
    let mut orders = indices.map(|index| at(left, index).cmp(&at(right, index)));
    orders
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
    let zeros = |digits: &[u8]| digits.iter().take_while(|digit| **digit == b'0').count();
    let (left, right) = (&left[zeros(left)..], &right[zeros(right)..]);
    left.len().cmp(&right.len()).then_with(|| left.cmp(right))
}

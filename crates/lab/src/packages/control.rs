//! Debian's control format (deb822(5)): paragraphs of fields, in package lists as in apt's `.sources` files.
//!
//! ```text
//! Package: busybox-static          a field
//! # a comment                      nothing
//! Signed-By:                       a field of several lines:
//!  -----BEGIN PGP ...              those that start with a blank
//!                                  an empty line ends the paragraph
//! ```

/// A paragraph: its fields in their order.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Paragraph {
    fields: Vec<(String, String)>,
}

impl Paragraph {
    /// A field's value by name, which knows no case. Lines after the first keep the blank that they start with, so that
    /// the value can be written again as it is.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.fields
            .iter()
            .find(|(field, _)| field.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// The words of a field.
    pub fn words(&self, name: &str) -> Vec<String> {
        self.get(name)
            .unwrap_or_default()
            .split_whitespace()
            .map(str::to_owned)
            .collect()
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
            current
                .fields
                .push((name.trim().to_owned(), value.trim().to_owned()));
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
        paragraph
            .get(field)
            .filter(|value| is_name(value))
            .map(str::to_owned)
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
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+-.~:".contains(&byte))
}

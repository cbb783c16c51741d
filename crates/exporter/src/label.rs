//! Names of the kernel as label values: any bytes may be in them.

/// Longer names are cut, in characters. A unit's name has up to 255.
const MAX_CHARACTERS: usize = 256;

/// A name as a label's value: without control characters, which parsers of the text format treat differently, and not too long.
///
/// Names are keys after this, so that no two series have the same labels.
pub fn label(name: &str) -> String {
    let printable = |c: char| match c.is_control() {
        true => char::REPLACEMENT_CHARACTER,
        false => c,
    };
    name.chars().take(MAX_CHARACTERS).map(printable).collect()
}

//! Files of the kernel that list what can be chosen, with the choice in brackets: `always [madvise] never`.

/// The word in brackets. `None` when there is none, or more than one: then the text is no choice.
pub fn chosen(content: &str) -> Option<&str> {
    let mut chosen = content
        .split_ascii_whitespace()
        .filter_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    let first = chosen.next()?;
    chosen.next().is_none().then_some(first)
}

/// What would have to be written for a file to have `content`: the chosen word, or the content without white space around
/// it.
pub fn written(content: &[u8]) -> &[u8] {
    let chosen = std::str::from_utf8(content).ok().and_then(chosen);
    chosen.map_or_else(|| content.trim_ascii(), str::as_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_in_brackets_is_chosen() {
        assert_eq!(chosen("always [madvise] never\n"), Some("madvise"));
        for text in ["always\n", "]x[", "[a] [b]", "", "[a b]"] {
            assert_eq!(chosen(text), None, "{text}");
        }
        assert_eq!(written(b"[none] mq-deadline\n"), b"none");
        assert_eq!(written(b" 10\n"), b"10");
    }

    proptest::proptest! {
        #[test]
        fn what_is_written_has_no_white_space_around_it(content: Vec<u8>) {
            let written = written(&content);
            proptest::prop_assert_eq!(written, written.trim_ascii());
        }
    }
}

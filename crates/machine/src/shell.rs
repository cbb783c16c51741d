//! Words of a command line that is shown to be pasted, or run by a shell.

/// The words between spaces; what stands in single quotes is one, with its quotes.
pub fn shell_words(command: &str) -> impl Iterator<Item = &str> {
    let mut is_quoted = false;
    let words = command.split(move |c| {
        is_quoted ^= c == '\'';
        c == ' ' && !is_quoted
    });
    words.filter(|word| !word.is_empty())
}

/// Text as one word of any POSIX shell.
pub fn shell_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_word_is_one() {
        let words: Vec<&str> = shell_words("nearfar topo  --source 'a - b.xml' -").collect();
        assert_eq!(words, ["nearfar", "topo", "--source", "'a - b.xml'", "-"]);
        assert_eq!(shell_words("").count(), 0);
    }
}

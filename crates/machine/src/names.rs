//! Words of messages: what to say about a name that nothing has (one that resembles it, and the names there are), and
//! command lines that are shown to be pasted or run by a shell.

/// Names in a message, which has lines of some 100 columns: five of them at most.
const MAX_LISTED: usize = 28;
/// Names that resemble each other less are not proposed (Jaro-Winkler, 0 to 1; clap takes 0.7, which pairs `eth0` with `tree`).
const MIN_RESEMBLANCE: f64 = 0.8;

/// The known name that resembles `wanted` most, where one is close enough for a typing mistake.
pub fn near_match<'a>(wanted: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = wanted.to_lowercase();
    let alike = |name: &'a str| (strsim::jaro_winkler(&wanted, &name.to_lowercase()), name);
    let close = known.into_iter().map(alike);
    let close = close.filter(|(resemblance, _)| *resemblance >= MIN_RESEMBLANCE);
    let (_, name) = close.max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(name)
}

/// What follows "there is no node 9; " in a message: `did you mean "b"? There are: a, b`, or that there is none at all.
///
/// The near match is left out for names without letters: a number is not a misspelling of the next one.
pub fn alternatives<S: AsRef<str>>(wanted: &str, known: &[S]) -> String {
    let names = || known.iter().map(AsRef::as_ref);
    if known.is_empty() {
        return "there are none".to_owned();
    }
    let is_word = wanted.contains(char::is_alphabetic);
    let near = is_word.then(|| near_match(wanted, names())).flatten();
    let near = near.map(|name| format!("did you mean \"{name}\"? "));
    let near = near.unwrap_or_default();
    let listed = names().take(MAX_LISTED).collect::<Vec<_>>().join(", ");
    let more = match known.len().saturating_sub(MAX_LISTED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{near}there are: {listed}{more}")
}

/// The words between spaces; what stands in single quotes is one, with its quotes.
pub fn shell_words(command: &str) -> impl Iterator<Item = &str> {
    let mut is_quoted = false;
    let words = command.split(move |c| {
        is_quoted ^= c == '\'';
        c == ' ' && !is_quoted
    });
    words.filter(|word| !word.is_empty())
}

/// Words as a command of any POSIX shell; those that need no quotes have none.
pub fn shell_command<T: AsRef<str>>(words: impl IntoIterator<Item = T>) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=./,+:@%".contains(c);
    let word = |word: T| match word.as_ref() {
        plain if !plain.is_empty() && plain.chars().all(is_plain) => plain.to_owned(),
        other => shell_quoted(other),
    };
    let words: Vec<String> = words.into_iter().map(word).collect();
    words.join(" ")
}

/// Text as one word of any POSIX shell.
pub fn shell_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_command_are_quoted_where_a_shell_would_take_them_apart() {
        assert_eq!(
            shell_command(["./job", "--n=1", "a b", ""]),
            "./job --n=1 'a b' ''"
        );
        assert_eq!(shell_command(["it's", "$HOME"]), r"'it'\''s' '$HOME'");
    }

    #[test]
    fn a_typing_mistake_is_recognised_and_another_word_is_not() {
        let rules = [
            "interrupt-far",
            "queues-share-cpu",
            "xps-mismatch",
            "rps-mismatch",
        ];
        assert_eq!(near_match("interupt-far", rules), Some("interrupt-far"));
        assert_eq!(near_match("XPS-mismatch", rules), Some("xps-mismatch"));
        assert_eq!(near_match("nope", rules), None);
        assert_eq!(near_match("", rules), None);
    }

    #[test]
    fn alternatives_name_what_there_is_and_cut_long_lists() {
        assert_eq!(alternatives::<&str>("x", &[]), "there are none");
        assert_eq!(
            alternatives("nvme-subsy0", &["nvme-subsys0"]),
            r#"did you mean "nvme-subsys0"? there are: nvme-subsys0"#
        );
        assert_eq!(alternatives("10", &["1", "2"]), "there are: 1, 2");
        let many: Vec<String> = (0..30).map(|number| number.to_string()).collect();
        assert!(alternatives("x", &many).ends_with("26, 27 and 2 more"));
    }

    #[test]
    fn a_quoted_word_is_one() {
        let words: Vec<&str> = shell_words("nearfar topo  --source 'a - b.xml' -").collect();
        assert_eq!(words, ["nearfar", "topo", "--source", "'a - b.xml'", "-"]);
        assert_eq!(shell_words("").count(), 0);
    }
}

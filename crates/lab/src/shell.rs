//! Words as a shell takes them, for commands that are shown to be pasted.

use std::ffi::{OsStr, OsString};

use nearfar_machine::shell_quoted;

use crate::guest::quoted;

/// Words on one line.
pub fn words(words: impl IntoIterator<Item = OsString>) -> String {
    words
        .into_iter()
        .map(|each| word(&each))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Words on several lines, each option on one of its own, for any POSIX shell: a script keeps its line ends, in single quotes.
pub fn lines(words: impl IntoIterator<Item = OsString>) -> String {
    let mut text = String::new();
    for each in words {
        if !text.is_empty() {
            let is_option = each.to_string_lossy().starts_with('-');
            text.push_str(if is_option { " \\\n  " } else { " " });
        }
        let is_script = |text: &&str| text.chars().all(|c| "\n\t".contains(c) || !c.is_control());
        match each.to_str().filter(is_script) {
            Some(script) if script.contains('\n') => text.push_str(&shell_quoted(script)),
            _ => text.push_str(&word(&each)),
        }
    }
    text
}

/// One word, quoted where it has to be. What cannot be shown (control characters, bytes that are not UTF-8) is written as
/// `$'\303'`, which bash, zsh and ksh take.
pub fn word(word: &OsStr) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+.,/:@%".contains(c);
    match word.to_str() {
        Some(text) if !text.is_empty() && text.chars().all(plain) => text.to_owned(),
        Some(text) if !text.chars().any(char::is_control) => shell_quoted(text),
        _ => quoted(word),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;
    use std::process::Command;

    use super::*;

    #[test]
    fn plain_words_stay_plain() {
        assert_eq!(
            words(["--source".into(), "a b.toml".into(), "".into()]),
            "--source 'a b.toml' ''"
        );
    }

    #[test]
    fn an_option_begins_a_line() {
        let words = ["qemu", "-append", "a b='c'", "-smp", "4"].map(OsString::from);
        assert_eq!(
            lines(words),
            "qemu \\\n  -append 'a b='\\''c'\\''' \\\n  -smp 4"
        );
    }

    #[test]
    fn a_posix_shell_reads_words_with_scripts_as_they_were() {
        let script = "set -e\nif [ \"$1\" = 'a b' ]; then\n  echo \\\\; fi\n";
        let words = ["printf", "%s|", "-x", "--option=$HOME", script, "it's"];
        let text = lines(words.map(OsString::from));
        let read = Command::new("sh").args(["-c", &text]).output().unwrap();
        let expected: String = words[2..].iter().map(|it| format!("{it}|")).collect();
        assert_eq!(String::from_utf8_lossy(&read.stdout), expected, "{text}");
    }

    #[test]
    fn bash_reads_each_word_as_it_was() {
        let all: [&[u8]; 7] = [
            b"",
            b"plain",
            b"a b",
            b"it's",
            b"$HOME `id` \"\\",
            "n\u{f6}rd".as_bytes(),
            b"\xff\n\x01'7",
        ];
        for bytes in all {
            let line = format!("printf %s {}", word(OsStr::from_bytes(bytes)));
            let read = Command::new("bash").args(["-c", &line]).output().unwrap();
            assert_eq!(read.stdout, bytes, "{line}");
        }
    }
}

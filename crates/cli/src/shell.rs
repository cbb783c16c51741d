//! Words as a shell takes them, for commands that are shown to be pasted.

use std::ffi::{OsStr, OsString};

use nearfar_lab::guest::quoted;

/// Words on one line.
pub fn words(words: impl IntoIterator<Item = OsString>) -> String {
    words
        .into_iter()
        .map(|each| word(&each))
        .collect::<Vec<_>>()
        .join(" ")
}

/// One word, quoted where it has to be. What cannot be shown (control characters, bytes that are not UTF-8) is written as
/// `$'\303'`, which bash, zsh and ksh take.
pub fn word(word: &OsStr) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+.,/:@%".contains(c);
    match word.to_str() {
        Some(text) if !text.is_empty() && text.chars().all(plain) => text.to_owned(),
        Some(text) if !text.chars().any(char::is_control) => {
            format!("'{}'", text.replace('\'', r"'\''"))
        }
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

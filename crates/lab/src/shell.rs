//! Words as a shell takes them: commands that are shown to be pasted, and a command as one line for the agent of a guest.

use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use nearfar_machine::shell_quoted;

/// Words on one line.
pub fn words(words: impl IntoIterator<Item = OsString>) -> String {
    let words = words.into_iter().map(|each| word(&each));
    words.collect::<Vec<_>>().join(" ")
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

/// A command to run in a guest.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Exec {
    /// The program and its arguments; the program is looked up on the guest's `PATH`.
    pub command: Vec<OsString>,
    /// Where it runs; `None` for the folder this process is in, or `/` where the guest does not have that.
    pub directory: Option<PathBuf>,
    /// Variables besides the guest's own few (`PATH`, `HOME`, `USER`, `TERM`, `LANG`, `NEARFAR_RESULTS`); they win over those.
    /// Names other than letters, digits and underscores are left out.
    pub environment: Vec<(OsString, OsString)>,
    /// Whether it gets a terminal of its own, with this process's terminal in raw mode before it. Input and output then are
    /// those of this process.
    pub terminal: bool,
    /// Whether it takes a sample. Simulated time then passes only where it asks for it (docs/time.md), instead of from its start on; and
    /// the first signal powers the guest off, in which a slow command could end minutes later.
    pub is_sample: bool,
}

impl Exec {
    /// A command without options.
    pub fn new<S: AsRef<OsStr>>(command: &[S]) -> Self {
        let words = command.iter().map(|word| word.as_ref().to_owned());
        Self {
            command: words.collect(),
            ..Self::default()
        }
    }

    /// The line that runs it as command number `id`, in a terminal of this size, in a guest with this folder for results.
    pub(crate) fn line(&self, id: u64, size: Option<(u16, u16)>, results: Option<&str>) -> String {
        let mut line = format!("echo started {id} $$ > /run/nearfar-lab/pipe/link;");
        if let Some((rows, columns)) = size {
            _ = write!(line, "stty rows {rows} cols {columns};");
        }
        if let Some(results) = results {
            _ = write!(line, "export NEARFAR_RESULTS={results};");
        }
        for (name, value) in own_environment().iter().chain(&self.environment) {
            // A name that no shell takes would be read as something else.
            if is_name(name.as_bytes()) {
                _ = write!(line, "export {}={};", name.to_string_lossy(), quoted(value));
            }
        }
        line += &match &self.directory {
            Some(directory) => format!("cd {} || exit 126;", quoted(directory.as_os_str())),
            None => {
                let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
                format!("cd {} 2> /dev/null || cd /;", quoted(here.as_os_str()))
            }
        };
        line + &self.start()
    }

    /// Starts the command in the shell's place. The guest's shell would run its own `ls` for `ls`, whatever `PATH` says, but not
    /// for a path: so it has to search `PATH`.
    fn start(&self) -> String {
        let words: Vec<_> = self.command.iter().map(|word| quoted(word)).collect();
        let (Some(program), Some(first)) = (words.first(), self.command.first()) else {
            return String::new();
        };
        let rest = words[1..].join(" ");
        if first.as_bytes().contains(&b'/') {
            return format!("exec {program} {rest}");
        }
        format!(
            "IFS=:; for folder in $PATH; do file=\"$folder\"/{program}; \
             [ -f \"$file\" ] && [ -x \"$file\" ] && exec \"$file\" {rest}; done; \
             echo {program}: not found >&2; exit 127"
        )
    }
}

fn is_name(name: &[u8]) -> bool {
    let letter = |byte: &u8| byte.is_ascii_alphabetic() || *byte == b'_';
    let is_part = |byte: &u8| letter(byte) || byte.is_ascii_digit();
    name.first().is_some_and(letter) && name.iter().all(is_part)
}

/// What every command finds in its environment.
fn own_environment() -> Vec<(OsString, OsString)> {
    let mut all = vec![
        ("PATH".into(), guest_path()),
        ("HOME".into(), "/root".into()),
        ("USER".into(), "root".into()),
        ("NEARFAR_GUEST".into(), "yes".into()),
    ];
    for name in ["TERM", "LANG", "LC_ALL", "COLORTERM", "NO_COLOR"] {
        all.extend(std::env::var_os(name).map(|value| (name.into(), value)));
    }
    all
}

/// This process's `PATH`; behind it those folders of root's that it lacks, and the guest's busybox for the rest.
fn guest_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    let known: Vec<_> = std::env::split_paths(&path).collect();
    let needed = [
        "/usr/sbin",
        "/usr/bin",
        "/sbin",
        "/bin",
        "/run/nearfar-lab/bin",
    ];
    for folder in needed {
        if !known.contains(&PathBuf::from(folder)) {
            path.push(if path.is_empty() { "" } else { ":" });
            path.push(folder);
        }
    }
    path
}

/// A word of the guest's shell, on one line and in ASCII whatever it holds (`$'...'` is known to busybox's shell).
pub fn quoted(word: &OsStr) -> String {
    let bytes = word.as_bytes();
    let is_plain = |byte: &u8| (0x20..0x7f).contains(byte) && *byte != b'\'';
    if bytes.iter().all(is_plain) {
        return format!("'{}'", word.to_string_lossy());
    }
    let mut text = String::from("$'");
    for byte in bytes {
        match byte {
            b'\'' | b'\\' => text.extend(['\\', char::from(*byte)]),
            0x20..0x7f => text.push(char::from(*byte)),
            // Three octal digits end by themselves; a hexadecimal escape would swallow a digit that follows.
            _ => _ = write!(text, "\\{byte:03o}"),
        }
    }
    text + "'"
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;
    use std::process::Command;

    use proptest::prelude::*;

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

    fn busybox_says(line: &str) -> Option<Vec<u8>> {
        let output = Command::new("busybox")
            .args(["sh", "-c", line])
            .output()
            .ok()?;
        Some(output.stdout)
    }

    proptest! {
        #[test]
        fn any_word_reaches_a_command_byte_for_byte(word in proptest::collection::vec(1_u8.., 0..40)) {
            let quoted = quoted(OsStr::from_bytes(&word));
            prop_assert!(quoted.is_ascii() && !quoted.contains('\n'));
            // Without busybox there is nothing to compare with.
            if let Some(said) = busybox_says(&format!("printf %s {quoted}")) {
                prop_assert_eq!(said, word);
            }
        }
    }
}

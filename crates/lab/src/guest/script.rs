//! A command as one line of shell, for the guest's agent.

use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

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
    /// Whether simulated time passes only where the command asks for it (docs/time.md), instead of from its start on. Without effect
    /// in the host's time.
    pub asks_for_time: bool,
}

impl Exec {
    /// A command without options.
    pub fn new<S: AsRef<OsStr>>(command: &[S]) -> Self {
        Self {
            command: command
                .iter()
                .map(|word| word.as_ref().to_owned())
                .collect(),
            ..Self::default()
        }
    }

    /// The line that runs it as command number `id`, in a terminal of this size, in a guest with this folder for results.
    pub(super) fn line(&self, id: u64, size: Option<(u16, u16)>, results: Option<&str>) -> String {
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
        match &self.directory {
            Some(directory) => {
                _ = write!(line, "cd {} || exit 126;", quoted(directory.as_os_str()))
            }
            None => {
                let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
                _ = write!(
                    line,
                    "cd {} 2> /dev/null || cd /;",
                    quoted(here.as_os_str())
                );
            }
        }
        line += &self.start();
        line
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
    name.first().is_some_and(letter)
        && name
            .iter()
            .all(|byte| letter(byte) || byte.is_ascii_digit())
}

/// What every command finds in its environment.
fn own_environment() -> Vec<(OsString, OsString)> {
    let mut all = vec![(OsString::from("PATH"), path())];
    for (name, value) in [
        ("HOME", "/root"),
        ("USER", "root"),
        ("NEARFAR_GUEST", "yes"),
    ] {
        all.push((name.into(), value.into()));
    }
    let passed = ["TERM", "LANG", "LC_ALL", "COLORTERM", "NO_COLOR"];
    all.extend(
        passed
            .iter()
            .filter_map(|name| Some(((*name).into(), std::env::var_os(name)?))),
    );
    all
}

/// This process's `PATH`; behind it those folders of root's that it lacks, and the guest's busybox for the rest.
fn path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    let known: Vec<_> = std::env::split_paths(&path).collect();
    for folder in [
        "/usr/sbin",
        "/usr/bin",
        "/sbin",
        "/bin",
        "/run/nearfar-lab/bin",
    ] {
        if !known
            .iter()
            .any(|known| known == std::path::Path::new(folder))
        {
            path.push(if path.is_empty() { "" } else { ":" });
            path.push(folder);
        }
    }
    path
}

/// A word of the guest's shell, on one line and in ASCII whatever it holds (`$'...'` is known to busybox's shell).
pub fn quoted(word: &OsStr) -> String {
    let bytes = word.as_bytes();
    if bytes
        .iter()
        .all(|byte| (0x20..0x7f).contains(byte) && *byte != b'\'')
    {
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
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

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

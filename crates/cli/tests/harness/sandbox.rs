//! The directory and environment of a command, and the command before it runs.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use nearfar_lab::shell;
use serde_json::Value;
use tempfile::TempDir;

use super::{Answer, Running};

/// The built command.
pub const NEARFAR: &str = env!("CARGO_BIN_EXE_nearfar");

/// Variables of the user's environment that a command keeps.
const KEPT: [&str; 3] = ["PATH", "LD_LIBRARY_PATH", "CARGO_TARGET_DIR"];

/// Variables that name a directory, and its name in the sandbox.
const DIRECTORIES: [(&str, &str); 7] = [
    ("HOME", "home"),
    ("XDG_CACHE_HOME", "cache"),
    ("XDG_CONFIG_HOME", "config"),
    ("XDG_DATA_HOME", "data"),
    ("XDG_STATE_HOME", "state"),
    ("RUNTIME_DIRECTORY", "run"),
    ("TMPDIR", "tmp"),
];

/// A listing ends after this many entries.
const MAX_LISTED: usize = 200;

/// A temporary directory with `work`, the working directory of commands, next to their home, caches, data, state and
/// temporary files. Clones share it; the last one removes it.
#[derive(Clone, Debug)]
pub struct Sandbox(Arc<TempDir>);

impl Sandbox {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in DIRECTORIES
            .map(|(_, name)| name)
            .into_iter()
            .chain(["work"])
        {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        Self(Arc::new(directory))
    }

    /// A file in the working directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join("work").join(name)
    }

    /// The same as text, for arguments.
    pub fn file(&self, name: &str) -> String {
        self.path(name).into_os_string().into_string().unwrap()
    }

    /// Writes a file in the working directory, with the directories above it.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// The directory that an environment variable of its commands names: `XDG_CACHE_HOME`.
    pub fn directory(&self, variable: &str) -> PathBuf {
        let (_, name) = DIRECTORIES
            .iter()
            .find(|(name, _)| *name == variable)
            .unwrap();
        self.0.path().join(name)
    }

    /// `nearfar` with these arguments.
    pub fn nearfar<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Nearfar {
        self.program(NEARFAR).args(arguments)
    }

    /// Another program in the same environment, such as a shell that calls `nearfar`.
    pub fn program(&self, program: impl AsRef<OsStr>) -> Nearfar {
        let mut command = Command::new(program);
        command
            .stdin(Stdio::null())
            .env_clear()
            .current_dir(self.path(""))
            .env("NO_COLOR", "1");
        for name in KEPT {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        for (variable, name) in DIRECTORIES {
            command.env(variable, self.0.path().join(name));
        }
        Nearfar {
            command,
            sandbox: self.clone(),
            stdin: None,
        }
    }

    /// Its files, one a line, with sizes.
    pub(super) fn listing(&self) -> String {
        let mut text = String::new();
        let mut pending = vec![self.0.path().to_owned()];
        let mut listed = 0;
        while let Some(directory) = pending.pop() {
            let mut entries: Vec<_> = fs::read_dir(&directory)
                .into_iter()
                .flatten()
                .flatten()
                .collect();
            entries.sort_by_key(fs::DirEntry::file_name);
            for entry in entries {
                listed += 1;
                if listed > MAX_LISTED {
                    return text + "    ...\n";
                }
                let name = entry.path();
                let name = name
                    .strip_prefix(self.0.path())
                    .unwrap_or(&name)
                    .display()
                    .to_string();
                match entry.metadata() {
                    Ok(data) if data.is_dir() => pending.push(entry.path()),
                    Ok(data) => writeln!(text, "    {name}  {} bytes", data.len()).unwrap(),
                    Err(error) => writeln!(text, "    {name}  {error}").unwrap(),
                }
            }
        }
        text
    }

    /// The directory that holds all of it.
    pub fn root(&self) -> &Path {
        self.0.path()
    }
}

impl Default for Sandbox {
    fn default() -> Self {
        Self::new()
    }
}

/// A command that has not started. Its standard input is empty unless [`Nearfar::stdin`] gives it text.
#[derive(Debug)]
pub struct Nearfar {
    command: Command,
    sandbox: Sandbox,
    stdin: Option<Vec<u8>>,
}

/// For tests that start and read the process themselves. The sandbox is removed with this value.
impl Deref for Nearfar {
    type Target = Command;

    fn deref(&self) -> &Command {
        &self.command
    }
}

impl DerefMut for Nearfar {
    fn deref_mut(&mut self) -> &mut Command {
        &mut self.command
    }
}

impl Nearfar {
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    pub fn args<S: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.command.args(arguments);
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub fn env_remove(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    /// Gives it the caches of the user who runs the tests: kernels and saved guests are there.
    pub fn with_user_cache(mut self) -> Self {
        self.command.env_remove("XDG_CACHE_HOME");
        for name in ["XDG_CACHE_HOME", "HOME"] {
            if let Some(value) = std::env::var_os(name) {
                self.command.env(name, value);
            }
        }
        self
    }

    /// Text on its standard input, then the end of it.
    pub fn stdin(mut self, text: impl Into<Vec<u8>>) -> Self {
        self.stdin = Some(text.into());
        self
    }

    /// Changes the command in a way that this type has no method for: process group, user, standard streams.
    pub fn configure(mut self, change: impl FnOnce(&mut Command)) -> Self {
        change(&mut self.command);
        self
    }

    /// Runs it to its end.
    #[track_caller]
    pub fn run(self) -> Answer {
        self.start().wait()
    }

    /// Starts it with both outputs read as they come.
    #[track_caller]
    pub fn start(mut self) -> Running {
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped());
        self.spawn()
    }

    /// Starts it with the outputs that [`Nearfar::configure`] gave it.
    #[track_caller]
    pub fn spawn(mut self) -> Running {
        let text = self.stdin.take();
        self.command.stdin(if text.is_some() {
            Stdio::piped()
        } else {
            Stdio::null()
        });
        let mut child = self
            .command
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {:?}: {error}", self.command));
        if let Some(text) = text {
            let mut input = child.stdin.take().unwrap();
            // A command that ends before it has read all of it is not a failure of the test.
            std::thread::spawn(move || drop(input.write_all(&text)));
        }
        Running::new(child, self.words(), self.sandbox)
    }

    /// Standard output of a command that has to succeed.
    #[track_caller]
    pub fn prints(self) -> String {
        self.run().succeeded().text()
    }

    /// The JSON that a command prints that has to succeed.
    #[track_caller]
    pub fn json(self) -> Value {
        self.run().succeeded().json()
    }

    /// The words of the command line, as a shell would take them.
    fn words(&self) -> String {
        let words = std::iter::once(self.command.get_program()).chain(self.command.get_args());
        shell::words(words.map(OsStr::to_owned))
    }
}

//! Lays a recorded machine (`*.tree`, see README.md in its directory) out in a temporary directory.

#![allow(dead_code, reason = "each test binary uses its part of this")]

use std::fs;
use std::path::{Path, PathBuf};

use nearfar_machine::Machine;
use nearfar_sources::tree::Tree;
use nearfar_sources::{Want, sysfs};

/// A machine on disk.
pub struct Laid {
    directory: tempfile::TempDir,
}

impl Laid {
    /// Lays out `NAME.tree`.
    pub fn out(name: &str) -> Self {
        Self::out_below(name, "")
    }

    /// Lays out `NAME.tree` in a folder of the directory.
    pub fn out_below(name: &str, folder: &str) -> Self {
        let file = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(format!("../sources/tests/machines/{name}.tree"));
        let text =
            fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        // A file takes up to a millisecond on a disk's file system, and a machine has two thousand.
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let laid = Self {
            directory: directory.unwrap(),
        };
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (kind, entry) = line.split_at(2);
            let (path, content) = entry.split_once('\t').unwrap_or((entry, ""));
            let path = &format!("{folder}/{path}");
            match kind {
                "T " => laid.write(path, unescape(content).as_bytes()),
                "X " => laid.write(path, &bytes(content)),
                "L " => laid.link(path, content),
                "D " => fs::create_dir_all(laid.path(path)).unwrap(),
                _ => panic!("{}: {line:?}", file.display()),
            }
        }
        laid
    }

    /// Where an entry stands.
    pub fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join(path.trim_start_matches('/'))
    }

    /// Writes a file, with the directories above it.
    pub fn write(&self, path: &str, content: &[u8]) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Makes a symbolic link, with the directories above it.
    pub fn link(&self, path: &str, target: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(target, path).unwrap();
    }

    /// Takes a file, link or directory away.
    pub fn remove(&self, path: &str) {
        let path = self.path(path);
        match fs::symlink_metadata(&path).unwrap().is_dir() {
            true => fs::remove_dir_all(path).unwrap(),
            false => fs::remove_file(path).unwrap(),
        }
    }

    /// Reads everything of it.
    pub fn read(&self, want: &Want) -> Machine {
        let machine = sysfs::read(&Tree::at(self.directory.path()).unwrap(), want).unwrap();
        assert_eq!(machine.check(), Vec::<String>::new());
        machine
    }

    /// A value as JSON, one line for each member of a list, with the directory's name taken out.
    pub fn show(&self, value: impl serde::Serialize) -> String {
        let value = serde_json::to_value(value).unwrap();
        let lines = match value {
            serde_json::Value::Array(members) => members.iter().map(ToString::to_string).collect(),
            other => vec![serde_json::to_string_pretty(&other).unwrap()],
        };
        lines
            .join("\n")
            .replace(&self.directory.path().display().to_string(), "")
    }
}

fn unescape(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        plain.push(match c {
            '\\' => match rest.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some('\\') => '\\',
                other => panic!("no such escape: {other:?}"),
            },
            c => c,
        });
    }
    plain
}

fn bytes(hex: &str) -> Vec<u8> {
    hex.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

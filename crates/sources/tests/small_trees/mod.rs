//! Small machines written by hand, one text file each, unpacked to a temporary directory (tests/machines has recorded ones).
//!
//! ```text
//! # what the machine shows
//! sys/devices/system/cpu/online: 0-3
//! sys/devices/system/cpu/cpu{0-3}/topology/physical_package_id: 0     four files
//! sys/devices/system/node/node0/meminfo: Node 0 MemTotal: 8 kB\nNode 0 MemFree: 4 kB
//! sys/bus/pci/devices/0000:00:01.0 -> ../../../devices/pci0000:00/0000:00:01.0
//! ```
//!
//! `{0-3}` in a path makes a file for each number, and `{n}` in its content stands for the number.

#![allow(dead_code, reason = "each test binary uses its part of this")]

use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// The text of every machine, by name.
pub fn all() -> Vec<(String, String)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/small_trees");
    let mut machines: Vec<(String, String)> = std::fs::read_dir(directory)
        .expect("the directory is in the repository")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "tree")
        })
        .map(|path| {
            let name = path
                .file_stem()
                .expect("named")
                .to_string_lossy()
                .into_owned();
            (name, std::fs::read_to_string(path).expect("text"))
        })
        .collect();
    machines.sort();
    assert!(machines.len() > 8, "only {} machines found", machines.len());
    machines
}

/// One machine by name.
pub fn named(name: &str) -> String {
    all()
        .into_iter()
        .find(|(other, _)| other == name)
        .unwrap_or_else(|| panic!("no machine {name}"))
        .1
}

/// Unpacks a machine; the files that were written, in order.
pub fn unpack(text: &str) -> (TempDir, Vec<PathBuf>) {
    let root = tempfile::tempdir().expect("a temporary directory");
    let mut files = Vec::new();
    for line in text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty())
    {
        if let Some((path, target)) = line.split_once(" -> ") {
            let path = parents(root.path(), path);
            std::os::unix::fs::symlink(target, path).expect("a link");
            continue;
        }
        // A PCI address has colons, but none with a space behind it.
        let (path, content) = line
            .split_once(": ")
            .or_else(|| line.strip_suffix(':').map(|path| (path, "")))
            .expect(line);
        for (path, number) in expand(path) {
            let path = parents(root.path(), &path);
            let content = content.replace("\\n", "\n").replace("{n}", &number);
            std::fs::write(&path, content + "\n").expect("a file");
            files.push(path);
        }
    }
    (root, files)
}

fn parents(root: &Path, path: &str) -> PathBuf {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().expect("below the root")).expect("a directory");
    path
}

fn expand(path: &str) -> Vec<(String, String)> {
    let Some((before, rest)) = path.split_once('{') else {
        return vec![(path.to_owned(), String::new())];
    };
    let (range, after) = rest.split_once('}').expect(path);
    let (first, last) = range.split_once('-').expect(path);
    let (first, last): (u32, u32) = (first.parse().expect(path), last.parse().expect(path));
    (first..=last)
        .map(|number| (format!("{before}{number}{after}"), number.to_string()))
        .collect()
}

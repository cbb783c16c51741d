//! `lab cache` on made-up caches. None of this needs QEMU.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::harness;
use crate::harness::Answer;
use crate::keys;
use serde_json::Value;
use tempfile::TempDir;

/// A cache with a saved guest, two unpacked files and a kernel.
struct Made {
    home: TempDir,
}

impl Made {
    fn new() -> Self {
        let made = Self {
            home: tempfile::tempdir().unwrap(),
        };
        let record = r#"{"format":1,"machine":"two-node","kernel":"6.12.117","arch":"x86_64","cpus":4,"nodes":2,
            "qemu":"10.0.2","state_sha256":"","memory":[{"file":"memory-0","bytes":2097152}]}"#;
        let key = "a".repeat(64);
        made.write(&format!("saved/{key}/state"), &[1; 100], 5);
        made.write(&format!("saved/{key}/memory-0"), &vec![1; 2 << 20], 5);
        made.write(&format!("saved/{key}/record.json"), record.as_bytes(), 5);
        made.write(
            "unpacked/vmlinuz-6.12.117-8dd5b23fe1b9e5b2",
            &vec![1; 1 << 20],
            3,
        );
        made.write("unpacked/nvme.ko.xz-d70623f921385bfa", &[1; 100], 3);
        made.write(
            "kernels/x86_64/6.12.117/boot/vmlinuz",
            &vec![1; 1 << 20],
            100,
        );
        made
    }

    fn root(&self) -> PathBuf {
        self.home.path().join("nearfar")
    }

    fn write(&self, name: &str, bytes: &[u8], hours: u64) {
        let path = self.root().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        File::open(&path)
            .unwrap()
            .set_modified(SystemTime::now() - Duration::from_secs(hours * 3600))
            .unwrap();
    }

    fn has(&self, name: &str) -> bool {
        fs::read_dir(self.root().join(name)).is_ok_and(|mut found| found.next().is_some())
    }

    /// What `lab cache` prints with these words; it must succeed.
    #[track_caller]
    fn prints(&self, words: &[&str]) -> String {
        let output = nearfar(self.home.path(), words);
        assert!(
            output.status.success(),
            "{words:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        output.text()
    }

    #[track_caller]
    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.prints(&[words, &["--format", "json"]].concat())).unwrap()
    }

    /// `lab cache` must end with this exit code and a message that holds all of `says`.
    #[track_caller]
    fn refused(&self, words: &[&str], code: i32, says: &[&str]) {
        let output = nearfar(self.home.path(), words);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {message}");
        for text in says {
            assert!(
                message.contains(text),
                "{words:?} does not say {text:?}:\n{message}"
            );
        }
        assert!(output.stdout.is_empty(), "{words:?} printed an answer");
    }
}

fn nearfar(home: &Path, words: &[&str]) -> Answer {
    harness::nearfar(["lab", "cache"])
        .args(words)
        .env("XDG_CACHE_HOME", home)
        .run()
}

#[test]
fn list_shows_kind_name_size_last_use_and_the_total() {
    let text = Made::new().prints(&["list"]);
    let lines: Vec<&str> = text.lines().collect();
    // The sizes are those of the file system's blocks.
    let wanted = [
        ("kind         name", "last used"),
        (
            "saved-guest  two-node, 4 CPUs on 2 nodes, Linux 6.12.117, QEMU 10.0.2",
            "5 h ago",
        ),
        ("unpacked     vmlinuz-6.12.117 ", "3 h ago"),
        ("unpacked     1 kernel module ", "3 h ago"),
        ("kernel       6.12.117 (x86_64) ", "just now"),
        ("! 6.12.117 (x86_64): record.json: No such file", ""),
        ("total 4", " MiB, limit 8 GiB"),
    ];
    assert_eq!(lines.len(), wanted.len(), "{text}");
    for (line, (start, end)) in lines.iter().zip(wanted) {
        assert!(
            line.starts_with(start) && line.ends_with(end),
            "{line:?} is not {start:?} ... {end:?}"
        );
    }
}

#[test]
fn every_key_of_the_answers_is_documented() {
    let made = Made::new();
    let list = made.json(&["list"]);
    assert_eq!(list["schema"], "lab-cache/1");
    let entries = list["entries"].as_array().unwrap();
    let kinds: Vec<_> = entries
        .iter()
        .map(|entry| entry["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["saved-guest", "unpacked", "unpacked", "kernel"]);
    assert_eq!(
        list["total_bytes"].as_u64().unwrap(),
        entries
            .iter()
            .map(|entry| entry["bytes"].as_u64().unwrap())
            .sum::<u64>()
    );
    assert!(entries.iter().all(|entry| {
        entry["path"]
            .as_str()
            .unwrap()
            .starts_with(made.root().to_str().unwrap())
    }));
    keys::documented(&[
        list,
        made.json(&["clear", "--dry-run"]),
        made.json(&["limit"]),
    ]);
}

#[test]
fn a_dry_run_removes_nothing_and_clear_removes_what_it_listed() {
    let made = Made::new();
    let dry = made.prints(&["clear", "--dry-run"]);
    assert!(made.has("saved") && made.has("unpacked"));
    let lines: Vec<&str> = dry.lines().collect();
    assert!(
        lines.len() == 4 && lines[0].starts_with("would remove  saved-guest  two-node"),
        "{dry}"
    );
    assert!(lines[3].starts_with("would free 3"), "{dry}");
    let done = made.prints(&["clear"]);
    assert_eq!(
        done.lines().last().unwrap().strip_prefix("freed "),
        lines[3].strip_prefix("would free ")
    );
    assert!(!made.has("saved") && !made.has("unpacked") && made.has("kernels/x86_64"));
    assert_eq!(made.prints(&["clear"]), "freed 0 B\n");
}

#[test]
fn clear_takes_kinds() {
    let made = Made::new();
    made.prints(&["clear", "kernels", "unpacked"]);
    assert!(made.has("saved") && !made.has("unpacked") && !made.has("kernels/x86_64"));
    made.prints(&["clear", "all"]);
    assert!(!made.has("saved"));
}

#[test]
fn a_limit_is_set_applied_and_printed() {
    let made = Made::new();
    assert!(made.prints(&["limit"]).ends_with(", limit 8 GiB\n"));
    let text = made.prints(&["limit", "3M"]);
    assert!(text.starts_with("removed  saved-guest  two-node"), "{text}");
    assert!(
        text.contains("freed 2") && text.ends_with(" MiB, limit 3 MiB\n"),
        "{text}"
    );
    assert!(!made.has("saved") && made.has("unpacked"));
    assert_eq!(made.json(&["limit"])["limit_bytes"], 3 << 20);
    let text = made.prints(&["limit", "0"]);
    assert!(!made.has("unpacked") && made.has("kernels/x86_64"));
    assert!(
        text.contains("over the limit of 0 B") && text.contains("only `clear` removes"),
        "{text}"
    );
}

#[test]
fn a_wrong_kind_or_size_is_wrong_usage() {
    let made = Made::new();
    made.refused(
        &["clear", "guests"],
        2,
        &[
            "guests",
            "saved-guests",
            "unpacked",
            "builds",
            "kernels",
            "foreign",
            "all",
        ],
    );
    for size in ["much", "-1", "8X", "8", "1.5", "99999999999999999999G", ""] {
        made.refused(&["limit", size], 2, &[]);
    }
    made.refused(&["limit", "8"], 2, &["at least 1M", "500M"]);
    made.refused(&[], 2, &["list", "clear", "limit"]);
    assert!(made.has("saved") && !made.root().join("limit.json").exists());
}

#[test]
fn a_damaged_limit_is_named_and_replaced() {
    let made = Made::new();
    made.write("limit.json", b"8G", 0);
    made.refused(&["limit"], 2, &["limit.json", "nearfar lab cache limit 8G"]);
    let list = nearfar(made.home.path(), &["list"]);
    let message = String::from_utf8_lossy(&list.stderr);
    assert!(
        list.status.success() && message.contains("warning: the default limit applies"),
        "{message}"
    );
    made.prints(&["limit", "8G"]);
    assert_eq!(made.json(&["limit"])["limit_bytes"], 8_u64 << 30);
}

#[test]
fn a_cache_folder_that_is_a_file_is_named() {
    let made = Made {
        home: tempfile::tempdir().unwrap(),
    };
    fs::write(made.root(), "x").unwrap();
    for words in [&["list"][..], &["clear"], &["limit", "8G"]] {
        made.refused(words, 3, &[made.root().to_str().unwrap()]);
    }
}

#[test]
fn a_cache_that_does_not_exist_is_empty() {
    let made = Made {
        home: tempfile::tempdir().unwrap(),
    };
    assert_eq!(made.prints(&["list"]), "total 0 B, limit 8 GiB\n");
    assert_eq!(made.prints(&["clear"]), "freed 0 B\n");
    assert!(!made.root().exists());
}

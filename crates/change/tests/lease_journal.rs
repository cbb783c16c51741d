//! Journals of leases that no owner wrote: contradictory, huge, forged with good checksums.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use nearfar_change::UndoResult;
use nearfar_change::lease::{LeaseError, Leases, Recovered};
use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A record, by the number of its file: 0 and 1 may be set, 2 may not.
#[derive(Clone, Debug)]
enum Forged {
    /// Of format 1, and what it is about to hold.
    Old(usize, String),
    New(usize, String),
    /// The file, and its contents before and after: the next write, or another value of the one that there is.
    Intent(usize, String, String),
    /// By the number of the write.
    Done(usize, String),
    Undoing(usize),
    Undone(usize),
    Masks,
    Lease,
    Torn,
}

/// A directory of leases with three files, of which one is outside.
struct Place {
    directory: TempDir,
    files: [PathBuf; 3],
}

impl Place {
    fn new(contents: [&str; 3]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        fs::DirBuilder::new().mode(0o700).create(&state).unwrap();
        let files = [
            state.join("first"),
            state.join("second"),
            directory.path().join("outside"),
        ];
        files
            .iter()
            .zip(contents)
            .for_each(|(file, content)| fs::write(file, content).unwrap());
        Self { directory, files }
    }

    fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    fn contents(&self) -> [String; 3] {
        [0, 1, 2].map(|file| fs::read_to_string(&self.files[file]).unwrap())
    }

    /// Undoes what this journal says.
    fn recover(&self, journal: &str) -> Result<Vec<Recovered>, LeaseError> {
        fs::write(self.state().join("lease-1-0.journal"), journal).unwrap();
        Leases::at(self.state()).recover()
    }

    fn journal(&self, records: &[Forged]) -> String {
        let member = json!({"task": {"tid": 1, "start": 0}, "process": 1, "session": 1});
        let mut writes: Vec<usize> = Vec::new();
        let json = |record: &Forged| match record {
            Forged::Old(file, old) => {
                if !writes.contains(file) {
                    writes.push(*file);
                }
                of_file("old", &self.files[*file], old)
            }
            Forged::New(file, new) => of_file("new", &self.files[*file], new),
            Forged::Intent(file, old, new) => {
                let known = writes.iter().position(|it| it == file);
                let write = known.unwrap_or(writes.len());
                if known.is_none() {
                    writes.push(*file);
                }
                let setting = json!({"kind": "file", "path": self.files[*file]});
                json!({"intent": {"write": write, "change": write, "setting": setting, "old": old, "new": new}})
            }
            Forged::Done(write, now) => json!({"done": {"write": write, "now": now}}),
            Forged::Undoing(write) => json!({"undoing": {"write": write}}),
            Forged::Undone(write) => json!({"undone": {"write": write}}),
            Forged::Masks => {
                json!({"masks": {"own": "0-3", "narrow": "0", "unconfined": true, "members": [member]}})
            }
            Forged::Lease => header(),
            Forged::Torn => json!({"old": 7}),
        };
        lines(std::iter::once(&Forged::Lease).chain(records).map(json))
    }
}

/// Of another boot, so that threads are left alone.
fn header() -> Value {
    json!({"lease": {"lease_format": 2, "pid": 1, "what": "x", "boot": "another", "since": 0, "tool_version": "1"}})
}

fn of_file(kind: &str, path: &Path, content: &str) -> Value {
    json!({kind: {"path": path, kind: content}})
}

/// Numbered, with good checksums.
fn lines(records: impl Iterator<Item = Value>) -> String {
    let line = |(n, mut record): (usize, Value)| {
        (record["n"], record["at_s"]) = (n.into(), 0.into());
        let text = record.to_string();
        format!("{:08x} {text}\n", crc32fast::hash(text.as_bytes()))
    };
    records.enumerate().map(line).collect()
}

/// A write of a journal.
struct Noted<'a> {
    file: usize,
    old: &'a str,
    values: BTreeSet<&'a str>,
    is_undone: bool,
    is_intended: bool,
}

/// What the files say after such a journal; None where it is refused.
fn expected(records: &[Forged], before: &[String; 3]) -> Option<[String; 3]> {
    let mut noted: Vec<Noted<'_>> = Vec::new();
    let place = |noted: &[Noted<'_>], file: &usize| noted.iter().position(|it| it.file == *file);
    for (index, record) in records.iter().enumerate() {
        match record {
            Forged::Old(2, _) | Forged::Intent(2, ..) | Forged::Lease => return None,
            Forged::Old(file, _) if place(&noted, file).is_some() => return None,
            Forged::Old(file, old) => noted.push(Noted {
                file: *file,
                old,
                values: BTreeSet::new(),
                is_undone: false,
                is_intended: true,
            }),
            Forged::New(file, new) => {
                let known = place(&noted, file)?;
                let known = &mut noted[known];
                if known.is_undone {
                    return None;
                }
                known.values.insert(new);
                known.is_intended = true;
            }
            Forged::Intent(file, old, new) => match place(&noted, file) {
                Some(place) if noted[place].old != old || noted[place].is_undone => return None,
                Some(place) => {
                    noted[place].values.insert(new);
                    noted[place].is_intended = true;
                }
                None => noted.push(Noted {
                    file: *file,
                    old,
                    values: BTreeSet::from([new.as_str()]),
                    is_undone: false,
                    is_intended: true,
                }),
            },
            Forged::Done(write, now) => {
                let known = noted.get_mut(*write).filter(|it| it.is_intended)?;
                known.values.insert(now);
                known.is_intended = false;
            }
            Forged::Undoing(write) => {
                let known = noted.get_mut(*write).filter(|it| !it.is_undone)?;
                known.is_intended = false;
            }
            Forged::Undone(write) => {
                let known = noted.get_mut(*write).filter(|it| !it.is_undone)?;
                (known.is_undone, known.is_intended) = (true, false);
            }
            Forged::Masks => {}
            // The last line may be torn, by a crash.
            Forged::Torn if index + 1 == records.len() => {}
            Forged::Torn => return None,
        }
    }
    let mut after = before.clone();
    for it in noted.iter().filter(|it| !it.is_undone) {
        if it.values.contains(before[it.file].as_str()) {
            after[it.file] = it.old.to_owned();
        }
    }
    Some(after)
}

#[test]
fn two_old_contents_of_a_file_are_refused() {
    let place = Place::new(["0", "", ""]);
    let twice = [
        Forged::Old(0, "1".into()),
        Forged::New(0, "0".into()),
        Forged::Old(0, "2".into()),
    ];
    let error = place
        .recover(&place.journal(&twice))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("line 4") && error.contains("has an old content already"),
        "{error}"
    );
    assert_eq!(place.contents()[0], "0");
}

/// No record is compared with each other one: this takes a moment, and not minutes.
#[test]
fn a_journal_of_very_many_files_is_undone() {
    let place = Place::new(["", "", ""]);
    let path = |number: usize| place.state().join(format!("file-{number}"));
    let of_one = |number: usize| {
        [
            of_file("old", &path(number), "a"),
            of_file("new", &path(number), "b"),
        ]
    };
    let last = 19_999;
    fs::write(path(last), "b").unwrap();
    let journal = lines(std::iter::once(header()).chain((0..=last).flat_map(of_one)));
    let recovered = place.recover(&journal).unwrap();
    assert_eq!(recovered[0].undone.len(), last + 1);
    assert_eq!(
        (
            &recovered[0].undone[0].result,
            &recovered[0].undone[1].result
        ),
        (
            &UndoResult::Restored {
                from: "b".into(),
                to: "a".into(),
                note: None
            },
            &UndoResult::Gone
        )
    );
    assert_eq!(fs::read_to_string(path(last)).unwrap(), "a");
}

#[test]
fn a_huge_file_is_not_read_to_its_end() {
    let place = Place::new(["", "", ""]);
    fs::File::create(&place.files[0])
        .unwrap()
        .set_len(1 << 30)
        .unwrap();
    let refused = Leases::at(place.state())
        .take("a test")
        .unwrap()
        .set_file(&place.files[0], b"1");
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("more than 4 MiB"), "{error}");
}

fn any_record() -> impl Strategy<Value = Forged> {
    prop_oneof![
        6 => (0..2_usize, "[ab]").prop_map(|(file, old)| Forged::Old(file, old)),
        6 => (0..2_usize, "[ab]").prop_map(|(file, new)| Forged::New(file, new)),
        12 => (0..2_usize, "[ab]", "[ab]").prop_map(|(file, old, new)| Forged::Intent(file, old, new)),
        6 => (0..2_usize, "[ab]").prop_map(|(write, now)| Forged::Done(write, now)),
        2 => (0..2_usize).prop_map(Forged::Undoing),
        2 => (0..2_usize).prop_map(Forged::Undone),
        1 => "[ab]".prop_map(|old| Forged::Old(2, old)),
        1 => "[ab]".prop_map(|old| Forged::Intent(2, old.clone(), old)),
        1 => Just(Forged::Masks),
        1 => Just(Forged::Lease),
        1 => Just(Forged::Torn),
    ]
}

proptest! {
    #[test]
    fn what_was_noted_is_put_back_where_what_was_noted_is_found(
        records in prop::collection::vec(any_record(), 0..7),
        before in prop::array::uniform3("[abc]"),
    ) {
        let place = Place::new([0, 1, 2].map(|file| before[file].as_str()));
        let recovered = place.recover(&place.journal(&records));
        let expected = expected(&records, &before);
        prop_assert_eq!(recovered.is_ok(), expected.is_some(), "{:?}", recovered);
        prop_assert_eq!(place.contents(), expected.unwrap_or(before));
    }
}

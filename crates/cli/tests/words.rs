//! The words of pages, help and sources, and the width of pages.
//!
//! Help comes from the sources, so it is checked with them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Words that must not come back, in any case, with what to write instead.
const WORDS: &[(&str, &str)] = &[
    ("mend", "fix"),
    ("mends", "fixes"),
    ("mended", "fixed"),
    ("not_known_because", "unknown_reason"),
    ("stopped_because", "stopped_reason"),
    ("undone_because", "undone_reason"),
    ("not known, because", "unknown: ..."),
    ("not checked, because", "not checked: ..."),
    ("doubt", "warning"),
    ("doubts", "warnings"),
    ("difference can be told", "no significant difference"),
    ("sent home", "confined again"),
    ("lies far", "is on a remote node"),
    (
        "managed, never written",
        "managed by the kernel, cannot be changed",
    ),
    ("it is no regular file", "not a regular file"),
    ("bears witness", "verifies"),
    ("bear witness", "verify"),
    ("hears out", "drains"),
    ("lest", "so that not"),
    ("nobody", "no process, nothing"),
    ("somebody", "another process, another user"),
    ("whoever", "the process that"),
    ("beside", "next to, relative to, together with"),
    ("seldom", "rarely"),
    ("anew", "again"),
    ("shall", "has to"),
    ("stranger", "attacker, unrelated task"),
    ("strangers", "ignored tasks"),
    ("is told", "receives"),
    ("cannot be told", "is unknown"),
    ("in vain", "without result"),
    ("hurried", "contended"),
    ("let out", "released"),
    ("lets out", "releases"),
    ("comes home", "is on the preferred node again"),
];

/// Identifiers that must not come back, in this case.
const NAMES: &[(&str, &str)] = &[("Expelled", "MustMove"), ("is_told", "is_significant")];

/// Keys of earlier snapshots and stores, which are still read: a part of the file's path and the word.
const STORED: &[(&str, &str)] = &[
    ("machine/src/known.rs", "not_known_because"),
    ("runs/src/store/schema.rs", "doubts"),
];

/// Columns of a line of a page, outside of tables and code.
const MAX_COLUMNS: usize = 100;

#[test]
fn retired_words_do_not_come_back() {
    let mut found = Vec::new();
    let files = pages().into_iter().chain(sources());
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for (number, line) in text.lines().enumerate() {
            let lower = line.to_lowercase();
            let words = WORDS.iter().filter(|(word, _)| has_word(&lower, word));
            let names = NAMES.iter().filter(|(name, _)| has_word(line, name));
            let path = file.strip_prefix(root()).unwrap().display().to_string();
            let is_stored = |word: &str| {
                let mut stored = STORED.iter();
                stored.any(|(place, key)| path.contains(place) && *key == word)
            };
            let retired = words.chain(names).filter(|(old, _)| !is_stored(old));
            found.extend(
                retired.map(|(old, new)| format!("{path}:{}: {old:?}: write {new:?}", number + 1)),
            );
        }
    }
    assert!(
        found.is_empty(),
        "{} places:\n{}",
        found.len(),
        found.join("\n")
    );
}

/// How many type names stand for several things in their crate. None is added, and a crate that has fewer says so here.
const SHARED_NAMES: &[(&str, usize)] = &[
    ("bench", 14),
    ("cli", 4),
    ("lab-delay", 1),
    ("prefer", 2),
    ("trace", 3),
];

#[test]
fn a_type_name_stands_for_one_thing_in_its_crate() {
    let mut places: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for file in sources() {
        let path = file.strip_prefix(root()).unwrap().display().to_string();
        let Some((name, file)) = path
            .strip_prefix("crates/")
            .and_then(|path| path.split_once("/src/"))
        else {
            continue;
        };
        let text = fs::read_to_string(root().join(&path)).unwrap();
        let product = text.split("#[cfg(test)]").next().unwrap_or_default();
        for line in product.lines() {
            let words = line.trim_start().trim_start_matches("pub(crate) ");
            let words = words
                .trim_start_matches("pub(super) ")
                .trim_start_matches("pub ");
            // A `type` inside an implementation is a trait's.
            let is_own = !line.starts_with(' ') || !words.starts_with("type ");
            let mut words = words.split(|c: char| !c.is_alphanumeric() && c != '_');
            let is_type =
                ["struct", "enum", "trait", "type", "union"].contains(&words.next().unwrap());
            if is_type && is_own {
                let key = (name.to_owned(), words.next().unwrap().to_owned());
                places.entry(key).or_default().push(file.to_owned());
            }
        }
    }
    let mut shared: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for ((name, kind), files) in places.iter().filter(|(_, files)| files.len() > 1) {
        let all = shared.entry(name.clone()).or_default();
        all.push(format!("{kind}: {}", files.join(", ")));
    }
    let counts: BTreeMap<&str, usize> = SHARED_NAMES.iter().copied().collect();
    let now: BTreeMap<&str, usize> = shared
        .iter()
        .map(|(name, all)| (name.as_str(), all.len()))
        .collect();
    assert_eq!(now, counts, "{shared:#?}");
}

#[test]
fn lines_of_pages_end_in_time() {
    let mut found = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let mut is_code = false;
        for (number, line) in text.lines().enumerate() {
            let line = line.trim_start_matches("> ");
            if line.trim_start().starts_with("```") {
                is_code = !is_code;
            }
            // A line of one long word, such as a link, cannot be broken.
            let is_free = is_code || line.starts_with('|') || !line.trim().contains(' ');
            let columns = line.chars().count();
            if !is_free && columns > MAX_COLUMNS {
                let page = page.strip_prefix(root()).unwrap().display();
                found.push(format!("{page}:{}: {columns} columns", number + 1));
            }
        }
        assert!(!is_code, "{}: a code block has no end", page.display());
    }
    assert!(
        found.is_empty(),
        "more than {MAX_COLUMNS} columns; tools/wrap-docs wraps them:\n{}",
        found.join("\n")
    );
}

#[test]
fn a_word_is_found_whole_only() {
    assert!(has_word("they mend it", "mend") && has_word("mend: 3", "mend"));
    assert!(!has_word("recommended, amend", "mend") && !has_word("is_told_off", "is_told"));
}

/// Whether the line has the word with no letter, digit or underscore next to it.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + word.len()..]);
        !before.ends_with(is_part) && !after.starts_with(is_part)
    })
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// README.md, CONTRIBUTING.md, CHANGELOG.md and every page of docs/.
fn pages() -> Vec<PathBuf> {
    let own = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root().join(name));
    let docs = below(&root().join("docs")).into_iter();
    docs.filter(|file| has_extension(file, "md"))
        .chain(own)
        .collect()
}

/// The Rust sources of all crates and tools, without their tests.
fn sources() -> Vec<PathBuf> {
    let folders = [root().join("crates"), root().join("tools")];
    let files = folders.iter().flat_map(|folder| below(folder));
    let is_source = |file: &PathBuf| {
        let has_src = file.components().any(|part| part.as_os_str() == "src");
        has_src && has_extension(file, "rs")
    };
    let files: Vec<_> = files.filter(is_source).collect();
    assert!(files.len() > 100, "only {} sources were found", files.len());
    files
}

fn has_extension(file: &Path, extension: &str) -> bool {
    file.extension().is_some_and(|found| found == extension)
}

fn below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let mut files = Vec::new();
    for entry in entries {
        match entry.file_type().unwrap().is_dir() {
            true => files.extend(below(&entry.path())),
            false => files.push(entry.path()),
        }
    }
    files.sort();
    files
}

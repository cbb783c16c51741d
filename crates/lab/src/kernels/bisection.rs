//! The commits of a bisection: `git bisect` in a repository of its own, which borrows the objects of the user's and leaves it as it is.
//!
//! ```text
//!  begin(good, bad) ─► next: Commit ─► kernel built, measured ─► mark: good, bad, skip ─┐
//!                        ▲ └─► First, AnyOf                                             │
//!                        └──────────────────────────────────────────────────────────────┘
//! ```

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::build::{BUILDS, GitSource, borrow_objects, git, git_command, lock_of, output};
use crate::cache::Cache;
use crate::packages::{refused, sha256_of_bytes};

/// A commit of a repository.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Commit {
    pub hash: String,
    /// The first line of its message.
    pub subject: String,
}

impl Commit {
    /// As much of its name as tells it apart.
    pub fn short(&self) -> &str {
        self.hash.get(..12).unwrap_or(&self.hash)
    }
}

impl GitSource {
    /// Its commit, without patches.
    ///
    /// # Errors
    /// What git says.
    pub fn described(&self) -> Result<Commit, String> {
        let words = ["log", "-1", "--format=%H %s", &self.commit, "--"];
        let shown = git(&self.repository, words)?;
        Ok(described(&shown))
    }
}

/// Of `HASH SUBJECT`.
fn described(line: &str) -> Commit {
    let line = line.trim_end();
    let (hash, subject) = line.split_once(' ').unwrap_or((line, ""));
    Commit {
        hash: hash.to_owned(),
        subject: subject.to_owned(),
    }
}

/// What is known of the first bad commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Next {
    /// This one tells most; so many are left, those that were skipped included.
    Test {
        commit: Commit,
        left: u64,
    },
    First(Commit),
    /// Only commits that were skipped are left.
    AnyOf(Vec<Commit>),
}

/// What is found of a commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    Good,
    Bad,
    Skip,
}

/// A bisection that is under way.
#[derive(Debug)]
pub struct Bisection {
    folder: PathBuf,
    /// Held for as long as it is at work.
    _lock: File,
}

/// What git writes in its folder; a line of it for each answer.
const LOG: &str = "BISECT_LOG";

impl Bisection {
    /// One of these revisions of a repository; `key`: all else that decides what is found. One that is under way goes on if `continues`.
    ///
    /// # Errors
    /// Revisions with patches; a bad one that does not come after the good one.
    pub fn begin(
        cache: &Cache,
        (good, bad): (&GitSource, &GitSource),
        key: &str,
        continues: bool,
    ) -> Result<Self, String> {
        if let Some(patched) = [good, bad].into_iter().find(|it| !it.patches.is_empty()) {
            return Err(format!("{}: a bisection is of commits", patched.spec));
        }
        let repository = good.repository.to_string_lossy();
        let parts = [&*repository, &good.commit, &bad.commit, key];
        let hash = sha256_of_bytes(parts.join("\0").as_bytes());
        let name = format!("bisection-{}", &hash[..16]);
        let folder = cache.root().join(BUILDS).join(name);
        fs::create_dir_all(&folder).map_err(refused(folder.display()))?;
        let (lock, is_free) = lock_of(&folder).map_err(refused(folder.display()))?;
        if !is_free {
            return Err("another process is at it".to_owned());
        }
        let own = Self {
            folder,
            _lock: lock,
        };
        let begun = match (own.git_folder().join(LOG).exists(), continues) {
            (true, true) => return Ok(own),
            (false, true) => Err("there is none of this command to go on with".to_owned()),
            (_, false) => own.start(good, bad),
        };
        if begun.is_err() {
            // Without a log it is of no use.
            let _ = fs::remove_dir_all(&own.folder);
        }
        begun.map(|()| own)
    }

    fn start(&self, good: &GitSource, bad: &GitSource) -> Result<(), String> {
        let _ = fs::remove_dir_all(self.git_folder());
        let _ = fs::remove_file(self.notes());
        self.git(["init", "--quiet", "--bare", "--template="])?;
        borrow_objects(&good.repository, &self.git_folder())?;
        self.git(["update-ref", "--no-deref", "HEAD", &bad.commit])?;
        let between = |from: &GitSource, to: &GitSource| {
            let range = format!("{}..{}", from.commit, to.commit);
            self.git(["rev-list", "--count", &range])
                .map(|it| it.trim() != "0")
        };
        if !between(good, bad)? {
            let hint = match between(bad, good)? {
                true => ", but before it: are --good and --bad swapped?",
                false => "",
            };
            return Err(format!(
                "{} does not come after {}{hint}",
                bad.spec, good.spec
            ));
        }
        self.answered(["start", "--no-checkout", &bad.commit, &good.commit])
    }

    /// A file for what else is known of it.
    pub fn notes(&self) -> PathBuf {
        self.folder.join("notes.json")
    }

    fn git_folder(&self) -> PathBuf {
        self.folder.join("git")
    }

    /// What is to be tested, or was found.
    ///
    /// # Errors
    /// What git says.
    pub fn next(&self) -> Result<Next, String> {
        let log = self.log()?;
        let of = |line: &str, what: &str| {
            let (hash, subject) = line.strip_prefix(what)?.split_once("] ")?;
            Some(Commit {
                hash: hash.to_owned(),
                subject: subject.to_owned(),
            })
        };
        let any_of = log
            .lines()
            .filter_map(|it| of(it, "# possible first bad commit: ["));
        let any_of: Vec<Commit> = any_of.collect();
        let mut lines = log.lines();
        match lines.find_map(|it| of(it, "# first bad commit: [")) {
            Some(first) => return Ok(Next::First(first)),
            None if !any_of.is_empty() => return Ok(Next::AnyOf(any_of)),
            None => {}
        }
        let shown = self.git(["log", "-1", "--format=%H %s", "BISECT_HEAD", "--"])?;
        let suspects = ["--not", "--glob=refs/bisect/good-*"];
        let left = self.git(
            ["rev-list", "--count", "refs/bisect/bad"]
                .into_iter()
                .chain(suspects),
        )?;
        Ok(Next::Test {
            commit: described(&shown),
            left: left.trim().parse().unwrap_or(0),
        })
    }

    /// Marks a commit that was to be tested.
    ///
    /// # Errors
    /// What git says.
    pub fn mark(&self, commit: &Commit, mark: Mark) -> Result<(), String> {
        let word = match mark {
            Mark::Good => "good",
            Mark::Bad => "bad",
            Mark::Skip => "skip",
        };
        self.answered([word, &commit.hash])
    }

    /// Runs `git bisect`, whose exit code is not 0 where it has an answer that is not one commit.
    fn answered<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Result<(), String> {
        let before = self.log().unwrap_or_default();
        let done = self.git(["bisect"].into_iter().chain(words));
        match done {
            Err(problem) if self.log()? == before => Err(problem),
            _ => Ok(()),
        }
    }

    fn log(&self) -> Result<String, String> {
        let path = self.git_folder().join(LOG);
        let log = fs::read(&path).map_err(refused(path.display()))?;
        Ok(String::from_utf8_lossy(&log).into_owned())
    }

    fn git<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Result<String, String> {
        let folder = self.git_folder();
        let mut command = git_command(&self.folder);
        command.env("GIT_DIR", &folder).args(words);
        output(&mut command)
    }
}

//! A directory in memory, as an archive is read into it: nothing is written anywhere, and no path of it leads out.

use std::collections::{BTreeMap, VecDeque};

use nearfar_proc::rooted::MAX_LINKS;
use rustix::io::Errno;

use super::Reason;

#[derive(Debug, Clone)]
pub enum Entry {
    File(Vec<u8>),
    /// What a symbolic link says.
    Link(String),
    Folder(Folder),
}

/// The entries of a directory, by name.
#[derive(Debug, Clone, Default)]
pub struct Folder(pub BTreeMap<String, Entry>);

/// What a path leads to.
enum Found<'a> {
    File(&'a [u8]),
    Link(&'a str),
    Folder(&'a Folder),
}

impl Folder {
    /// The directory at a path without links and `..`, made where it is missing, and how many were made on the way; none
    /// where a file is in the way.
    pub fn make(&mut self, path: &str) -> Option<(&mut Self, u64)> {
        names(path).try_fold((self, 0), |(here, made), name| {
            let is_there = here.0.contains_key(name);
            let next = here.0.entry(name.to_owned());
            match next.or_insert_with(|| Entry::Folder(Self::default())) {
                Entry::Folder(next) => Some((next, made + u64::from(!is_there))),
                Entry::File(_) | Entry::Link(_) => None,
            }
        })
    }

    pub fn remove(&mut self, path: &str) {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        if let Some((folder, _)) = self.make(above) {
            folder.0.remove(name);
        }
    }

    /// The content of a file.
    pub fn file(&self, path: &str) -> Result<&[u8], Reason> {
        match self.find(path, true)? {
            Found::File(content) => Ok(content),
            Found::Link(_) | Found::Folder(_) => Err(Reason::NotAFile),
        }
    }

    pub(super) fn folder(&self, path: &str) -> Result<&Self, Reason> {
        match self.find(path, true)? {
            Found::Folder(folder) => Ok(folder),
            Found::File(_) | Found::Link(_) => Err(Reason::Absent),
        }
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.find(path, true).is_ok()
    }

    /// What a link says.
    pub(super) fn link(&self, path: &str) -> Result<&str, Reason> {
        match self.find(path, false)? {
            Found::Link(target) => Ok(target),
            // As of readlinkat(2).
            Found::File(_) | Found::Folder(_) => Err(super::reason(Errno::INVAL)),
        }
    }

    /// Follows links as if this directory were `/`, the last of them only if asked.
    fn find(&self, path: &str, follow_last: bool) -> Result<Found<'_>, Reason> {
        let mut parts: VecDeque<&str> = names(path).collect();
        let mut above: Vec<&Self> = Vec::new();
        let mut links = 0;
        while let Some(part) = parts.pop_front() {
            if part == ".." {
                above.pop();
                continue;
            }
            let here = above.last().copied().unwrap_or(self);
            match here.0.get(part).ok_or(Reason::Absent)? {
                Entry::Folder(next) => above.push(next),
                Entry::Link(target) if follow_last || !parts.is_empty() => {
                    links += 1;
                    if links > MAX_LINKS {
                        let reason = "too many levels of symbolic links".to_owned();
                        return Err(Reason::Other(reason));
                    }
                    if target.starts_with('/') {
                        above.clear();
                    }
                    names(target).rev().for_each(|name| parts.push_front(name));
                }
                Entry::Link(target) => return Ok(Found::Link(target)),
                Entry::File(content) if parts.is_empty() => return Ok(Found::File(content)),
                Entry::File(_) => return Err(Reason::Absent),
            }
        }
        Ok(Found::Folder(above.last().copied().unwrap_or(self)))
    }
}

fn names(path: &str) -> impl DoubleEndedIterator<Item = &str> {
    path.split('/')
        .filter(|name| !name.is_empty() && *name != ".")
}

//! Writing files below the new tree's root.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Mutex;

/// The root of the tree.
pub struct Output {
    root: PathBuf,
    /// Directories that are there already: asking the system for each of half a million files takes long.
    made: Mutex<BTreeSet<String>>,
}

impl Output {
    /// A new, empty root.
    pub fn new(root: PathBuf) -> io::Result<Self> {
        std::fs::create_dir_all(&root)?;
        if std::fs::read_dir(&root)?.next().is_some() {
            return Err(io::Error::other(format!("{} is not empty", root.display())));
        }
        Ok(Self {
            root,
            made: Mutex::default(),
        })
    }

    /// Writes one file; a line end is added, as the kernel does.
    pub fn line(&self, path: &str, content: impl std::fmt::Display) -> io::Result<()> {
        self.bytes(path, format!("{content}\n").as_bytes())
    }

    /// Writes one file as it is.
    pub fn bytes(&self, path: &str, content: &[u8]) -> io::Result<()> {
        self.parent(path)?;
        std::fs::write(self.root.join(path), content)
    }

    /// Makes a symbolic link; `target` is a path from the root and becomes one relative to the link.
    pub fn link(&self, path: &str, target: &str) -> io::Result<()> {
        self.parent(path)?;
        let up = "../".repeat(path.matches('/').count());
        symlink(format!("{up}{target}"), self.root.join(path))
    }

    /// Makes a directory.
    pub fn directory(&self, path: &str) -> io::Result<()> {
        let mut made = self
            .made
            .lock()
            .map_err(|_| io::Error::other("a thread failed"))?;
        if made.insert(path.to_owned()) {
            std::fs::create_dir_all(self.root.join(path))?;
        }
        Ok(())
    }

    fn parent(&self, path: &str) -> io::Result<()> {
        path.rsplit_once('/')
            .map_or(Ok(()), |(parent, _)| self.directory(parent))
    }
}

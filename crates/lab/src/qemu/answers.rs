//! What a QEMU answers about itself: its version, its options, its devices. Asking takes a tenth of a second, which is a third of the
//! start of a saved guest, so the answers are kept in the cache, with the size and the times of the program that gave them.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::{ask, devices_in};
use crate::cache::Cache;
use crate::error::LabError;

/// The answers of one program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Answers {
    program: PathBuf,
    /// Size, modification time in seconds and nanoseconds, inode.
    identity: (u64, i64, i64, u64),
    /// What `--version` prints.
    pub version: String,
    /// Whether `-h` lists `-plugin`.
    pub has_plugins: bool,
    /// What `-device help` lists; nothing where that fails.
    pub devices: BTreeSet<String>,
}

impl Answers {
    /// Of a program, asked once in a process, and once for all processes where the cache can be written.
    pub fn of(program: &Path) -> Result<Arc<Self>, LabError> {
        type Known = HashMap<PathBuf, Arc<Answers>>;
        static KNOWN: Mutex<Option<Known>> = Mutex::new(None);
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.get_or_insert_default();
        let identity = identity(program)?;
        if let Some(answers) = known
            .get(program)
            .filter(|answers| answers.identity == identity)
        {
            return Ok(answers.clone());
        }
        let answers = match Self::kept(program, identity) {
            Some(answers) => answers,
            None => Self::asked(program, identity)?,
        };
        let answers = Arc::new(answers);
        known.insert(program.to_owned(), answers.clone());
        Ok(answers)
    }

    fn asked(program: &Path, identity: (u64, i64, i64, u64)) -> Result<Self, LabError> {
        let version = ask(program, &["--version"])?;
        let (options, devices) = (ask(program, &["-h"]), ask(program, &["-device", "help"]));
        // One that fails now may do better the next time.
        let is_whole = options.is_ok() && devices.is_ok();
        let has_plugins =
            options.is_ok_and(|text| text.lines().any(|line| line.starts_with("-plugin ")));
        let devices = devices_in(&devices.unwrap_or_default());
        let answers = Self {
            program: program.to_owned(),
            identity,
            version,
            has_plugins,
            devices,
        };
        if is_whole {
            answers.keep();
        }
        Ok(answers)
    }

    fn kept(program: &Path, identity: (u64, i64, i64, u64)) -> Option<Self> {
        let text = fs::read(file(program)?).ok()?;
        let kept: Self = serde_json::from_slice(&text).ok()?;
        (kept.identity == identity && kept.program == program).then_some(kept)
    }

    /// Where they cannot be kept, the next process asks again. Renamed, so that no process reads half of them.
    fn keep(&self) {
        let Some(file) = file(&self.program) else {
            return;
        };
        let Some(folder) = file.parent() else { return };
        let written =
            fs::create_dir_all(folder).and_then(|()| tempfile::NamedTempFile::new_in(folder));
        if let (Ok(mut new), Ok(bytes)) = (written, serde_json::to_vec(self))
            && new.write_all(&bytes).is_ok()
        {
            let _ = new.persist(file);
        }
    }
}

/// Only what the system installs is kept: a QEMU of one's own build changes, and one of a test is gone soon.
fn file(program: &Path) -> Option<PathBuf> {
    let name = program.file_name()?.to_str()?;
    let is_installed = ["/usr/bin", "/usr/local/bin"]
        .iter()
        .any(|folder| program.starts_with(folder));
    is_installed.then(|| {
        Cache::of_user()
            .ok()
            .map(|cache| cache.root().join("probes").join(format!("{name}.json")))
    })?
}

fn identity(program: &Path) -> Result<(u64, i64, i64, u64), LabError> {
    let seen = fs::metadata(program)
        .map_err(|error| LabError::system(format!("cannot run {}", program.display()), error))?;
    Ok((seen.len(), seen.mtime(), seen.mtime_nsec(), seen.ino()))
}

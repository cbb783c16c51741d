//! What a saved guest depends on. A guest that differs in any of it is another one.

use std::fmt::Write as _;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::cache::RECORD_FORMAT;
use crate::error::LabError;
use crate::guest::arguments;
use crate::guest::{PreparedGuest, launch};
use crate::packages::sha256;
use crate::start::Start;
use nearfar_machine::Acceleration;

/// The name of a saved guest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Key {
    /// 64 hexadecimal digits.
    pub digest: String,
    /// What they were made of, a fact a line.
    pub made_of: String,
}

impl Key {
    /// The key of a guest: the format, QEMU, its whole command line but for what is not part of the guest (folders of the
    /// host, descriptors, the delay plugin), the kernel, the first root and, on the host's own CPUs, what those can.
    ///
    /// # Errors
    /// When QEMU, the kernel or the firmware is gone.
    pub fn of(prepared: &PreparedGuest, kernel: &Path, archive: &[u8]) -> Result<Self, LabError> {
        // Any folder may be shared with a guest that starts from it.
        let mut same = prepared.clone();
        same.request.results = None;
        same.delay = None;
        same.kernel.modules = same.kernel.modules.map(|_| PathBuf::from("/"));
        let words = arguments::arguments(&same, Start::Load, kernel, &launch::shown);
        let mut text = format!("format {RECORD_FORMAT}\n");
        // The kernel as the user has it: the file that is loaded may be one of the cache, whose times are those of its last use.
        for file in [&prepared.qemu.program, &prepared.kernel.image]
            .into_iter()
            .chain(&prepared.design.firmware)
        {
            text += &format!("file {}\n", identity(file)?);
        }
        let mut first_root = DefaultHasher::new();
        archive.hash(&mut first_root);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "first root {} bytes {:016x}",
            archive.len(),
            first_root.finish()
        );
        if prepared.acceleration == Acceleration::Kvm {
            text += &host_cpu();
        }
        let _ = writeln!(text, "{}", words.join("\n"));
        Ok(Self {
            digest: sha256::of_bytes(text.as_bytes()),
            made_of: text,
        })
    }
}

/// A file by its path, size and times: reading a kernel would take longer than starting a guest.
fn identity(path: &Path) -> Result<String, LabError> {
    let seen = fs::metadata(path)
        .map_err(|error| LabError::system(format!("cannot read {}", path.display()), error))?;
    Ok(format!(
        "{} {:?}",
        path.display(),
        (seen.len(), seen.mtime(), seen.mtime_nsec(), seen.ino())
    ))
}

/// The host's CPU, its features and its kernel: under KVM a guest has what these give it.
fn host_cpu() -> String {
    let information = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let first = information.split("\n\n").next().unwrap_or_default();
    // Clock speeds change all the time.
    let lines = first
        .lines()
        .filter(|line| !line.contains("MHz") && !line.contains("bogomips"));
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    format!("host {release}\n{}\n", lines.collect::<Vec<_>>().join("\n"))
}

//! What tasks have open of a device.

use serde::Serialize;

use crate::known::Known;

/// The files of a device that a task has open or mapped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskFiles {
    pub pid: i32,
    /// By name and kind; not empty.
    pub files: Known<Vec<UsedFiles>>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct UsedFiles {
    /// The kernel's name of the block or character device: `nvme0n1p2`, `uverbs0`.
    pub name: String,
    pub kind: UseKind,
    /// Open descriptors, or mapped files.
    pub count: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum UseKind {
    /// The device itself is open.
    Device,
    /// A file of the file system on it is open.
    File,
    /// It, or a file of the file system on it, is mapped.
    Mapping,
}

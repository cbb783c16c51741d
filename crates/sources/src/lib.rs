//! Reads a NUMA machine from any source: each gives the same [`Machine`](nearfar_machine::Machine),
//! with "unknown: ..." for what it cannot see.
//!
//! ```text
//! live system, --root DIR ──► sysfs ─────────┐
//! file, stdin ──► what is it? ─► bundle ─► sysfs
//!                             ─► snapshot    │
//!                             ─► hwloc_xml   ├──► Machine ──► fake ──► Machine with fake nodes
//!                             ─► text        │
//!                             ─► description │
//! gallery name ───────────────► description  │
//! "node:2 core:4" ────────────► synthetic ───┘
//! ```
//!
//! [`read`] is the way in; several sources of one machine are joined. A source that contradicts itself is read as far as it goes; the contradiction travels with
//! the machine as a warning. Nothing in here decides anything, prints anything or writes to the system.
//!
//! What no machine has more of, as a length of lists.

mod bundle;
pub mod description;
mod device_files;
mod error;
pub mod fake;
pub mod hwloc_xml;
mod join;
pub mod packed;
mod parallel;
mod request;
pub mod snapshot;
pub mod synthetic;
pub mod sysfs;
pub mod text;
pub mod tree;
mod value;

pub use device_files::{DeviceNumbers, add_open_devices, device_numbers};
pub use error::{SourceError, TextError};
pub use request::{
    GalleryEntry, Request, TaskScope, Want, gallery, gallery_text, read, read_bytes,
};

/// The most nodes a kernel can have.
pub(crate) const MOST_NODES: usize = nearfar_machine::MOST_NODES as usize;

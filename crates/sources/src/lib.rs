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

mod bundle;
mod device_files;
mod error;
mod finish;
mod gallery;
mod join;
mod limits;
mod parallel;
mod recognise;
mod request;
mod value;
mod want;
mod warnings;

pub mod description;
pub mod fake;
pub mod hwloc_xml;
pub mod packed;
pub mod snapshot;
pub mod synthetic;
pub mod sysfs;
pub mod text;
pub mod tree;

pub use device_files::{DeviceNumbers, device_numbers};
pub use error::{SourceError, TextError};
pub use gallery::{GalleryEntry, gallery, text as gallery_text};
pub use request::{Request, read, read_bytes};

pub use want::{TaskScope, Want};

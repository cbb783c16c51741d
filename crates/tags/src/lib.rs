//! Hands out the integers 0..N to any number of threads.
//!
//! ```
//! let tags = nearfar_tags::Tags::new(255)?;
//! let tag = tags.try_get().expect("none is held");
//! assert!(tag.number() < 255);
//! drop(tag); // free again
//! # Ok::<(), nearfar_tags::BuildError>(())
//! ```

mod apart;
mod auto;
mod batch;
mod bitmap;
mod builder;
mod caches;
mod coarse;
mod cpu;
mod deferred;
mod event;
mod fork;
mod future;
mod guard;
mod locked;
mod order;
mod policy;
mod pool;
mod rseq;
mod shards;
mod size;
mod statistics;
mod supply;
mod sync;
mod tags;
mod topology;
mod waiters;

pub use batch::Batch;
pub use builder::{BuildError, Builder};
pub use future::{Get, GetOwned};
pub use guard::{OwnedTag, Tag};
pub use policy::Policy;
pub use statistics::{Statistics, Steals};
pub use tags::{ResizeError, Tags};
pub use topology::{Cpu, Group, Topology};

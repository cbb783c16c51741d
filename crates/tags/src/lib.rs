//! Hands out the integers 0..N to any number of threads: buffer indexes, request identifiers, hardware queue slots.
//!
//! ```
//! let tags = nearfar_tags::Tags::new(255)?;
//! let tag = tags.try_get().expect("none is held");
//! assert!(tag.number() < 255);
//! drop(tag); // free again
//! # Ok::<(), nearfar_tags::BuildError>(())
//! ```
//!
//! # Forms
//!
//! [`Tags::get`] waits; [`Tags::get_timeout`] waits for some time:
//!
//! ```
//! # use std::{thread, time::Duration};
//! # use nearfar_tags::Tags;
//! let tags = Tags::new(1)?;
//! let tag = tags.get();
//! assert!(tags.get_timeout(Duration::from_millis(1)).is_none());
//! thread::scope(|scope| {
//!     scope.spawn(|| assert_eq!(tags.get().number(), 0));
//!     drop(tag); // for the thread that waits
//! });
//! # Ok::<(), nearfar_tags::BuildError>(())
//! ```
//!
//! [`Tags::get_async`] works under any executor. A future that is dropped loses no tag:
//!
//! ```
//! # use nearfar_tags::Tags;
//! async fn send(tags: &Tags, request: &[u8]) {
//!     let slot = tags.get_async().await;
//!     // ... `request` in the slot of this number; free again at the end.
//! #   let _ = (slot, request);
//! }
//! ```
//!
//! Several at once, and numbers without a guard:
//!
//! ```
//! # use nearfar_tags::Tags;
//! let tags = Tags::new(8)?;
//! let batch = tags.try_get_batch(3);
//! assert_eq!(batch.numbers().len(), 3);
//! drop(batch);
//!
//! let number = tags.try_take().expect("all are free");
//! tags.put(number);
//! # Ok::<(), nearfar_tags::BuildError>(())
//! ```
//!
//! A guard that keeps the allocator alive, for a thread or task that outlives the caller; a `static` works as well:
//!
//! ```
//! # use std::{sync::{Arc, LazyLock}, thread};
//! # use nearfar_tags::Tags;
//! let tags = Arc::new(Tags::new(8)?);
//! let tag = tags.get_owned();
//! thread::spawn(move || println!("{}", tag.number()));
//!
//! static SLOTS: LazyLock<Tags> = LazyLock::new(|| Tags::new(64).expect("64 is a possible size"));
//! let slot = SLOTS.get();
//! # drop(slot);
//! # Ok::<(), nearfar_tags::BuildError>(())
//! ```
//!
//! Tags for work that frees others, and another size while tags are in use:
//!
//! ```
//! # use nearfar_tags::Tags;
//! let tags = Tags::builder(8).reserved(1).capacity(32).build()?;
//! let reserved = tags.reserved().expect("one is reserved");
//! assert_eq!(reserved.try_get().expect("it is free").number(), 0);
//! assert_eq!(tags.resize(32), Ok(0)); // none above it is held
//! assert_eq!(tags.free(), 31);
//! # Ok::<(), nearfar_tags::BuildError>(())
//! ```
//!
//! # Policies
//!
//! [`Policy::Auto`] needs no argument. Those that search the nearest CPU first are told where each CPU is:
//!
//! ```
//! # use nearfar_tags::{Cpu, Group, Policy, Tags, Topology};
//! let cpu = |core, node| Some(Cpu::new(core, node));
//! let cpus = vec![cpu(0, 0), cpu(1, 0), cpu(2, 1), cpu(3, 1)];
//! let topology = Topology::new(cpus, vec![vec![10, 21], vec![21, 10]]);
//! let tags = Tags::builder(255)
//!     .policy(Policy::Coarse(Group::Node))
//!     .topology(topology)
//!     .build()?;
//! # drop(tags);
//! # Ok::<(), nearfar_tags::BuildError>(())
//! ```
//!
//! # Guarantees
//!
//! - No tag has two holders, and none is lost.
//! - A get fails only if there was a moment without a free tag; tags that another call moves count as held, and are bounded.
//! - A thread that is stopped keeps no tag but those that it holds or moves. The policies with locks give this only while it has
//!   locked nothing.
//! - Waiters are served in the order of their arrival, and no wake-up is lost.
//! - A forked child panics when it takes a tag of its parent's allocator, and its puts change nothing.
//! - If the kernel refuses `membarrier` after it granted it (a seccomp filter that is installed later), `Auto` goes on without caches.
//!   It empties them by running on each of their CPUs; where the kernel refuses that as well, the tags of a CPU's cache count as held
//!   until a get of a thread on that CPU meets no other free tag.
//! - While no caller waits or begins to, [`Tags::try_take`] and [`Tags::put`] are async-signal-safe under [`Policy::Auto`] and
//!   [`Policy::Coarse`].

mod auto;
mod builder;
mod caches;
mod coarse;
mod deferred;
mod fork;
mod guard;
mod locked;
mod pool;
mod rseq;
mod shards;
mod sync;
mod tags;
#[cfg(test)]
mod tests;
mod topology;
mod waiters;
mod word;

pub use builder::{BuildError, Builder, Policy};
pub use guard::{Batch, Get, GetBatch, GetOwned, OwnedTag, Tag};
pub use tags::{ReservedTags, ResizeError, Statistics, Tags};
pub use topology::{Cpu, Group, Steals, Topology};

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! The load: on each CPU one pinned process that burns a constant share of it.
//!
//! ```text
//!  CPU 0   ▂▂████▂▂▂████▂▂▂████▂▂     periods of about 10 ms; their phases are random, their lengths vary a
//!  CPU 1   ██▂▂▂███▂▂▂▂████▂▂▂███     little, so that the processes never march in step
//! ```
//!
//! Each process steers by two clocks: until the end of each period it owes `percent` of all time since its start, and
//! burns what is still missing by its own CPU clock. So errors do not add up. What a contended CPU does not let it burn
//! is made up for later, but never more than a twentieth of a second of it: a load that was starved must not become a
//! hog. What it really got is in [`LoadReport`].

mod handle;
mod report;
mod serve;
mod steering;

pub use handle::Load;
pub use report::{LoadOnCpu, LoadReport};
pub use serve::serve;

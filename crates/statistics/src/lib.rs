//! What samples say together, and when they cannot say.
//!
//! ```text
//! samples ──► Summary     median, quartiles, how sure the median is, what stands apart
//!         ──► Moments     mean, standard deviation, least and most
//! sides   ──► compare     is B better than A, by how much, and would more samples tell?
//! pairs   ──► spearman    do both rank the same way?
//! levels  ──► law         how throughput grows with the number of tasks, and where it stops growing
//! draws   ──► strata      shares of a population that is too large to count
//! hosts   ──► outliers    which hosts of a group that should be alike deviate, in which cells and by how much
//! rows    ──► regression  how much of the time each migration cost, or why that is unknown
//! ```
//!
//! Pure: numbers in, numbers out. Nothing in here knows what was measured or draws.

pub mod compare;
pub mod law;
pub mod outliers;
pub mod regression;
pub mod strata;
mod summary;

pub use summary::{Figures, Interval, Moments, Summary, block_medians, spearman};

/// How sure every confidence interval is.
pub const CONFIDENCE: f64 = 0.95;

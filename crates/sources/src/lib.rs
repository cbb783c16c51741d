//! (being written)
mod parallel;
pub mod sysfs;
pub mod tree;
mod want;
pub use want::{TaskScope, Want};

//! (being written)
pub mod tree;
mod want;
pub use want::{TaskScope, Want};

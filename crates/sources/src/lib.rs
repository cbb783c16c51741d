//! (being written)
pub mod tree;

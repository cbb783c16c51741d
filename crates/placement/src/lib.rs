//! (being written)
pub mod change;

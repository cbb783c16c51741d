//! The loops that are timed, and nothing else: builds for tests optimise this crate and leave `bench`, which calls it, as it is.
//!
//! None of them is generic or inlined into its caller: what runs is what was compiled here.

pub mod access;
pub mod additions;
pub mod chase;
pub mod hand_over;
pub mod vectors;

//! A preferred node without a kernel patch: tasks stay on their node while it has room, leave while it is full, and come back.

pub mod cgroup;
pub mod config;
pub mod matching;
pub mod near;
pub mod psi;

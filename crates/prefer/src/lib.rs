//! A preferred node without a kernel patch: tasks stay on their node while it has room, leave while it is full, and come back.

pub mod cgroup;
pub mod config;
pub mod keeper;
pub mod matching;
pub mod near;
pub mod psi;
pub mod rule;
pub mod service;

pub use keeper::{Keeper, KeeperError, KeeperOptions, KeeperReport, Memory, OpenProcess, Targets};

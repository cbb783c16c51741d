//! The integration tests of this crate, in one program: each file here is a module.

mod balancing;
mod format;
mod live;
mod locks;
mod migrations;
mod nvme;
mod order;
mod records;
mod watch;

//! One file a verb: its arguments, and which crates answer it.

pub mod ab;
pub mod apply;
pub mod audit;
pub mod bench;
pub mod case;
pub mod checkup;
pub mod compare;
pub mod completions;
pub mod exporter;
pub mod fleet;
pub mod lab;
pub mod lease_guard;
pub mod man;
pub mod path;
pub mod plan;
pub mod prefer;
pub mod rollback;
pub mod runs;
pub mod snapshot;
pub mod spread;
pub mod tasks;
pub mod top;
pub mod topo;
pub mod trace;

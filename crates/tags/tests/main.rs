//! The integration tests of this crate, in one program: each file here is a module. Some run what the examples run, for a shorter time.

mod auto;
mod exclusive;
mod fork;
mod linearizable;
#[path = "../examples/stress/owners.rs"]
mod owners;
mod published_policies;
#[path = "../examples/stopped/reach.rs"]
mod reach;
mod refused;
mod reserved;
mod resident;
mod resize;
#[path = "../examples/stress/scenario.rs"]
mod scenario;
mod stopped;
#[path = "../examples/stress/storm.rs"]
mod storm;
mod stress;
#[path = "support/system.rs"]
mod system;
mod tasks;
#[path = "../examples/stopped/tracer.rs"]
mod tracer;
#[path = "support/variants.rs"]
mod variants;
mod waiting;
#[path = "../examples/stress/workers.rs"]
mod workers;

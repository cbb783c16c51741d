//! The integration tests of this crate, in one program: each file here is a module.

mod audit_devices;
mod audit_isolated;
mod audit_memory;
mod audit_system;
mod common;
mod fallback;
mod kernel_spread;
mod locality;
mod nvme_replica;
mod owner;
mod pairs;
mod path;
mod plan;
mod properties;
mod rules;
mod spread;
mod tasks;
mod worst;

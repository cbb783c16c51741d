//! The integration tests of this crate, in one program: each file here is a module.

#[path = "../../sources/tests/any_machine/mod.rs"]
mod any_machine;
mod booting;
mod cache;
mod delay;
mod design;
mod design_any;
mod differences;
mod guest_archive;
mod guest_commands;
mod guest_endings;
mod guest_host_bridge;
mod guest_warm;
mod kernels;
mod packages;
mod packages_network;
mod qemu;
mod scale;

//! Turning a described machine into a guest with a real Linux kernel, and running commands in it.
//!
//! ```text
//!  Machine ──► Design ───────────► QEMU's arguments ─┐
//!              (nodes, CPUs,                         ├──► Guest ──► exec, hot plug, power off
//!               bridges, devices)  Kernel, Qemu ─────┘
//! ```
//!
//! The design is pure: a machine goes in, typed virtual hardware comes out. Kernels and QEMU are found, fetched and
//! probed; a guest is a running process that leaves nothing behind, however it ends.

pub mod advice;
pub mod arch;
pub mod cache;
pub mod delay;
pub mod design;
pub mod doctor;
pub mod error;
pub mod foreign;
pub mod guest;
pub mod kernels;
pub mod packages;
pub mod qemu;
pub mod repeat;
pub mod request;
pub mod scale;
pub mod shell;

pub use arch::Arch;
pub use error::LabError;
pub use guest::Start;

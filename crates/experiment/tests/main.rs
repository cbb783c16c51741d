//! The integration tests of this crate, in one program: each file here is a module.

mod carry_out;
mod resources;
mod sampler;
mod targets;

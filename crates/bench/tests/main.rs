//! The integration tests of this crate, in one program: each file here is a module.

mod choosing;
mod here;
mod latency;
mod made_up;
mod matrix;
mod refused;
mod survey;

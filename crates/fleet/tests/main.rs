//! The integration tests of this crate, in one program: each file here is a module.

mod folder;
mod regression;
mod simulated;
mod survey;

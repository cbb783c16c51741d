//! The integration tests of this crate, in one program: each file here is a module.

mod services;
mod web;

//! The integration tests of this crate, in one program: each file here is a module.

mod cgroup;
mod config;
#[path = "../../change/tests/support/examples.rs"]
mod examples;
mod give_back;
mod keeper;
mod many;
mod matching;
mod model;
mod near;
mod record_first;
mod roster;
mod rule;
mod support;

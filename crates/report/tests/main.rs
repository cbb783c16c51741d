//! The integration tests of this crate, in one program: each file here is a module.

mod ab;
mod changes;
mod document;
mod experiments;
mod explain;
mod fleet;
mod html;
mod lab;
#[path = "../../bench/tests/made_up/mod.rs"]
mod made_up;
mod page;
mod palette;
mod pictures;
mod prefer;
mod probe;
mod random;
mod run_page;
mod samples;
mod stored;
mod surveys;
mod tags;
mod text;
mod trace;

//! Runs the command `nearfar` in tests.
//!
//! ```text
//! Sandbox ──► Nearfar ──► Answer      run: waits for the end
//!                    └──► Running     start: signals, lines as they come, then an Answer
//! ```
//!
//! A command runs in a [`Sandbox`] with an environment of its own: it reads no file of the user who runs the tests, and
//! writes none. A failed expectation prints the command, its directory with a listing, the exit status and both outputs.
//! assert_cmd prints neither directory nor listing, and has no signals and no waiting for a line.

#![allow(
    dead_code,
    unused_imports,
    reason = "each of two programs uses some of it"
)]

mod answer;
mod running;
mod sandbox;

pub use answer::Answer;
pub use running::{Lines, Owned, Running};
pub use sandbox::{NEARFAR, Nearfar, Sandbox};

/// `nearfar` with these arguments, in a sandbox of its own.
pub fn nearfar<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Nearfar {
    Sandbox::new().nearfar(arguments)
}

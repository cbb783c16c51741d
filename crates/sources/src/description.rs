//! Descriptions that people write: what the gallery in `machines/` is made of, and what an emulated machine boots from.
//!
//! ```toml
//! description = "two packages with SMT, an NVMe disk on the second"
//! distances = [[10, 21], [21, 10]]       # row: from; column: to; nodes in ascending order; "-" is a hole
//!
//! [cpu]
//! threads_per_core = 2
//!
//! [[node]]                               # numbered 0, 1, ... unless `id` says otherwise
//! cpus = 8                               # so many more, or a list such as "0-3,8-11"
//! memory = "16G"
//! [[node]]
//! cpus = 8
//! memory = "16G"
//!
//! [[bridge]]
//! root = "0000:20"
//! firmware_node = 1                      # what the kernel says follows from it, unless `node` says otherwise
//! [[nvme]]
//! controllers = [{ bridge = "0000:20" }]
//! ```
//!
//! All keys are in docs/descriptions.md. An unknown one is an error, so that a typing mistake does not silently describe
//! another machine.

mod build;
mod devices;
mod fault;
mod file;
mod tasks;
mod timing;

use nearfar_machine::Machine;

use crate::error::TextError;

/// Reads a description file.
///
/// # Errors
/// Names the line and the key: unknown keys, wrong values, numbers that do not fit each other.
pub fn parse(text: &str, place: &str) -> Result<Machine, TextError> {
    let faults = fault::Faults::of(text, place);
    let file: file::Description = toml::from_str(text).map_err(|error| faults.syntax(&error))?;
    let machine = build::machine(&file, &faults)?;
    let Some(fake) = &file.fake else {
        return Ok(machine);
    };
    let spec = fake
        .get_ref()
        .parse()
        .map_err(|error| faults.at(fake, "fake", error))?;
    crate::fake::lay(machine, &spec).map_err(|error| faults.at(fake, "fake", error))
}

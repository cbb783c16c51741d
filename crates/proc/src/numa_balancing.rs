//! `kernel.numa_balancing`, a set of bits (Documentation/admin-guide/sysctl/kernel.rst): 1 moves pages between nodes, 2
//! moves them between tiers of memory. A kernel in mode 2 alone does not bring pages near their tasks.

use std::io;

use nearfar_machine::NumaBalancing;

use crate::text;

/// The sysctl.
pub const FILE: &str = "/proc/sys/kernel/numa_balancing";

/// The mode of the running kernel; off when the kernel was built without NUMA balancing.
///
/// # Errors
/// When the file is there and cannot be read, or holds no number.
pub fn read() -> io::Result<NumaBalancing> {
    match std::fs::read(FILE) {
        Ok(content) => text::number(&content)
            .map(NumaBalancing)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not a number")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(NumaBalancing::OFF),
        Err(error) => Err(error),
    }
}

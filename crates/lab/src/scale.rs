//! Scaling a machine down to what a laptop can emulate: so many CPUs and so much memory on each node.
//!
//! ```text
//! node 0  0-23   63 GiB  ──►  0-1  512 MiB      --scale cpus=2,memory=512M
//! node 1  24-47  64 GiB  ──►  2-3  512 MiB      nodes, distances, devices and their nodes stay
//! node 2         32 GiB  ──►       512 MiB      a node without CPUs or memory stays without
//! ```

mod cut;

use std::fmt;
use std::str::FromStr;

use nearfar_machine::{Known, Machine, Memory};
use nearfar_sources::{fake, parse_size, render_size};

use crate::design::fakes;
use crate::error::LabError;

/// How much of each node is kept. Nodes without CPUs or without memory stay without.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Scale {
    /// The most CPUs a node keeps; `None` for all.
    pub cpus: Option<u32>,
    /// The memory a node with memory gets, in bytes; `None` for its own size.
    pub memory_bytes: Option<u64>,
}

/// As it is written: `cpus=2,memory=512M`.
impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpus = self.cpus.map(|cpus| format!("cpus={cpus}"));
        let memory = self
            .memory_bytes
            .map(|bytes| format!("memory={}", render_size(bytes)));
        let parts: Vec<String> = cpus.into_iter().chain(memory).collect();
        f.write_str(&parts.join(","))
    }
}

impl FromStr for Scale {
    type Err = String;

    /// `cpus=2,memory=512M`, either part alone, in any order. Sizes take K, M, G or T, powers of 1024.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut scale = Self::default();
        for part in text.split(',') {
            let part = part.trim();
            let fail = |problem: &str| {
                format!(
                    "--scale: {part:?} {problem}; write cpus=2, memory=512M or both with a comma"
                )
            };
            let twice = || fail("is there twice");
            match part.split_once('=') {
                Some(("cpus", count)) => {
                    let count = count.parse().ok().filter(|&count: &u32| count > 0);
                    let count = count.ok_or_else(|| fail("is not a count of CPUs above 0"))?;
                    scale.cpus.replace(count).map_or(Ok(()), |_| Err(twice()))?;
                }
                Some(("memory", size)) => {
                    let bytes = parse_size(size, 1).filter(|&bytes| bytes >= 1 << 20);
                    let bytes = bytes.ok_or_else(|| fail("is not a size of at least 1M"))?;
                    scale
                        .memory_bytes
                        .replace(bytes)
                        .map_or(Ok(()), |_| Err(twice()))?;
                }
                _ => return Err(fail("is not a part of a scale")),
            }
        }
        Ok(scale)
    }
}

/// The machine with each node cut down. A node that has more CPUs than are asked for keeps those with the lowest numbers;
/// CPUs are then numbered without gaps in the order they had, and sets and affinities follow. Fake nodes are laid anew over
/// what is left. Tasks and cpusets are left behind: they are not of the machine.
///
/// # Errors
/// When the fake nodes do not fit the smaller machine.
pub fn scaled(machine: &Machine, scale: Scale) -> Result<Machine, LabError> {
    if scale == Scale::default() {
        return Ok(machine.clone());
    }
    let (mut scaled, spec) = fakes::real(machine);
    let because = "the machine was scaled down";
    scaled.tasks = Known::no(because);
    scaled.cpusets = Known::no(because);
    if let Some(bytes) = scale.memory_bytes {
        for node in scaled
            .nodes
            .iter_mut()
            .filter(|node| node.has_memory() != Some(false))
        {
            node.memory = Known::Yes(Memory::of(bytes));
        }
    }
    if let Some(most) = scale.cpus {
        cut::cut(&mut scaled, most as usize);
    }
    match spec {
        Some(spec) => {
            fake::lay(scaled, &spec).map_err(|problem| LabError::Design(problem.to_string()))
        }
        None => Ok(scaled),
    }
}

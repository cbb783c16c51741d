//! Fake nodes laid over a machine, as the kernel's `numa=fake=` does it, and one layout of our own that also splits
//! the CPUs.
//!
//! ```text
//!   real       node 0          node 1               numa=fake=4: memory in four parts, dealt out in turn
//!   fake     0       2       1       3              CPUs of node 0 are in 0 and 2, those of node 1 in 1 and 3
//!
//!   spec     numbering                              size of one fake
//!   4        round robin over the real nodes        all memory / 4
//!   2G       round robin over the real nodes        2 GiB; the last of a real node takes what is left
//!   2U       node 0's fakes first, then node 1's    real node / 2
//! ```
//!
//! The rules are those of mm/numa_emulation.c: memory is cut in steps of 32 MiB, distances are those of the real nodes
//! (so 10 between fakes of one node), and a real node without memory gets no fake. Three things differ. The kernel
//! cuts addresses and counts holes; here only sizes are known, so a fake may be 32 MiB larger or smaller than in a
//! real boot. The kernel lowers a count above its limit of nodes; here it is refused. And `,cpus` after a spec (`split:4` for
//! `4U,cpus`) is not the kernel's: each fake gets its own part of the CPUs, whole cores together.

mod cut;
mod renumber;
mod split;

use std::str::FromStr;

use nearfar_machine::Machine;

use crate::limits::MOST_NODES;
use crate::warnings::excerpt;
use nearfar_machine::size;

/// How memory is cut into fake nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// This many nodes in all, dealt out over the real nodes in turn.
    Count(u32),
    /// Nodes of this many bytes, dealt out in turn.
    Size(u64),
    /// Each real node into this many.
    Each(u32),
}

/// A layout of fake nodes, read from `4`, `2G`, `2U`, each perhaps with `,cpus`; or `split:4`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FakeSpec {
    cut: Cut,
    split_cpus: bool,
    text: String,
}

impl FakeSpec {
    /// How memory is cut.
    pub fn cut(&self) -> Cut {
        self.cut
    }

    /// Whether each fake gets its own part of the CPUs, which the kernel cannot do.
    pub fn splits_cpus(&self) -> bool {
        self.split_cpus
    }
}

impl std::fmt::Display for FakeSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FakeError {
    #[error(
        "--fake {text:?}: {problem}; write N (nodes in all), a size with M or G (bytes of a node), NU (fakes of each \
         node), any of them with \",cpus\" to split the CPUs too, or split:N for NU,cpus"
    )]
    Spec {
        /// What was given, cut to a readable length.
        text: String,
        problem: &'static str,
    },
    #[error(
        "--fake {text}: that makes {nodes} nodes; a Linux kernel has at most {MOST_NODES}; ask for fewer"
    )]
    TooMany { text: String, nodes: u64 },
    #[error(
        "--fake {text}: {bytes} bytes of memory cannot be cut into {parts} parts of at least 32 MiB; ask for fewer parts"
    )]
    TooSmall {
        text: String,
        /// What there is to cut.
        bytes: u64,
        parts: u32,
    },
    #[error("--fake {text}: {reason}; use a count (4 or 2U), which needs no sizes")]
    UnknownSizes {
        text: String,
        /// Why the size is unknown.
        reason: String,
    },
    #[error("--fake {text}: no online node of this machine has memory to cut")]
    NoMemory { text: String },
    #[error(
        "--fake {text}: the machine already has fake nodes ({below}); lay them over the real machine instead"
    )]
    Twice { text: String, below: String },
}

impl FromStr for FakeSpec {
    type Err = FakeError;

    fn from_str(text: &str) -> Result<Self, FakeError> {
        let text = text.trim();
        let fail = |problem| FakeError::Spec {
            text: excerpt(text),
            problem,
        };
        let (cut, split_cpus) = match text.strip_prefix("split:") {
            Some(count) => (Cut::Each(number(count).map_err(fail)?), true),
            None => match text.strip_suffix(",cpus") {
                Some(kernels) => (cut(kernels).map_err(fail)?, true),
                None => (cut(text).map_err(fail)?, false),
            },
        };
        if let Cut::Count(nodes) | Cut::Each(nodes) = cut
            && nodes as usize > MOST_NODES
        {
            return Err(FakeError::TooMany {
                text: excerpt(text),
                nodes: nodes.into(),
            });
        }
        Ok(Self {
            cut,
            split_cpus,
            text: text.to_owned(),
        })
    }
}

fn cut(text: &str) -> Result<Cut, &'static str> {
    if let Some(count) = text.strip_suffix('U') {
        return Ok(Cut::Each(number(count)?));
    }
    if text.ends_with(['M', 'G']) {
        let bytes = size::parse(text, 1).filter(|&bytes| bytes > 0);
        return Ok(Cut::Size(bytes.ok_or("not a size above 0")?));
    }
    // The kernel takes the number before any other letter as a count, so that "2g" gives two nodes: refused here.
    match text.trim_start_matches(|c: char| c.is_ascii_digit()) {
        "" => Ok(Cut::Count(number(text)?)),
        "m" | "g" | "u" => Err("the kernel knows M, G and U in capitals only"),
        rest if rest.starts_with(':') => {
            Err("distances after the layout are not supported: they are inherited")
        }
        _ => Err("not a layout"),
    }
}

fn number(digits: &str) -> Result<u32, &'static str> {
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err("not a count");
    }
    match digits.parse::<u32>().unwrap_or(u32::MAX) {
        0 => Err("0 nodes are not a layout"),
        count => Ok(count),
    }
}

/// Lays fake nodes over a machine.
///
/// What refers to a real node refers to its lowest fake afterwards (devices, preferred nodes) or to all of them
/// (memory nodes of tasks and cpusets). Nodes that get no fake, because they have no memory or are not online, follow
/// after the fakes, as the kernel numbers them; `fake_of` names the real one.
///
/// # Errors
/// When the layout does not fit the machine.
pub fn lay(machine: Machine, spec: &FakeSpec) -> Result<Machine, FakeError> {
    if let Some(below) = machine
        .origin
        .overlays
        .iter()
        .find(|overlay| overlay.starts_with("fake"))
    {
        return Err(FakeError::Twice {
            text: spec.to_string(),
            below: below.clone(),
        });
    }
    let parts = cut::parts(&machine, spec)?;
    let shares = split::shares(&machine, &parts, spec.split_cpus);
    let mut machine = renumber::machine(machine, &parts, &shares);
    machine.origin.overlays.push(match spec.split_cpus {
        true => format!("fake: {spec} (CPUs split too, which the kernel's numa=fake= does not do)"),
        false => format!("fake: {spec}"),
    });
    Ok(machine)
}

#![allow(dead_code, reason = "each test and example uses a part")]
//! Every policy, and both builds of `Auto`, for tests and examples.

use nearfar_tags::{Builder, Cpu, Group, Policy, Tags, Topology};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Variant {
    pub name: &'static str,
    pub policy: Policy,
    pub without_rseq: bool,
}

const fn variant(name: &'static str, policy: Policy) -> Variant {
    Variant {
        name,
        policy,
        without_rseq: false,
    }
}

pub const STOCK: Variant = variant("stock", Policy::Stock);
pub const LIMIT: Variant = variant("limit", Policy::Limit);
pub const LIMIT_TOPOLOGY: Variant = variant("limit-topology", Policy::LimitTopology);
pub const COARSE_CORE: Variant = variant("coarse-core", Policy::Coarse(Group::Core));
pub const COARSE_LLC: Variant = variant("coarse-llc", Policy::Coarse(Group::Llc));
pub const COARSE_NODE: Variant = variant("coarse-node", Policy::Coarse(Group::Node));
pub const BITMAP: Variant = variant("bitmap", Policy::Bitmap);
pub const AUTO: Variant = variant("auto", Policy::Auto);
pub const AUTO_WITHOUT_RSEQ: Variant = Variant {
    name: "auto-without-rseq",
    policy: Policy::Auto,
    without_rseq: true,
};

pub const ALL: [Variant; 9] = [
    STOCK,
    LIMIT,
    LIMIT_TOPOLOGY,
    COARSE_CORE,
    COARSE_LLC,
    COARSE_NODE,
    BITMAP,
    AUTO,
    AUTO_WITHOUT_RSEQ,
];

impl Variant {
    pub fn builder(&self, tags: u32) -> Builder {
        let builder = Tags::builder(tags).policy(self.policy).topology(topology());
        if self.without_rseq {
            builder.without_rseq()
        } else {
            builder
        }
    }

    /// Whether a signal handler may call `try_take`, and, while no thread waits for a tag, `put`. The other policies lock a cache
    /// or a word: a handler that interrupts the owner of the lock would wait for it forever.
    pub fn is_async_signal_safe(&self) -> bool {
        matches!(self.policy, Policy::Auto | Policy::Coarse(_))
    }
}

/// A machine on which any two CPUs of the host with consecutive numbers are on different nodes, so that all steals of a small host
/// are remote.
pub fn topology() -> Topology {
    topology_of(possible_cpus())
}

pub fn topology_of(cpus: u32) -> Topology {
    let place = |cpu| Some(Cpu::new(cpu, cpu % 2).with_core_group(cpu % 4));
    Topology::new(
        (0..cpus).map(place).collect(),
        vec![vec![10, 21], vec![21, 10]],
    )
}

#[cfg(not(miri))]
pub fn possible_cpus() -> u32 {
    // SAFETY: sysconf reads no memory of the caller.
    let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    u32::try_from(cpus).unwrap_or(1).max(1)
}

#[cfg(miri)]
pub fn possible_cpus() -> u32 {
    2
}

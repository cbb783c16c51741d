//! Settings of the system that decide over locality, and programs that write the same files nearfar does.
//!
//! The mode of automatic NUMA balancing.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::known::Known;
use crate::set::CpuSet;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// `kernel.numa_balancing`: 0 off, 1 on, 2 memory tiering, 3 both.
    pub numa_balancing: Known<u32>,
    /// Where new interrupts go (`/proc/irq/default_smp_affinity`).
    pub default_interrupt_affinity: Known<CpuSet>,
    /// Frequency governor of the first CPU; probes are noisy under `powersave`.
    pub governor: Known<String>,
    /// Transparent huge pages: `always`, `madvise` or `never`.
    pub transparent_huge_pages: Known<String>,
    /// `vm.zone_reclaim_mode`: 1 reclaims on a node before others are used, 2 also by writing pages out, 4 by swapping.
    #[serde(default = "Known::left_out")]
    pub zone_reclaim_mode: Known<u32>,
}

impl Settings {
    pub fn unknown(reason: impl Into<Cow<'static, str>>) -> Self {
        let reason = reason.into();
        let reason = || reason.clone();
        Self {
            numa_balancing: Known::no(reason()),
            default_interrupt_affinity: Known::no(reason()),
            governor: Known::no(reason()),
            transparent_huge_pages: Known::no(reason()),
            zone_reclaim_mode: Known::no(reason()),
        }
    }
}

/// A program or setting that writes interrupt affinities or other placement by itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Writer {
    pub kind: WriterKind,
    /// Running or in force now; unknown where processes cannot be seen.
    pub active: Known<bool>,
    /// The file (and line) that shows it.
    pub evidence: String,
    /// What that file says, in short.
    pub says: String,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WriterKind {
    /// The irqbalance service: moves interrupts every ten seconds.
    Irqbalance,
    /// tuned: a profile with `isolated_cores`, `irq_affinity` or `sysctl` settings.
    Tuned,
    /// systemd-udevd: `.link` files with `IRQAffinity...=` options (systemd 260 and later).
    UdevLink,
    /// A udev rule that writes the files nearfar writes (vendors set `iopolicy` so).
    UdevRule,
    Numad,
}

/// `kernel.numa_balancing`, a set of bits (Documentation/admin-guide/sysctl/kernel.rst).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NumaBalancing(pub u32);

impl NumaBalancing {
    /// Neither bit.
    pub const OFF: Self = Self(0);
    /// Moves pages to the node that uses them.
    pub const NORMAL: Self = Self(1);
    /// Moves pages between fast and slow memory; not between nodes of the same tier.
    pub const MEMORY_TIERING: Self = Self(2);

    /// Whether pages move to the node that uses them. Not so in mode 2, memory tiering alone.
    pub fn is_normal(self) -> bool {
        self.0 & Self::NORMAL.0 != 0
    }

    /// This mode with normal balancing on or off, and memory tiering as it was.
    pub fn with_normal(self, on: bool) -> Self {
        match on {
            true => Self(self.0 | Self::NORMAL.0),
            false => Self(self.0 & !Self::NORMAL.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_tiering_alone_is_not_normal_balancing() {
        let normal = [0, 1, 2, 3].map(|mode| NumaBalancing(mode).is_normal());
        assert_eq!(normal, [false, true, false, true]);
        assert_eq!(NumaBalancing(2).with_normal(true), NumaBalancing(3));
        assert_eq!(
            NumaBalancing(3).with_normal(false),
            NumaBalancing::MEMORY_TIERING
        );
    }
}

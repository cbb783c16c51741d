//! Counts of the kernel since boot that node_exporter leaves out: its default pattern for /proc/vmstat has none of them.

use nearfar_proc::vmstat;

use crate::text::{Kind, Text};

/// Counts since boot. None decreases, although the kernel sums its CPUs one after the other: a difference of two counts could.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KernelCounts {
    hint_faults: Option<Locality>,
    numa_migrated: Option<u64>,
    migrated: Option<u64>,
    migration_failed: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Locality {
    local: u64,
    remote: u64,
}

impl KernelCounts {
    /// Takes the counts in the content of /proc/vmstat.
    pub fn add(&mut self, content: &[u8]) {
        let count = |name| vmstat::count(content, name);
        let all = count("numa_hint_faults").zip(count("numa_hint_faults_local"));
        let faults = all.map(|(all, local)| Locality {
            local,
            remote: all.saturating_sub(local),
        });
        self.hint_faults = match (self.hint_faults, faults) {
            (Some(before), Some(now)) => Some(Locality {
                local: now.local.max(before.local),
                remote: now.remote.max(before.remote),
            }),
            (before, now) => now.or(before),
        };
        self.numa_migrated = self.numa_migrated.max(count("numa_pages_migrated"));
        self.migrated = self.migrated.max(count("pgmigrate_success"));
        self.migration_failed = self.migration_failed.max(count("pgmigrate_fail"));
    }

    /// Writes those that this kernel has.
    pub fn write(&self, text: &mut Text) {
        let mut faults = text.family(
            "nearfar_numa_hint_faults_total",
            Kind::Counter,
            "Page faults that NUMA balancing provoked, by whether the memory was on the node of the CPU; since boot.",
        );
        if let Some(counts) = self.hint_faults {
            faults.sample(&[("locality", &"local")], counts.local as f64);
            faults.sample(&[("locality", &"remote")], counts.remote as f64);
        }
        let mut migrated = text.family(
            "nearfar_numa_pages_migrated_total",
            Kind::Counter,
            "Pages that NUMA balancing moved to where they were used, since boot.",
        );
        if let Some(count) = self.numa_migrated {
            migrated.sample(&[], count as f64);
        }
        let mut all = text.family(
            "nearfar_migrated_pages_total",
            Kind::Counter,
            "Pages that the kernel moved for whatever reason, and those that it could not move; since boot.",
        );
        for (result, count) in [("success", self.migrated), ("fail", self.migration_failed)] {
            if let Some(count) = count {
                all.sample(&[("result", &result)], count as f64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(counts: &KernelCounts) -> String {
        let mut text = Text::default();
        counts.write(&mut text);
        let text = text.finish();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn remote_faults_do_not_decrease_where_the_kernel_counted_a_fault_half() {
        let mut counts = KernelCounts::default();
        counts.add(b"numa_hint_faults 10\nnuma_hint_faults_local 6\n");
        counts.add(b"numa_hint_faults 10\nnuma_hint_faults_local 7\npgmigrate_fail 2\n");
        assert_eq!(
            written(&counts),
            "nearfar_numa_hint_faults_total{locality=\"local\"} 7\n\
             nearfar_numa_hint_faults_total{locality=\"remote\"} 4\n\
             nearfar_migrated_pages_total{result=\"fail\"} 2"
        );
    }

    #[test]
    fn a_kernel_without_the_counts_has_no_metrics_of_them() {
        let mut counts = KernelCounts::default();
        counts.add(b"nr_free_pages 3\n");
        assert_eq!(written(&counts), "");
    }
}

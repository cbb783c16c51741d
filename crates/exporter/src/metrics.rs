//! All metrics of an exporter.

use std::collections::BTreeMap;

use nearfar_live::{DeviceActivity, Look, NodeActivity, NvmePathActivity};
use nearfar_machine::{Machine, NodeId};
use nearfar_placement::audit::{Audit, RuleState, Severity, State, rule};
use nearfar_placement::tasks::Tasks;
use nearfar_proc::meminfo::vmstat;

use crate::services::{OTHER, Services};
use crate::text::{Text, label};

/// What is exported, from look to look.
#[derive(Debug)]
pub struct Metrics {
    services: Services,
    devices: Devices,
    kernel: KernelCounts,
    node_changes: u64,
    nodes: Vec<NodeActivity>,
    /// By rule and severity; empty before the first audit. Rules that found nothing have 0 of their usual severity.
    findings: BTreeMap<(&'static str, Severity), usize>,
    rules: Vec<RuleState>,
    /// Also what is counted since the exporter started, which is nothing where it ends at once.
    with_totals: bool,
}

/// The scan itself.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct ScanFacts {
    /// When it was, in seconds since 1970.
    pub unix_s: f64,
    /// Since the one before, in seconds.
    /// `None` until the second scan.
    pub interval_s: Option<f64>,
    /// CPU time of all scans, in seconds.
    pub cpu_s: f64,
    /// Scans that failed.
    pub errors: u64,
}

impl Metrics {
    pub fn new(services: Services, with_totals: bool) -> Self {
        Self {
            services,
            devices: Devices::default(),
            kernel: KernelCounts::default(),
            node_changes: 0,
            nodes: Vec::new(),
            findings: BTreeMap::new(),
            rules: Vec::new(),
            with_totals,
        }
    }

    /// Adds a look, with its tasks and the content of /proc/vmstat.
    pub fn add(&mut self, look: &Look, tasks: &Tasks, vmstat: &[u8]) {
        self.services.add(tasks, look.seconds);
        self.devices.add(look);
        self.kernel.add(vmstat);
        self.node_changes += look.node_changes;
        self.nodes.clone_from(&look.nodes);
    }

    /// Takes the findings of an audit in place of those of the one before.
    pub fn set_findings(&mut self, audit: &Audit) {
        self.rules.clone_from(&audit.rules);
        let without = audit
            .rules
            .iter()
            .filter(|it| it.state == State::NothingFound);
        let without = without.filter_map(|it| rule(it.rule));
        self.findings = without.map(|rule| ((rule.id, rule.severity), 0)).collect();
        for finding in &audit.findings {
            let key = (finding.rule, finding.severity);
            *self.findings.entry(key).or_default() += 1;
        }
    }

    /// All of it as text.
    pub fn text(&self, machine: &Machine, facts: &ScanFacts) -> String {
        let mut text = Text::default();
        self.services
            .write(&mut text, &self.nodes, self.with_totals);
        self.kernel.write(&mut text);
        if self.with_totals {
            self.devices.write(&mut text);
            self.write_totals(&mut text, facts);
        }
        self.write_machine(&mut text, machine);
        self.write_scan(&mut text, machine, facts);
        text.finish()
    }

    fn write_totals(&self, text: &mut Text, facts: &ScanFacts) {
        text.counter(
            "nearfar_node_changes_total",
            "Threads that were on another node than at the scan before, since the exporter started.",
        )
        .sample(&[], self.node_changes as f64);
        text.counter("nearfar_scan_cpu_seconds_total", "CPU time of all scans.")
            .sample(&[], facts.cpu_s);
        text.counter(
            "nearfar_scan_errors_total",
            "Scans that failed; the metrics are those of the last one that did not.",
        )
        .sample(&[], facts.errors as f64);
        if let Some(interval_s) = facts.interval_s {
            text.gauge(
                "nearfar_scan_interval_seconds",
                "Time between the last scan and the one before; longer than --seconds where scans take much CPU time.",
            )
            .sample(&[], interval_s);
        }
    }

    fn write_machine(&self, text: &mut Text, machine: &Machine) {
        let mut distances = text.gauge(
            "nearfar_node_distance",
            "Distance of the memory of a node from the CPUs of another, as firmware has it; 10 is local.",
        );
        let all = machine.distances.get().into_iter();
        for (from, to, distance) in all.flat_map(|it| it.entries()) {
            if let Some(distance) = distance {
                distances.sample(&[("from", &from), ("to", &to)], f64::from(distance.0));
            }
        }
        let mut findings = text.gauge(
            "nearfar_audit_findings",
            "Findings of nearfar audit by rule; counted every 5 minutes.",
        );
        for ((rule, severity), count) in &self.findings {
            findings.sample(&[("rule", rule), ("severity", severity)], *count as f64);
        }
        let mut states = text.gauge(
            "nearfar_audit_rule_state",
            "1 for the state of a rule of nearfar audit, 0 for the others; judged every 5 minutes.",
        );
        for it in &self.rules {
            for state in State::ALL {
                let is_it = f64::from(u8::from(it.state == state));
                states.sample(&[("rule", &it.rule), ("state", &state.name())], is_it);
            }
        }
    }

    fn write_scan(&self, text: &mut Text, machine: &Machine, facts: &ScanFacts) {
        text.gauge(
            "nearfar_scan_timestamp_seconds",
            "When the last scan was, in seconds since 1970.",
        )
        .sample(&[], facts.unix_s);
        text.gauge("nearfar_build_info", "1, with the version of nearfar.")
            .sample(&[("version", &env!("CARGO_PKG_VERSION"))], 1.0);
        let mut emulation = text.gauge(
            "nearfar_emulation_info",
            "1 on an emulated machine, with its label: all figures are of that machine.",
        );
        if let Some(label) = &machine.origin.emulation {
            emulation.sample(&[("emulation", label)], 1.0);
        }
    }
}

/// Devices, and paths, with series of their own; those after them are together in [`OTHER`].
const MAX_SERIES: usize = 200;

/// Totals since the exporter started.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Devices {
    interrupts: BTreeMap<String, Interrupts>,
    paths: BTreeMap<String, Requests>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Interrupts {
    name: String,
    near: u64,
    far: u64,
    /// Of a device whose node is unknown.
    unknown: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Requests {
    controller: String,
    node: Option<NodeId>,
    count: u64,
}

impl Devices {
    /// Adds what happened since the look before.
    pub fn add(&mut self, look: &Look) {
        for activity in look.devices.get().into_iter().flatten() {
            self.add_interrupts(activity);
        }
        for activity in &look.nvme_paths {
            self.add_requests(activity);
        }
    }

    fn add_interrupts(&mut self, activity: &DeviceActivity) {
        let device = entry(&mut self.interrupts, activity.device.to_string());
        // The first name stays: a label that changes begins another series.
        if device.name.is_empty() {
            device.name = label(&activity.names.join(","));
        }
        match activity.node {
            Some(_) => {
                device.near += activity.near;
                device.far += activity.far;
            }
            None => device.unknown += activity.near + activity.far,
        }
    }

    fn add_requests(&mut self, activity: &NvmePathActivity) {
        let path = entry(&mut self.paths, label(&activity.path));
        if path.controller.is_empty() {
            path.controller = label(&activity.controller);
            path.node = activity.node;
        }
        path.count += activity.requests;
    }

    pub fn write(&self, text: &mut Text) {
        let mut interrupts = text.counter(
            "nearfar_device_interrupts_total",
            "Interrupts of the PCI device on the nearest CPUs (near) and on others (far), since the exporter started.",
        );
        for (device, it) in &self.interrupts {
            let all = [("near", it.near), ("far", it.far), ("unknown", it.unknown)];
            // Both of a device with a node: a ratio of a series that is missing is none.
            let is_of_no_node = it.near + it.far == 0 && it.unknown > 0;
            for (locality, count) in all {
                if count > 0 || is_of_no_node == (locality == "unknown") {
                    let labels: [(&str, &dyn std::fmt::Display); 3] = [
                        ("device", device),
                        ("name", &shown(&it.name, device)),
                        ("locality", &locality),
                    ];
                    interrupts.sample(&labels, count as f64);
                }
            }
        }
        let mut requests = text.counter(
            "nearfar_nvme_path_requests_total",
            "Reads and writes through the path of an NVMe namespace with several, since the exporter started.",
        );
        for (path, it) in &self.paths {
            let node = it
                .node
                .map_or("unknown".to_owned(), |node| node.to_string());
            let labels: [(&str, &dyn std::fmt::Display); 3] = [
                ("path", path),
                ("controller", &shown(&it.controller, path)),
                ("node", &node),
            ];
            requests.sample(&labels, it.count as f64);
        }
    }
}

/// The total of this name, or that of [`OTHER`] where there are too many.
fn entry<T: Default>(totals: &mut BTreeMap<String, T>, name: String) -> &mut T {
    let has_series = totals.len() < MAX_SERIES || totals.contains_key(&name);
    let name = if has_series { name } else { OTHER.to_owned() };
    totals.entry(name).or_default()
}

/// Names of [`OTHER`] would be those of the first that is in it.
fn shown<'a>(name: &'a str, series: &str) -> &'a str {
    if series == OTHER { "" } else { name }
}

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
        let count = |name| vmstat(content, name);
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
        let mut faults = text.counter(
            "nearfar_numa_hint_faults_total",
            "Page faults that NUMA balancing provoked, by whether the memory was on the node of the CPU; since boot.",
        );
        if let Some(counts) = self.hint_faults {
            faults.sample(&[("locality", &"local")], counts.local as f64);
            faults.sample(&[("locality", &"remote")], counts.remote as f64);
        }
        let mut migrated = text.counter(
            "nearfar_numa_pages_migrated_total",
            "Pages that NUMA balancing moved to where they were used, since boot.",
        );
        if let Some(count) = self.numa_migrated {
            migrated.sample(&[], count as f64);
        }
        let mut all = text.counter(
            "nearfar_migrated_pages_total",
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
    use nearfar_machine::{Origin, PciAddress, SourceKind};
    use nearfar_placement::audit::{AuditOptions, audit};

    use super::*;

    fn activity(number: u32, node: Option<u32>, near: u64, far: u64) -> DeviceActivity {
        let address: PciAddress = format!("0000:{number:02x}:00.0").parse().unwrap();
        DeviceActivity {
            device: address,
            names: vec![format!("eth{number}")],
            node: node.map(NodeId),
            near,
            far,
        }
    }

    fn written(devices: &Devices) -> String {
        let mut text = Text::default();
        devices.write(&mut text);
        text.finish()
    }

    #[test]
    fn each_rule_has_its_state_and_one_that_found_nothing_has_0() {
        let origin = Origin::new(SourceKind::NumactlText, "mail");
        let machine = Machine::empty(origin, "it is not in it");
        let audit = audit(&machine, &AuditOptions::default());
        let mut metrics = Metrics::new(Services::new(1, None), false);
        metrics.set_findings(&audit);
        let text = metrics.text(&machine, &ScanFacts::default());
        let states = text
            .lines()
            .filter(|it| it.starts_with("nearfar_audit_rule_state{"));
        let states = states.filter(|it| it.ends_with(" 1")).count();
        assert_eq!(states, audit.rules.len());
        let state = r#"rule="interrupt-far",state="not-checked"} 1"#;
        assert!(text.contains(state), "{text}");
        assert!(!text.contains(r#"nearfar_audit_findings{rule="interrupt-far""#));
        let nothing = r#"nearfar_audit_findings{rule="input-contradiction",severity="fact"} 0"#;
        assert!(text.contains(nothing), "{text}");
    }

    #[test]
    fn interrupts_of_a_device_of_unknown_node_are_neither_near_nor_far() {
        let mut devices = Devices::default();
        devices.add_interrupts(&activity(1, Some(0), 5, 0));
        devices.add_interrupts(&activity(2, None, 0, 7));
        let text = written(&devices);
        let lines: Vec<&str> = text.lines().filter(|it| !it.starts_with('#')).collect();
        let of = |device: u32, locality: &str, count: u64| {
            format!(
                "nearfar_device_interrupts_total{{device=\"0000:0{device}:00.0\",name=\"eth{device}\",\
                 locality=\"{locality}\"}} {count}"
            )
        };
        assert_eq!(
            lines,
            [of(1, "near", 5), of(1, "far", 0), of(2, "unknown", 7)]
        );
    }

    #[test]
    fn devices_after_the_limit_are_together() {
        let mut devices = Devices::default();
        for number in 0..=255 {
            devices.add_interrupts(&activity(number, Some(0), 1, 1));
        }
        let text = written(&devices);
        assert_eq!(text.matches("locality=\"far\"").count(), MAX_SERIES + 1);
        assert!(
            text.contains("{device=\"other\",name=\"\",locality=\"far\"} 56\n"),
            "{text}"
        );
    }

    fn written_counts(counts: &KernelCounts) -> String {
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
            written_counts(&counts),
            "nearfar_numa_hint_faults_total{locality=\"local\"} 7\n\
             nearfar_numa_hint_faults_total{locality=\"remote\"} 4\n\
             nearfar_migrated_pages_total{result=\"fail\"} 2"
        );
    }

    #[test]
    fn a_kernel_without_the_counts_has_no_metrics_of_them() {
        let mut counts = KernelCounts::default();
        counts.add(b"nr_free_pages 3\n");
        assert_eq!(written_counts(&counts), "");
    }
}

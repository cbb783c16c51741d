//! All metrics of an exporter.

use std::collections::BTreeMap;

use nearfar_live::{Look, NodeActivity};
use nearfar_machine::Machine;
use nearfar_placement::audit::Audit;
use nearfar_placement::tasks::Tasks;

use crate::devices::Devices;
use crate::kernel::KernelCounts;
use crate::services::Services;
use crate::text::{Kind, Text};

/// What is exported, from look to look.
#[derive(Debug)]
pub struct Metrics {
    services: Services,
    devices: Devices,
    kernel: KernelCounts,
    node_changes: u64,
    nodes: Vec<NodeActivity>,
    /// By rule and severity; empty before the first audit.
    findings: BTreeMap<(&'static str, String), usize>,
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
        self.findings.clear();
        for finding in &audit.findings {
            let key = (finding.rule, finding.severity.to_string());
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
        text.family(
            "nearfar_node_changes_total",
            Kind::Counter,
            "Threads that were on another node than at the scan before, since the exporter started.",
        )
        .sample(&[], self.node_changes as f64);
        text.family(
            "nearfar_scan_cpu_seconds_total",
            Kind::Counter,
            "CPU time of all scans.",
        )
        .sample(&[], facts.cpu_s);
        text.family(
            "nearfar_scan_errors_total",
            Kind::Counter,
            "Scans that failed; the metrics are those of the last one that did not.",
        )
        .sample(&[], facts.errors as f64);
        if let Some(interval_s) = facts.interval_s {
            text.family(
                "nearfar_scan_interval_seconds",
                Kind::Gauge,
                "Time between the last scan and the one before; longer than --seconds where scans take much CPU time.",
            )
            .sample(&[], interval_s);
        }
    }

    fn write_machine(&self, text: &mut Text, machine: &Machine) {
        let mut distances = text.family(
            "nearfar_node_distance",
            Kind::Gauge,
            "Distance of the memory of a node from the CPUs of another, as firmware has it; 10 is local.",
        );
        let all = machine.distances.get().into_iter();
        for (from, to, distance) in all.flat_map(|it| it.entries()) {
            if let Some(distance) = distance {
                distances.sample(&[("from", &from), ("to", &to)], f64::from(distance.0));
            }
        }
        let mut findings = text.family(
            "nearfar_audit_findings",
            Kind::Gauge,
            "Findings of nearfar audit by rule; counted every 5 minutes.",
        );
        for ((rule, severity), count) in &self.findings {
            findings.sample(&[("rule", rule), ("severity", severity)], *count as f64);
        }
    }

    fn write_scan(&self, text: &mut Text, machine: &Machine, facts: &ScanFacts) {
        text.family(
            "nearfar_scan_timestamp_seconds",
            Kind::Gauge,
            "When the last scan was, in seconds since 1970.",
        )
        .sample(&[], facts.unix_s);
        text.family(
            "nearfar_build_info",
            Kind::Gauge,
            "1, with the version of nearfar.",
        )
        .sample(&[("version", &env!("CARGO_PKG_VERSION"))], 1.0);
        let mut emulation = text.family(
            "nearfar_emulation_info",
            Kind::Gauge,
            "1 on an emulated machine, with its label: all figures are of that machine.",
        );
        if let Some(label) = &machine.origin.emulation {
            emulation.sample(&[("emulation", label)], 1.0);
        }
    }
}

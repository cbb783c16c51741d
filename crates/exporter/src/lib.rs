//! NUMA locality as Prometheus metrics: by service, at a constant cost whatever the number of scrapers.
//!
//! ```text
//! LiveMachine ──► Scanner ──► Services, Devices, KernelCounts ──► text ──► Page ──► Server    GET /metrics
//!  (a look)        (scan)      totals that never decrease        (0.0.4)    └─────► textfile  node_exporter reads it
//! ```
//!
//! A scan happens at an interval, a scrape returns the text of the last one. Docs: docs/exporter.md.

#![allow(
    missing_docs,
    reason = "a comment that would repeat the name is left out"
)]

mod metrics;
mod server;
mod services;
mod text;
mod web;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use globset::{Glob, GlobSet, GlobSetBuilder};
use nearfar_live::{LiveError, LiveMachine, thread_seconds};
use nearfar_machine::Timing;
use nearfar_placement::audit::{AuditOptions, audit};
use nearfar_placement::tasks::{Filter, UnknownMemory};

use metrics::{Metrics, ScanFacts};

pub use server::{Page, Running, Server, Shared};
pub use services::{DROP_AFTER_S, OTHER, Services};
pub use text::{Text, write_textfile};
pub use web::{WebConfig, WebConfigError};

/// The audit is repeated after this long.
const AUDIT_AGE: Duration = Duration::from_secs(300);
const VMSTAT: &str = "/proc/vmstat";

/// What is exported.
#[derive(Clone, Debug)]
pub struct Options {
    /// Services with series of their own at most.
    pub top: usize,
    /// Patterns of their names; empty for all.
    pub services: Vec<String>,
    /// Processes with less memory are left out, in bytes.
    pub min_bytes: u64,
    /// What accesses take, where it was measured.
    pub timing: Option<Timing>,
    /// Also what is counted since the exporter started.
    pub with_totals: bool,
}

/// Scans the running system again and again.
pub struct Scanner {
    live: LiveMachine,
    filter: Filter,
    metrics: Metrics,
    facts: ScanFacts,
    audited: Option<Instant>,
    has_scanned: bool,
}

/// What a scan found.
#[derive(Clone, PartialEq, Debug)]
pub struct Scan {
    /// The metrics.
    pub text: String,
    /// Processes whose memory waits to be looked for the first time.
    pub unread: usize,
    /// Why the memory of others is unknown.
    pub unknown: Vec<UnknownMemory>,
}

impl Scanner {
    /// Reads the machine; the first scan follows.
    ///
    /// # Errors
    /// When a pattern is none, or the running system cannot be read.
    pub fn new(options: &Options) -> Result<Self, ScanError> {
        let services = Services::new(options.top, patterns(&options.services)?);
        let live = LiveMachine::new(nearfar_live::Options {
            min_bytes: options.min_bytes,
            timing: options.timing.clone(),
            ..nearfar_live::Options::default()
        })?;
        Ok(Self {
            live,
            filter: Filter {
                min_bytes: options.min_bytes,
                ..Filter::default()
            },
            metrics: Metrics::new(services, options.with_totals),
            facts: ScanFacts::default(),
            audited: None,
            has_scanned: false,
        })
    }

    /// Scans once more.
    ///
    /// # Errors
    /// When the running system cannot be read. The next scan may succeed.
    pub fn scan(&mut self) -> Result<Scan, ScanError> {
        let begun = thread_seconds();
        let scan = self.scan_and_count(begun);
        self.facts.errors += u64::from(scan.is_err());
        scan
    }

    fn scan_and_count(&mut self, begun: f64) -> Result<Scan, ScanError> {
        let look = self.live.look()?;
        let tasks = self.live.tasks(&look, &self.filter);
        // Where it cannot be read, the counts stay.
        let vmstat = std::fs::read(VMSTAT).unwrap_or_default();
        self.metrics.add(&look, &tasks, &vmstat);
        let is_due = self.audited.is_none_or(|at| at.elapsed() >= AUDIT_AGE);
        // Before, an audit would lack the memory of tasks.
        if is_due && look.cost.memory_unread == 0 {
            // Of an interval, the CPU time of a task would decide by the interval's length whether it is worth a remedy.
            let machine = self.live.machine_since_start();
            self.metrics
                .set_findings(&audit(&machine, &AuditOptions::default()));
            self.audited = Some(Instant::now());
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        self.facts.unix_s = now.unwrap_or_default().as_millis() as f64 / 1000.0;
        // The first scan covers the moment since the start.
        self.facts.interval_s = self.has_scanned.then_some(look.seconds);
        self.has_scanned = true;
        self.facts.cpu_s += thread_seconds() - begun;
        Ok(Scan {
            text: self.metrics.text(self.live.machine(), &self.facts),
            unread: look.cost.memory_unread,
            unknown: tasks.unknown,
        })
    }

    /// How long to wait before the next scan ([`LiveMachine::rest`]).
    pub fn rest(&self, wanted: Duration) -> Duration {
        self.live.rest(wanted)
    }
}

fn patterns(services: &[String]) -> Result<Option<GlobSet>, ScanError> {
    if services.is_empty() {
        return Ok(None);
    }
    let mut set = GlobSetBuilder::new();
    for pattern in services {
        set.add(Glob::new(pattern)?);
    }
    Ok(Some(set.build()?))
}

/// Why there is no scan.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    #[error("cannot use --service: {0}")]
    Pattern(#[from] globset::Error),
    #[error("cannot read the running system: {0}")]
    Live(#[from] LiveError),
}

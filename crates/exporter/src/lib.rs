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

mod connection;
mod devices;
mod kernel;
mod label;
mod metrics;
mod scan;
mod server;
mod services;
mod text;
pub mod textfile;

pub use devices::Devices;
pub use kernel::KernelCounts;
pub use metrics::{Metrics, ScanFacts};
pub use scan::{Options, Scan, ScanError, Scanner};
pub use server::{Page, Running, Server};
pub use services::{DROP_AFTER_S, OTHER, Services};
pub use text::{Kind, Text};

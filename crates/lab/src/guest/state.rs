//! Saving a guest's state and loading it again, by QEMU's monitor (docs/devel/migration of QEMU).
//!
//! ```text
//!  save: boot ─ stop ─ migrate file:STATE
//!  load: -incoming defer ─ device_del placeholders ─ migrate-incoming file:STATE ─ device_add late devices ─ cont
//! ```
//!
//! With `x-ignore-shared` memory is not part of the state: it is in the files that both use.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::PreparedGuest;
use super::boot::BootFailure;
use super::qmp::{Monitor, MonitorError};
use crate::design::Design;
use crate::design::late::LateDevice;

/// The first QEMU with `file:` as a place for a state and with memory of read-only files that a guest may write to.
const SAVES_SINCE: (u32, u32, u32) = (8, 2, 0);
/// How long a state may take to be written or read: it takes some milliseconds a vCPU.
const MAX_MIGRATION_TIME: Duration = Duration::from_secs(20);
/// Time between two questions how far it is.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Why a guest boots and is not saved, although it could have been asked for.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UnsavedReason {
    /// This version of QEMU has no `file:` migration.
    #[error("QEMU {0} does not save guests to files, 8.2 does")]
    Qemu(String),
    /// Power guests with devices that QEMU cannot save.
    #[error(
        "QEMU cannot save its NVMe disks and test devices, and Linux on Power takes PCI devices at run time only with \
         the tools of its firmware"
    )]
    Devices,
    /// QEMU's refusal.
    #[error("QEMU does not save it: {0}")]
    Refused(String),
    /// Earlier attempts to save it or to start it from a saved one failed.
    #[error("{0}")]
    Failed(BootFailure),
}

/// The devices to be plugged in late, for a guest that can be saved.
///
/// # Errors
/// Why it boots instead; `None` where the user asked for that.
pub fn saveable(prepared: &PreparedGuest) -> Result<Vec<LateDevice>, Option<UnsavedReason>> {
    if prepared.is_cold() {
        return Err(None);
    }
    if prepared.qemu.version < SAVES_SINCE {
        return Err(Some(UnsavedReason::Qemu(prepared.qemu.version_text())));
    }
    let late = prepared.design.late_devices();
    late.map_err(|_| Some(UnsavedReason::Devices))
}

/// Stops a guest's vCPUs.
pub fn stop(monitor: &mut Monitor) -> Result<(), MonitorError> {
    monitor.execute("stop", json!({})).map(drop)
}

/// Saves the state of a guest that is stopped.
pub fn save(monitor: &mut Monitor, uri: &str) -> Result<(), MonitorError> {
    ignore_memory(monitor)?;
    monitor.execute("migrate", json!({ "uri": uri }))?;
    finished(monitor)
}

/// Loads a state, plugs in the devices that are not part of it, and lets the guest run.
pub fn load(
    monitor: &mut Monitor,
    uri: &str,
    design: &Design,
    late: &[LateDevice],
) -> Result<(), MonitorError> {
    for id in design.placeholders() {
        monitor.execute("device_del", json!({ "id": id }))?;
    }
    ignore_memory(monitor)?;
    monitor.execute("migrate-incoming", json!({ "uri": uri }))?;
    finished(monitor)?;
    for device in late {
        monitor.execute("device_add", device.arguments.clone())?;
    }
    monitor.execute("cont", json!({})).map(drop)
}

fn ignore_memory(monitor: &mut Monitor) -> Result<(), MonitorError> {
    let capability = json!([{ "capability": "x-ignore-shared", "state": true }]);
    monitor
        .execute(
            "migrate-set-capabilities",
            json!({ "capabilities": capability }),
        )
        .map(drop)
}

/// Waits for the end of a migration.
fn finished(monitor: &mut Monitor) -> Result<(), MonitorError> {
    let started = Instant::now();
    while started.elapsed() < MAX_MIGRATION_TIME {
        let seen = monitor.execute("query-migrate", json!({}))?;
        match seen["status"].as_str() {
            Some("completed") => return Ok(()),
            Some("failed" | "cancelled") => {
                let problem = seen.get("error-desc").and_then(Value::as_str);
                return Err(MonitorError::Refused(
                    problem.unwrap_or("QEMU says no reason").to_owned(),
                ));
            }
            _ => std::thread::sleep(POLL_INTERVAL),
        }
    }
    Err(MonitorError::SlowMigration(MAX_MIGRATION_TIME))
}

//! Whether a guest's vCPUs still get their interrupts, seen from QEMU's monitor and from the guest's console.
//!
//! Under emulation a vCPU sometimes loses the end of an interrupt while the guest boots (docs/lab-guests.md has one that was
//! examined): its local APIC keeps the interrupt in service for good, and every interrupt of the same or a lower priority
//! waits behind it, the timer's among them. Such a vCPU still runs what other CPUs send it, so the guest goes on and is wrong,
//! until something waits for that timer. Linux never halts inside an interrupt handler, so a halted vCPU with an interrupt in
//! service is the sign.

use std::fmt;

use serde_json::json;

use super::console::Console;
use super::progress::STALLS;
use super::qmp::{Monitor, MonitorError};
use crate::arch::Arch;

/// A vCPU that waits for an interrupt while its local APIC has one in service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StuckVcpu {
    pub number: usize,
    /// The vectors in service, as QEMU prints them.
    pub in_service: String,
    /// The vectors that wait.
    pub requested: String,
}

impl fmt::Display for StuckVcpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            number,
            in_service,
            requested,
        } = self;
        write!(
            f,
            "vCPU {number} is halted with interrupt {in_service} in service and {requested} waiting"
        )
    }
}

/// A part of a guest that is up does not work.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unhealthy {
    /// CPUs without timer interrupts.
    #[error("CPU {cpus} had no timer interrupt")]
    NoTimer {
        /// Their numbers, with commas.
        cpus: String,
    },
    /// A line of its console that a healthy kernel does not print.
    #[error("its kernel complained: {0}")]
    Complaint(String),
    /// A vCPU that lost the end of an interrupt.
    #[error("{0}")]
    Stuck(StuckVcpu),
}

/// Why a guest counts as hanging.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HangSign {
    /// A vCPU stayed in an interrupt.
    #[error("{0}")]
    Stuck(StuckVcpu),
    /// Its agent is silent.
    #[error("it does not answer for {silent_s} s while QEMU uses hardly any CPU time")]
    Silent {
        /// For how long.
        silent_s: u64,
    },
}

/// The vCPUs that are stuck at this moment. While the guest runs, one look proves nothing: the two registers are not read at
/// the same moment. Only x86-64 has what is looked at; other guests give an empty list.
///
/// # Errors
/// When the monitor is gone.
pub fn stuck_vcpus(
    monitor: &mut Monitor,
    arch: Arch,
    vcpus: usize,
) -> Result<Vec<StuckVcpu>, MonitorError> {
    let mut stuck = Vec::new();
    for number in 0..if arch == Arch::X86_64 { vcpus } else { 0 } {
        let apic = LocalApic::read(monitor, number)?;
        if let Some(in_service) = apic.in_service.clone()
            && is_halted(monitor, number)?
        {
            let requested = apic.requested.unwrap_or_else(|| "none".to_owned());
            stuck.push(StuckVcpu {
                number,
                in_service,
                requested,
            });
        }
    }
    Ok(stuck)
}

/// A line for each vCPU, for the message about a guest that hangs; as far as the monitor answers.
pub fn described(monitor: &mut Monitor, arch: Arch, vcpus: usize) -> String {
    let line = |number| -> Result<String, MonitorError> {
        let apic = LocalApic::read(monitor, number)?;
        let state = if is_halted(monitor, number)? {
            "halted"
        } else {
            "running"
        };
        let show = |vectors: Option<String>| vectors.unwrap_or_else(|| "none".to_owned());
        let (in_service, requested) = (show(apic.in_service), show(apic.requested));
        Ok(format!(
            "vCPU {number} {state}, in service: {in_service}, waiting: {requested}, timer: {}\n",
            apic.timer
        ))
    };
    (0..if arch == Arch::X86_64 { vcpus } else { 0 })
        .map(line)
        .map_while(Result::ok)
        .collect()
}

/// What `info lapic` shows of a vCPU.
struct LocalApic {
    in_service: Option<String>,
    requested: Option<String>,
    timer: String,
}

impl LocalApic {
    fn read(monitor: &mut Monitor, vcpu: usize) -> Result<Self, MonitorError> {
        let text = ask(monitor, vcpu, "info lapic")?;
        let timer = text
            .lines()
            .find(|line| line.starts_with("LVTT\t"))
            .unwrap_or_default();
        let timer = timer
            .split_whitespace()
            .skip(2)
            .collect::<Vec<_>>()
            .join(" ");
        Ok(Self {
            in_service: vectors(&text, "ISR"),
            requested: vectors(&text, "IRR"),
            timer,
        })
    }
}

fn is_halted(monitor: &mut Monitor, vcpu: usize) -> Result<bool, MonitorError> {
    Ok(ask(monitor, vcpu, "info registers")?.contains("HLT=1"))
}

/// The last line of the console that a sound kernel does not print.
pub fn complaint(console: &Console) -> Option<String> {
    /// Besides stalls: lockups (kernel/watchdog.c), BUG() and WARN() (lib/bug.c, kernel/panic.c).
    const COMPLAINTS: [&str; 3] = ["lockup", "BUG:", "WARNING: CPU"];
    let text = console.last_lines(usize::MAX);
    // The kernel repeats its command line, in which a user may have written anything.
    let mut lines = text.lines().filter(|line| !line.contains("ommand line:"));
    let line = lines.rfind(|line| {
        STALLS
            .iter()
            .chain(&COMPLAINTS)
            .any(|words| line.contains(words))
    });
    line.map(str::to_owned)
}

fn ask(monitor: &mut Monitor, vcpu: usize, command: &str) -> Result<String, MonitorError> {
    let answer = monitor.execute(
        "human-monitor-command",
        json!({ "command-line": command, "cpu-index": vcpu }),
    )?;
    Ok(answer.as_str().unwrap_or_default().to_owned())
}

/// The vectors of a row of `info lapic`; `None` for "(none)".
fn vectors(apic: &str, row: &str) -> Option<String> {
    let words = apic.lines().find_map(|line| line.strip_prefix(row))?.trim();
    (!words.is_empty() && words != "(none)").then(|| words.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const APIC: &str = "dumping local APIC state for CPU 1 \r\n\r\nLVTT\t 0x000200ec active-hi edge  periodic\r\n\
        ISR\t 236 \r\nIRR\t (none)\r\n";

    #[test]
    fn vectors_of_a_local_apic_are_read() {
        assert_eq!(vectors(APIC, "ISR").as_deref(), Some("236"));
        assert_eq!(vectors(APIC, "IRR"), None);
        assert_eq!(vectors("", "ISR"), None);
    }

    #[test]
    fn a_complaint_of_the_kernel_is_found_and_other_lines_are_not() {
        let console = Console::default();
        console.hear(b"[    0.0] [Firmware Bug]: TSC doesn't count with P0 frequency!\n");
        console.hear(b"[    0.1] Kernel command line: console=ttyS0 nosoftlockup loglevel=6\n");
        assert_eq!(complaint(&console), None);
        console
            .hear(b"[    9.0] rcu: INFO: rcu_sched self-detected stall on CPU\n[   10.0] fine\n");
        assert!(complaint(&console).is_some_and(|line| line.contains("stall")));
        console.hear(b"[   30.0] watchdog: BUG: soft lockup - CPU#1 stuck for 26s!\n");
        assert!(complaint(&console).is_some_and(|line| line.contains("lockup")));
    }
}

//! Finding QEMU, and finding out what it can do here.

use std::path::PathBuf;

use crate::arch::Arch;
use crate::error::LabError;

/// An installed QEMU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Qemu {
    /// For which guests.
    pub arch: Arch,
    /// The program.
    pub program: PathBuf,
    /// `(10, 0, 2)`.
    pub version: (u32, u32, u32),
    /// Whether it loads TCG plugins whose interface the delay plugin speaks.
    pub plugins: bool,
}

impl Qemu {
    /// Finds the QEMU for guests of an architecture on `PATH`.
    pub fn find(arch: Arch) -> Result<Self, LabError> {
        Err(LabError::Missing { what: arch.qemu_program().to_owned(), hint: "not written yet".to_owned() })
    }

    /// Whether it knows a device (`igb` came with 8.0).
    pub fn has_device(&self, _name: &str) -> bool {
        false
    }
}

/// How the guest's CPUs run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acceleration {
    /// On the host's own CPUs.
    Kvm,
    /// Translated, a host thread a vCPU.
    Tcg,
}

/// KVM where a guest was seen to live under it, software emulation otherwise, with the reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Accelerated {
    /// What guests of this architecture run on here.
    pub acceleration: Acceleration,
    /// Why it is not KVM, in words.
    pub because: Option<String>,
}

/// Probes, once a boot of the host (the answer is kept in the cache folder).
pub fn acceleration(_qemu: &Qemu) -> Accelerated {
    Accelerated { acceleration: Acceleration::Tcg, because: Some("not written yet".to_owned()) }
}

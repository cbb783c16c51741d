//! Null block devices: they take I/O and do nothing, after a delay, with their structures in memory of a chosen node.

use std::path::{Path, PathBuf};
use std::process::Command;

use nearfar_experiment::{BoxError, Resources};
use nearfar_machine::NodeId;

const CONFIGURATION: &str = "/sys/kernel/config/nullb";
/// Mebibytes; nothing is stored.
const SIZE_MIB: &str = "1024";
/// A timer completes each request (Documentation/block/null_blk.rst, `irqmode`).
const BY_TIMER: &str = "2";
const BY_SOFTIRQ: &str = "1";

/// What null_blk is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Null {
    pub(super) node: NodeId,
    pub(super) queues: u32,
    /// 0 for at once.
    pub(super) completion_ns: u64,
}

impl Null {
    /// Makes the device, after loading the module where it is not there.
    ///
    /// # Errors
    /// When the kernel has no null_blk, or refuses.
    pub(super) fn make(&self, resources: &mut Resources) -> Result<PathBuf, BoxError> {
        if !Path::new(CONFIGURATION).is_dir() {
            load();
        }
        let node = self.node.to_string();
        let queues = self.queues.to_string();
        let delay = self.completion_ns.to_string();
        let mode = match self.completion_ns {
            0 => BY_SOFTIRQ,
            _ => BY_TIMER,
        };
        let attributes = [
            ("size", SIZE_MIB),
            ("home_node", &node),
            ("submit_queues", &queues),
            ("irqmode", mode),
            ("completion_nsec", &delay),
        ];
        Ok(resources.null_block(&attributes)?)
    }
}

/// What fails here is said by the lease, with the command to repeat by hand.
fn load() {
    let _ = Command::new("modprobe")
        .args(["null_blk", "nr_devices=0"])
        .output();
    let configuration = Path::new("/sys/kernel/config");
    if configuration.is_dir() && !Path::new(CONFIGURATION).is_dir() {
        let _ = Command::new("mount")
            .args(["-t", "configfs", "configfs"])
            .arg(configuration)
            .output();
    }
}

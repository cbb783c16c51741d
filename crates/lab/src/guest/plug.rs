//! Devices that a guest gets while it runs.

use nearfar_machine::NodeId;

use super::Guest;

/// What can be plugged in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlugDevice {
    /// An NVMe controller with a namespace.
    Nvme,
    /// A virtio disk.
    VirtioBlk,
    /// A virtio network card.
    VirtioNet,
}

/// A device, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HotPlug {
    /// What.
    pub device: PlugDevice,
    /// Behind a host bridge of this node; `None` for any port that is free.
    pub node: Option<NodeId>,
}

impl Guest {
    /// Answers a question from within the guest.
    pub(super) fn asked(&mut self, words: &str) -> String {
        format!("error {words}: not known")
    }
}

//! Devices that a guest gets while it runs.
//!
//! ```text
//!  guest: nearfar-lab plug nvme node=1            host
//!    loads the driver, notes the devices there are
//!    link: "ask 77 plug nvme node=1"  ──────────► a spare port of node 1; QMP device_add
//!    link: "answer 77 ok"             ◄──────────
//!    waits for a new device with a driver
//!    link: "ask 77 plugged"           ──────────► delays, which ended for the plug, begin again
//! ```
//!
//! A hot plug from the host runs the same command in the guest, so both end when the guest's kernel has the device.

use std::fmt;
use std::str::FromStr;

use nearfar_machine::NodeId;
use serde_json::{Value, json};

use crate::arch::Arch;
use crate::delay::Doorbells;
use crate::error::LabError;
use crate::guest::{Guest, Input, Signals, Streams, arguments};
use crate::shell::Exec;

/// What can be plugged in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlugDevice {
    /// An NVMe controller with one namespace.
    Nvme,
    /// A virtio disk.
    VirtioBlk,
    /// A virtio network card, connected to nothing.
    VirtioNet,
    /// A PCI Express switch with an NVMe controller behind it.
    Bridge,
    /// A host bridge with an NVMe controller behind it; on Power only.
    HostBridge,
}

impl PlugDevice {
    /// As `nearfar-lab plug` takes it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Nvme => "nvme",
            Self::VirtioBlk => "virtio-blk",
            Self::VirtioNet => "virtio-net",
            Self::Bridge => "bridge",
            Self::HostBridge => "host-bridge",
        }
    }
}

/// A device, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HotPlug {
    /// What.
    pub device: PlugDevice,
    /// Behind a host bridge of this node; `None` for any port that is free.
    pub node: Option<NodeId>,
}

impl fmt::Display for HotPlug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.device.word())?;
        self.node.map_or(Ok(()), |node| write!(f, " node={node}"))
    }
}

impl FromStr for HotPlug {
    /// What the guest gets to read.
    type Err = String;

    /// `nvme`, `virtio-net node=1`
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut words = text.split_whitespace();
        let word = words.next().unwrap_or_default();
        let all = [
            PlugDevice::Nvme,
            PlugDevice::VirtioBlk,
            PlugDevice::VirtioNet,
            PlugDevice::Bridge,
            PlugDevice::HostBridge,
        ];
        let device = all.into_iter().find(|device| device.word() == word);
        let device = device.ok_or_else(|| {
            format!("{word}: not one of nvme, virtio-blk, virtio-net, bridge, host-bridge")
        })?;
        let mut plug = Self { device, node: None };
        for word in words {
            let number = word.strip_prefix("node=");
            let number = number.and_then(|number| number.parse().ok());
            let number = number.ok_or_else(|| format!("{word}: expected node=NUMBER"))?;
            plug.node = Some(NodeId(number));
        }
        Ok(plug)
    }
}

impl Guest {
    /// Plugs a device into a spare port and waits until the guest's kernel has it.
    ///
    /// # Errors
    /// [`LabError::HotPlug`] when no port is free there, when QEMU refuses, or when the guest does not take it.
    pub fn hot_plug(&mut self, plug: &HotPlug) -> Result<(), LabError> {
        let words = plug.to_string();
        let mut command = vec!["/run/nearfar-lab/bin/nearfar-lab", "plug"];
        command.extend(words.split(' '));
        let mut said = Vec::new();
        let streams = Streams {
            input: Input::Nothing,
            output: Box::new(std::io::sink()),
            errors: Box::new(&mut said),
        };
        let exit = self.exec(&Exec::new(&command), streams, &Signals::none())?;
        if exit.code == 0 {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&said);
        let problem = said.trim().trim_start_matches("nearfar-lab: ");
        Err(LabError::HotPlug {
            problem: problem.to_owned(),
            what: words,
        })
    }

    /// Adds the device. The result is what the guest has to configure by name; it finds other devices by itself.
    pub(super) fn plug(&mut self, plug: HotPlug) -> Result<Option<String>, String> {
        if plug.device == PlugDevice::HostBridge {
            return self.plug_host_bridge(plug.node).map(Some);
        }
        if self.arch == Arch::Powerpc64le {
            return Err(
                "guests of Power take a host-bridge at run time, and no other device".to_owned(),
            );
        }
        let mut ports = self.spare_ports.iter();
        let free = ports.position(|port| plug.node.is_none() || port.node == plug.node);
        let place = free.ok_or_else(|| match plug.node {
            Some(node) => format!("no port is free on a host bridge of node {node}"),
            None => "no port is free".to_owned(),
        })?;
        let port = self.spare_ports[place].id.clone();
        self.suspend_delays();
        for (command, arguments) in steps(plug.device, &port) {
            self.monitor.execute(command, arguments)?;
        }
        let port = self.spare_ports.remove(place);
        self.note_controller(&port.id, port.node);
        Ok(None)
    }

    /// Adds a host bridge with an NVMe controller behind it. The result is the name by which drmgr knows it.
    fn plug_host_bridge(&mut self, node: Option<NodeId>) -> Result<String, String> {
        let first = self.spare_host_bridges.first();
        let number = *first
            .ok_or("no host bridge can be added: guests of Power take up to 30, others none")?;
        self.suspend_delays();
        for (command, arguments) in host_bridge_steps(number, node) {
            self.monitor.execute(command, arguments)?;
        }
        self.spare_host_bridges.remove(0);
        self.note_controller(&host_bridge_id(number), node);
        Ok(format!("PHB {number}"))
    }

    fn note_controller(&mut self, port: &str, node: Option<NodeId>) {
        if let Some(node) = node {
            self.controller_nodes.insert(plugged_id(port), node);
        }
    }

    /// Ends delays while the guest's memory map changes: QEMU 10.0 was seen to abort (`iotlb_to_section`) when the plugin asks
    /// for the address of an access during such a change. The gate closes at the vCPUs' next idle moment, so this waits for it,
    /// but not for ever: a guest that is busy is plugged all the same.
    fn suspend_delays(&self) {
        if let Some(delays) = &self.delays {
            delays.switch(false);
        }
    }

    /// Delays, if there are any, with the doorbells that the guest's NVMe controllers have now; in simulated time, only once
    /// they are asked for, where `when_asked`.
    pub(super) fn resume_delays(&mut self, when_asked: bool) -> Result<(), String> {
        let Some(delays) = &self.delays else {
            return Ok(());
        };
        if delays.has_devices() {
            let buses = self.monitor.execute("query-pci", json!({}))?;
            let node = |id: &str| self.controller_nodes.get(id).copied();
            delays.set_doorbells(&Doorbells::of_guest(&buses, &node));
        }
        match when_asked && delays.is_simulated() {
            true => _ = delays.switch(false),
            false => delays.open(),
        }
        Ok(())
    }
}

/// The id of the device that is plugged into a port, or behind a bridge there.
fn plugged_id(port: &str) -> String {
    format!("plugged-{port}")
}

fn host_bridge_id(number: u32) -> String {
    format!("host-bridge{number}")
}

/// QEMU's commands that add a host bridge of Power with an NVMe controller, whose disk keeps nothing.
fn host_bridge_steps(number: u32, node: Option<NodeId>) -> [(&'static str, Value); 3] {
    let id = host_bridge_id(number);
    let disk = arguments::spare_disk(&id);
    let mut bridge = json!({ "driver": "spapr-pci-host-bridge", "id": id, "index": number });
    if let Some(node) = node {
        bridge["numa_node"] = json!(node.0);
    }
    let content = json!({
        "driver": "null-co", "node-name": disk, "size": arguments::SPARE_DISK_BYTES, "read-zeroes": true
    });
    let controller = json!({
        "driver": "nvme", "id": plugged_id(&id), "bus": format!("{id}.0"), "addr": "1", "drive": disk,
        "serial": format!("p-{id}")
    });
    [
        ("device_add", bridge),
        ("blockdev-add", content),
        ("device_add", controller),
    ]
}

/// QEMU's commands that plug a device into a port.
fn steps(device: PlugDevice, port: &str) -> Vec<(&'static str, Value)> {
    let id = plugged_id(port);
    let disk = arguments::spare_disk(port);
    // Controllers of one serial number and different subsystems are refused by the kernel. QEMU takes 20 characters.
    let serial: String = format!("p-{port}").chars().take(20).collect();
    let nvme = |bus: &str| json!({ "driver": "nvme", "id": id, "bus": bus, "drive": disk, "serial": serial });
    match device {
        PlugDevice::Nvme => vec![("device_add", nvme(port))],
        PlugDevice::VirtioBlk => {
            vec![(
                "device_add",
                json!({ "driver": "virtio-blk-pci", "id": id, "bus": port, "drive": disk }),
            )]
        }
        PlugDevice::VirtioNet => {
            let network = format!("network-{port}");
            let card = json!({ "driver": "virtio-net-pci", "id": id, "bus": port, "netdev": network, "romfile": "" });
            vec![
                (
                    "netdev_add",
                    json!({ "type": "hubport", "id": network, "hubid": 0 }),
                ),
                ("device_add", card),
            ]
        }
        PlugDevice::Bridge => {
            let bridge = format!("bridge-{port}");
            let switch = json!({ "driver": "pcie-pci-bridge", "id": bridge, "bus": port });
            let mut behind = nvme(&bridge);
            // Slot 0 of such a bridge cannot be hot-plugged.
            behind["addr"] = json!("1");
            vec![("device_add", switch), ("device_add", behind)]
        }
        // Not on a port.
        PlugDevice::HostBridge => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plug_reads_back_as_it_is_written_and_nonsense_is_refused() {
        for plug in [
            "nvme",
            "virtio-blk node=2",
            "virtio-net node=0",
            "bridge node=1",
            "host-bridge node=2",
        ] {
            assert_eq!(plug.parse::<HotPlug>().unwrap().to_string(), plug);
        }
        for text in ["", "gpu", "nvme node=", "nvme 2", "nvme node=x"] {
            assert!(text.parse::<HotPlug>().is_err(), "{text}");
        }
    }
}

//! Interrupts of devices by node, and requests through NVMe paths.

use std::collections::BTreeMap;
use std::fs;

use nearfar_machine::{Known, Machine, NodeId, PciAddress};
use nearfar_placement::locality::Localities;
use nearfar_proc::cpu_counts::{self, Counts};

use crate::{DeviceActivity, NvmePathActivity};

/// What does not change from look to look, and the counts of the look before.
pub(crate) struct Devices {
    /// The device of each interrupt, by its label in /proc/interrupts.
    interrupts: BTreeMap<String, PciAddress>,
    known: BTreeMap<PciAddress, (Vec<String>, Option<NodeId>)>,
    /// Paths of NVMe namespaces with more than one, each with its controller and that one's node.
    paths: Vec<(String, String, Option<NodeId>)>,
    counts: BTreeMap<String, Counts>,
    requests: BTreeMap<String, u64>,
}

impl Devices {
    pub fn of(machine: &Machine) -> Self {
        let mut devices = Self {
            interrupts: BTreeMap::new(),
            known: BTreeMap::new(),
            paths: Vec::new(),
            counts: BTreeMap::new(),
            requests: BTreeMap::new(),
        };
        devices.renew(machine);
        devices
    }

    /// The machine was read again.
    pub fn renew(&mut self, machine: &Machine) {
        let localities = Localities::new(machine);
        let interrupts = machine.interrupts.get().into_iter().flatten();
        self.interrupts = interrupts
            .filter_map(|it| Some((it.irq.to_string(), it.device?)))
            .collect();
        let of = |&device: &PciAddress| {
            let names = machine.names_on(device);
            let names = names.into_iter().map(str::to_owned).collect();
            (device, (names, localities.of(device).node))
        };
        self.known = self.interrupts.values().map(of).collect();
        self.paths.clear();
        for subsystem in machine.nvme.get().into_iter().flatten() {
            let node = |controller: &String| {
                let mut all = subsystem.controllers.iter();
                let found = all.find(|it| it.name == *controller)?;
                localities.of(found.device?).node
            };
            let several = subsystem.namespaces.iter().filter(|it| it.paths.len() > 1);
            for path in several.flat_map(|namespace| &namespace.paths) {
                let controller = path.controller.clone();
                let node = node(&controller);
                self.paths.push((path.name.clone(), controller, node));
            }
        }
    }

    /// Devices of which an interrupt fired since the look before.
    pub fn look(&mut self, machine: &Machine) -> Known<Vec<DeviceActivity>> {
        let is_wanted = |label: &str| self.interrupts.contains_key(label);
        let now = match cpu_counts::interrupts(is_wanted) {
            Ok(now) => now,
            Err(error) => return Known::no(format!("cannot read /proc/interrupts: {error}")),
        };
        let before = std::mem::replace(&mut self.counts, now);
        let mut found: BTreeMap<PciAddress, (u64, u64)> = BTreeMap::new();
        for (label, counts) in &self.counts {
            let Some((device, before)) = self.interrupts.get(label).zip(before.get(label)) else {
                continue;
            };
            let node = self.known.get(device).and_then(|(_, node)| *node);
            for (cpu, count) in counts.since(before) {
                if count == 0 {
                    continue;
                }
                let served = machine.cpu(cpu).and_then(|cpu| cpu.node);
                let (near, far) = found.entry(*device).or_default();
                match node.is_some() && served == node {
                    true => *near += count,
                    false => *far += count,
                }
            }
        }
        let activity = |(device, (near, far))| {
            let (names, node) = self.known.get(&device).cloned().unwrap_or_default();
            DeviceActivity {
                device,
                names,
                node,
                near,
                far,
            }
        };
        Known::Yes(found.into_iter().map(activity).collect())
    }

    /// Requests since the look before through each path (Documentation/admin-guide/iostats.rst, reads and writes).
    pub fn nvme_paths(&mut self, machine: &Machine) -> Vec<NvmePathActivity> {
        if machine.nvme.get().is_none() {
            return Vec::new();
        }
        let mut activities = Vec::new();
        for (path, controller, node) in &self.paths {
            let content = fs::read_to_string(format!("/sys/block/{path}/stat")).unwrap_or_default();
            let fields: Vec<u64> = content
                .split_whitespace()
                .map_while(|word| word.parse().ok())
                .collect();
            let [reads, _, _, _, writes, ..] = fields[..] else {
                continue;
            };
            let now = reads.saturating_add(writes);
            let before = self.requests.insert(path.clone(), now);
            activities.push(NvmePathActivity {
                path: path.clone(),
                controller: controller.clone(),
                node: *node,
                requests: before.map_or(0, |before| now.saturating_sub(before)),
            });
        }
        activities
    }
}

//! CPU time, memory and allocations of each node; interrupts of devices by node, and requests through NVMe paths.

use std::collections::BTreeMap;
use std::fs;

use nearfar_machine::{CpuId, CpuSet, Known, Machine, NodeId, PciAddress};
use nearfar_placement::locality::Localities;
use nearfar_placement::nearest_cpus;
use nearfar_proc::cpu_counts::{self, Counts};
use nearfar_proc::cpu_times::{self, StatFile};
use nearfar_proc::meminfo::{self, Numastat};
use nearfar_trace::numa_balancing::MachineCounts;

use crate::{DeviceActivity, NodeActivity, NvmePathActivity};

#[derive(Default)]
pub(crate) struct Nodes {
    stat: StatFile,
    /// Busy ticks of each CPU at the look before.
    busy: BTreeMap<CpuId, u64>,
    allocated: BTreeMap<NodeId, Numastat>,
    balancing: Option<MachineCounts>,
}

impl Nodes {
    pub fn look(&mut self, machine: &Machine) -> Vec<NodeActivity> {
        let content = self.stat.read().unwrap_or_default();
        let before = std::mem::take(&mut self.busy);
        self.busy = cpu_times::parse(&content)
            .map(|(cpu, times)| (cpu, times.busy()))
            .collect();
        let mut ticks: BTreeMap<NodeId, (usize, u64)> = BTreeMap::new();
        for (cpu, now) in &self.busy {
            let Some(node) = machine.cpu(*cpu).and_then(|cpu| cpu.node) else {
                continue;
            };
            let (cpus, sum) = ticks.entry(node).or_default();
            *cpus += 1;
            *sum += before.get(cpu).map_or(0, |then| now.saturating_sub(*then));
        }
        let tick_s = 1.0 / rustix::param::clock_ticks_per_second() as f64;
        let activity = |node: NodeId| {
            let (cpus, sum) = ticks.get(&node).copied().unwrap_or_default();
            let directory = format!("/sys/devices/system/node/node{node}");
            let memory = fs::read(format!("{directory}/meminfo")).unwrap_or_default();
            let numastat = fs::read(format!("{directory}/numastat")).unwrap_or_default();
            NodeActivity {
                node,
                cpus,
                busy_s: sum as f64 * tick_s,
                total_bytes: meminfo::bytes(&memory, "MemTotal"),
                free_bytes: meminfo::bytes(&memory, "MemFree"),
                file_bytes: meminfo::bytes(&memory, "FilePages"),
                allocated: self.allocated(node, &numastat),
            }
        };
        machine
            .online_nodes()
            .map(|node| node.id)
            .map(activity)
            .collect()
    }

    fn allocated(&mut self, node: NodeId, content: &[u8]) -> Option<Numastat> {
        let now = Numastat::parse(content)?;
        let before = self.allocated.insert(node, now)?;
        Some(now.since(&before))
    }

    /// NUMA balancing's counts since boot, and since the look before.
    pub fn balancing(&mut self) -> (Known<MachineCounts>, Known<MachineCounts>) {
        let now = MachineCounts::read();
        let before = std::mem::replace(&mut self.balancing, now.get().copied());
        let since = now.as_ref().and_then(|now| {
            let before = Known::from_option(before, || "there was no look before");
            before.map(|before| now.since(before))
        });
        (now, since)
    }
}

/// What does not change from look to look, and the counts of the look before.
#[derive(Default)]
pub(crate) struct Devices {
    /// The device of each interrupt, by its label in /proc/interrupts.
    interrupts: BTreeMap<String, PciAddress>,
    known: BTreeMap<PciAddress, Device>,
    /// Paths of NVMe namespaces with more than one, each with its controller and that one's node.
    paths: Vec<(String, String, Option<NodeId>)>,
    counts: BTreeMap<String, Counts>,
    requests: BTreeMap<String, u64>,
}

/// What is known of a device with interrupts.
struct Device {
    names: Vec<String>,
    node: Option<NodeId>,
    /// The CPUs that no others are nearer to it than; empty where its node is unknown.
    near: CpuSet,
}

impl Devices {
    pub fn of(machine: &Machine) -> Self {
        let mut devices = Self::default();
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
            // Numbers of GPUs and RDMA devices change from boot to boot, and a label that changes begins another series.
            let mut names = machine.names_on(device);
            names.retain(|name| machine.os_devices.iter().all(|other| other.name != *name));
            let node = localities.of(device).node;
            let of_device = Device {
                names: names.into_iter().map(str::to_owned).collect(),
                node,
                near: node.map_or_else(CpuSet::new, |node| nearest_cpus(machine, node)),
            };
            (device, of_device)
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
    pub fn look(&mut self) -> Known<Vec<DeviceActivity>> {
        let is_wanted = |label: &str| self.interrupts.contains_key(label);
        let now = match cpu_counts::interrupts(is_wanted) {
            Ok(now) => now,
            Err(error) => return Known::no(format!("cannot read /proc/interrupts: {error}")),
        };
        let before = std::mem::replace(&mut self.counts, now);
        Known::Yes(self.since(&before))
    }

    /// What the counts have more than these, by device.
    fn since(&self, before: &BTreeMap<String, Counts>) -> Vec<DeviceActivity> {
        let mut found: BTreeMap<PciAddress, DeviceActivity> = BTreeMap::new();
        for (label, counts) in &self.counts {
            let Some((address, before)) = self.interrupts.get(label).zip(before.get(label)) else {
                continue;
            };
            let Some(device) = self.known.get(address) else {
                continue;
            };
            for (cpu, count) in counts.since(before) {
                if count == 0 {
                    continue;
                }
                let activity = found.entry(*address).or_insert_with(|| DeviceActivity {
                    device: *address,
                    names: device.names.clone(),
                    node: device.node,
                    near: 0,
                    far: 0,
                });
                match device.near.contains(cpu) {
                    true => activity.near += count,
                    false => activity.far += count,
                }
            }
        }
        found.into_values().collect()
    }

    /// Requests since the look before through each path (Documentation/admin-guide/iostats.rst, reads and writes).
    pub fn nvme_paths(&mut self) -> Vec<NvmePathActivity> {
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

#[cfg(test)]
mod tests {
    use nearfar_machine::{CpuId, Distance, DistanceOrigin, Distances};
    use nearfar_sources::{Request, Want};

    use super::*;

    /// Three nodes with a CPU each but the last, which is nearer to node 1.
    fn machine() -> Machine {
        let request = Request::source("node:3 core:1 pu:1", Want::all());
        let mut machine = nearfar_sources::read(&request).unwrap();
        machine.nodes[2].cpus = Known::Yes(CpuSet::new());
        let offline = CpuSet::range(CpuId(2), CpuId(2));
        machine.cpu_states.online = machine.cpu_states.online.difference(&offline);
        let nodes = (0..3).map(NodeId).collect();
        let rows = [[10, 21, 31], [21, 10, 17], [31, 17, 10]];
        let rows = rows.map(|row| row.map(|value| Some(Distance(value))).to_vec());
        let table = Distances::from_rows(DistanceOrigin::Kernel, nodes, rows.to_vec());
        machine.distances = Known::Yes(table.unwrap());
        machine
    }

    /// Near and far interrupts of a device on a node, where CPUs 0 and 1 served 3 and 5.
    fn near_and_far(node: Option<u32>) -> (u64, u64) {
        let machine = machine();
        let device: PciAddress = "0000:81:00.0".parse().unwrap();
        let mut devices = Devices::of(&machine);
        devices.interrupts.insert("34".to_owned(), device);
        let of_device = Device {
            names: vec!["eth0".to_owned()],
            node: node.map(NodeId),
            near: node.map_or_else(CpuSet::new, |node| nearest_cpus(&machine, NodeId(node))),
        };
        devices.known.insert(device, of_device);
        let counts = |served: [u64; 2]| {
            let cpus = (0..).map(CpuId).zip(served).collect();
            let name = String::new();
            BTreeMap::from([("34".to_owned(), Counts { cpus, name })])
        };
        devices.counts = counts([13, 15]);
        let activities = devices.since(&counts([10, 10]));
        assert_eq!(activities[0].names, ["eth0"]);
        (activities[0].near, activities[0].far)
    }

    #[test]
    fn interrupts_are_near_on_the_nearest_cpus_of_the_device() {
        assert_eq!(near_and_far(Some(0)), (3, 5));
        assert_eq!(near_and_far(Some(1)), (5, 3));
        // A node without CPUs: none are nearer than those of node 1.
        assert_eq!(near_and_far(Some(2)), (5, 3));
        assert_eq!(near_and_far(None), (0, 8));
    }
}

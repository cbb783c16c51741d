//! Trees, plans, and a kernel that says no.
#![allow(dead_code, reason = "every test file uses another part of it")]

pub mod child;
pub mod examples;
pub mod kernel;
pub mod simulated;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use nearfar_change::Target;
use nearfar_change::{Change, NearestCpus, PLAN_FORMAT, Plan, Planned};
use nearfar_machine::{CpuId, CpuSet, IoPolicy, Irq, NodeId};
use tempfile::TempDir;

/// A directory with a few of the kernel's files.
pub struct Tree {
    directory: TempDir,
}

impl Tree {
    /// Without any file.
    pub fn empty() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    /// A small machine: three interrupts, a NIC with a queue pair, an NVMe subsystem, a PCI device without a node.
    pub fn machine() -> Self {
        let tree = Self::empty();
        tree.put("/proc/sys/kernel/hostname", "box\n");
        tree.put("/proc/sys/kernel/numa_balancing", "1\n");
        for irq in [10, 11, 12] {
            tree.put(&format!("/proc/irq/{irq}/smp_affinity_list"), "0-7\n");
            tree.put(&format!("/proc/irq/{irq}/effective_affinity_list"), "0\n");
            tree.put(
                &format!("/sys/kernel/irq/{irq}/actions"),
                &format!("eth0-TxRx-{irq}\n"),
            );
        }
        tree.put(
            "/sys/class/net/eth0/queues/tx-0/xps_cpus",
            "00000000,000000ff\n",
        );
        tree.put(
            "/sys/class/net/eth0/queues/rx-0/rps_cpus",
            "00000000,00000000\n",
        );
        tree.put("/sys/class/nvme-subsystem/nvme-subsys0/iopolicy", "numa\n");
        tree.put("/sys/bus/pci/devices/0000:3b:00.0/numa_node", "-1\n");
        tree
    }

    pub fn root(&self) -> PathBuf {
        self.directory.path().to_owned()
    }

    pub fn at(&self, path: &str) -> PathBuf {
        self.directory.path().join(path.trim_start_matches('/'))
    }

    pub fn target(&self) -> Target {
        Target::tree(self.root(), None)
    }

    pub fn put(&self, path: &str, text: &str) {
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        fs::write(self.at(path), text).unwrap();
    }

    pub fn get(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap()
    }

    /// Every file but nearfar's own, with its bytes.
    pub fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = BTreeMap::new();
        collect(
            self.directory.path(),
            &self.at("/var/lib/nearfar"),
            &mut files,
        );
        files
    }

    /// The journal of a change set.
    pub fn journal(&self, run: u64) -> PathBuf {
        self.at(&format!("/var/lib/nearfar/change-{run}.journal"))
    }
}

fn collect(directory: &Path, but: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.symlink_metadata().unwrap() {
            _ if path == but => {}
            it if it.is_dir() => collect(&path, but, files),
            it if it.is_symlink() => {
                files.insert(
                    path.clone(),
                    fs::read_link(&path)
                        .unwrap()
                        .into_os_string()
                        .into_encoded_bytes(),
                );
            }
            _ => {
                files.insert(path.clone(), fs::read(&path).unwrap());
            }
        }
    }
}

pub fn cpus(list: &str) -> CpuSet {
    list.parse().unwrap()
}

pub fn interrupt(irq: u32, list: &str) -> Change {
    Change::InterruptAffinity {
        irq: Irq(irq),
        cpus: cpus(list),
        near: Some(NodeId(1)),
        name: Some(format!("eth0-TxRx-{irq}")),
    }
}

pub fn xps(list: &str) -> Change {
    Change::Xps {
        interface: "eth0".into(),
        queue: 0,
        cpus: cpus(list),
    }
}

pub fn rps(list: &str) -> Change {
    Change::Rps {
        interface: "eth0".into(),
        queue: 0,
        cpus: cpus(list),
    }
}

pub fn iopolicy(policy: IoPolicy) -> Change {
    Change::NvmeIoPolicy {
        subsystem: "nvme-subsys0".into(),
        policy,
    }
}

pub fn device_node(node: u32, rebind: Option<&str>) -> Change {
    let device = "0000:3b:00.0".parse().unwrap();
    Change::DeviceNode {
        device,
        node: NodeId(node),
        rebind: rebind.map(str::to_owned),
    }
}

pub fn sysctl(name: &str, value: &str) -> Change {
    Change::Sysctl {
        name: name.into(),
        value: value.into(),
    }
}

pub fn planned(change: Change, before: Option<&str>) -> Planned {
    let before = before.map(str::to_owned);
    Planned {
        change,
        before,
        rule: "test-rule".into(),
        owner: None,
        reason: "because the test says so".into(),
        distance: None,
        estimate: None,
    }
}

pub fn plan(changes: Vec<Planned>) -> Plan {
    Plan {
        plan_format: PLAN_FORMAT,
        host: Some("box".into()),
        boot: None,
        nodes: Vec::new(),
        changes,
        left_alone: Vec::new(),
        not_checked: Vec::new(),
        nearest: vec![NearestCpus {
            node: NodeId(1),
            cpus: (4..8).chain(0..4).map(CpuId).collect(),
        }],
    }
}

/// A change of every kind, longer and shorter than what is there.
pub fn plan_of_all_kinds() -> Plan {
    plan(vec![
        planned(interrupt(10, "4"), Some("0-7\n")),
        planned(interrupt(11, "0-3,5,7"), Some("0-7")),
        planned(interrupt(12, "6"), None),
        planned(xps("4-5"), Some("00000000,000000ff")),
        planned(rps("4"), Some("0")),
        planned(iopolicy(IoPolicy::RoundRobin), Some("numa")),
        planned(device_node(1, Some("nvme")), Some("-1")),
        planned(sysctl("kernel.numa_balancing", "0"), Some("1")),
    ])
}

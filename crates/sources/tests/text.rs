//! Text of other programs than numactl, alone and together.

use nearfar_machine::{CpuId, Known, Machine, NodeId, SourceKind};
use nearfar_sources::{hwloc_xml, read_bytes, snapshot, text};
use proptest::prelude::*;

pub(crate) const KUNPENG: &str = include_str!("fixtures/kunpeng-numactl.txt");
pub(crate) const LSCPU: &str = "\
Architecture:                    x86_64
CPU op-mode(s):                  32-bit, 64-bit
CPU(s):                          8
On-line CPU(s) list:             0-6
Off-line CPU(s) list:            7
Thread(s) per core:              1
Core(s) per socket:              4
Socket(s):                       2
NUMA node(s):                    3
Model name:                      A CPU @ 2.00GHz
NUMA node0 CPU(s):               0-3
NUMA node1 CPU(s):               4-6
NUMA node2 CPU(s):
";
pub(crate) const LSCPU_E: &str = "\
CPU NODE SOCKET CORE L1d:L1i:L2:L3 ONLINE    MAXMHZ   MINMHZ
  0    0      0    0 0:0:0:0          yes 3900.0000 800.0000
  1    1      1    1 1:1:1:1          yes 3900.0000 800.0000
  2    0      0    0 0:0:0:0          yes 3900.0000 800.0000
  3    -      -    - -                 no         -        -
";
pub(crate) const LSCPU_P: &str = "\
# The following is the parsable format, which can be fed to other
# programs.
# CPU,Core,Socket,Node,,L1d,L1i,L2,L3
0,0,0,0,,0,0,0,0
1,1,1,1,,1,1,1,1
2,0,0,0,,0,0,0,0
";
pub(crate) const NUMACTL: &str = "\
available: 2 nodes (0-1)
node 0 cpus: 0 2
node 0 size: 64215 MB
node 0 free: 1243 MB
node 1 cpus: 1
node 1 size: 64507 MB
node 1 free: 60321 MB
node distances:
node   0   1
  0:  10  21
  1:  21  10
";
pub(crate) const NUMASTAT: &str = "
Per-node system memory usage (in MBs):
Token Unaccepted not in hash table.
                          Node 0          Node 1
                 --------------- ---------------
MemTotal                64215.43        64507.12
MemFree                  1243.01        60321.99
MemUsed                 62972.42         4185.13
                           Total
                 ---------------
MemTotal               128722.55
";
pub(crate) const MEMINFO: &str = "\
Node 0 MemTotal:       65756160 kB
Node 0 MemFree:         1272832 kB
Node 1 MemTotal:       66055168 kB
Node 1 HugePages_Total:     0
";
pub(crate) const ZONEINFO: &str = "\
Node 0, zone   Normal
  per-node stats
      nr_inactive_anon 5
  pages free     100
        managed  4000
  pagesets
    cpu: 0
              count:    7
Node 1, zone   Normal
  pages free     0
        managed  0
";
pub(crate) const INTERRUPTS: &str = "            CPU0       CPU1       CPU2
   0:         12          0          0   IO-APIC   2-edge      timer
  24:        310          0          5   PCI-MSI 1572865-edge      eth0-TxRx-1
  25:          0          7          0   PCI-MSI 1048577-edge      nvme0q1
 NMI:          0          0          0   Non-maskable interrupts
";
const AFFINITY: &str = "\
/proc/irq/0/smp_affinity:7
/proc/irq/24/smp_affinity:4
/proc/irq/24/node:0
/proc/irq/25/smp_affinity_list:0-1
/proc/irq/25/effective_affinity_list:1
";
pub(crate) const NVIDIA: &str = "\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV12\tPXB\tSYS\t48-63,176-191\t3\t\tN/A
GPU1\tNV12\t X \tSYS\tPXB\t16-31,144-159\t1\t\tN/A
NIC0\tPXB\tSYS\t X \tSYS
NIC1\tSYS\tPXB\tSYS\t X

Legend:
  X    = Self
NIC Legend:
  NIC0: mlx5_0
";
pub(crate) const SUBSYS: &str = "\
nvme-subsys0 - NQN=nqn.2014.08.org.nvmexpress:1344
               hostnqn=nqn.2014-08.org.nvmexpress:uuid:1
               iopolicy=round-robin
\\
 +- nvme1 pcie 0000:21:00.0 live non-optimized
 +- nvme0 pcie address=0000:11:00.0 live optimized
nvme-subsys1 - NQN=nqn.x
\\
 +- nvme2 tcp traddr=10.0.0.1 trsvcid=4420 connecting
";
pub(crate) const SUBSYS_JSON: &str = r#"[ { "HostNQN": "nqn.h", "Subsystems": [
  { "Name": "nvme-subsys0", "NQN": "nqn.2014", "IOPolicy": "numa",
    "Paths": [ { "Name": "nvme0", "Transport": "pcie", "Address": "0000:11:00.0", "State": "live" } ] } ] } ]"#;
const FILES: &str = "\
$ grep . /sys/devices/system/node/node*/{cpulist,distance}
/sys/devices/system/node/node0/cpulist:0,2
/sys/devices/system/node/node1/cpulist:1
/sys/devices/system/node/node0/distance:10 21
/sys/devices/system/node/node1/distance:21 10
$ cat /sys/devices/system/cpu/online
0-2
==> /sys/devices/system/node/possible <==
0-3
";
pub(crate) const VIRSH: &str = "\
<capabilities><host><uuid>x</uuid><cpu><arch>x86_64</arch></cpu><topology><cells num='2'>
 <cell id='0'><memory unit='KiB'>65756160</memory>
  <distances><sibling id='0' value='10'/><sibling id='1' value='21'/></distances>
  <cpus num='2'><cpu id='0' socket_id='0' core_id='0' siblings='0,2'/><cpu id='2' socket_id='0' core_id='0' siblings='0,2'/></cpus></cell>
 <cell id='1'><memory unit='KiB'>66056160</memory><distances><sibling id='0' value='21'/><sibling id='1' value='10'/></distances>
  <cpus num='1'><cpu id='1' socket_id='1' core_id='0' siblings='1'/></cpus></cell>
</cells></topology></host><guest><arch name='i686'/></guest></capabilities>
";

pub(crate) const LSTOPO: &str = "\
Machine (126GB total)
  Package L#0
    NUMANode L#0 (P#0 63GB)
    NUMANode(HBM) L#1 (P#2 16GB)
    L3 L#0 (20MB) + L2 L#0 (256KB) + L1d L#0 (32KB) + L1i L#0 (32KB) + Core L#0
      PU L#0 (P#0)
      PU L#1 (P#2)
    HostBridge
      PCI 01:00.0 (Ethernet)
        Net \"eno1\"
  Package L#1
    NUMANode L#2 (P#1 63GB)
    L3 L#1 (20MB) + L2 L#1 (256KB) + L1d L#1 (32KB) + L1i L#1 (32KB) + Core L#1 + PU L#2 (P#1)
";
/// The same with -v, one object a line.
const LSTOPO_VERBOSE: &str = "\
Machine (P#0 total=142GiB DMIBoardVendor=\"A (B) Corp\")
  Package L#0 (P#0 total=79GiB CPUModel=\"Xeon(R) CPU\")
    NUMANode(DRAM) L#0 (P#0 local=63GB total=63GB memorytier=1)
    NUMANode(HBM) L#1 (P#2 local=16GB total=16GB)
    L3Cache L#0 (P#0 total=79GiB size=20MiB linesize=64 ways=20)
      L2Cache L#0 (P#0 size=256KiB linesize=64 ways=8)
        L1dCache L#0 (P#0 size=32KiB linesize=64 ways=8)
          L1iCache L#0 (P#0 size=32KiB linesize=64 ways=8)
            Core L#0 (P#0)
              PU L#0 (P#0)
              PU L#1 (P#2)
  Package L#1 (P#1 total=63GiB)
    NUMANode L#2 (P#1 local=63GB total=63GB)
    L3Cache L#1 (P#1 size=20MiB linesize=64 ways=20)
      L2Cache L#1 (P#1 size=256KiB linesize=64 ways=8)
        L1dCache L#1 (P#1 size=32KiB linesize=64 ways=8)
          L1iCache L#1 (P#1 size=32KiB linesize=64 ways=8)
            Core L#1 (P#0)
              PU L#2 (P#1)
";
/// The same of hwloc 1.
const LSTOPO_1: &str = "\
Machine (126GB)
  NUMANode L#0 (P#0 63GB) + Socket L#0 + L3 L#0 (20MB)
    L2 L#0 (256KB) + L1d L#0 (32KB) + L1i L#0 (32KB) + Core L#0
      PU L#0 (P#0)
      PU L#1 (P#2)
  NUMANode L#1 (P#1 63GB) + Socket L#1 + L3 L#1 (20MB) + L2 L#1 (256KB) + L1d L#1 (32KB) + L1i L#1 (32KB) + Core L#1 + PU L#2 (P#1)
";
pub(crate) const MLC: &str = "\
Intel(R) Memory Latency Checker - v3.9
Measuring idle latencies (in ns)...
                Numa node
Numa node            0       1
       0          81.5   139.6
       1         139.4    81.9
";

pub(crate) const MLC_BANDWIDTHS: &str = "
Measuring Peak Injection Memory Bandwidths for the system
ALL Reads        :      226318.4
Measuring Memory Bandwidths between nodes within system
Bandwidths are in MB/sec (1 MB/sec = 1,000,000 Bytes/sec)
                Numa node
Numa node            0       1
       0        113100.0        34400.0
       1        34600.0         112900.0
Measuring Loaded Latencies for the system
Inject  Latency Bandwidth
 00000  244.46   226000.1
 00002  245.01   225900.0
Measuring cache-to-cache transfer latency (in ns)...
Local Socket L2->L2 HIT  latency        48.5
Local Socket L2->L2 HITM latency        48.7
Remote Socket L2->L2 HITM latency (data address homed in writer socket)
                        Reader Numa Node
Writer Numa Node     0       1
            0        -   111.5
            1    111.7       -
Remote Socket L2->L2 HITM latency (data address homed in reader socket)
                        Reader Numa Node
Writer Numa Node     0       1
            0        -   177.0
            1    177.2       -
";

const ALL: [&str; 16] = [
    LSTOPO, LSTOPO_1, MLC, LSCPU, LSCPU_E, LSCPU_P, NUMACTL, NUMASTAT, MEMINFO, ZONEINFO,
    INTERRUPTS, AFFINITY, NVIDIA, SUBSYS, FILES, VIRSH,
];

pub(crate) fn read(text: &str) -> Machine {
    let machine =
        read_bytes(text.as_bytes(), "bug.txt").unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(machine.check(), Vec::<String>::new(), "{text}");
    machine
}

pub(crate) fn nodes(machine: &Machine) -> Vec<(u32, String)> {
    let cpus = |node: &nearfar_machine::Node| match &node.cpus {
        Known::Yes(cpus) => cpus.to_string(),
        Known::No { .. } => "?".to_owned(),
    };
    machine
        .nodes
        .iter()
        .map(|node| (node.id.0, cpus(node)))
        .collect()
}

pub(crate) fn listed(nodes: &[(u32, &str)]) -> Vec<(u32, String)> {
    nodes
        .iter()
        .map(|(id, cpus)| (*id, (*cpus).to_owned()))
        .collect()
}

pub(crate) fn bytes(machine: &Machine, node: u32) -> Option<u64> {
    machine.node(NodeId(node)).unwrap().total_bytes()
}

pub(crate) fn messages(machine: &Machine) -> String {
    machine
        .warnings
        .iter()
        .map(|warning| format!("{warning}\n"))
        .collect()
}

#[test]
fn lscpu_has_nodes_and_the_state_of_cpus() {
    let machine = read(LSCPU);
    assert_eq!(nodes(&machine), listed(&[(0, "0-3"), (1, "4-6"), (2, "")]));
    assert_eq!(machine.cpu_states.online.to_string(), "0-6");
    assert!(machine.cpu(CpuId(7)).unwrap().is_offline());
    assert_eq!(machine.cpu(CpuId(5)).unwrap().core, Some(CpuId(5)));
    assert_eq!(machine.origin.kind, SourceKind::Text);
    assert_eq!(machine.origin.architecture.get().unwrap(), "x86_64");
    assert_eq!(machine.origin.cpu_model.as_deref(), Some("A CPU @ 2.00GHz"));
    for (what, reason) in [
        ("memory", machine.nodes[0].memory.unknown_reason()),
        ("distances", machine.distances.unknown_reason()),
        ("interrupts", machine.interrupts.unknown_reason()),
    ] {
        assert!(
            reason.unwrap().contains("lscpu text has only"),
            "{what}: {reason:?}"
        );
    }
    assert_eq!(messages(&machine), "");
}

/// drivers/base/node.c shows a node's CPUs by the mask of possible ones on s390.
#[test]
fn possible_cpus_of_a_node_are_not_there() {
    let machine = read(
        "CPU(s): 8\nOn-line CPU(s) list: 0-7\nVendor ID: IBM/S390\nNUMA node(s): 1\nNUMA node0 CPU(s): 0-140\n",
    );
    assert_eq!(nodes(&machine), listed(&[(0, "0-7")]));
    assert_eq!(machine.cpus.len(), 8);
    assert_eq!(messages(&machine), "");
}

#[test]
fn lscpu_whose_lines_contradict_each_other_is_a_warning() {
    let machine = read(&LSCPU.replace(
        "CPU(s):                          8",
        "CPU(s):                          9",
    ));
    assert!(
        messages(&machine).contains("line 3: lscpu says 9 CPUs, and its lines list 8"),
        "{}",
        messages(&machine)
    );
    let machine = read(&LSCPU.replace(
        "node(s):                    3",
        "node(s):                    4",
    ));
    assert!(
        messages(&machine).contains("4 nodes, and its lines list 3 (0-2)"),
        "{}",
        messages(&machine)
    );
}

#[test]
fn tables_of_lscpu_have_cores_packages_and_caches() {
    let json = r#"{ "cpus": [
      {"cpu":0,"node":0,"socket":0,"core":0,"l1d:l1i:l2:l3":"0:0:0:0","online":true},
      {"cpu":1,"node":1,"socket":1,"core":1,"l1d:l1i:l2:l3":"1:1:1:1","online":true},
      {"cpu":2,"node":0,"socket":0,"core":0,"l1d:l1i:l2:l3":"0:0:0:0","online":true} ] }"#;
    for text in [
        LSCPU_E,
        LSCPU_P,
        json,
        &json
            .lines()
            .map(|line| format!("> {line}\n"))
            .collect::<String>(),
    ] {
        let machine = read(text);
        assert_eq!(nodes(&machine), listed(&[(0, "0,2"), (1, "1")]), "{text}");
        assert_eq!(machine.siblings(CpuId(2)).to_string(), "0,2");
        assert_eq!(
            machine.cpu(CpuId(1)).unwrap().package_leader,
            Some(CpuId(1))
        );
        assert_eq!(machine.cpu_states.online.to_string(), "0-2");
        assert_eq!(machine.caches.len(), 8, "{text}");
        assert_eq!(machine.caches[7].cpus.to_string(), "1");
    }
    assert!(read(LSCPU_E).cpu(CpuId(3)).unwrap().is_offline());
}

#[test]
fn json_of_lscpu_is_its_summary() {
    let fields = LSCPU.lines().filter_map(|line| line.split_once(':'));
    let fields: Vec<String> = fields
        .map(|(field, data)| format!("{{\"field\": \"{field}:\", \"data\": \"{}\"}}", data.trim()))
        .collect();
    let flat = format!("{{\n   \"lscpu\": [\n{}\n]}}", fields.join(",\n"));
    let nested = format!(
        "{{\"lscpu\": [{{\"field\": \"NUMA:\", \"data\": null, \"children\": [{}]}}]}}",
        fields.join(",")
    );
    for text in [&flat, &nested, &format!("See:\n{flat}\nthanks\n")] {
        let machine = read(text);
        assert_eq!(nodes(&machine), nodes(&read(LSCPU)), "{text}");
        assert_eq!(machine.cpus, read(LSCPU).cpus);
    }
}

#[test]
fn memory_of_nodes_comes_from_three_texts() {
    let machine = read(NUMASTAT);
    assert_eq!(nodes(&machine), listed(&[(0, "?"), (1, "?")]));
    assert_eq!(bytes(&machine, 0).map(|bytes| bytes >> 20), Some(64215));
    assert_eq!(
        machine.nodes[1]
            .memory
            .get()
            .unwrap()
            .free_bytes
            .map(|free| free >> 20),
        Some(60321)
    );
    let machine = read(MEMINFO);
    assert_eq!(
        (bytes(&machine, 0), bytes(&machine, 1)),
        (Some(65756160 << 10), Some(66055168 << 10))
    );
    let machine = read(ZONEINFO);
    assert!(
        machine.nodes[0]
            .memory
            .unknown_reason()
            .unwrap()
            .contains("4000 pages")
    );
    assert_eq!(machine.nodes[1].has_memory(), Some(false));
}

#[test]
fn interrupts_and_their_affinities_are_joined() {
    let machine = read(&format!(
        "{INTERRUPTS}\nand\n# for i in $(seq 0 300); do grep . /proc/irq/$i/smp_affinity; done\n{AFFINITY}"
    ));
    let interrupts = machine.interrupts.get().unwrap();
    let shown: Vec<_> = interrupts
        .iter()
        .map(|interrupt| {
            let affinity = interrupt.affinity.get().map(ToString::to_string);
            (
                interrupt.irq.0,
                interrupt.name.as_str(),
                interrupt.queue,
                affinity,
                interrupt.count.get().copied(),
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            (0, "timer", None, Some("0-2".to_owned()), Some(12)),
            (24, "eth0-TxRx-1", Some(1), Some("2".to_owned()), Some(315)),
            (25, "nvme0q1", Some(1), Some("0-1".to_owned()), Some(7)),
        ]
    );
    assert_eq!(interrupts[1].node.get(), Some(&Some(NodeId(0))));
    let devices: Vec<_> = interrupts
        .iter()
        .map(|interrupt| interrupt.device.map(|device| device.to_string()))
        .collect();
    assert_eq!(
        devices,
        [
            None,
            Some("0000:03:00.0".to_owned()),
            Some("0000:02:00.0".to_owned())
        ]
    );
    assert!(interrupts[0].immovable_reason.is_some() && interrupts[1].immovable_reason.is_none());
    assert_eq!(machine.cpu_states.online.to_string(), "0-2");
    assert!(machine.nodes.is_empty());
    assert_eq!(messages(&machine), "");
}

#[test]
fn nvidia_smi_gives_the_nodes_of_gpus() {
    let machine = read(NVIDIA);
    assert_eq!(
        nodes(&machine),
        listed(&[(1, "16-31,144-159"), (3, "48-63,176-191")])
    );
    assert_eq!(messages(&machine), "");
    // Without the column of nodes nothing is said about nodes.
    let old = NVIDIA
        .replace("\tNUMA Affinity\tGPU NUMA ID", "")
        .replace("\t3\t\tN/A", "")
        .replace("\t1\t\tN/A", "");
    let error = read_bytes(old.as_bytes(), "bug.txt")
        .unwrap_err()
        .to_string();
    assert!(error.contains("does not say which node"), "{error}");
}

#[test]
fn nvme_subsystems_have_their_controllers() {
    let machine = read(SUBSYS);
    let subsystems = machine.nvme.get().unwrap();
    assert_eq!(
        subsystems[0].iopolicy.get().unwrap().as_str(),
        "round-robin"
    );
    let controllers = |at: usize| -> Vec<_> {
        let shown = |controller: &nearfar_machine::NvmeController| {
            let device = controller.device.map(|device| device.to_string());
            (
                controller.name.clone(),
                device,
                controller.state.get().cloned(),
            )
        };
        subsystems[at].controllers.iter().map(shown).collect()
    };
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(
        controllers(0),
        [
            ("nvme0".to_owned(), some("0000:11:00.0"), some("live")),
            ("nvme1".to_owned(), some("0000:21:00.0"), some("live")),
        ]
    );
    assert_eq!(
        controllers(1),
        [("nvme2".to_owned(), None, some("connecting"))]
    );
    let old = r#"{"Subsystems": [{"Name": "nvme-subsys0", "NQN": "nqn.2014"}, {"Paths": [{"Name": "nvme0", "Transport": "pcie",
        "Address": "0000:11:00.0", "State": "live"}]}]}"#;
    for text in [SUBSYS_JSON, old] {
        let machine = read(text);
        let subsystem = &machine.nvme.get().unwrap()[0];
        assert_eq!(
            (subsystem.name.as_str(), subsystem.controllers.len()),
            ("nvme-subsys0", 1),
            "{text}"
        );
    }
}

#[test]
fn files_with_their_names_are_read() {
    let machine = read(FILES);
    assert_eq!(nodes(&machine), listed(&[(0, "0,2"), (1, "1")]));
    assert_eq!(machine.distance(NodeId(1), NodeId(0)).unwrap().0, 21);
    assert_eq!(machine.possible_nodes.get().unwrap().to_string(), "0-3");
    assert_eq!(machine.cpu_states.online.to_string(), "0-2");
    assert_eq!(messages(&machine), "");
}

#[test]
fn lstopo_on_a_terminal_has_nodes_cores_and_caches() {
    for (text, expected) in [
        (LSTOPO.to_owned(), listed(&[(0, "0,2"), (1, "1"), (2, "?")])),
        (LSTOPO_1.to_owned(), listed(&[(0, "0,2"), (1, "1")])),
        (
            LSTOPO_VERBOSE.to_owned(),
            listed(&[(0, "0,2"), (1, "1"), (2, "?")]),
        ),
        (
            LSTOPO.lines().map(|line| format!("> {line}\n")).collect(),
            listed(&[(0, "0,2"), (1, "1"), (2, "?")]),
        ),
    ] {
        let machine = read(&text);
        assert_eq!(nodes(&machine), expected, "{text}");
        assert_eq!(machine.siblings(CpuId(2)).to_string(), "0,2");
        assert_eq!(
            machine.cpu(CpuId(1)).unwrap().package_leader,
            Some(CpuId(1))
        );
        let caches: Vec<_> = machine
            .caches
            .iter()
            .map(|cache| (cache.level, cache.cpus.to_string()))
            .collect();
        assert_eq!(caches.len(), 8);
        assert_eq!(caches[6..], [(3, "0,2".to_owned()), (3, "1".to_owned())]);
        assert_eq!(
            machine.caches[6].size_bytes.get(),
            Some(&(20 << 20)),
            "{text}"
        );
        assert!(
            machine.nodes[0]
                .memory
                .unknown_reason()
                .unwrap()
                .contains("63GB, rounded")
        );
    }
    let above = "Machine (1GB total)\n  Package L#0\n    NUMANode(NVM) L#1 (P#2 8GB)\n    \
                 Group L#0\n      NUMANode L#0 (P#0 1GB)\n      PU L#0 (P#0)\n    PU L#1 (P#1)\n";
    assert_eq!(nodes(&read(above)), listed(&[(0, "0"), (2, "?")]));
    // Indentation that a mail lost: the node is still there.
    let flat = "Machine (1GB total)\nNUMANode L#0 (P#3 1GB)\nPU L#0 (P#0)\n";
    assert_eq!(read(flat).nodes.len(), 1);
    let error = read_bytes(LSTOPO.replace("P#", "L#").as_bytes(), "bug.txt")
        .unwrap_err()
        .to_string();
    assert!(error.contains("the kernel's numbers of CPUs"), "{error}");
}

#[test]
fn mlc_has_nodes_and_what_accesses_take() {
    let machine = read(MLC);
    assert_eq!(nodes(&machine), listed(&[(0, "?"), (1, "?")]));
    let timing = machine.timing.unwrap();
    let ns = |cpu, memory| timing.latency_ns(NodeId(cpu), NodeId(memory));
    assert_eq!(
        [ns(0, 0), ns(0, 1), ns(1, 0), ns(1, 1)],
        [82, 140, 139, 82].map(Some)
    );
    assert!(timing.bandwidth.is_unlimited() && timing.transfer.is_none());

    let whole = format!("{MLC}{MLC_BANDWIDTHS}");
    let timing = read(&whole).timing.unwrap();
    assert_eq!(timing.latencies.len(), 4);
    let limits = timing.bandwidth;
    assert_eq!(
        (limits.memory_mb_per_s, limits.link_mb_per_s),
        (Some(113_000), Some(34_500))
    );
    assert_eq!(timing.transfer.unwrap().to_string(), "49/112+66");
    // Versions up to 3.1.
    let older = read(&whole.replace("Remote Socket L2->L2", "Remote Socket LLC->LLC"));
    assert_eq!(messages(&older), "");
    assert_eq!(
        older.timing.unwrap().transfer.unwrap().to_string(),
        "49/112+66"
    );
    let sockets = "Measuring idle latencies (in ns)...\n\tMemory node\nSocket\t     0\t     1\t\n     \
                   0\t 70.6\t 113.5\t\n     1\t 113.9\t 71.7\n";
    let timing = read(sockets).timing.unwrap();
    assert_eq!(timing.latency_ns(NodeId(1), NodeId(0)), Some(114));
    // A row of a node that no column has, which no machine could be described with, and rows in another order.
    let strange = MLC.replace("       1 ", "  131000 ");
    assert_eq!(read(&strange).timing.unwrap().latencies.len(), 2);
    let first = "       0          81.5   139.6\n";
    let machine = read(&(MLC.replace(first, "") + first));
    assert_eq!(machine.check(), Vec::<String>::new());
    assert_eq!(
        machine.timing.unwrap().latency_ns(NodeId(1), NodeId(0)),
        Some(139)
    );
    // Cut after the first row: the rest is unknown.
    let cut = MLC.rsplit_once("       1 ").unwrap().0;
    assert_eq!(read(cut).timing.unwrap().latencies.len(), 2);
    // Together with a text that has the CPUs.
    let both = read(&format!("{NUMACTL}\n{MLC}"));
    assert!(both.timing.is_some() && both.cpus.len() > 1);
}

#[test]
fn capabilities_of_virsh_are_a_machine_behind_a_prolog_too() {
    let prolog = format!("<?xml version=\"1.0\"?>\n{VIRSH}");
    assert_eq!(nodes(&read(&prolog)), nodes(&read(VIRSH)));
    for text in [
        VIRSH.to_owned(),
        VIRSH.lines().map(|line| format!("> {line}\n")).collect(),
        VIRSH.replace('<', "&lt;").replace('>', "&gt;"),
    ] {
        let machine = read(&text);
        assert_eq!(nodes(&machine), listed(&[(0, "0,2"), (1, "1")]));
        assert_eq!(bytes(&machine, 1), Some(66056160 << 10));
        assert_eq!(machine.distance(NodeId(0), NodeId(1)).unwrap().0, 21);
        assert_eq!(machine.siblings(CpuId(2)).to_string(), "0,2");
        assert_eq!(machine.origin.architecture.get().unwrap(), "x86_64");
    }
}

#[test]
fn pieces_of_one_machine_are_joined() {
    let machine = read(&format!(
        "Hi,\n{NUMACTL}\n{LSCPU_E}\n{NUMASTAT}\n{INTERRUPTS}{AFFINITY}\n{SUBSYS}\nRegards\n"
    ));
    assert_eq!(nodes(&machine), listed(&[(0, "0,2"), (1, "1")]));
    // numactl prints whole MiB.
    assert_eq!(bytes(&machine, 0), bytes(&read(NUMASTAT), 0));
    assert_eq!(machine.siblings(CpuId(2)).to_string(), "0,2");
    assert_eq!(machine.distance(NodeId(1), NodeId(0)).unwrap().0, 21);
    assert_eq!(machine.interrupts.get().unwrap().len(), 3);
    assert_eq!(machine.nvme.get().unwrap().len(), 2);
    assert_eq!(messages(&machine), "");
}

#[test]
fn pieces_that_contradict_each_other_are_warnings_with_both_sides() {
    let other = NUMACTL
        .replace("cpus: 1", "cpus: 3")
        .replace("64215 MB", "32000 MB")
        .replace("10  21", "10  31");
    let machine = read(&format!("{VIRSH}\n{other}"));
    let messages = messages(&machine);
    for words in [
        "CPUs of node 1: 1 by virsh capabilities (bug.txt, line 1), 3 by numactl -H (bug.txt, line 9)",
        "memory of node 0: 64215M by virsh",
        "distances from nodes 0, of which from node 0: 10 21 by",
    ] {
        assert!(messages.contains(words), "{messages}");
    }
    assert_eq!(nodes(&machine), listed(&[(0, "0,2"), (1, "1")]));
}

#[test]
fn xml_and_json_inside_a_mail_are_read_as_such() {
    let machine = text::parse(KUNPENG, "kunpeng").unwrap();
    let xml = hwloc_xml::render(&machine);
    let mut taken = Vec::new();
    snapshot::write(&machine, &mut taken).unwrap();
    let mut json = String::new();
    std::io::Read::read_to_string(
        &mut flate2::read::GzDecoder::new(taken.as_slice()),
        &mut json,
    )
    .unwrap();
    for document in [xml.as_str(), json.as_str()] {
        let quoted: String = document
            .lines()
            .map(|line| format!("> > {line}\n"))
            .collect();
        let logged: String = (1..)
            .zip(document.lines())
            .map(|(at, line)| format!("12:00:{at:02} host: {line}\n"))
            .collect();
        let escaped = document
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;")
            .replace('"', "&quot;");
        for text in [
            quoted,
            logged,
            escaped,
            format!("{{code}}\n{document}\n{{code}}"),
        ] {
            let found = read(&format!("Hello,\n\n{text}\nBye {{ <x> }}\n"));
            assert_eq!(nodes(&found), nodes(&machine), "{text}");
            assert_eq!(
                found
                    .distances
                    .get()
                    .map(|table| table.entries().collect::<Vec<_>>()),
                machine
                    .distances
                    .get()
                    .map(|table| table.entries().collect())
            );
        }
    }
}

#[test]
fn text_is_found_far_behind_the_beginning() {
    let noise = "{ a = 1 } 12:00:01 [info] node is fine, CPU of it too\n".repeat(40_000);
    let machine = read(&format!("{noise}{KUNPENG}{noise}"));
    assert_eq!(machine.nodes.len(), 4);
    assert_eq!(messages(&machine), "");
}

/// Any of the texts, cut, with lines of others in between, with a prefix.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let part = (
        0..ALL.len(),
        any::<prop::sample::Index>(),
        any::<prop::sample::Index>(),
        "[> #+0-9:|a-z]{0,6}",
    );
    prop::collection::vec((part, prop::collection::vec(any::<u8>(), 0..4)), 1..5).prop_map(
        |parts| {
            let mut bytes = Vec::new();
            for ((which, from, to, prefix), noise) in parts {
                let text: String = ALL[which]
                    .lines()
                    .map(|line| format!("{prefix}{line}\n"))
                    .collect();
                let text = text.into_bytes();
                let (from, to) = (from.index(text.len()), to.index(text.len()));
                bytes.extend(&text[from.min(to)..from.max(to)]);
                bytes.extend(noise);
            }
            bytes
        },
    )
}

proptest! {
    #[test]
    fn no_damage_panics(bytes in damaged()) {
        let text = String::from_utf8_lossy(&bytes);
        if let Ok(machine) = text::parse(&text, "bug.txt") {
            prop_assert_eq!(machine.check(), Vec::<String>::new(), "{}", text);
        }
        let _ = read_bytes(&bytes, "bug.txt");
    }
}

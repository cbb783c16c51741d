//! The evidence of findings names what was read, whatever the source.

use std::collections::BTreeSet;
use std::path::Path;

use nearfar_machine::Machine;
use nearfar_placement::audit::{AuditOptions, audit};
use nearfar_sources::{Request, Want, gallery, hwloc_xml, read, read_bytes, snapshot};

use crate::machines::Laid;
use crate::small_trees;

const RECORDED: [&str; 4] = [
    "pseries-after-6.11",
    "pseries-before-6.11",
    "x86-queues-on-node-2",
    "x86-third-node-offline",
];

/// A tree of which other files than the usual ones were gathered.
const PARTIAL: &str = "\
sys/devices/system/cpu/online: 0-3
sys/devices/system/node/node0/cpumap: f
sys/devices/system/node/node0/distance: 10 21
sys/devices/system/node/node0/meminfo: Node 0 MemTotal: 8388608 kB\\nNode 0 MemFree: 4000000 kB\\nNode 0 HugePages_Total: 9
sys/devices/system/node/node1/cpumap: 0
sys/devices/system/node/node1/distance: 21 10
sys/devices/system/node/node1/meminfo: Node 1 MemTotal: 8388608 kB\\nNode 1 MemFree: 4000 kB\\nNode 1 HugePages_Total: 0
sys/devices/system/node/node2/cpumap: 0
sys/devices/system/node/node2/meminfo: Node 2 MemTotal: 0 kB
sys/devices/pci0000:80/0000:81:00.0/class: 0x020000
sys/devices/pci0000:80/0000:81:00.0/vendor: 0x8086
sys/devices/pci0000:80/0000:81:00.0/device: 0x1572
sys/devices/pci0000:80/0000:81:00.0/numa_node: 1
sys/fs/cgroup/cpuset/cpuset.cpus: 0-3
sys/fs/cgroup/cpuset/db/cpuset.cpus: 0-1
sys/fs/cgroup/cpuset/db/cpuset.mems: 1
proc/meminfo: Hugepagesize: 2048 kB
proc/cmdline: isolcpus=2
proc/irq/24/smp_affinity: 4
proc/interrupts:    CPU0 CPU1 CPU2 CPU3\\n 24: 9 0 0 0  PCI-MSIX-0000:81:00.0 1-edge eth0-TxRx-0
proc/sys/vm/zone_reclaim_mode: 1
";

/// What the evidence names, with the rules.
fn evidence(machine: &Machine) -> Vec<(&'static str, String)> {
    let found = audit(machine, &AuditOptions::default());
    let each = |rule, evidence: Vec<_>| {
        let files = evidence.into_iter();
        files.map(move |it: nearfar_placement::audit::Evidence| (rule, it.file))
    };
    let all = found.findings.into_iter();
    all.flat_map(|it| each(it.rule, it.evidence)).collect()
}

fn is_file(named: &str) -> bool {
    named.contains("sys/") || named.contains("proc/")
}

/// Rules whose evidence was looked at.
fn each_is_from(machine: &Machine, place: &str) -> BTreeSet<&'static str> {
    let all = evidence(machine);
    for (rule, named) in &all {
        let is_of_interrupt = named.starts_with("interrupt ");
        assert!(!is_file(named), "{rule}: {named}");
        assert!(
            named.starts_with(place) || is_of_interrupt,
            "{place}, {rule}: {named}"
        );
    }
    all.into_iter().map(|(rule, _)| rule).collect()
}

/// Each file that is named is in the tree.
fn each_is_in(machine: &Machine) -> usize {
    let root = Path::new(&machine.origin.place);
    let all = evidence(machine);
    for (rule, named) in &all {
        let Some(file) = named.strip_prefix(&machine.origin.place) else {
            assert!(!is_file(named), "{rule}: {named}");
            continue;
        };
        // What is in a file follows its name.
        let file = file.split_once(": ").map_or(file, |(file, _)| file);
        let file = file.split_once("/*/").map_or(file, |(file, _)| file);
        assert!(
            root.join(file.trim_start_matches('/')).exists(),
            "{rule}: {named}"
        );
    }
    all.len()
}

#[test]
fn a_description_names_itself_and_its_keys() {
    let mut rules = BTreeSet::new();
    for entry in gallery() {
        let machine = read(&Request::source(entry.name, Want::all())).unwrap();
        rules.extend(each_is_from(&machine, &machine.origin.place));
    }
    assert!(rules.len() > 8, "{rules:?}");
    let machine = read(&Request::source("x86-case1", Want::all())).unwrap();
    let named: Vec<String> = evidence(&machine).into_iter().map(|it| it.1).collect();
    insta::assert_snapshot!(named.join("\n"), @r"
    machines/x86-case1.toml: 0000:20:01.0 node
    machines/x86-case1.toml: [[bridge]] 0000:20
    machines/x86-case1.toml: online nodes
    machines/x86-case1.toml: nvme0 node
    machines/x86-case1.toml: nvme1 node
    machines/x86-case1.toml: nvme-subsys0 iopolicy
    ");
}

#[test]
fn a_snapshot_of_a_description_names_itself_and_what_it_is_of() {
    let machine = read(&Request::source("x86-case1", Want::all())).unwrap();
    let mut taken = Vec::new();
    snapshot::write(&machine, &mut taken).unwrap();
    let restored = read_bytes(&taken, "a.nearfar").unwrap();
    let rules = each_is_from(&restored, "a.nearfar (of machines/x86-case1.toml): ");
    assert!(!rules.is_empty());
}

#[test]
fn xml_names_itself_and_the_objects() {
    for entry in gallery() {
        let machine = read(&Request::source(entry.name, Want::all())).unwrap();
        let xml = hwloc_xml::render(&machine);
        each_is_from(&read_bytes(xml.as_bytes(), "a.xml").unwrap(), "a.xml: ");
    }
    let machine = read(&Request::source("node:2 core:2 memory:0", Want::all())).unwrap();
    let xml = hwloc_xml::render(&machine);
    let machine = read_bytes(xml.as_bytes(), "a.xml").unwrap();
    assert_eq!(
        evidence(&machine)[0],
        (
            "node-without-memory",
            "a.xml: NUMANode 0, local_memory".to_owned()
        )
    );
}

const TEXT: &str = "\
available: 3 nodes (0-2)
node 0 cpus: 0 1
node 0 size: 8000 MB
node 0 free: 7000 MB
node 1 cpus:
node 1 size: 8000 MB
node 1 free: 10 MB
node 2 cpus: 2 3
node 2 size: 0 MB
node 2 free: 0 MB
node distances:
node   0   1   2
  0:  10  20  20
  1:  20  10  20
  2:  20  20  10
/sys/devices/system/cpu/isolated:2
/proc/irq/24/smp_affinity:4
";

#[test]
fn text_names_itself_and_what_it_says() {
    let machine = read_bytes(TEXT.as_bytes(), "mail.txt").unwrap();
    each_is_from(&machine, "mail.txt: ");
    let named: BTreeSet<String> = evidence(&machine).into_iter().map(|it| it.1).collect();
    insta::assert_snapshot!(named.into_iter().collect::<Vec<_>>().join("\n"), @r"
    mail.txt: distances of node 0
    mail.txt: interrupt 24 affinity
    mail.txt: isolated CPUs
    mail.txt: node 0 memory
    mail.txt: node 1 cpus
    mail.txt: node 1 memory
    mail.txt: node 2 memory
    ");
}

#[test]
fn several_sources_and_fake_nodes_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("mail.txt");
    std::fs::write(&text, TEXT).unwrap();
    let text = text.display().to_string();
    let xml = folder.path().join("a.xml");
    let machine = read_bytes(TEXT.as_bytes(), "mail.txt").unwrap();
    std::fs::write(&xml, hwloc_xml::render(&machine)).unwrap();
    let xml = xml.display().to_string();
    let (root, _) = small_trees::unpack(PARTIAL);
    let root = root.path().display().to_string();
    for sources in [[&text, &xml], [&xml, &root]] {
        let request = Request {
            sources: sources.map(String::clone).to_vec(),
            ..Request::live(Want::all())
        };
        let machine = read(&request).unwrap();
        let place = format!("{}, {}: ", sources[0], sources[1]);
        assert!(!each_is_from(&machine, &place).is_empty());
    }
    let request = Request {
        fake: Some("4".to_owned()),
        ..Request::source(text.clone(), Want::all())
    };
    each_is_from(&read(&request).unwrap(), &text);
    let request = Request {
        fake: Some("4".to_owned()),
        ..Request::source(root.clone(), Want::all())
    };
    let by_node = format!("{root}, fake: 4: ");
    for (rule, named) in evidence(&read(&request).unwrap()) {
        let is_of_cpus = named.contains("/proc/") || named.ends_with("cpuset.cpus");
        assert!(is_of_cpus || named.starts_with(&by_node), "{rule}: {named}");
    }
}

#[test]
fn a_tree_has_each_file_that_is_named() {
    for name in RECORDED {
        let laid = Laid::out(name);
        assert!(each_is_in(&laid.read(&Want::all())) > 0, "{name}");
    }
    let (root, _) = small_trees::unpack(PARTIAL);
    let root = root.path();
    let request = Request {
        root: Some(root.to_owned()),
        ..Request::live(Want::all())
    };
    let machine = read(&request).unwrap();
    each_is_in(&machine);
    let below = |(rule, named): (&str, String)| {
        let named = named.replace(&root.display().to_string(), "ROOT");
        format!("{rule}: {named}\n")
    };
    let named: String = evidence(&machine).into_iter().map(below).collect();
    insta::assert_snapshot!(named, @r"
    interrupt-on-isolated-cpu: ROOT/proc/irq/24/smp_affinity
    interrupt-on-isolated-cpu: ROOT/proc/cmdline
    cpuset-disjoint: ROOT/sys/fs/cgroup/cpuset/db/cpuset.cpus
    cpuset-disjoint: ROOT/sys/fs/cgroup/cpuset/db/cpuset.mems
    node-nearly-full: ROOT/sys/devices/system/node/node1/meminfo
    node-nearly-full: ROOT/sys/devices/system/node/node0/meminfo
    node-nearly-full: ROOT/proc/sys/vm/zone_reclaim_mode
    huge-pages-elsewhere: ROOT/sys/devices/system/node/node1/meminfo
    huge-pages-elsewhere: ROOT/sys/devices/system/node/node0/meminfo
    node-without-cpus: ROOT/sys/devices/system/node/node1/cpumap
    node-without-cpus: ROOT/sys/devices/system/node/node2/cpumap
    node-without-memory: ROOT/sys/devices/system/node/node2/meminfo
    ");

    // A snapshot has the paths of the machine that it was taken on.
    let mut taken = Vec::new();
    snapshot::write(&machine, &mut taken).unwrap();
    let restored = read_bytes(&taken, "a.nearfar").unwrap();
    let moved = |(rule, named): (&'static str, String)| {
        (
            rule,
            named.replacen(&root.display().to_string(), "a.nearfar: ", 1),
        )
    };
    let expected: Vec<_> = evidence(&machine).into_iter().map(moved).collect();
    assert_eq!(evidence(&restored), expected);
}

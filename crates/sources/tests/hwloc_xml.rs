//! hwloc's XML, in and out, also through lstopo where it is installed.

use std::process::Command;

use crate::any_machine::any_machine;
use nearfar_machine::{
    CacheKind, CpuId, CpuSet, Distance, Known, Machine, NodeId, OsDeviceKind, PciAddress,
};
use nearfar_sources::{Request, Want, hwloc_xml, synthetic, text};
use proptest::prelude::*;

fn read(text: &str) -> Machine {
    let machine = hwloc_xml::parse(text, "test.xml").unwrap();
    assert_eq!(machine.check(), Vec::<String>::new());
    machine
}

/// Number, online, node, core, package.
type HeldCpu = (CpuId, bool, Option<NodeId>, Option<CpuId>, Option<i64>);

/// What XML can hold of a machine, in a form that compares.
#[derive(PartialEq, Debug)]
struct Held {
    nodes: Vec<(NodeId, CpuSet, u64)>,
    cpus: Vec<HeldCpu>,
    caches: Vec<(u32, CacheKind, CpuSet, u64, Option<u32>)>,
    distances: Option<Vec<Option<Distance>>>,
    pci: Vec<(PciAddress, u32, Option<Option<NodeId>>)>,
}

fn held(machine: &Machine) -> Held {
    let nodes: Vec<NodeId> = machine.online_nodes().map(|node| node.id).collect();
    let is_online = |node: &NodeId| nodes.contains(node);
    let complete = machine
        .distances
        .get()
        .filter(|table| table.is_complete() && nodes.len() > 1);
    Held {
        nodes: machine
            .online_nodes()
            .map(|n| (n.id, n.known_cpus().clone(), n.total_bytes().unwrap_or(0)))
            .collect(),
        cpus: machine
            .cpus
            .iter()
            .map(|c| {
                (
                    c.id,
                    c.is_online(),
                    c.node.filter(is_online),
                    c.core.filter(|_| c.is_online()),
                    c.package.filter(|_| c.is_online()),
                )
            })
            .collect(),
        caches: machine
            .caches
            .iter()
            .map(|c| {
                (
                    c.level,
                    c.kind,
                    c.cpus.clone(),
                    c.size_bytes.get().copied().unwrap_or(0),
                    c.ways,
                )
            })
            .collect(),
        distances: complete.map(|table| table.entries().map(|entry| entry.2).collect()),
        pci: machine
            .pci
            .get()
            .into_iter()
            .flatten()
            .map(|d| (d.address, d.class >> 8, d.node.get().copied()))
            .collect(),
    }
}

/// A machine's own order of cores does not survive where cores cross what hwloc can nest.
fn nests(machine: &Machine) -> bool {
    let cores_in_one_package = machine.cpus.iter().all(|cpu| {
        machine
            .siblings(cpu.id)
            .iter()
            .filter_map(|other| machine.cpu(other))
            .all(|other| other.package == cpu.package)
    });
    cores_in_one_package && machine.online_nodes().next().is_some()
}

/// The XML after lstopo has read and written it; `None` where lstopo is not installed.
fn through_lstopo(xml: &str) -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("nearfar.xml");
    std::fs::write(&file, xml).unwrap();
    let mut lstopo = Command::new("lstopo-no-graphics");
    lstopo
        .env("HWLOC_DEBUG_CHECK", "1")
        .args(["--if", "xml", "--whole-io", "--of", "xml", "-i"])
        .arg(&file);
    let output = match lstopo.output() {
        Ok(output) => output,
        Err(error) => {
            eprintln!(
                "skipped: tools: lstopo-no-graphics cannot be run ({error}); install hwloc-nox to check the export"
            );
            return None;
        }
    };
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && complaint.is_empty(),
        "lstopo says: {complaint}\nabout:\n{xml}"
    );
    Some(String::from_utf8(output.stdout).unwrap())
}

proptest! {
    #[test]
    fn every_machine_comes_back_as_far_as_xml_can_hold_it(machine in any_machine().prop_filter("nests", nests)) {
        let xml = hwloc_xml::render(&machine);
        match hwloc_xml::parse(&xml, "file") {
            Ok(back) => {
                prop_assert_eq!(back.check(), Vec::<String>::new());
                prop_assert_eq!(held(&back), held(&machine), "{}", xml);
            }
            Err(error) => prop_assert!(machine.online_nodes().next().is_none(), "{}", error),
        }
    }

    #[test]
    fn no_text_panics(text in "(?s).{0,200}") {
        let _ = hwloc_xml::parse(&text, "file");
    }

    #[test]
    fn no_mixture_of_elements_panics(parts in prop::collection::vec(prop_oneof![
        Just("<object type=\"Machine\" complete_cpuset=\"0xff\">"), Just("<object type=\"NUMANode\" os_index=\"1\" cpuset=\"0x3\"/>"),
        Just("<object type=\"NUMANode\" os_index=\"99999999999\"/>"), Just("<object type=\"PU\" os_index=\"1\"/>"),
        Just("<object type=\"Core\">"), Just("</object>"), Just("<object type=\"L3Cache\" cache_size=\"-1\" cache_type=\"9\">"),
        Just("<object type=\"Bridge\" bridge_type=\"0-1\" bridge_pci=\"0000:[20-3f]\">"),
        Just("<object type=\"PCIDev\" pci_busid=\"0000:21:00.0\" pci_type=\"0108 [1:2] x y z\"/>"),
        Just("<distances2 type=\"NUMANode\" kind=\"5\" indexing=\"os\">"), Just("<indexes>1 2 x</indexes>"),
        Just("<u64values>10 20 20 99999999999999999999999</u64values>"), Just("</distances2>"), Just("&bomb;"), Just("<page_type size=\"1\" count=\"2\"/>"),
        Just("<object type=\"Group\" nodeset=\"0xf...f\" cpuset=\"0xf...f,,0x1\">"), Just("<info name=\"KernelNode\" value=\"7\"/>")], 0..20)) {
        let text = format!("<topology version=\"2.0\">{}", parts.concat());
        let closed = format!("{text}{}</topology>", "</object>".repeat(20));
        for text in [text, closed] {
            if let Ok(machine) = hwloc_xml::parse(&text, "file") {
                prop_assert_eq!(machine.check(), Vec::<String>::new());
            }
        }
    }
}

proptest! {
    #[test]
    fn lstopo_shows_the_same_nodes_cpus_caches_distances_and_devices(machine in any_machine().prop_filter("nests", nests)) {
        let mut machine = machine;
        // hwloc cannot be without any CPU.
        prop_assume!(!machine.cpu_states.online.is_empty());
        machine.warnings.clear();
        if let Some(xml) = through_lstopo(&hwloc_xml::render(&machine)) {
            prop_assert_eq!(held(&read(&xml)), held(&machine), "{}", xml);
        }
    }
}

#[test]
fn lstopo_shows_machines_of_several_shapes() {
    let kunpeng = text::parse(include_str!("fixtures/kunpeng-numactl.txt"), "kunpeng").unwrap();
    let mut machines = vec![kunpeng];
    for text in [
        "package:2 node:2 l3:1(size=32M) core:4 pu:2 memory:16G distance:10,12,20,22",
        "package:2 die:2 node:1 cluster:2 l2:1(size=1M) core:2 memory:1G distance:10,20;30,40",
        "node:1 core:2",
        "package:4 l3:2(size=8M) l2:1 l1d:1 l1i:1 core:1 pu:4",
        "node:64 core:4 memory:4G distance:20",
    ] {
        machines.extend(synthetic::parse(text));
    }
    for machine in machines {
        if let Some(xml) = through_lstopo(&hwloc_xml::render(&machine)) {
            assert_eq!(held(&read(&xml)), held(&machine));
        }
    }
}

#[test]
fn foreign_xml_and_future_versions_say_what_to_do() {
    let error = |text: &str| hwloc_xml::parse(text, "old.xml").unwrap_err().to_string();
    let future = error("<?xml version=\"1.0\"?>\n<topology version=\"4.1\"/>");
    assert!(
        future.contains("version 4.1") && future.contains("lstopo") && future.contains("line 2"),
        "{future}"
    );
    assert!(error("<html></html>").contains("<html>"));
    assert!(error("<topology version=\"2.0\"></topology>").contains("neither a CPU nor a node"));
    assert!(
        error("<topology version=\"2.0\"><object type=\"Machine\">").contains("ends in the middle")
    );
    assert!(error("<topology version=\"2.0\"><object></topology>").contains("well-formed"));
}

#[test]
fn bombs_stay_small() {
    let bomb = "<!DOCTYPE lolz [<!ENTITY a \"lol\"><!ENTITY b \"&a;&a;&a;&a;&a;&a;\">]>\n<topology version=\"2.0\">\
                <object type=\"Machine\"><info name=\"HostName\" value=\"&b;\"/></object></topology>";
    assert!(
        hwloc_xml::parse(bomb, "bomb")
            .unwrap_err()
            .to_string()
            .contains("line 2")
    );
    let deep = format!(
        "<topology version=\"2.0\">{}",
        "<object type=\"Group\">".repeat(100_000)
    );
    assert!(
        hwloc_xml::parse(&deep, "deep")
            .unwrap_err()
            .to_string()
            .contains("deeper than")
    );
    let long = format!(
        "<topology version=\"2.0\"><object type=\"{}\"/></topology>",
        "x".repeat(20_000_000)
    );
    assert!(
        hwloc_xml::parse(&long, "long")
            .unwrap_err()
            .to_string()
            .len()
            < 200
    );
    let sets = format!(
        "<topology version=\"2.0\"><object type=\"PU\" os_index=\"0\" cpuset=\"{}\"/></topology>",
        "0xffffffff,".repeat(1_000_000)
    );
    assert_eq!(read(&sets).cpus.len(), 1);
}

#[test]
fn what_lstopo_of_version_3_writes_is_read() {
    let machine = read(include_str!("fixtures/hwloc-v3.xml"));
    assert_eq!((machine.nodes.len(), machine.cpus.len()), (2, 4));
    assert_eq!(machine.distance(NodeId(0), NodeId(1)), Some(Distance(21)));
    assert_eq!(machine.nodes[1].known_cpus().to_string(), "2-3");
    assert_eq!(machine.nodes[1].total_bytes(), Some(1 << 30));
    assert_eq!(machine.origin.kernel, Known::Yes("6.12.1".to_owned()));
    assert_eq!(
        (machine.caches[0].level, machine.caches[0].ways),
        (3, Some(16))
    );
    assert_eq!(machine.siblings(CpuId(0)).to_string(), "0-1");
    let device = &machine.pci.get().unwrap()[1];
    assert_eq!(
        (device.class, device.vendor, device.device),
        (0x010802, 0x8086, 0x0a54)
    );
    assert_eq!(
        (device.root.to_string(), device.parent.unwrap().to_string()),
        ("0000:20".into(), "0000:20:01.0".into())
    );
    assert_eq!(device.node, Known::Yes(Some(NodeId(1))));
}

#[test]
fn what_xml_cannot_hold_is_left_out_and_offline_cpus_are_kept() {
    let mut machine = synthetic::parse("node:2 core:2 memory:1G distance:10,-;20,10").unwrap();
    machine.cpus[3].online = false.into();
    machine.cpus[3].core = None;
    machine.cpu_states.online.remove(CpuId(3));
    let back = read(&hwloc_xml::render(&machine));
    assert!(back.distances.unknown_reason().is_some());
    assert_eq!(back.nodes[1].known_cpus().to_string(), "2-3");
    assert!(back.cpus[3].is_offline());
    // Another program's file does not say which of them are offline.
    let xml = hwloc_xml::render(&machine).replace("KernelOffline", "Other");
    assert!(read(&xml).cpus[3].online.unknown_reason().is_some());
    assert_eq!(read(&xml).cpus[3].node, Some(NodeId(1)));
}

/// XML of version 2 with these objects below the machine.
fn xml(cpus: &str, nodes: &str, objects: &str) -> String {
    format!(
        "<topology version=\"2.0\">\n<object type=\"Machine\" os_index=\"0\" cpuset=\"{cpus}\" complete_cpuset=\"{cpus}\" \
         nodeset=\"{nodes}\" complete_nodeset=\"{nodes}\" allowed_nodeset=\"{nodes}\" gp_index=\"1\">\n{objects}\n\
         <info name=\"Backend\" value=\"Linux\"/></object></topology>"
    )
}

fn group(kind: &str, cpus: &str, inside: &str) -> String {
    format!(
        "<object type=\"{kind}\" cpuset=\"{cpus}\" complete_cpuset=\"{cpus}\">{inside}</object>\n"
    )
}

/// A node of this many GiB near these CPUs, and what else stands in the element.
fn node(id: u32, cpus: &str, gib: u64, more: &str) -> String {
    format!(
        "<object type=\"NUMANode\" os_index=\"{id}\" gp_index=\"{}\" cpuset=\"{cpus}\" complete_cpuset=\"{cpus}\" \
         local_memory=\"{}\" {more}/>",
        100 + id,
        gib << 30
    )
}

/// PUs whose sets name these nodes.
fn pus(cpus: std::ops::Range<u32>, nodes: &str) -> String {
    let pu = |cpu| format!("<object type=\"PU\" os_index=\"{cpu}\" complete_nodeset=\"{nodes}\"/>");
    cpus.map(pu).collect()
}

/// Each node's CPUs; `None` where they are unknown.
fn cpus_of(machine: &Machine) -> Vec<Option<String>> {
    let nodes = machine.nodes.iter();
    nodes
        .map(|node| node.cpus.get().map(CpuSet::to_string))
        .collect()
}

fn some<const N: usize>(cpus: [&str; N]) -> Vec<Option<String>> {
    cpus.map(|cpus| Some(cpus.to_owned())).to_vec()
}

#[test]
fn memory_of_a_special_kind_has_no_cpus_where_other_memory_is_near_them() {
    // HBM whose numbers are not next to those of its neighbours, memory of a GPU, CXL memory near both packages.
    let machine = read(&xml(
        "0xf",
        "0x1f",
        &[
            group(
                "Package",
                "0x3",
                &[
                    node(0, "0x3", 64, "subtype=\"DRAM\""),
                    node(2, "0x3", 64, "subtype=\"HBM\""),
                    pus(0..2, "0x5"),
                ]
                .concat(),
            ),
            group(
                "Package",
                "0xc",
                &[
                    node(1, "0xc", 64, ""),
                    node(3, "0xc", 64, "subtype=\"GPUMemory\""),
                    pus(2..4, "0xa"),
                ]
                .concat(),
            ),
            node(4, "0xf", 128, ""),
        ]
        .concat(),
    ));
    assert_eq!(cpus_of(&machine), some(["0-1", "2-3", "", "", ""]));
    assert_eq!(machine.node_of(CpuId(3)), Some(NodeId(1)));
    // Normal input is no reason to warn.
    assert_eq!(machine.warnings, []);
    // Where all memory is special, it is that of the CPUs.
    let only = read(&xml(
        "0x3",
        "0x1",
        &[node(0, "0x3", 32, "subtype=\"HBM\""), pus(0..2, "0x1")].concat(),
    ));
    assert_eq!(cpus_of(&only), some(["0-1"]));
    // A GPU's node may have the lower number.
    let low = read(&xml(
        "0x3",
        "0x3",
        &[
            node(0, "0x3", 96, "subtype=\"GPUMemory\""),
            node(1, "0x3", 480, ""),
            pus(0..2, "0x3"),
        ]
        .concat(),
    ));
    assert_eq!(cpus_of(&low), some(["", "0-1"]));
}

#[test]
fn of_nodes_near_the_same_cpus_the_lowest_has_them_with_a_warning() {
    // hwloc before 2.8 gives HBM no subtype.
    let machine = read(&xml(
        "0xf",
        "0xf",
        &[
            group(
                "Package",
                "0x3",
                &[
                    node(0, "0x3", 96, ""),
                    node(2, "0x3", 4, ""),
                    pus(0..2, "0x5"),
                ]
                .concat(),
            ),
            group(
                "Package",
                "0xc",
                &[
                    node(1, "0xc", 96, ""),
                    node(3, "0xc", 4, ""),
                    pus(2..4, "0xa"),
                ]
                .concat(),
            ),
        ]
        .concat(),
    ));
    assert_eq!(cpus_of(&machine), some(["0-1", "2-3", "", ""]));
    assert_eq!(machine.warnings.len(), 1);
    let message = &machine.warnings[0].message;
    assert!(
        message.contains("nodes 2-3 near the same CPUs as nodes 0-1"),
        "{message}"
    );
}

#[test]
fn nodes_that_may_each_have_a_part_of_the_cpus_have_unknown_ones() {
    let packages = [
        group("Package", "0x3", &pus(0..2, "0x3")),
        group("Package", "0xc", &pus(2..4, "0x3")),
    ]
    .concat();
    let by_packages = read(&xml(
        "0xf",
        "0x3",
        &[node(0, "0xf", 64, ""), node(1, "0xf", 16, ""), packages].concat(),
    ));
    assert_eq!(cpus_of(&by_packages), [None, None]);
    assert!(
        by_packages
            .cpu_nodes_unknown_reason()
            .unwrap()
            .contains("does not say")
    );
    let by_size = read(&xml(
        "0xf",
        "0x3",
        &[
            node(0, "0xf", 64, ""),
            node(1, "0xf", 63, ""),
            pus(0..4, "0x3"),
        ]
        .concat(),
    ));
    assert_eq!(cpus_of(&by_size), [None, None]);
    // What is unknown stays so on the way out and in.
    assert_eq!(cpus_of(&read(&hwloc_xml::render(&by_size))), [None, None]);
    // A file that was restricted to the CPUs of one node: the speed of the other is that from its own CPUs.
    let restricted = xml(
        "0x3",
        "0x3",
        &[node(0, "0x3", 64, ""), node(1, "0x0", 64, ""), pus(0..2, "0x1")].concat(),
    )
    .replace(
        "</topology>",
        "<memattr name=\"Latency\" flags=\"6\"><memattr_value target_obj_type=\"NUMANode\" target_obj_gp_index=\"101\" \
         value=\"110\" initiator_cpuset=\"0xc\"/></memattr></topology>",
    );
    assert_eq!(cpus_of(&read(&restricted)), [Some("0-1".to_owned()), None]);
    // Without it, hwloc says that the node is near no CPU.
    let plain = restricted.replace("Latency", "Other");
    assert_eq!(cpus_of(&read(&plain)), some(["0-1", ""]));
}

#[test]
fn a_node_that_hwloc_does_not_show_has_the_cpus_that_name_it() {
    let text = xml(
        "0xf",
        "0x7",
        &[
            group(
                "Package",
                "0x3",
                &[node(2, "0x3", 64, ""), pus(0..2, "0x5")].concat(),
            ),
            group(
                "Package",
                "0xc",
                &[node(1, "0xc", 64, ""), pus(2..4, "0x2")].concat(),
            ),
        ]
        .concat(),
    )
    .replace("allowed_nodeset=\"0x7\"", "allowed_nodeset=\"0x6\"");
    let machine = read(&text);
    // Node 2 is near the CPUs of node 0, which has no memory.
    assert_eq!(cpus_of(&machine), some(["0-1", "2-3", ""]));
    let because = machine.nodes[0].memory.unknown_reason().unwrap();
    assert!(because.contains("control group"), "{because}");
    // Without PUs, objects that have CPUs of this node alone name it.
    let without = xml(
        "0xf",
        "0x3",
        &[
            node(1, "0xc", 64, ""),
            group("Package", "0x3", "").replace(
                "cpuset=\"0x3\">",
                "cpuset=\"0x3\" complete_nodeset=\"0x1\">",
            ),
        ]
        .concat(),
    );
    assert_eq!(cpus_of(&read(&without)), some(["0-1", "2-3"]));
    // Also where they name memory near these CPUs, too.
    let beside = without
        .replace("complete_nodeset=\"0x1\"", "complete_nodeset=\"0x5\"")
        .replace("0x3\" allowed", "0x7\" allowed")
        .replace("<info", &format!("{}<info", node(2, "0x3", 64, "")));
    assert_eq!(cpus_of(&read(&beside)), some(["0-1", "2-3", ""]));
    // CPUs without PU objects are neither online nor offline.
    let cpus = &read(&without).cpus;
    assert_eq!(cpus.len(), 4);
    assert!(cpus.iter().all(|cpu| {
        cpu.online
            .unknown_reason()
            .unwrap()
            .contains("no PU object")
    }));
}

/// A card with an interface and an InfiniBand device, a GPU and a disk, with the numbers of a version's kinds.
fn devices(version: &str, kinds: [u32; 5]) -> String {
    let [network, infiniband, gpu, disk, dax] = kinds;
    let device = |function: u32, class: &str, names: &[(&str, u32)]| {
        let names: String = names
            .iter()
            .map(|(name, kind)| {
                format!("<object type=\"OSDev\" name=\"{name}\" osdev_type=\"{kind}\"/>")
            })
            .collect();
        format!(
            "<object type=\"PCIDev\" pci_busid=\"0000:81:00.{function}\" pci_type=\"{class} [15b3:101b] [15b3:0006] 00\">{names}</object>"
        )
    };
    let bridge = format!(
        "<object type=\"Bridge\" bridge_type=\"0-1\" bridge_pci=\"0000:[80-81]\">{}{}{}</object>",
        device(0, "0207", &[("ib7", network), ("mlx5_7", infiniband)]),
        device(1, "0302", &[("nvml0", gpu)]),
        device(2, "0108", &[("nvme0n1", disk), ("dax0.0", dax)]),
    );
    let inside = [node(0, "0x1", 1, ""), pus(0..1, "0x1"), bridge].concat();
    xml("0x1", "0x1", &inside).replace("version=\"2.0\"", &format!("version=\"{version}\""))
}

#[test]
fn os_devices_name_their_function() {
    for (version, kinds) in [("2.0", [2, 3, 1, 0, 0]), ("3.0", [16, 48, 12, 1, 3])] {
        let machine = read(&devices(version, kinds));
        let again = read(&hwloc_xml::render(&machine));
        for machine in [&machine, &again] {
            let names = ["dax0.0", "ib7", "mlx5_7", "nvme0n1", "nvml0"];
            assert_eq!(machine.device_names(), names, "{version}");
            let address = |function: &str| [format!("0000:81:00.{function}").parse().unwrap()];
            assert_eq!(machine.functions_named("mlx5_7"), address("0"));
            assert_eq!(machine.functions_named("nvml0"), address("1"));
            assert_eq!(machine.functions_named("/dev/nvme0n1"), address("2"));
            assert_eq!(machine.names_on(address("0")[0]), ["ib7", "mlx5_7"]);
            let kinds: Vec<OsDeviceKind> = machine.os_devices.iter().map(|it| it.kind).collect();
            use OsDeviceKind::{Gpu, Memory, Network, OpenFabrics};
            assert_eq!(kinds, [Memory, Network, OpenFabrics, Gpu], "{version}");
            assert_eq!(machine.disks.len(), 1);
            // hwloc has no queues.
            assert!(machine.networks.unknown_reason().is_some());
        }
    }
}

/// In whichever order they come.
#[test]
fn text_says_what_the_xml_does_not_and_the_rest_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.display().to_string()
    };
    // CPU 1 has no object, so its state is unknown.
    let xml = devices("2.0", [2, 3, 1, 0, 0]).replace("\"0x1\" complete", "\"0x3\" complete");
    assert!(read(&xml).cpus[1].online.get().is_none());
    let sources = [
        file("topology.xml", &xml),
        file(
            "lscpu.txt",
            "CPU NODE SOCKET CORE ONLINE\n  0    0      0    0    yes\n  1    -      0    1    yes\n",
        ),
    ];
    for order in [[0, 1], [1, 0]] {
        let request = Request {
            sources: order.map(|at| sources[at].clone()).to_vec(),
            ..Request::live(Want::all())
        };
        let machine = nearfar_sources::read(&request).unwrap();
        let names = ["dax0.0", "ib7", "mlx5_7", "nvme0n1", "nvml0"];
        assert_eq!(machine.device_names(), names);
        assert_eq!(machine.cpu_states.online.to_string(), "0-1");
        assert_eq!(machine.warnings, []);
    }
}

#[test]
fn memory_attributes_are_the_speed_from_near_cpus() {
    let value = |name: &str, target: u32, cpus: &str, value: u32| {
        format!(
            "<memattr name=\"{name}\" flags=\"5\"><memattr_value target_obj_type=\"NUMANode\" target_obj_gp_index=\"{target}\" \
             value=\"{value}\" initiator_cpuset=\"{cpus}\"/></memattr>"
        )
    };
    let values = [
        value("Bandwidth", 100, "0x3", 1),
        value("ReadBandwidth", 100, "0x3", 200),
        value("WriteLatency", 100, "0x3", 90),
        // Before hwloc 2.8 what it reads has the plain name. The far CPUs are a user's own addition.
        value("Bandwidth", 101, "0x3", 7),
        value("Bandwidth", 101, "0xc", 50),
        value("Capacity", 101, "0xc", 5),
    ]
    .concat();
    let inside = [
        group(
            "Package",
            "0x3",
            &[node(0, "0x3", 64, ""), pus(0..2, "0x1")].concat(),
        ),
        group(
            "Package",
            "0xc",
            &[node(1, "0xc", 16, ""), pus(2..4, "0x2")].concat(),
        ),
    ];
    let text =
        xml("0xf", "0x3", &inside.concat()).replace("</topology>", &format!("{values}</topology>"));
    let machine = read(&text);
    let access = |machine: &Machine, node: usize| {
        let access = &machine.nodes[node].access[0];
        let read = (access.read_bandwidth_mib_per_s, access.read_latency_ns);
        (
            access.class,
            access.initiators.to_string(),
            read,
            access.write_latency_ns,
        )
    };
    assert_eq!(
        access(&machine, 0),
        (1, "0".to_owned(), (Some(200), None), Some(90))
    );
    assert_eq!(
        access(&machine, 1),
        (1, "1".to_owned(), (Some(50), None), None)
    );
    let out = hwloc_xml::render(&machine);
    assert_eq!(read(&out).nodes, machine.nodes);
    if let Some(again) = through_lstopo(&out) {
        assert_eq!(read(&again).nodes, machine.nodes);
    }
}

#[test]
fn hops_and_bandwidths_are_no_distances() {
    let matrix = |head: &str| {
        format!(
            "<{head} indexing=\"os\"><indexes>0 1</indexes><u64values>10 40 40 10</u64values></distances2>"
        )
    };
    let nodes = [
        node(0, "0x1", 1, ""),
        node(1, "0x2", 1, ""),
        pus(0..2, "0x3"),
    ]
    .concat();
    for head in [
        "distances2 type=\"OSDev\" kind=\"5\" name=\"XGMIHops\"",
        "distances2 type=\"NUMANode\" kind=\"5\" name=\"XGMIHops\"",
        "distances2 type=\"NUMANode\" kind=\"9\" name=\"NVLinkBandwidth\"",
    ] {
        let with = |more: &str| {
            let text = xml("0x3", "0x3", &nodes);
            read(&text.replace("</topology>", &format!("{}{more}</topology>", matrix(head))))
        };
        assert!(with("").distances.unknown_reason().is_some(), "{head}");
        let both = with(&matrix(
            "distances2 type=\"NUMANode\" kind=\"5\" name=\"NUMALatency\"",
        ));
        assert_eq!(
            both.distance(NodeId(0), NodeId(1)),
            Some(Distance(40)),
            "{head}"
        );
    }
}

#[test]
fn version_1_is_read() {
    let machine = read(include_str!("fixtures/hwloc-v1.xml"));
    // Node 2 is MCDRAM, which version 1 shows without CPUs.
    assert_eq!(cpus_of(&machine), some(["0-1", "2-4", ""]));
    assert_eq!(machine.nodes[2].total_bytes(), Some(4 << 30));
    assert_eq!(machine.nodes[1].total_bytes(), Some(8 << 30));
    // Rows are in the order of the file; levels of an irregular tree are not those of relative_depth.
    assert_eq!(machine.distance(NodeId(0), NodeId(1)), Some(Distance(21)));
    assert_eq!(machine.distance(NodeId(2), NodeId(0)), Some(Distance(31)));
    assert_eq!(machine.cpu_states.online.to_string(), "0-3");
    assert!(machine.cpus[4].is_offline());
    assert_eq!(machine.cpus[2].package, Some(1));
    assert_eq!(machine.siblings(CpuId(0)).to_string(), "0-1");
    let caches: Vec<_> = machine
        .caches
        .iter()
        .map(|it| (it.level, it.kind))
        .collect();
    use CacheKind::{Data, Unified};
    assert_eq!(caches, [(1, Data), (3, Unified)]);
    assert_eq!(machine.origin.kernel, Known::Yes("3.10.0".to_owned()));
    let device = &machine.pci.get().unwrap()[0];
    assert_eq!(
        (device.class, device.node.clone()),
        (0x020000, Known::Yes(Some(NodeId(1))))
    );
    assert_eq!(machine.functions_named("eth3"), [device.address]);
    assert_eq!(machine.warnings, []);

    // A machine of one node has its memory at the outermost object.
    let one = "<topology><object type=\"Machine\" os_index=\"0\" cpuset=\"0x3\" local_memory=\"1024\">\
               <object type=\"PU\" os_index=\"0\"/><object type=\"PU\" os_index=\"1\"/></object></topology>";
    let one = read(one);
    assert_eq!(cpus_of(&one), some(["0-1"]));
    assert_eq!(one.nodes[0].total_bytes(), Some(1024));
}

#[test]
fn text_around_the_xml_is_left_out() {
    let text = xml(
        "0x1",
        "0x1",
        &[node(0, "0x1", 1, ""), pus(0..1, "0x1")].concat(),
    );
    let mail = format!(
        "Hi, <lstopo> of the box:\n<?xml` version=\"1.0\"?>\n{text}\n-- \n<me@example.org>\n"
    );
    assert_eq!(cpus_of(&read(&mail)), some(["0"]));
    // Lines are those of the whole text.
    let damaged = hwloc_xml::parse(&mail.replace("</object></topology>", "</topology>"), "mail");
    assert!(damaged.unwrap_err().to_string().contains("line 6"));
}

#[test]
fn sets_that_contradict_the_tree_are_noted() {
    let machine = read(&xml(
        "0xf",
        "0x1",
        &[
            node(0, "0xf", 1, ""),
            group("Package", "0x3", &pus(0..3, "0x1")),
            "<object type=\"PU\" os_index=\"3\" cpuset=\"0x2\"/>".to_owned(),
        ]
        .concat(),
    ));
    let messages: Vec<_> = machine
        .warnings
        .iter()
        .map(|it| it.message.as_str())
        .collect();
    assert_eq!(messages.len(), 2, "{messages:?}");
    assert!(
        messages[0].contains("PU 3 has the cpuset 1"),
        "{messages:?}"
    );
    assert!(
        messages[1].contains("Package has the cpuset 0-1, and PUs 2"),
        "{messages:?}"
    );
}

/// Reads every XML of a checkout of hwloc (its tests hold a hundred real machines), named by `HWLOC_SOURCE`.
#[test]
#[ignore = "reads a checkout of hwloc that HWLOC_SOURCE names"]
fn all_machines_of_hwlocs_own_tests_are_read() {
    let root = std::env::var_os("HWLOC_SOURCE").expect("HWLOC_SOURCE names a checkout of hwloc");
    let mut folders = vec![std::path::PathBuf::from(root).join("tests")];
    let mut read_files = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "xml") {
                let Ok(text) = std::fs::read_to_string(&path) else {
                    continue;
                };
                if !text.contains("<topology") || text.contains("<topologydiff") {
                    continue;
                }
                let machine = hwloc_xml::parse(&text, "xml")
                    .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                assert_eq!(machine.check(), Vec::<String>::new(), "{}", path.display());
                let units = text.matches("<object type=\"PU\"").count();
                assert_eq!(machine.cpu_states.online.len(), units, "{}", path.display());
                // Nodes that hwloc may not show have no object, and no known memory.
                let shown = machine
                    .nodes
                    .iter()
                    .filter(|node| node.memory.get().is_some());
                assert_eq!(
                    shown.count(),
                    text.matches("<object type=\"NUMANode\"").count(),
                    "{}",
                    path.display()
                );
                // One of the files has a device twice.
                let busids = text
                    .split("pci_busid=\"")
                    .skip(1)
                    .map(|rest| &rest[..rest.find('"').unwrap()]);
                let devices = busids.collect::<std::collections::BTreeSet<_>>().len();
                assert_eq!(
                    machine.pci.get().map_or(0, Vec::len),
                    devices,
                    "{}: {:?}",
                    path.display(),
                    machine.warnings
                );
                println!(
                    "{}: {} nodes, {} CPUs, {} caches, {} PCI devices, distances {}, {:?}",
                    path.display(),
                    machine.nodes.len(),
                    machine.cpus.len(),
                    machine.caches.len(),
                    devices,
                    machine.distances.get().is_some(),
                    machine
                        .warnings
                        .iter()
                        .map(|d| &d.message)
                        .collect::<Vec<_>>()
                );
                if let Some(again) = through_lstopo(&hwloc_xml::render(&machine)) {
                    let (again, machine) = (held(&read(&again)), held(&machine));
                    assert_eq!(again.nodes, machine.nodes, "{}", path.display());
                    assert_eq!(again.cpus, machine.cpus, "{}", path.display());
                    assert_eq!(again.caches, machine.caches, "{}", path.display());
                    assert_eq!(again.distances, machine.distances, "{}", path.display());
                    assert_eq!(again.pci, machine.pci, "{}", path.display());
                }
                read_files += 1;
            }
        }
    }
    assert!(read_files > 50, "only {read_files} files");
}

#[test]
fn a_node_without_a_size_has_unknown_memory_and_not_none() {
    for (size, bytes, is_noted) in [
        ("local_memory=\"1024\"", Some(1024), false),
        ("local_memory=\"0\"", Some(0), false),
        ("", None, false),
        ("local_memory=\"-5\"", None, true),
        ("local_memory=\"99999999999999999999999\"", None, true),
    ] {
        let node = node(0, "0x3", 0, "").replace("local_memory=\"0\"", size);
        let machine = read(&xml("0x3", "0x1", &(node + &pus(0..2, "0x1"))));
        let memory = &machine.nodes[0].memory;
        assert_eq!(machine.nodes[0].total_bytes(), bytes, "{size}");
        assert_eq!(
            memory
                .unknown_reason()
                .is_some_and(|it| it.contains("local_memory")),
            bytes.is_none(),
            "{memory:?}"
        );
        let noted = machine.warnings.iter();
        let noted = noted.filter(|it| it.message.contains("is not a number of bytes"));
        assert_eq!(
            noted.count(),
            usize::from(is_noted),
            "{:?}",
            machine.warnings
        );
    }
}

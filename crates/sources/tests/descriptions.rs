//! Description files and the gallery.

use crate::any_machine::any_machine;
use crate::rendered_description;
use nearfar_machine::{
    CpuId, Distance, DistanceOrigin, Distances, Known, Machine, NodeBytes, NodeId, RootBus,
};
use nearfar_sources::{Request, Want, description, gallery, gallery_text, read, synthetic};
use proptest::prelude::*;

fn parse(text: &str) -> Machine {
    let machine =
        description::parse(text, "machine.toml").unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(machine.check(), Vec::<String>::new());
    machine
}

fn named(name: &str) -> Machine {
    read(&Request::source(name, Want::all())).unwrap()
}

fn root(text: &str) -> RootBus {
    text.parse().unwrap()
}

/// What a description keeps of a machine.
fn kept(machine: &Machine) -> Machine {
    let mut kept = machine.clone();
    kept.origin = nearfar_machine::Origin::new(nearfar_machine::SourceKind::Description, "any");
    kept.warnings.clear();
    for node in &mut kept.nodes {
        node.memory = match node.total_bytes() {
            Some(bytes) => Known::Yes(nearfar_machine::Memory::of(bytes)),
            None => Known::no("any"),
        };
        node.fake_of = None;
    }
    let because = "any";
    kept.distances = match &kept.distances {
        Known::Yes(table) => {
            let rows = table
                .nodes()
                .iter()
                .map(|&from| table.row(from).map(|entry| entry.1).collect())
                .collect();
            Known::Yes(
                Distances::from_rows(DistanceOrigin::Described, table.nodes().to_vec(), rows)
                    .unwrap(),
            )
        }
        Known::No { .. } => Known::no(because),
    };
    // Offline nodes make the one table a firmware table too.
    kept.firmware_distances = Known::no(because);
    for cpu in &mut kept.cpus {
        (cpu.kernel_core_id, cpu.capacity) = (None, None);
    }
    for cache in &mut kept.caches {
        if cache.size_bytes.get().is_none() {
            cache.size_bytes = Known::no(because);
        }
    }
    kept.cpu_states = nearfar_machine::CpuStates::online_only(kept.cpu_states.online, because);
    if let Known::Yes(devices) = &mut kept.pci {
        for device in devices {
            device.class_name = None;
            if device.node.get().is_none() {
                device.node = Known::no(because);
            }
        }
    }
    kept.host_bridges = Known::no(because);
    kept.interrupts = Known::no(because);
    kept.networks = Known::no(because);
    kept.nvme = Known::no(because);
    if kept.pci.get().is_none_or(Vec::is_empty) {
        kept.pci = Known::no(because);
    }
    kept.possible_nodes = Known::no(because);
    kept.tasks = Known::no(because);
    kept.cpusets = Known::no(because);
    kept.writers = Known::no(because);
    kept.settings = nearfar_machine::Settings::unknown(because);
    kept
}

#[test]
fn every_machine_of_the_gallery_reads_and_says_where_it_comes_from() {
    let entries = gallery();
    assert_eq!(entries.len(), 25);
    for entry in &entries {
        let machine = named(entry.name);
        assert_eq!(machine.check(), Vec::<String>::new(), "{}", entry.name);
        assert!(
            machine.warnings.is_empty(),
            "{}: {:?}",
            entry.name,
            machine.warnings
        );
        let text = gallery_text(entry.name).unwrap();
        assert!(
            text.starts_with("# ") && entry.description.len() > 20,
            "{}",
            entry.name
        );
    }
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../machines");
    let stem = |file: std::io::Result<std::fs::DirEntry>| {
        file.unwrap()
            .path()
            .file_stem()
            .unwrap()
            .display()
            .to_string()
    };
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(stem).collect();
    files.sort();
    assert_eq!(
        files,
        entries.iter().map(|entry| entry.name).collect::<Vec<_>>()
    );
}

#[test]
fn every_machine_of_the_gallery_reads_again_as_it_was_rendered() {
    for entry in gallery() {
        let machine = named(entry.name);
        let text = rendered_description::render(&machine);
        let again = parse(&text);
        assert_eq!(kept(&again), kept(&machine), "{}\n{text}", entry.name);
        let (bridges, again_bridges) = (machine.host_bridges.get(), again.host_bridges.get());
        let nodes = |bridges: Option<&Vec<nearfar_machine::HostBridge>>| -> Vec<_> {
            let firmware = |bridge: &nearfar_machine::HostBridge| {
                bridge
                    .firmware
                    .get()
                    .cloned()
                    .flatten()
                    .map(|told| told.node)
            };
            bridges
                .into_iter()
                .flatten()
                .map(|bridge| (bridge.root, firmware(bridge)))
                .collect()
        };
        assert_eq!(nodes(bridges), nodes(again_bridges));
        assert_eq!(
            again.networks.get(),
            machine
                .networks
                .get()
                .filter(|_| machine.pci.get().is_some())
        );
        assert_eq!(
            again.nvme.get().map(|all| &all[..]),
            machine.nvme.get().map(|all| &all[..]),
            "{text}"
        );
        assert_eq!(again.interrupts.get(), machine.interrupts.get());
    }
}

#[test]
fn the_cases_have_the_shape_that_was_published() {
    let before = named("powerpc-case1");
    assert_eq!(before.online_nodes().count(), 1);
    assert_eq!(before.distance(NodeId(0), NodeId(2)), Some(Distance(40)));
    let controllers = |machine: &Machine| -> Vec<_> {
        machine.nvme.get().unwrap()[0]
            .controllers
            .iter()
            .map(|controller| controller.node.get().copied().unwrap())
            .collect()
    };
    assert_eq!(controllers(&before), [Some(NodeId(0)), None]);
    let bridge = before.host_bridge(root("0001:00")).unwrap();
    assert_eq!(
        bridge.firmware.get().unwrap().as_ref().unwrap().node,
        NodeId(2)
    );
    let after = named("powerpc-case1-after");
    assert_eq!(controllers(&after), [Some(NodeId(0)), Some(NodeId(2))]);
    assert_eq!(after.online_node_set().to_string(), "0,2");
    assert_eq!(after.nvme.get().unwrap()[0].namespaces[0].paths.len(), 2);

    let kunpeng = named("kunpeng");
    let mail = include_str!("fixtures/kunpeng-numactl.txt");
    let mail = nearfar_sources::text::parse(mail, "mail").unwrap();
    assert_eq!(kept(&kunpeng).distances, kept(&mail).distances);
    assert_eq!(
        kunpeng
            .nodes
            .iter()
            .map(|n| (n.known_cpus(), n.total_bytes()))
            .collect::<Vec<_>>(),
        mail.nodes
            .iter()
            .map(|n| (n.known_cpus(), n.total_bytes()))
            .collect::<Vec<_>>()
    );
    assert_eq!(kunpeng.interrupts.get().unwrap().len(), 49);
    assert_eq!(
        kunpeng.networks.get().unwrap()[0].node,
        Known::Yes(Some(NodeId(2)))
    );

    let fake = named("fake-nodes");
    assert_eq!(
        fake.nodes
            .iter()
            .map(|node| node.known_cpus().to_string())
            .collect::<Vec<_>>(),
        ["0-1", "2-3", "0-1", "2-3"]
    );
    assert_eq!(named("two-node").siblings(CpuId(4)).to_string(), "4,12");
    assert!(!named("asymmetric").distances.get().unwrap().is_symmetric());
    assert_eq!(
        named("cxl-memory-only").nodes[2].access[0].read_latency_ns,
        Some(250)
    );
    assert_eq!(
        named("x86-case1")
            .firmware_distances
            .get()
            .unwrap()
            .nodes()
            .len(),
        3
    );
}

#[test]
fn tasks_and_cpusets_are_as_described() {
    let host = named("database-host");
    let tasks = host.tasks.get().unwrap();
    let named = |name: &str| tasks.iter().find(|task| task.name == name).unwrap();
    let redis = named("redis-server");
    assert_eq!(redis.allowed_cpus.get().unwrap().to_string(), "0-7");
    assert_eq!(redis.allowed_nodes.get().unwrap().to_string(), "1");
    assert_eq!(redis.policies.get().unwrap()[0].policy, "bind:1");
    assert_eq!(redis.last_cpu, Known::Yes(CpuId(3)));
    let guest = named("qemu-kvm");
    let on = |node, bytes| NodeBytes {
        node: NodeId(node),
        bytes,
    };
    assert_eq!(
        guest.memory.get().unwrap()[..],
        [on(0, 64 << 30), on(1, 1 << 30)]
    );
    assert_eq!(guest.resident.get().unwrap().pinned, 64 << 30);
    assert_eq!(guest.cpu_ms, Known::Yes(8 * 7_400_000));
    // What is not given is all, or unknown.
    assert_eq!(guest.allowed_cpus.get(), Some(&host.cpu_states.online));
    assert!(guest.start.unknown_reason().is_some());
    let cpuset = &host.cpusets.get().unwrap()[0];
    assert_eq!(cpuset.path, "/system.slice/redis.service");
    assert_eq!(
        host.nodes[0].memory.get().unwrap().free_bytes,
        Some(31 << 30)
    );
    // Without any, they are unknown and not none.
    let other = parse("[[node]]\ncpus = 1\n");
    assert!(other.tasks.get().is_none() && other.cpusets.get().is_none());
}

const TIMED: &str = r#"distances = [[10, 21], [21, 10]]
[[node]]
cpus = 2
memory = "1G"
[[node]]
cpus = 2
memory = "1G"
[timing]
latency = [[81, 139], ["-", 82]]
cache = "22M/11/20"
transfer = "48/141"
bandwidth = 113.5
link = 34
sources = ["a paper, table 2"]
"#;

#[test]
fn what_accesses_take_is_as_described() {
    let timing = parse(TIMED).timing.unwrap();
    let ns = |cpu, memory| timing.latency_ns(NodeId(cpu), NodeId(memory));
    let all = [ns(0, 0), ns(0, 1), ns(1, 0), ns(1, 1)];
    assert_eq!(all, [Some(81), Some(139), None, Some(82)]);
    let (cache, transfer) = (timing.cache.unwrap(), timing.transfer.unwrap());
    assert_eq!((cache.bytes, cache.ways, cache.hit_ns), (22 << 20, 11, 20));
    assert_eq!(transfer.to_string(), "48/141");
    let limits = timing.bandwidth;
    assert_eq!(limits.to_string(), "bandwidth=113.5,link=34");
    assert_eq!(timing.sources, ["a paper, table 2"]);
    for (from, to, line, key) in [
        ("[81, 139]", "[81]", 9, "latency"),
        ("81", "0", 9, "latency"),
        ("\"-\"", "\"x\"", 9, "latency"),
        ("22M/11/20", "22M", 10, "cache"),
        ("48/141", "48", 11, "transfer"),
        (
            "48/141",
            "48/20:90/21:141",
            11,
            "transfer: no two nodes are at distance 20",
        ),
        ("113.5", "0.0", 12, "bandwidth"),
        ("34", "1e6", 13, "link"),
    ] {
        let text = TIMED.replacen(from, to, 1);
        assert_ne!(text, TIMED);
        let error = description::parse(&text, "m.toml").unwrap_err().to_string();
        assert!(
            error.contains(&format!("line {line}")) && error.contains(key),
            "{error}"
        );
    }
}

#[test]
fn faults_are_named_with_line_and_key() {
    const NODE: &str = "[[node]]\ncpus = 2\nmemory = \"1G\"\n";
    for (task, words) in [
        (
            "pid = 0\nname = \"a\"",
            "pid: a process has a number from 1",
        ),
        (
            "pid = 1\nname = \"a\"\ncpus = \"5\"",
            "cpus: CPU 5 is in no node",
        ),
        (
            "pid = 1\nname = \"a\"\nnodes = \"3\"",
            "nodes: node 3 is not described",
        ),
        (
            "pid = 1\nname = \"a\"\nmemory = { 1 = \"1M\" }",
            "memory: node 1 is not described",
        ),
        (
            "pid = 1\nname = \"a\"\npinned = \"1M\"",
            "pinned: not a size, or more",
        ),
        (
            "pid = 1\nname = \"a\"\ncpu_seconds = { \"2\" = 1 }",
            "cpu_seconds: CPU 2 is in no",
        ),
        (
            "pid = 1\nname = \"a\"\ndevices = [\"gpu0\"]",
            "devices: no device \"gpu0\" is described",
        ),
    ] {
        let text = format!("{NODE}[[task]]\n{task}\n");
        let error = description::parse(&text, "file").unwrap_err().to_string();
        let line = text.lines().count();
        let line = if task.starts_with("pid = 0") {
            line - 1
        } else {
            line
        };
        assert!(
            error.contains(words) && error.contains(&format!("line {line}")),
            "{error}"
        );
    }
    for (text, line, words) in [
        (
            "[[node]]\nmemory = \"1G\"\nfree = \"2G\"\n",
            "line 3",
            "free: not a size, or more than its `memory`",
        ),
        (
            "[[node]]\ncpus = 1\ncolour = 3\n",
            "line 3",
            "unknown field `colour`",
        ),
        ("[[node]]\ncpus = \"0-\"\n", "line 2", "cpus: CPU list"),
        (
            "[[node]]\ncpus = true\n",
            "line 2",
            "expected a count of CPUs",
        ),
        (
            "[[node]]\ncpus = 1\n[[node]]\nid = 0\n",
            "line 3",
            "node 0 is there twice",
        ),
        (
            "[[node]]\nmemory = \"lots\"\n",
            "line 2",
            "memory: not a size",
        ),
        (
            "distances = [[10, 20]]\n[[node]]\n[[node]]\n",
            "line 1",
            "distances: distance matrix: expected 2 rows",
        ),
        (
            "distances = [[\"x\"]]\n[[node]]\n",
            "line 1",
            "\"-\" for a hole",
        ),
        (
            "[cpu]\nthreads_per_core = 2\n[[node]]\ncpus = 3\n",
            "line 2",
            "not a multiple of 2",
        ),
        (
            "[cpu]\noffline = \"9\"\n[[node]]\ncpus = 3\n",
            "line 2",
            "CPU 9 is in no node",
        ),
        (
            "[[node]]\ncpus = 3\n[[bridge]]\nroot = \"x\"\n",
            "line 3",
            "not a PCI address",
        ),
        (
            "[[node]]\ncpus = 3\n[[bridge]]\nroot = \"0000:20\"\nfirmware_node = 7\n",
            "line 3",
            "node 7 is not described",
        ),
        (
            "[[node]]\ncpus = 3\n[[nic]]\nname = \"e\"\nbridge = \"0000:20\"\n",
            "line 3",
            "no [[bridge]] has root",
        ),
        (
            "[[node]]\n[[cache]]\nlevel = 3\n",
            "line 2",
            "either `each` or `cpus`",
        ),
        ("fake = \"9X\"\n[[node]]\n", "line 1", "fake: --fake"),
        ("[[node]\n", "line 1", ""),
        ("", "machine.toml: ", "0 [[node]] entries"),
        ("[[node]]\ncpus = 4000000000\n", "line 2", "65536 CPUs"),
        ("[[node]]\nid = 4000000000\n", "line 1", "above 65535"),
        (
            "[[node]]\ncpus = 1\n[[bridge]]\nroot = \"0000:00\"\n[[nic]]\nname = \"e\"\nbridge = \"0000:00\"\nqueues = 4000000000\n",
            "line 5",
            "more than 65536 queues",
        ),
    ] {
        let error = description::parse(text, "machine.toml")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(line) && error.contains(words) && error.starts_with("machine.toml"),
            "{text}\n{error}"
        );
    }
}

#[test]
fn what_is_left_out_is_not_known() {
    let machine = parse("[[node]]\ncpus = 2\n");
    assert!(machine.pci.unknown_reason().is_some() && machine.distances.unknown_reason().is_some());
    assert!(
        machine.nodes[0]
            .memory
            .unknown_reason()
            .unwrap()
            .contains("memory")
    );
    assert!(machine.cpu_states.isolated.unknown_reason().is_some());
    let unknown = parse(
        "[[node]]\n[[bridge]]\nroot = \"0000:00\"\nnode = \"unknown\"\n[[nic]]\nname = \"e\"\nbridge = \"0000:00\"\n",
    );
    assert!(
        unknown.networks.get().unwrap()[0]
            .node
            .unknown_reason()
            .is_some()
    );
}

#[test]
fn irregular_cores_survive_rendering() {
    let machine = synthetic::parse(
        "package:2 node:2 die:1 cluster:2 l2:1(size=1M) core:2 pu:2 memory:1G distance:10,12,20,22",
    )
    .unwrap();
    assert_eq!(
        kept(&parse(&rendered_description::render(&machine))),
        kept(&machine)
    );
}

proptest! {
    #[test]
    fn every_machine_comes_back_as_far_as_a_description_can_hold_it(machine in any_machine()) {
        let text = rendered_description::render(&machine);
        let again = description::parse(&text, "file");
        prop_assert!(again.is_ok(), "{}\n{}", again.unwrap_err(), text);
        prop_assert_eq!(kept(&again.unwrap()), kept(&machine), "{}", text);
    }

    #[test]
    fn no_text_panics(text in "(?s)[\\[\\]a-z0-9=\" \n{}.,-]{0,200}") {
        let _ = description::parse(&text, "file");
    }

    #[test]
    fn no_mixture_of_keys_panics(lines in prop::collection::vec(prop_oneof![
        Just("[[node]]"), Just("cpus = 3"), Just("cpus = \"0-3\""), Just("cpus = \"65535\""), Just("id = 65535"), Just("online = false"),
        Just("[cpu]"), Just("threads_per_core = 2"), Just("threads_per_core = 0"), Just("siblings = \"apart\""), Just("cores_per_cluster = 2"),
        Just("cores = [\"0-1\", \"1-2\"]"), Just("offline = \"0\""), Just("[[cache]]"), Just("level = 3"), Just("each = \"core\""),
        Just("[[bridge]]"), Just("root = \"0000:00\""), Just("node = \"none\""), Just("firmware_node = 0"), Just("[[nic]]"), Just("name = \"e\""),
        Just("bridge = \"0000:00\""), Just("queues = 2"), Just("queue_cpus = [0, \"0-1\"]"), Just("[[nvme]]"), Just("controllers = [{ bridge = \"0000:00\" }]"),
        Just("[[pci]]"), Just("address = \"0000:00:01.0\""), Just("class = \"0x020000\""), Just("fake = \"2\""), Just("distances = [[10]]")], 0..14)) {
        if let Ok(machine) = description::parse(&lines.join("\n"), "file") {
            prop_assert_eq!(machine.check(), Vec::<String>::new());
        }
    }
}

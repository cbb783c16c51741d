//! What the audit says of memory: full nodes, huge pages, and the network cards next to GPUs and disks.

use nearfar_machine::{HugePages, Known, Machine, Memory, NodeSet, ResidentBytes, Task};
use nearfar_placement::audit::{AuditOptions, State, audit};
use nearfar_placement::pairs::{Common, gpu_paths, nearest_cards};

use crate::common::{add_function, findings, function, list, pci, set, two_nodes};

const GIB: u64 = 1 << 30;

fn memory(total: u64, free: u64, reclaimable: Option<u64>) -> Known<Memory> {
    Known::Yes(Memory {
        free_bytes: Some(free),
        reclaimable_bytes: reclaimable,
        ..Memory::of(total)
    })
}

fn state(machine: &Machine, rule: &str) -> State {
    let found = audit(machine, &AuditOptions::default());
    found.rules.iter().find(|it| it.rule == rule).unwrap().state
}

#[test]
fn a_full_node_beside_an_empty_one_and_what_it_leads_to() {
    let mut machine = two_nodes();
    machine.nodes[0].memory = memory(64 * GIB, GIB, None);
    machine.nodes[1].memory = memory(64 * GIB, 48 * GIB, None);
    machine.settings.zone_reclaim_mode = Known::Yes(0);
    insta::assert_snapshot!(findings(&machine), @r"
    notice node-nearly-full | node 0: 1.0 GiB of 64.0 GiB are free, node 1 has 48.0 GiB of 64.0 GiB free. How much more is page cache is unknown. What its CPUs allocate comes from other nodes. A task bound to it can only reclaim and swap, and then be killed, whatever node 1 has.
      /sys/devices/system/node/node0/meminfo = 1048576 kB free of 67108864 kB
      /sys/devices/system/node/node1/meminfo = 50331648 kB free of 67108864 kB
      /proc/sys/vm/zone_reclaim_mode = 0
      cost 10 -> 21
      advice nearfar tasks shows whose memory it is. Move that of one task (nearfar apply --memory PID --to-node 1), spread a service that uses all of it (nearfar plan --bind-unit UNIT --policy interleave --to-node 0,1 --format systemd), or start it with the policy preferred instead of bind.
    ");
    // Commands of the advice are about the machine that was audited.
    let options = AuditOptions {
        source: "--source 'host 3.nearfar'".to_owned(),
        ..AuditOptions::default()
    };
    let of_source = audit(&machine, &options).findings;
    let advice = of_source[0].advice.as_deref().unwrap();
    assert!(
        advice.starts_with("nearfar tasks --source 'host 3.nearfar' shows"),
        "{advice}"
    );
    assert!(
        advice.contains("--format systemd --source 'host 3.nearfar')"),
        "{advice}"
    );
    machine.nodes[0].memory = memory(64 * GIB, GIB, Some(20 * GIB));
    machine.settings.zone_reclaim_mode = Known::Yes(5);
    let text = findings(&machine);
    assert!(text.contains("notice node-nearly-full | node 0: 1.0 GiB of 64.0 GiB are free, node 1 has 48.0 GiB of 64.0 GiB free. 20.0 GiB more is page cache"), "{text}");
    assert!(text.contains("vm.zone_reclaim_mode is 5: its CPUs reclaim and swap before they take memory of another node."), "{text}");
    // Nothing to reclaim, and a task that is bound to it.
    machine.nodes[0].memory = memory(64 * GIB, GIB, Some(GIB));
    let mut task = Task::new(7, "postgres");
    task.allowed_nodes = Known::Yes(NodeSet::parse_list("0").unwrap());
    list(&mut machine.tasks).push(task);
    let text = findings(&machine);
    assert!(text.contains("warning node-nearly-full"), "{text}");
    assert!(
        text.contains(
            "Task 7 (postgres), which is bound to it, can only reclaim and swap, and then be killed"
        ),
        "{text}"
    );
}

#[test]
fn nodes_alike_are_not_a_finding_and_unknown_ones_are_named() {
    const RULE: &str = "node-nearly-full";
    let mut machine = two_nodes();
    for (a, b, found) in [
        (1, 2, State::NothingFound),
        (60, 63, State::NothingFound),
        (10, 60, State::NothingFound),
        (2, 16, State::Found),
    ] {
        machine.nodes[0].memory = memory(64 * GIB, a * GIB, None);
        machine.nodes[1].memory = memory(64 * GIB, b * GIB, None);
        assert_eq!(state(&machine, RULE), found, "{a} {b}");
    }
    // A node without memory is neither full nor unknown.
    machine.nodes[1].memory = Known::Yes(Memory::of(0));
    assert_eq!(state(&machine, RULE), State::NotApplicable);
    machine.nodes[1].memory = Known::no("node1/meminfo: permission denied");
    let found = audit(&machine, &AuditOptions::default());
    let not = found.not_checked.iter().find(|it| it.rule == RULE).unwrap();
    assert_eq!(not.reason, "node 1: node1/meminfo: permission denied");
}

fn pools(machine: &mut Machine, totals: [u64; 2]) {
    for (node, total) in machine.nodes.iter_mut().zip(totals) {
        node.memory = Known::Yes(Memory {
            huge_pages: vec![HugePages {
                page_bytes: 2 << 20,
                total,
                free: Some(total / 2),
            }],
            free_bytes: Some(32 * GIB),
            ..Memory::of(64 * GIB)
        });
    }
}

#[test]
fn huge_pages_on_the_other_node_than_the_card_or_task() {
    const RULE: &str = "huge-pages-elsewhere";
    let mut machine = two_nodes();
    assert_eq!(state(&machine, RULE), State::NotApplicable, "no pools");
    pools(&mut machine, [1024, 0]);
    assert_eq!(
        state(&machine, RULE),
        State::NothingFound,
        "nothing needs them"
    );
    add_function(
        &mut machine,
        function("0000:81:00.0", 0x02_0000, "vfio-pci", Some(1)),
    );
    add_function(
        &mut machine,
        function("0000:01:00.0", 0x02_0000, "vfio-pci", Some(0)),
    );
    add_function(
        &mut machine,
        function("0000:82:00.0", 0x02_0000, "ixgbe", Some(1)),
    );
    let huge = |pid, cpus: &str, huge| {
        let mut task = Task::new(pid, "qemu");
        task.allowed_cpus = Known::Yes(set(cpus));
        task.resident = Known::Yes(ResidentBytes {
            huge,
            ..ResidentBytes::default()
        });
        task.memory = Known::Yes(Vec::new());
        task
    };
    *list(&mut machine.tasks) = vec![
        huge(1, "4-5", GIB),
        huge(2, "0-1", GIB),
        huge(3, "4", 0),
        huge(4, "0-7", GIB),
    ];
    insta::assert_snapshot!(findings(&machine), @r"
    notice huge-pages-elsewhere | 0000:81:00.0 (vfio-pci): A program or guest has it (vfio-pci), and its buffers in huge pages: node 1 has none, the nearest are on node 0 (1024 of 2.0 MiB, 512 free).
      /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages = 0
      /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages = 1024
      cost 21 -> 10
      advice Reserve some there: echo COUNT > /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages, or at boot hugepagesz=2048K hugepages=1:COUNT (Linux 5.16 and later).
    notice huge-pages-elsewhere | task 1 (qemu): It runs on node 1 and has 1.0 GiB of huge pages: node 1 has none, the nearest are on node 0 (1024 of 2.0 MiB, 512 free).
      /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages = 0
      /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages = 1024
      cost 21 -> 10
      advice Reserve some there: echo COUNT > /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages, or at boot hugepagesz=2048K hugepages=1:COUNT (Linux 5.16 and later).
    fact huge-pages-elsewhere | 0000:82:00.0 (ixgbe): A program that drives this card itself (DPDK) has its buffers in huge pages: node 1 has none, the nearest are on node 0 (1024 of 2.0 MiB, 512 free).
      /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages = 0
      /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages = 1024
      cost 21 -> 10
      advice Reserve some there: echo COUNT > /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages, or at boot hugepagesz=2048K hugepages=1:COUNT (Linux 5.16 and later).
    not checked task-far-from-device: not read
    ");
    pools(&mut machine, [1024, 8]);
    assert_eq!(state(&machine, RULE), State::NothingFound);
    // Pages that nothing says anything of are unknown, not none.
    pools(&mut machine, [1024, 0]);
    machine.nodes[1].memory = Known::Yes(Memory::of(GIB));
    let found = audit(&machine, &AuditOptions::default());
    assert!(found.findings.iter().all(|it| it.rule != RULE));
    let not = found.not_checked.iter().find(|it| it.rule == RULE).unwrap();
    assert_eq!(
        not.reason,
        "0000:81:00.0 (vfio-pci) and 2 more: the huge pages of node 1 are unknown"
    );
}

#[test]
fn the_nearest_card_shares_a_bridge_then_the_root_bus_then_the_node() {
    let mut machine = two_nodes();
    let mut add = |address: &str, class, driver: &str, node, parent: Option<&str>, root: &str| {
        let mut device = function(address, class, driver, Some(node));
        device.parent = parent.map(pci);
        device.root = root.parse().unwrap();
        add_function(&mut machine, device);
    };
    for (bridge, above) in [
        ("0000:40:01.0", None),
        ("0000:41:00.0", Some("0000:40:01.0")),
        ("0000:40:02.0", None),
    ] {
        add(bridge, 0x06_0400, "pcieport", 1, above, "0000:40");
    }
    // Below one switch, below the port above it, below another port, on another root bus of the node, on the other node.
    add(
        "0000:42:00.0",
        0x03_0200,
        "nvidia",
        1,
        Some("0000:41:00.0"),
        "0000:40",
    );
    add(
        "0000:43:00.0",
        0x02_0000,
        "mlx5_core",
        1,
        Some("0000:41:00.0"),
        "0000:40",
    );
    add(
        "0000:43:00.1",
        0x02_0000,
        "mlx5_core",
        1,
        Some("0000:41:00.0"),
        "0000:40",
    );
    add(
        "0000:44:00.0",
        0x01_0802,
        "nvme",
        1,
        Some("0000:40:01.0"),
        "0000:40",
    );
    add(
        "0000:45:00.0",
        0x01_0802,
        "nvme",
        1,
        Some("0000:40:02.0"),
        "0000:40",
    );
    add("0000:60:00.0", 0x01_0802, "nvme", 1, None, "0000:60");
    add("0000:10:00.0", 0x03_0200, "nvidia", 0, None, "0000:10");
    let seen: Vec<_> = nearest_cards(&machine)
        .into_iter()
        .map(|it| {
            (
                it.device.to_string(),
                it.common,
                it.bridge.map(|it| it.to_string()),
                it.cards.len(),
                it.distance.unwrap().0,
            )
        })
        .collect();
    let switch = |address: &str| Some(address.to_owned());
    assert_eq!(
        seen,
        [
            ("0000:10:00.0".to_owned(), Common::Nothing, None, 2, 21),
            (
                "0000:42:00.0".to_owned(),
                Common::Bridge,
                switch("0000:41:00.0"),
                2,
                10
            ),
            (
                "0000:44:00.0".to_owned(),
                Common::Bridge,
                switch("0000:40:01.0"),
                2,
                10
            ),
            ("0000:45:00.0".to_owned(), Common::RootBus, None, 2, 10),
            ("0000:60:00.0".to_owned(), Common::Node, None, 2, 10),
        ]
    );
    let found = audit(&machine, &AuditOptions::default()).findings;
    let found: Vec<_> = found
        .iter()
        .filter(|it| it.rule == "no-card-on-node")
        .collect();
    let [only] = found[..] else {
        panic!("{found:?}")
    };
    assert_eq!(only.subject, "0000:10:00.0 (nvidia)");
    assert_eq!(
        only.message,
        "No network card is on its node 0: the nearest, 0000:43:00.0 (mlx5_core), is on node 1 at 21."
    );
    // A bridge that claims to be above itself ends the search.
    for device in list(&mut machine.pci)
        .iter_mut()
        .filter(|it| it.is_bridge())
    {
        device.parent = Some(device.address);
    }
    assert_eq!(nearest_cards(&machine).len(), 5);
}

/// A switch below a switch, another port of the root bus, another root bus of the node, and the other node.
#[test]
fn gpus_and_cards_reach_each_other_as_nvidia_smi_says() {
    let mut machine = two_nodes();
    let mut add = |address: &str, class, node, parent: Option<&str>| {
        let mut device = function(address, class, "driver", Some(node));
        device.parent = parent.map(pci);
        let bus = if node == 0 && address < "0000:60" {
            "0000:40"
        } else {
            &address[..7]
        };
        device.root = bus.parse().unwrap();
        add_function(&mut machine, device);
    };
    for (bridge, above) in [
        ("0000:40:01.0", None),
        ("0000:40:02.0", None),
        ("0000:41:00.0", Some("0000:40:01.0")),
        ("0000:42:00.0", Some("0000:41:00.0")),
        ("0000:42:01.0", Some("0000:41:00.0")),
        ("0000:42:02.0", Some("0000:41:00.0")),
        ("0000:45:00.0", Some("0000:42:02.0")),
        ("0000:46:00.0", Some("0000:45:00.0")),
    ] {
        add(bridge, 0x06_0400, 0, above);
    }
    let (gpu, card) = (0x03_0200, 0x02_0700);
    add("0000:43:00.0", gpu, 0, Some("0000:42:00.0"));
    add("0000:44:00.0", card, 0, Some("0000:42:01.0"));
    add("0000:47:00.0", gpu, 0, Some("0000:46:00.0"));
    add("0000:50:00.0", card, 0, Some("0000:40:02.0"));
    add("0000:61:00.0", card, 0, None);
    add("0000:c1:00.0", gpu, 1, None);
    let paths = gpu_paths(&machine);
    let rows: Vec<String> = paths.matrix.iter().map(|row| row.join(" ")).collect();
    // Three GPUs, then three cards.
    assert_eq!(
        rows,
        [
            "X PXB SYS PIX PHB NODE",
            "PXB X SYS PXB PHB NODE",
            "SYS SYS X SYS SYS SYS",
            "PIX PXB SYS X PHB NODE",
            "PHB PHB SYS PHB X NODE",
            "NODE NODE SYS NODE NODE X",
        ]
    );
    assert_eq!(paths.devices[3], pci("0000:44:00.0"));
}

#[test]
fn advice_has_only_commands_that_can_be_given_again() {
    let mut machine = two_nodes();
    machine.nodes[0].memory = memory(64 * GIB, GIB, None);
    machine.nodes[1].memory = memory(64 * GIB, 48 * GIB, None);
    machine.tasks = Known::no("numactl -H text has only nodes");
    let advice = |source: &str| {
        let options = AuditOptions {
            source: source.to_owned(),
            ..AuditOptions::default()
        };
        let found = audit(&machine, &options).findings;
        let full = found.iter().find(|it| it.rule == "node-nearly-full");
        full.and_then(|it| it.advice.clone()).unwrap()
    };
    // Without tasks `nearfar tasks` shows none; what was read from standard input is not there any more.
    let file = advice("--source mail.txt");
    assert!(!file.contains("nearfar tasks"), "{file}");
    assert!(
        file.contains("--format systemd --source mail.txt)"),
        "{file}"
    );
    let named = advice("--source 'dump - copy.txt'");
    assert!(named.contains("--source 'dump - copy.txt'"), "{named}");
    let piped = advice("--source -");
    assert!(!piped.contains("--source"), "{piped}");
    assert!(piped.contains("uses all of it, or start"), "{piped}");
}

#[test]
fn without_nodes_the_reason_is_the_sources() {
    let mut machine = two_nodes();
    machine.nodes.clear();
    machine.possible_nodes = Known::no("x/sys/devices/system/node was not gathered");
    let found = audit(&machine, &AuditOptions::default());
    let reasons = found.not_checked.iter();
    let reasons =
        reasons.filter(|it| ["node-nearly-full", "huge-pages-elsewhere"].contains(&it.rule));
    for skipped in reasons {
        assert_eq!(
            skipped.reason,
            "which nodes there are is unknown: x/sys/devices/system/node was not gathered"
        );
    }
    assert_eq!(state(&machine, "node-nearly-full"), State::NotChecked);
}

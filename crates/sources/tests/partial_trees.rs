//! Trees of which a part was gathered, as support bundles have them: what is missing is unknown, and what is there says
//! what it can.

use crate::small_trees;
use nearfar_machine::{Interrupt, Irq, Machine, NodeId};
use nearfar_sources::tree::Tree;
use nearfar_sources::{Want, sysfs};

const TWO_NODES: &str = "\
sys/devices/system/cpu/online: 0-3
sys/devices/system/node/online: 0-1
sys/devices/system/node/node0/cpulist: 0-1
sys/devices/system/node/node1/cpulist: 2-3
";
/// A network card and a disk, without `msi_irqs`.
const CARD_AND_DISK: &str = "\
sys/devices/pci0000:80/0000:81:00.0/class: 0x020000
sys/devices/pci0000:80/0000:81:00.0/vendor: 0x8086
sys/devices/pci0000:80/0000:81:00.0/device: 0x1572
sys/devices/pci0000:80/0000:81:00.0/numa_node: 1
sys/devices/pci0000:00/0000:3e:00.0/class: 0x010802
sys/devices/pci0000:00/0000:3e:00.0/vendor: 0x144d
sys/devices/pci0000:00/0000:3e:00.0/device: 0xa80a
sys/devices/pci0000:00/0000:3e:00.0/numa_node: 0
sys/bus/pci/devices/0000:81:00.0 -> ../../../devices/pci0000:80/0000:81:00.0
sys/bus/pci/devices/0000:3e:00.0 -> ../../../devices/pci0000:00/0000:3e:00.0
";

fn read(text: &str) -> Machine {
    read_with(text, &[])
}

/// The same with these files, byte by byte.
fn read_with(text: &str, files: &[(&str, &[u8])]) -> Machine {
    let (root, _) = small_trees::unpack(text);
    for (path, content) in files {
        std::fs::write(root.path().join(path), content).unwrap();
    }
    let tree = Tree::at(root.path()).unwrap();
    let machine = sysfs::read(&tree, &Want::audit()).unwrap();
    assert_eq!(machine.check(), Vec::<String>::new());
    machine
}

/// Two nodes, a card and a disk with these lines of /proc/interrupts, each of an interrupt that CPU 0 serves.
fn with_interrupts(lines: &[(u32, &str)]) -> Machine {
    read(&(TWO_NODES.to_owned() + CARD_AND_DISK + &files(lines)))
}

fn files(lines: &[(u32, &str)]) -> String {
    let mut table = "proc/interrupts:        CPU0 CPU1 CPU2 CPU3".to_owned();
    let mut files = String::new();
    for (irq, line) in lines {
        table += &format!("\\n {irq}: 9 0 0 0  {line}");
        files += &format!("proc/irq/{irq}/smp_affinity_list: 0\n");
    }
    table + "\\nERR: 0\n" + &files
}

fn interrupt(machine: &Machine, irq: u32) -> &Interrupt {
    let all = machine.interrupts.get().unwrap();
    all.iter().find(|it| it.irq == Irq(irq)).unwrap()
}

fn device(machine: &Machine, irq: u32) -> Option<String> {
    interrupt(machine, irq).device.map(|it| it.to_string())
}

fn is_managed(machine: &Machine, irq: u32) -> Option<bool> {
    interrupt(machine, irq).managed.get().map(|it| it.managed)
}

#[test]
fn proc_interrupts_names_the_function_or_has_it_in_the_number() {
    // (0x81 << 8) << 11 and (0x3e << 8) << 11; domain 32 was cut to 0 until Linux 6.8.
    let card = [
        "IR-PCI-MSIX-0000:81:00.0  3-edge  anything",
        "PCI-MSI 67633155-edge  anything",
        "ITS-MSI 67633155 Edge  anything",
        "ITS-PCI-MSI-0000:81:00.0  0 Edge  PCIe PME, aerdrv",
        "Hyper-V PCIe MSI 67633155-edge  anything",
        "PCI-MSI-edge  mlx5_comp3@pci:0000:81:00.0",
    ];
    for line in card {
        let machine = with_interrupts(&[(40, line)]);
        assert_eq!(
            device(&machine, 40).as_deref(),
            Some("0000:81:00.0"),
            "{line}"
        );
        assert_eq!(
            interrupt(&machine, 40).device_unknown_reason,
            None,
            "{line}"
        );
    }
    let machine = with_interrupts(&[(40, "IR-PCI-MSI 32505856-edge  nvme0q0")]);
    assert_eq!(device(&machine, 40).as_deref(), Some("0000:3e:00.0"));
}

#[test]
fn a_message_of_no_known_function_has_an_unknown_device_and_other_lines_have_none() {
    let machine = with_interrupts(&[
        (40, "PCI-MSI-edge  eth7-TxRx-1"),
        (41, "PCI-MSI 2048-edge  eth7-TxRx-2"),
        (42, "IO-APIC 9-fasteoi  acpi"),
        (43, "DMAR-MSI 0-edge  dmar0"),
    ]);
    let is_unknown = |irq| interrupt(&machine, irq).device_unknown_reason.is_some();
    assert_eq!([40, 41, 42, 43].map(is_unknown), [true, true, false, false]);
    assert_eq!(device(&machine, 41), None);
}

#[test]
fn msi_irqs_that_contradict_proc_interrupts_are_named() {
    let listed = "sys/devices/pci0000:00/0000:3e:00.0/msi_irqs/40: msix\n";
    let line = [(40, "PCI-MSIX-0000:81:00.0  0-edge  eth0-TxRx-0")];
    let machine = read(&(TWO_NODES.to_owned() + CARD_AND_DISK + listed + &files(&line)));
    assert_eq!(device(&machine, 40).as_deref(), Some("0000:3e:00.0"));
    let [warning] = &machine.warnings[..] else {
        panic!("{:?}", machine.warnings)
    };
    assert!(warning.place.ends_with("proc/interrupts"), "{warning}");
    assert!(warning.message.contains("0000:81:00.0"), "{warning}");
}

/// A line may be shared by functions that use messages instead of it.
#[test]
fn the_file_irq_names_the_owner_of_a_line_only() {
    let line = "sys/devices/pci0000:00/0000:3e:00.0/irq: 40\n\
                sys/devices/pci0000:00/0000:3e:00.0/driver -> ../../../bus/pci/drivers/x\n";
    let read =
        |text: &str| read(&(TWO_NODES.to_owned() + CARD_AND_DISK + line + &files(&[(40, text)])));
    let owner = |text: &str| device(&read(text), 40);
    assert_eq!(
        owner("IO-APIC 16-fasteoi  x").as_deref(),
        Some("0000:3e:00.0")
    );
    assert_eq!(
        owner("PCI-MSI 67633152-edge  y").as_deref(),
        Some("0000:81:00.0")
    );
}

#[test]
fn lines_without_a_handler_the_timer_and_interrupts_of_each_cpu_are_not_to_be_moved() {
    let unused = "proc/irq/3/smp_affinity_list: 0\n";
    let lines = [
        (0, "IO-APIC 2-edge  timer"),
        (8, "IO-APIC 8-edge  rtc0"),
        (11, "GICv3 27 Level  some_timer"),
        (12, "GICv3 65 Level  uart"),
        (13, "RISC-V INTC 5 Edge  x"),
        (14, "IO-APIC 14-edge"),
        (15, "IR-HPET-MSI 3-edge  hpet3"),
    ];
    let machine = read(&(TWO_NODES.to_owned() + unused + &files(&lines)));
    let moves = |irq| interrupt(&machine, irq).immovable_reason.is_none();
    let all = [0, 3, 8, 11, 12, 13, 14, 15].map(|irq| (irq, moves(irq)));
    let expected = [0, 3, 8, 11, 12, 13, 14, 15].map(|irq| (irq, irq == 8 || irq == 12));
    assert_eq!(all, expected);
}

/// Neither debugfs nor the links to drivers are in such a tree.
#[test]
fn handlers_of_storage_drivers_say_that_their_interrupts_are_managed() {
    let machine = with_interrupts(&[
        (40, "PCI-MSIX-0000:3e:00.0  0-edge  nvme0q0"),
        (41, "PCI-MSIX-0000:3e:00.0  1-edge  nvme0q1"),
        (42, "PCI-MSIX-0000:81:00.0  1-edge  mpi3mr0-msix1"),
        (43, "PCI-MSIX-0000:81:00.0  2-edge  megasas0-msix3"),
        (44, "PCI-MSIX-0000:81:00.0  3-edge  virtio1-req.0"),
        (45, "PCI-MSIX-0000:81:00.0  4-edge  virtio2-request"),
        (46, "PCI-MSIX-0000:81:00.0  5-edge  virtio0-input.0"),
        (47, "PCI-MSIX-0000:81:00.0  6-edge  eth0-TxRx-0"),
    ]);
    let managed = [40, 41, 42, 43, 44, 45, 46, 47].map(|irq| is_managed(&machine, irq));
    let (yes, no) = (Some(true), Some(false));
    assert_eq!(managed, [no, yes, yes, yes, yes, yes, no, None]);
}

#[test]
fn interrupts_of_which_no_affinity_was_gathered_are_listed() {
    let lines = files(&[(40, "PCI-MSIX-0000:81:00.0  0-edge  eth0-TxRx-0")]);
    let table = lines.lines().next().unwrap();
    let machine = read(&format!("{TWO_NODES}{CARD_AND_DISK}{table}\n"));
    let because = interrupt(&machine, 40).affinity.unknown_reason().unwrap();
    assert!(because.ends_with("proc/irq was not gathered"), "{because}");
    assert!(device(&machine, 40).is_some());
}

const DISK: &str = "\
sys/class/nvme-subsystem/nvme-subsys0/iopolicy: numa
sys/class/nvme-subsystem/nvme-subsys0/nvme0n1/size: 1
sys/class/nvme-subsystem/nvme-subsys0/nvme{0-1}/state: live
sys/class/nvme-subsystem/nvme-subsys0/nvme{0-1}/transport: tcp
";

#[test]
fn an_empty_queue_depth_is_that_of_another_policy_and_numa_nodes_are_the_kernels_answer() {
    let paths = "\
sys/class/nvme-subsystem/nvme-subsys0/nvme0/nvme0c0n1/queue_depth:
sys/class/nvme-subsystem/nvme-subsys0/nvme0/nvme0c0n1/numa_nodes: 1
sys/class/nvme-subsystem/nvme-subsys0/nvme1/nvme0c1n1/queue_depth: 7
sys/class/nvme-subsystem/nvme-subsys0/nvme1/nvme0c1n1/numa_nodes:
";
    let machine = read(&(TWO_NODES.to_owned() + DISK + paths));
    let namespace = &machine.nvme.get().unwrap()[0].namespaces[0];
    let depths: Vec<_> = namespace.paths.iter().map(|it| it.queue_depth).collect();
    assert_eq!(depths, [None, Some(7)]);
    let nodes = namespace.paths[0].numa_nodes.as_ref().unwrap();
    assert!(nodes.contains(NodeId(1)));
    assert_eq!(namespace.paths_unknown_reason, None);
    assert!(machine.warnings.is_empty(), "{:?}", machine.warnings);
}

#[test]
fn paths_that_were_not_gathered_are_unknown_also_in_a_tree_with_nothing_else() {
    for before in [TWO_NODES, ""] {
        let machine = read(&(before.to_owned() + DISK));
        let namespace = &machine.nvme.get().unwrap()[0].namespaces[0];
        let because = namespace.paths_unknown_reason.as_ref().unwrap();
        assert!(because.contains("was not gathered"), "{because}");
        assert_eq!(machine.nodes.is_empty(), before.is_empty());
    }
}

#[test]
fn a_function_without_a_class_is_unknown_and_its_interface_is_there_by_its_link() {
    let machine = read(&format!(
        "{TWO_NODES}sys/devices/pci0000:00/0000:00:03.0/numa_node: 0\n\
         sys/devices/pci0000:00/0000:00:03.0/virtio0/net/ens3/flags: 0x1003\n\
         sys/class/net/ens3 -> ../../devices/pci0000:00/0000:00:03.0/virtio0/net/ens3\n\
         sys/devices/virtual/net/lo/flags: 0x9\n\
         sys/class/net/lo -> ../../devices/virtual/net/lo\n"
    ));
    assert!(!machine.pci.get().unwrap()[0].is_identified());
    let networks = machine.networks.get().unwrap();
    let names: Vec<&str> = networks.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["ens3"]);
    assert!(!networks[0].has_queues());
    assert!(machine.warnings.is_empty(), "{:?}", machine.warnings);
}

const IDS: &str = "\
sys/devices/system/cpu/cpu{0-1}/topology/physical_package_id: 0
sys/devices/system/cpu/cpu{2-3}/topology/physical_package_id: 1
sys/devices/system/cpu/cpu{0-2}/topology/core_id: 0
sys/devices/system/cpu/cpu3/topology/core_id: 1
";

#[test]
fn numbers_of_packages_and_cores_tell_them_where_no_siblings_were_gathered() {
    let machine = read(&(TWO_NODES.to_owned() + IDS));
    let leaders: Vec<_> = machine.cpus.iter().map(|cpu| cpu.core.unwrap().0).collect();
    assert_eq!(leaders, [0, 0, 2, 3]);
    let packages: Vec<_> = machine.cpus.iter().map(|cpu| cpu.package).collect();
    assert_eq!(packages, [Some(0), Some(0), Some(1), Some(1)]);
    assert!(machine.warnings.is_empty(), "{:?}", machine.warnings);
}

#[test]
fn packages_that_cpuinfo_has_otherwise_are_a_warning() {
    let cpuinfo = "proc/cpuinfo: processor : 2\\nphysical id : 0\\ncore id : 2\\n\\nprocessor : 0\\nphysical id : 0\n";
    let machine = read(&(TWO_NODES.to_owned() + IDS + cpuinfo));
    let [warning] = &machine.warnings[..] else {
        panic!("{:?}", machine.warnings)
    };
    assert!(
        warning.message.starts_with(
            "has CPU 2 in package 0, core 2, but its topology directory says package 1, core 0"
        ),
        "{warning}"
    );
    assert_eq!(machine.cpus[2].package, Some(1));
}

#[test]
fn threads_of_one_core_on_two_nodes_are_a_warning() {
    let siblings = "\
sys/devices/system/cpu/cpu{0-3}/topology/core_siblings_list: 0-3
sys/devices/system/cpu/cpu{1-2}/topology/thread_siblings_list: 1-2
sys/devices/system/cpu/cpu0/topology/thread_siblings_list: 0
sys/devices/system/cpu/cpu3/topology/thread_siblings_list: 3
";
    let machine = read(&(TWO_NODES.to_owned() + siblings));
    let [warning] = &machine.warnings[..] else {
        panic!("{:?}", machine.warnings)
    };
    assert!(
        warning.message.contains("CPU 1 on node 0, CPU 2 on node 1"),
        "{warning}"
    );
}

#[test]
fn an_interrupt_without_a_line_has_no_handler() {
    let lines = [(40, "IO-APIC 9-fasteoi  acpi")];
    let without = "proc/irq/3/smp_affinity_list: 0\n";
    let reason = |machine: &Machine| interrupt(machine, 3).device_unknown_reason.clone().unwrap();
    let machine = read(&(TWO_NODES.to_owned() + &files(&lines) + without));
    let place = machine.origin.place.clone();
    assert_eq!(
        reason(&machine),
        format!("{place}/proc/interrupts has no line of it: no handler")
    );
    let machine = read(&(TWO_NODES.to_owned() + without));
    assert_eq!(
        reason(&machine),
        "neither msi_irqs nor /proc/interrupts was gathered"
    );
}

/// What findings name as evidence.
#[test]
fn files_that_were_read_instead_of_the_usual_ones_are_named() {
    let machine = read(
        "\
sys/devices/system/cpu/online: 0-3
sys/devices/system/node/node0/cpumap: 3
sys/devices/system/node/node0/cpulist: 0-1
sys/devices/system/node/node1/cpumap: c
sys/devices/system/node/node1/meminfo: Node 1 MemTotal: 8192 kB\\nNode 1 HugePages_Total: 2
sys/devices/pci0000:80/0000:81:00.0/class: 0x020000
sys/devices/pci0000:80/0000:81:00.0/local_cpus: c
sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0/transport: pcie
sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0/address: 0000:81:00.0
sys/class/nvme-subsystem/nvme-subsys0 -> ../../devices/virtual/nvme-subsystem/nvme-subsys0
sys/fs/cgroup/cpuset/db/cpuset.cpus: 0-1
sys/fs/cgroup/cpuset/db/cpuset.mems: 1
sys/fs/cgroup/cpuset/db/cpuset.effective_cpus: 0-1
sys/fs/cgroup/cpuset/cpuset.cpus: 0-3
proc/meminfo: Hugepagesize: 2048 kB
proc/cmdline: isolcpus=2
proc/irq/24/smp_affinity: 4
proc/irq/25/smp_affinity_list: 1
",
    );
    let instead: String = machine
        .origin
        .read_instead
        .iter()
        .map(|(usual, read)| format!("{usual} <- {read}\n"))
        .collect();
    insta::assert_snapshot!(instead, @r"
    proc/irq/24/smp_affinity_list <- proc/irq/24/smp_affinity
    sys/bus/pci/devices/0000:81:00.0/numa_node <- sys/devices/pci0000:80/0000:81:00.0/local_cpus
    sys/class/nvme-subsystem/nvme-subsys0/nvme0/numa_node <- sys/devices/pci0000:80/0000:81:00.0/local_cpus
    sys/devices/pci0000:80/0000:81:00.0/numa_node <- sys/devices/pci0000:80/0000:81:00.0/local_cpus
    sys/devices/system/cpu/isolated <- proc/cmdline
    sys/devices/system/node/node1/cpulist <- sys/devices/system/node/node1/cpumap
    sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages <- sys/devices/system/node/node1/meminfo
    sys/devices/system/node/online <- sys/devices/system/node
    sys/fs/cgroup/db/cpuset.cpus.effective <- sys/fs/cgroup/cpuset/db/cpuset.effective_cpus
    sys/fs/cgroup/db/cpuset.mems.effective <- sys/fs/cgroup/cpuset/db/cpuset.mems
    ");
}

/// The warnings, and behind which file each stands.
fn warnings(machine: &Machine) -> Vec<String> {
    let all = machine.warnings.iter();
    let short = |place: &str| place.split_once("/proc/").map(|(_, file)| file.to_owned());
    all.map(|it| format!("{}: {}", short(&it.place).unwrap_or_default(), it.message))
        .collect()
}

#[test]
fn an_interrupt_without_a_line_in_a_cut_table_may_have_a_handler() {
    let text = TWO_NODES.to_owned()
        + CARD_AND_DISK
        + "proc/interrupts: x\nproc/irq/40/smp_affinity_list: 0\nproc/irq/41/smp_affinity_list: 0\n";
    let head = "      CPU0 CPU1 CPU2 CPU3\n";
    let whole = " 40:  9 0 0 0  PCI-MSIX-0000:81:00.0  0-edge  eth0-TxRx-0\n";
    let cut = "was cut in line 3: the interrupts of this line and of those behind it are unknown";
    let whole_end = "NMI:  0 0 0 0  Non-maskable interrupts\nERR:  0\n";
    for (end, is_noted, is_cut) in [
        (whole_end, false, false),
        // Between two lines nothing is wrong with either.
        ("", false, true),
        (" 41:  9 0 0 0  IR-PC", true, true),
        (" 41:  9 0\n", true, true),
        ("NMI:  0 0", true, true),
    ] {
        let table = [head, whole, end].concat();
        let machine = read_with(&text, &[("proc/interrupts", table.as_bytes())]);
        let noted = warnings(&machine).contains(&format!("interrupts: {cut}"));
        assert_eq!(noted, is_noted, "{end:?}: {:?}", machine.warnings);
        let last = interrupt(&machine, 41);
        assert_eq!(last.immovable_reason.is_none(), is_cut, "{end:?}: {last:?}");
        assert!(last.device_unknown_reason.is_some(), "{end:?}: {last:?}");
        assert_eq!(device(&machine, 40).as_deref(), Some("0000:81:00.0"));
    }
}

#[test]
fn an_empty_table_of_interrupts_was_not_gathered() {
    let text = TWO_NODES.to_owned() + CARD_AND_DISK + "proc/interrupts: x\n";
    for content in ["", "\n"] {
        let machine = read_with(&text, &[("proc/interrupts", content.as_bytes())]);
        assert!(machine.interrupts.get().is_none(), "{content:?}");
        let machine = read_with(
            &(text.clone() + "proc/irq/40/smp_affinity_list: 0\n"),
            &[("proc/interrupts", content.as_bytes())],
        );
        let only = interrupt(&machine, 40);
        assert_eq!(only.immovable_reason, None, "{content:?}");
        assert!(only.device_unknown_reason.is_some(), "{content:?}");
        let message = "interrupts: has no head with CPUs: it was not gathered";
        assert!(
            warnings(&machine).iter().any(|it| it == message),
            "{:?}",
            machine.warnings
        );
    }
}

#[test]
fn a_list_without_a_byte_of_the_kernel_is_unknown_and_its_newline_is_the_empty_set() {
    for (content, reason) in [
        (&b""[..], Some("the file is empty")),
        (b"\0\0\0\0", Some("the file holds only NUL bytes")),
        (b"\n", None),
    ] {
        // A mask has at least a digit.
        let names = ["cpulist", "cpumap"].into_iter();
        for name in names.take(1 + usize::from(reason.is_some())) {
            let path = format!("sys/devices/system/node/node1/{name}");
            let text = TWO_NODES.replace("sys/devices/system/node/node1/cpulist: 2-3\n", "");
            let machine = read_with(
                &(text + "sys/devices/system/node/node1/distance: 21 10\n"),
                &[(&path, content)],
            );
            let cpus = &machine.node(NodeId(1)).unwrap().cpus;
            match reason {
                Some(reason) => {
                    assert!(cpus.unknown_reason().unwrap().contains(reason), "{cpus:?}");
                    let noted = machine
                        .warnings
                        .iter()
                        .any(|it| it.message.contains(reason));
                    assert!(noted, "{:?}", machine.warnings);
                }
                None => assert_eq!(cpus.get().map(|cpus| cpus.len()), Some(0)),
            }
        }
    }
}

#[test]
fn a_device_on_a_node_that_cannot_exist_is_a_contradiction() {
    let text = TWO_NODES.to_owned() + CARD_AND_DISK;
    let far = text.replace("numa_node: 1", "numa_node: 7");
    for (possible, is_noted) in [("0-1", true), ("0-7", false)] {
        let machine = read(&format!(
            "{far}sys/devices/system/node/possible: {possible}\n"
        ));
        let noted = machine.warnings.iter().any(|it| {
            it.place.ends_with("0000:81:00.0/numa_node")
                && it.message.starts_with("names node 7, but ")
                && it.message.ends_with("has only nodes 0-1")
        });
        assert_eq!(noted, is_noted, "{:?}", machine.warnings);
    }
}

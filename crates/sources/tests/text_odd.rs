//! Text that is not one machine's whole output: two outputs in one text, folded lines, paths in prose, offline CPUs.

use nearfar_machine::{CpuId, Known, NodeId};
use nearfar_sources::{hwloc_xml, read_bytes, text};

use super::text::{
    INTERRUPTS, KUNPENG, LSCPU, LSCPU_E, LSCPU_P, LSTOPO, MEMINFO, MLC, MLC_BANDWIDTHS, NUMACTL,
    NUMASTAT, NVIDIA, SUBSYS, SUBSYS_JSON, VIRSH, ZONEINFO, bytes, listed, messages, nodes, read,
};

fn error(text: &str) -> String {
    read_bytes(text.as_bytes(), "bug.txt")
        .unwrap_err()
        .to_string()
}

/// The same text with other numbers is another machine.
#[test]
fn only_the_first_of_two_outputs_is_read() {
    let json = r#"{"lscpu": [{"field": "On-line CPU(s) list:", "data": "0-7"},
        {"field": "NUMA node0 CPU(s):", "data": "0-7"}]}"#;
    let rows = r#"{"cpus": [{"cpu":0,"node":0,"socket":0,"core":0}]}"#;
    let xml = hwloc_xml::render(&text::parse(KUNPENG, "kunpeng").unwrap());
    let whole_mlc = format!("{MLC}{MLC_BANDWIDTHS}");
    for (first, second) in [
        (LSCPU, LSCPU.replace("node2", "node7")),
        // The heading was not copied.
        (LSCPU.split_once('\n').unwrap().1, LSCPU.to_owned()),
        (LSCPU_E, LSCPU_E.replace("\n  2 ", "\n  9 ")),
        (LSCPU_P, LSCPU_P.replace("\n2,", "\n9,")),
        (NUMASTAT, NUMASTAT.replace("Node 1", "Node 7")),
        (MEMINFO, MEMINFO.replace("Node 1", "Node 7")),
        (ZONEINFO, ZONEINFO.replace("Node 1", "Node 7")),
        (INTERRUPTS, INTERRUPTS.replace(" 24:", " 29:")),
        (LSTOPO, LSTOPO.replace("P#1", "P#9")),
        (MLC, MLC.replace(" 1\n", " 1       2\n")),
        (&whole_mlc, whole_mlc.replace("113100.0", "99100.0")),
        // Without the line above the matrix.
        (MLC.split_once("Numa").unwrap().1, MLC.to_owned()),
        (NVIDIA, NVIDIA.replace("\t3\t", "\t5\t")),
        (SUBSYS, SUBSYS.replace("nvme2 ", "nvme7 ")),
        (
            SUBSYS_JSON,
            SUBSYS_JSON.replace("nvme-subsys0", "nvme-subsys1"),
        ),
        (json, json.replace("0-7", "0-95")),
        (rows, rows.replace(r#""cpu":0"#, r#""cpu":9"#)),
        (VIRSH, VIRSH.replace("cell id='1'", "cell id='7'")),
        (&xml, xml.replace("os_index=\"3\"", "os_index=\"9\"")),
        (NUMACTL, NUMACTL.replace("node 1", "node 7")),
    ] {
        let alone = read(&format!("{first}\n"));
        let mut both = read(&format!("{first}\n$ ssh other\n{second}"));
        let warnings = messages(&both);
        let line = first.lines().count() + 1;
        let at = warnings.split_once("bug.txt, line ").map(|(_, rest)| rest);
        let at = at.and_then(|rest| rest.split_once(": a second output of "));
        let at: Option<usize> = at.and_then(|(line, _)| line.parse().ok());
        assert!(at > Some(line), "line {line}\n{warnings}\n{second}");
        assert_eq!(warnings.matches("a second output").count(), 1, "{warnings}");
        both.warnings = alone.warnings.clone();
        assert_eq!(both, alone, "{second}");
    }
}

/// The parts of one output, and outputs that add to each other, are one machine's.
#[test]
fn what_one_output_repeats_is_no_second_output() {
    // One block for each core type.
    let cores = "\
CPU(s):                          8
On-line CPU(s) list:             0-7
Model name:                      Cortex-A510
Thread(s) per core:              1
Core(s) per socket:              3
Socket(s):                       1
CPU(s) scaling MHz:              50%
Model name:                      Cortex-X3
Thread(s) per core:              1
Core(s) per socket:              5
Socket(s):                       1
CPU(s) scaling MHz:              27%
";
    let machine = read(cores);
    assert_eq!(machine.cpus.len(), 8);
    assert_eq!(machine.origin.cpu_model.as_deref(), Some("Cortex-A510"));
    assert_eq!(messages(&machine), "");
    // `numastat -p` has the same titles above other figures.
    let process = NUMASTAT.replace("Mem", "Heap").replace("system", "process");
    let machine = read(&format!("{process}\n{NUMASTAT}"));
    assert_eq!(bytes(&machine, 0).map(|bytes| bytes >> 20), Some(64215));
    assert_eq!(messages(&machine), "");
    // Logical numbers, and the kernel's.
    let physical = LSCPU_E.replace("    1      1    1 1:1:1:1", "    1     36   64 64:64:64:1");
    let machine = read(&format!("{LSCPU_E}\n{physical}"));
    assert_eq!(machine.warnings.len(), 1, "{}", messages(&machine));
}

#[test]
fn nodes_without_cpus_next_to_them_have_unknown_cpus() {
    let text = "\
Machine (376GB total)
  Package L#0
    MemCache L#0 (16GB)
      NUMANode L#0 (P#0 94GB)
    L2 L#0 (1024KB)
      Core L#0 + PU L#0 (P#0)
      Core L#1 + PU L#1 (P#1)
  Package L#1
    NUMANode L#1 (P#1 96GB)
    Core L#2 + PU L#2 (P#2)
  Package L#2
    NUMANode L#2 (P#2 96GB)
  Package L#3
    MemCache L#1 (16GB)
      NUMANode L#3 (P#3 96GB)
";
    let expected = listed(&[(0, "0-1"), (1, "2"), (2, "?"), (3, "?")]);
    assert_eq!(nodes(&read(text)), expected);
    let chain = "Machine (120GB total) + Package L#0\n  MemCache L#0 (16GB)\n    NUMANode L#0 (P#0 60GB)\n  \
                 Core L#0 + PU L#0 (P#0)\n";
    assert_eq!(nodes(&read(chain)), listed(&[(0, "0")]));
}

#[test]
fn lines_of_lstopo_that_a_mail_folded_put_no_cpu_on_a_wrong_node() {
    let folded = "\
Machine (32GB)
  NUMANode L#0 (P#0 16GB) + Socket L#0 + L2 L#0 (256KB) +
L1 L#0 (32KB) + Core L#0
    PU L#0 (P#0)
    PU L#1 (P#2)
  NUMANode L#1 (P#1 16GB) + Socket L#1 + L2 L#1 (256KB) +
L1 L#1 (32KB) + Core L#1
    PU L#2 (P#1)
    PU L#3 (P#3)
";
    let machine = read(folded);
    assert_eq!(nodes(&machine), listed(&[(0, "0,2"), (1, "1,3")]));
    assert_eq!(machine.siblings(CpuId(3)).to_string(), "1,3");
    assert_eq!(messages(&machine), "");
    let flat: String = folded
        .lines()
        .map(|line| format!("{}\n", line.trim()))
        .collect();
    let elsewhere = folded.replace(" +\nL1", "\nL1");
    for text in [flat, elsewhere] {
        let machine = read(&text);
        assert_eq!(nodes(&machine), listed(&[(0, "?"), (1, "?")]), "{text}");
        assert_eq!(machine.cpus.len(), 4);
        assert!(machine.caches.is_empty());
        assert!(messages(&machine).contains("lost their indentation"));
    }
}

#[test]
fn a_path_in_prose_is_no_file() {
    let prose = format!(
        "Please look at /sys/devices/system/node/node1/cpulist\n\nthat file says which CPUs.\n\
         Also I checked /sys/devices/system/cpu/isolated\n\nThis is it:\n{NUMACTL}"
    );
    let machine = read(&prose);
    assert_eq!(nodes(&machine), nodes(&read(NUMACTL)));
    assert_eq!(machine.cpu_states.isolated.get(), None);
    assert!(
        !messages(&machine).contains("CPUs of node"),
        "{}",
        messages(&machine)
    );
    let error = error("Hi,\nthe file /sys/devices/system/node/node1/cpulist\n");
    assert!(
        error.starts_with("bug.txt, line 2: files of /sys"),
        "{error}"
    );
    // An empty file, as tail and grep show it.
    for empty in [
        "==> /sys/devices/system/node/node1/cpulist <==\n\n\n==> /sys/devices/system/node/node0/cpulist <==\n0\n",
        "/sys/devices/system/node/node1/cpulist:\n/sys/devices/system/node/node0/cpulist:0\n",
    ] {
        assert_eq!(nodes(&read(empty)), listed(&[(0, "0"), (1, "")]));
    }
}

#[test]
fn namespaces_of_show_topology_are_no_controllers() {
    let machine = read(
        "\
nvme-subsys2 - NQN=nvmet-test
\\
 +- ns id 4
 \\
  +- nvme2 tcp traddr=192.168.154.10,trsvcid=4421 live non-optimized
  +- nvme3 tcp traddr=192.168.154.10,trsvcid=4420 live non-optimized
 +- ns id 3
 \\
  +- nvme2 tcp traddr=192.168.154.10,trsvcid=4421 live non-optimized
",
    );
    let subsystem = &machine.nvme.get().unwrap()[0];
    let names: Vec<_> = subsystem.controllers.iter().map(|it| &it.name).collect();
    assert_eq!(names, ["nvme2", "nvme3"]);
}

#[test]
fn errors_name_the_line_where_the_recognised_text_begins() {
    for (text, expected) in [
        (
            "Hi\nNUMA node0 CPU(s): 0-99999999999\n",
            "bug.txt, line 2: \"0-99999999999\" is not a list of CPUs",
        ),
        (
            "Hi\n\navailable: 2 nodes (0-1)\n",
            "bug.txt, line 3: no line about a node",
        ),
        (
            "\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-63\tN/A\n",
            "bug.txt, line 1: nvidia-smi's table does not say which node",
        ),
        (
            "Hi\n{\n\"Subsystems\" : [ {\"Name\" : 3 } ]\n}",
            "bug.txt, line 2: no subsystem in it",
        ),
        (
            "{\"schema\":\"topo/1\"}",
            "bug.txt does not hold a nearfar snapshot: line 1, column 19: missing field \"origin\"",
        ),
        (
            "{\"schema\":\n \"topo/1\" x}",
            "bug.txt does not hold a nearfar snapshot: line 2, column 11: not JSON",
        ),
        (
            "{\"lscpu\": [\n \"a\" x]}",
            "bug.txt, line 2: not JSON (column 6)",
        ),
    ] {
        let error = error(text);
        assert!(error.starts_with(expected), "{error}\n{text}");
    }
}

#[test]
fn a_note_behind_the_heading_of_distances_is_none_of_the_table() {
    let noted = NUMACTL.replace("distances:", "distances:    // 3");
    let machine = read(&noted);
    assert_eq!(machine.distance(NodeId(1), NodeId(0)).unwrap().0, 21);
    assert_eq!(messages(&machine), "");
}

#[test]
fn a_folded_table_of_interrupts_has_all_cpus_and_no_counts() {
    let machine = read(
        "            CPU0       CPU1       CPU2       CPU3\n       CPU4       CPU5\n 120:   1000   0  0 0\n       \
         0  0  IR-PCI-MSIX-0000:81:00.0 1-edge  mlx5_comp1@pci:0000:81:00.0\n",
    );
    assert_eq!(machine.cpu_states.online.to_string(), "0-5");
    let interrupts = machine.interrupts.get().unwrap();
    assert!(
        interrupts
            .iter()
            .all(|it| matches!(it.count, Known::No { .. }))
    );
    assert!(
        messages(&machine).contains("line 1: the line with the CPUs is folded"),
        "{}",
        messages(&machine)
    );
}

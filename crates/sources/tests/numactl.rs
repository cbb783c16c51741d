//! What people paste into mails when they are asked for `numactl -H`.

use nearfar_machine::{CpuId, Distance, Machine, NodeId};
use nearfar_sources::text;
use proptest::prelude::*;

const KUNPENG: &str = include_str!("fixtures/kunpeng-numactl.txt");

fn read(text: &str) -> Machine {
    let machine = text::parse(text, "mail").unwrap();
    assert_eq!(machine.check(), Vec::<String>::new());
    machine
}

fn cpus(machine: &Machine, node: u32) -> String {
    machine.node(NodeId(node)).unwrap().known_cpus().to_string()
}

fn distance(machine: &Machine, from: u32, to: u32) -> Option<u32> {
    machine
        .distances
        .get()?
        .get(NodeId(from), NodeId(to))
        .map(|distance| distance.0)
}

/// Nodes, CPUs, sizes and distances, without warnings: what must survive the mail.
fn same(a: &Machine, b: &Machine) -> bool {
    a.nodes == b.nodes && a.cpus == b.cpus && a.distances == b.distances
}

#[test]
fn kunpeng_has_four_nodes_of_24_cpus() {
    let machine = read(KUNPENG);
    let nodes: Vec<_> = (0..4).map(|node| cpus(&machine, node)).collect();
    assert_eq!(nodes, ["0-23", "24-47", "48-71", "72-95"]);
    assert_eq!(
        machine.node(NodeId(0)).unwrap().total_bytes(),
        Some(63379 << 20)
    );
    assert_eq!(
        machine
            .node(NodeId(3))
            .unwrap()
            .memory
            .get()
            .unwrap()
            .free_bytes,
        Some(63420 << 20)
    );
    assert_eq!(machine.distance(NodeId(2), NodeId(0)), Some(Distance(32)));
    assert_eq!(machine.node_of(CpuId(48)), Some(NodeId(2)));
    assert!(machine.distances.get().unwrap().is_symmetric());
    assert!(machine.warnings.is_empty(), "{:?}", machine.warnings);
    assert!(machine.pci.unknown_reason().unwrap().contains("numactl"));
}

#[test]
fn quotation_marks_tabs_and_line_ends_do_not_matter() {
    let machine = read(KUNPENG);
    let variants = [
        KUNPENG
            .lines()
            .map(|line| format!("> {line}\n"))
            .collect::<String>(),
        KUNPENG
            .lines()
            .map(|line| format!("> > {line}\r\n"))
            .collect(),
        KUNPENG
            .lines()
            .map(|line| format!(">>| {line}\n"))
            .collect(),
        KUNPENG
            .lines()
            .map(|line| format!("  | {line}\n"))
            .collect(),
        KUNPENG.replace(' ', "\t"),
        KUNPENG.replace(' ', "\u{a0}"),
        KUNPENG.replace(' ', "=20"),
        KUNPENG.replace('\n', "\n\n"),
        format!(
            "\u{feff}Hi,\n\nhere is what you asked for, 4 nodes as I said:\n\n{KUNPENG}\nRegards,\n0: me\n"
        ),
        String::from_utf8_lossy(
            &KUNPENG
                .replace(' ', "\u{1}")
                .into_bytes()
                .iter()
                .map(|&b| if b == 1 { 0xa0 } else { b })
                .collect::<Vec<_>>(),
        )
        .into_owned(),
    ];
    for variant in variants {
        assert!(same(&read(&variant), &machine), "{variant}");
    }
}

#[test]
fn lines_that_the_mailer_folded_are_one_line_again() {
    let machine = read(KUNPENG);
    let folded = KUNPENG
        .replace(" 12 13", "\n> 12 13")
        .replace(" 60 61", "=\n 60 61")
        .replace("32 33\n", "32\n33\n");
    assert!(same(&read(&folded), &machine), "{folded}");
    let flowed = KUNPENG.replace("\nnode", " node");
    assert!(same(&read(&flowed), &machine), "{flowed}");
    let broken_in_a_number = KUNPENG.replace("cpus: 24 25", "cpus: 2=\n4 25");
    assert!(
        same(&read(&broken_in_a_number), &machine),
        "{broken_in_a_number}"
    );
}

#[test]
fn a_header_that_contradicts_the_list_is_named_with_both_sides() {
    // As published in "powerpc/numa: Make cpu/memory less numa-node online".
    let machine = read(
        "available: 3 nodes (0,2-3)\nnode 0 cpus: 0 1 2 3\nnode 0 size: 31924 MB\nnode 0 free: 30000 MB\n\
         node 2 cpus:\nnode 2 size: 0 MB\nnode 2 free: 0 MB\nnode distances:\nnode   0   2\n  0:  10  40\n  2:  40  10\n",
    );
    assert_eq!(machine.nodes.len(), 2);
    assert_eq!(cpus(&machine, 2), "");
    assert_eq!(machine.node(NodeId(2)).unwrap().has_memory(), Some(false));
    assert_eq!(distance(&machine, 0, 2), Some(40));
    let message = machine.warnings[0].to_string();
    assert!(
        message.contains("line 1")
            && message.contains("3 nodes (0,2-3)")
            && message.contains("(0,2)"),
        "{message}"
    );
}

#[test]
fn what_is_missing_is_not_known() {
    let machine = read(
        "available: 2 nodes (0-1)\nnode 0 cpus: 0 1\nnode 0 size: <not available>\nnode 1 cpus: 2 3\nNo distance information available.\n",
    );
    assert!(machine.distances.unknown_reason().is_some());
    assert!(
        machine
            .node(NodeId(0))
            .unwrap()
            .memory
            .unknown_reason()
            .is_some()
    );
    assert!(machine.warnings.is_empty(), "{:?}", machine.warnings);
    assert!(machine.caches.is_empty());
    assert_eq!(machine.cpus[0].core, None);
}

/// `lines` with something before each, which gets the number of the line.
fn prefixed(prefix: impl Fn(usize) -> String) -> String {
    let lines = KUNPENG.lines().enumerate();
    lines
        .map(|(at, line)| format!("{}{line}\n", prefix(at)))
        .collect()
}

#[test]
fn a_prefix_that_all_lines_share_does_not_matter() {
    let machine = read(KUNPENG);
    let fixed = [
        "#",
        "# ",
        "+",
        "-",
        "// ",
        " * ",
        "; ",
        "node001: ",
        "kernel-tests | ",
        "\u{1b}[32m+\u{1b}[0m",
        "&gt; &gt; ",
        "| ",
        "2020-01-02 03:04:05\t ",
        "[stdout] ",
        "TASK 7 -> ",
        "    \"",
    ];
    for prefix in fixed {
        assert!(
            same(&read(&prefixed(|_| prefix.to_owned())), &machine),
            "{prefix:?}"
        );
    }
    let changing: [fn(usize) -> String; 8] = [
        |at| format!("{at}:"),
        |at| format!("{at:>6}\t"),
        |at| format!("12:03:{:02}.{:03} ", at, 7 * at),
        |at| format!("[{:>12}.{:06}] ", at * 50, at),
        |at| format!("Jan  2 03:04:{at:02} host run[{}]: ", 99 + at),
        |at| format!("web_1  | 2024-01-02T03:04:{at:02}.5Z "),
        |at| format!("bug.txt-{at}-"),
        |at| format!("+{at} "),
    ];
    for (at, prefix) in changing.iter().enumerate() {
        assert!(
            same(&read(&prefixed(prefix)), &machine),
            "{at}: {}",
            prefixed(prefix)
        );
    }
}

#[test]
fn markup_around_the_lines_does_not_matter() {
    let machine = read(KUNPENG);
    let each = |line: fn(&str) -> String| KUNPENG.lines().map(line).collect::<String>();
    for variant in [
        format!("<pre><code>{KUNPENG}</code></pre>"),
        format!("{{code}}\n{KUNPENG}{{code}}\n"),
        format!("{{noformat:title=a}}{KUNPENG}{{noformat}}"),
        format!("```console\n{KUNPENG}```\n"),
        each(|line| format!("`{line}`  \n")),
        each(|line| format!("{line}<br/>\n")),
        each(|line| format!("<p>{}</p>", line.replace(' ', "&nbsp;"))),
        each(|line| format!("<span class=\"c\">{line}</span>\n")),
        each(|line| format!("| {line} |\n")),
        each(|line| format!("        \"{line}\",\n")),
        each(|line| format!("\u{1b}[1;32m{line}\u{1b}[0m\u{1b}[K\n")),
        format!(
            "{{\"stdout\": \"{}\", \"rc\": 0}}\n",
            KUNPENG.replace('\n', "\\n")
        ),
        each(|line| {
            format!(
                "{{\"log\":\"{line}\\n\",\"stream\":\"stdout\",\"time\":\"2024-01-02T03:04:05.0Z\"}}\n"
            )
        }),
    ] {
        assert!(same(&read(&variant), &machine), "{variant}");
    }
}

#[test]
fn lines_of_other_containers_between_them_do_not_matter() {
    let machine = read(KUNPENG);
    let lines = KUNPENG.lines();
    let mixed: String = lines
        .map(|line| format!("a_1  | {line}\nb_1  |   0:  99  99  99  99\n"))
        .collect();
    assert!(same(&read(&mixed), &machine), "{mixed}");
}

#[test]
fn a_table_of_distances_alone_has_nodes_of_which_nothing_else_is_known() {
    let rows = "node     0    1\n   0:   10   20\n   1:   21   10\n";
    for text in [
        rows.to_owned(),
        format!("$ numactl -H\nnode distances:\n{rows}$ echo\n"),
        rows.lines()
            .map(|line| format!("12:00:01 host: {line}\n"))
            .collect(),
    ] {
        let machine = read(&text);
        assert_eq!(
            (distance(&machine, 0, 1), distance(&machine, 1, 0)),
            (Some(20), Some(21)),
            "{text}"
        );
        assert_eq!(machine.nodes.len(), 2);
        assert!(
            machine
                .nodes
                .iter()
                .all(|node| node.has_cpus().is_none() && node.has_memory().is_none())
        );
    }
}

#[test]
fn a_node_without_a_line_of_cpus_has_unknown_cpus() {
    let machine = read(
        "available: 2 nodes (0-1)\nnode 0 size: 4031 MB\nnode 1 cpus:\nnode 1 size: 4040 MB\nnode distances:\n\
         node   0   1   2\n  0:  10  20  20\n  1:  20  10  20\n  2:  20  20  10\n",
    );
    let has_cpus: Vec<_> = machine.nodes.iter().map(|node| node.has_cpus()).collect();
    assert_eq!(has_cpus, [None, Some(false), None]);
    let reason = machine.nodes[0].cpus.unknown_reason().unwrap();
    assert!(
        reason.contains("no line with the CPUs of node 0"),
        "{reason}"
    );
}

#[test]
fn the_count_that_cpu_compress_adds_is_no_cpu() {
    let text = |count| {
        format!(
            "available: 2 nodes (0-1)\nnode 0 cpus: 0-3, 8-11 ({count})\nnode 0 size: 1 MB\nnode 1 cpus: (0)\nnode 1 size: 1 MB\n"
        )
    };
    let machine = read(&text(8));
    assert_eq!(
        (cpus(&machine, 0), cpus(&machine, 1)),
        ("0-3,8-11".into(), String::new())
    );
    assert_eq!(machine.node(NodeId(1)).unwrap().has_cpus(), Some(false));
    assert_eq!(machine.warnings, []);
    let machine = read(&text(9));
    assert!(
        machine.warnings[0].message.contains("counts 9"),
        "{:?}",
        machine.warnings
    );
}

#[test]
fn units_other_than_mb_are_read() {
    for (text, bytes) in [
        ("62 GB", 62 << 30),
        ("62GB", 62 << 30),
        ("100 kB", 100 << 10),
        ("512", 512 << 20),
    ] {
        let machine = read(&format!("node 0 cpus: 0\nnode 0 size: {text}\n"));
        assert_eq!(
            machine.node(NodeId(0)).unwrap().total_bytes(),
            Some(bytes),
            "{text}"
        );
    }
}

#[test]
fn sparse_numbers_and_holes_keep_their_places() {
    let machine = read(
        "available: 2 nodes (0,8)\nnode 0 cpus: 0-3\nnode 8 cpus: 80, 81\nnode distances:\nnode 0 8\n0: 10 0\n8: 40\n",
    );
    assert_eq!(
        (cpus(&machine, 0), cpus(&machine, 8)),
        ("0-3".into(), "80-81".into())
    );
    assert_eq!(
        (
            distance(&machine, 0, 8),
            distance(&machine, 8, 0),
            distance(&machine, 8, 8)
        ),
        (None, Some(40), None)
    );
    assert!(
        machine.warnings.iter().any(|d| d.message.contains("holes")),
        "{:?}",
        machine.warnings
    );
}

#[test]
fn a_node_given_twice_is_a_diagnostic_and_so_is_a_second_output() {
    let machine = read("node 0 cpus: 0 1\nnode 0 cpus: 2 3\n");
    assert_eq!(cpus(&machine, 0), "0-1");
    assert!(
        machine
            .warnings
            .iter()
            .any(|d| d.message.contains("2-3") && d.message.contains("0-1"))
    );
    let machine = read(&format!(
        "Before:\n{KUNPENG}\nAfter:\navailable: 1 nodes (0)\nnode 0 cpus: 0\n"
    ));
    assert_eq!(machine.nodes.len(), 4);
    assert!(
        machine
            .warnings
            .iter()
            .any(|d| d.message.contains("second output"))
    );
}

#[test]
fn fake_nodes_share_their_cpus() {
    let machine = read("available: 2 nodes (0-1)\nnode 0 cpus: 0 1\nnode 1 cpus: 0 1\n");
    assert_eq!(machine.node_of(CpuId(1)), Some(NodeId(0)));
    assert_eq!(cpus(&machine, 1), "0-1");
}

#[test]
fn a_text_without_nodes_says_what_to_do() {
    let error = text::parse("No NUMA available on this system\n", "mail")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("no NUMA support") && error.contains("snapshot"),
        "{error}"
    );
    let error = text::parse("Hello,\nnothing here\n", "mail")
        .unwrap_err()
        .to_string();
    assert!(error.contains("numactl -H"), "{error}");
}

#[test]
fn numbers_no_machine_has_are_left_out() {
    let machine = read("node 0 cpus: 0 99999999999999999999 70000 1\nnode 70000 cpus: 2\n");
    assert_eq!(cpus(&machine, 0), "0-1");
    assert_eq!(machine.warnings.len(), 4, "{:?}", machine.warnings);
    let many: String = (0..5000)
        .map(|node| format!("node {node} cpus: {node}\n"))
        .collect();
    assert!(text::parse(&many, "mail").is_err());
    let noisy: String = (0..5000).map(|_| "node 0 cpus: x\n").collect();
    assert!(read(&noisy).warnings.len() < 100);
}

proptest! {
    #[test]
    fn no_text_panics(text in "(?s).{0,200}") {
        let _ = text::parse(&text, "mail");
    }

    #[test]
    fn no_mixture_of_its_words_panics(words in proptest::collection::vec(prop_oneof![
        Just("node"), Just("available:"), Just("nodes"), Just("(0-"), Just("3)"), Just("cpus:"), Just("size:"), Just("free:"),
        Just("distances:"), Just("0:"), Just("1:"), Just("0"), Just("1"), Just("10"), Just("MB"), Just("\n"), Just("> "),
        Just("=\n"), Just("70000"), Just("-"), Just("0-5"), Just("9999999999999999999999:")], 0..60)) {
        if let Ok(machine) = text::parse(&words.join(" "), "mail") {
            prop_assert_eq!(machine.check(), Vec::<String>::new());
        }
    }
}

#[test]
fn a_node_without_a_line_of_its_cpus_may_have_any() {
    let machine = read(
        "available: 2 nodes (0-1)\nnode 0 cpus: 0 1\nnode 0 size: 100 MB\nnode 1 size: 100 MB\n\
         node distances:\nnode 0 1 2\n 0: 10 20 30\n 1: 20 10 30\n 2: 30 30 10\n",
    );
    let known: Vec<_> = machine.nodes.iter().map(|node| node.has_cpus()).collect();
    assert_eq!(known, [Some(true), None, None]);
}

//! Tables of what a line takes between CPUs.

use nearfar_machine::Machine;
use nearfar_sources::{Request, SourceError, Want};
use proptest::prelude::*;

use crate::text::messages;

const NODES: &str = "\
available: 2 nodes (0-1)
node 0 cpus: 0 1 2
node 1 cpus: 3 4 5
node distances:
node   0   1
  0:  10  21
  1:  21  10
";
const CORES: &str = "\
# CPU,Core,Socket,Node,,L1d,L1i,L2,L3
0,0,0,0,,0,0,0,0
1,0,0,0,,0,0,0,0
2,1,0,0,,1,1,1,0
3,2,1,1,,2,2,2,1
4,3,1,1,,3,3,3,1
5,4,1,1,,4,4,4,2
";
const TABLE: &str = "\
,,,,,
48,,,,,
50,49.4,,,,
140,141,142,,,
143,139.6,141.3,47.5,,
141.1,141.2,140.9,46.25,51,
";
const MLC: &str = "\
Measuring cache-to-cache transfer latency (in ns)...
Local Socket L2->L2 HITM latency\t50.0
Remote Socket L2->L2 HITM latency (data address homed in writer socket)
\t\t\tReader Numa Node
Writer Numa Node     0\t     1
            0\t     -\t 111.0
            1\t 111.0\t     -
";

/// Files that describe one machine.
fn try_read(texts: &[&str]) -> Result<Machine, SourceError> {
    let folder = tempfile::tempdir().unwrap();
    let source = |(number, text): (usize, &&str)| {
        let file = folder.path().join(format!("{number}.csv"));
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let request = Request {
        sources: texts.iter().enumerate().map(source).collect(),
        ..Request::live(Want::all())
    };
    nearfar_sources::read(&request)
}

fn read(texts: &[&str]) -> (Machine, String, Option<String>) {
    let machine = try_read(texts).unwrap();
    assert_eq!(machine.check(), Vec::<String>::new());
    let timing = machine.timing.as_ref();
    assert!(timing.is_none_or(|it| it.between_cpus.is_empty()));
    let transfer = timing.and_then(|it| Some(it.transfer.as_ref()?.to_string()));
    let told = messages(&machine);
    (machine, told, transfer)
}

#[test]
fn each_class_takes_the_median_of_its_pairs() {
    // Of six pairs within a node 48.7; of nine between nodes 141.1.
    let (machine, told, transfer) = read(&[NODES, TABLE]);
    assert!(
        told.contains("the line transfers of all pairs of a node are one class"),
        "{told}"
    );
    assert_eq!(transfer.as_deref(), Some("49/141"));
    let sources = machine.timing.unwrap().sources;
    assert_eq!(
        sources,
        ["transfer: core-to-core-latency, medians by class"]
    );
    // Threads of a core, a cache with 50, 49.4 and 47.5, another cache of the node with 46.25 and 51.
    let (_, told, transfer) = read(&[TABLE, NODES, CORES]);
    assert_eq!(
        (told.as_str(), transfer.as_deref()),
        ("", Some("48/49/49/141"))
    );
}

#[test]
fn a_table_alone_has_no_class() {
    let (machine, told, _) = read(&[TABLE]);
    let needed = "which CPUs share a cache and a node is needed";
    assert!(told.contains(needed), "{told}");
    assert_eq!(machine.timing, None);
    assert!(machine.cpus.is_empty(), "their numbers are not in it");
}

#[test]
fn a_table_that_is_cut_or_wrong_gives_no_class() {
    let cut = &TABLE[..TABLE.find("143").unwrap()];
    let (_, told, transfer) = read(&[NODES, cut]);
    assert!(
        told.contains("the table of 6 CPUs ends after 4 rows"),
        "{told}"
    );
    assert!(
        told.contains("the table has 4 CPUs, and the nodes have CPUs 0-5"),
        "{told}"
    );
    assert_eq!(transfer, None);
    for wrong in [
        "140,-141,142,,,",
        "140,1e9,142,,,",
        "140,141,142,,",
        "140,141,142,7,,",
        "x",
    ] {
        let (_, told, transfer) = read(&[NODES, &TABLE.replace("140,141,142,,,", wrong)]);
        assert!(
            told.contains("the table of 6 CPUs ends after 3 rows"),
            "{wrong}: {told}"
        );
        assert_eq!(transfer, None, "{wrong}");
    }
    // Two tables are not one.
    let (_, told, transfer) = read(&[NODES, CORES, &format!("{TABLE}{TABLE}")]);
    assert!(told.contains("ends after 6 rows"), "{told}");
    assert_eq!(transfer.as_deref(), Some("48/49/49/141"));
    assert!(try_read(&[",,,,,\n"]).is_err());
    assert!(try_read(&[",,,,,\nno number,,,,,\n"]).is_err());
}

#[test]
fn classes_of_another_source_come_first() {
    let (_, told, transfer) = read(&[NODES, MLC, TABLE]);
    assert!(
        told.contains("those of single CPUs were left out"),
        "{told}"
    );
    assert_eq!(transfer.as_deref(), Some("50/111"));
}

proptest! {
    #[test]
    fn a_table_cut_anywhere_is_read_or_refused(end in 0..TABLE.len()) {
        let _ = try_read(&[NODES, &TABLE[..end]]);
    }
}

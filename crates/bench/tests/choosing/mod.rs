//! Which cells there are on a machine.

use nearfar_bench::matrix::{Balancing, LeftOut, Places, Selection, choose};
use nearfar_bench::probe::Where;
use nearfar_machine::NodeId;

use crate::made_up::cell;

const SETTABLE: Balancing = Balancing::Settable;

fn places(memory: &[u32], cpus: &[u32]) -> Places {
    let ids = |numbers: &[u32]| numbers.iter().map(|&number| NodeId(number)).collect();
    Places {
        memory: ids(memory),
        cpus: ids(cpus),
    }
}

fn of(places: &Places, balancing: &Balancing, selection: Selection) -> Vec<String> {
    choose(places, balancing, &selection)
        .unwrap()
        .cells
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn two_nodes_make_the_published_matrix_in_its_order() {
    let cells = of(&places(&[0, 1], &[0, 1]), &SETTABLE, Selection::default());
    assert_eq!(cells.len(), 36);
    let places = [
        "0,cpu_node=0",
        "0,cpu_node=1",
        "0,cpu_node=F",
        "1,cpu_node=0",
        "1,cpu_node=1",
        "1,cpu_node=F",
        "F,cpu_node=0",
        "F,cpu_node=1",
        "F,cpu_node=F",
    ];
    assert_eq!(
        cells[..9],
        places.map(|place| format!("preferred_node=-1,numa_balancing=0,memory_node={place}"))
    );
    assert_eq!(
        cells[9],
        "preferred_node=-1,numa_balancing=1,memory_node=0,cpu_node=0"
    );
    assert_eq!(
        cells[18],
        "preferred_node=0,numa_balancing=1,memory_node=0,cpu_node=0"
    );
    assert_eq!(
        cells[35],
        "preferred_node=1,numa_balancing=1,memory_node=F,cpu_node=F"
    );
}

#[test]
fn any_number_of_nodes_makes_two_and_n_policies_of_n_and_one_squared_cells() {
    for nodes in 2..9u32 {
        let numbers: Vec<u32> = (0..nodes).map(|node| 2 * node).collect();
        let places = places(&numbers, &numbers);
        let with = |numa_balancing| {
            let selection = Selection {
                numa_balancing,
                ..Selection::default()
            };
            of(&places, &SETTABLE, selection).len() as u32
        };
        assert_eq!(with(vec![]), (2 + nodes) * (nodes + 1).pow(2));
        assert_eq!(
            with(vec![false, true]),
            (2 + 2 * nodes) * (nodes + 1).pow(2)
        );
    }
}

#[test]
fn a_node_with_memory_only_is_no_place_to_run() {
    let cells = of(&places(&[0, 2], &[0, 1]), &SETTABLE, Selection::default());
    assert_eq!(cells.len(), 36);
    assert!(
        cells
            .iter()
            .any(|cell| cell.ends_with("memory_node=2,cpu_node=1"))
    );
    assert!(cells.iter().all(|cell| !cell.contains("memory_node=1")
        && !cell.ends_with("cpu_node=2")
        && !cell.contains("preferred_node=2")));
}

#[test]
fn one_node_has_four_cells_and_says_what_it_lacks() {
    let stays = Balancing::Stays {
        on: false,
        reason: "the kernel has none".to_owned(),
    };
    let chosen = choose(&places(&[0], &[0]), &stays, &Selection::default()).unwrap();
    assert_eq!(chosen.cells.len(), 4);
    let said: Vec<&str> = chosen
        .left_out
        .iter()
        .map(|left| left.what.as_str())
        .collect();
    let other_node = "all cells with CPUs on another node than the memory";
    assert_eq!(
        said,
        [
            other_node,
            "all cells with a preferred node",
            "all cells with NUMA balancing on"
        ]
    );
}

#[test]
fn without_numa_balancing_a_preferred_node_is_measured_without_it() {
    let stays = Balancing::Stays {
        on: false,
        reason: "only root may".to_owned(),
    };
    let cells = of(&places(&[0, 1], &[0, 1]), &stays, Selection::default());
    assert_eq!(cells.len(), 27);
    assert!(cells.iter().all(|cell| cell.contains("numa_balancing=0")));
    let stays = Balancing::Stays {
        on: true,
        reason: "only root may".to_owned(),
    };
    let cells = of(&places(&[0, 1], &[0, 1]), &stays, Selection::default());
    assert_eq!(cells.len(), 27);
    assert!(cells.iter().all(|cell| cell.contains("numa_balancing=1")));
}

#[test]
fn parts_are_selected_by_factor_or_by_cell() {
    let two = places(&[0, 1], &[0, 1]);
    let cells = of(
        &two,
        &SETTABLE,
        Selection {
            preferred_node: vec![None, Some(NodeId(1))],
            numa_balancing: vec![false],
            memory_node: vec![Where::Node(NodeId(0))],
            cpu_node: vec![Where::Floating, Where::Node(NodeId(1))],
            ..Selection::default()
        },
    );
    let expected = [
        "preferred_node=-1,numa_balancing=0,memory_node=0,cpu_node=1",
        "preferred_node=-1,numa_balancing=0,memory_node=0,cpu_node=F",
        "preferred_node=1,numa_balancing=0,memory_node=0,cpu_node=1",
    ];
    assert_eq!(cells[..3], expected);
    let twice = [
        "preferred_node=0,numa_balancing=1,memory_node=F,cpu_node=0",
        "cpu_node=0,memory_node=F,numa_balancing=1,preferred_node=0",
    ]
    .map(cell);
    let cells = of(
        &two,
        &SETTABLE,
        Selection {
            cells: twice.to_vec(),
            ..Selection::default()
        },
    );
    assert_eq!(
        cells,
        ["preferred_node=0,numa_balancing=1,memory_node=F,cpu_node=0"]
    );
}

#[test]
fn what_is_not_here_is_refused_by_name() {
    let refusal = |balancing: &Balancing, selection: Selection| {
        choose(&places(&[0, 1], &[0, 1]), balancing, &selection)
            .unwrap_err()
            .to_string()
    };
    let cell = |text: &str| Selection {
        cells: vec![cell(text)],
        ..Selection::default()
    };
    let memory = Selection {
        memory_node: vec![Where::Node(NodeId(7))],
        ..Selection::default()
    };
    assert!(refusal(&SETTABLE, memory).contains("memory_node=7"));
    assert!(
        refusal(
            &SETTABLE,
            cell("preferred_node=5,numa_balancing=1,memory_node=0,cpu_node=0")
        )
        .contains("node 5")
    );
    assert!(
        refusal(
            &SETTABLE,
            cell("preferred_node=-1,numa_balancing=1,memory_node=0,cpu_node=9")
        )
        .contains("0-1")
    );
    let stays = Balancing::Stays {
        on: false,
        reason: "it is a test".to_owned(),
    };
    assert!(
        refusal(
            &stays,
            cell("preferred_node=-1,numa_balancing=1,memory_node=0,cpu_node=0")
        )
        .contains("it is a test")
    );
}

#[test]
fn a_reason_under_the_key_of_earlier_runs_is_read() {
    let stored = r#"{"what":"cells of node 7","because":"it has no CPU"}"#;
    let left: LeftOut = serde_json::from_str(stored).unwrap();
    assert_eq!(left.reason, "it has no CPU");
}

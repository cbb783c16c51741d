//! Known and unknown values in JSON, there and back.

use nearfar_machine::{
    AnaState, Cpu, CpuSet, Known, Machine, Memory, Node, NodeId, Origin, SourceKind,
};
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

fn there_and_back<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: Known<T>) {
    let text = serde_json::to_string(&value).unwrap();
    assert_eq!(
        serde_json::from_str::<Known<T>>(&text).unwrap(),
        value,
        "{text}"
    );
    // The other way of reading: without text to borrow from.
    let json = serde_json::to_value(&value).unwrap();
    assert_eq!(
        serde_json::from_value::<Known<T>>(json).unwrap(),
        value,
        "{text}"
    );
    there_and_back_unknown::<T>();
}

fn there_and_back_unknown<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>() {
    let text = r#"{"unknown_reason":"permission denied"}"#;
    let unknown = serde_json::from_str::<Known<T>>(text).unwrap();
    assert_eq!(unknown.unknown_reason(), Some("permission denied"));
    assert_eq!(serde_json::to_string(&unknown).unwrap(), text);
}

#[test]
fn every_kind_of_value_comes_back() {
    there_and_back(Known::Yes(true));
    there_and_back(Known::Yes(-7i32));
    there_and_back(Known::Yes(u64::MAX));
    there_and_back(Known::Yes(1.5f64));
    there_and_back(Known::Yes("a word".to_owned()));
    there_and_back(Known::Yes(None::<NodeId>));
    there_and_back(Known::Yes(Some(NodeId(2))));
    there_and_back(Known::Yes(vec![Memory::of(1), Memory::of(2)]));
    there_and_back(Known::Yes(Memory::of(5)));
    there_and_back(Known::Yes(AnaState::NonOptimized));
    there_and_back(Known::Yes(AnaState::Other("new".to_owned())));
    there_and_back(Known::Yes(Machine::empty(
        Origin::new(SourceKind::Live, "x"),
        "not asked for",
    )));
}

#[test]
fn an_error_is_the_values_own() {
    let wrong = serde_json::from_str::<Known<Memory>>(r#"{"total_bytes": "much"}"#)
        .unwrap_err()
        .to_string();
    assert!(
        wrong.contains("invalid type: string \"much\", expected u64"),
        "{wrong}"
    );
    let missing = serde_json::from_str::<Known<Memory>>("{}")
        .unwrap_err()
        .to_string();
    assert!(missing.contains("missing field `total_bytes`"), "{missing}");
    let both =
        serde_json::from_str::<Known<Memory>>(r#"{"unknown_reason": "x", "total_bytes": 1}"#)
            .unwrap_err();
    assert!(
        both.to_string()
            .contains("`total_bytes` next to `unknown_reason`"),
        "{both}"
    );
}

proptest! {
    #[test]
    fn any_text_comes_back(text in ".*", reason in ".*") {
        let known = Known::Yes(text);
        let back: Known<String> = serde_json::from_str(&serde_json::to_string(&known).unwrap()).unwrap();
        prop_assert_eq!(back, known);
        let unknown = Known::<u32>::no(reason);
        let back: Known<u32> = serde_json::from_str(&serde_json::to_string(&unknown).unwrap()).unwrap();
        prop_assert_eq!(back, unknown);
    }
}

#[test]
fn a_reason_under_its_earlier_key_is_read() {
    let known: Known<u64> =
        serde_json::from_str(r#"{"not_known_because":"permission denied"}"#).unwrap();
    assert_eq!(known.unknown_reason(), Some("permission denied"));
}

/// Snapshots and runs that were stored before these could be unknown have a plain set and a plain word.
#[test]
fn plain_cpus_of_a_node_and_a_plain_state_of_a_cpu_are_known() {
    let node: Node = serde_json::from_str(
        r#"{"id":1,"online":true,"cpus":"4-7","memory":{"unknown_reason":"x"}}"#,
    )
    .unwrap();
    assert_eq!(node.cpus, Known::Yes(CpuSet::parse_list("4-7").unwrap()));
    assert_eq!(node.has_cpus(), Some(true));
    let cpu: Cpu =
        serde_json::from_str(r#"{"id":3,"online":false,"node":null,"core":null}"#).unwrap();
    assert!(cpu.is_offline() && !cpu.is_online());
}

#[test]
fn cpus_that_no_node_lists_may_be_on_a_node_whose_cpus_are_unknown() {
    let mut machine = Machine::empty(Origin::new(SourceKind::Tree, "/tree"), "not gathered");
    assert_eq!(
        machine.cpu_nodes_unknown_reason().as_deref(),
        Some("which nodes there are is unknown: not gathered")
    );
    let node = |id: u32, cpus: Known<CpuSet>| Node::new(NodeId(id), cpus);
    let mut offline = node(2, Known::no("never looked at"));
    offline.online = false;
    machine.nodes = vec![
        node(0, Known::Yes(CpuSet::new())),
        node(1, Known::no("no list")),
        offline,
    ];
    assert_eq!(
        machine.cpu_nodes_unknown_reason().as_deref(),
        Some("the CPUs of node 1 are unknown: no list")
    );
    machine.nodes.remove(1);
    assert_eq!(machine.cpu_nodes_unknown_reason(), None);
}

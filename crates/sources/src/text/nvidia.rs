//! `nvidia-smi topo -m`: how GPUs and network adapters reach each other, and the CPUs and the node next to each GPU.
//!
//! ```text
//!       GPU0  GPU1  NIC0  CPU Affinity    NUMA Affinity  GPU NUMA ID
//! GPU0   X    NV12  PXB   48-63,176-191   3              N/A
//! GPU1  NV12   X    SYS   16-31,144-159   1              N/A
//! NIC0  PXB   SYS    X
//!   NIC0: mlx5_0                                          legend
//! ```
//!
//! The affinity of a GPU are the CPUs of its node (`local_cpulist` of its PCI function). Other nodes, and other CPUs,
//! are not in it, and the PCI addresses are not either.

use std::collections::BTreeMap;

use nearfar_machine::{CpuSet, NodeId};

use super::lines::Line;
use super::{Kind, Reading, Start};
use crate::error::excerpt;
use crate::value;

pub(super) const KIND: Kind = Kind {
    name: "nvidia-smi topo -m",
    has: "the nodes of GPUs and their CPUs",
    starts: &[Start::new(
        &["Affinity"],
        r"(?:^|\W)(GPU\d+\s.*CPU\s+Affinity.*)$",
    )],
    goes_on: r"^\s*(?:(?:GPU|NIC)\d+|mlx\d_\w+)[\s:]",
    read,
};

/// What the line of titles has.
const HEADING: &str = "Affinity";

fn read(lines: &[Line], reading: &mut Reading) -> Result<(), String> {
    let Some((head, rows)) = lines.split_first() else {
        return Err("the table is empty".to_owned());
    };
    let (devices, titles) = head.text.split_once("CPU").unwrap_or((&head.text, ""));
    let devices: Vec<&str> = devices.split_whitespace().collect();
    let has_node = titles.contains("NUMA");
    let mut nodes: BTreeMap<NodeId, CpuSet> = BTreeMap::new();
    let mut no_node = Vec::new();
    reading.is_second(HEADING, head.number);
    for line in rows {
        if line.text.contains(HEADING) && reading.is_second(HEADING, line.number) {
            break;
        }
        let words: Vec<&str> = line.text.split_whitespace().collect();
        let Some((name, cells)) = words.split_first() else {
            continue;
        };
        if !devices.contains(name) || cells.len() <= devices.len() || !cells.contains(&"X") {
            continue;
        }
        let behind = &cells[devices.len()..];
        let Ok(cpus) = CpuSet::parse_list(behind[0]) else {
            if behind[0] != "N/A" {
                let message = format!("{name}: {:?} is not a list of CPUs", excerpt(behind[0]));
                reading.warnings.note_line(line.number, message);
            }
            continue;
        };
        let id = behind.get(1).filter(|_| has_node);
        let Some(id) = id.and_then(|id| value::id(id)) else {
            // A list such as "0-1": the GPU is next to several nodes.
            no_node.push(*name);
            continue;
        };
        let known = nodes.entry(id).or_insert_with(|| cpus.clone());
        if *known != cpus {
            let message = format!(
                "{name} is on node {id} with CPUs {cpus}, and another GPU of it with {known}; the first was taken"
            );
            reading.warnings.note_line(line.number, message);
        }
    }
    if nodes.is_empty() {
        return Err("nvidia-smi's table does not say which node a GPU is on".to_owned());
    }
    reading.set_nodes(nodes);
    if !no_node.is_empty() {
        let message = format!("the table gives {} no single node", no_node.join(", "));
        reading.warnings.note_line(head.number, message);
    }
    Ok(())
}

//! util-linux's view: `lscpu --sysroot`.

use std::path::Path;
use std::process::Command;

use nearfar_machine::CpuSet;

use super::seen::Seen;

/// Its version, where it is installed.
pub fn version() -> Option<String> {
    let output = Command::new("lscpu").arg("--version").output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Reads a tree.
pub fn read(root: &Path) -> Result<Seen, String> {
    let output = Command::new("lscpu")
        .arg("--sysroot")
        .arg(root)
        .env("LC_ALL", "C")
        .output();
    let output = output.map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!(
            "{}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        ));
    }
    Ok(parse(&String::from_utf8_lossy(&output.stdout)))
}

fn parse(text: &str) -> Seen {
    let mut seen = Seen::default();
    for (key, value) in text.lines().filter_map(|line| line.split_once(':')) {
        let (key, value) = (key.trim(), value.trim());
        let node = key
            .strip_prefix("NUMA node")
            .and_then(|rest| rest.strip_suffix(" CPU(s)"));
        if key == "On-line CPU(s) list" {
            seen.online = CpuSet::parse_list(value).ok();
        } else if let Some(node) = node.and_then(|node| node.parse().ok()) {
            seen.node_numbers.insert(node);
            seen.nodes
                .extend(CpuSet::parse_list(value).ok().map(|cpus| (node, cpus)));
        }
    }
    // A node's mask may name CPUs that are not there; what is compared is the CPUs in use.
    if let Some(online) = &seen.online {
        seen.nodes
            .values_mut()
            .for_each(|cpus| *cpus = cpus.intersection(online));
    }
    if seen.node_numbers.is_empty() {
        // No node directories: nearfar's node 0 stands for the machine.
        seen.node_numbers.insert(0);
    }
    seen
}

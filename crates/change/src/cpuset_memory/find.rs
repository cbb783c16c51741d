//! Control groups of the version 2 hierarchy by path or by the name of their unit.

use super::{CpusetMemoryError, MOUNT};
use crate::kind::check_group;
use crate::system::System;

/// How deep groups nest: systemd in a container in a pod in a slice stays below 16.
const MAX_DEPTH: usize = 32;
const MAX_GROUPS: usize = 50_000;

/// Whether version 2 is mounted where changes are made. A tree may lack the file that shows it.
pub(super) fn hierarchy(system: &dyn System, tree: bool) -> Result<(), CpusetMemoryError> {
    if system.read(&format!("{MOUNT}/cgroup.controllers")).is_ok() {
        return Ok(());
    }
    match system.list(&format!("{MOUNT}/cpuset")) {
        Ok(_) => Err(CpusetMemoryError::VersionOne),
        Err(_) if tree => Ok(()),
        Err(_) => Err(CpusetMemoryError::NoHierarchy),
    }
}

/// The path, below the mount, of the group with this path or this name: `redis.service`.
pub(super) fn group(
    system: &dyn System,
    tree: bool,
    name: &str,
) -> Result<String, CpusetMemoryError> {
    let path = name.strip_prefix(MOUNT).unwrap_or(name);
    let path = path.trim_matches('/').to_owned();
    check_group(&path)?;
    hierarchy(system, tree)?;
    if is_group(system, &path) {
        return Ok(path);
    }
    let mut groups = match path.contains('/') {
        true => Vec::new(),
        false => named(system, &path)?,
    };
    match groups.len() {
        0 => Err(CpusetMemoryError::NoGroup(name.to_owned())),
        1 => Ok(groups.remove(0)),
        _ => Err(CpusetMemoryError::Ambiguous {
            name: name.to_owned(),
            groups,
        }),
    }
}

fn is_group(system: &dyn System, path: &str) -> bool {
    system.list(&format!("{MOUNT}/{path}")).is_ok()
}

/// Every group whose last name this is.
///
/// # Errors
/// When there are too many groups to look at all of them.
fn named(system: &dyn System, name: &str) -> Result<Vec<String>, CpusetMemoryError> {
    let (mut found, mut left, mut looked_at) = (Vec::new(), vec![(String::new(), 0)], 0);
    while let Some((path, depth)) = left.pop() {
        // The kernel's files are no directories.
        let Ok(entries) = system.list(&format!("{MOUNT}/{path}")) else {
            continue;
        };
        looked_at += 1;
        if looked_at > MAX_GROUPS {
            return Err(CpusetMemoryError::TooManyGroups {
                name: name.to_owned(),
                limit: MAX_GROUPS,
            });
        }
        for entry in entries {
            let below = match path.is_empty() {
                true => entry.clone(),
                false => format!("{path}/{entry}"),
            };
            if entry == name && is_group(system, &below) {
                found.push(below.clone());
            }
            if depth < MAX_DEPTH {
                left.push((below, depth + 1));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The file of the highest group above this one that does not enable the cpuset controller below itself.
pub(super) fn without_cpuset(system: &dyn System, group: &str) -> String {
    let ends = group.match_indices('/').map(|(end, _)| end);
    let groups_above = std::iter::once("").chain(ends.map(|end| &group[..end]));
    let files = groups_above.map(|above| match above {
        "" => format!("{MOUNT}/cgroup.subtree_control"),
        above => format!("{MOUNT}/{above}/cgroup.subtree_control"),
    });
    let mut last = String::new();
    for file in files {
        let enabled = system.read(&file).unwrap_or_default();
        let mut names = enabled.split(u8::is_ascii_whitespace);
        let has_cpuset = names.any(|name| name == b"cpuset");
        last = file;
        if !has_cpuset {
            break;
        }
    }
    last
}

//! Caches of sparc64: `cpuN/l1_dcache_size`, `l1_icache_size`, `l2_cache_size`, each with a `..._line_size`, in bytes
//! (arch/sparc/kernel/sysfs.c). Which CPUs share them is not reported; the first level is taken as the core's, and the second
//! too, since nothing says that it is wider.

use nearfar_machine::{Cache, CacheKind, CpuId, CpuSet, Known};

use super::super::cpus::DIRECTORY;
use super::super::topology::Group;
use crate::tree::{Directory, Tree};
use crate::value;

const FILES: [(&str, u32, CacheKind); 3] = [
    ("l1_dcache", 1, CacheKind::Data),
    ("l1_icache", 1, CacheKind::Instruction),
    ("l2_cache", 2, CacheKind::Unified),
];

pub(super) fn read(tree: &Tree, online: &CpuSet, cores: &[Group]) -> Vec<Cache> {
    let Ok(directory) = tree.directory(DIRECTORY) else {
        return Vec::new();
    };
    let has_any = |cpu: CpuId| directory.exists(&format!("cpu{cpu}/l1_dcache_size"));
    if !online.first().is_some_and(has_any) {
        return Vec::new();
    }
    let alone: Vec<CpuSet> = match cores.is_empty() {
        true => online.iter().map(CpuSet::single).collect(),
        false => cores.iter().map(|core| core.cpus.clone()).collect(),
    };
    alone
        .iter()
        .flat_map(|cpus| {
            FILES
                .iter()
                .filter_map(|file| cache(&directory, cpus, file))
        })
        .collect()
}

fn cache(
    directory: &Directory<'_>,
    cpus: &CpuSet,
    (name, level, kind): &(&str, u32, CacheKind),
) -> Option<Cache> {
    let cpu = cpus.first()?;
    let number = |what| {
        directory
            .with_bytes(&format!("cpu{cpu}/{name}_{what}"), value::natural)
            .ok()?
            .ok()
    };
    Some(Cache {
        level: *level,
        kind: *kind,
        cpus: cpus.clone(),
        size_bytes: Known::Yes(number("size")?),
        line_bytes: number("line_size").and_then(|line| line.try_into().ok()),
        ways: None,
    })
}

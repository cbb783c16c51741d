//! Caches of s390 kernels without cache directories: lines of `/proc/cpuinfo` such as
//! `cache0 : level=1 type=Data scope=Private size=96K line_size=256 associativity=6` (arch/s390/kernel/cache.c).

use nearfar_machine::{Cache, CacheKind, CpuSet, Known};

use super::{kind, level, size};

/// The private caches, one for each CPU; which CPUs share the others is not reported, so they are left out.
pub(super) fn parse(lines: &[String], online: &CpuSet) -> Vec<Cache> {
    let described: Vec<Cache> = lines.iter().filter_map(|line| private(line)).collect();
    let each = |cache: &Cache| {
        let of = |cpu| Cache {
            cpus: CpuSet::single(cpu),
            ..cache.clone()
        };
        online.iter().map(of).collect::<Vec<_>>()
    };
    described
        .iter()
        .take(super::MOST_INDEXES)
        .flat_map(each)
        .collect()
}

fn private(line: &str) -> Option<Cache> {
    let field = |name: &str| {
        line.split_ascii_whitespace()
            .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
            .map(str::as_bytes)
    };
    let number = |name| std::str::from_utf8(field(name)?).ok()?.parse().ok();
    (field("scope")? == b"Private").then(|| {
        Some(Cache {
            level: level(field("level")?).ok()?,
            kind: field("type")
                .and_then(|text| kind(text).ok())
                .unwrap_or(CacheKind::Unified),
            cpus: CpuSet::new(),
            size_bytes: Known::Yes(size(field("size")?).ok()?),
            line_bytes: number("line_size"),
            ways: number("associativity"),
        })
    })?
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_machine::CpuId;

    #[test]
    fn only_private_caches_have_an_owner() {
        let lines = [
            "level=1 type=Data scope=Private size=96K line_size=256 associativity=6",
            "level=3 type=Unified scope=Shared size=24576K line_size=256 associativity=12",
            "level=1 type=Data scope=Private",
        ];
        let caches = parse(
            &lines.map(str::to_owned),
            &CpuSet::range(CpuId(0), CpuId(1)),
        );
        assert_eq!(caches.len(), 2);
        assert_eq!(caches[1].size_bytes, Known::Yes(96 << 10));
        assert_eq!((caches[1].line_bytes, caches[1].ways), (Some(256), Some(6)));
        assert_eq!(caches[1].cpus, CpuSet::single(CpuId(1)));
    }
}

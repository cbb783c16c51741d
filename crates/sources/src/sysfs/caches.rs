//! Caches between the CPUs and memory: `/sys/devices/system/cpu/cpuN/cache/indexM/`, and for architectures whose kernel
//! has no such directories what else says it.
//!
//! powerpc has them in the device tree. Linux numbers the threads in the order of the CPU nodes; `cpuN/physical_id` has the hardware
//! number, where it exists.
//!
//! ```text
//! cpus/PowerPC,POWER7@0/   ibm,ppc-interrupt-server#s   hardware numbers of its threads
//!                          d-cache-size, i-cache-size   its first level
//!                          l2-cache                     a phandle: the node of the next level
//! cpus/l2-cache@2000/      phandle, d-cache-size, l2-cache (the level after it)
//! ```
//!
//! s390 has lines of `/proc/cpuinfo` such as `cache0 : level=1 type=Data scope=Private size=96K line_size=256 associativity=6`
//! (arch/s390/kernel/cache.c).
//!
//! sparc64 has `cpuN/l1_dcache_size`, `l1_icache_size`, `l2_cache_size`, each with a `..._line_size`, in bytes
//! (arch/sparc/kernel/sysfs.c). Which CPUs share them is not reported; the first level is taken as the core's, and the second
//! too, since nothing says that it is wider.

use std::collections::BTreeMap;

use nearfar_machine::{Cache, CacheKind, CpuId, CpuSet, Known};

use super::cpuinfo::CpuInfo;
use super::cpus::{DIRECTORY, Group};
use crate::tree::{Directory, Reason, Tree};
use crate::value::{self, ValueError};

/// No CPU has as many caches; a guard against trees that do.
const MOST_INDEXES: usize = 16;

/// So many numbers are tried before a CPU is believed to have no more caches.
const FEW_INDEXES: usize = 4;

/// Reads the caches of a package's CPUs. A core is asked at its first CPU only, unless the caches found there do not
/// cover its other CPUs. Where all cores are of one kind, a cache of the same number and size as the one before has its
/// level, kind, line size and ways too.
pub(super) fn read(
    directory: &Directory<'_>,
    cpus: &CpuSet,
    online: &CpuSet,
    cores: &[Group],
    one_kind: bool,
) -> Vec<Cache> {
    let mut reader = CacheReader {
        directory,
        online,
        one_kind,
        found: Vec::new(),
        latest: Vec::new(),
    };
    let mut asked = CpuSet::new();
    for core in cores {
        let Some(leader) = core.cpus.first() else {
            continue;
        };
        let found = reader.caches_of(leader, &core.cpus);
        let covers = |&index: &usize| core.cpus.is_subset(&reader.found[index].cpus);
        match found.iter().all(covers) {
            true => asked.extend(core.cpus.iter()),
            false => _ = asked.insert(leader),
        }
    }
    for cpu in cpus.difference(&asked).iter() {
        reader.caches_of(cpu, &CpuSet::single(cpu));
    }
    reader.found
}

/// What architectures without cache directories have instead.
pub(super) fn elsewhere(
    tree: &Tree,
    cpuinfo: &CpuInfo<'_>,
    online: &CpuSet,
    cores: &[Group],
) -> Vec<Cache> {
    let mut found = sparc_caches(tree, online, cores);
    if found.is_empty() {
        found = powerpc_caches(tree, online);
    }
    if found.is_empty() {
        found = s390_caches(cpuinfo.caches(), online);
    }
    found
}

/// Puts the caches of several packages together: by level and lowest CPU, each once.
pub(super) fn merge(mut caches: Vec<Cache>) -> Vec<Cache> {
    let key = |it: &Cache| (it.level, it.cpus.first(), it.kind, it.cpus.len());
    caches.sort_by_key(key);
    caches.dedup_by(|a, b| a.level == b.level && a.kind == b.kind && a.cpus == b.cpus);
    caches
}

struct CacheReader<'a> {
    directory: &'a Directory<'a>,
    online: &'a CpuSet,
    one_kind: bool,
    found: Vec<Cache>,
    /// For each index directory's number the cache that was found under it last.
    latest: Vec<usize>,
}

impl CacheReader<'_> {
    /// Reads the caches of one CPU; their positions in `found`.
    fn caches_of(&mut self, cpu: CpuId, core: &CpuSet) -> Vec<usize> {
        let Ok(directory) = self.directory.directory(&format!("cpu{cpu}/cache")) else {
            return Vec::new();
        };
        let mut positions = Vec::new();
        let seen = self.latest.len();
        for (index, name) in INDEXES.into_iter().enumerate() {
            let last = index >= seen.max(FEW_INDEXES);
            if last && self.one_kind && seen > 0 {
                break;
            }
            let attributes = Attributes {
                directory: &directory,
                index: name,
            };
            let position = match self.position(&attributes, index, cpu, core) {
                Ok(Some(position)) => position,
                Err(Absent) if last => break,
                // Some CPUs of a mixed machine lack a cache that others have, and the number with it.
                Ok(None) | Err(Absent) => continue,
            };
            if self.latest.len() <= index {
                self.latest.resize(index + 1, usize::MAX);
            }
            self.latest[index] = position;
            positions.push(position);
        }
        positions
    }

    /// Where in `found` one of a CPU's caches is, which may have to be read first.
    fn position(
        &mut self,
        attributes: &Attributes<'_>,
        index: usize,
        cpu: CpuId,
        core: &CpuSet,
    ) -> Result<Option<usize>, Absent> {
        let before = self.latest.get(index).copied();
        let like = before.and_then(|before| self.found.get(before));
        if self.one_kind
            && let Some(like) = like
        {
            // Among cores of one kind a number means the same cache everywhere, unless its size says otherwise.
            if like.cpus.contains(cpu) {
                return Ok(before);
            }
            let Some(cpus) = self.sharers(attributes, cpu, core) else {
                return Ok(None);
            };
            let size_bytes = attributes.size();
            if like.size_bytes == size_bytes {
                return Ok(Some(self.push(Cache {
                    cpus,
                    ..like.clone()
                })));
            }
        }
        let Some(level) = attributes.level()? else {
            return Ok(None);
        };
        if like.is_some_and(|cache| cache.level == level && cache.cpus.contains(cpu)) {
            return Ok(before);
        }
        let Some(cpus) = self.sharers(attributes, cpu, core) else {
            return Ok(None);
        };
        Ok(Some(self.push(attributes.cache(level, cpus))))
    }

    fn push(&mut self, cache: Cache) -> usize {
        self.found.push(cache);
        self.found.len() - 1
    }

    /// The online CPUs behind a cache of one CPU.
    fn sharers(&self, attributes: &Attributes<'_>, cpu: CpuId, core: &CpuSet) -> Option<CpuSet> {
        let list = attributes.read("shared_cpu_list", value::list::<CpuId>);
        let mask = || attributes.read("shared_cpu_map", value::mask);
        let shared = match list {
            Some(list) if list.contains(cpu) => list,
            // ia64 kernels leave the sets of some private caches empty.
            list => mask().or(list)?,
        };
        let mut cpus = shared.intersection(self.online);
        if cpus.is_empty() {
            cpus = core.intersection(self.online);
        }
        if cpus.insert(cpu) {
            let name = attributes.name("shared_cpu_map");
            let message = format!("does not name CPU {cpu} itself");
            attributes.directory.note(&name, message);
        }
        Some(cpus)
    }
}

/// The kernel has no directory of that number.
struct Absent;

/// One of the directories `indexN` of a CPU. Files are opened from the directory above it: opening each would cost more
/// than it saves.
struct Attributes<'a> {
    directory: &'a Directory<'a>,
    index: &'static str,
}

impl Attributes<'_> {
    fn name(&self, attribute: &str) -> String {
        format!("{}/{attribute}", self.index)
    }

    fn read<R>(
        &self,
        attribute: &str,
        parse: impl FnOnce(&[u8]) -> Result<R, ValueError>,
    ) -> Option<R> {
        self.directory.noted(&self.name(attribute), parse)
    }

    /// The cache's level; nothing when it cannot be read or believed.
    fn level(&self) -> Result<Option<u32>, Absent> {
        match self.directory.with_bytes(&self.name("level"), level) {
            Err(Reason::Absent) => Err(Absent),
            Ok(level) => {
                let path = self.directory.below(&self.name("level"));
                Ok(self.directory.tree().parsed(&path, level).known())
            }
            Err(reason) => {
                self.directory.note(&self.name("level"), reason.to_string());
                Ok(None)
            }
        }
    }

    fn size(&self) -> Known<u64> {
        self.directory.known(&self.name("size"), size)
    }

    fn cache(&self, level: u32, cpus: CpuSet) -> Cache {
        let number = |name| self.read(name, value::natural32);
        Cache {
            level,
            kind: self.read("type", kind).unwrap_or(CacheKind::Unified),
            cpus,
            size_bytes: self.size(),
            line_bytes: number("coherency_line_size"),
            ways: number("ways_of_associativity"),
        }
    }
}

/// The names of the directories, so that none is put together four times for each of thousands of CPUs.
const INDEXES: [&str; MOST_INDEXES] = [
    "index0", "index1", "index2", "index3", "index4", "index5", "index6", "index7", "index8",
    "index9", "index10", "index11", "index12", "index13", "index14", "index15",
];

fn level(bytes: &[u8]) -> Result<u32, ValueError> {
    match value::natural32(bytes)? {
        level @ 1..=9 => Ok(level),
        other => {
            let other = other.to_string();
            Err(ValueError::malformed(other, "a cache level (1 to 9)"))
        }
    }
}

fn kind(bytes: &[u8]) -> Result<CacheKind, ValueError> {
    match value::text(bytes)? {
        "Data" => Ok(CacheKind::Data),
        "Instruction" => Ok(CacheKind::Instruction),
        "Unified" => Ok(CacheKind::Unified),
        other => {
            let wanted = "Data, Instruction or Unified; taken as Unified";
            Err(ValueError::malformed(other, wanted))
        }
    }
}

/// `32K`, `16384K`, `1M`, or plain bytes.
fn size(bytes: &[u8]) -> Result<u64, ValueError> {
    let text = value::text(bytes)?;
    nearfar_machine::size::parse(text, 1).ok_or_else(|| ValueError::malformed(text, "a size"))
}

const CPUS: &str = "proc/device-tree/cpus";
/// Levels of caches that are followed, against nodes that point at each other.
const DEEPEST: u32 = 5;
/// Nodes below `cpus` that are looked at.
const MOST_NODES: usize = 8192;

#[derive(Debug, Default, Clone)]
struct Node {
    threads: CpuSet,
    data: Sizes,
    instruction: Sizes,
    next: Option<u32>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Sizes {
    size: Option<u32>,
    line: Option<u32>,
    sets: Option<u32>,
}

fn powerpc_caches(tree: &Tree, online: &CpuSet) -> Vec<Cache> {
    let Ok(names) = tree.list(CPUS) else {
        return Vec::new();
    };
    let hardware = hardware_numbers(tree, online);
    let mut cores = Vec::new();
    let mut by_handle = BTreeMap::new();
    for name in names.iter().take(MOST_NODES) {
        let Ok(directory) = tree.directory(&format!("{CPUS}/{name}")) else {
            continue;
        };
        let node = read_node(&directory, &hardware, online);
        if node.threads.is_empty() {
            let names = ["phandle", "linux,phandle", "ibm,phandle"].into_iter();
            let handles = names.filter_map(|name| cell(&directory, name));
            by_handle.extend(handles.map(|handle| (handle, node.clone())));
        } else {
            cores.push(node);
        }
    }
    gather(&cores, &by_handle)
}

fn gather(cores: &[Node], by_handle: &BTreeMap<u32, Node>) -> Vec<Cache> {
    let mut shared: BTreeMap<(u32, u32), CpuSet> = BTreeMap::new();
    let mut caches = Vec::new();
    for core in cores {
        caches.extend(core.data.cache(1, CacheKind::Data, &core.threads));
        let instruction = core.instruction;
        caches.extend(instruction.cache(1, CacheKind::Instruction, &core.threads));
        let mut next = core.next;
        for level in 2..=DEEPEST {
            let Some(handle) = next else { break };
            let cpus = shared.entry((level, handle)).or_default();
            cpus.extend(core.threads.iter());
            next = by_handle.get(&handle).and_then(|node| node.next);
        }
    }
    let of_handle = |(&(level, ref handle), cpus): (&(u32, u32), &CpuSet)| {
        let sizes = by_handle.get(handle)?.data;
        sizes.cache(level, CacheKind::Unified, cpus)
    };
    caches.extend(shared.iter().filter_map(of_handle));
    caches
}

impl Sizes {
    fn cache(self, level: u32, kind: CacheKind, cpus: &CpuSet) -> Option<Cache> {
        let size = self.size.filter(|&size| size > 0)?;
        let ways = || size.checked_div(self.line?)?.checked_div(self.sets?);
        Some(Cache {
            level,
            kind,
            cpus: cpus.clone(),
            size_bytes: Known::Yes(size.into()),
            line_bytes: self.line,
            // One set means that every line may be anywhere: fully associative, which sysfs writes as 0.
            ways: match self.sets {
                Some(1) => Some(0),
                _ => ways(),
            },
        })
    }
}

fn read_node(directory: &Directory<'_>, hardware: &BTreeMap<u32, CpuId>, online: &CpuSet) -> Node {
    let sizes = |side: &str| Sizes {
        size: cell(directory, &format!("{side}-cache-size")),
        line: cell(directory, &format!("{side}-cache-line-size"))
            .or_else(|| cell(directory, &format!("{side}-cache-block-size"))),
        sets: cell(directory, &format!("{side}-cache-sets")),
    };
    let is_cpu =
        directory.with_bytes("device_type", |bytes| value::text(bytes) == Ok("cpu")) == Ok(true);
    let servers =
        || cells(directory, "ibm,ppc-interrupt-server#s").or_else(|| cells(directory, "reg"));
    let servers = is_cpu.then(servers).flatten().unwrap_or_default();
    let threads = servers.iter().filter_map(|it| hardware.get(it).copied());
    Node {
        threads: threads.filter(|&cpu| online.contains(cpu)).collect(),
        data: sizes("d"),
        instruction: sizes("i"),
        next: cell(directory, "l2-cache").or_else(|| cell(directory, "next-level-cache")),
    }
}

/// Hardware number to CPU. Without `physical_id` the numbers are the same, as on machines with one thread a core.
fn hardware_numbers(tree: &Tree, online: &CpuSet) -> BTreeMap<u32, CpuId> {
    let physical = |cpu: CpuId| {
        let id = tree.value(&format!("{DIRECTORY}/cpu{cpu}/physical_id"), value::natural)?;
        u32::try_from(id).ok()
    };
    let with_number = |cpu| (physical(cpu).unwrap_or(cpu.0), cpu);
    online.iter().map(with_number).collect()
}

/// A property of one 32-bit big-endian cell.
fn cell(directory: &Directory<'_>, name: &str) -> Option<u32> {
    cells(directory, name)?.first().copied()
}

fn cells(directory: &Directory<'_>, name: &str) -> Option<Vec<u32>> {
    directory.with_bytes(name, value::cells).ok()
}

/// The private caches, one for each CPU; which CPUs share the others is not reported, so they are left out.
fn s390_caches(lines: &[String], online: &CpuSet) -> Vec<Cache> {
    let described = lines.iter().filter_map(|line| private(line));
    let each = |cache: Cache| {
        online.iter().map(move |cpu| Cache {
            cpus: CpuSet::single(cpu),
            ..cache.clone()
        })
    };
    described.take(MOST_INDEXES).flat_map(each).collect()
}

fn private(line: &str) -> Option<Cache> {
    let field = |name: &str| {
        let mut words = line.split_ascii_whitespace();
        let value = words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        value.map(str::as_bytes)
    };
    let number = |name| std::str::from_utf8(field(name)?).ok()?.parse().ok();
    field("scope").filter(|scope| *scope == b"Private")?;
    let kind = field("type").and_then(|text| kind(text).ok());
    Some(Cache {
        level: level(field("level")?).ok()?,
        kind: kind.unwrap_or(CacheKind::Unified),
        cpus: CpuSet::new(),
        size_bytes: Known::Yes(size(field("size")?).ok()?),
        line_bytes: number("line_size"),
        ways: number("associativity"),
    })
}

const FILES: [(&str, u32, CacheKind); 3] = [
    ("l1_dcache", 1, CacheKind::Data),
    ("l1_icache", 1, CacheKind::Instruction),
    ("l2_cache", 2, CacheKind::Unified),
];

fn sparc_caches(tree: &Tree, online: &CpuSet, cores: &[Group]) -> Vec<Cache> {
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
    let directory = &directory;
    let of_core = |cpus| {
        FILES
            .iter()
            .filter_map(move |file| cache(directory, cpus, file))
    };
    alone.iter().flat_map(of_core).collect()
}

fn cache(
    directory: &Directory<'_>,
    cpus: &CpuSet,
    (name, level, kind): &(&str, u32, CacheKind),
) -> Option<Cache> {
    let cpu = cpus.first()?;
    let number = |what| {
        let read = directory.with_bytes(&format!("cpu{cpu}/{name}_{what}"), value::natural);
        read.ok()?.ok()
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

#[cfg(test)]
mod tests {
    use nearfar_machine::CpuId;

    use super::*;

    #[test]
    fn only_private_caches_have_an_owner() {
        let lines = [
            "level=1 type=Data scope=Private size=96K line_size=256 associativity=6",
            "level=3 type=Unified scope=Shared size=24576K line_size=256 associativity=12",
            "level=1 type=Data scope=Private",
        ];
        let caches = s390_caches(
            &lines.map(str::to_owned),
            &CpuSet::range(CpuId(0), CpuId(1)),
        );
        assert_eq!(caches.len(), 2);
        assert_eq!(caches[1].size_bytes, Known::Yes(96 << 10));
        assert_eq!((caches[1].line_bytes, caches[1].ways), (Some(256), Some(6)));
        assert_eq!(caches[1].cpus, CpuSet::single(CpuId(1)));
    }
}

//! Caches between the CPUs and memory: `/sys/devices/system/cpu/cpuN/cache/indexM/`, and for architectures whose kernel
//! has no such directories what else says it.

mod device_tree;
mod s390;
mod sparc;

use nearfar_machine::{Cache, CacheKind, CpuId, CpuSet, Known};

use super::attribute;
use super::cpuinfo::CpuInfo;
use super::notes::{Notes, read_noted};
use super::topology::Group;
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
    notes: &Notes,
) -> Vec<Cache> {
    let mut reader = Reader {
        directory,
        online,
        one_kind,
        notes,
        found: Vec::new(),
        latest: Vec::new(),
    };
    let mut asked = CpuSet::new();
    for core in cores {
        let Some(leader) = core.cpus.first() else {
            continue;
        };
        let found = reader.caches_of(leader, &core.cpus);
        let covered = found
            .iter()
            .all(|&index| core.cpus.is_subset(&reader.found[index].cpus));
        if covered {
            asked.extend(core.cpus.iter());
        } else {
            asked.insert(leader);
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
    let sparc = sparc::read(tree, online, cores);
    if !sparc.is_empty() {
        return sparc;
    }
    let powerpc = device_tree::read(tree, online);
    if powerpc.is_empty() {
        s390::parse(cpuinfo.caches(), online)
    } else {
        powerpc
    }
}

/// Puts the caches of several packages together: by level and lowest CPU, each once.
pub(super) fn merge(mut caches: Vec<Cache>) -> Vec<Cache> {
    caches.sort_by_key(|cache| {
        (
            cache.level,
            cache.cpus.first(),
            cache.kind,
            cache.cpus.len(),
        )
    });
    caches.dedup_by(|a, b| a.level == b.level && a.kind == b.kind && a.cpus == b.cpus);
    caches
}

struct Reader<'a> {
    directory: &'a Directory<'a>,
    online: &'a CpuSet,
    one_kind: bool,
    notes: &'a Notes,
    found: Vec<Cache>,
    /// For each index directory's number the cache that was found under it last.
    latest: Vec<usize>,
}

impl Reader<'_> {
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
                notes: self.notes,
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
            let place = attributes.display("shared_cpu_map");
            self.notes
                .note(place, format!("does not name CPU {cpu} itself"));
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
    notes: &'a Notes,
}

impl Attributes<'_> {
    fn name(&self, attribute: &str) -> String {
        format!("{}/{attribute}", self.index)
    }

    fn display(&self, attribute: &str) -> String {
        self.directory.display(&self.name(attribute))
    }

    fn read<R>(
        &self,
        attribute: &str,
        parse: impl FnOnce(&[u8]) -> Result<R, ValueError>,
    ) -> Option<R> {
        read_noted(self.directory, &self.name(attribute), self.notes, parse)
    }

    /// The cache's level; nothing when it cannot be read or believed.
    fn level(&self) -> Result<Option<u32>, Absent> {
        match self.directory.with_bytes(&self.name("level"), level) {
            Ok(level) => Ok(self.notes.known(|| self.display("level"), level).known()),
            Err(Reason::Absent) => Err(Absent),
            Err(reason) => {
                self.notes.note(self.display("level"), reason.to_string());
                Ok(None)
            }
        }
    }

    fn size(&self) -> Known<u64> {
        attribute::known(self.directory, &self.name("size"), self.notes, size)
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
        other => Err(ValueError::malformed(
            other.to_string(),
            "a cache level (1 to 9)",
        )),
    }
}

fn kind(bytes: &[u8]) -> Result<CacheKind, ValueError> {
    match value::text(bytes)? {
        "Data" => Ok(CacheKind::Data),
        "Instruction" => Ok(CacheKind::Instruction),
        "Unified" => Ok(CacheKind::Unified),
        other => Err(ValueError::malformed(
            other,
            "Data, Instruction or Unified; taken as Unified",
        )),
    }
}

/// `32K`, `16384K`, `1M`, or plain bytes.
fn size(bytes: &[u8]) -> Result<u64, ValueError> {
    let text = value::text(bytes)?;
    nearfar_machine::size::parse(text, 1).ok_or_else(|| ValueError::malformed(text, "a size"))
}

//! Which memory of processes is used: DAMON, the kernel's access monitor (Documentation/admin-guide/mm/damon/usage.rst), looks at a few
//! thousand random pages twenty times a second.
//!
//! ```text
//! maps ──► a page of each part ──► move_pages(2): its node ──► a region of DAMON, one page large ──► looks that found it accessed
//!                                                                                                         │
//!                                                                        shares of the nodes, their error ┘
//! ```
//!
//! DAMON by itself divides the addresses into few large regions, and does not say on which nodes the accessed pages of a region are. A
//! region of one page is never split nor merged: the sample is nearfar's own, and so is its error.
//!
//! A look clears the mark that the CPU sets in the page table when it walks it, and flushes no TLB: a page whose entry stays in the TLB
//! between two looks seems unused. Twenty looks a second leave time for other entries to replace it. The mark of a huge page is of all
//! its bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nearfar_change::lease::{Lease, LeaseError};
use nearfar_machine::{Known, MemorySample, NodeBytes, NodeId, UsedMemory};
use nearfar_proc::damon::{self, KDAMONDS};
use nearfar_proc::error_text;
use nearfar_proc::maps::Addresses;
use nearfar_proc::move_pages::{node_of, where_are};
use nearfar_proc::resident::{Page, PageSample};
use nearfar_proc::tasks::{self, OpenProcess};
use nearfar_statistics::strata::{self, Draw};

/// Modules that keep DAMON to themselves while they are on.
const EXCLUSIVE: [&str; 3] = ["damon_stat", "damon_reclaim", "damon_lru_sort"];
/// Pages of all processes together: one thread of the kernel looks at each of them.
const MAX_PAGES: u64 = 9604;
/// Of one process: an error of 2 points where all are used alike, and 10 where a twentieth is.
const MAX_PAGES_EACH: u64 = 2401;
/// Processes that are watched at once.
pub const MAX_TASKS: usize = 8;
const LOOK: Duration = Duration::from_millis(50);
/// After so many looks the kernel is asked what they found. It does not answer before, whatever signal comes.
const LOOKS: u32 = 20;
/// Answers without any page: the looks took the kernel longer than it waits.
const MAX_EMPTY: u32 = 3;

/// Why nothing can be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    #[error("this kernel has no DAMON that {KDAMONDS} sets (CONFIG_DAMON_SYSFS)")]
    NoDamon,
    #[error("DAMON of this kernel cannot watch addresses of a process (CONFIG_DAMON_VADDR)")]
    NoAddresses,
    #[error("DAMON of this kernel does not say which pages were accessed (since Linux 6.2)")]
    NoRegions,
    #[error("DAMON is in use: {0}")]
    InUse(String),
    #[error(transparent)]
    Lease(#[from] LeaseError),
    #[error("cannot {doing} {}: {}", path.display(), error_text(.error))]
    File {
        doing: &'static str,
        path: PathBuf,
        error: io::Error,
    },
    #[error("DAMON looked at {found} pages where {asked} were asked for")]
    OtherRegions { asked: usize, found: usize },
}

/// A process of the running system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watched {
    pub pid: i32,
    /// When it began, in clock ticks since boot, where that is known.
    pub start: Option<u64>,
    /// What it has in memory.
    pub bytes: u64,
}

/// Whether processes can be watched here.
///
/// # Errors
/// As [`watch`].
pub fn check() -> Result<(), WatchError> {
    let damon = Damon::find()?;
    let mut lease = Lease::take("look what DAMON can do")?;
    damon.thread(&mut lease).map(drop)
}

/// Watches processes for so long, and up to a second more for each second, and says what each used.
///
/// # Errors
/// Without DAMON, without root, or while something else uses DAMON. Of a process that ends, or of which a sample shows too little, what
/// it used is unknown.
pub fn watch(
    tasks: &[Watched],
    duration: Duration,
) -> Result<BTreeMap<i32, Known<UsedMemory>>, WatchError> {
    let damon = Damon::find()?;
    let wanted = MAX_PAGES / tasks.len().max(1) as u64;
    let mut used = BTreeMap::new();
    let mut sampled = Vec::new();
    for task in tasks {
        match Sampled::draw(*task, wanted.min(MAX_PAGES_EACH)) {
            Ok(it) => sampled.push(it),
            Err(reason) => drop(used.insert(task.pid, Known::no(reason))),
        }
    }
    while !sampled.is_empty() {
        let watched = damon.looks(&sampled, duration);
        let (alive, ended): (Vec<_>, Vec<_>) =
            sampled.into_iter().partition(|it| it.process.is_alive());
        let is_one_gone = !ended.is_empty();
        let gone = ended.iter().map(|it| it.process.pid());
        used.extend(gone.map(|pid| (pid, Known::no("it ended while it was watched"))));
        match watched {
            Ok(seen) => {
                used.extend(alive.iter().map(|it| (it.process.pid(), it.used(&seen))));
                return Ok(used);
            }
            // DAMON ends with the last process, and refuses one that has ended.
            Err(_) if is_one_gone => sampled = alive,
            Err(error) => return Err(error),
        }
    }
    Ok(used)
}

/// How many looks found each page accessed, by process and address.
struct Seen {
    looks: BTreeMap<(i32, u64), u32>,
    watched: Duration,
}

/// A page of each part of a process's addresses.
struct Sampled {
    process: OpenProcess,
    bytes: u64,
    parts: Vec<Option<Page>>,
}

impl Sampled {
    fn draw(task: Watched, wanted: u64) -> Result<Self, String> {
        let failed = |error: io::Error| error_text(&error);
        let process = OpenProcess::open(task.pid).map_err(failed)?;
        if task.start.is_some_and(|start| start != process.start()) {
            return Err("it ended before it was watched".to_owned());
        }
        let maps = BufReader::new(tasks::open(task.pid, "maps").map_err(failed)?);
        let addresses = Addresses::read(maps, page_bytes()).map_err(failed)?;
        let mut rng = fastrand::Rng::new();
        let locate = |pages: &[u64]| where_are(task.pid, pages);
        let drawn = PageSample::draw(&addresses, wanted, locate, |range| rng.u64(range));
        let drawn = drawn.map_err(failed)?;
        if !drawn.is_whole(task.bytes) {
            return Err("a sample of its addresses finds too little of its memory".to_owned());
        }
        // The number of draws was a guess.
        let surplus = pages(&drawn.parts).count().saturating_sub(wanted as usize);
        let found = (0..drawn.parts.len()).filter(|&part| drawn.parts[part].is_some());
        let surplus: BTreeSet<usize> = rng.choose_multiple(found, surplus).into_iter().collect();
        let parts = drawn.parts.into_iter().enumerate();
        let parts = parts.filter(|(part, _)| !surplus.contains(part));
        let parts = parts.map(|(_, page)| page).collect();
        Ok(Self {
            process,
            bytes: task.bytes,
            parts,
        })
    }

    /// By where its pages are now: those that moved meanwhile are the ones that it uses.
    fn used(&self, seen: &Seen) -> Known<UsedMemory> {
        let pid = self.process.pid();
        let addresses: Vec<u64> = pages(&self.parts).map(|page| page.address).collect();
        let nodes = match where_are(pid, &addresses) {
            Ok(nodes) => nodes,
            Err(error) => return Known::no(error_text(&error)),
        };
        let mut nodes = nodes.into_iter().map(node_of);
        let look = |part: &Option<Page>| {
            let address = part.as_ref()?.address;
            let node = nodes.next().flatten()?;
            Some((node, *seen.looks.get(&(pid, address))?))
        };
        let parts: Vec<_> = self.parts.iter().map(look).collect();
        used_of(&parts, self.bytes, seen.watched)
    }
}

fn pages(parts: &[Option<Page>]) -> impl Iterator<Item = &Page> {
    parts.iter().flatten()
}

/// What was used of so much memory, from pages with their node and how many looks found each accessed.
fn used_of(parts: &[Option<(NodeId, u32)>], bytes: u64, watched: Duration) -> Known<UsedMemory> {
    let nodes: BTreeSet<NodeId> = parts.iter().flatten().map(|it| it.0).collect();
    let nodes: Vec<NodeId> = nodes.into_iter().collect();
    // Of two categories: accessed or not.
    let is_accessed =
        |part: &Option<(NodeId, u32)>| Some(Draw::of(usize::from(part.as_ref()?.1 > 0)));
    let all: Vec<_> = parts.iter().map(is_accessed).collect();
    let Some(accessed) = strata::shares(&all, 2) else {
        return Known::no("none of the pages that were watched is left");
    };
    let part = |share: f64| (share * bytes as f64) as u64;
    let used = accessed.shares[1];
    let weighted = |part: &Option<(NodeId, u32)>| {
        let (node, looks) = part.as_ref()?;
        Some(Draw {
            category: nodes.binary_search(node).ok()?,
            weight: f64::from(*looks),
        })
    };
    let weighted: Vec<_> = parts.iter().map(weighted).collect();
    let by_node = strata::shares(&weighted, nodes.len());
    let on_nodes = by_node.iter().flat_map(|it| nodes.iter().zip(&it.shares));
    let on_node = |(&node, &share): (&NodeId, &f64)| NodeBytes {
        node,
        bytes: part(used * share),
    };
    Known::Yes(UsedMemory {
        watched_ms: u64::try_from(watched.as_millis()).unwrap_or(u64::MAX),
        bytes: part(used),
        error_bytes: part(accessed.errors[1]),
        nodes: on_nodes.filter(|it| *it.1 > 0.0).map(on_node).collect(),
        sample: MemorySample {
            pages: by_node.as_ref().map_or(0, |it| it.found as u32),
            error_bytes: by_node.map_or(0, |it| part(used * it.error())),
        },
    })
}

fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// The kernel's files of DAMON, which nothing uses.
struct Damon {
    directory: PathBuf,
}

impl Damon {
    fn find() -> Result<Self, WatchError> {
        let directory = PathBuf::from(KDAMONDS);
        let path = directory.join("nr_kdamonds");
        match fs::read(&path) {
            Ok(text) if text.trim_ascii() == b"0" => Ok(Self { directory }),
            Ok(text) => {
                let text = String::from_utf8_lossy(text.trim_ascii());
                Err(WatchError::InUse(format!("{} is {text}", path.display())))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(WatchError::NoDamon),
            Err(error) => Err(failed("read", &path)(error)),
        }
    }

    /// A thread that can watch addresses of processes, and does not run.
    fn thread(&self, lease: &mut Lease) -> Result<Files, WatchError> {
        lease.set_file(&self.directory.join("nr_kdamonds"), b"1")?;
        let thread = Files(self.directory.join("0"));
        thread.set("contexts/nr_contexts", 1)?;
        let context = thread.below("contexts/0");
        let operations = context.get("avail_operations")?;
        if !operations.lines().any(|it| it == "fvaddr") {
            return Err(WatchError::NoAddresses);
        }
        context.set("operations", "fvaddr")?;
        context.set("schemes/nr_schemes", 1)?;
        match context.0.join("schemes/0/tried_regions").exists() {
            true => Ok(thread),
            false => Err(WatchError::NoRegions),
        }
    }

    /// One thread of the kernel watches all processes, each being a target.
    fn looks(&self, sampled: &[Sampled], duration: Duration) -> Result<Seen, WatchError> {
        let asked: Vec<(i32, u64)> = sampled
            .iter()
            .flat_map(|task| pages(&task.parts).map(|page| (task.process.pid(), page.address)))
            .collect();
        let mut lease = Lease::take("watch which memory is used")?;
        let thread = self.thread(&mut lease)?;
        let scheme = configure(&thread, sampled, asked.len())?;
        let started = lease.set_file(&thread.0.join("state"), b"on");
        started.map_err(|error| exclusive_use().map_or(error.into(), WatchError::InUse))?;
        let begun = Instant::now();
        let mut looks: BTreeMap<(i32, u64), u32> = BTreeMap::new();
        let mut empty = 0;
        while begun.elapsed() < duration || looks.is_empty() {
            thread.set("state", "update_schemes_tried_regions")?;
            let found = scheme.below("tried_regions").regions()?;
            if found.is_empty() && empty < MAX_EMPTY {
                empty += 1;
                continue;
            }
            if !found.iter().map(|it| it.0).eq(asked.iter().map(|it| it.1)) {
                return Err(WatchError::OtherRegions {
                    asked: asked.len(),
                    found: found.len(),
                });
            }
            for (page, (_, more)) in asked.iter().zip(found) {
                *looks.entry(*page).or_default() += more;
            }
        }
        let watched = begun.elapsed();
        let released = lease.release()?;
        tracing::debug!(?released, "DAMON watched");
        Ok(Seen { looks, watched })
    }
}

/// Sets all but whether it runs. Returns the scheme that counts pages.
fn configure(thread: &Files, sampled: &[Sampled], asked: usize) -> Result<Files, WatchError> {
    let context = thread.below("contexts/0");
    let limits = context.below("monitoring_attrs/nr_regions");
    limits.set("max", asked)?;
    limits.set("min", asked)?;
    let intervals = context.below("monitoring_attrs/intervals");
    intervals.set("sample_us", LOOK.as_micros())?;
    intervals.set("aggr_us", (LOOK * LOOKS).as_micros())?;
    // Counts what has any size, any number of accesses and any age: all pages.
    let scheme = context.below("schemes/0");
    scheme.set("action", "stat")?;
    for (what, max) in [
        ("sz", u64::MAX >> 1),
        ("nr_accesses", u64::from(u32::MAX)),
        ("age", u64::from(u32::MAX)),
    ] {
        scheme.set(&format!("access_pattern/{what}/max"), max)?;
    }
    context.set("targets/nr_targets", sampled.len())?;
    for (index, task) in sampled.iter().enumerate() {
        let target = context.below(&format!("targets/{index}"));
        target.set("pid_target", task.process.pid())?;
        target.set("regions/nr_regions", pages(&task.parts).count())?;
        for (index, page) in pages(&task.parts).enumerate() {
            let region = target.below(&format!("regions/{index}"));
            region.set("start", page.address)?;
            region.set("end", page.address + page_bytes())?;
        }
    }
    Ok(scheme)
}

/// Why DAMON refuses to run for others.
fn exclusive_use() -> Option<String> {
    let is_on = |path: &String| fs::read(path).is_ok_and(|it| it.starts_with(b"Y"));
    let mut paths = EXCLUSIVE
        .iter()
        .map(|name| format!("/sys/module/{name}/parameters/enabled"));
    paths.find(is_on).map(|path| format!("{path} is Y"))
}

fn failed<'a>(doing: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> WatchError + 'a {
    move |error| WatchError::File {
        doing,
        path: path.to_owned(),
        error,
    }
}

/// A directory of settings that goes with the kernel's thread.
struct Files(PathBuf);

impl Files {
    fn below(&self, path: &str) -> Self {
        Self(self.0.join(path))
    }

    fn set(&self, name: &str, value: impl ToString) -> Result<(), WatchError> {
        let (path, value) = (self.0.join(name), value.to_string());
        damon::once_free(|| fs::write(&path, &value)).map_err(failed("write", &path))
    }

    fn get(&self, name: &str) -> Result<String, WatchError> {
        let path = self.0.join(name);
        fs::read_to_string(&path).map_err(failed("read", &path))
    }

    /// The first address of each region in the kernel's order, and how many looks found it accessed.
    fn regions(&self) -> Result<Vec<(u64, u32)>, WatchError> {
        let number = |region: &Self, name: &str| -> Result<u64, WatchError> {
            let text = region.get(name)?;
            let number = text.trim().parse().map_err(io::Error::other);
            number.map_err(failed("read", &region.0.join(name)))
        };
        let mut found = Vec::new();
        loop {
            let region = self.below(&found.len().to_string());
            if !region.0.exists() {
                return Ok(found);
            }
            let looks = number(&region, "nr_accesses")?;
            let looks = u32::try_from(looks).unwrap_or(u32::MAX);
            found.push((number(&region, "start")?, looks));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn used(parts: &[Option<(u32, u32)>]) -> Known<UsedMemory> {
        let part = |part: &Option<(u32, u32)>| part.map(|(node, looks)| (NodeId(node), looks));
        let parts: Vec<_> = parts.iter().map(part).collect();
        used_of(&parts, 1000 * MIB, Duration::from_millis(2050))
    }

    #[test]
    fn what_was_accessed_is_divided_as_the_looks_found_it() {
        // A quarter of what is in memory was accessed; on node 2 three times as often.
        let parts: Vec<_> = (0..400)
            .flat_map(|at| match at {
                0..50 => [Some((0, 10)), None],
                50..100 => [Some((2, 30)), None],
                _ => [Some((2, 0)), None],
            })
            .collect();
        let used = used(&parts).known().unwrap();
        assert_eq!((used.watched_ms, used.bytes), (2050, 250 * MIB));
        let nodes: Vec<_> = used.nodes.iter().map(|on| (on.node.0, on.bytes)).collect();
        assert_eq!(nodes, [(0, 125 * MIB / 2), (2, 375 * MIB / 2)]);
        assert_eq!(used.sample.pages, 100);
        // Blocks that are alike: hardly any two neighbours differ.
        assert!((1..60 * MIB).contains(&used.error_bytes), "{used:?}");
        assert!((1..60 * MIB).contains(&used.sample.error_bytes), "{used:?}");
    }

    #[test]
    fn no_access_is_no_memory_used_and_no_page_is_unknown() {
        let idle = used(&[Some((0, 0)); 300]).known().unwrap();
        assert_eq!((idle.bytes, idle.nodes.len(), idle.sample.pages), (0, 0, 0));
        // At most a hundredth, by the rule of three.
        assert!((9 * MIB..11 * MIB).contains(&idle.error_bytes), "{idle:?}");
        assert!(used(&[None, None]).get().is_none());
        assert!(used(&[]).get().is_none());
    }

    #[test]
    fn a_process_that_is_another_or_gone_is_not_watched() {
        let pid = std::process::id().cast_signed();
        let start = OpenProcess::open(pid).unwrap().start();
        let task = |pid, start| Watched {
            pid,
            start: Some(start),
            bytes: MIB,
        };
        let reason = |task| Sampled::draw(task, 500).err();
        assert_eq!(
            reason(task(pid, start + 1)).unwrap(),
            "it ended before it was watched"
        );
        assert_eq!(
            reason(task(i32::MAX, 1)).unwrap(),
            "No such file or directory"
        );
        let huge = Watched {
            bytes: u64::MAX,
            ..task(pid, start)
        };
        assert!(reason(huge).unwrap().contains("too little of its memory"));
    }
}

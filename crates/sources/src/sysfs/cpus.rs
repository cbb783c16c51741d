//! Which CPUs there are, in which state, and which of them share a core, a cluster, a die, a package.
//!
//! ```text
//! possible ⊇ present ⊇ online     /sys/devices/system/cpu/{possible,present,online}
//!              online ⊇ isolated, nohz_full, allowed
//!
//! package   package_cpus_list or core_siblings_list; physical_package_id
//! └─ die    die_cpus_list
//!    └─ cluster   cluster_cpus_list
//!       └─ core   core_cpus_list or thread_siblings_list; core_id
//! ```
//!
//! Kernels before 2.6.26 have none of the files of states: there the directories `cpuN` are counted, of which each says in its
//! own `online` file whether it is; without sysfs `/proc/cpuinfo` is what is left. In a tree of which none of this was
//! gathered the state of a CPU is unknown.
//!
//! Each list of siblings is read once, from the first CPU that no list covers yet: on a machine of 4096 CPUs that saves three of
//! four reads. Packages do not share anything, so they are what is read on several threads.

use std::collections::BTreeMap;

use nearfar_machine::{Cache, Cpu, CpuId, CpuSet, CpuStates, Known, MAX_NUMBER, Node, NodeId};

use super::cpuinfo::{self, CpuInfo, Place};
use super::{caches, nodes};
use crate::tree::{Directory, Tree};
use crate::{parallel, value};

/// Where sysfs has the CPUs.
pub(super) const DIRECTORY: &str = "sys/devices/system/cpu";

/// The CPUs of a tree by number.
#[derive(Debug, Default)]
pub(super) struct CpuNumbers {
    /// CPUs that are there, online or not.
    pub(super) present: CpuSet,
    pub(super) online: CpuSet,
    /// CPUs that are there, of which nothing says whether they are online.
    pub(super) unknown: CpuSet,
}

/// Finds the CPUs. Both sets are empty in a tree that names none.
pub(super) fn find(tree: &Tree, cpuinfo: &CpuInfo<'_>) -> CpuNumbers {
    let directory = tree.directory(DIRECTORY).ok();
    let read = |name: &str| set(directory.as_ref()?, name);
    let mut present = read("present").unwrap_or_default();
    let mut online = read("online").unwrap_or_default();
    let mut unknown = CpuSet::new();
    if online.is_empty() {
        let there = directory.map(|directory| by_directory(&directory, tree.is_live()));
        let there = there.unwrap_or_default();
        present.extend(there.present.iter());
        online = there.online;
        // What the directories leave open: it names the online ones.
        let listed = match online.is_empty() || !there.unknown.is_empty() {
            true => cpuinfo.processors(),
            false => CpuSet::new(),
        };
        online.extend(listed.iter());
        if listed.is_empty() {
            unknown = present.difference(&there.present).union(&there.unknown);
        }
    }
    if !present.is_empty() && !online.is_subset(&present) {
        let message =
            format!("online CPUs are {online}, present ones {present}; both are taken as present");
        tree.note("sys/devices/system/cpu/online", message);
    }
    present.extend(online.iter());
    CpuNumbers {
        unknown: unknown.difference(&online),
        present,
        online,
    }
}

/// The sets of CPUs that have a state. `online` is what [`find`] found.
pub(super) fn states(tree: &Tree, online: CpuSet) -> CpuStates {
    let directory = tree.directory(DIRECTORY).ok();
    let read = |name: &'static str| -> Known<CpuSet> {
        let found = directory.as_ref().and_then(|it| set(it, name));
        let path = || tree.display(&format!("{DIRECTORY}/{name}"));
        Known::from_option(found, || format!("no file {}", path()))
    };
    let possible = match read("possible") {
        Known::Yes(possible) if !online.is_subset(&possible) => {
            let message =
                format!("possible CPUs are {possible}, but {online} are online; all are possible");
            tree.note("sys/devices/system/cpu/possible", message);
            Known::Yes(possible.union(&online))
        }
        possible => possible,
    };
    const CMDLINE: &str = "proc/cmdline";
    let cmdline = tree.text(CMDLINE).ok();
    let or_boot = |name: &'static str, from: fn(&str) -> Option<CpuSet>| match read(name) {
        Known::No { unknown_reason } => {
            let booted = cmdline.as_deref().and_then(from);
            if booted.is_some() {
                tree.read_instead(format!("{DIRECTORY}/{name}"), CMDLINE);
            }
            Known::from_option(booted, || unknown_reason)
        }
        known => known,
    };
    CpuStates {
        possible,
        isolated: or_boot("isolated", isolated_at_boot),
        nohz_full: match or_boot("nohz_full", |cmdline| boot_list(cmdline, "nohz_full=")) {
            // Both files came with Linux 4.1, but this one only where the kernel was built with tickless CPUs.
            Known::No { .. } if tree.exists(ISOLATED) && !tree.exists(NOHZ_FULL) => {
                Known::Yes(CpuSet::new())
            }
            tickless => tickless,
        },
        // No file in sysfs has it.
        managed_irq: Known::from_option(cmdline.as_deref().and_then(managed_irq_at_boot), || {
            format!("no list of CPUs in {}", tree.display(CMDLINE))
        }),
        allowed: allowed(tree),
        online,
    }
}

const ISOLATED: &str = "sys/devices/system/cpu/isolated";
const NOHZ_FULL: &str = "sys/devices/system/cpu/nohz_full";

/// One of the files that hold a list of CPUs.
fn set(directory: &Directory<'_>, name: &str) -> Option<CpuSet> {
    directory.noted(name, |bytes| {
        // Kernels before 5.x print an unset nohz_full mask so.
        if bytes.trim_ascii() == b"(null)" {
            Ok(CpuSet::new())
        } else {
            value::list(bytes)
        }
    })
}

/// Counts the directories `cpuN`.
fn by_directory(directory: &Directory<'_>, live: bool) -> CpuNumbers {
    let present = numbered_cpus(&directory.names_noted());
    let has_topology = |cpu: &CpuId| directory.exists(&format!("cpu{cpu}/topology"));
    let placed: CpuSet = present.iter().filter(has_topology).collect();
    let says = |cpu: CpuId| directory.noted(&format!("cpu{cpu}/online"), value::natural);
    let (mut online, mut unknown) = (CpuSet::new(), CpuSet::new());
    for cpu in present.iter() {
        // A CPU that cannot be switched off has no file `online`; one that is off has no directory `topology`.
        let is_online = match says(cpu) {
            Some(online) => Some(online != 0),
            None if placed.contains(cpu) => Some(true),
            None => live.then_some(placed.is_empty()),
        };
        match is_online {
            Some(true) => _ = online.insert(cpu),
            Some(false) => {}
            None => _ = unknown.insert(cpu),
        }
    }
    CpuNumbers {
        present,
        online,
        unknown,
    }
}

/// The CPUs of directories named `cpu12`.
fn numbered_cpus(names: &[String]) -> CpuSet {
    let numbers = names.iter().filter_map(|name| number(name, "cpu"));
    numbers.map(CpuId).collect()
}

/// The number in a directory's name, `cpu12` or `node3`; `None` for other names and impossible numbers.
pub(super) fn number(name: &str, prefix: &str) -> Option<u32> {
    let digits = name.strip_prefix(prefix)?;
    let is_plain = digits.bytes().all(|b| b.is_ascii_digit());
    let number = digits.parse().ok()?;
    (is_plain && number <= MAX_NUMBER).then_some(number)
}

/// What the calling thread may run on. An extracted tree's `/proc/self` was that of the program that copied it.
fn allowed(tree: &Tree) -> Known<CpuSet> {
    if !tree.is_live() {
        return Known::no("an extracted tree has no caller");
    }
    Known::from_result(tree.text("proc/thread-self/status")).and_then(|status| {
        let mut lines = status.lines();
        match lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:")) {
            Some(list) => Known::from_result(CpuSet::parse_list(list)),
            None => Known::no("/proc/thread-self/status has no Cpus_allowed_list"),
        }
    })
}

/// A list of CPUs from the boot command line.
fn boot_list(cmdline: &str, parameter: &str) -> Option<CpuSet> {
    CpuSet::parse_list(last_value(cmdline, parameter)?).ok()
}

/// The value of the last parameter of a name on the boot command line.
fn last_value<'a>(cmdline: &'a str, parameter: &str) -> Option<&'a str> {
    let mut words = cmdline.split_whitespace().rev();
    words.find_map(|word| word.strip_prefix(parameter))
}

/// `isolcpus=[flag,...]list` (Documentation/admin-guide/kernel-parameters.txt): flags without `domain` leave the
/// CPUs in the scheduler's balancing.
fn isolated_at_boot(cmdline: &str) -> Option<CpuSet> {
    let (flags, list) = isolcpus(cmdline)?;
    if !flags.is_empty() && !flags.contains(&"domain") {
        return Some(CpuSet::new());
    }
    CpuSet::parse_list(&list).ok()
}

/// The CPUs that `isolcpus=` names with the flag `managed_irq`; none if no such flag is set.
fn managed_irq_at_boot(cmdline: &str) -> Option<CpuSet> {
    match isolcpus(cmdline) {
        Some((flags, list)) if flags.contains(&"managed_irq") => CpuSet::parse_list(&list).ok(),
        _ => Some(CpuSet::new()),
    }
}

/// The flags and the list of the last `isolcpus=`.
fn isolcpus(cmdline: &str) -> Option<(Vec<&str>, String)> {
    let value = last_value(cmdline, "isolcpus=")?;
    let is_flag = |part: &&str| part.starts_with(|c: char| c.is_ascii_alphabetic());
    let flags = value.split(',').take_while(is_flag).collect();
    let list: Vec<&str> = value.split(',').skip_while(is_flag).collect();
    Some((flags, list.join(",")))
}

/// Intel's hybrid machines have a performance counter unit for each kind of core.
const HYBRID: [&str; 3] = [
    "sys/devices/cpu_core",
    "sys/devices/cpu_atom",
    "sys/devices/cpu_lowpower",
];

/// What a group of CPUs has in common, as it is found at its lowest CPU.
#[derive(Debug, Clone)]
pub(super) struct Group {
    /// Its members.
    pub(super) cpus: CpuSet,
    /// The kernel's number for it.
    pub(super) id: Option<i64>,
}

/// One package and what is in it. CPUs without topology files form one together.
#[derive(Debug, Default)]
pub(super) struct Package {
    /// `physical_package_id`, if there is one.
    pub(super) id: Option<i64>,
    /// Its lowest CPU; `None` for the CPUs without a package.
    pub(super) leader: Option<CpuId>,
    pub(super) cpus: CpuSet,
    pub(super) cores: Vec<Group>,
    /// Clusters that are more than a core.
    pub(super) clusters: Vec<Group>,
    pub(super) dies: Vec<Group>,
    /// s390: books, or the parts of them in this package.
    books: Vec<Group>,
    /// s390: drawers.
    drawers: Vec<Group>,
    /// `cpu_capacity` of each CPU that has one.
    capacities: Vec<(CpuId, u32)>,
    /// Caches of its CPUs; one that other packages share too is in each of theirs.
    pub(super) caches: Vec<Cache>,
}

impl Package {
    /// Whether its cores are all alike: the same number of threads and the same capacity everywhere, and either no
    /// clusters or all of one size (hybrid x86 has clusters of its small cores only).
    fn has_one_kind(&self) -> bool {
        let size = |group: &Group| group.cpus.len();
        let clustered: usize = self.clusters.iter().map(size).sum();
        are_alike(&self.cores, size)
            && are_alike(&self.clusters, size)
            && (clustered == 0 || clustered == self.cpus.len())
            && are_alike(&self.capacities, |it| it.1)
    }
}

fn are_alike<T, K: PartialEq>(items: &[T], of: impl Fn(&T) -> K) -> bool {
    let mut pairs = items.windows(2);
    pairs.all(|pair| of(&pair[0]) == of(&pair[1]))
}

/// Reads the packages of the online CPUs with their cores, and on request with everything else in them.
pub(super) fn packages(tree: &Tree, online: &CpuSet, details: bool) -> Vec<Package> {
    let Ok(directory) = tree.directory(DIRECTORY) else {
        return Vec::new();
    };
    let mut reader = Groups::new(
        &directory,
        &["package_cpus", "core_siblings"],
        Some("physical_package_id"),
    );
    let mut rest = CpuSet::new();
    let mut packages = Vec::new();
    let mut covered = CpuSet::new();
    let mut there = None;
    for cpu in online.iter() {
        // After a CPU without topology, those without a directory are not asked: a tree may claim thousands of them.
        let is_absent = |there: &CpuSet| !there.contains(cpu);
        if covered.contains(cpu) || there.as_ref().is_some_and(is_absent) {
            continue;
        }
        match reader.group_of(cpu, online) {
            Some(group) => {
                let cpus = group.cpus.difference(&covered);
                covered = covered.union(&cpus);
                packages.push((group.id, cpus.first(), cpus));
            }
            None => {
                let there = there.get_or_insert_with(|| with_directory(&directory, online));
                if there.contains(cpu) {
                    rest.insert(cpu);
                }
            }
        }
    }
    if !rest.is_empty() {
        packages.push((None, None, rest));
    }
    let hybrid = HYBRID.iter().any(|pmu| tree.exists(pmu));
    parallel::map_few(&packages, |(id, leader, cpus)| {
        let mut inside = cores(&directory, cpus, details);
        if details {
            add_details(&mut inside, &directory, online, hybrid);
        }
        Package {
            id: *id,
            leader: *leader,
            ..inside
        }
    })
}

/// The numbers of package, die and core of each CPU that has some: what is left where no lists of siblings were gathered.
pub(super) fn ids(tree: &Tree, online: &CpuSet) -> BTreeMap<CpuId, Place> {
    let Ok(directory) = tree.directory(DIRECTORY) else {
        return BTreeMap::new();
    };
    let place = |cpu: CpuId| {
        if !directory.exists(&format!("cpu{cpu}/topology")) {
            return None;
        }
        let read = |name: &str| {
            let name = format!("cpu{cpu}/topology/{name}");
            directory.noted(&name, value::integer)
        };
        let (package, core) = (read("physical_package_id"), read("core_id"));
        let place = Place {
            package,
            die: read("die_id"),
            core,
        };
        (package.is_some() || core.is_some()).then_some((cpu, place))
    };
    online.iter().filter_map(place).collect()
}

/// The CPUs that have a directory. Those that are online and have none are noted.
fn with_directory(directory: &Directory<'_>, online: &CpuSet) -> CpuSet {
    let there = numbered_cpus(&directory.names().unwrap_or_default());
    let absent = online.difference(&there);
    // Without any the directories were not gathered.
    if !absent.is_empty() && !there.is_empty() {
        directory.note(
            "online",
            format!("names CPUs {absent}, which have no directory"),
        );
    }
    there
}

fn cores(directory: &Directory<'_>, cpus: &CpuSet, with_id: bool) -> Package {
    let cores = Groups::new(
        directory,
        &["core_cpus", "thread_siblings"],
        with_id.then_some("core_id"),
    );
    Package {
        cpus: cpus.clone(),
        cores: cores.all(cpus.iter(), cpus),
        ..Package::default()
    }
}

fn add_details(package: &mut Package, directory: &Directory<'_>, online: &CpuSet, hybrid: bool) {
    let cpus = &package.cpus;
    let groups = |names: &[&str], id| Groups::new(directory, names, id);
    // Everything that is more than a core is asked for at the first CPU of a core only.
    let leaders: Vec<CpuId> = match package.cores.is_empty() {
        true => cpus.iter().collect(),
        false => package
            .cores
            .iter()
            .filter_map(|core| core.cpus.first())
            .collect(),
    };
    let wider = |name, id| groups(&[name], id).all(leaders.iter().copied(), cpus);
    package.clusters = wider("cluster_cpus", None);
    package.dies = wider("die_cpus", None);
    package.books = wider("book_siblings", Some("book_id"));
    package.drawers = wider("drawer_siblings", Some("drawer_id"));
    let core_of = |cpu| {
        let found = package
            .cores
            .binary_search_by_key(&Some(cpu), |core| core.cpus.first());
        found.ok().map(|index| &package.cores[index].cpus)
    };
    // A kernel that knows no clusters (or no dies, outside x86) prints the core or the CPU itself instead.
    let says_something = |group: &Group| {
        let core = group.cpus.first().and_then(core_of);
        group.cpus.len() > 1 && core.is_none_or(|core| group.cpus != *core)
    };
    package.clusters.retain(says_something);
    package.dies.retain(says_something);
    package.capacities = capacities(directory, cpus);
    package.caches = caches::read(
        directory,
        cpus,
        online,
        &package.cores,
        !hybrid && package.has_one_kind(),
    );
}

/// `cpu_capacity`: a kernel has it for all CPUs or for none.
fn capacities(directory: &Directory<'_>, cpus: &CpuSet) -> Vec<(CpuId, u32)> {
    let read = |cpu: CpuId| {
        let capacity = directory.noted(&format!("cpu{cpu}/cpu_capacity"), value::natural)?;
        u32::try_from(capacity).ok().map(|capacity| (cpu, capacity))
    };
    match cpus.first().and_then(read) {
        Some(_) => cpus.iter().filter_map(read).collect(),
        None => Vec::new(),
    }
}

struct Groups<'a> {
    directory: &'a Directory<'a>,
    /// The files that hold the members, best first: name, and whether it is a list (else a mask).
    files: Vec<(String, bool)>,
    /// Which of them this kernel has: the attributes of one CPU are those of all.
    chosen: Option<usize>,
    /// The file that holds the kernel's number for the group, where that is wanted.
    id: Option<&'static str>,
    /// The kernel has none of the files.
    absent: bool,
}

impl<'a> Groups<'a> {
    fn new(directory: &'a Directory<'a>, names: &[&str], id: Option<&'static str>) -> Self {
        let mut files = Vec::new();
        for name in names {
            files.push((format!("{name}_list"), true));
            files.push(((*name).to_owned(), false));
        }
        Self {
            directory,
            files,
            chosen: None,
            id,
            absent: false,
        }
    }

    /// The groups of these CPUs, by lowest member; each CPU is in one at most.
    fn all(mut self, ask: impl Iterator<Item = CpuId>, within: &CpuSet) -> Vec<Group> {
        let mut covered = CpuSet::new();
        let mut groups = Vec::new();
        for cpu in ask {
            if self.absent {
                break;
            }
            if covered.contains(cpu) {
                continue;
            }
            if let Some(mut group) = self.group_of(cpu, within) {
                if group.cpus.intersects(&covered) {
                    let file = format!("cpu{cpu}/topology/{}", self.files[0].0);
                    let message = format!("{} overlap a group of other CPUs", group.cpus);
                    self.directory.note(&file, message);
                    group.cpus = group.cpus.difference(&covered);
                }
                covered = covered.union(&group.cpus);
                groups.push(group);
            }
        }
        groups
    }

    /// The group of one CPU, itself always included; `None` if the kernel has none.
    fn group_of(&mut self, cpu: CpuId, within: &CpuSet) -> Option<Group> {
        let topology = format!("cpu{cpu}/topology");
        let mut cpus = self.members(&topology)?.intersection(within);
        if cpus.insert(cpu) {
            let file = self
                .chosen
                .and_then(|chosen| self.files.get(chosen))
                .map_or("", |(name, _)| name);
            let message = format!("does not name CPU {cpu} itself");
            self.directory.note(&format!("{topology}/{file}"), message);
        }
        let read = |id| {
            self.directory
                .noted(&format!("{topology}/{id}"), value::integer)
        };
        let id = self.id.and_then(read);
        Some(Group { cpus, id })
    }

    fn members(&mut self, topology: &str) -> Option<CpuSet> {
        let read = |(name, is_list): &(String, bool)| {
            let parse = if *is_list { value::list } else { value::mask };
            self.directory.noted(&format!("{topology}/{name}"), parse)
        };
        if let Some(file) = self.chosen.and_then(|chosen| self.files.get(chosen)) {
            return read(file);
        }
        let found = self
            .files
            .iter()
            .enumerate()
            .find_map(|(index, file)| Some((index, read(file)?)));
        match found {
            Some((index, cpus)) => {
                self.chosen = Some(index);
                Some(cpus)
            }
            None => {
                let there = |(name, _): &(String, bool)| {
                    self.directory.exists(&format!("{topology}/{name}"))
                };
                self.absent = self.directory.exists(topology) && !self.files.iter().any(there);
                None
            }
        }
    }
}

/// The CPUs with the node, core, cluster, die and package of each.
pub(super) fn assembled(
    tree: &Tree,
    found: &CpuNumbers,
    nodes: &[Node],
    packages: &[Package],
    cpuinfo: &CpuInfo<'_>,
) -> Vec<Cpu> {
    let in_nodes = nodes.iter().map(Node::known_cpus).collect();
    let all = found.present.union(&found.online).union(&in_nodes);
    let mut cpus: Vec<Cpu> = all.iter().map(|cpu| Cpu::new(cpu, None)).collect();
    for cpu in &mut cpus {
        cpu.online = match found.unknown.contains(cpu.id) {
            true => Known::no("no file says whether it is online"),
            false => Known::Yes(found.online.contains(cpu.id)),
        };
    }
    for package in packages {
        place(&mut cpus, package);
    }
    if packages
        .iter()
        .all(|package| package.leader.is_none() && package.cores.is_empty())
    {
        let by_ids = ids(tree, &found.online);
        let place = |cpu| match by_ids.is_empty() {
            true => cpuinfo.place(cpu),
            false => by_ids.get(&cpu).copied().unwrap_or_default(),
        };
        place_by_ids(&mut cpus, place);
    }
    if !tree.is_live() {
        compare_with_cpuinfo(tree, &cpus, cpuinfo);
    }
    assign_nodes(tree, &mut cpus, nodes);
    divided_cores(tree, &cpus);
    cpus
}

/// All caches, once each.
pub(super) fn all_caches(
    tree: &Tree,
    online: &CpuSet,
    packages: Vec<Package>,
    cpuinfo: &CpuInfo<'_>,
) -> Vec<Cache> {
    let mut cores = Vec::new();
    let mut found = Vec::new();
    for package in packages {
        found.extend(package.caches);
        cores.extend(package.cores);
    }
    if found.is_empty() {
        found = caches::elsewhere(tree, cpuinfo, online, &cores);
    }
    caches::merge(found)
}

fn place(cpus: &mut [Cpu], package: &Package) {
    each(cpus, &package.cpus, |cpu| {
        (cpu.package, cpu.package_leader) = (package.id, package.leader)
    });
    let of_groups = |cpus: &mut [Cpu], groups: &[Group], set: fn(&mut Cpu, &Group)| {
        for group in groups {
            each(cpus, &group.cpus, |cpu| set(cpu, group));
        }
    };
    of_groups(cpus, &package.cores, |cpu, core| {
        (cpu.core, cpu.kernel_core_id) = (core.cpus.first(), core.id)
    });
    of_groups(cpus, &package.clusters, |cpu, cluster| {
        cpu.cluster = cluster.cpus.first()
    });
    of_groups(cpus, &package.dies, |cpu, die| cpu.die = die.cpus.first());
    of_groups(cpus, &package.books, |cpu, book| cpu.book = book.id);
    of_groups(cpus, &package.drawers, |cpu, drawer| cpu.drawer = drawer.id);
    for &(id, capacity) in &package.capacities {
        each(cpus, &CpuSet::single(id), |cpu| {
            cpu.capacity = Some(capacity)
        });
    }
}

fn each(cpus: &mut [Cpu], set: &CpuSet, mut change: impl FnMut(&mut Cpu)) {
    for id in set.iter() {
        if let Ok(index) = cpus.binary_search_by_key(&id, |cpu| cpu.id) {
            change(&mut cpus[index]);
        }
    }
}

/// Where lists of siblings are missing, numbers of packages and cores tell them: of the `topology` directories, or on
/// kernels before 2.6.16, which have none, of `/proc/cpuinfo`.
fn place_by_ids(cpus: &mut [Cpu], place: impl Fn(CpuId) -> Place) {
    let mut packages: BTreeMap<i64, CpuId> = BTreeMap::new();
    let mut cores: BTreeMap<(i64, Option<i64>, i64), CpuId> = BTreeMap::new();
    for cpu in cpus.iter_mut().filter(|cpu| cpu.is_online()) {
        let Place { package, die, core } = place(cpu.id);
        (cpu.package, cpu.kernel_core_id) = (package, core);
        // -1 is a firmware that does not say (ARM, virtual machines).
        let known = |id: Option<i64>| id.filter(|&id| id >= 0);
        cpu.package_leader =
            known(package).map(|package| *packages.entry(package).or_insert(cpu.id));
        cpu.core = known(package)
            .zip(known(core))
            .map(|(package, core)| *cores.entry((package, die, core)).or_insert(cpu.id));
    }
}

/// The kernel fills both from the same numbers, so a tree in which they differ is no record of one kernel.
fn compare_with_cpuinfo(tree: &Tree, cpus: &[Cpu], cpuinfo: &CpuInfo<'_>) {
    let differs = |cpu: &&Cpu| {
        let theirs = cpuinfo.place(cpu.id);
        let differ = |ours: Option<i64>, theirs: Option<i64>| {
            ours.zip(theirs)
                .is_some_and(|(ours, theirs)| ours != theirs)
        };
        differ(cpu.package, theirs.package) || differ(cpu.kernel_core_id, theirs.core)
    };
    let mut different = cpus.iter().filter(differs);
    let Some(first) = different.next() else {
        return;
    };
    let number = |id: Option<i64>| id.map_or_else(|| "unknown".to_owned(), |id| id.to_string());
    let theirs = cpuinfo.place(first.id);
    tree.note(cpuinfo::PATH, format!(
            "has CPU {} in package {}, core {}, but its topology directory says package {}, core {} (so do {} more); \
             taken from there",
            first.id,
            number(theirs.package),
            number(theirs.core),
            number(first.package),
            number(first.kernel_core_id),
            different.count()
        ));
}

/// A core's threads share its caches, so they are as near to one memory: what has them on two nodes is wrong of one.
fn divided_cores(tree: &Tree, cpus: &[Cpu]) {
    let mut cores: BTreeMap<CpuId, BTreeMap<NodeId, CpuId>> = BTreeMap::new();
    for cpu in cpus {
        if let Some((core, node)) = cpu.core.zip(cpu.node) {
            cores.entry(core).or_default().entry(node).or_insert(cpu.id);
        }
    }
    let mut divided = cores.values().filter(|nodes| nodes.len() > 1);
    let Some(first) = divided.next() else { return };
    let on: Vec<String> = first
        .iter()
        .map(|(node, cpu)| format!("CPU {cpu} on node {node}"))
        .collect();
    let message = format!(
        "threads of one core are on several nodes: {} (so are those of {} more cores); one of both is wrong",
        on.join(", "),
        divided.count()
    );
    tree.note(nodes::DIRECTORY, message);
}

/// A CPU's node is the lowest that lists it. On real machines it is the only one.
fn assign_nodes(tree: &Tree, cpus: &mut [Cpu], nodes: &[Node]) {
    let mut shared: BTreeMap<NodeId, NodeId> = BTreeMap::new();
    for node in nodes {
        each(cpus, node.known_cpus(), |cpu| match cpu.node {
            None => cpu.node = Some(node.id),
            Some(first) => {
                shared.insert(node.id, first);
            }
        });
    }
    for (node, first) in shared {
        let message = format!(
            "names CPUs of node {first}: fake nodes, or faulty firmware; each counts as node {first}'s"
        );
        tree.note(&format!("{}/node{node}/cpumap", nodes::DIRECTORY), message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn isolcpus_flags_are_not_cpus() {
        for (cmdline, isolated, managed_irq) in [
            ("ro isolcpus=2-3,8 quiet", Some("2-3,8"), Some("")),
            ("isolcpus=domain,managed_irq,4", Some("4"), Some("4")),
            ("isolcpus=managed_irq,4", Some(""), Some("4")),
            ("isolcpus=1 isolcpus=2", Some("2"), Some("")),
            ("isolcpus=x", Some(""), Some("")),
            ("isolcpus=3-1", None, Some("")),
            ("isolcpus=managed_irq,3-1", Some(""), None),
            ("quiet", None, Some("")),
        ] {
            let list = |set: Option<CpuSet>| set.map(|set| set.to_string());
            assert_eq!(
                list(isolated_at_boot(cmdline)).as_deref(),
                isolated,
                "{cmdline}"
            );
            assert_eq!(
                list(managed_irq_at_boot(cmdline)).as_deref(),
                managed_irq,
                "{cmdline}"
            );
        }
    }

    #[test]
    fn only_numbers_that_a_cpu_can_have_are_read_from_names() {
        assert_eq!(number("cpu17", "cpu"), Some(17));
        for name in [
            "cpu",
            "cpu+1",
            "cpu-1",
            "cpufreq",
            "cpu65536",
            "cpu99999999999",
            "node1",
        ] {
            assert_eq!(number(name, "cpu"), None, "{name}");
        }
    }
}

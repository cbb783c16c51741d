//! Which CPUs share a core, a cluster, a die, a package.
//!
//! ```text
//! package   package_cpus_list or core_siblings_list; physical_package_id
//! └─ die    die_cpus_list
//!    └─ cluster   cluster_cpus_list
//!       └─ core   core_cpus_list or thread_siblings_list; core_id
//! ```
//!
//! Each list is read once, from the first CPU that no list covers yet: on a machine of 4096 CPUs that saves three of
//! four reads. Packages do not share anything, so they are what is read on several threads.

use std::collections::BTreeMap;

use nearfar_machine::{Cache, CpuId, CpuSet};

use super::caches;
use super::cpuinfo::Place;
use super::cpus::{DIRECTORY, number};
use super::notes::{Notes, read_noted};
use crate::parallel;
use crate::tree::{Directory, Tree};
use crate::value;

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
    pub(super) books: Vec<Group>,
    /// s390: drawers.
    pub(super) drawers: Vec<Group>,
    /// `cpu_capacity` of each CPU that has one.
    pub(super) capacities: Vec<(CpuId, u32)>,
    /// Caches of its CPUs; one that other packages share too is in each of theirs.
    pub(super) caches: Vec<Cache>,
}

impl Package {
    /// Whether its cores are all alike: the same number of threads and the same capacity everywhere, and either no
    /// clusters or all of one size (hybrid x86 has clusters of its small cores only).
    fn has_one_kind(&self) -> bool {
        let same = |groups: &[Group]| {
            groups
                .windows(2)
                .all(|pair| pair[0].cpus.len() == pair[1].cpus.len())
        };
        let clustered: usize = self.clusters.iter().map(|cluster| cluster.cpus.len()).sum();
        same(&self.cores)
            && same(&self.clusters)
            && (clustered == 0 || clustered == self.cpus.len())
            && self
                .capacities
                .windows(2)
                .all(|pair| pair[0].1 == pair[1].1)
    }
}

/// Reads the packages of the online CPUs with their cores, and on request with everything else in them.
pub(super) fn read(tree: &Tree, online: &CpuSet, details: bool, notes: &Notes) -> Vec<Package> {
    let Ok(directory) = tree.directory(DIRECTORY) else {
        return Vec::new();
    };
    let mut reader = Groups::new(
        &directory,
        notes,
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
                let there = there.get_or_insert_with(|| with_directory(&directory, online, notes));
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
        let mut inside = cores(&directory, cpus, details, notes);
        if details {
            add_details(&mut inside, &directory, online, hybrid, notes);
        }
        Package {
            id: *id,
            leader: *leader,
            ..inside
        }
    })
}

/// The numbers of package, die and core of each CPU that has some: what is left where no lists of siblings were gathered.
pub(super) fn ids(tree: &Tree, online: &CpuSet, notes: &Notes) -> BTreeMap<CpuId, Place> {
    let Ok(directory) = tree.directory(DIRECTORY) else {
        return BTreeMap::new();
    };
    let place = |cpu: CpuId| {
        if !directory.exists(&format!("cpu{cpu}/topology")) {
            return None;
        }
        let read = |name: &str| {
            let name = format!("cpu{cpu}/topology/{name}");
            read_noted(&directory, &name, notes, value::integer)
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
fn with_directory(directory: &Directory<'_>, online: &CpuSet, notes: &Notes) -> CpuSet {
    let names = directory.names().unwrap_or_default();
    let there: CpuSet = names
        .iter()
        .filter_map(|name| number(name, "cpu"))
        .map(CpuId)
        .collect();
    let absent = online.difference(&there);
    // Without any the directories were not gathered.
    if !absent.is_empty() && !there.is_empty() {
        notes.note(
            directory.display("online"),
            format!("names CPUs {absent}, which have no directory"),
        );
    }
    there
}

fn cores(directory: &Directory<'_>, cpus: &CpuSet, with_id: bool, notes: &Notes) -> Package {
    let cores = Groups::new(
        directory,
        notes,
        &["core_cpus", "thread_siblings"],
        with_id.then_some("core_id"),
    );
    Package {
        cpus: cpus.clone(),
        cores: cores.all(cpus.iter(), cpus),
        ..Package::default()
    }
}

fn add_details(
    package: &mut Package,
    directory: &Directory<'_>,
    online: &CpuSet,
    hybrid: bool,
    notes: &Notes,
) {
    let cpus = &package.cpus;
    let groups = |names: &[&str], id| Groups::new(directory, notes, names, id);
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
    package.capacities = capacities(directory, cpus, notes);
    package.caches = caches::read(
        directory,
        cpus,
        online,
        &package.cores,
        !hybrid && package.has_one_kind(),
        notes,
    );
}

/// `cpu_capacity`: a kernel has it for all CPUs or for none.
fn capacities(directory: &Directory<'_>, cpus: &CpuSet, notes: &Notes) -> Vec<(CpuId, u32)> {
    let read = |cpu: CpuId| {
        let capacity = read_noted(
            directory,
            &format!("cpu{cpu}/cpu_capacity"),
            notes,
            value::natural,
        )?;
        u32::try_from(capacity).ok().map(|capacity| (cpu, capacity))
    };
    match cpus.first().and_then(read) {
        Some(_) => cpus.iter().filter_map(read).collect(),
        None => Vec::new(),
    }
}

struct Groups<'a> {
    directory: &'a Directory<'a>,
    notes: &'a Notes,
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
    fn new(
        directory: &'a Directory<'a>,
        notes: &'a Notes,
        names: &[&str],
        id: Option<&'static str>,
    ) -> Self {
        let mut files = Vec::new();
        for name in names {
            files.push((format!("{name}_list"), true));
            files.push(((*name).to_owned(), false));
        }
        Self {
            directory,
            notes,
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
                    let place = self
                        .directory
                        .display(&format!("cpu{cpu}/topology/{}", self.files[0].0));
                    self.notes.note(
                        place,
                        format!("{} overlap a group of other CPUs", group.cpus),
                    );
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
            let place = self.directory.display(&format!("{topology}/{file}"));
            self.notes
                .note(place, format!("does not name CPU {cpu} itself"));
        }
        let read = |id| {
            read_noted(
                self.directory,
                &format!("{topology}/{id}"),
                self.notes,
                value::integer,
            )
        };
        let id = self.id.and_then(read);
        Some(Group { cpus, id })
    }

    fn members(&mut self, topology: &str) -> Option<CpuSet> {
        let read = |(name, is_list): &(String, bool)| {
            let parse = if *is_list { value::list } else { value::mask };
            read_noted(
                self.directory,
                &format!("{topology}/{name}"),
                self.notes,
                parse,
            )
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

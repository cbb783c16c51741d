//! The CPU time of a process by CPU: that of each thread counts for the CPU it ran on last.

use std::collections::BTreeMap;

use nearfar_machine::{CpuTime, Known, Thread};
use nearfar_proc::Stat;

use super::cpu_ms;
use crate::tree::{Directory, Tree};

pub(super) struct Threads {
    pub(super) cpu_times: Known<Vec<CpuTime>>,
    pub(super) list: Vec<Thread>,
}

/// Reads the threads of a process. One with a single thread has the times of that, and one that never ran has none: neither needs
/// another file. `is_list_wanted` makes a list of all as well.
pub(super) fn read(
    directory: &Directory<'_>,
    stat: Option<&Stat>,
    count: Option<u32>,
    is_list_wanted: bool,
) -> Threads {
    let Some(stat) = stat else {
        return Threads {
            cpu_times: Known::no("its stat cannot be read"),
            list: Vec::new(),
        };
    };
    if !is_list_wanted && (count == Some(1) || cpu_ms(stat) == 0) {
        return Threads {
            cpu_times: of_one(stat),
            list: Vec::new(),
        };
    }
    match list(directory) {
        // A thread that ends meanwhile, and a recording without threads, leave the process's own times.
        list if list.is_empty() => Threads {
            cpu_times: of_one(stat),
            list,
        },
        list => Threads {
            cpu_times: Known::Yes(by_cpu(&list)),
            list: match is_list_wanted {
                true => list,
                false => Vec::new(),
            },
        },
    }
}

fn of_one(stat: &Stat) -> Known<Vec<CpuTime>> {
    let cpu = Known::from_option(stat.cpu, || "its stat does not say on which CPU it ran");
    cpu.map(|cpu| {
        let ms = cpu_ms(stat);
        vec![CpuTime { cpu, ms }]
    })
}

/// A thread of a process that has not ended, with its directory.
pub(super) fn alive<'t>(tree: &'t Tree, directory: &Directory<'_>) -> Option<(i32, Directory<'t>)> {
    let task = format!("{}/task", directory.path());
    let tids = tree.directory(&task).ok()?.names().ok()?;
    tids.into_iter().find_map(|name| {
        let thread = tree.directory(&format!("{task}/{name}")).ok()?;
        let stat = thread.with_bytes("stat", Stat::parse).ok().flatten()?;
        (!stat.is_ended()).then_some((name.parse().ok()?, thread))
    })
}

fn list(directory: &Directory<'_>) -> Vec<Thread> {
    let Ok(task) = directory.directory("task") else {
        return Vec::new();
    };
    let mut tids: Vec<i32> = match task.names() {
        Ok(names) => names.iter().filter_map(|name| name.parse().ok()).collect(),
        Err(_) => Vec::new(),
    };
    tids.sort_unstable();
    let thread = |tid: i32| {
        let parsed = task.with_bytes(&format!("{tid}/stat"), Stat::parse_with_name);
        let (stat, name) = parsed.ok().flatten()?;
        Some(Thread {
            tid,
            name: name.to_string(),
            start: stat.id.start,
            last_cpu: Known::from_option(stat.cpu, || "its stat does not say"),
            cpu_ms: cpu_ms(&stat),
        })
    };
    tids.into_iter().filter_map(thread).collect()
}

fn by_cpu(threads: &[Thread]) -> Vec<CpuTime> {
    let mut times = BTreeMap::new();
    for thread in threads {
        if let Known::Yes(cpu) = thread.last_cpu {
            let sum: &mut u64 = times.entry(cpu).or_default();
            *sum = sum.saturating_add(thread.cpu_ms);
        }
    }
    let times = times.into_iter().filter(|(_, ms)| *ms > 0);
    times.map(|(cpu, ms)| CpuTime { cpu, ms }).collect()
}

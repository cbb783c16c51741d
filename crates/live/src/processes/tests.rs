use std::process::{Child, Command};

use nearfar_machine::CpuSet;
use rustix::process::Pid;
use rustix::thread::{CpuSet as Affinity, sched_getaffinity, sched_setaffinity};

use super::*;

/// A shell that computes; killed when dropped.
struct Burner(Child);

impl Drop for Burner {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_process_with_one_thread_is_seen_on_another_node() {
    let allowed = sched_getaffinity(None).unwrap();
    let cpus: Vec<usize> = (0..Affinity::MAX_CPU)
        .filter(|&cpu| allowed.is_set(cpu))
        .take(2)
        .collect();
    let [a, b] = cpus[..] else {
        return println!("skipped: cpus: one CPU");
    };
    let request = nearfar_sources::Request::source("node:2 core:1 pu:1", Want::all());
    let mut machine = nearfar_sources::read(&request).unwrap();
    for (index, cpu) in [a, b].into_iter().enumerate() {
        machine.cpus[index].id = CpuId(cpu as u32);
        machine.nodes[index].cpus = CpuSet::range(CpuId(cpu as u32), CpuId(cpu as u32)).into();
    }
    let shell = Command::new("sh")
        .args(["-c", "while :; do :; done"])
        .spawn();
    let burner = Burner(shell.unwrap());
    let pid = Pid::from_raw(burner.0.id().cast_signed());
    let mut processes = Processes::default();
    let mut has_moved_to = |cpu: usize| {
        let mut set = Affinity::new();
        set.set(cpu);
        sched_setaffinity(pid, &set).unwrap();
        processes.look_at(burner.0.id().cast_signed(), &machine, 1.0)
    };
    let moved = [a, b, b, a].map(&mut has_moved_to);
    assert_eq!(moved, [false, true, false, true]);
}

#[test]
fn a_task_has_the_cpu_time_of_the_interval_or_since_its_start() {
    let per_s = rustix::param::clock_ticks_per_second();
    let mut process = Process::new(7);
    process.now.user_ticks = 3 * per_s;
    process.now.threads = 1;
    process.now.cpu = Some(CpuId(2));
    process.since_ms = 40;
    let of = |task: Option<Task>| {
        let task = task.unwrap();
        let times = task.cpu_times.known().unwrap_or_default();
        let times: Vec<(u32, u64)> = times.iter().map(|it| (it.cpu.0, it.ms)).collect();
        (task.cpu_ms.known().unwrap(), times)
    };
    assert_eq!(of(process.task(7)), (40, vec![]));
    assert_eq!(of(process.task_since_start(7)), (3000, vec![(2, 3000)]));
    let thread = |tid: i32, seconds: u64, cpu: u32| ProcessThread {
        id: TaskId { tid, start: 0 },
        name: String::new(),
        ticks: seconds * per_s,
        since_ms: 0,
        cpu: Some(CpuId(cpu)),
    };
    process.now.threads = 2;
    process.threads = vec![thread(7, 1, 0), thread(8, 2, 5)];
    let times = vec![(0, 1000), (5, 2000)];
    assert_eq!(of(process.task_since_start(7)), (3000, times));
}

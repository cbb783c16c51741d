//! The CPU time of tasks between two looks.

use std::collections::HashMap;

use nearfar_machine::{CpuTime, Known, Task, Thread};

/// Leaves in `later` the CPU time since `earlier`, in [`Task::cpu_ms`] and thread by thread. Both need [`Task::threads`], and `earlier`
/// has all processes that there were. What started meanwhile counts from its start; a number that was given to another process or
/// thread meanwhile is a new one.
pub fn within(earlier: &[Task], later: &mut [Task]) {
    let before: HashMap<i32, &Task> = earlier.iter().map(|task| (task.pid, task)).collect();
    for task in later {
        let same = before.get(&task.pid).copied();
        since(same.filter(|it| it.start == task.start), task);
    }
}

fn since(before: Option<&Task>, task: &mut Task) {
    let then = before.and_then(|task| task.cpu_ms.get().copied());
    if let Known::Yes(now) = &mut task.cpu_ms {
        *now = now.saturating_sub(then.unwrap_or(0));
    }
    let threads = before.into_iter().flat_map(|task| &task.threads);
    let before: HashMap<(i32, u64), u64> = threads
        .map(|thread| ((thread.tid, thread.start), thread.cpu_ms))
        .collect();
    for thread in &mut task.threads {
        let then = before.get(&(thread.tid, thread.start)).copied();
        thread.cpu_ms = thread.cpu_ms.saturating_sub(then.unwrap_or(0));
    }
    if !task.threads.is_empty() {
        task.cpu_times = Known::Yes(times(&task.threads));
    }
}

fn times(threads: &[Thread]) -> Vec<CpuTime> {
    let time = |thread: &Thread| {
        Some(CpuTime {
            cpu: *thread.last_cpu.get()?,
            ms: thread.cpu_ms,
        })
    };
    threads.iter().filter_map(time).collect()
}

#[cfg(test)]
mod tests {
    use nearfar_machine::CpuId;

    use super::*;

    fn task(start: u64, threads: &[(i32, u64, u32, u64)]) -> Task {
        let thread = |&(tid, start, cpu, cpu_ms)| Thread {
            tid,
            name: String::new(),
            start,
            last_cpu: Known::Yes(CpuId(cpu)),
            cpu_ms,
        };
        Task {
            start: Known::Yes(start),
            cpu_ms: Known::Yes(1000 + threads.iter().map(|it| it.3).sum::<u64>()),
            threads: threads.iter().map(thread).collect(),
            ..Task::new(7, "a")
        }
    }

    #[test]
    fn time_is_that_of_the_same_threads_since_then() {
        let earlier = [task(5, &[(7, 5, 0, 100), (8, 6, 1, 50)])];
        let mut later = [task(5, &[(7, 5, 0, 130), (8, 9, 1, 20), (9, 9, 2, 10)])];
        within(&earlier, &mut later);
        let ms: Vec<u64> = later[0]
            .cpu_times
            .get()
            .unwrap()
            .iter()
            .map(|it| it.ms)
            .collect();
        assert_eq!(ms, [30, 20, 10]);
        // 160 of all threads against 150, those that ended included.
        assert_eq!(later[0].cpu_ms, Known::Yes(10));
        let mut another = [task(6, &[(7, 6, 0, 40)])];
        within(&earlier, &mut another);
        assert_eq!(another[0].cpu_times.get().unwrap()[0].ms, 40);
    }
}

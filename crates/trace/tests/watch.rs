//! One watch over several processes of the machine that runs the tests, where its kernel permits that.

use std::io::Read as _;
use std::os::fd::FromRawFd as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nearfar_machine::{CpuId, CpuSet, Known, NodeId};
use nearfar_sources::{Request, Want, synthetic};
use nearfar_trace::watch::{Watch, Watched};
use nearfar_trace::{TraceError, tasks};
use perf_event_open_sys::bindings::{
    PERF_COUNT_SW_CPU_MIGRATIONS, PERF_TYPE_SOFTWARE, perf_event_attr,
};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet as Affinity, sched_getaffinity, sched_setaffinity};

/// The CPUs this test may use.
fn cpus() -> Vec<u32> {
    let allowed = sched_getaffinity(None).unwrap();
    (0..Affinity::MAX_CPU)
        .filter(|&cpu| allowed.is_set(cpu))
        .map(|cpu| cpu as u32)
        .collect()
}

/// The CPUs of the machine that runs this.
fn online() -> CpuSet {
    std::fs::read_to_string("/sys/devices/system/cpu/online")
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}

/// Two CPUs as nodes of their own, and a watch; or why not here.
fn open() -> Option<Watch> {
    if !cpus().starts_with(&[0, 1]) {
        println!("skipped: cpus: CPUs 0 and 1 are not there to move between");
        return None;
    }
    let mut machine = synthetic::parse("node:2 memory:1G core:1 pu:1 distance:20").unwrap();
    // The task that moves another may be on any CPU.
    machine.cpu_states.online = online();
    match Watch::open(&machine) {
        Ok(watch) => Some(watch),
        Err(error) if error.is_refusal() => {
            println!("skipped: perf: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A process that waits for its input to end.
fn waiting() -> Child {
    Command::new("cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn pid(child: &Child) -> i32 {
    child.id().cast_signed()
}

fn number(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// A sleeping task is moved when it is woken next: moving it by its affinity alone is no migration yet. So it is kept busy.
fn busy() -> Child {
    let mut child = Command::new("sh")
        .args(["-c", "echo; while :; do :; done"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Until then it may sleep, waiting for its program to be read.
    child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
    child
}

fn move_to(child: &Child, cpu: u32) {
    allow(child, &[cpu]);
}

fn allow(child: &Child, cpus: &[u32]) {
    let mut set = Affinity::new();
    cpus.iter().for_each(|&cpu| set.set(cpu as usize));
    sched_setaffinity(Some(number(child)), &set).unwrap();
    // Where it may not stay on its CPU, the kernel has moved it when the call returns.
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn each_process_gets_its_own_moves_from_follow_to_collect_and_no_others() {
    let Some(mut watch) = open() else { return };
    let (first, second) = (busy(), busy());
    move_to(&first, 0);
    move_to(&second, 0);
    // Not followed yet: these do not count.
    move_to(&first, 1);
    move_to(&first, 0);
    watch.follow(pid(&first)).unwrap();
    watch.follow(pid(&second)).unwrap();
    for _ in 0..10 {
        move_to(&first, 1);
        move_to(&first, 0);
        move_to(&second, 1);
    }
    let found = watch.collect(pid(&first)).unwrap();
    move_to(&first, 1);
    check_moves(&found, 20);
    let matrix: Vec<_> = found
        .found
        .matrix
        .iter()
        .map(|cell| (cell.from, cell.to))
        .collect();
    assert_eq!(
        matrix,
        [
            (Some(NodeId(0)), Some(NodeId(1))),
            (Some(NodeId(1)), Some(NodeId(0)))
        ]
    );
    // Ten each way, but for what was lost.
    let counts: Vec<u64> = found
        .found
        .matrix
        .iter()
        .map(|cell| cell.migrations)
        .collect();
    assert_eq!(counts.iter().sum::<u64>(), found.found.migrations.total());
    assert!(counts.iter().all(|&count| count <= 10), "{counts:?}");
    let spent: f64 = found.found.time.iter().map(|spent| spent.seconds).sum();
    assert!(
        (spent - found.seconds).abs() < 1e-6 && found.seconds > 0.0,
        "{found:?}"
    );
    let other = watch.collect(pid(&second)).unwrap();
    // Moving it where it is moves nothing.
    check_moves(&other, 1);
    end(first);
    end(second);
}

/// So many moves, all from node to node, were found, or are said to be lost: a kernel may write nothing of what some tasks
/// do, and these may be who moved it (docs/trace.md).
fn check_moves(found: &Watched, made: u64) {
    assert_eq!(
        found.found.migrations.total(),
        found.found.migrations.cross_node
    );
    check_lost(found, made);
}

/// What is missing of so many moves was reported: as lost, or by a move that begins on another CPU than the one before ended on. Where
/// events do not cease while they are counted, one may stand in for one that is missing, and the second check alone says so
/// (docs/trace.md).
fn check_lost(found: &Watched, made: u64) {
    let missing = made
        .checked_sub(found.found.migrations.total())
        .expect("a move that was not made");
    assert!(
        missing <= found.losses.lost.max(found.found.gaps) && found.found.gaps <= missing,
        "{found:?}"
    );
}

/// Two counts of the kernel's own: `nr_migrations` of /proc/PID/sched, which it adds to where it moves a task, and the
/// software event `cpu-migrations`, which counts at the task's next run and so takes two moves in between for one.
#[test]
fn a_watch_counts_what_the_kernel_itself_counts() {
    let machine = nearfar_sources::read(&Request::live(Want::topology())).unwrap();
    // The first and the last: on different nodes, where there are such.
    let cpus = cpus();
    let [a, .., b] = cpus[..] else {
        return println!("skipped: cpus: there are no two CPUs to move between");
    };
    let mut watch = match Watch::open(&machine) {
        Ok(watch) => watch,
        Err(error) if error.is_refusal() => return println!("skipped: perf: {error}"),
        Err(error) => panic!("{error}"),
    };
    let child = busy();
    // Also a stopped task is moved, where it was preempted just before it slept: by the time of the first look, or of following it.
    move_to(&child, a);
    stop(&child);
    let Some(before) = kernels_count(&child) else {
        end(child);
        return println!("skipped: kernel: this kernel has no /proc/PID/sched");
    };
    let counter = Counter::open(pid(&child));
    watch.follow(pid(&child)).unwrap();
    allow(&child, &cpus);
    kill_process(number(&child), Signal::CONT).unwrap();
    // More that want to run than there are CPUs: the kernel moves them about.
    let others: Vec<Child> = machine.cpu_states.online.iter().map(|_| busy()).collect();
    std::thread::sleep(Duration::from_secs(2));
    for cpu in [a, b, a, b, a] {
        move_to(&child, cpu);
    }
    stop(&child);
    let after = kernels_count(&child).unwrap();
    let found = watch.collect(pid(&child)).unwrap();
    others.into_iter().chain([child]).for_each(end);
    let found_of = &found.found.migrations;
    let kernels = after - before;
    println!(
        "{found_of:?}; the kernel: {kernels}, counter {:?}",
        counter.as_ref().map(Counter::count)
    );
    check_lost(&found, kernels);
    assert_eq!(
        found.moves_by_kernel,
        Known::Yes(kernels),
        "the watch asks for that count itself"
    );
    assert!(kernels >= 4);
    if let Some(counter) = counter {
        assert!(
            counter.count() <= kernels && counter.count() > 0,
            "{}",
            counter.count()
        );
    }
    let cross: u64 = found
        .found
        .matrix
        .iter()
        .filter(|cell| cell.from != cell.to)
        .map(|cell| cell.migrations)
        .sum();
    assert_eq!(found_of.cross_node, cross);
}

/// Stops a process and waits until it has.
fn stop(child: &Child) {
    kill_process(number(child), Signal::STOP).unwrap();
    let status = || std::fs::read_to_string(format!("/proc/{}/stat", pid(child))).unwrap();
    while !status()
        .rsplit_once(") ")
        .is_some_and(|(_, rest)| rest.starts_with('T'))
    {
        std::thread::yield_now();
    }
}

fn kernels_count(child: &Child) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{}/sched", pid(child))).ok()?;
    text.lines()
        .find(|line| line.starts_with("se.nr_migrations"))?
        .rsplit(' ')
        .next()?
        .parse()
        .ok()
}

/// The kernel's software event `cpu-migrations` of a process.
struct Counter(std::fs::File);

impl Counter {
    fn open(pid: i32) -> Option<Self> {
        let mut attributes = perf_event_attr {
            type_: PERF_TYPE_SOFTWARE,
            size: size_of::<perf_event_attr>() as u32,
            config: u64::from(PERF_COUNT_SW_CPU_MIGRATIONS),
            ..Default::default()
        };
        // SAFETY: the attributes are a whole, initialised `perf_event_attr` and live through the call.
        let fd =
            unsafe { perf_event_open_sys::perf_event_open(&raw mut attributes, pid, -1, -1, 0) };
        // SAFETY: the kernel has just given out this descriptor, and nothing else uses it.
        (fd >= 0).then(|| Self(unsafe { std::fs::File::from_raw_fd(fd) }))
    }

    fn count(&self) -> u64 {
        let mut count = [0; 8];
        (&self.0).read_exact(&mut count).unwrap();
        u64::from_ne_bytes(count)
    }
}

#[test]
fn a_process_that_has_ended_is_still_told_of() {
    let Some(mut watch) = open() else { return };
    for round in 0..3 {
        let child = busy();
        move_to(&child, 0);
        watch.follow(pid(&child)).unwrap();
        (0..round).for_each(|cpu| move_to(&child, (cpu + 1) % 2));
        let number = pid(&child);
        end(child);
        let found = watch.collect(number).unwrap();
        assert_eq!(found.found.migrations.total(), u64::from(round));
        assert_eq!(
            found
                .found
                .tasks
                .iter()
                .map(|task| (task.tid, task.ended))
                .collect::<Vec<_>>(),
            [(number, true)]
        );
        assert!(
            found
                .numa_balancing_of_task
                .unknown_reason()
                .unwrap()
                .contains("alive"),
            "{found:?}"
        );
    }
}

#[test]
fn children_of_a_followed_process_are_followed() {
    let Some(mut watch) = open() else { return };
    let mut shell = Command::new("sh")
        .args(["-c", "read go; true; (true); true"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    watch.follow(pid(&shell)).unwrap();
    drop(shell.stdin.take());
    shell.wait().unwrap();
    let found = watch.collect(pid(&shell)).unwrap();
    assert!(found.found.tasks.len() >= 2, "{:?}", found.found.tasks);
    assert!(found.found.tasks.iter().all(|task| task.ended));
}

#[test]
fn what_cannot_be_followed_or_is_not_followed_is_said_and_the_watch_goes_on() {
    let Some(mut watch) = open() else { return };
    assert!(matches!(
        watch.follow(999_999_999),
        Err(TraceError::NoProcess {
            pid: 999_999_999,
            ..
        })
    ));
    assert!(matches!(
        watch.collect(999_999_999),
        Err(TraceError::NotFollowed { .. })
    ));
    let child = waiting();
    watch.follow(pid(&child)).unwrap();
    watch.collect(pid(&child)).unwrap();
    assert!(
        matches!(
            watch.collect(pid(&child)),
            Err(TraceError::NotFollowed { .. })
        ),
        "collected once"
    );
    end(child);
}

#[test]
fn a_watched_process_becomes_json_and_back() {
    let Some(mut watch) = open() else { return };
    let child = waiting();
    watch.follow(pid(&child)).unwrap();
    let found = watch.collect(pid(&child)).unwrap();
    end(child);
    let text = serde_json::to_string(&found).unwrap();
    assert_eq!(
        serde_json::from_str::<nearfar_trace::watch::Watched>(&text).unwrap(),
        found,
        "{text}"
    );
}

#[test]
fn threads_of_a_process_and_of_a_control_group_are_found() {
    let child = waiting();
    let threads = tasks::of_process(pid(&child)).unwrap();
    assert_eq!(
        threads.iter().map(|thread| thread.tid).collect::<Vec<_>>(),
        [pid(&child)]
    );
    assert!(threads[0].cpu.is_some_and(|cpu| cpu < CpuId(1 << 16)));
    end(child);
    for wrong in ["no-such-group", "/no/such/group", "../../etc", ""] {
        let found = tasks::of_cgroup(wrong);
        // The root has every task, where it is a group.
        assert!(
            wrong.is_empty() || matches!(found, Err(TraceError::NoCgroup { .. })),
            "{wrong}: {found:?}"
        );
    }
}

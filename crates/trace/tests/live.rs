//! Traces on the machine that runs the tests, where its kernel permits that.
//!
//! Other tests may run at the same time: the kernel counts and orders events whatever else there is, and rings are read while the work
//! goes on, however long a busy machine takes for it. No test here judges how long something takes.

use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use nearfar_machine::{CpuId, CpuSet, Machine};
use nearfar_sources::synthetic;
use nearfar_trace::migrations::{self, Decoder, Formats, Migrations, Moves, Sharing};
use nearfar_trace::numa_balancing::MachineCounts;
use nearfar_trace::profile::{Profile, Sampler};
use nearfar_trace::symbols::Symbols;
use nearfar_trace::{
    Finished, Losses, NodeMigrations, Ordered, Plan, Session, TraceError, Tracefs, now_ns, tasks,
};
use rustix::thread::{CpuSet as Affinity, gettid, sched_getaffinity, sched_setaffinity};

/// Two CPUs this test may use.
fn two_cpus() -> Option<[CpuId; 2]> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut cpus = (0..Affinity::MAX_CPU)
        .filter(|&cpu| allowed.is_set(cpu))
        .map(|cpu| CpuId(cpu as u32));
    Some([cpus.next()?, cpus.next()?])
}

fn move_to(cpu: CpuId) {
    let mut set = Affinity::new();
    set.set(cpu.0 as usize);
    sched_setaffinity(None, &set).unwrap();
}

/// The formats, or why this kernel or user cannot have them. Fails where the system would allow it.
fn permitted<T>(result: Result<T, TraceError>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) if error.is_refusal() => {
            println!("skipped: perf: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

const READ_EVERY: Duration = Duration::from_millis(5);

/// The CPUs of the machine that runs this.
fn online() -> CpuSet {
    std::fs::read_to_string("/sys/devices/system/cpu/online")
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}

/// Runs `work` while the kernel's moves of some tasks are traced.
fn traced(
    machine: &Machine,
    only: Option<i32>,
    work: impl FnOnce(&mut Moves),
) -> Option<(Migrations, Losses)> {
    let formats = permitted(Tracefs::find().and_then(|tracefs| Formats::read(&tracefs)))?;
    let decoder = Decoder::new(&formats).unwrap();
    let filtered = only.map(|tid| formats.only(&[tid]).unwrap());
    let following = formats.following();
    let tracepoints = filtered.as_ref().unwrap_or(&following);
    let mut session = permitted(Session::open(&Plan {
        cpus: &online(),
        tracepoints,
        names: false,
        mappings: false,
        callers_of: None,
    }))?;
    let mut moves = Moves::new(Sharing::new(machine), only.is_none(), formats.balancing());
    let mut order = Ordered::default();
    session.enable().unwrap();
    let mut take = |_: CpuId, sample: &nearfar_trace::records::Sample<'_>| {
        if let Some(event) = decoder.decode(sample.event) {
            order.push(sample.time_ns, event);
        }
    };
    let (ends, ended) = channel::<()>();
    thread::scope(|threads| {
        let (session, take) = (&mut session, &mut take);
        threads.spawn(move || {
            // Disconnected once the work is done, or has failed.
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(READ_EVERY) {
                session.drain(&mut *take);
            }
        });
        let _ends = ends;
        work(&mut moves);
    });
    session.wait(Duration::from_millis(1), &[]).unwrap();
    session.drain(&mut take);
    let Finished { losses, .. } = session.finish(&mut take).unwrap();
    order.finish(&mut |time, event| moves.take(time, event));
    Some((moves.finish(now_ns(), MachineCounts::read()), losses))
}

fn two_nodes() -> Machine {
    synthetic::parse("node:2 memory:1G core:1 pu:1 distance:20").unwrap()
}

#[test]
fn a_thread_that_moves_itself_a_hundred_times_is_seen_to_move_a_hundred_times() {
    let Some([a, b]) = two_cpus() else {
        return println!("skipped: cpus: there are no two CPUs to move between");
    };
    if !migrations::in_first_pid_namespace() {
        return println!("skipped: perf: task numbers of a container are not the kernel's");
    }
    for filtered in [true, false] {
        let thread = std::thread::spawn(move || {
            move_to(a);
            let machine = two_nodes();
            let tid = gettid().as_raw_nonzero().get();
            let found = traced(&machine, filtered.then_some(tid), |moves| {
                moves.adopt(tid, "test", Some(a), now_ns());
                for _ in 0..50 {
                    move_to(b);
                    move_to(a);
                }
            });
            (tid, found)
        });
        let (tid, Some((found, losses))) = thread.join().unwrap() else {
            return;
        };
        assert_eq!(found.gaps, 0, "{losses:?} {:?}", found.tasks);
        let task = found.tasks.iter().find(|task| task.tid == tid).unwrap();
        assert_eq!(task.migrations.total(), 100, "{task:?}");
        if [a.0, b.0] == [0, 1] {
            assert_eq!(
                task.migrations.cross_node, 100,
                "the two CPUs are nodes of their own in that description"
            );
            assert_eq!(task.time.len(), 2);
        }
        if filtered {
            assert_eq!(
                (losses.occurred, losses.lost),
                (100, 0),
                "the kernel's filter passes no other task's moves"
            );
            assert!(losses.is_whole(), "{losses:?}");
        }
    }
}

#[test]
fn processes_and_threads_that_a_command_makes_are_followed() {
    if !migrations::in_first_pid_namespace() {
        return println!("skipped: perf: task numbers of a container are not the kernel's");
    }
    let machine = two_nodes();
    let mut first = 0;
    let found = traced(&machine, None, |moves| {
        // On a busy machine it has made others before its number is known here.
        let begin = now_ns();
        let child = Command::new("sh")
            .args(["-c", "true; (true); sh -c 'true; true' & wait"])
            .spawn();
        let mut child = child.unwrap();
        first = child.id().cast_signed();
        moves.adopt(first, "sh", None, begin);
        child.wait().unwrap();
    });
    let Some((found, losses)) = found else { return };
    assert_eq!(found.gaps, 0, "{losses:?} {:?}", found.tasks);
    assert!(found.tasks.len() >= 2, "{:?}", found.tasks);
    assert!(found.tasks.iter().any(|task| task.tid == first));
    assert!(
        found.tasks.iter().all(|task| task.ended),
        "all had ended before the trace did: {:?}",
        found.tasks
    );
}

#[test]
fn what_does_not_fit_into_the_ring_is_counted() {
    let Some(formats) = permitted(Tracefs::find().and_then(|tracefs| Formats::read(&tracefs)))
    else {
        return;
    };
    let Some([a, b]) = two_cpus() else {
        return println!("skipped: cpus: there are no two CPUs to move between");
    };
    let following = formats.following();
    let plan = Plan {
        cpus: &online(),
        tracepoints: &following[..1],
        names: false,
        mappings: false,
        callers_of: None,
    };
    let Some(mut session) = permitted(Session::open(&plan)) else {
        return;
    };
    session.enable().unwrap();
    // More moves than both rings hold, on a thread of its own: the harness keeps its affinity.
    let moves = 150_000u64;
    std::thread::spawn(move || {
        for _ in 0..moves / 2 {
            move_to(a);
            move_to(b);
        }
    })
    .join()
    .unwrap();
    let mut seen = 0u64;
    let Finished {
        losses, elapsed, ..
    } = session.finish(&mut |_, _| seen += 1).unwrap();
    assert!(losses.occurred + 2 >= moves, "{losses:?}");
    assert_eq!(losses.read, seen);
    assert!(
        seen > 1000 && losses.lost == losses.occurred - seen && losses.lost > 0,
        "{losses:?}"
    );
    assert!(!losses.is_whole() && elapsed > Duration::ZERO);
    // Some kernels write nothing of what certain tasks do (docs/trace.md), but not of a thread of this process.
    let unwritten = losses.unwritten.unwrap_or(0);
    assert!(
        unwritten + moves <= losses.occurred + 2,
        "the ring was full, and the kernel says so: {losses:?}"
    );
}

/// Of what another task does a kernel may write nothing (docs/trace.md); of what this process does all of it.
#[test]
fn every_event_that_an_ordinary_thread_causes_is_written() {
    let Some(formats) = permitted(Tracefs::find().and_then(|tracefs| Formats::read(&tracefs)))
    else {
        return;
    };
    if !migrations::in_first_pid_namespace() {
        return println!("skipped: perf: task numbers of a container are not the kernel's");
    }
    let following = formats.following();
    let (fork, _) = following
        .iter()
        .find(|(format, _)| format.name().ends_with("sched_process_fork"))
        .unwrap();
    let tracepoints = [(
        *fork,
        Some(format!("common_pid=={}", gettid().as_raw_nonzero())),
    )];
    let plan = Plan {
        cpus: &online(),
        tracepoints: &tracepoints,
        names: false,
        mappings: false,
        callers_of: None,
    };
    let Some(mut session) = permitted(Session::open(&plan)) else {
        return;
    };
    session.enable().unwrap();
    let before = session.settle(&mut |_, _| ()).unwrap();
    for _ in 0..100 {
        std::thread::spawn(|| ()).join().unwrap();
    }
    let mut seen = 0;
    let losses = session
        .settle(&mut |_, _| seen += 1)
        .unwrap()
        .since(&before);
    assert_eq!(
        (seen, losses.occurred, losses.lost),
        (100, 100, 0),
        "{losses:?}"
    );
    assert!(
        losses.is_whole() && losses.unwritten.is_none_or(|unwritten| unwritten == 0),
        "{losses:?}"
    );
}

#[test]
fn an_event_that_this_kernel_does_not_have_is_named() {
    let Some(tracefs) = permitted(Tracefs::find()) else {
        return;
    };
    let error = tracefs
        .tracepoint("nvme", "nvme_no_such_event")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("nvme:nvme_no_such_event") && error.contains("modprobe nvme"),
        "{error}"
    );
}

#[test]
fn a_cpu_that_the_kernel_cannot_have_is_named() {
    let Some(formats) = permitted(Tracefs::find().and_then(|tracefs| Formats::read(&tracefs)))
    else {
        return;
    };
    let following = formats.following();
    let error = Session::open(&Plan {
        cpus: &CpuSet::single(CpuId(65_000)),
        tracepoints: &following[..1],
        names: false,
        mappings: false,
        callers_of: None,
    });
    match error.map(|_| ()).unwrap_err() {
        error @ TraceError::NotPermitted { .. } => println!("skipped: perf: {error}"),
        error => assert!(
            error
                .to_string()
                .contains("sched_migrate_task on CPU 65000"),
            "{error}"
        ),
    }
}

/// Not a test of its own: the program that `a_thread_that_becomes_another_program_is_followed_to_its_end` starts. One of its threads
/// becomes `sleep` when its input has a line.
#[test]
fn program_whose_thread_becomes_sleep() {
    use std::os::unix::process::CommandExt as _;
    if std::env::var_os("NEARFAR_TEST_EXEC").is_none() {
        return;
    }
    let thread = std::thread::spawn(|| {
        println!("ready");
        std::io::stdin().read_line(&mut String::new()).unwrap();
        panic!("{}", Command::new("sleep").arg("0.3").exec());
    });
    thread.join().unwrap();
}

#[test]
fn a_thread_that_becomes_another_program_is_followed_to_its_end() {
    use std::io::{BufRead as _, Write as _};
    if !migrations::in_first_pid_namespace() {
        return println!("skipped: perf: task numbers of a container are not the kernel's");
    }
    let mut first = 0;
    let found = traced(&two_nodes(), None, |moves| {
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args([
            "--exact",
            "live::program_whose_thread_becomes_sleep",
            "--nocapture",
            "--test-threads=1",
        ]);
        program
            .env("NEARFAR_TEST_EXEC", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = program.spawn().unwrap();
        first = child.id().cast_signed();
        let mut lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("ready")));
        let begin = now_ns();
        let threads = tasks::of_process(first).unwrap();
        assert!(threads.len() >= 2, "{threads:?}");
        threads
            .iter()
            .for_each(|thread| moves.adopt(thread.tid, &thread.name, thread.cpu, begin));
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        assert!(child.wait().unwrap().success());
    });
    let Some((found, _)) = found else { return };
    assert!(
        found.tasks.iter().all(|task| task.ended),
        "all had ended before the trace did: {:?}",
        found.tasks
    );
    let sleeping = found
        .tasks
        .iter()
        .find(|task| task.name == "sleep")
        .unwrap();
    let spent: f64 = sleeping.time.iter().map(|spent| spent.seconds).sum();
    assert!(sleeping.tid == first && spent > 0.3, "{sleeping:?}");
    assert_eq!(
        found.tasks.iter().filter(|task| task.tid == first).count(),
        2,
        "the first thread, and who took its number"
    );
}

/// Enough for a share.
const MIN_SAMPLES: u64 = 50;

/// Reading zeroes is work of the kernel; adding numbers is not.
#[test]
fn a_profile_says_how_much_of_a_process_was_in_the_kernel() {
    let me = std::process::id().cast_signed();
    let of_ms = |work: &dyn Fn(), milliseconds: i64| {
        let mut sampler = permitted(Sampler::open(&online(), 999))?;
        sampler.enable().unwrap();
        let begun = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let used = || {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            (now.tv_sec - begun.tv_sec) * 1000 + (now.tv_nsec - begun.tv_nsec) / 1_000_000
        };
        while used() < milliseconds {
            work();
            sampler.drain();
        }
        sampler.end().unwrap();
        Some(sampler.profile(&[me].into(), &Symbols::read()))
    };
    // 999 samples a second of CPU time; fewer where a timer comes late. The longer ones are for that.
    let profile = |work: &dyn Fn()| {
        let mut profile = of_ms(work, 300)?;
        for milliseconds in [3_000, 30_000] {
            if profile.samples <= MIN_SAMPLES {
                profile = of_ms(work, milliseconds)?;
            }
        }
        Some(profile)
    };
    let buffer = std::cell::RefCell::new(vec![0; 4 << 20]);
    let zeroes = || {
        let mut file = std::fs::File::open("/dev/zero").unwrap();
        std::io::Read::read_exact(&mut file, &mut buffer.borrow_mut()).unwrap();
    };
    let sums = || {
        std::hint::black_box((0..1_000_000_u64).fold(0, |sum, it| sum ^ std::hint::black_box(it)));
    };
    let (Some(kernel), Some(program)) = (profile(&zeroes), profile(&sums)) else {
        return;
    };
    let share = |it: &Profile| it.in_kernel as f64 / it.samples as f64;
    for profile in [&kernel, &program] {
        assert!(profile.samples > MIN_SAMPLES, "{profile:?}");
    }
    assert!(share(&kernel) > 0.7, "{kernel:?}");
    assert!(share(&program) < 0.3, "{program:?}");
    assert!(
        !kernel.functions.is_empty() && kernel.lost == 0,
        "{kernel:?}"
    );
}

#[test]
fn the_kernel_counts_moves_between_nodes_and_no_others() {
    let Some([a, b]) = two_cpus() else {
        return println!("skipped: cpus: one CPU");
    };
    let machine = |first: CpuSet, second: CpuSet| {
        let mut machine = synthetic::parse("node:2 memory:1G core:1 pu:1 distance:20").unwrap();
        machine.cpu_states.online = online();
        machine.nodes[0].cpus = first.into();
        machine.nodes[1].cpus = second.into();
        machine
    };
    let one = |cpu| [cpu].into_iter().collect::<CpuSet>();
    let moves = |machine: &Machine| {
        let counter = permitted(NodeMigrations::open(machine))?;
        for _ in 0..10 {
            move_to(a);
            move_to(b);
        }
        Some(counter.count().unwrap())
    };
    let Some(between) = moves(&machine(one(a), one(b))) else {
        return;
    };
    // Of other tasks as well, and the first may have been on its CPU already.
    assert!(between >= 19, "{between}");
    assert_eq!(moves(&machine(online(), CpuSet::new())), Some(0));
}

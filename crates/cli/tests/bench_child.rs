//! The probe and the load as children of the real program: what they do, what they refuse, and that none is left behind.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use nearfar_bench::load::{Load, PERIOD_S};
use nearfar_bench::options::HugePages;
use nearfar_bench::probe::{
    ChildError, Faults, Pattern, Probe, ProbeResult, ProbeSpec, SampleWarning, Where,
};
use nearfar_lab::shell::word;
use nearfar_machine::{CpuId, CpuSet, NodeId};
use nearfar_proc::{affinity, tasks};

static GO_ON: AtomicBool = AtomicBool::new(false);

fn nearfar() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_nearfar"))
}

/// A busy host moves pages more than once in a row (seen next to a build); what the probe itself faults on, it does each time.
const TRIES: usize = 8;

fn spec(pattern: Pattern) -> ProbeSpec {
    ProbeSpec {
        pattern,
        bytes: 8 << 20,
        counts: 20,
        steps: 10_000,
        memory: Where::Floating,
        cpus: Where::Floating,
        cpu_set: None,
        touch_cpus: None,
        huge_pages: HugePages::Auto,
    }
}

/// A CPU that this process may use: the last of the list in its status.
fn some_cpu() -> CpuId {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .unwrap();
    list.trim().parse::<CpuSet>().unwrap().last().unwrap()
}

/// What a child says to something on its standard input.
fn child(what: &str, input: &[u8]) -> Output {
    let mut command = Command::new(nearfar());
    command
        .args(["bench", "child", what])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // It may have given up before it has read everything.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

/// Whether a process is there and not merely waiting to be reaped.
fn lives(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Waits for the end of a process, generously.
fn ends(pid: i32) -> bool {
    let start = Instant::now();
    while lives(pid) && start.elapsed() < Duration::from_secs(60) {
        std::thread::yield_now();
    }
    !lives(pid)
}

#[test]
fn every_pattern_runs_and_the_kernel_counts_no_fault_in_its_timed_part() {
    for pattern in Pattern::ALL {
        let mut probe = Probe::prepare(nearfar(), &spec(pattern)).unwrap();
        let tasks = std::fs::read_dir(format!("/proc/{}/task", probe.pid()))
            .unwrap()
            .count();
        assert_eq!(tasks, 1, "tracing its pid must be enough");
        assert_eq!(probe.ready().pid, probe.pid());
        let result = probe.run(&GO_ON).unwrap();
        let name = std::fs::read_to_string(format!("/proc/{}/comm", probe.pid())).unwrap();
        assert_eq!(
            name, "nearfar-probe\n",
            "it can be asked about until it is dropped, and has a name in top"
        );
        assert!(
            result.seconds > 0.0 && result.elapsed_life_s >= result.seconds - 0.02,
            "{result:?}"
        );
        assert_eq!(
            (result.counts, result.steps, result.buffer_bytes),
            (20, 10_000, 8 << 20)
        );
        if !result.round_s.is_empty() {
            let sum: f64 = result.round_s.iter().sum();
            assert!(
                (sum - result.seconds).abs() < 1e-6,
                "rounds of {sum} s in {} s",
                result.seconds
            );
        }
        if result.numa_balancing.get() == Some(&false) && result.faults != Faults::default() {
            // The kernel may have moved a page for reasons of its own, but not each time.
            assert!(
                result
                    .warnings
                    .iter()
                    .any(|warning| matches!(warning, SampleWarning::Faults { .. })),
                "{:?}",
                result.warnings
            );
            let again = || {
                let mut probe = Probe::prepare(nearfar(), &spec(pattern)).unwrap();
                probe.run(&GO_ON).unwrap().faults
            };
            let mut tries = (0..TRIES).map(|_| again());
            let faults = result.faults;
            assert!(
                tries.any(|it| it == Faults::default()),
                "{pattern}, after {faults:?}"
            );
        }
        assert_eq!(result.switches.voluntary, 0, "{pattern}");
        if let (Some(before), Some(after)) = (result.pages_before.get(), result.pages_after.get()) {
            assert_eq!((before.nowhere, before.looked_at), (0, after.looked_at));
        }
        let text = serde_json::to_string(&result).unwrap();
        assert_eq!(
            serde_json::from_str::<ProbeResult>(&text)
                .unwrap()
                .round_s
                .len(),
            result.round_s.len()
        );
    }
}

#[test]
fn bound_memory_and_cpus_are_where_they_should_be() {
    let cpu = some_cpu();
    let bound = ProbeSpec {
        memory: Where::Node(NodeId(0)),
        cpus: Where::Node(NodeId(0)),
        cpu_set: Some(CpuSet::single(cpu)),
        ..spec(Pattern::RandomReadWrite)
    };
    let mut probe = match Probe::prepare(nearfar(), &bound) {
        Err(ChildError::Refused { reason }) if reason.contains("mbind") => {
            return println!("skipped: kernel: {reason}");
        }
        // A container that shows only some nodes.
        Err(ChildError::BadSpec { reason }) if reason.contains("no node 0") => {
            return println!("skipped: kernel: {reason}");
        }
        probe => probe.unwrap(),
    };
    assert_eq!(probe.ready().cpus, CpuSet::single(cpu));
    let result = probe.run(&GO_ON).unwrap();
    assert_eq!(result.cpus, CpuSet::single(cpu));
    if let Some(pages) = result.pages_after.get() {
        assert_eq!(pages.share_on(NodeId(0)), 1.0, "{:?}", result.warnings);
    }
}

#[test]
fn what_cannot_be_run_is_said_in_one_line_with_exit_code_2() {
    let line = |change: &str| {
        let mut spec = serde_json::to_value(spec(Pattern::RandomRead)).unwrap();
        let (key, value) = change.split_once('=').unwrap();
        spec[key] = serde_json::from_str(value).unwrap();
        format!("{spec}\n").into_bytes()
    };
    let mut long = vec![b'a'; 2 << 20];
    long.push(b'\n');
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("probe", line("memory=60000"), "there is no node 60000"),
        ("probe", line("cpus=60000"), "there is no node 60000"),
        (
            "probe",
            line("memory=\"everywhere\""),
            "neither a node's number nor \"floating\"",
        ),
        ("probe", line("bytes=0"), "at least 4096"),
        (
            "probe",
            line("bytes=18446744073709551615"),
            "no process can map",
        ),
        ("probe", line("bytes=70000000000000"), "too large"),
        ("probe", line("counts=0"), "at least one round"),
        ("probe", line("steps=0"), "at least one access"),
        ("probe", line("cpu_set=\"0\""), "cpus is \"floating\""),
        ("probe", line("pattern=\"zigzag\""), "zigzag"),
        ("probe", line("bits=3"), "bits"),
        ("probe", b"garbage\n".to_vec(), "makes no sense"),
        ("probe", vec![0xff, 0xfe, b'\n'], "something else than text"),
        ("probe", long, "longer than"),
        ("probe", Vec::new(), "no probe was described"),
        ("probe", line("counts=1"), "ended before it said \"go\""),
        ("load", Vec::new(), "no load was described"),
        (
            "load",
            b"{\"cpu\":60000,\"percent\":5,\"period_s\":0.01}\n".to_vec(),
            "there is no CPU 60000",
        ),
        (
            "load",
            b"{\"cpu\":0,\"percent\":100,\"period_s\":0.01}\n".to_vec(),
            "give 0 to 99",
        ),
        (
            "load",
            b"{\"cpu\":0,\"percent\":-1,\"period_s\":0.01}\n".to_vec(),
            "give 0 to 99",
        ),
        (
            "load",
            b"{\"cpu\":0,\"percent\":1,\"period_s\":1e9}\n".to_vec(),
            "give 0.0005 to 1",
        ),
    ];
    for (what, input, says) in cases {
        let output = child(what, &input);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{says}: {message}");
        assert!(message.contains(says), "\"{says}\" is not in: {message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}

#[test]
fn a_program_that_is_no_nearfar_is_recognised() {
    let error = |program: &str| {
        Probe::prepare(Path::new(program), &spec(Pattern::Chain))
            .err()
            .unwrap()
    };
    assert!(matches!(
        error("/nonexistent/nearfar"),
        ChildError::Start { .. }
    ));
    assert!(
        matches!(error("/bin/false"), ChildError::Ended { .. }),
        "{}",
        error("/bin/false")
    );
    assert!(
        matches!(error("/bin/echo"), ChildError::Nonsense { .. }),
        "{}",
        error("/bin/echo")
    );
}

#[test]
fn a_probe_that_is_cancelled_or_dropped_leaves_no_process_behind() {
    let endless = ProbeSpec {
        counts: u32::MAX,
        ..spec(Pattern::RandomRead)
    };
    let mut probe = Probe::prepare(nearfar(), &endless).unwrap();
    let pid = probe.pid();
    let cancelled = probe.run(&AtomicBool::new(true)).unwrap_err();
    assert!(
        matches!(cancelled, ChildError::Cancelled { .. }),
        "{cancelled}"
    );
    drop(probe);
    assert!(!lives(pid));
    let probe = Probe::prepare(nearfar(), &endless).unwrap();
    let pid = probe.pid();
    drop(probe);
    assert!(!lives(pid));
}

#[test]
fn a_probe_killed_in_its_timed_part_is_an_error_that_says_so() {
    let mut probe = Probe::prepare(
        nearfar(),
        &ProbeSpec {
            counts: u32::MAX,
            ..spec(Pattern::Chain)
        },
    )
    .unwrap();
    let pid = probe.pid();
    let killer = std::thread::spawn(move || {
        // SAFETY: sends a signal to a child that this test started and has not reaped.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
    });
    let error = probe.run(&GO_ON).unwrap_err();
    killer.join().unwrap();
    assert!(
        matches!(&error, ChildError::Ended { status, .. } if status.signal() == Some(libc::SIGKILL)),
        "{error}"
    );
}

#[test]
fn children_end_with_their_parent_even_when_it_is_killed() {
    let lines = [
        (
            "probe",
            format!(
                "{}\ngo\n",
                serde_json::to_string(&ProbeSpec {
                    counts: u32::MAX,
                    ..spec(Pattern::Chain)
                })
                .unwrap()
            ),
        ),
        (
            "load",
            "{\"cpu\":CPU,\"percent\":50,\"period_s\":0.01}\n"
                .replace("CPU", &some_cpu().to_string()),
        ),
        (
            "load",
            "{\"cpu\":CPU,\"percent\":0,\"period_s\":0.01}\n"
                .replace("CPU", &some_cpu().to_string()),
        ),
    ];
    for (what, input) in lines {
        // A shell as the parent; the pipe to its child stays open in this test, so that only the parent's end counts.
        let script = format!(
            "{} bench child {what} <&3 & echo $!; wait",
            word(nearfar().as_os_str())
        );
        let mut pipe = [0; 2];
        // SAFETY: writes two descriptors to an array of two.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("exec 3<&{}; {script}", pipe[0])])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut shell = command.spawn().unwrap();
        let mut output = BufReader::new(shell.stdout.take().unwrap()).lines();
        let pid: i32 = output.next().unwrap().unwrap().parse().unwrap();
        // SAFETY: writes text to a pipe of this test.
        let written = unsafe { libc::write(pipe[1], input.as_ptr().cast(), input.len()) };
        assert_eq!(written, input.len() as isize);
        assert!(output.next().unwrap().unwrap().contains("ready"), "{what}");
        assert!(lives(pid));
        shell.kill().unwrap();
        shell.wait().unwrap();
        assert!(ends(pid), "{what} {pid} outlived its parent");
        for descriptor in pipe {
            // SAFETY: closes what this test opened.
            unsafe { libc::close(descriptor) };
        }
    }
}

#[test]
fn a_load_runs_on_its_cpu_until_it_is_stopped_and_says_what_it_got() {
    let cpu = some_cpu();
    for percent in [0.0, 30.0] {
        let begun = Instant::now();
        let load = Load::start(nearfar(), &CpuSet::single(cpu), percent, PERIOD_S, false).unwrap();
        let pids = load.pids();
        assert_eq!((pids.len(), lives(pids[0])), (1, true));
        assert_eq!(affinity::get(pids[0]).unwrap(), CpuSet::single(cpu));
        let report = load.stop().unwrap();
        assert!(!lives(pids[0]));
        let got = &report.cpus[0];
        assert_eq!((got.cpu, got.pid, report.cpus.len()), (cpu, pids[0], 1));
        // Neither clock of the load can have passed this one.
        let elapsed_s = begun.elapsed().as_secs_f64();
        let used_s = got.seconds * got.achieved_percent / 100.0;
        assert!(got.seconds > 0.0 && got.seconds <= elapsed_s, "{got:?}");
        assert!((0.0..=elapsed_s).contains(&used_s), "{got:?}");
    }
}

/// Judges that it stands still and goes on, however long either takes.
#[test]
fn a_load_that_is_held_burns_nothing_until_it_may_go_on() {
    let mut load =
        Load::start(nearfar(), &CpuSet::single(some_cpu()), 50.0, PERIOD_S, true).unwrap();
    let pid = load.pids()[0];
    let ran_ns = || tasks::run_time(pid).unwrap().run_ns;
    let wait_until = |stands_still: bool| {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let before = ran_ns();
            std::thread::sleep(Duration::from_millis(50));
            if (ran_ns() == before) == stands_still {
                break;
            }
            assert!(Instant::now() < until, "held: {stands_still}");
        }
    };
    wait_until(false);
    load.set_held(true).unwrap();
    wait_until(true);
    load.set_held(false).unwrap();
    wait_until(false);
    load.set_held(true).unwrap();
    assert!(load.stop().is_ok());
}

/// In the slow tier: a share is one of time. The unit tests of `load::steering` have the same with simulated clocks.
#[test]
fn a_load_burns_about_its_share_and_says_what_it_got() {
    let cpu = some_cpu();
    for percent in [0.0, 5.0, 30.0] {
        let load = Load::start(nearfar(), &CpuSet::single(cpu), percent, PERIOD_S, false).unwrap();
        let pids = load.pids();
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(1500) {
            // SAFETY: a load ends by itself only when something is wrong with it.
            assert_eq!(unsafe { libc::kill(pids[0], 0) }, 0);
            std::thread::park_timeout(Duration::from_millis(50));
        }
        let report = load.stop().unwrap();
        assert!(!lives(pids[0]));
        let got = &report.cpus[0];
        println!("{percent} %: {got:?}");
        assert_eq!((got.cpu, got.pid, report.cpus.len()), (cpu, pids[0], 1));
        // What it could not have it gave up on or still owes: only too much is its own fault, whatever else runs here.
        // In a guest that includes time that the hypervisor took: one such gap has been 140 ms long.
        let stalled_percent = 100.0 * got.stalled_s / got.seconds;
        assert!(
            got.achieved_percent < percent + 2.0 + stalled_percent,
            "{got:?}"
        );
        let owed = got.seconds * (percent - got.achieved_percent) / 100.0;
        assert!(
            owed < got.given_up_s + 0.1 + 0.05 * got.seconds,
            "{owed} s are missing: {got:?}"
        );
    }
}

#[test]
fn a_load_that_cannot_be_is_refused_before_it_starts() {
    let started = Load::start(
        nearfar(),
        &CpuSet::single(CpuId(60_000)),
        5.0,
        PERIOD_S,
        false,
    );
    assert!(
        matches!(started, Err(ChildError::BadSpec { reason }) if reason.contains("no CPU 60000"))
    );
    let started = Load::start(
        nearfar(),
        &CpuSet::single(some_cpu()),
        f64::NAN,
        PERIOD_S,
        false,
    );
    assert!(matches!(started, Err(ChildError::BadSpec { .. })));
}

//! However a guest or its owner ends: nothing is left.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::panic::resume_unwind;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::booting::{boot, fail, mark, prepared, tried_again};
use nearfar_lab::cache::Cache;
use nearfar_lab::error::BootProblem;
use nearfar_lab::guest::{BootFailure, Exec, Guest, Input, PreparedGuest, Signals, Streams};
use nearfar_lab::{Arch, LabError};
use rustix::process::{Pid, Signal, kill_process};

const CHILD: &str = "NEARFAR_TEST_CHILD";

/// The QEMUs of a process's guests.
fn qemus_of(process: u32) -> Vec<u32> {
    let mark = mark(process).display().to_string();
    let numbers = fs::read_dir("/proc")
        .expect("proc")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let has = |number: &u32| {
        fs::read(format!("/proc/{number}/cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains(&mark))
    };
    numbers.filter(has).collect()
}

/// Everything below a folder.
fn files_below(folder: &Path) -> BTreeSet<String> {
    let Ok(entries) = fs::read_dir(folder) else {
        return BTreeSet::new();
    };
    let paths: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    let below = paths
        .iter()
        .filter(|path| path.is_dir() && !path.is_symlink())
        .flat_map(|path| files_below(path));
    below
        .chain(paths.iter().map(|path| path.display().to_string()))
        .collect()
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        // Against hanging: this takes less than a second.
        assert!(started.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Not a test by itself: the process that [`a_killed_owner_leaves_no_process_mount_or_file`] kills.
#[test]
fn child_that_is_killed() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let prepared = prepared("two-node", Arch::X86_64).expect("the parent had one");
    // From a thread that ends, as in a program that boots several guests: the guest must not end with it.
    let guest = thread::spawn(move || boot(&prepared))
        .join()
        .expect("a guest");
    println!("\nup");
    thread::sleep(Duration::from_secs(600));
    drop(guest);
}

#[test]
fn a_killed_owner_leaves_no_process_mount_or_file() {
    if prepared("two-node", Arch::X86_64).is_none() {
        return;
    }
    let temporary = tempfile::tempdir().expect("a folder");
    let cache = Cache::of_user().expect("a cache");
    let mounts = fs::read_to_string("/proc/mounts").expect("proc");
    let unpacked = cache.root().join("unpacked");
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args([
            "--exact",
            "guest_endings::child_that_is_killed",
            "--nocapture",
        ])
        .env(CHILD, "yes")
        .env("TMPDIR", temporary.path())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program starts");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    assert!(
        lines.map_while(Result::ok).any(|line| line == "up"),
        "the guest did not come up"
    );
    let kept = files_below(&unpacked);
    assert_eq!(qemus_of(child.id()).len(), 1);
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    wait_until("QEMU is still there", || qemus_of(child.id()).is_empty());
    assert_eq!(fs::read_to_string("/proc/mounts").expect("proc"), mounts);
    assert_eq!(files_below(temporary.path()), BTreeSet::new());
    assert_eq!(files_below(&unpacked), kept);
    assert!(kept.iter().all(|name| !name.contains(".tmp")), "{kept:?}");
}

#[test]
fn three_guests_at_once_do_not_disturb_each_other() {
    tried_again(three_guests);
}

fn three_guests() {
    let Some(prepared) = prepared("two-node", Arch::X86_64) else {
        return;
    };
    let prepared = &prepared;
    let names = ["first", "second", "third"];
    let said = thread::scope(|threads| {
        let guests = names.map(|name| {
            threads.spawn(move || {
                let output = boot(prepared).output(&["sh", "-c", &format!("echo {name}; exit 7")]);
                output.unwrap_or_else(|error| fail(error))
            })
        });
        guests.map(|guest| guest.join().unwrap_or_else(|failed| resume_unwind(failed)))
    });
    for (name, output) in names.iter().zip(said) {
        assert_eq!(
            (output.code, String::from_utf8_lossy(&output.stdout).trim()),
            (7, *name)
        );
    }
    wait_until("QEMU is still there", || {
        qemus_of(std::process::id()).is_empty()
    });
}

#[test]
fn a_kernel_that_dies_is_an_error_with_its_last_words() {
    let Some(mut prepared) = prepared("two-node", Arch::X86_64) else {
        return;
    };
    prepared.request.append = vec![
        "rdinit=/no-such-file".to_owned(),
        "root=/dev/nothing".to_owned(),
    ];
    match Guest::boot(&prepared, &AtomicBool::new(false)) {
        Err(LabError::Boot { console, .. }) => {
            assert!(console.contains("Kernel panic"), "{console}")
        }
        other => panic!("{other:?}"),
    }
}

/// As a failed assertion of QEMU ends it, whatever its kernel has printed by then.
#[test]
fn a_qemu_that_aborts_is_started_again() {
    let Some(mut prepared) = prepared("two-node", Arch::X86_64) else {
        return;
    };
    prepared.request.cold = true;
    // By its CPU time it executes the kernel, and is not up for long yet.
    let executes = |process: &u32| {
        let stat = nearfar_proc::tasks::stat(process.cast_signed());
        stat.is_ok_and(|stat| stat.cpu_seconds() > 1.0)
    };
    let guest = thread::scope(|threads| {
        let guest = threads.spawn(|| boot(&prepared));
        let mut qemu = None;
        wait_until("there is no QEMU", || {
            qemu = qemus_of(std::process::id()).into_iter().find(executes);
            qemu.is_some()
        });
        let qemu = qemu.and_then(|it| Pid::from_raw(it.cast_signed()));
        kill_process(qemu.expect("a process"), Signal::ABORT).expect("it runs");
        guest.join().unwrap_or_else(|failed| resume_unwind(failed))
    });
    let failed = guest.failed_boots();
    assert!(failed.contains(&BootFailure::Aborted), "{failed:?}");
}

#[test]
fn a_qemu_that_refuses_its_arguments_is_quoted() {
    let Some(mut prepared) = prepared("two-node", Arch::X86_64) else {
        return;
    };
    prepared.kernel.image = "/dev/null".into();
    match Guest::boot(&prepared, &AtomicBool::new(false)) {
        Err(LabError::Boot { problem, console }) => {
            assert!(console.contains("QEMU said last"), "{problem} {console}");
            let wanted = BootProblem::Repeated {
                failure: BootFailure::Silent,
                attempts: 3,
            };
            assert_eq!(problem, wanted);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_boot_can_be_cancelled_and_bounded() {
    let Some(mut prepared) = prepared("two-node", Arch::X86_64) else {
        return;
    };
    // A start from a saved guest may be over before it is cancelled.
    prepared.request.cold = true;
    let cancel = AtomicBool::new(false);
    thread::scope(|threads| {
        threads.spawn(|| {
            wait_until("QEMU does not start", || {
                !qemus_of(std::process::id()).is_empty()
            });
            cancel.store(true, Ordering::Relaxed);
        });
        assert!(matches!(
            Guest::boot(&prepared, &cancel),
            Err(LabError::Interrupted)
        ));
    });
    prepared.request.boot_timeout = Duration::from_millis(200);
    assert!(matches!(
        Guest::boot(&prepared, &AtomicBool::new(false)),
        Err(LabError::Boot {
            problem: BootProblem::TimedOut { .. },
            ..
        })
    ));
    wait_until("QEMU is still there", || {
        qemus_of(std::process::id()).is_empty()
    });
}

#[test]
fn a_command_that_does_not_end_is_given_its_time() {
    let Some(mut prepared) = prepared("two-node", Arch::X86_64) else {
        return;
    };
    // A guest on a busy host may take longer until the command says something.
    let limits = [2, 10, 60].map(Duration::from_secs);
    let outputs = limits.iter().map(|limit| {
        prepared.request.command_timeout = Some(*limit);
        said_until(&prepared, *limit)
    });
    let mut outputs =
        outputs.inspect(|(output, _)| assert!("begun\n".starts_with(output.as_str())));
    assert!(
        outputs.any(|(output, is_described)| output == "begun\n" && is_described),
        "what it said before is not lost, and what it waits for is said"
    );
}

/// What a command says that is ended after this time, and whether the error says what it waits for.
fn said_until(prepared: &PreparedGuest, limit: Duration) -> (String, bool) {
    let mut guest = boot(prepared);
    let mut output = Vec::new();
    let streams = Streams {
        input: Input::Nothing,
        output: Box::new(&mut output),
        errors: Box::new(std::io::sink()),
    };
    let is_described = match guest.exec(
        &Exec::new(&["sh", "-c", "echo begun; sleep 600"]),
        streams,
        &Signals::none(),
    ) {
        Err(LabError::OutOfTime {
            limit: given,
            console,
        }) => {
            assert_eq!(given, limit);
            println!("{console}");
            console.contains("(sleep) S waits in hrtimer_nanosleep")
        }
        other => panic!("{other:?}"),
    };
    wait_until("QEMU is still there", || {
        qemus_of(std::process::id()).is_empty()
    });
    (String::from_utf8(output).expect("text"), is_described)
}

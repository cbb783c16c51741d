//! What tests that boot share: a small request, and that no more than one test boots at a time.

use std::fmt::Display;
use std::panic::{catch_unwind, panic_any, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nearfar_lab::cache::Cache;
use nearfar_lab::guest::{
    BootFailure, Exec, Guest, Input, Output, PreparedGuest, Signals, Streams,
};
use nearfar_lab::request::GuestRequest;
use nearfar_lab::{Arch, LabError, Start, foreign};
use nearfar_machine::Acceleration;
use nearfar_sources::{Request, Want, read};

/// A guest of a machine of the gallery with two CPUs and 512 MiB a node; `None`, having said why, where that cannot be.
pub fn prepared(machine: &str, arch: Arch) -> Option<PreparedGuest> {
    match prepare(machine, arch) {
        Ok(prepared) => Some(prepared),
        Err(error) => {
            println!("skipped: guests: {error}");
            None
        }
    }
}

fn prepare(machine: &str, arch: Arch) -> Result<PreparedGuest, LabError> {
    let cache = Cache::of_user()?;
    fetches_nothing(&cache, arch)?;
    let described = read(&Request::source(machine, Want::all())).expect("a machine of the gallery");
    let results = mark(std::process::id());
    std::fs::create_dir_all(&results).expect("a folder");
    let request = GuestRequest {
        limits: "cpus=2,memory=512M".parse().expect("a scale"),
        arch: Some(arch),
        acceleration: Some(Acceleration::Tcg),
        boot_timeout: Duration::from_secs(240),
        command_timeout: Some(Duration::from_secs(100)),
        results: Some(results),
        ..GuestRequest::new(
            described,
            format!("{machine} of process {}", std::process::id()),
        )
    };
    request.prepare(&cache)
}

/// The results folder of a process's guests: on the command line of each QEMU, so a test finds its processes by it, and no part
/// of what a saved guest depends on.
pub fn mark(process: u32) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("guests-of-process-{process}"))
}

/// Fails where a guest would first fetch programs: a test asks no network.
fn fetches_nothing(cache: &Cache, arch: Arch) -> Result<(), LabError> {
    let missing = |what: String, hint: &str| LabError::Missing {
        what,
        hint: hint.to_owned(),
    };
    if Arch::host() == Some(arch) {
        let installed = foreign::installed_busybox(arch).map(drop);
        return installed
            .ok_or_else(|| missing("a static busybox".to_owned(), "install busybox-static"));
    }
    let hint =
        "`nearfar lab kernels get --all` and the first guest of that architecture fetch them";
    let cached = foreign::cached(cache, arch).map(drop);
    cached.ok_or_else(|| missing(format!("the static programs for {arch}"), hint))
}

/// A guest that is up.
pub fn boot(prepared: &PreparedGuest) -> Guest {
    Guest::boot(prepared, &AtomicBool::new(false)).unwrap_or_else(|error| fail(error))
}

/// A test has failed of an error of this code, after which the same guest may do better (docs/json.md).
struct ByChance(&'static str);

/// Fails the test.
pub fn fail(error: LabError) -> ! {
    match error.code() {
        "guest-hung" | "guest-broken" => fail_by_chance(error.code(), &error),
        _ => panic!("{error}"),
    }
}

/// Fails the test for a reason that the same guest may not have again.
fn fail_by_chance(code: &'static str, error: &dyn Display) -> ! {
    eprintln!("{error}");
    panic_any(ByChance(code))
}

/// Fails the test unless the guest was started so; by chance where it was to be loaded and hung meanwhile.
#[allow(dead_code, reason = "not every test looks at how a guest was started")]
pub fn check_start(guest: &Guest, start: Start) {
    match guest.failed_boots() {
        [BootFailure::NotLoaded(reason)] if start == Start::Load && reason.contains("stalled") => {
            fail_by_chance("guest-hung", reason)
        }
        failed => assert_eq!(guest.start(), start, "{failed:?}"),
    }
}

/// Runs a test; once more where a guest hung or QEMU broke its kernel, which no test here can help (crates/cli/tests/guest/guests.rs does
/// so with commands). The test runner counts such lines.
pub fn tried_again(test: fn()) {
    let Err(failed) = catch_unwind(test) else {
        return;
    };
    let Some(ByChance(code)) = failed.downcast_ref() else {
        resume_unwind(failed)
    };
    println!("retried: {code}");
    test();
}

/// Runs a shell command in the guest with this input.
#[allow(dead_code, reason = "not every test binary sends input")]
pub fn fed(guest: &mut Guest, script: &str, input: Vec<u8>) -> Output {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let streams = Streams {
        input: Input::Bytes(input),
        output: Box::new(&mut stdout),
        errors: Box::new(&mut stderr),
    };
    let exit = guest.exec(&Exec::new(&["sh", "-c", script]), streams, &Signals::none());
    let code = exit.unwrap_or_else(|error| fail(error)).code;
    Output {
        code,
        stdout,
        stderr,
    }
}

//! What tests that boot share: a small request, and that no more than one test boots at a time.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nearfar_lab::cache::Cache;
use nearfar_lab::design::Design;
use nearfar_lab::guest::{Exec, Guest, GuestRequest, Input, Output, Root, Signals, Streams};
use nearfar_lab::kernels;
use nearfar_lab::qemu::{Acceleration, Qemu};
use nearfar_lab::{Arch, LabError, foreign, scale};
use nearfar_sources::{Request, Want, read};
use rustix::fs::{FlockOperation, flock};

/// A guest of a machine of the gallery with two CPUs and 512 MiB a node; `None`, having said why, where that cannot be.
pub fn request(machine: &str, arch: Arch) -> Option<GuestRequest> {
    match try_request(machine, arch) {
        Ok(request) => Some(request),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

fn try_request(machine: &str, arch: Arch) -> Result<GuestRequest, LabError> {
    let cache = Cache::of_user()?;
    let qemu = Qemu::find(arch)?;
    let kernel = kernels::find(None, arch)?;
    let foreign = match Arch::host() == Some(arch) {
        true => None,
        false => Some(foreign::cached(&cache, arch).ok_or_else(|| LabError::Missing {
            what: format!("the static programs for {arch}"),
            hint: "nearfar lab kernels get fetches them".to_owned(),
        })?),
    };
    let busybox = match &foreign {
        Some(foreign) => foreign.busybox.clone(),
        None => foreign::installed_busybox(arch).ok_or_else(|| LabError::Missing {
            what: "a static busybox".to_owned(),
            hint: "busybox-static".to_owned(),
        })?,
    };
    let described = read(&Request::source(machine, Want::all())).expect("a machine of the gallery");
    let scaled = scale::scaled(&described, "cpus=2,memory=512M".parse().expect("a scale"))?;
    Ok(GuestRequest {
        design: Design::new(&scaled, arch)?,
        kernel,
        qemu,
        acceleration: Acceleration::Tcg,
        append: Vec::new(),
        label: format!("test of process {}", std::process::id()),
        delay: None,
        root: Root::Overlay,
        results: None,
        foreign,
        busybox,
        boot_timeout: Duration::from_secs(240),
        console: false,
        notes: Vec::new(),
    })
}

/// Held while a test's guests run: guests of all test binaries share a few CPUs.
pub fn turn() -> File {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guests.lock");
    let file = File::options().create(true).truncate(false).write(true).open(path).expect("a lock file");
    flock(&file, FlockOperation::LockExclusive).expect("a lock");
    file
}

/// A guest that is up.
pub fn boot(request: &GuestRequest) -> Guest {
    Guest::boot(request, &AtomicBool::new(false)).unwrap_or_else(|error| panic!("{error}"))
}

/// Runs a shell command in the guest with this input.
#[allow(dead_code, reason = "not every test binary sends input")]
pub fn fed(guest: &mut Guest, script: &str, input: Vec<u8>) -> Output {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let streams = Streams { input: Input::Bytes(input), output: Box::new(&mut stdout), errors: Box::new(&mut stderr) };
    let exit = guest.exec(&Exec::new(&["sh", "-c", script]), streams, &Signals::none());
    let code = exit.unwrap_or_else(|error| panic!("{error}")).code;
    Output { code, stdout, stderr }
}

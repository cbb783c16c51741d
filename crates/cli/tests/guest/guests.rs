//! What tests that boot through the command share: why they cannot run here, and the command itself.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use nearfar_lab::cache::Cache;
use nearfar_lab::delay::{self, TimeSpec};
use nearfar_lab::qemu::Qemu;
use nearfar_lab::{Arch, LabError, foreign, kernels};
use nearfar_machine::{Acceleration, SimulatedTime};

pub const NEARFAR: &str = env!("CARGO_BIN_EXE_nearfar");
/// The kernel of the guests here.
pub const SERIES: &str = "6.12";

/// What a guest is ended after that hangs: several times what any of these tests takes, but for the matrix of the probe.
pub const IN_TIME: [&str; 2] = ["--command-timeout", "300"];

/// Says why no guest can be had here, if so.
pub fn skipped() -> bool {
    let look = || -> Result<(), LabError> {
        let cache = Cache::of_user()?;
        kernels::find_in(&cache, Some(SERIES), Arch::X86_64)?;
        foreign::busybox(&cache, Arch::X86_64)?;
        Qemu::find(Arch::X86_64).map(drop)
    };
    let why = match Arch::host() {
        Some(Arch::X86_64) => look().err().map(|error| error.to_string()),
        _ => Some("the guest runs this machine's own programs, which are not x86-64's".to_owned()),
    };
    if let Some(why) = &why {
        println!("skipped: guests: {why}");
    }
    why.is_some()
}

/// The same for guests in simulated time.
pub fn skipped_in_simulated_time() -> bool {
    let look = || -> Result<(), LabError> {
        let qemu = Qemu::find(Arch::X86_64)?;
        TimeSpec::Simulated(SimulatedTime::default()).on(&qemu, Arch::X86_64, Acceleration::Tcg)?;
        delay::find_plugin(&qemu).map(drop)
    };
    skipped()
        || look()
            .inspect_err(|why| println!("skipped: guests: {why}"))
            .is_err()
}

/// `nearfar lab run` of a machine of the gallery, up to the command to run in it.
pub fn lab_run(machine: &str, options: &[&str]) -> Command {
    let mut command = Command::new(NEARFAR);
    command.env(
        "NEARFAR_STORE",
        concat!(env!("CARGO_TARGET_TMPDIR"), "/guests.db"),
    );
    command
        .args([
            "lab",
            "run",
            "--machine",
            machine,
            "--kernel",
            SERIES,
            "--accel",
            "tcg",
        ])
        .args(status_option())
        .args(options)
        .arg("--");
    command
}

/// The option of `nearfar lab run` that [`output`] reads: a file of this test process.
pub fn status_option() -> [String; 2] {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("status-{}-{number}.json", std::process::id());
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    ["--status".to_owned(), file.to_str().unwrap().to_owned()]
}

/// Runs `nearfar lab run` with [`status_option`]; once more where the guest hung or QEMU broke its kernel
/// (crates/lab/src/guest/health.rs has how), which no test here can help. The test runner counts such lines.
pub fn output(command: &mut Command) -> Output {
    let first = command.output().unwrap();
    let Some(code) = error_code(command).filter(|code| BY_CHANCE.contains(&code.as_str())) else {
        return first;
    };
    let errors = String::from_utf8_lossy(&first.stderr);
    println!("retried: {code}\n{errors}");
    let second = command.output().unwrap();
    error_code(command);
    second
}

/// The codes of errors after which the same guest may do better (docs/json.md).
const BY_CHANCE: [&str; 2] = ["guest-hung", "guest-broken"];

/// The code of the error in a command's status file, which is removed.
fn error_code(command: &Command) -> Option<String> {
    let mut words = command.get_args().skip_while(|word| *word != "--status");
    let file = words.nth(1)?;
    let status = std::fs::read(file).ok()?;
    std::fs::remove_file(file).unwrap();
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
    Some(status["error"]["code"].as_str()?.to_owned())
}

/// Runs an ignored test of this program in a guest, and fails if it fails there. Returns its standard output, printed as well.
pub fn part(machine: &str, options: &[&str], test: &str) -> String {
    let mut command = lab_run(machine, &[options, &IN_TIME].concat());
    command.arg(std::env::current_exe().unwrap()).args([
        "--exact",
        test,
        "--ignored",
        "--nocapture",
    ]);
    let output = output(&mut command);
    let (text, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    println!("{text}{errors}");
    assert!(output.status.success(), "{}: {errors}", output.status);
    // A name that matches no test succeeds as well.
    assert!(
        text.contains("test result: ok. 1 passed"),
        "{test} did not run"
    );
    text.into_owned()
}

/// Whether this process runs in a guest.
pub fn is_inside() -> bool {
    std::fs::read_to_string("/proc/cmdline").is_ok_and(|words| words.contains("nearfar.lab"))
}

/// Runs a script in a guest; its standard output, printed as well.
pub fn script(machine: &str, options: &[&str], script: &str) -> String {
    let output =
        output(lab_run(machine, &[options, &IN_TIME].concat()).args(["sh", "-c", script, NEARFAR]));
    let (text, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    println!("{text}{errors}");
    assert!(output.status.success(), "{}: {errors}", output.status);
    text.into_owned()
}

/// In a guest: the memory that this thread touches next is of a node while that has room, or of the one it runs on.
pub fn take_memory_of(node: Option<u32>) {
    const BITS: usize = 64;
    let nodes: libc::c_ulong = node.map_or(0, |node| 1 << node);
    let policy = node.map_or(libc::MPOL_DEFAULT, |_| libc::MPOL_PREFERRED);
    // SAFETY: the kernel reads one word of as many bits.
    let result = unsafe { libc::syscall(libc::SYS_set_mempolicy, policy, &raw const nodes, BITS) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

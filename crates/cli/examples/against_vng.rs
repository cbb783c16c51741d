//! The time from a command's start to its first output: `nearfar lab run` from a saved guest, with a boot (`--cold`), and
//! virtme-ng's `vng`, in turn in one run.
//!
//! ```text
//! make bench
//! ```
//!
//! Each runs `echo` in two nodes with two vCPUs and 512 MiB each, at distance 20, under software emulation, with the same
//! distribution kernel and this host's files. Last comes a guest of 64 vCPUs from its saved state. What is printed is the
//! median of the pairwise ratios with their range, so that a machine whose speed drifts does not favour either side. What is
//! not there, or fails twice in a row, is left out, with the reason.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nearfar_lab::cache::Cache;
use nearfar_lab::kernels::{self, Kernel};
use nearfar_lab::qemu::Qemu;
use nearfar_lab::{Arch, LabError, delay};

mod measured;

use measured::{Contender, Spread, beside_us, print_goal, race};

const VNG: &str = "vng --run";
/// Of the times to the first output.
const MAX_RATIO: f64 = 1.0;
/// The series that both boot.
const SERIES: &str = "6.12";
/// The guest's standard output, if virtme-ng finds its virtio ports: it does where a udev daemon loads their driver, which
/// is a module in distribution kernels. Elsewhere the command's output goes to a console that is thrown away, so the
/// same words go to a second serial port, and the earlier of both counts.
const SAY_IN_VNG: &str = "echo first; echo first > /dev/ttyS1";

fn main() -> io::Result<()> {
    let rounds = std::env::args()
        .nth(1)
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(10);
    let (kernel, qemu) = match kernel_and_qemu() {
        Ok(both) => both,
        Err(why) => {
            println!("skipped: {why}");
            return Ok(());
        }
    };
    let nearfar = beside_us("nearfar")?;
    let plugin = delay::find_plugin(&qemu).map_err(|error| error.to_string());
    let vng = virtme_ng(&kernel);
    for (what, problem) in [
        ("delays", plugin.as_ref().err()),
        ("virtme-ng", vng.as_ref().err()),
    ] {
        problem
            .into_iter()
            .for_each(|why| println!("skipped: {what}: {why}"));
    }
    println!(
        "Linux {}, {rounds} rounds after one warm-up, median (lowest to highest)\n",
        kernel.release
    );
    let ours =
        |options: &'static [&'static str]| first_output(&mut our_guest(&nearfar, SMALL, options));
    let mut contenders = vec![Contender::new("lab run, warm", || ours(&[]))];
    if plugin.is_ok() {
        contenders.push(Contender::new("  with --delay auto", || {
            ours(&["--delay", "auto"])
        }));
    }
    contenders.push(Contender::new("lab run --cold", || ours(&["--cold"])));
    if let Ok(image) = &vng {
        contenders.push(Contender::new(VNG, move || {
            first_output(&mut their_guest(image))
        }));
    }
    // The first round fills the page cache, and nearfar's own with the unpacked kernel and the saved guest.
    let say = &mut |text| println!("{text}");
    race(&mut contenders, rounds, say);
    let (warm, others) = contenders.split_first().expect("the first is always there");
    print_row(warm.name, &warm.costs);
    others
        .iter()
        .for_each(|other| print_row(other.name, &other.costs));
    println!();
    for other in others
        .iter()
        .filter(|other| !other.costs.is_empty() && !warm.costs.is_empty())
    {
        let ratio = ratios(&warm.costs, &other.costs);
        println!("warm / {:20} {}", other.name.trim(), ratio.with_unit("x"));
        if other.name == VNG {
            let what = "time of lab run, warm, by vng --run, to the first output";
            print_goal(what, &ratio, "x", MAX_RATIO);
        }
    }
    let mut large = [Contender::new("64 vCPUs, warm", || {
        first_output(&mut our_guest(&nearfar, LARGE, &[]))
    })];
    race(&mut large, rounds, say);
    println!();
    print_row(large[0].name, &large[0].costs);
    Ok(())
}

/// The machines, and how much memory a node has.
const SMALL: [&str; 2] = ["node:2 core:2", "memory=512M"];
const LARGE: [&str; 2] = ["node:2 core:32", "memory=1G"];

fn print_row(name: &str, times: &[Duration]) {
    if !times.is_empty() {
        println!(
            "{name:22} {}",
            Spread::of(times.iter().map(Duration::as_secs_f64)).with_unit("s")
        );
    }
}

/// Of runs that followed each other.
fn ratios(times: &[Duration], than: &[Duration]) -> Spread {
    Spread::of(
        times
            .iter()
            .zip(than)
            .map(|(time, than)| time.as_secs_f64() / than.as_secs_f64()),
    )
}

/// What both boot, and in what; or why there is nothing to measure.
fn kernel_and_qemu() -> Result<(Kernel, Qemu), String> {
    if Arch::host() != Some(Arch::X86_64) {
        return Err("the guests are x86-64 ones, and this host is not".to_owned());
    }
    let found = || {
        Ok((
            kernels::find_in(&Cache::of_user()?, Some(SERIES), Arch::X86_64)?,
            Qemu::find(Arch::X86_64)?,
        ))
    };
    found().map_err(|error: LabError| error.to_string())
}

/// The image to give virtme-ng, or why it is left out and what brings it. It looks for modules next to the image, in
/// `../lib/modules`.
fn virtme_ng(kernel: &Kernel) -> Result<PathBuf, String> {
    let install = "tools/install-python target/vng virtme-ng";
    for (program, brings) in [
        ("vng", install),
        ("virtme-run", install),
        ("depmod", "apt-get install kmod"),
    ] {
        if !their_path().any(|folder| folder.join(program).is_file()) {
            return Err(format!(
                "there is no {program} on the PATH; it comes with: {brings}"
            ));
        }
    }
    let modules = kernel
        .image
        .parent()
        .and_then(Path::parent)
        .map(|folder| folder.join("lib/modules"));
    match modules.filter(|modules| modules.join(&kernel.release).is_dir()) {
        Some(_) => Ok(kernel.image.clone()),
        None => Err(format!(
            "it finds no modules for {}",
            kernel.image.display()
        )),
    }
}

/// The PATH with the folders of programs for administrators, where depmod is.
fn their_path() -> impl Iterator<Item = PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<_> = std::env::split_paths(&path).collect();
    folders
        .into_iter()
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
}

fn our_guest(nearfar: &Path, [machine, memory]: [&str; 2], options: &[&str]) -> Command {
    let mut command = Command::new(nearfar);
    command.args([
        "lab",
        "run",
        "--machine",
        machine,
        "--scale",
        memory,
        "--accel",
        "tcg",
        "--kernel",
        SERIES,
    ]);
    command.args(options).args(["--", "echo", "first"]);
    command
}

fn their_guest(image: &Path) -> Command {
    let mut command = Command::new("vng");
    // Joining fails for folders with a colon in their names only, and these came from a PATH.
    command
        .env(
            "PATH",
            std::env::join_paths(their_path()).unwrap_or_default(),
        )
        .arg("--run")
        .arg(image);
    command.args([
        "--disable-kvm",
        "--numa",
        "512M,cpus=0-1",
        "--numa",
        "512M,cpus=2-3",
        "--numa-distance",
        "0,1=20",
    ]);
    command.args(["--cpus", "4", "--memory", "1G", "--exec", SAY_IN_VNG]);
    command.arg("--qemu-opts=-chardev file,id=first,path=/proc/self/fd/1 -serial chardev:first");
    command
}

/// Runs a guest to its end; the time until its command printed something.
fn first_output(command: &mut Command) -> io::Result<Duration> {
    let start = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let (Some(mut out), Some(mut err)) = (out, err) else {
        return Err(io::Error::other("no pipes"));
    };
    // Read by itself: a full pipe would stop the guest.
    let complaints = std::thread::spawn(move || {
        let mut text = Vec::new();
        // What cannot be read is not shown.
        let _ = err.read_to_end(&mut text);
        text
    });
    let mut output = [0];
    let said = out.read(&mut output)?;
    let time = start.elapsed();
    io::copy(&mut out, &mut io::sink())?;
    let status = child.wait()?;
    let complaints = complaints.join().unwrap_or_default();
    // Where virtme-ng's ports are missing, so is the command's exit code, and its own is 255: the output decides.
    match said == 1 {
        true => Ok(time),
        false => Err(io::Error::other(format!(
            "{command:?} printed nothing ({status}): {}",
            String::from_utf8_lossy(&complaints)
        ))),
    }
}

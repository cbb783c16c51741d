//! The time from a command's start to its first output: `nearfar lab run` against virtme-ng's `vng`, and against itself
//! with slow far memory, in turn in one run.
//!
//! ```text
//! make bench
//! ```
//!
//! Each boots two nodes with two vCPUs and 512 MiB each, at distance 20, under software emulation, with the same
//! distribution kernel and this host's files, runs `echo`, and is powered off. What is printed is the median of the
//! pairwise ratios with their range, so that a machine whose speed drifts does not favour either side. What is not there
//! is left out, with the command that brings it.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nearfar_lab::cache::Cache;
use nearfar_lab::kernels::{self, Kernel};
use nearfar_lab::qemu::Qemu;
use nearfar_lab::{Arch, LabError, delay};

mod measured;

use measured::{Spread, beside_us};

/// The series that both boot.
const SERIES: &str = "6.12";
/// The guest's standard output, if virtme-ng finds its virtio ports: it does where a udev daemon loads their driver, which
/// is a module in distribution kernels. Elsewhere the command's output goes to a console that is thrown away, so the
/// same words go to a second serial port, and the earlier of both counts.
const SAY_IN_VNG: &str = "echo first; echo first > /dev/ttyS1";

fn main() -> io::Result<()> {
    let rounds = std::env::args().nth(1).and_then(|rounds| rounds.parse().ok()).unwrap_or(5);
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
    for (what, problem) in [("delays", plugin.as_ref().err()), ("virtme-ng", vng.as_ref().err())] {
        problem.into_iter().for_each(|why| println!("skipped: {what}: {why}"));
    }
    println!("Linux {}, {rounds} rounds after one warm-up, median (lowest to highest)\n", kernel.release);
    let mut all = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..=rounds {
        let times = [
            Some(first_output(&mut our_guest(&nearfar, "off"))?),
            plugin.as_ref().ok().map(|_| first_output(&mut our_guest(&nearfar, "auto"))).transpose()?,
            vng.as_ref().ok().map(|image| first_output(&mut their_guest(image))).transpose()?,
        ];
        // The first round fills the page cache, and nearfar's own with the unpacked kernel.
        if round > 0 {
            all.iter_mut().zip(times).for_each(|(times, time)| times.extend(time));
        }
    }
    let [off, auto, theirs] = all;
    print_row("nearfar lab run", &off, &off);
    print_row("  with --delay auto", &auto, &off);
    print_row("vng --run", &theirs, &off);
    if !theirs.is_empty() {
        println!("\nnearfar lab run takes {} of vng's time", ratios(&off, &theirs).with_unit("x"));
    }
    Ok(())
}

fn print_row(name: &str, times: &[Duration], than: &[Duration]) {
    if !times.is_empty() {
        let seconds = Spread::of(times.iter().map(Duration::as_secs_f64));
        println!("{name:22} {:24} {}", seconds.with_unit("s"), ratios(times, than).with_unit("x"));
    }
}

/// Of runs that followed each other.
fn ratios(times: &[Duration], than: &[Duration]) -> Spread {
    Spread::of(times.iter().zip(than).map(|(time, than)| time.as_secs_f64() / than.as_secs_f64()))
}

/// What both boot, and in what; or why there is nothing to measure.
fn kernel_and_qemu() -> Result<(Kernel, Qemu), String> {
    if Arch::host() != Some(Arch::X86_64) {
        return Err("the guests are x86-64 ones, and this host is not".to_owned());
    }
    let found = || Ok((kernels::find_in(&Cache::of_user()?, Some(SERIES), Arch::X86_64)?, Qemu::find(Arch::X86_64)?));
    found().map_err(|error: LabError| error.to_string())
}

/// The image to give virtme-ng, or why it is left out and what brings it. It looks for modules beside the image, in
/// `../lib/modules`.
fn virtme_ng(kernel: &Kernel) -> Result<PathBuf, String> {
    let install = "python3 -m venv venv && venv/bin/pip install virtme-ng && PATH=$PWD/venv/bin:$PATH make bench";
    for (program, brings) in [("vng", install), ("virtme-run", install), ("depmod", "apt-get install kmod")] {
        if !their_path().any(|folder| folder.join(program).is_file()) {
            return Err(format!("there is no {program} on the PATH; it comes with: {brings}"));
        }
    }
    let beside = kernel.image.parent().and_then(Path::parent).map(|folder| folder.join("lib/modules"));
    match beside.filter(|modules| modules.join(&kernel.release).is_dir()) {
        Some(_) => Ok(kernel.image.clone()),
        None => Err(format!("it finds no modules for {}", kernel.image.display())),
    }
}

/// The PATH with the folders of programs for administrators, where depmod is.
fn their_path() -> impl Iterator<Item = PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<_> = std::env::split_paths(&path).collect();
    folders.into_iter().chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
}

fn our_guest(nearfar: &Path, delay: &str) -> Command {
    let mut command = Command::new(nearfar);
    command.args(["lab", "run", "--machine", "node:2 core:2", "--scale", "memory=512M", "--accel", "tcg"]);
    command.args(["--kernel", SERIES, "--delay", delay, "--", "echo", "first"]);
    command
}

fn their_guest(image: &Path) -> Command {
    let mut command = Command::new("vng");
    // Joining fails for folders with a colon in their names only, and these came from a PATH.
    command.env("PATH", std::env::join_paths(their_path()).unwrap_or_default()).arg("--run").arg(image);
    command.args(["--disable-kvm", "--numa", "512M,cpus=0-1", "--numa", "512M,cpus=2-3", "--numa-distance", "0,1=20"]);
    command.args(["--cpus", "4", "--memory", "1G", "--exec", SAY_IN_VNG]);
    command.arg("--qemu-opts=-chardev file,id=first,path=/proc/self/fd/1 -serial chardev:first");
    command
}

/// Runs a guest to its end; the time until its command printed something.
fn first_output(command: &mut Command) -> io::Result<Duration> {
    let start = Instant::now();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let (Some(mut out), Some(mut err)) = (out, err) else { return Err(io::Error::other("no pipes")) };
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

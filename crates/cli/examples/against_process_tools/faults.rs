//! What a process that maps, touches and unmaps memory all the time loses when it is watched.
//!
//! The figure is its calls by second of the time in which its threads did not wait for a CPU: other work on the machine takes CPUs
//! from it, and so does a watcher, whose CPU time is measured by itself. A lock of the address space that the watcher holds is what
//! remains.

use std::cell::RefCell;
use std::error::Error;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use nearfar_proc::child::end_with_parent;
use nearfar_proc::{meminfo, tasks};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::process::{Pid, Signal, kill_process};

use crate::measured::pairs::Pairs;
use crate::measured::{Spread, print_goal};

const MAX_RESIDENT_BYTES: u64 = 2 << 30;
/// A call maps, touches and unmaps so much.
const CALL_BYTES: usize = 256 << 10;
const PAGE_BYTES: usize = 4096;
const WINDOW: Duration = Duration::from_secs(5);
/// How many times as many calls the process may do when it is not watched.
const MAX_LOST: f64 = 1.01;
/// Before each measurement, in both.
const PAUSE: Duration = Duration::from_millis(300);

#[derive(clap::Args)]
pub struct Process {
    /// Bytes that stay resident in pages of 4 KiB
    #[arg(long)]
    resident: usize,
    #[arg(long)]
    threads: usize,
}

/// Of all threads since they were last asked for.
#[derive(Default)]
struct Counts {
    calls: AtomicU64,
    longest_ns: AtomicU64,
}

impl Process {
    /// Answers each line of standard input with a line: calls, nanoseconds of the longest, nanoseconds that the threads together were
    /// not waiting for a CPU.
    pub fn run(&self) -> Result<(), Box<dyn Error>> {
        hold(self.resident)?;
        let counts: &'static Counts = Box::leak(Box::default());
        let own = std::process::id().cast_signed();
        for _ in 0..self.threads {
            thread::spawn(move || work(counts));
        }
        let waited = || -> io::Result<u64> {
            let others = tasks::threads(own)?.into_iter().filter(|tid| *tid != own);
            others.map(|tid| Ok(tasks::run_time(tid)?.wait_ns)).sum()
        };
        let (mut begun, mut before) = (Instant::now(), waited()?);
        for line in io::stdin().lines() {
            line?;
            let calls = counts.calls.swap(0, Ordering::Relaxed);
            let longest_ns = counts.longest_ns.swap(0, Ordering::Relaxed);
            let (elapsed, now) = (begun.elapsed(), waited()?);
            begun = Instant::now();
            let all_ns = elapsed.as_nanos() as u64 * self.threads as u64;
            let ready_ns = all_ns.saturating_sub(now - before);
            before = now;
            println!("{calls} {longest_ns} {ready_ns}");
        }
        Ok(())
    }
}

/// Resident until this process ends.
fn hold(bytes: usize) -> io::Result<()> {
    let first = map(bytes)?;
    for offset in (0..bytes).step_by(PAGE_BYTES) {
        // SAFETY: inside the mapping, which is never unmapped.
        unsafe { first.add(offset).write_volatile(1) };
    }
    Ok(())
}

fn map(bytes: usize) -> io::Result<*mut u8> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping where the kernel has room, which is in use nowhere else.
    unsafe {
        let first = mmap_anonymous(null_mut(), bytes, access, MapFlags::PRIVATE)?;
        madvise(first, bytes, Advice::LinuxNoHugepage)?;
        Ok(first.cast())
    }
}

fn work(counts: &Counts) {
    loop {
        let begun = Instant::now();
        let Ok(first) = map(CALL_BYTES) else {
            continue;
        };
        for offset in (0..CALL_BYTES).step_by(PAGE_BYTES) {
            // SAFETY: inside the mapping.
            unsafe { first.add(offset).write_volatile(1) };
        }
        // SAFETY: nothing else has the mapping.
        let _ = unsafe { munmap(first.cast(), CALL_BYTES) };
        counts.calls.fetch_add(1, Ordering::Relaxed);
        let ns = begun.elapsed().as_nanos() as u64;
        counts.longest_ns.fetch_max(ns, Ordering::Relaxed);
    }
}

/// What the target did in a window.
struct Window {
    calls_per_s: f64,
    longest_ms: f64,
}

/// A [`Process`]; killed when dropped.
struct Target {
    child: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Target {
    fn start(resident: u64, threads: usize) -> Result<Self, Box<dyn Error>> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["fault", "--resident", &resident.to_string()])
            .args(["--threads", &threads.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        end_with_parent(&mut command, Signal::KILL);
        let mut child = command.spawn()?;
        let ask = child.stdin.take().ok_or("no pipe")?;
        let answers = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        let mut target = Self {
            child,
            ask,
            answers,
        };
        // Its memory is resident when it answers.
        target.counts()?;
        Ok(target)
    }

    fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    fn counts(&mut self) -> Result<Window, Box<dyn Error>> {
        self.ask.write_all(b"\n")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        let numbers: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
        let [calls, longest_ns, ready_ns] = numbers?[..] else {
            return Err("the process that is watched has ended".into());
        };
        Ok(Window {
            calls_per_s: calls / (ready_ns.max(1.0) / 1e9),
            longest_ms: longest_ns / 1e6,
        })
    }

    fn window(&mut self) -> Result<Window, Box<dyn Error>> {
        self.counts()?;
        sleep(WINDOW);
        self.counts()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A stopped process that runs for a window; killed when dropped.
struct Watcher(Child);

impl Watcher {
    fn start(command: &mut Command) -> Result<Self, Box<dyn Error>> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        end_with_parent(command, Signal::KILL);
        let watcher = Self(command.spawn()?);
        // Its first look is over.
        sleep(Duration::from_secs(2));
        watcher.send(Signal::STOP)?;
        Ok(watcher)
    }

    fn send(&self, signal: Signal) -> Result<(), Box<dyn Error>> {
        let pid = Pid::from_raw(self.0.id().cast_signed()).ok_or("no process")?;
        Ok(kill_process(pid, signal)?)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Prints what the target loses with `nearfar top`, and for contrast with a loop that reads its numa_maps once a second.
pub fn compare(nearfar: &Path, pairs: u32) -> Result<(), Box<dyn Error>> {
    let memory = std::fs::read("/proc/meminfo")?;
    let available = meminfo::bytes(&memory, "MemAvailable").unwrap_or(0);
    let resident = MAX_RESIDENT_BYTES.min(available / 4);
    let threads = thread::available_parallelism()?.get();
    println!(
        "a process with {} MiB of 4K pages whose {threads} threads map, touch and unmap {} KiB in a loop; {pairs} pairs of {} s:",
        resident >> 20,
        CALL_BYTES >> 10,
        WINDOW.as_secs()
    );
    let target = Target::start(resident, threads)?;
    let pid = target.pid();
    let target = RefCell::new(target);
    let top = || {
        let mut command = Command::new(nearfar);
        command.args(["top", "--batch", "--seconds", "1"]);
        command
    };
    let numa_maps = || {
        let mut command = Command::new("sh");
        // The redirection is a read of the same file without another process.
        command.args([
            "-c",
            &format!("while :; do cat /proc/{pid}/numa_maps; sleep 1; done"),
        ]);
        command
    };
    let lost = watch("nearfar top", top(), &target, pairs)?;
    let what = "calls of a process without nearfar top by those with it";
    print_goal(what, &lost, "x", MAX_LOST);
    watch("cat numa_maps once a second", numa_maps(), &target, pairs)?;
    println!();
    Ok(())
}

fn watch(
    name: &str,
    mut command: Command,
    target: &RefCell<Target>,
    pairs: u32,
) -> Result<Spread, Box<dyn Error>> {
    let watcher = Watcher::start(&mut command)?;
    let longest: RefCell<[Vec<f64>; 2]> = RefCell::default();
    let window = |is_watched: bool| -> Result<f64, Box<dyn Error>> {
        let window = target.borrow_mut().window()?;
        longest.borrow_mut()[usize::from(is_watched)].push(window.longest_ms);
        Ok(window.calls_per_s)
    };
    let watched = || {
        watcher.send(Signal::CONT)?;
        let calls = window(true);
        watcher.send(Signal::STOP)?;
        calls
    };
    let taken = Pairs::take(pairs, PAUSE, watched, || window(false))?;
    let [without, with] = longest.into_inner();
    println!("  {name}: calls/s {}", taken.change()?);
    println!(
        "  {:>width$}  longest call in a window: {} with it, {} without",
        "",
        Spread::of(with.into_iter()).with_unit("ms"),
        Spread::of(without.into_iter()).with_unit("ms"),
        width = name.len()
    );
    Ok(taken.lost())
}

//! CPU time and memory of tools that look once a second.

use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nearfar_proc::Status;
use nearfar_proc::child::end_with_parent;
use nearfar_proc::tasks;
use rustix::process::Signal;

use crate::measured::{Contender, Spread, print_goal, race};

/// nearfar reads the memory of the processes one after the other; afterwards all of it is known.
const WARM_UP: Duration = Duration::from_secs(10);
const WINDOW: Duration = Duration::from_secs(10);
const MAX_CPU_PERCENT: f64 = 2.0;
const MAX_MIB: f64 = 40.0;

/// What a tool took, at a refresh a second.
struct Share {
    cpu_percent: f64,
    resident_mib: f64,
    /// Seconds between two refreshes; `None` where it does not say.
    interval_s: Option<f64>,
}

/// How often a tool refreshed.
enum Refreshes {
    /// So often its output has this.
    Headings(&'static str),
    /// It says so in this file, in the line that begins with this.
    Line(PathBuf, &'static str),
    Unknown,
}

struct Tool {
    command: Box<dyn Fn() -> Command>,
    refreshes: Refreshes,
    /// Whether what is measured is the child of what is started.
    is_wrapped: bool,
}

/// Prints what `nearfar top` and `exporter` take, and others in the same rounds.
pub fn compare(nearfar: &Path, rounds: usize) -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let output = directory.path().join("output");
    let tools = tools(nearfar, directory.path());
    let mut contenders: Vec<Contender<'_, Share>> = tools
        .iter()
        .map(|(name, tool)| Contender::new(name, || tool.watch(&output)))
        .collect();
    race(&mut contenders, rounds, &mut |text| println!("{text}"));
    println!(
        "{rounds} times {} s of each in turn, at a refresh a second, {} s after its start, median (lowest to highest):",
        WINDOW.as_secs(),
        WARM_UP.as_secs()
    );
    println!(
        "{:24} {:26} {:24} {:22} real interval",
        "", "of one CPU", "resident", "CPU, of nearfar top"
    );
    let [first, ..] = &contenders[..] else {
        return Ok(());
    };
    for contender in contenders.iter().filter(|it| !it.costs.is_empty()) {
        println!("{}", row(contender, &first.costs));
    }
    for contender in &contenders[..2] {
        if contender.costs.is_empty() {
            return Err(format!("{} failed twice in a row", contender.name).into());
        }
        let shares = &contender.costs;
        let cpu = Spread::of(shares.iter().map(|it| it.cpu_percent));
        let memory = Spread::of(shares.iter().map(|it| it.resident_mib));
        let name = contender.name;
        print_goal(&format!("CPU time of {name}"), &cpu, "%", MAX_CPU_PERCENT);
        print_goal(&format!("memory of {name}"), &memory, "MiB", MAX_MIB);
    }
    println!();
    Ok(())
}

fn row(contender: &Contender<'_, Share>, first: &[Share]) -> String {
    let shares = &contender.costs;
    let pairs = shares.iter().zip(first);
    let intervals: Vec<f64> = shares.iter().filter_map(|it| it.interval_s).collect();
    let interval = match intervals.is_empty() {
        true => "-".to_owned(),
        false => Spread::of(intervals.into_iter()).with_unit("s"),
    };
    format!(
        "{:24} {:26} {:24} {:22} {interval}",
        contender.name,
        Spread::of(shares.iter().map(|it| it.cpu_percent)).with_unit("%"),
        Spread::of(shares.iter().map(|it| it.resident_mib)).with_unit("MiB"),
        Spread::of(pairs.map(|(it, first)| it.cpu_percent / first.cpu_percent)).with_unit("x"),
    )
}

/// The first two are nearfar's.
fn tools(nearfar: &Path, directory: &Path) -> Vec<(&'static str, Tool)> {
    let textfile = directory.join("nearfar.prom");
    let ours = |words: Vec<PathBuf>| {
        let nearfar = nearfar.to_owned();
        Box::new(move || {
            let mut command = Command::new(&nearfar);
            command.args(&words);
            command
        })
    };
    let theirs = |name: &'static str, words: &'static [&'static str]| {
        Box::new(move || {
            let mut command = Command::new(name);
            command.args(words).env("TERM", "xterm-256color");
            command
        })
    };
    let top = ["top", "--batch", "--seconds", "1"].map(PathBuf::from);
    let exporter = [
        "exporter",
        "--seconds",
        "1",
        "--listen",
        "127.0.0.1:0",
        "--textfile",
    ];
    let exporter = exporter
        .map(PathBuf::from)
        .into_iter()
        .chain([textfile.clone()]);
    let tool = |command: Box<dyn Fn() -> Command>, refreshes| Tool {
        command,
        refreshes,
        is_wrapped: false,
    };
    let htop = Tool {
        // It needs a terminal.
        is_wrapped: true,
        ..tool(
            theirs(
                "script",
                &[
                    "-qfc",
                    "stty cols 200 rows 50; exec htop -d 10",
                    "/dev/null",
                ],
            ),
            Refreshes::Unknown,
        )
    };
    vec![
        (
            "nearfar top --batch",
            tool(ours(top.to_vec()), Refreshes::Headings("nearfar top")),
        ),
        (
            "nearfar exporter",
            tool(
                ours(exporter.collect()),
                Refreshes::Line(textfile, "nearfar_scan_interval_seconds "),
            ),
        ),
        (
            "top -b -d 1",
            tool(
                theirs("top", &["-b", "-d", "1"]),
                Refreshes::Headings("top - "),
            ),
        ),
        (
            "top -b -d 1 -H",
            tool(
                theirs("top", &["-b", "-d", "1", "-H"]),
                Refreshes::Headings("top - "),
            ),
        ),
        ("htop -d 10", htop),
        (
            "atop 1",
            tool(theirs("atop", &["1"]), Refreshes::Headings("ATOP - ")),
        ),
    ]
}

/// Killed when dropped.
struct Watcher(Child);

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Tool {
    /// Starts it, waits, and measures it for a while.
    fn watch(&self, output: &Path) -> io::Result<Share> {
        let mut command = (self.command)();
        command
            .stdin(Stdio::null())
            .stdout(File::create(output)?)
            .stderr(Stdio::null());
        end_with_parent(&mut command, Signal::KILL);
        let watcher = Watcher(command.spawn()?);
        sleep(WARM_UP);
        let started = watcher.0.id().cast_signed();
        let pid = match self.is_wrapped {
            true => tasks::children(started, started)?.first().copied(),
            false => Some(started),
        };
        let pid = pid.ok_or_else(|| io::Error::other("it has ended"))?;
        let headings = self.headings(output)?;
        let (begun, before) = (Instant::now(), cpu_seconds(pid)?);
        sleep(WINDOW);
        let (seconds, after) = (begun.elapsed().as_secs_f64(), cpu_seconds(pid)?);
        let status = fs::read(format!("/proc/{pid}/status"))?;
        let resident = Status::of(&status).bytes("VmRSS");
        let resident = resident.ok_or_else(|| io::Error::other("it has ended"))?;
        Ok(Share {
            cpu_percent: 100.0 * (after - before) / seconds,
            resident_mib: resident as f64 / f64::from(1 << 20),
            interval_s: match &self.refreshes {
                Refreshes::Headings(_) => {
                    let refreshes = self.headings(output)? - headings;
                    (refreshes > 0).then(|| seconds / refreshes as f64)
                }
                Refreshes::Line(file, begin) => fs::read_to_string(file)?
                    .lines()
                    .find_map(|line| line.strip_prefix(begin)?.parse().ok()),
                Refreshes::Unknown => None,
            },
        })
    }

    fn headings(&self, output: &Path) -> io::Result<usize> {
        let Refreshes::Headings(heading) = self.refreshes else {
            return Ok(0);
        };
        let text = fs::read(output)?;
        let lines = text.split(|byte| *byte == b'\n');
        Ok(lines
            .filter(|line| line.starts_with(heading.as_bytes()))
            .count())
    }
}

/// Of all its threads.
fn cpu_seconds(pid: i32) -> io::Result<f64> {
    let mut seconds = 0.0;
    for tid in tasks::threads(pid)? {
        seconds += tasks::run_time(tid)?.run_ns as f64 / 1e9;
    }
    Ok(seconds)
}

//! `nearfar top` on this machine: what it prints, and what it does to a terminal.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::num::NonZero;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::harness::{NEARFAR, Sandbox};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, kill_process};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(60);

/// A process with 40 MiB that computes until it is dropped.
struct Burner(Child);

impl Burner {
    fn start() -> Self {
        const SCRIPT: &str =
            "a=$(head -c 41943040 /dev/zero | tr '\\0' x); echo ready; while :; do :; done";
        let mut child = Command::new("bash")
            .args(["-c", SCRIPT])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 6];
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut ready)
            .unwrap();
        Self(child)
    }
}

impl Drop for Burner {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn top(words: &str) -> Value {
    let words = format!("top --batch --count 1 --format json {words}");
    Sandbox::new().nearfar(words.split_whitespace()).json()
}

#[test]
fn a_busy_task_is_seen_with_its_cpu_time_memory_and_node() {
    let burner = Burner::start();
    let pid = burner.0.id();
    let until = Instant::now() + LIMIT;
    // On a busy machine it gets a part of a CPU, which may be none in a whole second.
    let answer = loop {
        let begun = Instant::now();
        let answer = top(&format!("--pid {pid} --seconds 1"));
        assert_eq!(answer["tasks"].as_array().unwrap().len(), 1, "{answer}");
        let cpu_s = answer["tasks"][0]["cpu_s"].as_f64().unwrap();
        let elapsed_s = begun.elapsed().as_secs_f64();
        assert!(cpu_s < elapsed_s + 0.05, "{answer}");
        if cpu_s > 0.02 {
            break answer;
        }
        assert!(Instant::now() < until, "{answer}");
    };
    let task = &answer["tasks"][0];
    assert_eq!((&task["pid"], &task["name"]), (&json!(pid), &json!("bash")));
    let nodes = answer["nodes"].as_array().unwrap();
    let busy: f64 = nodes
        .iter()
        .map(|node| node["busy_s"].as_f64().unwrap())
        .sum();
    assert!(busy > 0.02, "{answer}");
    assert!(nodes[0]["total_bytes"].as_u64().unwrap() > 0);
    if task["memory"].get("unknown_reason").is_none() {
        let bytes = task["memory"].as_array().unwrap().iter();
        let bytes: u64 = bytes.map(|on| on["bytes"].as_u64().unwrap()).sum();
        assert!(bytes > 40 << 20, "{task}");
        assert!(task["remote"]["share"].as_f64().unwrap() <= 1.0, "{task}");
    }
}

#[test]
fn each_look_is_a_line_of_json_and_a_log_has_a_section_for_each() {
    let words = ["top", "--batch", "--count", "3", "--seconds", "0.1"];
    let text = Sandbox::new().nearfar(words).prints();
    assert_eq!(text.matches("nearfar top").count(), 3, "{text}");
    // On an idle machine no task is large enough for a row.
    assert!(text.contains("alloc/s") && text.contains("Tasks"), "{text}");
    let words = [&words[..], &["--format", "json"]].concat();
    let lines = Sandbox::new().nearfar(words).prints();
    let looks: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(looks.len(), 3);
    assert!(looks.iter().all(|look| look["schema"] == json!("top/1")));
    let cost = |look: &Value| look["cost"]["total_cpu_s"].as_f64().unwrap();
    assert!(cost(&looks[0]) > 0.0 && cost(&looks[2]) > cost(&looks[0]));
}

#[test]
fn a_pipe_is_no_terminal_and_a_screen_has_no_format() {
    let refused = |words: &[&str], says: &[&str]| {
        Sandbox::new().nearfar(words).run().exited(2).says(says);
    };
    refused(&["top"], &["not a terminal", "--batch"]);
    refused(&["top", "--format", "json"], &["--batch"]);
    refused(
        &["top", "--batch", "--group", "no-such.service"],
        &["no-such.service"],
    );
}

/// `nearfar top` on a terminal of its own.
struct Screen {
    terminal: File,
    child: Child,
    /// What the terminal shows.
    shown: vt100::Parser,
    read: std::sync::mpsc::Receiver<Vec<u8>>,
}

impl Screen {
    fn start(columns: u16, lines: u16) -> Self {
        Self::start_with(columns, lines, &["--seconds", "0.2"])
    }

    fn start_with(columns: u16, lines: u16, words: &[&str]) -> Self {
        Self::start_on("xterm-256color", (columns, lines), words)
    }

    /// On a terminal of this type.
    fn start_on(kind: &str, (columns, lines): (u16, u16), words: &[&str]) -> Self {
        let (terminal, other) = open_terminal();
        let size = Winsize {
            ws_row: lines,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&terminal, size).unwrap();
        let stdio = || Stdio::from(other.try_clone().unwrap());
        let child = Command::new("setsid")
            .args(["--ctty", "--wait", NEARFAR, "top"])
            .args(words)
            .env("TERM", kind)
            .stdin(stdio())
            .stdout(stdio())
            .stderr(stdio())
            .spawn()
            .unwrap();
        let terminal = File::from(terminal);
        let mut reader = terminal.try_clone().unwrap();
        let (send, read) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = reader.read(&mut buffer) {
                if send.send(buffer[..length].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self {
            terminal,
            child,
            shown: vt100::Parser::new(cells(lines), cells(columns), 0),
            read,
        }
    }

    /// Reads until the terminal shows this.
    fn wait_for(&mut self, part: &str) {
        self.wait_until(part, |screen| screen.contents().contains(part));
    }

    /// Reads until the terminal is as it was before the program drew on it.
    fn wait_for_end(&mut self) {
        self.wait_until("end", |screen| !screen.alternate_screen());
    }

    fn wait_until(&mut self, what: &str, is_there: impl Fn(&vt100::Screen) -> bool) {
        let until = Instant::now() + LIMIT;
        while !is_there(self.shown.screen()) {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(bytes) = self.read.recv_timeout(left) else {
                panic!("no {what:?} in\n{}", self.shown.screen().contents());
            };
            self.shown.process(&bytes);
        }
    }

    fn press(&mut self, keys: &str) {
        self.terminal.write_all(keys.as_bytes()).unwrap();
    }

    /// Whether the terminal echoes what is typed and gives lines, as a shell leaves it.
    fn is_restored(&self) -> bool {
        let modes = tcgetattr(self.terminal.as_fd()).unwrap().local_modes;
        modes.contains(LocalModes::ECHO | LocalModes::ICANON)
    }

    fn top(&self) -> Pid {
        // setsid may fork: then top is its child.
        let own = self.child.id().cast_signed();
        let children = nearfar_proc::tasks::children(own, own).unwrap_or_default();
        Pid::from_raw(children.first().copied().unwrap_or(own)).unwrap()
    }

    fn end(mut self) -> (ExitStatus, bool) {
        self.wait_for_end();
        let status = self.child.wait().unwrap();
        (status, self.is_restored())
    }
}

fn cells(number: u16) -> NonZero<u16> {
    NonZero::new(number).unwrap()
}

/// Both ends.
fn open_terminal() -> (OwnedFd, OwnedFd) {
    use std::os::fd::FromRawFd as _;
    let (mut first, mut second) = (-1, -1);
    // SAFETY: both numbers are written where they are said to be; no name, modes or size are given.
    let result = unsafe {
        libc::openpty(
            &raw mut first,
            &raw mut second,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: both were opened above and belong to nobody else.
    let ends = unsafe { [first, second].map(|end| OwnedFd::from_raw_fd(end)) };
    // A program that had its own terminal's other end open would never see it hang up.
    for end in &ends {
        fcntl_setfd(end, FdFlags::CLOEXEC).unwrap();
    }
    ends.into()
}

#[test]
fn keys_work_and_quitting_restores_the_terminal() {
    let mut screen = Screen::start(100, 30);
    screen.wait_for("[1 Tasks]");
    assert!(!screen.is_restored());
    screen.press("?");
    screen.wait_for("this help");
    screen.press("4");
    screen.wait_for("[4 Devices]");
    let size = Winsize {
        ws_row: 12,
        ws_col: 60,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&screen.terminal, size).unwrap();
    screen.shown.screen_mut().set_size(cells(12), cells(60));
    screen.press("3");
    screen.wait_for("[3 Map]");
    screen.press("q");
    let (status, is_restored) = screen.end();
    assert!(status.success() && is_restored, "{status}");
}

#[test]
fn only_the_processes_that_were_asked_for_are_shown_after_a_key() {
    let (asked, other) = (Burner::start(), Burner::start());
    let [asked_pid, other_pid] = [&asked, &other].map(|it| it.0.id().to_string());
    let words = ["--seconds", "3600", "--pid", &asked_pid];
    let mut screen = Screen::start_on("xterm", (100, 30), &words);
    screen.wait_for("by cost");
    screen.press("s");
    screen.wait_for("by cpu");
    let shown = screen.shown.screen().contents();
    let has_row = |pid: &str| shown.contains(&format!("{pid}  bash"));
    assert!(has_row(&asked_pid) && !has_row(&other_pid), "{shown}");
    screen.press("q");
    assert!(screen.end().0.success());
}

#[test]
fn a_terminal_that_cannot_place_text_is_refused() {
    let mut screen = Screen::start_on("dumb", (80, 24), &[]);
    screen.wait_for("--batch");
    let (status, is_restored) = screen.end();
    assert!(status.code() == Some(2) && is_restored, "{status}");
}

#[test]
fn signals_restore_the_terminal() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        let mut screen = Screen::start(80, 24);
        screen.wait_for("[1 Tasks]");
        kill_process(screen.top(), signal).unwrap();
        let (status, is_restored) = screen.end();
        assert!(status.success() && is_restored, "{signal:?}: {status}");
    }
}

#[test]
fn a_terminal_that_hangs_up_ends_it() {
    let mut screen = Screen::start(80, 24);
    screen.wait_for("[1 Tasks]");
    let mut child = screen.child;
    // The thread that reads ends with its channel, at the next thing that is drawn.
    drop((screen.read, screen.terminal));
    let until = Instant::now() + LIMIT;
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < until, "it still runs");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn keys_are_read_though_a_look_is_always_due() {
    let mut screen = Screen::start_with(80, 24, &["--seconds", "0.1", "--min-memory", "0"]);
    screen.wait_for("[1 Tasks]");
    for (key, view) in [("2", "[2 Services]"), ("3", "[3 Map]"), ("1", "[1 Tasks]")] {
        screen.press(key);
        screen.wait_for(view);
    }
    screen.press("q");
    assert!(screen.end().0.success());
}

#[test]
fn a_stopped_top_leaves_the_terminal_and_goes_on_where_it_was() {
    let mut screen = Screen::start(80, 24);
    screen.wait_for("[1 Tasks]");
    screen.press("2");
    screen.wait_for("[2 Services]");
    let top = screen.top();
    kill_process(top, Signal::TSTP).unwrap();
    screen.wait_for_end();
    assert!(screen.is_restored());
    let until = Instant::now() + LIMIT;
    let number = top.as_raw_nonzero().get();
    while nearfar_proc::tasks::stat(number).unwrap().state != 'T' {
        assert!(Instant::now() < until, "it does not stop");
        std::thread::sleep(Duration::from_millis(10));
    }
    kill_process(top, Signal::CONT).unwrap();
    screen.wait_for("[2 Services]");
    screen.press("\x03");
    let (status, is_restored) = screen.end();
    assert!(status.success() && is_restored, "{status}");
}

//! Whether a guest is well: what its console shows, whether its vCPUs still get their interrupts, whether a boot gets anywhere, and whether
//! it hangs while a command runs in it.
//!
//! Under emulation a vCPU sometimes loses the end of an interrupt while the guest boots (docs/lab-guests.md has one that was
//! examined): its local APIC keeps the interrupt in service for good, and every interrupt of the same or a lower priority
//! waits behind it, the timer's among them. Such a vCPU still runs what other CPUs send it, so the guest goes on and is wrong,
//! until something waits for that timer. Linux never halts inside an interrupt handler, so a halted vCPU with an interrupt in
//! service is the sign.
//!
//! Linux patches its own code while other CPUs run it: a breakpoint first, the rest, then the first byte (`text_poke_bp_batch` in
//! arch/x86/kernel/alternative.c). QEMU under software emulation drops what it translated of the old bytes before it stores the new
//! one (`notdirty_write` in accel/tcg/cputlb.c); a vCPU that translates in between keeps the breakpoint for ever, and the kernel, which
//! has forgotten it by then, dies of it: "int3" with the next instruction whole in its "Code:" line. Seen once in some thousand boots
//! with QEMU 10.0.2 and Linux 6.12.
//!
//! Once in some hundred boots under emulation with more vCPUs than host CPUs, a timer of a vCPU is lost early in the boot and every
//! vCPU then sleeps for ever (seen with QEMU 10.0.2 and Linux 6.12: "timer wakeup didn't happen" from the kernel's own watchdog, minutes
//! later). A guest that boots keeps at least one vCPU busy, so a QEMU that uses no time for long is one that hangs. Other boots keep
//! their CPUs busy for ever: some complain of it, and the last sign, the time it takes, is for those that do not.
//!
//! While a command runs:
//!
//! ```text
//!  every 2 s    stuck vCPUs, by QEMU's monitor      the same three looks in a row: the guest hangs
//!               ping ──► agent ──► pong             no pong for 10 s in which QEMU's monitor answered each time and QEMU
//!                                                   used hardly any CPU time: the guest hangs
//! ```
//!
//! An emulated vCPU sometimes loses its timer. Where the kernel has complained of a CPU since the last ping, or the guest was idle for 10 s
//! (perhaps all that it does waits for that timer), the pong waits until a process has slept on each CPU. This needs the timer of each, and
//! sets it again on a CPU that lost it: the guest goes on or counts as hanging.
//!
//! A guest that is busy may take long to answer, and a QEMU that gets no CPU time (stopped, frozen, swapped out) cannot. A guest that is
//! idle in a QEMU that answers does so at once.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, thread};

use serde_json::json;

use crate::arch::Arch;
use crate::guest::link::{BeforePong, Link};
use crate::guest::qmp::Monitor;

/// A vCPU that waits for an interrupt while its local APIC has one in service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StuckVcpu {
    pub number: usize,
    /// The vectors in service, as QEMU prints them.
    pub in_service: String,
    /// The vectors that wait.
    pub requested: String,
}

impl fmt::Display for StuckVcpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, in_service, requested) = (self.number, &self.in_service, &self.requested);
        write!(
            f,
            "vCPU {number} is halted with interrupt {in_service} in service and {requested} waiting"
        )
    }
}

/// Why a guest counts as hanging.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HangSign {
    /// A vCPU stayed in an interrupt.
    #[error("{0}")]
    Stuck(StuckVcpu),
    /// Its agent is silent.
    #[error("it does not answer for {silent_s} s while QEMU uses hardly any CPU time")]
    Silent {
        /// For how long.
        silent_s: u64,
    },
}

/// The vCPUs that are stuck at this moment. While the guest runs, one look proves nothing: the two registers are not read at
/// the same moment. Only x86-64 has what is looked at; other guests give an empty list.
///
/// # Errors
/// When the monitor is gone.
pub fn stuck_vcpus(
    monitor: &mut Monitor,
    arch: Arch,
    vcpus: usize,
) -> Result<Vec<StuckVcpu>, String> {
    let mut stuck = Vec::new();
    for number in 0..if arch == Arch::X86_64 { vcpus } else { 0 } {
        let apic = LocalApic::read(monitor, number)?;
        if let Some(in_service) = apic.in_service.clone()
            && is_halted(monitor, number)?
        {
            let requested = apic.requested.unwrap_or_else(|| "none".to_owned());
            stuck.push(StuckVcpu {
                number,
                in_service,
                requested,
            });
        }
    }
    Ok(stuck)
}

/// A line for each vCPU, for the message about a guest that hangs; as far as the monitor answers.
pub fn described(monitor: &mut Monitor, arch: Arch, vcpus: usize) -> String {
    let line = |number| -> Result<String, String> {
        let apic = LocalApic::read(monitor, number)?;
        let state = match is_halted(monitor, number)? {
            true => "halted",
            false => "running",
        };
        let show = |vectors: Option<String>| vectors.unwrap_or_else(|| "none".to_owned());
        let (in_service, requested) = (show(apic.in_service), show(apic.requested));
        Ok(format!(
            "vCPU {number} {state}, in service: {in_service}, waiting: {requested}, timer: {}\n",
            apic.timer
        ))
    };
    (0..if arch == Arch::X86_64 { vcpus } else { 0 })
        .map(line)
        .map_while(Result::ok)
        .collect()
}

/// What `info lapic` shows of a vCPU.
struct LocalApic {
    in_service: Option<String>,
    requested: Option<String>,
    timer: String,
}

impl LocalApic {
    fn read(monitor: &mut Monitor, vcpu: usize) -> Result<Self, String> {
        let text = ask(monitor, vcpu, "info lapic")?;
        let timer = text.lines().find(|line| line.starts_with("LVTT\t"));
        let timer = timer.unwrap_or_default().split_whitespace().skip(2);
        Ok(Self {
            in_service: vectors(&text, "ISR"),
            requested: vectors(&text, "IRR"),
            timer: timer.collect::<Vec<_>>().join(" "),
        })
    }
}

fn is_halted(monitor: &mut Monitor, vcpu: usize) -> Result<bool, String> {
    Ok(ask(monitor, vcpu, "info registers")?.contains("HLT=1"))
}

/// The last line of the console that a sound kernel does not print.
pub fn complaint(console: &Console) -> Option<String> {
    /// Besides stalls: lockups (kernel/watchdog.c), BUG() and WARN() (lib/bug.c, kernel/panic.c).
    const COMPLAINTS: [&str; 3] = ["lockup", "BUG:", "WARNING: CPU"];
    let text = console.last_lines(usize::MAX);
    // The kernel repeats its command line, in which a user may have written anything.
    let mut lines = text.lines().filter(|line| !line.contains("ommand line:"));
    let complains = |line: &&str| STALLS.iter().chain(&COMPLAINTS).any(|it| line.contains(it));
    lines.rfind(complains).map(str::to_owned)
}

fn ask(monitor: &mut Monitor, vcpu: usize, command: &str) -> Result<String, String> {
    let arguments = json!({ "command-line": command, "cpu-index": vcpu });
    let answer = monitor.execute("human-monitor-command", arguments)?;
    Ok(answer.as_str().unwrap_or_default().to_owned())
}

/// The vectors of a row of `info lapic`; `None` for "(none)".
fn vectors(apic: &str, row: &str) -> Option<String> {
    let words = apic.lines().find_map(|line| line.strip_prefix(row))?.trim();
    (!words.is_empty() && words != "(none)").then(|| words.to_owned())
}

/// A crash is looked for in so many of the console's last lines: a kernel's report of one, with its second half after a panic, has
/// about 70.
const REPORT_LINES: usize = 160;

/// The first words of a report of an unknown x86 breakpoint (`do_int3` in arch/x86/kernel/traps.c), between "Oops: " of newer
/// kernels and the number of the crash.
const BREAKPOINT: &str = "int3: 0000 [#";

/// What every report of an exception in the kernel ends with (`oops_exit` in kernel/panic.c).
const END_OF_REPORT: &str = "---[ end trace ";

/// How a guest's kernel died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Crash {
    /// Of a breakpoint that QEMU kept from the kernel's patching of its own code.
    #[error(
        "its kernel met a breakpoint left by its own patching, a rare fault of QEMU's software emulation"
    )]
    LeftBreakpoint,
    /// Of another exception.
    #[error("its kernel crashed")]
    Exception,
}

impl Crash {
    /// The crash that a console shows; `None` where the kernel ended in order, or panicked without an exception: for want of a root,
    /// of memory, of a first program, which it would do again.
    pub fn shown(console: &Console) -> Option<Self> {
        let said = console.last_lines(REPORT_LINES);
        match (said.contains(BREAKPOINT), said.contains(END_OF_REPORT)) {
            (true, _) => Some(Self::LeftBreakpoint),
            (false, true) => Some(Self::Exception),
            (false, false) => None,
        }
    }
}

/// So much of the end is kept.
const KEPT: usize = 16 << 10;
/// How long a source that has ended may take until all of it is heard.
const LAG: Duration = Duration::from_secs(2);

/// What was said, its end; shared with the threads that listen.
#[derive(Clone, Debug, Default)]
pub struct Console {
    heard: Arc<Heard>,
}

#[derive(Debug, Default)]
struct Heard {
    said: Mutex<Received>,
    /// Notified when a listener ends.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Received {
    end: Vec<u8>,
    bytes: u64,
    listeners: usize,
}

impl Console {
    /// Listens in a thread of its own until the source ends; shows on standard error what it hears, if asked to.
    pub fn listen(&self, mut source: impl Read + Send + 'static, show: bool) {
        let console = self.clone();
        self.said().listeners += 1;
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = source.read(&mut buffer) {
                console.hear(&buffer[..count]);
                if show {
                    // A standard error that is closed is no reason to stop listening.
                    drop(std::io::stderr().write_all(&buffer[..count]));
                }
            }
            console.said().listeners -= 1;
            console.heard.ended.notify_all();
        });
    }

    fn said(&self) -> MutexGuard<'_, Received> {
        let said = self.heard.said.lock();
        said.unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all was heard of sources that have ended: the last words of one that died come after the news of it.
    pub fn drain(&self) {
        let ended = &self.heard.ended;
        drop(ended.wait_timeout_while(self.said(), LAG, |said| said.listeners > 0));
    }

    /// Keeps what was said.
    pub fn hear(&self, words: &[u8]) {
        let mut said = self.said();
        said.bytes += words.len() as u64;
        said.end.extend_from_slice(words);
        let surplus = said.end.len().saturating_sub(KEPT);
        said.end.drain(..surplus);
    }

    /// Bytes heard since the start.
    pub fn bytes(&self) -> u64 {
        self.said().bytes
    }

    /// The last lines, at most so many.
    pub fn last_lines(&self, count: usize) -> String {
        let said = self.said();
        let text = String::from_utf8_lossy(&said.end).replace('\r', "");
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        let lines: Vec<_> = lines.collect();
        lines[lines.len().saturating_sub(count)..].join("\n")
    }
}

/// A boot that has not done [`MAX_IDLE_CPU_SECONDS`] for so long gets no further.
const MAX_BOOT_IDLE: Duration = Duration::from_secs(12);

/// CPU seconds: what timer ticks of idle vCPUs take in that time is less.
const MAX_IDLE_CPU_SECONDS: f64 = 0.8;

/// How the kernel complains of a CPU that does not get on (kernel/rcu/tree_stall.h).
const STALLS: [&str; 3] = [
    "detected stalls",
    "detected expedited stalls",
    "self-detected stall",
];

/// A complaint is looked for in so many of the console's last lines.
const COMPLAINT_LINES: usize = 40;

/// How long a guest may go on after a complaint: about 1 in 20 emulated x86 boots never came up again, on a busy host.
const PATIENCE_WITH_STALLS: Duration = Duration::from_secs(40);

/// How long a boot may take at all before it counts as stuck, while 64 vCPUs on a busy host took 130 s: a guest was seen to
/// hang without a word.
const BOOT_PATIENCE: Duration = Duration::from_secs(240);

/// Watches one boot: QEMU's CPU time, and what the guest's kernel says.
#[derive(Debug)]
pub struct BootProgress {
    process: u32,
    started: Instant,
    idle: Idle,
    complained: Option<Instant>,
}

impl BootProgress {
    /// Of the guest that this QEMU process has run since `started`.
    pub fn of(process: u32, started: Instant) -> Self {
        Self {
            process,
            started,
            idle: Idle::new(Instant::now(), cpu_seconds(process).unwrap_or(0.0)),
            complained: None,
        }
    }

    /// Whether there is a sign that it never comes up. To be asked often.
    pub fn stuck(&mut self, console: &Console) -> bool {
        self.sleeps() || self.stalls(console) || self.started.elapsed() > BOOT_PATIENCE
    }

    /// Whether its CPUs have done nothing for long.
    fn sleeps(&mut self) -> bool {
        let seconds = cpu_seconds(self.process);
        seconds.is_some_and(|seconds| self.idle.lasts(Instant::now(), seconds) >= MAX_BOOT_IDLE)
    }

    /// Whether its kernel said some time ago that a CPU does not get on: slow guests say so, too, and recover.
    fn stalls(&mut self, console: &Console) -> bool {
        if self.complained.is_none() {
            let said = console.last_lines(COMPLAINT_LINES);
            let complains = STALLS.iter().any(|words| said.contains(words));
            self.complained = complains.then(Instant::now);
        }
        let complained = self.complained;
        complained.is_some_and(|since| since.elapsed() > PATIENCE_WITH_STALLS)
    }
}

/// A stretch of time in which a process does less than [`MAX_IDLE_CPU_SECONDS`].
#[derive(Debug)]
struct Idle {
    since: Instant,
    cpu_seconds: f64,
}

impl Idle {
    fn new(since: Instant, cpu_seconds: f64) -> Self {
        Self { since, cpu_seconds }
    }

    /// How long it has lasted, by the process's CPU time at this moment; it begins again where that is too much.
    fn lasts(&mut self, now: Instant, cpu_seconds: f64) -> Duration {
        if cpu_seconds - self.cpu_seconds >= MAX_IDLE_CPU_SECONDS {
            *self = Self::new(now, cpu_seconds);
        }
        now.duration_since(self.since)
    }
}

/// User and system time of a process.
fn cpu_seconds(process: u32) -> Option<f64> {
    let process = i32::try_from(process).ok()?;
    Some(nearfar_proc::tasks::stat(process).ok()?.cpu_seconds())
}

/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(2);
/// How long the monitor may take for an answer: the command's caller waits with it.
const MONITOR_PATIENCE: Duration = Duration::from_millis(500);
/// A look at many vCPUs takes long; it takes at most one part in so many of the time.
const LOOK_SHARE: u32 = 50;
/// Looks in a row that show the same vCPU stuck.
const MIN_STUCK_LOOKS: u32 = 3;
/// How long an idle guest may leave a ping unanswered.
const MAX_SILENCE: Duration = Duration::from_secs(10);

/// What was seen of a guest since its command began.
#[derive(Debug)]
pub struct Watch {
    arch: Arch,
    vcpus: usize,
    process: u32,
    next_look: Instant,
    /// For each vCPU that the last look showed stuck: in which interrupt, and how many looks in a row.
    stuck: BTreeMap<usize, (String, u32)>,
    ping: u64,
    pong: u64,
    silent_since: Instant,
    cpu_seconds_then: f64,
    /// The kernel's last complaint before the last ping.
    complaint: Option<String>,
    /// By QEMU's CPU time, since the last look at all timers at most.
    idle: Idle,
}

impl Watch {
    /// Of the guest in this QEMU process, from now on.
    pub fn new(process: u32, arch: Arch, vcpus: usize, console: &Console) -> Self {
        let now = Instant::now();
        Self {
            arch,
            vcpus,
            process,
            next_look: now + INTERVAL,
            stuck: BTreeMap::new(),
            ping: 0,
            pong: 0,
            silent_since: now,
            cpu_seconds_then: 0.0,
            complaint: complaint(console),
            idle: Idle::new(now, 0.0),
        }
    }

    /// Time until [`Self::look`] wants to be called.
    pub fn until_next_look(&self) -> Duration {
        self.next_look.saturating_duration_since(Instant::now())
    }

    /// Takes note of an answer, unless it is a late one to a ping of the command before.
    pub fn pong(&mut self, number: u64) {
        if number == self.ping {
            self.pong = number;
        }
    }

    /// Looks, if it is time. What the guest has said must have been read before. Some: why the guest counts as hanging.
    ///
    /// # Errors
    /// When the link to the guest fails.
    pub fn look(
        &mut self,
        monitor: &mut Monitor,
        link: &mut Link,
        console: &Console,
    ) -> io::Result<Option<HangSign>> {
        if !self.until_next_look().is_zero() {
            return Ok(None);
        }
        let began = Instant::now();
        monitor.set_patience(MONITOR_PATIENCE);
        // A monitor that is gone is a QEMU that has ended, which the link reports.
        let status = monitor.execute("query-status", json!({}));
        let is_running = status.is_ok_and(|status| status["running"] == json!(true));
        let stuck = match is_running {
            true => stuck_vcpus(monitor, self.arch, self.vcpus),
            false => Ok(Vec::new()),
        };
        monitor.reset_patience();
        self.next_look = Instant::now() + INTERVAL.max(began.elapsed() * LOOK_SHARE);
        if let Some(problem) = self.note_stuck(stuck.unwrap_or_default()) {
            return Ok(Some(problem));
        }
        let cpu_seconds = cpu_seconds(self.process).unwrap_or(0.0);
        if self.ping == self.pong {
            self.ping += 1;
            (self.silent_since, self.cpu_seconds_then) = (Instant::now(), cpu_seconds);
            let complaint = complaint(console);
            let is_idle = self.is_idle(self.silent_since, cpu_seconds);
            let before = match is_idle || complaint != self.complaint {
                true => BeforePong::Timers,
                false => BeforePong::Nothing,
            };
            link.ping(self.ping, before)?;
            self.complaint = complaint;
            return Ok(None);
        }
        if !is_running {
            // It cannot answer. The silence is judged from its next look on.
            (self.silent_since, self.cpu_seconds_then) = (Instant::now(), cpu_seconds);
        }
        let used = cpu_seconds - self.cpu_seconds_then;
        Ok(self.silence(self.silent_since.elapsed(), used))
    }

    fn note_stuck(&mut self, seen: Vec<StuckVcpu>) -> Option<HangSign> {
        let before = std::mem::take(&mut self.stuck);
        let mut problem = None;
        for vcpu in seen {
            let looks = match before.get(&vcpu.number) {
                Some((in_service, looks)) if *in_service == vcpu.in_service => looks + 1,
                _ => 1,
            };
            if looks >= MIN_STUCK_LOOKS {
                problem = Some(HangSign::Stuck(vcpu.clone()));
            }
            self.stuck.insert(vcpu.number, (vcpu.in_service, looks));
        }
        problem
    }

    /// Whether QEMU has used hardly any CPU time for [`MAX_SILENCE`]; true once for each such stretch.
    fn is_idle(&mut self, now: Instant, cpu_seconds: f64) -> bool {
        let is_idle = self.idle.lasts(now, cpu_seconds) >= MAX_SILENCE;
        if is_idle {
            self.idle = Idle::new(now, cpu_seconds);
        }
        is_idle
    }

    fn silence(&mut self, silent: Duration, used: f64) -> Option<HangSign> {
        if silent < MAX_SILENCE {
            return None;
        }
        if used > MAX_IDLE_CPU_SECONDS {
            // It is at work. The next stretch of silence is judged by itself.
            (self.silent_since, self.cpu_seconds_then) =
                (Instant::now(), self.cpu_seconds_then + used);
            return None;
        }
        let silent_s = silent.as_secs();
        Some(HangSign::Silent { silent_s })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const APIC: &str = "dumping local APIC state for CPU 1 \r\n\r\nLVTT\t 0x000200ec active-hi edge  periodic\r\n\
        ISR\t 236 \r\nIRR\t (none)\r\n";

    #[test]
    fn vectors_of_a_local_apic_are_read() {
        assert_eq!(vectors(APIC, "ISR").as_deref(), Some("236"));
        assert_eq!(vectors(APIC, "IRR"), None);
        assert_eq!(vectors("", "ISR"), None);
    }

    #[test]
    fn a_complaint_of_the_kernel_is_found_and_other_lines_are_not() {
        let console = Console::default();
        console.hear(b"[    0.0] [Firmware Bug]: TSC doesn't count with P0 frequency!\n");
        console.hear(b"[    0.1] Kernel command line: console=ttyS0 nosoftlockup loglevel=6\n");
        assert_eq!(complaint(&console), None);
        console
            .hear(b"[    9.0] rcu: INFO: rcu_sched self-detected stall on CPU\n[   10.0] fine\n");
        assert!(complaint(&console).is_some_and(|line| line.contains("stall")));
        console.hear(b"[   30.0] watchdog: BUG: soft lockup - CPU#1 stuck for 26s!\n");
        assert!(complaint(&console).is_some_and(|line| line.contains("lockup")));
    }

    fn crash(said: &str) -> Option<Crash> {
        let console = Console::default();
        console.hear(said.as_bytes());
        Crash::shown(&console)
    }

    #[test]
    fn a_left_breakpoint_is_told_from_other_crashes_and_from_a_panic_that_would_come_again() {
        let after = "\n".repeat(3)
            + &"[    1.9] R13: ffff888004a81e88\n".repeat(80)
            + "---[ end trace 0000000000000000 ]---\n";
        let newer = "[    1.9] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI\n".to_owned() + &after;
        let older = "[    1.9] int3: 0000 [#1] PREEMPT SMP NOPTI\n".to_owned() + &after;
        assert_eq!(
            [crash(&newer), crash(&older)],
            [Some(Crash::LeftBreakpoint); 2]
        );
        assert_eq!(
            crash(&("BUG: kernel NULL pointer dereference\n".to_owned() + &after)),
            Some(Crash::Exception)
        );
        assert_eq!(
            crash(
                "Kernel panic - not syncing: No working init found.\n---[ end Kernel panic ]---\n"
            ),
            None
        );
        assert_eq!(
            crash("[    0.0] Linux version 6.12\n[    1.1] alternatives: int3 self-test\n"),
            None
        );
    }

    #[test]
    fn only_the_end_is_kept_and_empty_lines_are_left_out() {
        let console = Console::default();
        console.hear(&[b'x'; 2 * KEPT]);
        console.hear(b"\r\n\r\nfirst\r\nsecond\n");
        assert_eq!(console.last_lines(2), "first\nsecond");
        assert_eq!(console.bytes(), 2 * KEPT as u64 + 18);
        assert!(console.last_lines(9).len() <= KEPT);
    }

    #[test]
    fn the_last_words_of_a_source_that_has_ended_are_waited_for() {
        let console = Console::default();
        console.drain();
        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        console.listen(reader, false);
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            writer.write_all(b"Oops").expect("a reader");
        });
        console.drain();
        assert_eq!(console.last_lines(1), "Oops");
    }

    #[test]
    fn a_complaint_alone_is_no_sign_until_the_patience_with_it_is_over() {
        let mut progress = BootProgress::of(std::process::id(), Instant::now());
        let console = Console::default();
        assert!(!progress.stuck(&console));
        console.hear(b"rcu: INFO: rcu_sched self-detected stall on CPU\n");
        assert!(!progress.stuck(&console));
        let Some(long_ago) = Instant::now().checked_sub(PATIENCE_WITH_STALLS * 2) else {
            return;
        };
        assert!(
            progress.complained.replace(long_ago).is_some(),
            "the complaint was heard"
        );
        assert!(progress.stuck(&console));
    }

    #[test]
    fn a_process_that_works_uses_time_and_one_that_is_gone_has_none() {
        let before = cpu_seconds(std::process::id()).expect("this process");
        let started = Instant::now();
        while cpu_seconds(std::process::id()).expect("this process") <= before {
            assert!(started.elapsed() < Duration::from_secs(60));
        }
        assert_eq!(cpu_seconds(u32::MAX), None);
    }

    fn stuck(numbers: &[usize]) -> Vec<StuckVcpu> {
        let vcpu = |&number| StuckVcpu {
            number,
            in_service: "236".to_owned(),
            requested: "none".to_owned(),
        };
        numbers.iter().map(vcpu).collect()
    }

    #[test]
    fn a_vcpu_counts_as_stuck_when_three_looks_in_a_row_show_it() {
        let mut watch = Watch::new(std::process::id(), Arch::X86_64, 4, &Console::default());
        let looks: [&[usize]; 7] = [&[1], &[1], &[], &[1], &[1, 2], &[2], &[3]];
        for seen in looks {
            assert_eq!(watch.note_stuck(stuck(seen)), None, "{seen:?}");
        }
        assert_eq!(watch.note_stuck(stuck(&[3])), None);
        assert!(
            watch
                .note_stuck(stuck(&[2, 3]))
                .is_some_and(|sign| matches!(sign, HangSign::Stuck(vcpu) if vcpu.number == 3))
        );
    }

    #[test]
    fn another_interrupt_in_service_is_another_matter() {
        let mut watch = Watch::new(std::process::id(), Arch::X86_64, 4, &Console::default());
        for vector in ["236", "236", "35", "236"] {
            let seen = vec![StuckVcpu {
                in_service: vector.to_owned(),
                ..stuck(&[1]).remove(0)
            }];
            assert_eq!(watch.note_stuck(seen), None);
        }
    }

    #[test]
    fn silence_counts_only_while_the_vcpus_sleep() {
        let mut watch = Watch::new(std::process::id(), Arch::X86_64, 4, &Console::default());
        assert_eq!(watch.silence(Duration::from_secs(9), 0.0), None);
        assert_eq!(watch.silence(Duration::from_secs(11), 5.0), None);
        assert!(watch.silence(Duration::from_secs(11), 0.1).is_some());
    }

    #[test]
    fn a_guest_is_idle_once_for_each_ten_seconds_without_work() {
        let mut watch = Watch::new(std::process::id(), Arch::X86_64, 4, &Console::default());
        let begun = watch.silent_since;
        let mut is_idle = |s, used| watch.is_idle(begun + Duration::from_secs(s), used);
        // Work until 4 s, then none.
        let looks = [
            (2, 2.0),
            (4, 4.0),
            (6, 4.1),
            (12, 4.4),
            (14, 4.5),
            (16, 4.6),
            (24, 4.9),
        ];
        assert_eq!(
            looks.map(|(s, used)| is_idle(s, used)),
            [false, false, false, false, true, false, true]
        );
    }

    #[test]
    fn a_late_answer_to_an_earlier_watch_counts_for_nothing() {
        let mut watch = Watch::new(std::process::id(), Arch::X86_64, 4, &Console::default());
        watch.ping = 1;
        watch.pong(6);
        assert_eq!(watch.pong, 0);
        watch.pong(1);
        assert_eq!(watch.pong, 1);
    }
}

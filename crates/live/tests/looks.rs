//! Looks at the running system: processes that this test starts and ends.

use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nearfar_live::{LiveMachine, Look, Options};
use nearfar_machine::{Known, Task};

const LIMIT: Duration = Duration::from_secs(60);

/// A shell that computes until it is dropped.
struct Burner(Child);

impl Burner {
    fn start() -> Self {
        let script = "while :; do :; done";
        let mut shell = Command::new("sh");
        let shell = shell.args(["-c", script]).stdin(Stdio::null());
        Self(shell.spawn().unwrap())
    }

    fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }
}

impl Drop for Burner {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn task(live: &LiveMachine, pid: i32) -> Option<Task> {
    let tasks = live.machine().tasks.get()?;
    tasks.iter().find(|task| task.pid == pid).cloned()
}

/// Looks until the task has used so much CPU time in one look, in milliseconds.
fn look_until(live: &mut LiveMachine, pid: i32, ms: u64) -> Look {
    let until = Instant::now() + LIMIT;
    loop {
        sleep(Duration::from_millis(100));
        let look = live.look().unwrap();
        let used = task(live, pid).and_then(|task| task.cpu_ms.known());
        if used.is_some_and(|used| used >= ms) {
            return look;
        }
        assert!(Instant::now() < until, "{used:?}");
    }
}

#[test]
fn a_process_has_the_cpu_time_since_the_look_before_and_is_gone_after_its_end() {
    let burner = Burner::start();
    let mut live = LiveMachine::new(Options::default()).unwrap();
    let begun = Instant::now();
    live.look().unwrap();
    assert_eq!(task(&live, burner.pid()).unwrap().cpu_ms, Known::Yes(0));
    let look = look_until(&mut live, burner.pid(), 20);
    let seen = task(&live, burner.pid()).unwrap();
    let ms = *seen.cpu_ms.get().unwrap() as f64;
    // Of the looks since then, and a clock tick.
    let elapsed_ms = 1000.0 * begun.elapsed().as_secs_f64();
    assert!(ms <= elapsed_ms + 20.0, "{ms} of {elapsed_ms}");
    assert_eq!(seen.name, "sh");
    assert!(!seen.cpu_times.get().unwrap().is_empty());
    let busy: f64 = look.nodes.iter().map(|node| node.busy_s).sum();
    assert!(busy > 0.0, "{:?}", look.nodes);
    assert!(look.cost.cpu_s > 0.0 && look.cost.total_cpu_s > look.cost.cpu_s);
    let pid = burner.pid();
    drop(burner);
    live.look().unwrap();
    assert_eq!(task(&live, pid), None);
}

#[test]
fn a_process_that_starts_between_two_looks_counts_from_its_start() {
    let mut live = LiveMachine::new(Options::default()).unwrap();
    live.look().unwrap();
    let burner = Burner::start();
    look_until(&mut live, burner.pid(), 10);
}

#[test]
fn memory_is_looked_for_and_has_an_age() {
    let burner = Burner::start();
    let options = Options {
        min_bytes: u64::MAX,
        pids: vec![burner.pid()],
        ..Options::default()
    };
    let mut live = LiveMachine::new(options).unwrap();
    let begun = Instant::now();
    let look = live.look().unwrap();
    let only: Vec<i32> = look.memory_ages.iter().map(|age| age.pid).collect();
    assert_eq!(only, [burner.pid()]);
    assert_eq!((look.cost.memory_reads, look.cost.memory_unread), (1, 0));
    sleep(Duration::from_millis(20));
    let look = live.look().unwrap();
    // Unless this machine stood still for half of the age at which it is read again.
    if begun.elapsed() < Duration::from_secs(5) {
        assert_eq!(look.cost.memory_reads, 0, "it is young");
        assert!(look.memory_ages[0].seconds >= 0.02);
    }
    let seen = task(&live, burner.pid()).unwrap();
    if let Known::Yes(memory) = seen.memory {
        assert!(!memory.is_empty());
    }
}

#[test]
fn a_rest_is_as_long_as_was_asked_for_or_as_looking_costs() {
    let mut live = LiveMachine::new(Options::default()).unwrap();
    let wanted = Duration::from_millis(1);
    live.look().unwrap();
    assert_eq!(live.rest(wanted), wanted, "the first look opens files");
    let mut cost_s = 0.0;
    for _ in 0..5 {
        cost_s += live.look().unwrap().cost.cpu_s;
    }
    // The mean of the last looks; each counts less than a fifth.
    assert!(live.rest(wanted).as_secs_f64() <= cost_s / 5.0 / 0.01);
    assert!(live.rest(wanted) > wanted);
    assert_eq!(live.rest(LIMIT), LIMIT);
}

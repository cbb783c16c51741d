//! A process whose memory is of several kinds, on nodes that are known: what tests move.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::ops::Range;
use std::process::{Child, Command, Stdio};

use nearfar_machine::{CpuSet, NodeId};
use nearfar_proc::move_pages::where_are;
use nearfar_proc::{affinity, numa_maps, tasks};

const PAGE: u64 = 4096;
/// The variable that makes a process hold: `parts NODE` or `fill NODE BYTES`.
const HOLD: &str = "NEARFAR_TEST_HOLD";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Small pages; every seventh is on node 1 from the beginning.
    Small,
    /// Transparent huge pages, where the kernel has some.
    Huge,
    Locked,
    /// Mapped by a child as well.
    Shared,
}

const PARTS: [(Part, u64); 4] = [
    (Part::Small, 8 << 20),
    (Part::Huge, 4 << 20),
    (Part::Locked, 1 << 20),
    (Part::Shared, 1 << 20),
];

/// The process, ended with this value.
pub struct Holder {
    pub pid: i32,
    child: Child,
    starts: Vec<u64>,
}

impl Holder {
    /// Its memory is on this node.
    pub fn start(node: u32) -> Self {
        Self::spawn(&format!("parts {node}"))
    }

    fn spawn(what: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "hold", "--ignored", "--nocapture"])
            .env(HOLD, what)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines
            .map(Result::unwrap)
            .find_map(|line| Some(line.split_once("ready")?.1.to_owned()));
        let starts = ready.unwrap();
        let starts = starts.split_whitespace().map(|word| word.parse().unwrap());
        Self {
            pid: child.id().cast_signed(),
            starts: starts.collect(),
            child,
        }
    }

    pub fn range(&self, part: Part) -> Range<u64> {
        let index = PARTS.iter().position(|(it, _)| *it == part).unwrap();
        self.starts[index]..self.starts[index] + PARTS[index].1
    }

    /// The node of every page of every part.
    pub fn nodes(&self) -> Vec<i32> {
        let all = PARTS.iter().flat_map(|(part, _)| self.range(*part));
        let pages: Vec<u64> = all.step_by(PAGE as usize).collect();
        where_are(self.pid, &pages).unwrap()
    }

    /// Those of one part.
    pub fn of<'a>(&self, nodes: &'a [i32], part: Part) -> &'a [i32] {
        let mut first = 0;
        for (it, bytes) in PARTS {
            let pages = (bytes / PAGE) as usize;
            if it == part {
                return &nodes[first..first + pages];
            }
            first += pages;
        }
        unreachable!("every part is in the table")
    }

    /// Pages of a part on a node, as numa_maps counts them.
    pub fn on_node_in_numa_maps(&self, part: Part, node: u32) -> u64 {
        let (start, mut found) = (self.range(part).start, 0);
        let file = BufReader::new(tasks::open(self.pid, "numa_maps").unwrap());
        numa_maps::each(file, |mapping| {
            if mapping.start == start {
                let on = mapping.pages.iter().find(|(it, _)| *it == NodeId(node));
                found = on.map_or(0, |(_, pages)| *pages);
            }
        })
        .unwrap();
        found
    }

    /// Ends it and waits for it.
    pub fn end(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A process with this much memory on a node.
pub fn fill(node: u32, bytes: u64) -> Holder {
    Holder::spawn(&format!("fill {node} {bytes}"))
}

/// The process itself: `ready` and the addresses, then nothing until standard input ends.
pub fn hold() {
    let Ok(what) = std::env::var(HOLD) else {
        return println!("skipped: manual: nothing to hold");
    };
    let words: Vec<&str> = what.split(' ').collect();
    let node: u32 = words[1].parse().unwrap();
    run_on(node);
    let starts = match words[0] {
        "fill" => vec![mapped(words[2].parse().unwrap(), libc::MAP_PRIVATE)],
        _ => parts(node),
    };
    if words[0] == "fill" {
        touch(starts[0], words[2].parse().unwrap(), 1);
    }
    let starts: Vec<String> = starts.iter().map(u64::to_string).collect();
    println!("ready {}", starts.join(" "));
    std::io::stdout().flush().unwrap();
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

fn run_on(node: u32) {
    let file = format!("/sys/devices/system/node/node{node}/cpulist");
    let cpus = std::fs::read_to_string(file).unwrap();
    affinity::set(0, &CpuSet::parse_list(cpus.trim()).unwrap()).unwrap();
}

fn mapped(bytes: u64, flags: libc::c_int) -> u64 {
    let bytes = usize::try_from(bytes).unwrap();
    let (protection, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        flags | libc::MAP_ANONYMOUS,
    );
    // SAFETY: a new mapping.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    start as u64
}

/// Writes to every `step`th page.
fn touch(start: u64, bytes: u64, step: usize) {
    for address in (start..start + bytes).step_by(step * PAGE as usize) {
        // SAFETY: inside a mapping of this process.
        unsafe { (address as *mut u8).write_volatile(1) };
    }
}

fn advise(start: u64, bytes: u64, advice: libc::c_int) {
    // SAFETY: a mapping of this process that nothing else uses.
    unsafe { libc::madvise(start as *mut libc::c_void, bytes as usize, advice) };
}

fn parts(node: u32) -> Vec<u64> {
    let [(_, small), (_, huge), (_, locked), (_, shared)] = PARTS;
    let small_start = mapped(small, libc::MAP_PRIVATE);
    advise(small_start, small, libc::MADV_NOHUGEPAGE);
    run_on(1);
    touch(small_start, small, 7);
    run_on(node);
    touch(small_start, small, 1);
    // Aligned, with room before it.
    let huge_start = mapped(huge + (2 << 20), libc::MAP_PRIVATE).next_multiple_of(2 << 20);
    advise(huge_start, huge, libc::MADV_HUGEPAGE);
    touch(huge_start, huge, 1);
    let locked_start = mapped(locked, libc::MAP_PRIVATE);
    // SAFETY: a mapping of this process.
    unsafe { libc::mlock(locked_start as *const libc::c_void, locked as usize) };
    touch(locked_start, locked, 1);
    let shared_start = mapped(shared, libc::MAP_SHARED);
    touch(shared_start, shared, 1);
    for (start, bytes) in [
        (small_start, small),
        (huge_start, huge),
        (locked_start, locked),
    ] {
        advise(start, bytes, libc::MADV_DONTFORK);
    }
    share_with_a_child(shared_start, shared);
    vec![small_start, huge_start, locked_start, shared_start]
}

/// A child that maps the pages, and ends with this process.
fn share_with_a_child(start: u64, bytes: u64) {
    // SAFETY: the child calls nothing but the kernel, and reads one mapping.
    unsafe {
        if libc::fork() == 0 {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            let mut sum = 0u64;
            for address in (start..start + bytes).step_by(PAGE as usize) {
                sum += u64::from((address as *const u8).read_volatile());
            }
            std::hint::black_box(sum);
            loop {
                libc::pause();
            }
        }
    }
    // Until it has mapped them: numa_maps then has mapmax=2.
    let me = std::process::id().cast_signed();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    let is_shared = || {
        let text = std::fs::read_to_string(format!("/proc/{me}/numa_maps")).unwrap_or_default();
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("{start:x} ")));
        let pages = bytes / PAGE;
        line.is_some_and(|line| line.contains("mapmax=2") && line.contains(&format!("={pages}")))
    };
    while !is_shared() && std::time::Instant::now() < deadline {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(is_shared(), "the child has not mapped the pages");
    std::thread::sleep(std::time::Duration::from_millis(200));
}

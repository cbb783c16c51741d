//! A process whose memory is of several kinds, on nodes that are known: what tests move.

mod held;

use std::io::{BufRead as _, BufReader, Write as _};
use std::ops::Range;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use nearfar_machine::NodeId;
use nearfar_proc::move_pages::where_are;
use nearfar_proc::{numa_maps, tasks, zoneinfo};

const PAGE: u64 = 4096;
/// The variable that makes a process hold: `parts NODE`, `special NODE` or `fill NODE BYTES`.
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
    /// Of hugetlbfs, in pages of 2 MiB.
    Hugetlb,
    /// Small pages, of which [`PINNED_RUNS`] runs are buffers that io_uring has pinned.
    Pinned,
}

const PARTS: [(Part, u64); 4] = [
    (Part::Small, 8 << 20),
    (Part::Huge, 4 << 20),
    (Part::Locked, 1 << 20),
    (Part::Shared, 1 << 20),
];
const SPECIAL: [(Part, u64); 2] = [(Part::Hugetlb, 4 << 20), (Part::Pinned, 4 << 20)];
/// Of [`Part::Pinned`]: as many pages are pinned, then as many are not, and so on.
pub const PINNED_RUN_PAGES: u64 = 16;
pub const PINNED_RUNS: u64 = 32;

/// The process, ended with this value.
pub struct Holder {
    pub pid: i32,
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    parts: Vec<(Part, Range<u64>)>,
}

impl Holder {
    /// Its memory is on this node.
    pub fn start(node: u32) -> Self {
        Self::spawn(&format!("parts {node}"), &PARTS)
    }

    /// With memory that move_pages(2) treats specially, on this node. Its pool of hugetlbfs needs free pages.
    pub fn start_special(node: u32) -> Self {
        Self::spawn(&format!("special {node}"), &SPECIAL)
    }

    fn spawn(what: &str, parts: &[(Part, u64)]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "holding::held::hold", "--ignored", "--nocapture"])
            .env(HOLD, what)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut holder = Self {
            pid: child.id().cast_signed(),
            orders: child.stdin.take(),
            answers: BufReader::new(child.stdout.take().unwrap()),
            child,
            parts: Vec::new(),
        };
        let starts = holder.answer("ready");
        let starts = starts.split_whitespace().map(|word| word.parse().unwrap());
        let range = |((part, bytes), start): (&(Part, u64), u64)| (*part, start..start + bytes);
        holder.parts = parts.iter().zip(starts).map(range).collect();
        holder
    }

    /// What follows this word in its output.
    fn answer(&mut self, word: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let length = self.answers.read_line(&mut line).unwrap();
            assert!(length > 0, "the process ended before it said {word}");
            if let Some((_, rest)) = line.trim_end().split_once(word) {
                return rest.to_owned();
            }
        }
    }

    fn order(&mut self, order: &str) {
        writeln!(self.orders.as_ref().unwrap(), "{order}").unwrap();
    }

    /// Fails unless every page has what the process wrote to it.
    pub fn check_content(&mut self) {
        self.order("check");
        assert_eq!(self.answer("content "), "good");
    }

    /// Nanoseconds of so many measurements, each of so many dependent loads at random addresses of its largest part.
    pub fn compute(&mut self, measurements: usize, steps: u64) -> Vec<f64> {
        self.order(&format!("compute {measurements} {steps}"));
        let times = self.answer("took ");
        times.split(' ').map(|time| time.parse().unwrap()).collect()
    }

    /// Reads every line of its largest part: what another CPU wrote is then in the cache of its own node, or in memory.
    pub fn read_all(&mut self) {
        self.order("read");
        self.answer("has read");
    }

    /// Makes it another program.
    pub fn exec(&mut self) {
        self.order("exec");
    }

    pub fn range(&self, part: Part) -> Range<u64> {
        let mut parts = self.parts.iter();
        parts.find(|(it, _)| *it == part).unwrap().1.clone()
    }

    /// The node of every page of every part.
    pub fn nodes(&self) -> Vec<i32> {
        let all = self.parts.iter().flat_map(|(_, range)| range.clone());
        let pages: Vec<u64> = all.step_by(PAGE as usize).collect();
        where_are(self.pid, &pages).unwrap()
    }

    /// Those of one part.
    pub fn of<'a>(&self, nodes: &'a [i32], part: Part) -> &'a [i32] {
        let mut first = 0;
        for (it, range) in &self.parts {
            let pages = ((range.end - range.start) / PAGE) as usize;
            if *it == part {
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
        drop(self.orders.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Whether a page of [`Part::Pinned`] is pinned, by its position.
pub fn is_pinned(page: u64) -> bool {
    page / PINNED_RUN_PAGES % 2 == 1 && page < 2 * PINNED_RUNS * PINNED_RUN_PAGES
}

/// A process on the CPUs of node 0 with this much memory of a node, in small pages.
pub fn fill(node: u32, bytes: u64) -> Holder {
    Holder::spawn(&format!("fill {node} {bytes}"), &[(Part::Small, bytes)])
}

/// Processes with all but a little of what a node has above its high watermark. It gives back page cache meanwhile.
pub fn fill_up(node: u32) -> Vec<Holder> {
    const LEFT_BYTES: u64 = 4 << 20;
    let mut holders = Vec::new();
    for _ in 0..8 {
        let zones = std::fs::read("/proc/zoneinfo").unwrap();
        let zones = zoneinfo::of_node(&zones, NodeId(node)).unwrap();
        let room = zones.above_high() * PAGE;
        if room < LEFT_BYTES {
            break;
        }
        holders.push(fill(node, room - LEFT_BYTES / 2));
    }
    holders
}

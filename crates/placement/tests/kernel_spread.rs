//! `spread` against a replica of the kernel's own functions in C, on 10,000 random machines: nodes without CPUs and without
//! memory, sparse node numbers, offline CPUs, equal and asymmetric distances, nodes at distance 10 of each other.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nearfar_machine::{
    Cpu, CpuId, CpuSet, Distance, DistanceOrigin, Distances, Known, Machine, Memory, Node, NodeId,
    Origin, SourceKind,
};
use nearfar_placement::spread::{SpreadRequest, spread};

const MACHINES: usize = 10_000;

/// What a machine is made of.
#[derive(Clone, Debug)]
struct Raw {
    /// Ascending.
    nodes: Vec<u32>,
    /// Without memory, by position in `nodes`.
    memoryless: Vec<bool>,
    /// For each CPU the position of its node and whether it is online; the first is.
    cpus: Vec<(usize, bool)>,
    /// Between positions.
    distances: Vec<Vec<u32>>,
    /// A position, or none.
    from: Option<usize>,
}

/// Numbers that are the same in each run. A strategy would take ten times as long, and nothing is shrunk.
struct Random(fastrand::Rng);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0.usize(..limit)
    }

    fn percent(&mut self, share: usize) -> bool {
        self.below(100) < share
    }

    /// Few values, so that many are equal, and 10 between different nodes now and then.
    fn distance(&mut self) -> u32 {
        let value = match self.below(8) {
            0 => 10,
            1..=4 => 11 + self.below(4),
            5 | 6 => 20 + self.below(3),
            _ => 11 + self.below(244),
        };
        value as u32
    }

    fn machine(&mut self) -> Raw {
        let mut nodes: Vec<u32> = (0..1 + self.below(8))
            .map(|_| self.below(24) as u32)
            .collect();
        nodes.sort_unstable();
        nodes.dedup();
        let count = nodes.len();
        // Only some of the nodes have CPUs, at least one.
        let mut homes: Vec<usize> = (0..count).filter(|_| self.percent(60)).collect();
        if homes.is_empty() {
            homes.push(self.below(count));
        }
        let cpu = |random: &mut Self| (homes[random.below(homes.len())], random.percent(80));
        let mut cpus: Vec<_> = (0..1 + self.below(40)).map(|_| cpu(self)).collect();
        cpus[0].1 = true;
        let symmetric = self.percent(50);
        let raw: Vec<Vec<u32>> = (0..count)
            .map(|_| (0..count).map(|_| self.distance()).collect())
            .collect();
        let entry = |a: usize, b: usize| match a {
            _ if a == b => 10,
            _ if symmetric => raw[a.min(b)][a.max(b)],
            _ => raw[a][b],
        };
        let distances = (0..count)
            .map(|a| (0..count).map(|b| entry(a, b)).collect())
            .collect();
        let memoryless = (0..count).map(|_| self.percent(20)).collect();
        let from = self.percent(95).then(|| self.below(count));
        Raw {
            nodes,
            memoryless,
            cpus,
            distances,
            from,
        }
    }
}

impl Raw {
    fn machine(&self) -> Machine {
        let mut machine = Machine::empty(
            Origin::new(SourceKind::Description, "test"),
            "left out by the test",
        );
        for (position, &id) in self.nodes.iter().enumerate() {
            let members = (0..)
                .zip(&self.cpus)
                .filter(|(_, (node, _))| *node == position);
            let mut node = Node::new(
                NodeId(id),
                members.map(|(cpu, _)| CpuId(cpu)).collect::<CpuSet>(),
            );
            node.memory = Known::Yes(Memory::of(if self.memoryless[position] {
                0
            } else {
                1 << 30
            }));
            machine.nodes.push(node);
        }
        let rows = self
            .distances
            .iter()
            .map(|row| row.iter().map(|&value| Some(Distance(value))).collect())
            .collect();
        let ids = self.nodes.iter().copied().map(NodeId).collect();
        machine.distances =
            Known::Yes(Distances::from_rows(DistanceOrigin::Kernel, ids, rows).unwrap());
        for (cpu, &(node, online)) in (0..).zip(&self.cpus) {
            let mut cpu = Cpu::new(CpuId(cpu), Some(NodeId(self.nodes[node])));
            cpu.online = online.into();
            machine.cpus.push(cpu);
        }
        machine.cpu_states.online = machine
            .cpus
            .iter()
            .filter(|cpu| cpu.is_online())
            .map(|cpu| cpu.id)
            .collect::<CpuSet>();
        machine
    }

    /// Once around and a little further.
    fn queues(&self) -> usize {
        self.cpus.len() + 3
    }

    /// The machine in the replica's form: nodes that are not there have no CPUs and are far.
    fn input(&self) -> String {
        let possible = self.nodes.last().unwrap() + 1;
        let mut text = format!("{possible} {}", self.cpus.len());
        for &(node, online) in &self.cpus {
            write!(text, " {} {}", self.nodes[node], u8::from(online)).unwrap();
        }
        let position = |id: u32| self.nodes.iter().position(|&node| node == id);
        for a in 0..possible {
            for b in 0..possible {
                let value = match (position(a), position(b)) {
                    (Some(a), Some(b)) => self.distances[a][b],
                    _ if a == b => 10,
                    _ => 254,
                };
                write!(text, " {value}").unwrap();
            }
        }
        let from = self.from.map_or(-1, |from| i64::from(self.nodes[from]));
        write!(text, " {from} {}", self.queues()).unwrap();
        text
    }

    fn answer(&self) -> String {
        let node = self.from.map(|from| NodeId(self.nodes[from]));
        let request = SpreadRequest {
            node,
            count: self.queues(),
            isolated_too: true,
            ..SpreadRequest::default()
        };
        let slots = spread(&self.machine(), &request).unwrap();
        slots
            .iter()
            .map(|slot| slot.cpu.to_string())
            .collect::<Vec<_>>()
            .join(" ")
    }
}

/// The compiled replica; nothing without a C compiler.
fn replica(directory: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernel_spread/replica.c");
    let program = directory.join("replica");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut command = Command::new(&compiler);
    command
        .args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(source);
    match command.output() {
        Ok(output) => {
            assert!(
                output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
            Some(program)
        }
        Err(error) => {
            println!("skipped: tools: no C compiler: {compiler}: {error}");
            None
        }
    }
}

#[test]
fn ten_thousand_random_machines_spread_as_the_kernel_does() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = replica(directory.path()) else {
        return;
    };
    let mut random = Random(fastrand::Rng::with_seed(7));
    let machines: Vec<Raw> = (0..MACHINES).map(|_| random.machine()).collect();
    let has_cpus = |raw: &&Raw| {
        raw.from.is_none_or(|from| {
            raw.cpus
                .iter()
                .any(|&(node, online)| online && node == from)
        })
    };
    let without = MACHINES - machines.iter().filter(has_cpus).count();
    assert!(
        without > 1000,
        "only {without} of the machines spread from a node without CPUs"
    );

    let input = directory.path().join("machines");
    let mut file = std::fs::File::create(&input).unwrap();
    machines
        .iter()
        .for_each(|raw| writeln!(file, "{}", raw.input()).unwrap());
    let output = Command::new(&program)
        .stdin(Stdio::from(std::fs::File::open(&input).unwrap()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{:?}", output.status);
    let expected = String::from_utf8(output.stdout).unwrap();
    assert_eq!(expected.lines().count(), MACHINES);
    let differ: Vec<_> = machines
        .iter()
        .zip(expected.lines())
        .filter(|(raw, line)| raw.answer() != *line)
        .collect();
    if let Some((raw, line)) = differ
        .iter()
        .min_by_key(|(raw, _)| raw.cpus.len() * raw.nodes.len())
    {
        panic!(
            "{} differ, such as {raw:?}\nkernel  {line}\nnearfar {}",
            differ.len(),
            raw.answer()
        );
    }
}

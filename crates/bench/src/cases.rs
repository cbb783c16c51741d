//! The published investigations that nearfar repeats, as data: what was asked and published, and which experiment answers it.
//!
//! ```text
//! Case ─► command lines of `nearfar bench`, in guests of the lab or here ─► a stored run
//!   └─ effect, published figures, limits ─► the table and the mail that show the run
//! ```

use crate::registry::{Declaration, EXPERIMENTS};

/// All cases, by number, after the one of the tests.
const ALL: &[Case] = &[
    MOCK,
    OFFLINE_NODE,
    PREFERRED_NODE,
    TAG_ALLOCATOR,
    SPREAD_INTERRUPTS,
    FAKE_NODES,
];

/// The published cases, by number.
pub fn cases() -> &'static [Case] {
    &ALL[1..]
}

/// A published investigation.
pub struct Case {
    pub number: u8,
    pub title: &'static str,
    /// The subject of the mail that began the thread, its list and month, and what became of it.
    pub source: &'static str,
    /// What its author wanted to know.
    pub question: &'static str,
    /// The name of the experiment that answers it.
    pub experiment: &'static str,
    /// The page of docs/ about it.
    pub page: &'static str,
    /// The guests of the lab, as options of `lab run` without dashes; a key that is there several times is a factor.
    pub guest: &'static [(&'static str, &'static str)],
    /// A script for sh that prepares the guest, with the experiment's command as its arguments.
    pub preparation: Option<&'static str>,
    /// Words of the experiment's command line in the lab.
    pub options: &'static [&'static str],
    /// The same here.
    pub options_here: &'static [&'static str],
    /// Options that have to be given here: they name something on the machine.
    pub required_here: &'static [&'static str],
    /// Programs besides nearfar that the experiment starts.
    pub programs: &'static [&'static str],
    /// Samples of each cell in the lab.
    pub samples: u32,
    /// Minutes that it takes in the lab on a host with two CPUs.
    pub minutes: u32,
    /// The effect and its direction, in the lab.
    pub quick: Quick,
    /// What is asked about two kernels, in place of the case's own question.
    pub kernels: KernelQuestion,
    /// What is compared with what; `None` where the experiment's own findings say it.
    pub effect: Option<Effect>,
    /// A table of published figures as the experiment reads it, with its name.
    pub published: Option<(&'static str, &'static str)>,
    /// What guests cannot show of it, in sentences.
    pub limits: &'static [&'static str],
    /// What this machine cannot, whatever it is.
    pub limits_here: &'static [&'static str],
}

/// What is different where a few minutes have to do.
pub struct Quick {
    /// Guests, in place of those with the same keys.
    pub guest: &'static [(&'static str, &'static str)],
    /// Words of the experiment's command line, in place of those that set the same.
    pub options: &'static [&'static str],
    pub samples: u32,
    pub minutes: u32,
}

/// How two kernels are compared by a case's load.
pub struct KernelQuestion {
    /// Words of the experiment's command line, in place of those that set the same: they leave to the kernel what the case changes.
    pub options: &'static [&'static str],
    /// The metric that is compared, in each cell.
    pub metric: &'static str,
}

/// The factor that the case is about.
pub struct Effect {
    pub factor: &'static str,
    /// The level that the others are compared with.
    pub baseline: &'static str,
    /// The published figures, in the order of the published table.
    pub figures: &'static [PublishedChange],
}

/// A row of a published table.
pub struct PublishedChange {
    /// The metric of the experiment.
    pub metric: &'static str,
    /// Levels of other factors that the row is about; empty where the published table has one row.
    pub cell: Levels,
    /// In the published unit: before and after.
    pub values: [f64; 2],
    pub unit: &'static str,
}

/// Levels of factors, by name.
type Levels = &'static [(&'static str, &'static str)];

impl PublishedChange {
    /// `values` are before and after.
    const fn new(metric: &'static str, cell: Levels, values: [f64; 2], unit: &'static str) -> Self {
        Self {
            metric,
            cell,
            values,
            unit,
        }
    }

    /// As a share of the value before: 0.13 is 13 % more.
    pub fn change(&self) -> f64 {
        self.values[1] / self.values[0] - 1.0
    }
}

impl Case {
    /// The published case of this number.
    pub fn by_number(number: u8) -> Option<&'static Case> {
        cases().iter().find(|case| case.number == number)
    }

    /// A case to test the command with, which measures nothing.
    pub fn mock() -> &'static Case {
        &MOCK
    }

    /// Whether the factor that the case is about is what guests differ in: this machine has one level of it.
    pub fn compares_guests(&self) -> bool {
        let factor = self.effect.as_ref().map(|it| it.factor);
        self.guest.iter().any(|(key, _)| Some(*key) == factor)
    }

    /// What its experiment declares; the registry has the experiment of every case.
    pub fn declaration(&self) -> Option<&'static Declaration> {
        let mut declarations = EXPERIMENTS.iter().map(|entry| &entry.declaration);
        declarations.find(|it| it.name == self.experiment)
    }

    /// The guests of its whole or its quick form.
    pub fn guests(&self, is_quick: bool) -> Vec<(&'static str, &'static str)> {
        let quick = if is_quick { self.quick.guest } else { &[] };
        let own = self.guest.iter();
        let own = own.filter(|(key, _)| quick.iter().all(|(other, _)| other != key));
        own.chain(quick).copied().collect()
    }

    /// Whether the whole run is made in one guest; otherwise each sample is taken in the guest of its cell.
    pub fn is_in_one_guest(&self) -> bool {
        let is_key_of_before = |position: usize| {
            let (key, _) = self.guest[position];
            self.guest[..position]
                .iter()
                .any(|(other, _)| *other == key)
        };
        !(0..self.guest.len()).any(is_key_of_before)
    }
}

/// Case 0, to test the command with: no list has it.
const MOCK: Case = Case {
    number: 0,
    title: "Is slow slower than fast?",
    source: "not published",
    question: "Is the slow level slower than the fast one?",
    experiment: "mock",
    page: "docs/cases.md",
    guest: &[
        ("machine", "two-node"),
        ("scale", "cpus=1,memory=256M"),
        ("append", "quiet"),
        ("append", "nokaslr"),
    ],
    preparation: None,
    options: &["--slow-ms=1"],
    options_here: &["--slow-ms=1"],
    required_here: &[],
    programs: &["sh"],
    samples: 6,
    minutes: 1,
    quick: Quick {
        guest: &[],
        options: &[],
        samples: 6,
        minutes: 1,
    },
    kernels: KernelQuestion {
        options: &[],
        metric: "latency_us",
    },
    effect: Some(Effect {
        factor: "speed",
        baseline: "fast",
        figures: &[PublishedChange::new("latency_us", &[], [1.5, 1000.0], "us")],
    }),
    published: None,
    limits: &["Anything: nothing is measured."],
    limits_here: &["Anything: nothing is measured."],
};

/// Case 1: an NVMe controller on a node that is not online.
const OFFLINE_NODE: Case = Case {
    number: 1,
    title: "A device on a node that is not online",
    source: "powerpc/numa: Make cpu/memory less numa-node online, linuxppc-dev, May 2024; in Linux since 6.11",
    question: "How much faster is I/O if the kernel knows that one of a disk's two controllers is on a distant node?",
    experiment: "io",
    page: "docs/case-1.md",
    guest: &[
        ("machine", "x86-case1"),
        ("scale", "cpus=1,memory=512M"),
        ("kernel", "6.12"),
        // What the CPU of the published machine waits for the controller's host bridge when it unlocks the submission queue after a
        // doorbell (mmiowb_spin_unlock() in include/asm-generic/mmiowb.h). An assumption: 100 ns a distance of 10, as memory here.
        ("delay", "device=100/170/distance"),
        ("time", "simulated,disk=20000"),
    ],
    preparation: Some(include_str!("cases/offline_node.sh")),
    options: &[
        "--device=nvme0n1",
        "--override-device-node",
        "--factor=plan=before,after",
        "--factor=iopolicy=numa",
        "--factor=cpu_node=0",
        "--factor=pattern=randwrite",
        "--factor=depth=512",
        "--seconds=0.03",
        "--ramp-seconds=0.01",
    ],
    options_here: &[
        "--factor=plan=before,after",
        "--factor=iopolicy=numa",
        "--factor=depth=512",
        "--jobs=4",
        "--seconds=60",
    ],
    required_here: &["--device"],
    programs: &["fio", "numactl"],
    samples: 16,
    minutes: 6,
    quick: Quick {
        guest: &[],
        options: &[],
        samples: 8,
        minutes: 3,
    },
    kernels: KernelQuestion {
        options: &["--factor=plan=before"],
        metric: "iops",
    },
    effect: Some(Effect {
        factor: "plan",
        baseline: "before",
        figures: &[
            PublishedChange::new("iops", &[], [632e3, 715e3], "1/s"),
            PublishedChange::new("bytes_per_s", &[], [2589e6, 2928e6], "B/s"),
            PublishedChange::new("latency_mean_ns", &[], [3238e3, 2864e3], "ns"),
            PublishedChange::new("latency_p99_ns", &[], [5735e3, 2966e3], "ns"),
        ],
    }),
    published: None,
    limits: &[
        "The drive: each command takes 20 us, so a controller that is asked for more makes nothing wait. What is measured \
         is the CPU's part of a command, a submission to the distant controller 300 ns longer by the machine's distances.",
        "DMA, interrupts and completions by distance. Which path the kernel takes is its own choice.",
        "The kernel's fix, which is of powerpc: here a plan overrides the controller's node.",
        "Four jobs on four CPUs: a second CPU with a job has moments without work, in which QEMU's disk answers in the host's time.",
    ],
    limits_here: &[],
};

/// Case 2: a preferred node for a task under load.
const PREFERRED_NODE: Case = Case {
    number: 2,
    title: "How good is a preferred node?",
    source: "How effective is numa_preferred_nid w.r.t. NUMA performance?, RFC, linux-kernel, December 2023; its kernel \
             interface was not merged",
    question: "Is a task that prefers a node, and is not bound to it, as fast as a bound one on a machine under load?",
    experiment: "probe",
    page: "docs/case-2.md",
    guest: &[
        ("machine", "xeon-8180"),
        ("scale", "cpus=8,memory=1G"),
        ("kernel", "6.12"),
        ("delay", "auto"),
        // Tasks that share no memory of their own need no order of single accesses.
        ("time", "simulated,window=100000"),
    ],
    preparation: Some(include_str!("cases/preferred_node.sh")),
    // The published buffer is unknown: 1.25 last-level caches, as a move is said to cost what the cache holds. NUMA balancing scans all of it
    // once after 40 ms, and then at most four times a second.
    options: &[
        "--bytes=48M",
        "--counts=160",
        "--steps=60000",
        "--load=60",
        // The published period is unknown: this is the usual one of `cpu.max` (admin-guide/cgroup-v2.rst).
        "--load-period-ms=100",
        "--first-touch=far",
        "--scan-delay-ms=40",
        "--scan-period-ms=250",
    ],
    options_here: &["--load=60"],
    required_here: &[],
    programs: &[],
    samples: 3,
    minutes: 30,
    quick: Quick {
        guest: &[],
        options: &[
            "--counts=28",
            // As many periods in short runs.
            "--load-period-ms=10",
            "--cell=preferred_node=-1,numa_balancing=0,memory_node=0,cpu_node=0",
            "--cell=preferred_node=-1,numa_balancing=0,memory_node=0,cpu_node=F",
            "--cell=preferred_node=0,numa_balancing=1,memory_node=0,cpu_node=F",
        ],
        samples: 6,
        minutes: 3,
    },
    kernels: KernelQuestion {
        options: &[],
        metric: "elapsed_s",
    },
    effect: None,
    published: Some((
        "numa_preferred_nid, December 2023",
        include_str!("cases/preferred_node.csv"),
    )),
    limits: &[
        "The published machine: two Xeon Platinum 8167M with 52 CPUs each; here 8180 of the same generation with 8 CPUs each.",
        "The published runs are some 200 times as long, and numbers of migrations are smaller by that.",
        "The period of the published load is not known: here 100 ms, with which the probe moves as often a second as published.",
        "The published buffer's size and where floating memory was first touched are not known: here 1.25 last-level caches, far.",
    ],
    limits_here: &[
        "The published machine and load: this machine has its own nodes, CPUs and other work.",
    ],
};

/// Case 3: allocators of tags near a device and far from it.
const TAG_ALLOCATOR: Case = Case {
    number: 3,
    title: "Stealing tags from the right neighbour",
    source: "percpu_ida: Take into account CPU topology when stealing tags, linux-kernel, April 2014; the block layer later \
             moved to scalable bitmaps",
    question: "How much faster is I/O far from a device if a CPU that has no free tag steals less, or from its nearest neighbour?",
    experiment: "tags",
    page: "docs/tags.md",
    guest: &[
        ("machine", "queues-on-node-2"),
        ("scale", "cpus=2,memory=512M"),
        ("delay", "transfer=125/500/distance"),
        ("time", "simulated"),
    ],
    preparation: None,
    // The published machine has 64 possible CPUs.
    options: &["--workers=1", "--possible-cpus=64"],
    options_here: &[],
    required_here: &[],
    programs: &[],
    // With fewer than 12 none of the 60 changes of other policies can be significant (Holm).
    samples: 12,
    minutes: 12,
    quick: Quick {
        guest: &[],
        options: &[
            "--factor=policy=stock,limit,limit_topology",
            "--factor=distance=far",
            "--factor=depth=512",
        ],
        samples: 8,
        minutes: 3,
    },
    kernels: KernelQuestion {
        options: &[],
        metric: "operations_per_s",
    },
    effect: None,
    published: Some((
        "percpu_ida, April 2014",
        include_str!("cases/tag_allocator.csv"),
    )),
    limits: &[
        "Steps of the published order that need several workers per group: each has one.",
        "The cost of a line between real CPUs: transfers are delayed by distance.",
    ],
    limits_here: &[
        "The kernel's allocators: threads take tags of allocators that are written as the kernel's were.",
    ],
};

const REQUESTS: &str = "requests_per_s";
const CARD: Levels = &[("server_node", "card")];
const ADJACENT: Levels = &[("server_node", "adjacent")];

/// Case 4: a network card's interrupts near its servers.
const SPREAD_INTERRUPTS: Case = Case {
    number: 4,
    title: "Interrupts spread nearest first",
    source: "lib: optimize cpumask_local_spread(), linux-kernel, November 2019; in Linux since 6.3",
    question: "Does a server on the node next to a network card's node catch up with one on the card's node if the card's \
               interrupts are spread over the nearest nodes?",
    experiment: "rps",
    page: "docs/case-4.md",
    guest: &[
        ("machine", "cards-back-to-back"),
        // The emulated card has eight queues: six for the CPUs of its node, two for the others.
        ("scale", "cpus=6,memory=512M"),
        ("kernel", "6.12"),
        ("delay", "auto"),
        // Half of the shortest transfer, the default, is 18: a sample takes the host longer, and has requests within 7 % of these.
        ("time", "simulated,window=100/1000"),
    ],
    // The emulated cards' drivers hold interrupts back by default, which hides who serves them.
    preparation: Some("ethtool -C eth0 rx-usecs 0 && ethtool -C eth1 rx-usecs 0 && exec \"$@\""),
    options: &[
        "--device=eth0",
        "--client-device=eth1",
        "--factor=server_node=card,adjacent,together",
        "--factor=interrupts=kernel_pre_6_3,nearest_first",
        "--servers=2",
        "--client-cpus=6-11",
    ],
    options_here: &[
        "--factor=interrupts=kernel_pre_6_3,nearest_first",
        "--servers=24",
    ],
    required_here: &["--device", "--client-device"],
    programs: &["redis-server", "ip", "ethtool"],
    // With fewer than 8 none of the changes can be significant (Holm).
    samples: 8,
    minutes: 25,
    quick: Quick {
        guest: &[("scale", "cpus=2,memory=512M")],
        options: &[
            "--factor=server_node=card,adjacent",
            "--servers=1",
            "--client-cpus=2-3",
        ],
        samples: 8,
        minutes: 3,
    },
    kernels: KernelQuestion {
        options: &["--factor=interrupts=keep"],
        metric: REQUESTS,
    },
    effect: Some(Effect {
        factor: "interrupts",
        baseline: "kernel_pre_6_3",
        figures: &[
            PublishedChange::new(REQUESTS, CARD, [260e3, 260e3], "1/s"),
            PublishedChange::new(REQUESTS, ADJACENT, [220e3, 260e3], "1/s"),
        ],
    }),
    published: None,
    limits: &[
        "DMA of the card and the cost of an interrupt between real CPUs: memory and lines between CPUs are delayed by distance.",
        "24 servers per node: the emulated card has eight queues, two of them for the adjacent node, and each server has its own.",
        "arm64: the guest is x86-64, with latencies of a Kunpeng 920.",
    ],
    limits_here: &[],
};

const ONE_TASK: Levels = &[("tasks", "1")];
const SOME_TASKS: Levels = &[("tasks", "12")];
const QUARTER: Levels = &[("tasks", "24")];
/// As many as CPUs.
const ALL_TASKS: Levels = &[("tasks", "96")];

/// Case 5: more nodes than the machine has.
const FAKE_NODES: Case = Case {
    number: 5,
    title: "More nodes than the machine has",
    source: "support NUMA emulation for arm64, RFC, linux-arm-kernel, October 2023; generic since Linux 6.12",
    question: "Do processes that all want one lock of their node get further if the machine is divided into more nodes?",
    experiment: "scale",
    page: "docs/scale.md",
    // The kernel traces waits for spinlocks only where it sees no hypervisor (docs/trace.md).
    guest: &[
        ("machine", "kunpeng-4826-one-node"),
        ("scale", "memory=4G"),
        ("kernel", "6.12"),
        // By default half of the least transfer, which takes the host several times as long.
        ("time", "simulated,window=100/1000"),
        ("delay", "auto"),
        ("append", "numa=fake=1 clearcpuid=hypervisor"),
        ("append", "numa=fake=2 clearcpuid=hypervisor"),
    ],
    preparation: None,
    options: &[
        "--factor=memory=spread",
        "--factor=tasks=1,12,24,48,96",
        "--seconds=0.004",
        "--memory-size=4M",
        "--trace-seconds=0.002",
        "--profile-frequency=0",
    ],
    options_here: &["--factor=workload=tlb_flush,lru", "--sweep=full"],
    required_here: &[],
    programs: &[],
    // With fewer none of the changes can be significant (Holm).
    samples: 8,
    minutes: 30,
    quick: Quick {
        guest: &[("scale", "cpus=12,memory=4G")],
        options: &[
            "--factor=tasks=12",
            "--seconds=0.001",
            "--warm-up=0.001",
            "--trace-seconds=0",
        ],
        samples: 6,
        minutes: 3,
    },
    kernels: KernelQuestion {
        options: &[],
        metric: "operations_per_s",
    },
    effect: Some(Effect {
        factor: "append",
        baseline: "numa=fake=1 clearcpuid=hypervisor",
        // One node and two.
        figures: &[
            PublishedChange::new("operations_per_s", ONE_TASK, [141_122.0, 141_168.0], "1/s"),
            PublishedChange::new(
                "operations_per_s",
                SOME_TASKS,
                [1_105_372.0, 1_444_848.0],
                "1/s",
            ),
            PublishedChange::new(
                "operations_per_s",
                ALL_TASKS,
                [724_516.0, 1_423_968.0],
                "1/s",
            ),
            PublishedChange::new("hot_lock_share", QUARTER, [0.24, 0.0], "share"),
        ],
    }),
    published: Some((
        "NUMA emulation for arm64, October 2023",
        include_str!("cases/fake_nodes.csv"),
    )),
    limits: &[
        "The published machine, which is not named: latencies are those of two Kunpeng 920 with 48 CPUs each.",
        "arm64: the guests are x86-64, whose kernel divides nodes in the same way. It flushes the TLB of \
         the CPU that a process runs on; arm64 broadcasts invalidations to all.",
        "Nodes of different distance: the fake ones share memory that is equally far from all CPUs.",
    ],
    limits_here: &[
        "More nodes than this machine has: a kernel splits its memory only at boot (numa=fake=2).",
    ],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_an_experiment_a_page_and_guests_that_fit() {
        for (position, case) in ALL.iter().enumerate() {
            assert!(ALL[..position].iter().all(|it| it.number < case.number));
            assert!(case.declaration().is_some(), "case {}", case.number);
            let page = format!(
                "{}/../../{}",
                env!("CARGO_MANIFEST_DIR"),
                case.page.split('#').next().unwrap()
            );
            assert!(std::path::Path::new(&page).is_file(), "{page}");
            let is_prepared = case.preparation.is_some();
            let is_of_machine = case.declaration().is_some_and(|it| it.is_of_machine);
            assert!(
                case.is_in_one_guest() || !(is_prepared || is_of_machine),
                "case {}",
                case.number
            );
            assert!(!case.limits.is_empty() && case.samples > 0 && case.minutes > 0);
            assert!(case.quick.samples > 0 && (1..=3).contains(&case.quick.minutes));
        }
    }

    #[test]
    fn a_published_change_is_a_share_of_the_value_before() {
        let figure = PublishedChange {
            metric: "iops",
            cell: &[],
            values: [632e3, 715e3],
            unit: "IOPS",
        };
        assert!((figure.change() - 0.131).abs() < 0.001);
    }
}

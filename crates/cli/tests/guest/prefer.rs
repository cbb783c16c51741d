//! A preferred node in a guest with two nodes: how often a task leaves it under a little load, what that costs, and
//! whether the surplus finds its way out of a full node and back.
//!
//! Needs QEMU, a cached kernel (`nearfar lab kernels get 6.12`) and a static busybox; without them it says so and passes. The
//! parts named `inside_...` are this very program once more, started in the guest.
//! `cargo test -p nearfar --test guest_prefer -- --nocapture` prints the figures that docs/prefer.md shows.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::guests;
use nearfar_bench::load::Load;
use nearfar_bench::probe::{Pattern, Probe, ProbeSpec, Where};
use nearfar_machine::{CpuSet, Machine, NodeId};
use nearfar_prefer::{Keeper, KeeperOptions, Targets};
use nearfar_sources::{Request, Want};
use nearfar_trace::watch::Watch;

const HOME: NodeId = NodeId(0);

/// Two nodes of two CPUs. Without delays: what far memory costs is in the matrix of the probe; here it is who moves.
/// Times are compared, so the guest boots: docs/lab-guests.md says what a start from a saved guest costs them.
const GUEST: [&str; 3] = ["--cold", "--scale", "cpus=2,memory=512M"];

fn machine() -> Machine {
    nearfar_sources::read(&Request {
        source: None,
        root: None,
        fake: None,
        want: Want::topology(),
    })
    .unwrap()
}

fn home_cpus(machine: &Machine) -> CpuSet {
    machine.node(HOME).unwrap().cpus.clone()
}

/// Moves between nodes in one run of a kept task.
const MOST_MOVES: u64 = 12;
/// A kept run relative to a confined one of the same round, in the median of the rounds. On a quiet host it is 1.00.
const AS_BOUND: f64 = 1.4;
/// Of a CPU, for the keeper. On a quiet host 0.0064; a guest counts what its own CPU loses to others on the host.
const KEEPER: f64 = 0.05;
/// The better of two kept runs relative to the better of two confined ones. On a quiet host 0.55.
const SOONER: f64 = 0.85;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Way {
    Free,
    Bound,
    Kept,
}

/// What the runs of one way came to.
#[derive(Default)]
struct Runs {
    seconds: Vec<f64>,
    cross_node: Vec<u64>,
    keeper_share: Vec<f64>,
    widened: u64,
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 {
        values[middle]
    } else {
        (values[middle - 1] + values[middle]) / 2.0
    }
}

/// One run of the probe with its memory on the preferred node, watched.
fn probe(way: Way, machine: &Machine, watch: &mut Watch, steps: u64, runs: &mut Runs) {
    let cpus = if way == Way::Bound {
        Where::Node(HOME)
    } else {
        Where::Floating
    };
    let spec = ProbeSpec {
        pattern: Pattern::RandomReadWrite,
        bytes: 16 << 20,
        counts: 10,
        steps,
        memory: Where::Node(HOME),
        cpus,
        cpu_set: None,
        huge_pages: Default::default(),
    };
    let mut probe = Probe::prepare(Path::new(guests::NEARFAR), &spec).unwrap();
    let pid = probe.pid();
    let keep = || {
        Keeper::start(
            Targets::Pids(vec![pid]),
            HOME,
            machine,
            KeeperOptions::default(),
        )
        .unwrap()
    };
    let keeper = (way == Way::Kept).then(keep);
    watch.follow(pid).unwrap();
    let result = probe.run(&AtomicBool::new(false)).unwrap();
    let watched = watch.collect(pid).unwrap();
    runs.seconds.push(result.seconds);
    runs.cross_node.push(watched.found.migrations.cross_node);
    // Lost ones could only be more than were counted: a loss makes the figure of one that stays on its node useless.
    if !watched.losses.is_whole() {
        println!("{way:?}: events were lost");
    }
    if let Some(keeper) = keeper {
        let report = keeper.stop().unwrap();
        runs.keeper_share.push(report.cpu_share());
        runs.widened += report.widened;
    }
}

#[test]
#[ignore = "runs in the guest"]
fn inside_beside_a_little_load() {
    assert!(
        guests::is_inside(),
        "this part changes a kernel: it runs in a guest"
    );
    std::fs::write("/proc/sys/kernel/numa_balancing", "0").unwrap();
    let machine = machine();
    let load = Load::start(Path::new(guests::NEARFAR), &machine.cpu_states.online, 5.0).unwrap();
    let mut watch = Watch::open(&machine).unwrap();
    let mut first = Runs::default();
    // The first one also translates the code.
    (0..2).for_each(|_| probe(Way::Bound, &machine, &mut watch, 20_000, &mut first));
    let steps = (20_000.0 * 4.0 / first.seconds[1]) as u64;
    let mut ways = [
        (Way::Free, Runs::default()),
        (Way::Bound, Runs::default()),
        (Way::Kept, Runs::default()),
    ];
    for round in 0..3 {
        for turn in 0..ways.len() {
            let (way, runs) = &mut ways[(round + turn) % 3];
            probe(*way, &machine, &mut watch, steps, runs);
        }
    }
    println!(
        "{:?}",
        load.stop()
            .unwrap()
            .cpus
            .iter()
            .map(|cpu| cpu.achieved_percent.round())
            .collect::<Vec<_>>()
    );
    for (way, runs) in &ways {
        println!(
            "{way:?}: median {:.3} s, cross-node {:?}, keeper {:.4}, released {}",
            median(&runs.seconds),
            runs.cross_node,
            runs.keeper_share.iter().sum::<f64>() / runs.keeper_share.len().max(1) as f64,
            runs.widened
        );
        println!("  {:.2?}", runs.seconds);
    }
    let [_, (_, bound), (_, kept)] = &ways;
    let ratios: Vec<f64> = kept
        .seconds
        .iter()
        .zip(&bound.seconds)
        .map(|(kept, bound)| kept / bound)
        .collect();
    println!(
        "kept relative to bound {ratios:.3?}, median {:.3}",
        median(&ratios)
    );
    assert!(
        kept.cross_node.iter().all(|&moves| moves <= MOST_MOVES),
        "{:?}",
        kept.cross_node
    );
    assert!(median(&ratios) < AS_BOUND, "{ratios:?}");
    assert!(
        median(&kept.keeper_share) < KEEPER,
        "{:?}",
        kept.keeper_share
    );
}

/// Burns this much CPU time, as the guest counts it: its CPUs may be slow, but each is one.
#[test]
#[ignore = "a child of a part that runs in the guest"]
fn burn() {
    let Ok(seconds) = std::env::var("BURN") else {
        return println!("skipped: manual: nothing to burn");
    };
    let seconds: f64 = seconds.parse().unwrap();
    let used = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
    };
    while used() < seconds {
        std::hint::black_box((0..10_000_u64).fold(0, |sum, number| sum ^ number));
    }
}

fn burner(seconds: f64, cpus: Option<&CpuSet>) -> Child {
    let me = std::env::current_exe().unwrap();
    let mut command = match cpus {
        Some(cpus) => {
            let mut command = Command::new("taskset");
            command.args(["-c", &cpus.to_string()]).arg(me);
            command
        }
        None => Command::new(me),
    };
    command
        .args(["--exact", "prefer::burn", "--ignored"])
        .env("BURN", seconds.to_string())
        .stdout(Stdio::null());
    command.spawn().unwrap()
}

/// How long it takes until all have burnt theirs.
fn burn_all(way: Way, machine: &Machine, tasks: usize, seconds: f64) -> f64 {
    let home = home_cpus(machine);
    let begun = Instant::now();
    let bound = (way == Way::Bound).then_some(&home);
    let mut children: Vec<Child> = (0..tasks).map(|_| burner(seconds, bound)).collect();
    let pids = children
        .iter()
        .map(|child| child.id().cast_signed())
        .collect();
    let keep =
        || Keeper::start(Targets::Pids(pids), HOME, machine, KeeperOptions::default()).unwrap();
    let keeper = (way == Way::Kept).then(keep);
    children
        .iter_mut()
        .for_each(|child| assert!(child.wait().unwrap().success()));
    let took = begun.elapsed().as_secs_f64();
    if let Some(keeper) = keeper {
        println!("  {}", keeper.stop().unwrap());
    }
    took
}

#[test]
#[ignore = "runs in the guest"]
fn inside_a_full_node() {
    assert!(
        guests::is_inside(),
        "this part changes a kernel: it runs in a guest"
    );
    let machine = machine();
    // In the same guest, for the time that another start takes.
    own_memory_follows_and_shared_memory_stays(&machine);
    let seconds = 6.0;
    let mut took = [
        (Way::Free, Vec::new()),
        (Way::Bound, Vec::new()),
        (Way::Kept, Vec::new()),
    ];
    for _ in 0..2 {
        for (way, took) in &mut took {
            took.push(burn_all(*way, &machine, 4, seconds));
        }
    }
    took.iter()
        .for_each(|(way, took)| println!("{way:?} {took:.2?}"));
    // Hogs that cannot leave come and go; afterwards all are on the preferred node again.
    let home = home_cpus(&machine);
    let mut kept: Vec<Child> = (0..2).map(|_| burner(60.0, None)).collect();
    let pids: Vec<i32> = kept.iter().map(|child| child.id().cast_signed()).collect();
    let keeper = Keeper::start(
        Targets::Pids(pids),
        HOME,
        &machine,
        KeeperOptions::default(),
    )
    .unwrap();
    // At most this many seconds, or until all are on the preferred node.
    let outside = |what: &str, seconds: u64, until_home: bool| {
        let begun = Instant::now();
        let mut seen = Vec::new();
        while begun.elapsed() < Duration::from_secs(seconds)
            && !(until_home && seen.last() == Some(&0))
        {
            std::thread::sleep(Duration::from_millis(250));
            seen.push(keeper.report().unwrap().out_now);
        }
        println!("{what}: out {seen:?}");
        seen
    };
    outside("before", 4, false);
    let mut hogs: Vec<Child> = (0..2).map(|_| burner(60.0, Some(&home))).collect();
    let during = outside("hogs on the node", 5, false);
    hogs.iter_mut()
        .for_each(|hog| drop((hog.kill(), hog.wait())));
    let after = outside("after", 45, true);
    println!("{}", keeper.stop().unwrap());
    kept.iter_mut()
        .for_each(|child| drop((child.kill(), child.wait())));
    assert_eq!(
        after.last(),
        Some(&0),
        "on the preferred node while it has room"
    );
    println!(
        "at most {:?} released while the hogs run",
        during.iter().max()
    );
    let by_free = |index: usize| took[index].1.iter().sum::<f64>() / took[0].1.iter().sum::<f64>();
    println!(
        "relative to free: confined {:.2}, kept {:.2}",
        by_free(1),
        by_free(2)
    );
    let best = |index: usize| took[index].1.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(
        best(2) < SOONER * best(1),
        "kept {:.2} s, confined {:.2} s",
        best(2),
        best(1)
    );
}

/// Pages of a file that two processes map, and of one process's own memory.
const SHARED_PAGES: usize = 1024;
const OWN_PAGES: usize = 4096;

/// Maps a file and reads each of its pages.
fn map_and_read(file: &Path) {
    let (file, length) = (
        std::fs::File::open(file).unwrap(),
        SHARED_PAGES * rustix::param::page_size(),
    );
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    // SAFETY: a new mapping, inside which is read; it stays until this process ends.
    unsafe {
        let begin = mmap(
            std::ptr::null_mut(),
            length,
            ProtFlags::READ,
            MapFlags::SHARED,
            &file,
            0,
        )
        .unwrap();
        for at in (0..length).step_by(rustix::param::page_size()) {
            std::hint::black_box(begin.cast::<u8>().add(at).read_volatile());
        }
    }
}

/// Has memory of its own, and maps a file that it wrote, until its standard input ends.
#[test]
#[ignore = "a child of a part that runs in the guest"]
fn hold() {
    let Some(file) = std::env::var_os("HOLD") else {
        return println!("skipped: manual: nothing to hold");
    };
    let page = rustix::param::page_size();
    std::fs::write(&file, vec![1; SHARED_PAGES * page]).unwrap();
    let own = vec![2_u8; OWN_PAGES * page];
    map_and_read(Path::new(&file));
    println!("holds");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    std::hint::black_box(own);
}

/// How many pages of each node a process has in mappings whose line in numa_maps has, or has not, this word.
fn pages_by_node(pid: u32, word: &str, has: bool) -> [usize; 2] {
    let text = std::fs::read(format!("/proc/{pid}/numa_maps")).unwrap();
    let text = String::from_utf8_lossy(&text);
    ["N0=", "N1="].map(|node| {
        let lines = text.lines().filter(|line| line.contains(word) == has);
        lines
            .flat_map(|line| line.split(' '))
            .filter_map(|part| part.strip_prefix(node)?.parse::<usize>().ok())
            .sum()
    })
}

/// As root, migrate_pages(2) would move what other processes map as well.
fn own_memory_follows_and_shared_memory_stays(machine: &Machine) {
    let away = machine.node(NodeId(1)).unwrap().cpus.to_string();
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let file = dir.path().join("shared by two");
    let mut command = Command::new("taskset");
    command
        .args(["-c", &away])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "prefer::hold", "--ignored", "--nocapture"]);
    let mut child = command
        .env("HOLD", &file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    assert!(
        said.map_while(Result::ok)
            .any(|line| line.contains("holds"))
    );
    map_and_read(&file);
    // Free to go home from now on.
    let all = machine.cpu_states.online.to_string();
    let freed = Command::new("taskset")
        .args(["-apc", &all, &child.id().to_string()])
        .stdout(Stdio::null())
        .status();
    assert!(freed.unwrap().success());
    let pages = || {
        [
            pages_by_node(child.id(), "shared", true),
            pages_by_node(child.id(), "file=", false),
        ]
    };
    let [shared_before, own_before] = pages();
    assert!(
        shared_before == [0, SHARED_PAGES] && own_before[1] >= OWN_PAGES,
        "{shared_before:?} {own_before:?}"
    );

    let options = KeeperOptions {
        memory: nearfar_prefer::Memory::Follow,
        ..KeeperOptions::default()
    };
    let begun = Instant::now();
    let pid = child.id().cast_signed();
    let keeper = Keeper::start(Targets::Pids(vec![pid]), HOME, machine, options).unwrap();
    let moved = keeper.stop().unwrap().memory.unwrap();
    println!("{moved:?} in {:.2?}", begun.elapsed());
    let [shared, own] = pages();
    println!("shared {shared_before:?} -> {shared:?}, own {own_before:?} -> {own:?}");
    assert_eq!(
        shared, shared_before,
        "pages that this process maps as well"
    );
    assert!(own[0] >= OWN_PAGES, "{own:?}");
    assert!(
        moved.left_shared >= SHARED_PAGES as u64 && moved.pages_moved >= OWN_PAGES as u64,
        "{moved:?}"
    );
    assert!((moved.moves, moved.is_interrupted, moved.refused) == (1, false, None));
    drop(child.stdin.take());
    child.wait().unwrap();
}

#[test]
fn beside_a_little_load_a_kept_task_stays_at_home() {
    if guests::skipped() {
        return;
    }
    let _turn = guests::turn();
    guests::part("two-node", &GUEST, "prefer::inside_beside_a_little_load");
}

#[test]
fn the_surplus_of_a_full_node_leaves_and_comes_back() {
    if guests::skipped() {
        return;
    }
    let _turn = guests::turn();
    guests::part("two-node", &GUEST, "prefer::inside_a_full_node");
}

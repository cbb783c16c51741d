//! A preferred node in a guest with two nodes: a kept task stays on it, its memory follows, and the surplus of a full node is
//! released and confined again. What that costs is in prefer_time.rs.
//!
//! Needs QEMU, a cached kernel (`nearfar lab kernels get 6.12`) and a static busybox; without them it says so and passes. The
//! part named `inside_...` is this very program once more, started in the guest.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use crate::guests;
use crate::waiting::wait_until;
use nearfar_bench::probe::{Pattern, Probe, ProbeSpec, Where};
use nearfar_machine::{CpuSet, Machine, NodeId};
use nearfar_prefer::{Keeper, KeeperOptions, Targets};
use nearfar_sources::{Request, Want};
use nearfar_trace::watch::Watch;

pub const HOME: NodeId = NodeId(0);

/// Two nodes of two CPUs. Without delays: what far memory costs is in the matrix of the probe; here it is who moves.
pub const SCALE: [&str; 2] = ["--scale", "cpus=2,memory=512M"];

pub fn machine() -> Machine {
    nearfar_sources::read(&Request {
        sources: Vec::new(),
        root: None,
        fake: None,
        want: Want::topology(),
    })
    .unwrap()
}

pub fn home_cpus(machine: &Machine) -> CpuSet {
    machine.node(HOME).unwrap().known_cpus().clone()
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Way {
    Free,
    Bound,
    Kept,
}

/// What the runs of one way came to.
#[derive(Default)]
pub struct Runs {
    pub seconds: Vec<f64>,
    pub cross_node: Vec<u64>,
    pub keeper_share: Vec<f64>,
    pub widened: u64,
}

/// One run of the probe with its memory on the preferred node, watched.
pub fn probe(way: Way, machine: &Machine, watch: &mut Watch, steps: u64, runs: &mut Runs) {
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
        touch_cpus: None,
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

pub fn burner(seconds: f64, cpus: Option<&CpuSet>) -> Child {
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

/// The CPUs that each thread of these processes may use.
fn masks(pids: &[i32]) -> Vec<CpuSet> {
    let of_thread = |status: String| {
        let mut lines = status.lines();
        let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        list.unwrap().trim().parse().unwrap()
    };
    let tasks = |pid: &i32| std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let threads = pids.iter().flat_map(tasks);
    // One that ends meanwhile has no file.
    threads
        .filter_map(|thread| std::fs::read_to_string(thread.unwrap().path().join("status")).ok())
        .map(of_thread)
        .collect()
}

/// Moves between nodes are counted: that to the preferred node, and no other unless the keeper releases the task.
fn a_kept_task_stays_on_its_node(machine: &Machine) {
    std::fs::write("/proc/sys/kernel/numa_balancing", "0").unwrap();
    let mut watch = Watch::open(machine).unwrap();
    let mut runs = Runs::default();
    probe(Way::Kept, machine, &mut watch, 20_000, &mut runs);
    println!(
        "kept: cross-node {:?}, released {}",
        runs.cross_node, runs.widened
    );
    assert!(runs.widened > 0 || runs.cross_node[0] <= 1);
}

/// Tasks that cannot leave the node come and go: kept ones are released, and confined again afterwards.
fn the_surplus_is_released_and_confined_again(machine: &Machine) {
    let home = home_cpus(machine);
    let all = machine.cpu_states.online.clone();
    let mut kept: Vec<Child> = (0..2).map(|_| burner(3600.0, None)).collect();
    let pids: Vec<i32> = kept.iter().map(|child| child.id().cast_signed()).collect();
    let are_confined = || masks(&pids).iter().all(|mask| *mask == home);
    let targets = Targets::Pids(pids.clone());
    let keeper = Keeper::start(targets, HOME, machine, KeeperOptions::default()).unwrap();
    let released = || keeper.report().unwrap().out_now;
    // A thread in the making has its maker's mask, and one that waits too long is released at once.
    wait_until("both are confined", || released() == 0 && are_confined());
    let mut hogs: Vec<Child> = (0..2).map(|_| burner(3600.0, Some(&home))).collect();
    wait_until("a task is released from the full node", || {
        released() > 0 && masks(&pids).contains(&all)
    });
    hogs.iter_mut()
        .for_each(|hog| drop((hog.kill(), hog.wait())));
    wait_until("both are confined again", || {
        released() == 0 && are_confined()
    });
    let report = keeper.stop().unwrap();
    println!("{report}");
    assert!(report.widened > 0 && report.narrowed >= 2 + report.widened);
    assert!(masks(&pids).iter().all(|mask| *mask == all), "given back");
    kept.iter_mut()
        .for_each(|child| drop((child.kill(), child.wait())));
}

#[test]
#[ignore = "runs in the guest"]
fn inside_kept_released_and_confined_again() {
    assert!(
        guests::is_inside(),
        "this part changes a kernel: it runs in a guest"
    );
    let machine = machine();
    own_memory_follows_and_shared_memory_stays(&machine);
    a_kept_task_stays_on_its_node(&machine);
    the_surplus_is_released_and_confined_again(&machine);
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
    let away = machine.node(NodeId(1)).unwrap().known_cpus().to_string();
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
fn a_kept_task_stays_on_its_node_and_is_released_while_that_is_full() {
    if guests::skipped() {
        return;
    }
    let part = "prefer::inside_kept_released_and_confined_again";
    guests::part("two-node", &SCALE, part);
}

//! The process that holds memory: it touches its parts, prints `ready` and their addresses, then obeys the lines of its standard
//! input until that ends.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use nearfar_machine::CpuSet;
use nearfar_proc::affinity;

use crate::guests::take_memory_of;

use super::{HOLD, PAGE, PARTS, PINNED_RUN_PAGES, PINNED_RUNS, Part, SPECIAL};

/// The process itself: `ready` and the addresses, then what it is ordered until standard input ends.
#[test]
#[ignore = "a child of a part that runs in the guest"]
fn hold() {
    let Ok(what) = std::env::var(HOLD) else {
        return println!("skipped: manual: nothing to hold");
    };
    let words: Vec<&str> = what.split(' ').collect();
    let node: u32 = words[1].parse().unwrap();
    run_on(if words[0] == "fill" { 0 } else { node });
    let parts: Vec<(u64, u64)> = match words[0] {
        "fill" => {
            let bytes = words[2].parse().unwrap();
            let start = mapped(bytes, libc::MAP_PRIVATE);
            advise(start, bytes, libc::MADV_NOHUGEPAGE);
            take_memory_of(Some(node));
            touch(start, bytes, 1);
            take_memory_of(None);
            vec![(start, bytes)]
        }
        "special" => with_bytes(special(), &SPECIAL),
        _ => with_bytes(parts(node), &PARTS),
    };
    let starts: Vec<String> = parts.iter().map(|(start, _)| start.to_string()).collect();
    println!("ready {}", starts.join(" "));
    std::io::stdout().flush().unwrap();
    for order in std::io::stdin().lines().map_while(Result::ok) {
        obey(&order, &parts);
        std::io::stdout().flush().unwrap();
    }
}

static RANDOM: AtomicU64 = AtomicU64::new(88_172_645_463_325_252);
/// Lines that [`chase`] reads of each page.
const LOADS_OF_PAGE: u64 = 16;
const LINE: u64 = 64;
const LINES: u64 = PAGE / LINE;

fn with_bytes(starts: Vec<u64>, parts: &[(Part, u64)]) -> Vec<(u64, u64)> {
    starts
        .into_iter()
        .zip(parts.iter().map(|(_, bytes)| *bytes))
        .collect()
}

fn obey(order: &str, parts: &[(u64, u64)]) {
    match order.split_once(' ').unwrap_or((order, "")) {
        ("check", _) => {
            let is_good = parts
                .iter()
                .all(|(start, bytes)| has_content(*start, *bytes));
            println!("content {}", if is_good { "good" } else { "changed" });
        }
        ("compute", steps) => {
            let (start, bytes) = parts.iter().max_by_key(|(_, bytes)| *bytes).unwrap();
            let (times, steps) = steps.split_once(' ').unwrap();
            let steps = steps.parse().unwrap();
            let times = (0..times.parse().unwrap()).map(|_: u32| {
                let begun = std::time::Instant::now();
                chase(*start, *bytes, steps);
                begun.elapsed().as_nanos().to_string()
            });
            println!("took {}", times.collect::<Vec<_>>().join(" "));
        }
        ("read", _) => {
            let (start, bytes) = parts.iter().max_by_key(|(_, bytes)| *bytes).unwrap();
            for address in (*start..start + bytes).step_by(LINE as usize) {
                // SAFETY: inside a mapping of this process.
                std::hint::black_box(unsafe { (address as *const u8).read_volatile() });
            }
            println!("has read");
        }
        ("exec", _) => panic!("{}", Command::new("sleep").arg("600").exec()),
        _ => panic!("no order {order}"),
    }
}

/// Loads of which each has a part in the address of the next: [`LOADS_OF_PAGE`] lines of a random page, then of another one.
/// An emulated guest takes long to find a page that it has not used for a while, whatever node that is on. Written so that the
/// test executable, which is not optimized, does little else.
fn chase(start: u64, bytes: u64, steps: u64) {
    let pages = bytes / PAGE;
    // Goes on where the last order ended: the cache has the lines of that.
    let mut random = RANDOM.load(Ordering::Relaxed);
    let (mut left, mut loaded) = (steps, 0);
    while left > 0 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let page = start + random % pages * PAGE;
        let mut line = 0;
        while line < LOADS_OF_PAGE {
            let address = page + ((random >> (3 * line)) ^ loaded) % LINES * LINE;
            // SAFETY: inside a mapping of this process.
            loaded = unsafe { *(address as *const u64) } % 2;
            line += 1;
        }
        left = left.saturating_sub(LOADS_OF_PAGE);
    }
    std::hint::black_box(loaded);
    RANDOM.store(random, Ordering::Relaxed);
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

/// Writes to every `step`th page: its address at its begin, and at its end.
fn touch(start: u64, bytes: u64, step: usize) {
    for address in (start..start + bytes).step_by(step * PAGE as usize) {
        for at in ends(address) {
            // SAFETY: inside a mapping of this process.
            unsafe { (at as *mut u64).write_volatile(address) };
        }
    }
}

/// The first and the last word of a page.
fn ends(page: u64) -> [u64; 2] {
    [page, page + PAGE - 8]
}

fn has_content(start: u64, bytes: u64) -> bool {
    let is_good = |page: u64| {
        // SAFETY: inside a mapping of this process.
        let word = |at: u64| unsafe { (at as *const u64).read_volatile() };
        ends(page).into_iter().all(|at| word(at) == page)
    };
    (start..start + bytes).step_by(PAGE as usize).all(is_good)
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

fn special() -> Vec<u64> {
    let [(_, hugetlb), (_, pinned)] = SPECIAL;
    let hugetlb_start = mapped(hugetlb, libc::MAP_PRIVATE | libc::MAP_HUGETLB);
    touch(hugetlb_start, hugetlb, 1);
    let pinned_start = mapped(pinned, libc::MAP_PRIVATE);
    advise(pinned_start, pinned, libc::MADV_NOHUGEPAGE);
    touch(pinned_start, pinned, 1);
    pin(pinned_start);
    vec![hugetlb_start, pinned_start]
}

/// Registers runs of pages as buffers of io_uring, which pins them until this process ends (io_uring_register(2)).
fn pin(start: u64) {
    const IORING_REGISTER_BUFFERS: libc::c_uint = 0;
    let run = PINNED_RUN_PAGES * PAGE;
    let buffer = |number: u64| libc::iovec {
        iov_base: (start + (2 * number + 1) * run) as *mut libc::c_void,
        iov_len: run as usize,
    };
    let buffers: Vec<libc::iovec> = (0..PINNED_RUNS).map(buffer).collect();
    // struct io_uring_params: 120 bytes, all zero for the defaults.
    let mut parameters = [0_u64; 15];
    // SAFETY: the kernel reads and writes the parameters, then reads as many buffers as it is told, which are of a mapping that
    // stays. The ring is never closed.
    unsafe {
        let ring = libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr());
        assert!(
            ring >= 0,
            "io_uring_setup: {}",
            std::io::Error::last_os_error()
        );
        let result = libc::syscall(
            libc::SYS_io_uring_register,
            ring,
            IORING_REGISTER_BUFFERS,
            buffers.as_ptr(),
            buffers.len(),
        );
        assert_eq!(
            result,
            0,
            "io_uring_register: {}",
            std::io::Error::last_os_error()
        );
    }
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
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
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

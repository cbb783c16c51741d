//! The kernel refuses system calls after an allocator was made, as a seccomp filter makes it that a program installs later.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::system;
use nearfar_tags::Tags;

const TAGS: u32 = 255;
/// In a process of its own, which a test starts by its own name and this variable.
const IN_CHILD: &str = "NEARFAR_TAGS_REFUSE";

fn in_child(test: &str, run: impl FnOnce()) {
    if std::env::var_os(IN_CHILD).is_some() {
        return run();
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", &format!("refused::{test}"), "--nocapture"])
        .env(IN_CHILD, "1");
    let output = child.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// From now on these system calls of all threads return EPERM. False where there are no such filters.
fn refuse(calls: &[libc::c_long]) -> bool {
    let statement = |code: u32, k| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let load_number = statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0);
    let allow = statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW);
    let errno = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut filter = vec![load_number];
    for call in calls {
        filter.push(libc::sock_filter {
            jf: 1,
            ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, *call as u32)
        });
        filter.push(statement(libc::BPF_RET | libc::BPF_K, errno));
    }
    filter.push(allow);
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: `program` describes `filter`; the kernel copies both. The filter returns an error for some calls and changes nothing else.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                libc::SECCOMP_FILTER_FLAG_TSYNC,
                &raw const program,
            ) == 0
    }
}

/// The CPUs that this thread may run on.
fn cpus() -> Vec<u32> {
    // SAFETY: all zeros is an empty set; the call writes to it.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&set), &mut set);
        set
    };
    // SAFETY: each number is below the size of the set.
    (0..libc::CPU_SETSIZE as u32)
        .filter(|cpu| unsafe { libc::CPU_ISSET(*cpu as usize, &set) })
        .collect()
}

/// Tags some of which are in the cache of each CPU, where there are caches.
fn cached() -> Tags {
    let tags = Tags::new(TAGS).unwrap();
    for cpu in cpus() {
        thread::scope(|scope| {
            scope.spawn(|| {
                system::run_on(Some(cpu));
                for _ in 0..10 {
                    drop(tags.try_get_batch(8));
                }
            });
        });
    }
    tags
}

fn take_all(tags: &Tags) -> Vec<u32> {
    std::iter::from_fn(|| tags.try_take()).collect()
}

fn assert_all(mut numbers: Vec<u32>) {
    numbers.sort_unstable();
    assert_eq!(numbers, (0..TAGS).collect::<Vec<_>>());
}

/// Threads take and put, and find each tag held by themselves alone.
fn cycle(tags: &Tags) {
    let held: Vec<AtomicBool> = (0..TAGS).map(|_| AtomicBool::new(false)).collect();
    let end = Instant::now() + Duration::from_millis(200);
    let run = || {
        while Instant::now() < end {
            for tag in tags.get_batch(60).unwrap().into_tags() {
                let held = &held[tag.number() as usize];
                assert!(!held.swap(true, Ordering::Relaxed));
                held.store(false, Ordering::Relaxed);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(run);
        }
    });
    assert_all(take_all(tags));
}

#[test]
fn caches_are_emptied_without_membarrier() {
    in_child("caches_are_emptied_without_membarrier", || {
        let tags = cached();
        let before = cpus();
        if !refuse(&[libc::SYS_membarrier]) {
            return eprintln!("skipped: kernel: it refuses seccomp filters");
        }
        let all = take_all(&tags);
        tags.put_batch(&all);
        assert_all(all);
        assert_eq!(cpus(), before);
        cycle(&tags);
        assert_all(take_all(&Tags::new(TAGS).unwrap()));
    });
}

#[test]
fn each_cpu_empties_its_cache_without_membarrier_and_setaffinity() {
    in_child(
        "each_cpu_empties_its_cache_without_membarrier_and_setaffinity",
        || {
            let tags = cached();
            // Threads that were on their CPUs before.
            thread::scope(|scope| {
                let mut threads = Vec::new();
                for cpu in cpus() {
                    let (start, started) = mpsc::channel::<()>();
                    let (ready, is_ready) = mpsc::channel::<()>();
                    let tags = &tags;
                    let thread = scope.spawn(move || {
                        system::run_on(Some(cpu));
                        drop(ready);
                        started.recv().map_or(Vec::new(), |()| take_all(tags))
                    });
                    let _ = is_ready.recv();
                    threads.push((start, thread));
                }
                if !refuse(&[libc::SYS_membarrier, libc::SYS_sched_setaffinity]) {
                    return eprintln!("skipped: kernel: it refuses seccomp filters");
                }
                let mut all = Vec::new();
                for (start, thread) in threads {
                    start.send(()).unwrap();
                    all.append(&mut thread.join().unwrap());
                }
                tags.put_batch(&all);
                assert_all(all);
            });
            cycle(&tags);
        },
    );
}

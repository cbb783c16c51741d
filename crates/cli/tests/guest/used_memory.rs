//! `nearfar tasks --used` in a guest in simulated time: what the kernel's access monitor makes of a process that uses a part of its
//! memory, against what the delay plugin counted of its accesses.
//!
//! Needs what crates/cli/tests/guest/delays.rs needs; without it says so and passes. The part named `use_a_part` is this very program
//! once more, started in the guest.

use crate::guests;
use nearfar_proc::affinity;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use serde_json::{Value, json};

const PAGE_BYTES: usize = 4096;
const MIB: usize = 1 << 20;
/// Of memory that is touched once, on the node that the program runs on and on the other one.
const UNUSED_MIB: [usize; 2] = [60, 20];
/// Of memory that is read again and again.
const USED_MIB: [usize; 2] = [4, 12];

/// Reads random lines of a part of its memory, on CPU 0, until it is killed.
#[test]
#[ignore = "a child of a script that runs in the guest"]
fn use_a_part() {
    if !guests::is_inside() {
        return println!("skipped: manual: this part has two nodes in a guest");
    }
    affinity::set(0, &[nearfar_machine::CpuId(0)].into_iter().collect()).unwrap();
    let parts: Vec<(u32, usize)> = [UNUSED_MIB, USED_MIB]
        .iter()
        .flat_map(|by_node| (0..).zip(by_node.iter().copied()))
        .collect();
    let bytes = parts.iter().map(|it| it.1).sum::<usize>() * MIB;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, which stays until this process ends.
    let begin = unsafe {
        let begin = mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::PRIVATE).unwrap();
        madvise(begin, bytes, Advice::LinuxNoHugepage).unwrap();
        begin.cast::<u8>()
    };
    let mut at = 0;
    for (node, mib) in parts {
        guests::take_memory_of(Some(node));
        for _ in 0..mib * MIB / PAGE_BYTES {
            // SAFETY: inside the mapping.
            unsafe { begin.add(at).write_volatile(1) };
            at += PAGE_BYTES;
        }
    }
    println!("uses");
    let used = USED_MIB.iter().sum::<usize>() * MIB;
    let mut rng = fastrand::Rng::with_seed(7);
    loop {
        for _ in 0..20_000 {
            // SAFETY: inside the mapping, of which the used part is the last.
            unsafe { begin.add(bytes - used + rng.usize(0..used)).read_volatile() };
        }
        // An idle guest costs the host nothing.
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Wakes up on CPU 0 again and again, as another program: QEMU flushes its TLB, which has no bound, when another one's page tables are
/// loaded.
#[test]
#[ignore = "a child of a script that runs in the guest"]
fn wake_up() {
    if !guests::is_inside() {
        return println!("skipped: manual: this part runs next to another one in a guest");
    }
    affinity::set(0, &[nearfar_machine::CpuId(0)].into_iter().collect()).unwrap();
    loop {
        std::thread::sleep(std::time::Duration::from_millis(30));
    }
}

/// The share of far accesses of the first vCPU, without those by which the kernel cleared each page.
fn counted_share(counts: &Value) -> f64 {
    const LINE_BYTES: usize = 64;
    let vcpu = &counts["vcpus"][0];
    let count = |key: &str, node: usize| {
        let cleared = (UNUSED_MIB[node] + USED_MIB[node]) * MIB / LINE_BYTES;
        vcpu[key].as_u64().unwrap() as f64 - cleared as f64
    };
    let (near, far) = (count("near", 0), count("far", 1));
    far / (near + far)
}

#[test]
fn what_is_used_is_what_the_plugin_counts() {
    if guests::skipped() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let counts = folder.path().join("counts.json");
    let options = [
        "--scale",
        "cpus=2,memory=512M",
        "--time",
        "simulated",
        "--delay",
        "near=90,far=140",
        "--counts",
        counts.to_str().unwrap(),
    ];
    let script = format!(
        "parts='{} --ignored --nocapture --exact used_memory'
        $parts::use_a_part > /tmp/uses &
        program=$!
        $parts::wake_up > /dev/null &
        other=$!
        damon=/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds
        until grep -q uses /tmp/uses; do sleep 0.1; done
        $0 tasks --pid $program --used --format json
        cat $damon
        $0 tasks --pid $program --used > /dev/null &
        until grep -qs on /sys/kernel/mm/damon/admin/kdamonds/0/state; do sleep 0.05; done
        kill -KILL $!
        until grep -q 0 $damon; do sleep 0.05; done
        # One that ends meanwhile.
        (until grep -qs on /sys/kernel/mm/damon/admin/kdamonds/0/state; do sleep 0.05; done; kill $program) &
        $0 tasks --pid $program --used --format json
        kill $other",
        std::env::current_exe().unwrap().display()
    );
    let text = guests::script("two-node", &options, &script);
    let mut answers = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
    let mut next = || answers.next().unwrap().unwrap();
    let (used, threads_of_damon, ended) = (next(), next(), next());
    let reason = &ended["tasks"][0]["used"]["unknown_reason"];
    assert_eq!(reason, &json!("it ended while it was watched"), "{ended}");
    // Nothing of it is left, nor of one that was killed: the script would not end.
    assert_eq!(threads_of_damon, json!(0));
    let share = |tasks: &Value| tasks["tasks"][0]["remote"]["share"].as_f64().unwrap();
    let memory = used["tasks"][0]["memory"].as_array().unwrap();
    let on = |node: u64| {
        let on = memory.iter().find(|on| on["node"] == json!(node));
        on.unwrap()["bytes"].as_f64().unwrap()
    };
    let by_memory = on(1) / (on(0) + on(1));
    // Of the program itself, too.
    assert!((0.25..0.45).contains(&by_memory), "{by_memory}");
    let of_used = &used["tasks"][0]["used"];
    let used_mib = of_used["bytes"].as_f64().unwrap() / MIB as f64;
    assert!((12.0..24.0).contains(&used_mib), "{of_used}");
    let counts = serde_json::from_slice(&std::fs::read(&counts).unwrap()).unwrap();
    let (by_used, counted) = (share(&used), counted_share(&counts));
    println!(
        "remote share by memory {by_memory:.3}, by used memory {by_used:.3}, counted {counted:.3}"
    );
    assert!((counted - 0.75).abs() < 0.05, "{counted}");
    assert!((by_used - counted).abs() < 0.1, "{by_used}, {counted}");
}

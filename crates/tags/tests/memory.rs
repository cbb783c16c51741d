//! 4096 possible CPUs and 255 tags: less than 1 MiB, and most of it only once every CPU has used the allocator.

#[path = "../src/apart.rs"]
mod apart;
#[path = "../src/bitmap.rs"]
#[allow(dead_code)] // What only other policies need.
mod bitmap;
#[path = "../src/coarse.rs"]
#[allow(dead_code)] // What only the library needs.
mod coarse;
#[path = "../src/deferred.rs"]
#[allow(dead_code)] // What only the library needs.
mod deferred;
#[path = "../src/event.rs"]
#[allow(dead_code)] // What only waiters need.
mod event;
#[path = "../src/locked.rs"]
#[allow(dead_code)] // What only the library needs.
mod locked;
#[path = "../src/order.rs"]
#[allow(dead_code)] // What only the library needs.
mod order;
#[path = "../src/shards.rs"]
#[allow(dead_code)] // What only other policies need.
mod shards;
#[path = "../src/size.rs"]
mod size;
#[path = "../src/statistics.rs"]
#[allow(dead_code)] // What only the library needs.
mod statistics;
#[path = "../src/sync.rs"]
#[allow(dead_code, unused_imports)] // What only other protocols need.
mod sync;
#[path = "../src/word.rs"]
#[allow(dead_code)] // What only other policies need.
mod word;

#[path = "../src/topology.rs"]
#[allow(dead_code)] // What only the library needs.
mod topology;

use nearfar_tags::BuildError;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};

use coarse::Coarse;
use deferred::Deferred;
use locked::{CacheSize, Locked, Search};
use order::Order;
use topology::{Cpu, Group, Topology};

const CPUS: u32 = 4096;
const TAGS: u32 = 255;
const MIB: isize = 1 << 20;

/// Counts the bytes in use.
struct Counting;

static IN_USE: AtomicIsize = AtomicIsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn bytes_of<T>(make: impl FnOnce() -> T) -> (T, isize) {
    let before = IN_USE.load(Ordering::Relaxed);
    let made = make();
    (made, IN_USE.load(Ordering::Relaxed) - before)
}

fn check(name: &str, made: isize, touched: isize) {
    println!("{name}: {made} bytes, {touched} when every CPU has used it");
    assert!(made < MIB / 4, "{name}: {made} bytes");
    assert!(made + touched < MIB, "{name}: {made} + {touched} bytes");
}

/// 16 nodes of 256 CPUs.
fn topology() -> Topology {
    let cpu = |number: u32| Cpu {
        core: number / 2,
        core_group: number / 8,
        llc: number / 32,
        node: number / 256,
    };
    Topology {
        cpus: (0..CPUS).map(|number| Some(cpu(number))).collect(),
        distances: vec![vec![10; 16]; 16],
    }
}

/// The counts are of the whole process: one test.
#[test]
fn allocators_of_4096_cpus_stay_under_a_mebibyte() {
    let topology = topology();
    let limits = (0, TAGS, TAGS);
    for (name, search, divisor) in [
        ("Stock", Search::InTurns, CPUS),
        ("LimitTopology", Search::NearestFirst, 8),
    ] {
        let size = CacheSize { divisor };
        let make = || Locked::new(Order::new(&topology, None), search, size, limits);
        let (policy, made) = bytes_of(make);
        let ((), touched) = bytes_of(|| {
            for cpu in 0..CPUS as usize {
                let tag = policy.take(cpu).expect("all are free");
                policy.put(cpu, tag);
            }
        });
        check(name, made, touched);
    }
    for group in [Group::Core, Group::Llc, Group::Node] {
        let (_policy, made) = bytes_of(|| Coarse::new(&topology, group, limits));
        check(&format!("Coarse of {group:?}"), made, 0);
    }
    let (policy, made) = bytes_of(|| Deferred::new(CPUS as usize, limits));
    let ((), touched) = bytes_of(|| {
        for cpu in 0..CPUS as usize {
            let tag = policy.take(cpu).expect("all are free");
            policy.put(cpu, tag);
        }
    });
    check("Bitmap", made, touched);
}

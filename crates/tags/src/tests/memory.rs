//! 4096 possible CPUs and 255 tags: less than 1 MiB, and most of it only once every CPU has used the allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use crate::coarse::Coarse;
use crate::deferred::Deferred;
use crate::locked::{CacheSize, Locked, Search};
use crate::order::Order;
use crate::topology::{Cpu, Group, Topology};

const CPUS: u32 = 4096;
const TAGS: u32 = 255;
const MIB: isize = 1 << 20;

/// Counts the bytes that each thread has in use.
struct Counting;

thread_local! {
    static IN_USE: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.set(IN_USE.get() + layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.set(IN_USE.get() - layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn bytes_of<T>(make: impl FnOnce() -> T) -> (T, isize) {
    let before = IN_USE.get();
    let made = make();
    (made, IN_USE.get() - before)
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

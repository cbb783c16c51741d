//! Memory of an allocator of 255 tags on a machine of 4096 possible CPUs, as the kernel counts it: what is mapped but never written
//! does not count.

#![cfg(not(miri))] // It reads /proc and moves between CPUs.

use std::time::Duration;

use crate::system;
use crate::variants::{ALL, Variant, possible_cpus, topology_of};
use nearfar_tags::Tags;

const CPUS: u32 = 4096;
const TAGS: u32 = 255;
/// Averages out what the C library keeps.
const ALLOCATORS: u64 = 4;
const MAX_BYTES: u64 = 1 << 20;

#[test]
fn an_allocator_for_4096_cpus_takes_less_than_a_mebibyte() {
    // Kept to the end, so that none takes memory that another one freed.
    let mut allocators = Vec::new();
    for variant in ALL {
        let bytes = resident_bytes_of_one(variant, &mut allocators);
        println!("{}: {} KiB", variant.name, bytes / 1024);
        assert!(bytes < MAX_BYTES, "{}: {bytes} bytes", variant.name);
    }
}

fn resident_bytes_of_one(variant: Variant, allocators: &mut Vec<Tags>) -> u64 {
    let topology = topology_of(CPUS);
    let before = resident_bytes();
    for _ in 0..ALLOCATORS {
        let builder = variant
            .builder(TAGS)
            .topology(topology.clone())
            .possible_cpus(CPUS);
        let tags = builder.build().expect("the topology is consistent");
        use_everywhere(&tags);
        allocators.push(tags);
    }
    resident_bytes().saturating_sub(before) / ALLOCATORS
}

/// Takes and puts every tag on each CPU of the host, and waits once.
fn use_everywhere(tags: &Tags) {
    for cpu in 0..possible_cpus() {
        system::run_on(Some(cpu));
        let held = tags.try_get_batch(TAGS as usize);
        assert_eq!(held.numbers().len() as u32, TAGS);
        assert!(tags.get_timeout(Duration::from_micros(1)).is_none());
        drop(held);
        for _ in 0..TAGS {
            tags.put(tags.try_take().expect("every tag is free"));
        }
    }
    system::run_on(None);
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("/proc is mounted");
    let pages: u64 = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse().ok())
        .expect("a number");
    // SAFETY: sysconf reads no memory of the caller.
    pages * unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64
}

//! Files of /proc/PID as recorded trees may hold them.
#![no_main]
use libfuzzer_sys::fuzz_target;
use nearfar_proc::Sched;
use nearfar_proc::Image;
use nearfar_proc::Status;
use nearfar_proc::{RunTime, Stat, cgroup, choice, cpu_counts, cpu_times, maps, meminfo, mountinfo, numa_maps, zoneinfo};

fuzz_target!(|content: &[u8]| {
    if let Some((stat, name)) = Stat::parse_with_name(content) {
        assert_eq!(Stat::parse(content), Some(stat));
        assert!(name.as_bytes().len() < content.len());
        let _ = (stat.cpu_seconds(), stat.started_seconds(), name.to_string());
    }
    let _ = Image::parse(content);
    let _ = zoneinfo::of_node(content, nearfar_machine::NodeId(0)).map(zoneinfo::NodePages::above_high);
    let status = Status::of(content);
    let _ = (status.process(), status.numbers(), status.pinned_bytes());
    let _ = (status.allowed_cpus(), status.allowed_nodes());
    let sched = Sched::of(content);
    let _ = (sched.migrations(), sched.preferred_node(), sched.faults_by_node());
    let _ = (RunTime::parse(content), meminfo::bytes(content, "MemFree"), meminfo::count(content, "HugePages_Total"));
    let _ = (cgroup::group_with(content, "cpuset"), cgroup::mapped_by_node(content), mountinfo::mounts(content));
    cpu_times::parse(content).for_each(drop);
    cpu_counts::parse(content, |_| true).expect("bytes in memory are read");
    let _ = maps::huge_bytes(content, 0x1000..0x2000);
    maps::each_range(content, |range| drop(range)).expect("bytes in memory are read");
    numa_maps::each(content, |mapping| drop(mapping)).expect("bytes in memory are read");
    let written = choice::written(content);
    assert_eq!(written, written.trim_ascii());
});

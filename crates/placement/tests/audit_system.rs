//! What the audit says of NVMe subsystems, tasks, cpusets, settings, writers and nodes.

use crate::common;
use crate::common::{add_nic, add_subsystem, findings, list, machine, set, two_nodes};
use nearfar_change::{Change, Plan};
use nearfar_machine::{
    AnaState, Cpu, CpuId, CpuSet, CpuTime, Cpuset, IoPolicy, Known, Latency, Machine, Memory,
    MemorySample, Node, NodeBytes, NodeId, NodeSet, Origin, PolicyBytes, ResidentBytes, SourceKind,
    Task, Timing, Warning, Writer, WriterKind,
};
use nearfar_placement::audit::{AuditOptions, RULES, Severity, State, audit};
use nearfar_placement::plan::{PlanOptions, plan};

use AnaState::Optimized;

fn disk(policy: IoPolicy, nodes: [Option<u32>; 2]) -> Machine {
    let mut machine = two_nodes();
    let paths = [
        ("0000:20:00.0", nodes[0], Optimized),
        ("0000:40:00.0", nodes[1], Optimized),
    ];
    add_subsystem(&mut machine, "nvme-subsys0", policy, &paths);
    machine
}

fn task(pid: i32, name: &str, cpus: &str, last: u32, bytes: &[(u32, u64)]) -> Task {
    Task {
        allowed_cpus: Known::Yes(set(cpus)),
        allowed_nodes: Known::Yes(NodeSet::parse_list("0-1").unwrap()),
        last_cpu: Known::Yes(CpuId(last)),
        memory: Known::Yes(
            bytes
                .iter()
                .map(|&(node, gib)| NodeBytes {
                    node: NodeId(node),
                    bytes: gib << 30,
                })
                .collect(),
        ),
        policies: Known::Yes(Vec::new()),
        preferred_node: Known::Yes(None),
        pinned_bytes: Known::Yes(0),
        cpu_ms: Known::Yes(1000),
        ..Task::new(pid, name)
    }
}

#[test]
fn numa_leaves_paths_idle_and_that_is_worth_knowing() {
    insta::assert_snapshot!(findings(&disk(IoPolicy::Numa, [Some(0), Some(1)])), @r"
    fact nvme-far-path | nvme-subsys0 (nvme0n1): The policy numa uses one of 2 paths from each node; the others are idle.
      /sys/class/nvme-subsystem/nvme-subsys0/nvme0/numa_node = 0
      /sys/class/nvme-subsystem/nvme-subsys0/nvme1/numa_node = 1
      /sys/class/nvme-subsystem/nvme-subsys0/iopolicy = numa
      advice Compare policies under the real load before changing one: numa keeps I/O near, round-robin and queue-depth (since Linux 6.11) use every path; which wins depends on whether a path or the distance is the limit.
    ");
}

#[test]
fn round_robin_and_queue_depth_send_part_of_the_io_far() {
    insta::assert_snapshot!(findings(&disk(IoPolicy::RoundRobin, [Some(0), Some(1)])), @r"
    notice nvme-far-path | nvme-subsys0 (nvme0n1): The policy round-robin sends I/O from node 0 over all 2 paths; 1 of them far, at 21 rather than 10.
      /sys/class/nvme-subsystem/nvme-subsys0/nvme0/numa_node = 0
      /sys/class/nvme-subsystem/nvme-subsys0/nvme1/numa_node = 1
      /sys/class/nvme-subsystem/nvme-subsys0/iopolicy = round-robin
      cost 21 -> 10
      advice Compare policies under the real load before changing one: numa keeps I/O near, round-robin and queue-depth (since Linux 6.11) use every path; which wins depends on whether a path or the distance is the limit.
    ");
    insta::assert_snapshot!(findings(&disk(IoPolicy::QueueDepth, [Some(1), Some(1)])), @"");
}

#[test]
fn a_controller_without_a_node_under_numa() {
    let mut machine = disk(IoPolicy::Numa, [Some(0), None]);
    insta::assert_snapshot!(findings(&machine), @r"
    warning nvme-far-path | nvme-subsys0 (nvme0n1): The policy is numa and the kernel has no node for nvme1: kernels with the fix (Linux 6.9, 6.1.93 and other stable releases) count it as local (10), others read any value; the kernel's release is unknown: the source does not tell. I/O from nodes 0-1 may go through nvme0c1n1.
      /sys/class/nvme-subsystem/nvme-subsys0/nvme0/numa_node = 0
      /sys/class/nvme-subsystem/nvme-subsys0/nvme1/numa_node = -1
      /sys/class/nvme-subsystem/nvme-subsys0/iopolicy = numa
      advice Compare policies under the real load before changing one: numa keeps I/O near, round-robin and queue-depth (since Linux 6.11) use every path; which wins depends on whether a path or the distance is the limit.
    notice device-without-node | 0000:40:00.0 (nvme): The kernel has no node for this device, and its node is unknown.
      /sys/bus/pci/devices/0000:40:00.0/numa_node = -1
      advice Not placed: the kernel says none (-1); its host bridge is unknown; no other device on root bus 0000:40 has a node.
    ");
    let mut under = |release: &str| {
        machine.origin.kernel = Known::Yes(release.to_owned());
        findings(&machine).lines().next().map(str::to_owned)
    };
    insta::assert_snapshot!(under("6.12.1").unwrap(), @"warning nvme-far-path | nvme-subsys0 (nvme0n1): The policy is numa and the kernel has no node for nvme1: Linux 6.12.1 counts it as local (10). I/O from node 1 goes through nvme0c1n1. I/O from node 0 may go through nvme0c1n1.");
    insta::assert_snapshot!(under("6.6.32").unwrap(), @"warning nvme-far-path | nvme-subsys0 (nvme0n1): The policy is numa and the kernel has no node for nvme1: Linux 6.6.32 reads any value as its distance (fixed in 6.6.33: local, 10). I/O from nodes 0-1 may go through nvme0c1n1.");
    insta::assert_snapshot!(under("5.14.0-503.el9.x86_64").unwrap(), @"warning nvme-far-path | nvme-subsys0 (nvme0n1): The policy is numa and the kernel has no node for nvme1: kernels with the fix (Linux 6.9, 6.1.93 and other stable releases) count it as local (10), others read any value; Linux 5.14.0-503.el9.x86_64 is a distribution's: it may have the fix. I/O from nodes 0-1 may go through nvme0c1n1.");
}

#[test]
fn a_far_controller_without_a_node_counts_as_local() {
    let mut machine = common::device_on_an_offline_node(2);
    machine.origin.kernel = Known::Yes("6.12.1".to_owned());
    let all = findings(&machine);
    let line = all
        .lines()
        .find(|line| line.contains("nvme-far-path"))
        .unwrap();
    insta::assert_snapshot!(line, @"warning nvme-far-path | nvme-subsys0 (nvme0n1): The policy is numa and the kernel has no node for nvme1: Linux 6.12.1 counts it as local (10). I/O from node 1 goes through nvme0c1n1. I/O from node 0 may go through nvme0c1n1. From node 1 nvme1 is at 31, another path at 21.");
}

#[test]
fn one_path_or_an_unknown_policy_is_no_finding() {
    let mut machine = two_nodes();
    add_subsystem(
        &mut machine,
        "nvme-subsys0",
        IoPolicy::Numa,
        &[("0000:20:00.0", Some(0), Optimized)],
    );
    assert_eq!(findings(&machine), "");
    let mut machine = disk(IoPolicy::Other("latency".into()), [Some(0), Some(1)]);
    insta::assert_snapshot!(findings(&machine), @r#"not checked nvme-far-path: nvme-subsys0: this version does not know the policy "latency""#);
    list(&mut machine.nvme)[0].iopolicy = Known::no("native multipath is off");
    insta::assert_snapshot!(findings(&machine), @"not checked nvme-far-path: nvme-subsys0: native multipath is off");
}

#[test]
fn memory_of_a_confined_task_is_planned_only_when_its_rule_is_named() {
    let mut machine = two_nodes();
    *list(&mut machine.tasks) = vec![
        task(7, "bound", "0-3", 1, &[(0, 1), (1, 6)]),
        task(8, "floating", "0-7", 5, &[(0, 3), (1, 1)]),
    ];
    let audit = audit(&machine, &AuditOptions::default());
    let planned = |rules| {
        let options = PlanOptions {
            rules,
            ..PlanOptions::default()
        };
        plan(&machine, &audit, &options)
    };
    let all = planned(None);
    assert_eq!((all.changes.len(), all.left_alone.len()), (0, 2));
    let named = planned(Some(vec!["task-memory-far".to_owned()]));
    let [only] = &named.changes[..] else {
        panic!("{named:?}");
    };
    let expected = Change::TaskMemory {
        pid: 7,
        from: NodeSet::single(NodeId(1)),
        to: NodeId(0),
        shared: false,
    };
    assert_eq!(only.change, expected);
    assert_eq!(only.before.as_deref(), Some("N0=1073741824 N1=6442450944"));
    // Which process it is has to be read from the system.
    assert_eq!(only.owner, None);

    list(&mut machine.tasks)[0].start = Known::Yes(815);
    let options = PlanOptions {
        rules: Some(vec!["task-memory-far".to_owned()]),
        ..PlanOptions::default()
    };
    let named = plan(&machine, &audit, &options);
    let owner = named.changes[0].owner.clone().unwrap();
    let process = owner.process.unwrap();
    assert_eq!((process.start_ticks, &*process.name), (815, "bound"));
}

/// A task of 10 s of age, with CPU seconds by node.
fn busy(pid: i32, seconds: [u64; 2], bytes: &[(u32, u64)]) -> Task {
    let time = |cpu, seconds| CpuTime {
        cpu: CpuId(cpu),
        ms: seconds * 1000,
    };
    Task {
        cpu_ms: Known::Yes(1000 * (seconds[0] + seconds[1])),
        cpu_times: Known::Yes(vec![time(0, seconds[0]), time(4, seconds[1])]),
        age_ms: Known::Yes(10_000),
        ..task(pid, "db", "0-7", 0, bytes)
    }
}

fn busy_tasks() -> Vec<Task> {
    let mut pinned = busy(4, [5, 0], &[(1, 4)]);
    pinned.resident = Known::Yes(ResidentBytes {
        anonymous: 4 << 30,
        pinned: 3 << 30,
        ..ResidentBytes::default()
    });
    vec![
        busy(1, [5, 0], &[(0, 1), (1, 6)]),
        // Threads on both nodes: the task goes to its memory.
        busy(2, [8, 2], &[(1, 4)]),
        // Spread over both nodes on both sides.
        busy(3, [6, 4], &[(0, 3), (1, 4)]),
        pinned,
        // Barely ran.
        Task {
            cpu_ms: Known::Yes(20),
            ..busy(5, [1, 0], &[(1, 4)])
        },
        // Less than half of the accesses, but a move halves that.
        busy(6, [9, 1], &[(0, 3), (1, 1)]),
        // Near enough.
        busy(8, [9, 1], &[(0, 10), (1, 1)]),
        Task {
            age_ms: Known::no("not in this snapshot"),
            ..busy(7, [5, 0], &[(1, 1)])
        },
    ]
}

#[test]
fn fix_and_advice_are_the_remedy_of_the_task() {
    let mut machine = two_nodes();
    *list(&mut machine.tasks) = busy_tasks();
    insta::assert_snapshot!(findings(&machine), @r#"
    notice task-memory-far | task 1 (db): 6.0 GiB of its 7.0 GiB are on other nodes than it runs on, most on node 1. It ran on node 0.
      /proc/1/numa_maps = N0=1.0 GiB N1=6.0 GiB
      /proc/1/task/*/stat = CPU time 5.00 s on node 0
      cost 21 -> 10
      fix {"kind":"task-memory","pid":1,"from":"1","to":0,"shared":false}
      advice `nearfar apply --memory 1 --to-node 0` moves the memory: it runs on node 0 and 6144 MiB can move there.
    notice task-memory-far | task 2 (db): About 3.2 GiB of its 4.0 GiB are on average over its CPU time on other nodes than it runs on, most on node 1. It ran on nodes 0-1.
      /proc/2/numa_maps = N1=4.0 GiB
      /proc/2/task/*/stat = CPU time 8.00 s on node 0, 2.00 s on node 1
      cost 21 -> 10
      fix {"kind":"task-memory","pid":2,"from":"1","to":0,"shared":false}
      advice `nearfar apply --memory 2 --to-node 0` moves the memory: it runs on node 0 and 4096 MiB can move there.
    notice task-memory-far | task 3 (db): About 3.6 GiB of its 7.0 GiB are on average over its CPU time on other nodes than it runs on, most on node 1. It ran on nodes 0-1.
      /proc/3/numa_maps = N0=3.0 GiB N1=4.0 GiB
      /proc/3/task/*/stat = CPU time 6.00 s on node 0, 4.00 s on node 1
      cost 21 -> 10
      fix {"kind":"task-memory","pid":3,"from":"0","to":1,"shared":false}
      advice `nearfar prefer --pid 3 --node 1` moves the task; after it, `nearfar apply --memory 3 --to-node 1` moves the memory: its threads run on several nodes, 60 % of them on node 0; 57 % of its memory is on node 1.
    notice task-memory-far | task 4 (db): 4.0 GiB of its 4.0 GiB are on other nodes than it runs on, most on node 1. It ran on node 0.
      /proc/4/numa_maps = N1=4.0 GiB
      /proc/4/task/*/stat = CPU time 5.00 s on node 0
      cost 21 -> 10
      advice `nearfar prefer --pid 4 --node 1` moves the task: 3072 MiB of its memory are pinned.
    notice task-memory-far | task 5 (db): 4.0 GiB of its 4.0 GiB are on other nodes than it runs on, most on node 1. It ran on node 0.
      /proc/5/numa_maps = N1=4.0 GiB
      /proc/5/task/*/stat = CPU time 0.02 s on node 0
      cost 21 -> 10
      advice no remedy: it used 0.02 s of CPU time.
    notice task-memory-far | task 6 (db): About 1.2 GiB of its 4.0 GiB are on average over its CPU time on other nodes than it runs on, most on node 1. It ran on nodes 0-1.
      /proc/6/numa_maps = N0=3.0 GiB N1=1.0 GiB
      /proc/6/task/*/stat = CPU time 9.00 s on node 0, 1.00 s on node 1
      cost 21 -> 10
      fix {"kind":"task-memory","pid":6,"from":"1","to":0,"shared":false}
      advice `nearfar apply --memory 6 --to-node 0` moves the memory: it runs on node 0 and 1024 MiB can move there.
    notice task-memory-far | task 7 (db): 1.0 GiB of its 1.0 GiB are on other nodes than it runs on, most on node 1. It ran on node 0.
      /proc/7/numa_maps = N1=1.0 GiB
      /proc/7/task/*/stat = CPU time 5.00 s on node 0
      cost 21 -> 10
      fix {"kind":"task-memory","pid":7,"from":"1","to":0,"shared":false}
      advice `nearfar apply --memory 7 --to-node 0` moves the memory: it runs on node 0 and 1024 MiB can move there.
    "#);
    let estimates: Vec<String> = audit(&machine, &AuditOptions::default())
        .findings
        .iter()
        .map(|finding| {
            let remedy = finding.remedy.as_ref();
            let estimate = remedy.and_then(|remedy| remedy.estimate.as_ref());
            let estimate = estimate.map_or("-".to_owned(), ToString::to_string);
            format!("{}: {estimate}", finding.subject)
        })
        .collect();
    insta::assert_snapshot!(estimates.join("\n"), @r"
    task 1 (db): Moving 6.0 GiB takes about 2.0 s, in which the task runs slower; it saves at most 0.24 CPU seconds per second, which pays after 12 s.
    task 2 (db): Moving 4.0 GiB takes about 1.3 s, in which the task runs slower; it saves at most 0.20 CPU seconds per second, which pays after 13 s.
    task 3 (db): Moving 3.0 GiB takes about 0.98 s, in which the task runs slower; it saves at most 0.36 CPU seconds per second, which pays after 5.4 s.
    task 4 (db): It saves at most 0.26 CPU seconds per second.
    task 5 (db): -
    task 6 (db): Moving 1.0 GiB takes about 0.33 s, in which the task runs slower; it saves at most 0.18 CPU seconds per second, which pays after 3.6 s.
    task 7 (db): Moving 1.0 GiB takes about 0.33 s, in which the task runs slower; what it saves is unknown: not in this snapshot.
    ");
}

#[test]
fn memory_that_is_a_gpus_own_stays_there() {
    let mut machine = two_nodes();
    machine.nodes.push(Node {
        memory: Known::Yes(Memory::of(96 << 30)),
        generic_initiator: true,
        ..Node::new(NodeId(2), CpuSet::new())
    });
    let mut with_memory_on = |node| {
        *list(&mut machine.tasks) = vec![busy(1, [5, 0], &[(node, 4)])];
        let found = audit(&machine, &AuditOptions::default()).findings;
        let mut found = found.into_iter().filter(|it| it.rule == "task-memory-far");
        found.next().unwrap().advice.unwrap()
    };
    assert!(with_memory_on(1).contains("nearfar apply --memory 1"));
    let advice = with_memory_on(2);
    assert!(
        advice.contains("4096 MiB of its memory are of a device"),
        "{advice}"
    );
}

#[test]
fn a_plan_by_the_rule_has_every_task_that_the_audit_has() {
    let mut machine = two_nodes();
    *list(&mut machine.tasks) = busy_tasks();
    let found = audit(&machine, &AuditOptions::default());
    let options = PlanOptions {
        rules: Some(vec!["task-memory-far".to_owned()]),
        ..PlanOptions::default()
    };
    let named = plan(&machine, &found, &options);
    let moves = named.changes.iter().map(|it| it.reason.clone());
    let left = named
        .left_alone
        .iter()
        .map(|it| format!("left alone {}: {}", it.subject, it.reason));
    let all: Vec<String> = moves.chain(left).collect();
    assert_eq!(all.len(), found.findings.len());
    insta::assert_snapshot!(all.join("\n"), @r"
    task 1 (db): 6.0 GiB of its 7.0 GiB are on other nodes than it runs on, most on node 1. It ran on node 0. Moving 6.0 GiB takes about 2.0 s, in which the task runs slower; it saves at most 0.24 CPU seconds per second, which pays after 12 s.
    task 2 (db): About 3.2 GiB of its 4.0 GiB are on average over its CPU time on other nodes than it runs on, most on node 1. It ran on nodes 0-1. Moving 4.0 GiB takes about 1.3 s, in which the task runs slower; it saves at most 0.20 CPU seconds per second, which pays after 13 s.
    task 3 (db): About 3.6 GiB of its 7.0 GiB are on average over its CPU time on other nodes than it runs on, most on node 1. It ran on nodes 0-1. Moving 3.0 GiB takes about 0.98 s, in which the task runs slower; it saves at most 0.36 CPU seconds per second, which pays after 5.4 s. `nearfar prefer --pid 3 --node 1` moves the task; after it, `nearfar apply --memory 3 --to-node 1` moves the memory: its threads run on several nodes, 60 % of them on node 0; 57 % of its memory is on node 1.
    task 6 (db): About 1.2 GiB of its 4.0 GiB are on average over its CPU time on other nodes than it runs on, most on node 1. It ran on nodes 0-1. Moving 1.0 GiB takes about 0.33 s, in which the task runs slower; it saves at most 0.18 CPU seconds per second, which pays after 3.6 s.
    task 7 (db): 1.0 GiB of its 1.0 GiB are on other nodes than it runs on, most on node 1. It ran on node 0. Moving 1.0 GiB takes about 0.33 s, in which the task runs slower; what it saves is unknown: not in this snapshot.
    left alone task 4 (db): `nearfar prefer --pid 4 --node 1` moves the task: 3072 MiB of its memory are pinned.
    left alone task 5 (db): no remedy: it used 0.02 s of CPU time.
    ");
    let text = serde_json::to_string(&named).unwrap();
    assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), named);
    assert!(
        text.contains("\"estimate\":{\"moved_bytes\":6442450944,\"move_s\":1.9"),
        "{text}"
    );
}

#[test]
fn sampled_memory_is_an_estimate_with_its_error() {
    let mut machine = two_nodes();
    let sample = Some(MemorySample {
        pages: 2000,
        error_bytes: 256 << 20,
    });
    let by_cpu_time = busy(1, [5, 0], &[(0, 1), (1, 6)]);
    let by_last_cpu = task(2, "floating", "0-7", 5, &[(0, 3), (1, 1)]);
    let messages = |machine: &Machine| -> Vec<String> {
        let found = audit(machine, &AuditOptions::default()).findings;
        found.into_iter().map(|finding| finding.message).collect()
    };
    *list(&mut machine.tasks) = vec![by_cpu_time.clone(), by_last_cpu.clone()];
    assert!(
        messages(&machine).iter().all(|it| !it.contains("bout")),
        "counted"
    );
    *list(&mut machine.tasks) = vec![
        Task {
            sample,
            ..by_cpu_time
        },
        Task {
            sample,
            ..by_last_cpu
        },
    ];
    let sampled = messages(&machine);
    for (message, start) in sampled.iter().zip([
        "About 6.0 GiB (+-256.0 MiB, sampled) of its 7.0 GiB are on other nodes",
        "About 3.0 GiB (+-256.0 MiB, sampled) of its 4.0 GiB are on other nodes",
    ]) {
        assert!(message.starts_with(start), "{message}");
    }
    assert_eq!(sampled.len(), 2);
}

#[test]
fn tasks_whose_memory_is_elsewhere() {
    let mut machine = two_nodes();
    let mut interleaved = task(5, "spread", "0-3", 1, &[(0, 4), (1, 5)]);
    interleaved.policies = Known::Yes(vec![PolicyBytes {
        policy: "interleave:0-1".into(),
        bytes: 9 << 30,
    }]);
    let mut hidden = task(6, "secret", "0-3", 1, &[]);
    hidden.memory = Known::no("/proc/6/numa_maps: permission denied");
    *list(&mut machine.tasks) = vec![
        task(1, "bound", "0-3", 1, &[(0, 1), (1, 6)]),
        task(2, "floating", "0-7", 5, &[(0, 3), (1, 1)]),
        task(3, "near", "4-7", 5, &[(0, 1), (1, 6)]),
        task(4, "small", "0-3", 1, &[]),
        interleaved,
        hidden,
    ];
    insta::assert_snapshot!(findings(&machine), @r#"
    warning task-memory-far | task 1 (bound): 6.0 GiB of its 7.0 GiB are on other nodes than it runs on, most on node 1. It may only run on node 0.
      /proc/1/numa_maps = N0=1.0 GiB N1=6.0 GiB
      /proc/1/status = may run on CPUs 0-3
      cost 21 -> 10
      fix {"kind":"task-memory","pid":1,"from":"1","to":0,"shared":false}
      advice `nearfar apply --memory 1 --to-node 0` moves the memory, or `nearfar prefer --pid 1 --node 1` the task.
    notice task-memory-far | task 2 (floating): 3.0 GiB of its 4.0 GiB are on other nodes than it runs on, most on node 0. It last ran on node 1.
      /proc/2/numa_maps = N0=3.0 GiB N1=1.0 GiB
      /proc/2/stat = last on CPU 5
      cost 21 -> 10
      advice `nearfar prefer --pid 2 --node 0` confines it to node 0; or let NUMA balancing move the memory. What is pinned cannot move.
    not checked task-memory-far: task 6 (secret): /proc/6/numa_maps: permission denied
    "#);
}

#[test]
fn a_cpuset_whose_cpus_and_memory_do_not_meet() {
    let mut machine = two_nodes();
    let cpuset = |path: &str, cpus: &str, nodes: &str| Cpuset {
        path: path.to_owned(),
        cpus: Known::Yes(set(cpus)),
        nodes: Known::Yes(NodeSet::parse_list(nodes).unwrap()),
        configured: true,
        version_2: None,
    };
    *list(&mut machine.cpusets) = vec![
        cpuset("/db", "0-3", "1"),
        cpuset("/web", "3-4", "1"),
        cpuset("/off", "", "1"),
    ];
    insta::assert_snapshot!(findings(&machine), @r"
    warning cpuset-disjoint | cpuset /db: Its CPUs 0-3 are on node 0, its memory comes from node 1 only: all of it is far.
      /sys/fs/cgroup/db/cpuset.cpus.effective = 0-3
      /sys/fs/cgroup/db/cpuset.mems.effective = 1
      cost 21 -> 10
      advice Let its memory come from node 0 (AllowedMemoryNodes= of the unit), or move its CPUs.
    ");
    // The CPUs of a node without memory have that next to it as their nearest node.
    machine.nodes[0].memory = Known::Yes(Memory::of(0));
    insta::assert_snapshot!(findings(&machine), @r"
    fact node-without-memory | node 0: It has no memory: what its CPUs allocate comes from node 1.
      /sys/devices/system/node/node0/meminfo = 0 kB
    ");
}

#[test]
fn numa_balancing_that_does_not_fit() {
    let mut machine = two_nodes();
    *list(&mut machine.tasks) = vec![
        task(1, "postgres", "0-7", 1, &[(0, 8)]),
        task(2, "redis", "0-7", 1, &[(0, 2)]),
    ];
    assert_eq!(findings(&machine), "");
    machine.settings.numa_balancing = Known::Yes(2);
    insta::assert_snapshot!(findings(&machine), @r#"
    notice numa-balancing | kernel.numa_balancing: Automatic NUMA balancing is off while large tasks may run on several nodes: their memory stays where it was first touched. The largest of 2 is task 1 (postgres), 8.0 GiB.
      /proc/sys/kernel/numa_balancing = 2
      fix {"kind":"sysctl","name":"kernel.numa_balancing","value":"3"}
      advice The setting holds for the whole system; compare the load under both.
    "#);
    machine.settings.numa_balancing = Known::Yes(1);
    list(&mut machine.tasks)[0].pinned_bytes = Known::Yes(4 << 30);
    insta::assert_snapshot!(findings(&machine), @r"
    notice numa-balancing | kernel.numa_balancing: Automatic NUMA balancing is on while tasks hold large pinned memory: it keeps unmapping pages that it cannot move. The largest of 1 is task 1 (postgres), 4.0 GiB.
      /proc/sys/kernel/numa_balancing = 1
      advice Unbound and pinned tasks share this machine, and the setting holds for both: confine the former to a node rather than change it.
    ");
    list(&mut machine.tasks).truncate(1);
    list(&mut machine.tasks)[0].allowed_cpus = Known::Yes(set("0-3"));
    insta::assert_snapshot!(findings(&machine), @r#"
    notice numa-balancing | kernel.numa_balancing: Automatic NUMA balancing is on while tasks hold large pinned memory: it keeps unmapping pages that it cannot move. The largest of 1 is task 1 (postgres), 4.0 GiB.
      /proc/sys/kernel/numa_balancing = 1
      fix {"kind":"sysctl","name":"kernel.numa_balancing","value":"0"}
      advice The setting holds for the whole system; compare the load under both.
    "#);
}

#[test]
fn other_writers_and_whether_they_would_undo_the_plan() {
    let writer = |kind, active| Writer {
        kind,
        active,
        evidence: "/proc/812/comm".to_owned(),
        says: "irqbalance".to_owned(),
    };
    let mut machine = two_nodes();
    *list(&mut machine.writers) = vec![
        writer(WriterKind::Irqbalance, Known::Yes(true)),
        writer(WriterKind::Numad, Known::Yes(false)),
        writer(
            WriterKind::UdevRule,
            Known::no("/proc is not in this source"),
        ),
    ];
    insta::assert_snapshot!(findings(&machine), @r"
    notice competing-writer | irqbalance: It places interrupts again every few seconds.
      /proc/812/comm = irqbalance
      advice Ban the interrupts that it must not move (IRQBALANCE_BANNED_CPULIST, --banirq), or stop it, before applying.
    notice competing-writer | udev rule: It writes its value again each time the device appears. Whether it is in force is unknown: /proc is not in this source.
      /proc/812/comm = irqbalance
      advice Change the rule instead of the setting.
    ");
    add_nic(&mut machine, "eth0", "0000:81:00.0", Some(1), &[0]);
    let found = audit(&machine, &AuditOptions::default());
    let balance = found
        .findings
        .iter()
        .find(|finding| finding.subject == "irqbalance")
        .unwrap();
    assert_eq!(balance.severity, Severity::Warning);
    insta::assert_snapshot!(balance.message, @"It places interrupts again every few seconds and would undo the changes proposed here.");
}

#[test]
fn nodes_that_lack_something_and_distances_that_say_nothing() {
    let mut machine = machine(
        &["0-1", "2-3", "", ""],
        &[&[10; 4], &[10; 4], &[10; 4], &[10; 4]],
    );
    machine.nodes[1].memory = Known::Yes(Memory::of(0));
    machine.nodes[2].memory = Known::Yes(Memory::of(0));
    machine.nodes[3].tier = Some(22);
    machine.warnings = vec![Warning::new(
        "line 1",
        "says 3 nodes (0,2-3), the list below has 0 and 2",
    )];
    insta::assert_snapshot!(findings(&machine), @r"
    notice flat-distances | node distances: All 4 nodes are at distance 10 from each other and from themselves.
      /sys/devices/system/node/node0/distance = 10 10 10 10
      advice This table does not show what is near and what is far. Measure latency between the nodes; the firmware's SLIT is where it would be fixed.
    fact node-without-cpus | node 2: It has neither CPUs nor memory: it only says where devices are.
      /sys/devices/system/node/node2/cpulist = no CPUs
    fact node-without-cpus | node 3: It is memory of tier 22, remote to every CPU.
      /sys/devices/system/node/node3/cpulist = no CPUs
    fact node-without-memory | node 1: It has no memory: what its CPUs allocate comes from node 3.
      /sys/devices/system/node/node1/meminfo = 0 kB
    fact node-without-memory | node 2: It has no memory.
      /sys/devices/system/node/node2/meminfo = 0 kB
    fact input-contradiction | line 1: says 3 nodes (0,2-3), the list below has 0 and 2
    ");
}

#[test]
fn fakes_of_one_node_are_rightly_at_ten() {
    let mut machine = machine(&["0-1", "0-1"], &[&[10, 10], &[10, 10]]);
    machine
        .nodes
        .iter_mut()
        .for_each(|node| node.fake_of = Some(NodeId(0)));
    insta::assert_snapshot!(findings(&machine), @r"
    fact flat-distances | node distances: All 2 nodes are at distance 10 from each other and from themselves.
      /sys/devices/system/node/node0/distance = 10 10
      advice They are fakes of one real node, so that is right.
    ");
}

#[test]
fn distances_are_compared_with_measured_latencies() {
    let rule = |distances: [[u32; 3]; 3], ns: &[(u32, u32, u32)]| {
        let rows: Vec<&[u32]> = distances.iter().map(|row| &row[..]).collect();
        let mut machine = machine(&["0-1", "2-3", "4-5"], &rows);
        let latency = |&(from, to, ns)| Latency {
            cpu_node: NodeId(from),
            memory_node: NodeId(to),
            ns,
        };
        let timing = Timing {
            sources: vec!["bench latency, run 4".to_owned()],
            ..Timing::default()
        };
        machine.timing = Some(timing.with_latencies(ns.iter().map(latency)));
        let only = |text: String| match text.find("distances-lie") {
            Some(_) => text,
            None => String::new(),
        };
        (only(findings(&machine)), machine)
    };
    let line = [[10, 21, 31], [21, 10, 21], [31, 21, 10]];
    let as_said = &[
        (0, 0, 90),
        (0, 1, 200),
        (0, 2, 270),
        (1, 1, 90),
        (1, 0, 175),
    ];
    assert_eq!(
        rule(line, as_said).0,
        "",
        "within 10 %: 2.2 and 1.94 for 2.1, 3.0 for 3.1"
    );
    let nearer = &[
        (0, 0, 90),
        (0, 1, 150),
        (0, 2, 220),
        (1, 1, 90),
        (1, 0, 160),
    ];
    insta::assert_snapshot!(rule(line, nearer).0, @r"
    fact distances-lie | node distances: From node 0, memory of node 2 takes 2.44 times as long as local memory, 3.10 times by the distances; 2 more pairs of nodes differ from their distances by more than 10 %.
      /sys/devices/system/node/node0/distance = 10 21 31
      bench latency, run 4 = node 0 to 0 90 ns, node 0 to 2 220 ns
      advice The order of nodes, by which the kernel chooses, is the same. Costs of tasks are those measured.
    ");
    let other_order = &[(0, 0, 90), (0, 1, 190), (0, 2, 160)];
    insta::assert_snapshot!(rule(line, other_order).0, @r"
    notice distances-lie | node distances: From node 0, memory of node 1 takes 1.19 times as long as that of node 2, which is further by distance; 1 more pair of nodes differs from its distance by more than 10 %.
      /sys/devices/system/node/node0/distance = 10 21 31
      bench latency, run 4 = node 0 to 0 90 ns, node 0 to 1 190 ns, node 0 to 2 160 ns
      advice The kernel gets memory from the nearest node by distance, here a slower one. The firmware's SLIT is where it would be fixed; until then, bind memory (`numactl`).
    ");
    let flat = [[10, 20, 20], [20, 10, 20], [20, 20, 10]];
    insta::assert_snapshot!(rule(flat, &[(0, 0, 90), (0, 1, 180), (0, 2, 205)]).0, @r"
    fact flat-distances | node distances: All 3 nodes are at distance 20 from each other.
      /sys/devices/system/node/node0/distance = 10 20 20
      advice That is right where each node has a link to every other. In a guest, and on larger machines, it often hides which of them are nearer: measure latency between the nodes.
    fact distances-lie | node distances: From node 0, memory of node 2 takes 2.28 times as long as local memory, 2.00 times by the distances.
      /sys/devices/system/node/node0/distance = 10 20 20
      bench latency, run 4 = node 0 to 0 90 ns, node 0 to 2 205 ns
      advice The order of nodes, by which the kernel chooses, is the same. Costs of tasks are those measured.
    ");
    // The memory of its CPUs is node 0's, as near as node 2's by distance.
    let (_, mut without_memory) = rule(line, &[(1, 0, 90), (1, 2, 190)]);
    without_memory.nodes[1].memory = Known::Yes(Memory::of(0));
    insta::assert_snapshot!(findings(&without_memory), @r"
    fact distances-lie | node distances: From node 1, memory of node 0 takes 0.47 times as long as local memory, 1.00 times by the distances.
      /sys/devices/system/node/node1/distance = 21 10 21
      bench latency, run 4 = node 1 to 2 190 ns, node 1 to 0 90 ns
      advice The order of nodes, by which the kernel chooses, is the same. Costs of tasks are those measured.
    fact node-without-memory | node 1: It has no memory: what its CPUs allocate comes from node 2.
      /sys/devices/system/node/node1/meminfo = 0 kB
    ");

    let state = |machine: &Machine| {
        let audit = audit(machine, &AuditOptions::default());
        let rule = audit.rules.iter().find(|it| it.rule == "distances-lie");
        rule.unwrap().state
    };
    let (_, mut machine) = rule(line, as_said);
    assert_eq!(state(&machine), State::NothingFound);
    // Nothing that belongs together.
    let (_, of_one) = rule(line, &[(0, 0, 90), (1, 2, 190)]);
    machine.timing = None;
    assert_eq!([state(&machine), state(&of_one)], [State::NotChecked; 2]);
}

#[test]
fn nothing_known_is_nothing_checked_and_each_rule_says_why() {
    let machine = Machine::empty(
        Origin::new(SourceKind::NumactlText, "mail"),
        "numactl -H does not show it",
    );
    let found = audit(&machine, &AuditOptions::default());
    assert_eq!(found.findings, []);
    assert_eq!(found.checked, ["input-contradiction"]);
    let said: Vec<_> = found.not_checked.iter().map(|not| not.rule).collect();
    for rule in RULES {
        assert!(
            said.contains(&rule.id) || found.checked.contains(&rule.id),
            "{} says nothing",
            rule.id
        );
    }
}

#[test]
fn json_of_an_audit_has_the_documented_keys() {
    let mut machine = two_nodes();
    add_nic(&mut machine, "eth0", "0000:81:00.0", Some(1), &[4, 0]);
    list(&mut machine.networks).clear();
    machine.tasks = Known::no("not asked for");
    let found = audit(&machine, &AuditOptions::default());
    insta::assert_snapshot!(serde_json::to_string_pretty(&found).unwrap(), @r#"
    {
      "findings": [
        {
          "rule": "interrupt-far",
          "severity": "warning",
          "subject": "interrupt 101 (eth0-TxRx-1)",
          "message": "It is served by CPU 0, at 21 from its device on node 1. CPU 5, at 10, serves none of the device's queues.",
          "evidence": [
            {
              "file": "/proc/irq/101/effective_affinity_list",
              "value": "0"
            },
            {
              "file": "/proc/irq/101/smp_affinity_list",
              "value": "0"
            },
            {
              "file": "/sys/bus/pci/devices/0000:81:00.0/numa_node",
              "value": "1"
            }
          ],
          "cost": {
            "now": 21,
            "after": 10
          },
          "fix": {
            "kind": "interrupt-affinity",
            "irq": 101,
            "cpus": "5",
            "near": 1,
            "name": "eth0-TxRx-1"
          },
          "advice": null,
          "docs": "docs/audit.md#interrupt-far",
          "device": "0000:81:00.0"
        }
      ],
      "not_checked": [
        {
          "rule": "task-memory-far",
          "reason": "not asked for"
        },
        {
          "rule": "task-far-from-device",
          "reason": "not asked for"
        },
        {
          "rule": "numa-balancing",
          "reason": "not asked for"
        },
        {
          "rule": "distances-lie",
          "reason": "no latency between nodes is known: `nearfar bench latency` on the machine measures it"
        }
      ],
      "checked": [
        "device-without-node",
        "firmware-node-offline",
        "device-node-differs",
        "interrupt-far",
        "queues-share-cpu",
        "interrupt-on-isolated-cpu",
        "managed-interrupt",
        "competing-writer",
        "xps-mismatch",
        "rps-mismatch",
        "nvme-far-path",
        "cpuset-disjoint",
        "node-nearly-full",
        "flat-distances",
        "node-without-cpus",
        "node-without-memory",
        "input-contradiction"
      ],
      "rules": [
        {
          "rule": "device-without-node",
          "state": "nothing-found",
          "findings": 0,
          "in_part": false
        },
        {
          "rule": "firmware-node-offline",
          "state": "nothing-found",
          "findings": 0,
          "in_part": false
        },
        {
          "rule": "device-node-differs",
          "state": "nothing-found",
          "findings": 0,
          "in_part": false
        },
        {
          "rule": "interrupt-far",
          "state": "found",
          "findings": 1,
          "in_part": false
        },
        {
          "rule": "queues-share-cpu",
          "state": "nothing-found",
          "findings": 0,
          "in_part": false
        },
        {
          "rule": "interrupt-on-isolated-cpu",
          "state": "nothing-found",
          "findings": 0,
          "in_part": false
        },
        {
          "rule": "managed-interrupt",
          "state": "nothing-found",
          "findings": 0,
          "in_part": false
        },
        {
          "rule": "competing-writer",
          "state": "nothing-found",
          "findings": 0,
          "in_part": false
        },
        {
          "rule": "xps-mismatch",
          "state": "nothing-found",
          "findings": 0,
          "in_part": false
        },
        {
          "rule": "rps-mismatch",
          "state": "nothing-found",
          "findings": 0,
          "in_part": false
        },
        {
          "rule": "nvme-far-path",
          "state": "nothing-found",
          "findings": 0,
          "in_part": false
        },
        {
          "rule": "task-memory-far",
          "state": "not-checked",
          "findings": 0,
          "in_part": false
        },
        {
          "rule": "task-far-from-device",
          "state": "not-checked",
          "findings": 0,
          "in_part": false
        },
        {
          "rule": "cpuset-disjoint",
          "state": "nothing-found",
          "findings": 0,
          "in_part": false
        },
        {
          "rule": "numa-balancing",
          "state": "not-checked",
          "findings": 0,
          "in_part": false
        },
        {
          "rule": "node-nearly-full",
          "state": "nothing-found",
          "findings": 0,
          "in_part": false
        },
        {
          "rule": "huge-pages-elsewhere",
          "state": "not-applicable",
          "findings": 0,
          "in_part": false
        },
        {
          "rule": "no-card-on-node",
          "state": "not-applicable",
          "findings": 0,
          "in_part": false
        },
        {
          "rule": "flat-distances",
          "state": "nothing-found",
          "findings": 0,
          "in_part": false
        },
        {
          "rule": "distances-lie",
          "state": "not-checked",
          "findings": 0,
          "in_part": false
        },
        {
          "rule": "node-without-cpus",
          "state": "nothing-found",
          "findings": 0,
          "in_part": false
        },
        {
          "rule": "node-without-memory",
          "state": "nothing-found",
          "findings": 0,
          "in_part": false
        },
        {
          "rule": "input-contradiction",
          "state": "nothing-found",
          "findings": 0,
          "in_part": false
        }
      ]
    }
    "#);
}

/// A node of which no list of CPUs was gathered may have any of them.
#[test]
fn where_the_cpus_of_a_node_are_unknown_nothing_is_near_or_far() {
    let mut machine = disk(IoPolicy::RoundRobin, [Some(0), Some(1)]);
    add_nic(&mut machine, "eth0", "0000:81:00.0", Some(1), &[0, 1]);
    let unknown = Known::no("no cpulist or cpumap was gathered");
    machine.nodes[1].cpus = unknown;
    for cpu in machine
        .cpus
        .iter_mut()
        .filter(|cpu| cpu.node == Some(NodeId(1)))
    {
        cpu.node = None;
    }
    let audit = audit(&machine, &AuditOptions::default());
    assert_eq!(audit.findings, Vec::new(), "{:#?}", audit.findings);
    let reason = "the CPUs of node 1 are unknown: no cpulist or cpumap was gathered";
    for rule in [
        "interrupt-far",
        "queues-share-cpu",
        "nvme-far-path",
        "node-without-cpus",
    ] {
        let said = |skipped: &&nearfar_placement::audit::NotChecked| {
            skipped.rule == rule && skipped.reason.ends_with(reason)
        };
        assert!(
            audit.not_checked.iter().any(|skipped| said(&skipped)),
            "{rule}: {:#?}",
            audit.not_checked
        );
    }
}

#[test]
fn where_the_nodes_are_unknown_no_device_lacks_one() {
    let mut machine = two_nodes();
    add_nic(&mut machine, "eth0", "0000:81:00.0", None, &[0, 1]);
    machine.nodes.clear();
    machine.distances = Known::no("not gathered");
    machine.possible_nodes = Known::no("sys/devices/system/node was not gathered");
    machine.cpus.iter_mut().for_each(|cpu| cpu.node = None);
    let audit = audit(&machine, &AuditOptions::default());
    assert_eq!(audit.findings, Vec::new(), "{:#?}", audit.findings);
    let skipped = |rule: &str| {
        let of_rule = |it: &&nearfar_placement::audit::NotChecked| it.rule == rule;
        let reason = &audit.not_checked.iter().find(of_rule).unwrap().reason;
        assert!(
            reason.contains("which nodes there are is unknown: sys/devices"),
            "{reason}"
        );
    };
    skipped("device-without-node");
    skipped("node-without-cpus");
    skipped("node-without-memory");
}

#[test]
fn a_reason_that_repeats_for_many_tasks_is_one_line() {
    let mut machine = two_nodes();
    for pid in [3521, 5087, 6000] {
        let mut task = Task::new(pid, "sleep");
        task.memory = Known::no(format!("/proc/{pid}/numa_maps: permission denied"));
        list(&mut machine.tasks).push(task);
    }
    let reason = |machine: &Machine| {
        let found = audit(machine, &AuditOptions::default());
        let of_rule = found.not_checked.into_iter();
        let of_rule = of_rule.filter(|not| not.rule == "task-memory-far");
        of_rule.map(|not| not.reason).collect::<Vec<_>>()
    };
    assert_eq!(
        reason(&machine),
        ["task 3521 (sleep) and 2 more: /proc/PID/numa_maps: permission denied"]
    );
    list(&mut machine.tasks).truncate(1);
    assert_eq!(
        reason(&machine),
        ["task 3521 (sleep): /proc/3521/numa_maps: permission denied"]
    );
}

#[test]
fn one_node_of_a_source_that_may_show_some_only_is_not_a_machine_of_one_node() {
    // Without `no-card-on-node`: there is no GPU.
    const AMONG_NODES: [&str; 7] = [
        "device-without-node",
        "flat-distances",
        "distances-lie",
        "task-memory-far",
        "cpuset-disjoint",
        "node-nearly-full",
        "huge-pages-elsewhere",
    ];
    let applies = |machine: &Machine| {
        let audit = audit(machine, &AuditOptions::default());
        let states = audit
            .rules
            .iter()
            .filter(|it| AMONG_NODES.contains(&it.rule));
        let applies = states.filter(|it| it.state != State::NotApplicable).count();
        let reason = audit
            .not_checked
            .iter()
            .find(|it| it.rule == "flat-distances");
        (applies, reason.map(|it| it.reason.clone()))
    };
    let one = || common::machine(&["0-3"], &[&[10]]);
    assert_eq!(applies(&one()), (0, None));
    let because = |reason: &str| {
        (
            7,
            Some(format!("there may be other nodes than 0: {reason}")),
        )
    };
    // CPUs that no node has.
    let mut machine = one();
    for id in [4, 5] {
        machine.cpus.push(Cpu::new(CpuId(id), None));
        machine.cpu_states.online.insert(CpuId(id));
    }
    assert_eq!(
        applies(&machine),
        because("CPUs 4-5 are on none of the nodes listed")
    );
    // Memory without CPUs.
    let mut machine = one();
    machine.nodes[0].cpus = Known::no("meminfo has none");
    assert_eq!(
        applies(&machine),
        because("the CPUs of node 0 are unknown: meminfo has none")
    );
    // The node next to a GPU.
    let mut machine = one();
    machine.origin.kind = SourceKind::Text;
    assert_eq!(applies(&machine), (0, None));
    machine.nodes[0].memory = Known::no("the text has only GPUs");
    machine.distances = Known::no("the text has only GPUs");
    assert_eq!(applies(&machine).0, 7);
    // lscpu names the processor, and lists all nodes.
    machine.origin.architecture = Known::Yes("x86_64".to_owned());
    assert_eq!(applies(&machine), (0, None));
}

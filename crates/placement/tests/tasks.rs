//! Which tasks are far, what that costs, what keeps them, and the remedy.

use crate::common;
use crate::common::{add_nic, list, set, two_nodes};
use nearfar_machine::{
    Access, ContainerName, CpuId, CpuTime, Cpuset, Known, Latency, Machine, MemorySample,
    NodeBytes, NodeId, NodeSet, PolicyBytes, ResidentBytes, ServiceGroup, Task, TaskFiles, Timing,
    UseKind, UsedFiles,
};
use nearfar_placement::tasks::{self, Action, DeviceUsers, Filter, HolderKind, TaskPlacement};

const MIB: u64 = 1 << 20;

/// A task with milliseconds on CPUs and mebibytes on nodes.
fn task(cpu_ms: &[(u32, u64)], memory: &[(u32, u64)]) -> Task {
    let time = |&(cpu, ms)| CpuTime {
        cpu: CpuId(cpu),
        ms,
    };
    let bytes = |&(node, mib)| NodeBytes {
        node: NodeId(node),
        bytes: mib * MIB,
    };
    Task {
        allowed_cpus: Known::Yes(set("0-7")),
        allowed_nodes: Known::Yes(NodeSet::parse_list("0-1").unwrap()),
        cpu_ms: Known::Yes(cpu_ms.iter().map(|it| it.1).sum()),
        cpu_times: Known::Yes(cpu_ms.iter().map(time).collect()),
        memory: Known::Yes(memory.iter().map(bytes).collect()),
        policies: Known::Yes(Vec::new()),
        pinned_bytes: Known::Yes(0),
        group: Known::Yes("/system.slice/db.service".to_owned()),
        user: Known::Yes(1000),
        ..Task::new(7, "db")
    }
}

fn judged(machine: &mut Machine, task: Task) -> TaskPlacement {
    machine.tasks = Known::Yes(vec![task]);
    let tasks = tasks::tasks(machine, &Filter::default(), None);
    tasks.known().unwrap().tasks.remove(0)
}

fn remedy(task: Task) -> (Action, Option<NodeId>, String) {
    let remedy = judged(&mut two_nodes(), task).remedy.unwrap();
    (remedy.action, remedy.node, remedy.reason)
}

/// SLIT says 2.1 here, the measurement 1.5.
#[test]
fn measured_latencies_stand_before_distances() {
    let mut machine = two_nodes();
    let latency = |memory_node, ns| Latency {
        cpu_node: NodeId(0),
        memory_node: NodeId(memory_node),
        ns,
    };
    let timing = Timing {
        sources: vec!["measured".to_owned()],
        ..Timing::default()
    };
    machine.timing = Some(timing.with_latencies([latency(0, 90), latency(1, 135)]));
    let task = task(&[(0, 1000)], &[(1, 64)]);
    let cost_s = |machine: &mut Machine| {
        let remote = judged(machine, task.clone()).at.remote.known().unwrap();
        remote.cost_s.unwrap()
    };
    assert!((cost_s(&mut machine) - (1.0 - 1.0 / 1.5)).abs() < 1e-9);
    let tasks = tasks::tasks(&machine, &Filter::default(), None);
    assert_eq!(tasks.known().unwrap().latency_sources, ["measured"]);
    machine.timing = machine.timing.map(|it| it.with_latencies([latency(0, 90)]));
    assert!(
        (cost_s(&mut machine) - (1.0 - 1.0 / 2.1)).abs() < 1e-9,
        "a pair is unknown"
    );
    // The firmware's are of the nearest CPUs, or of any initiator.
    let access = |class, ns| Access {
        class,
        initiators: NodeSet::single(NodeId(0)),
        read_latency_ns: Some(ns),
        write_latency_ns: None,
        read_bandwidth_mib_per_s: None,
        write_bandwidth_mib_per_s: None,
    };
    machine.nodes[0].access = vec![access(0, 50), access(1, 100)];
    machine.nodes[1].access = vec![access(1, 300), access(0, 40)];
    assert!((cost_s(&mut machine) - (1.0 - 1.0 / 3.0)).abs() < 1e-9);
    let tasks = tasks::tasks(&machine, &Filter::default(), None);
    assert_eq!(tasks.known().unwrap().latency_sources, ["HMAT"]);
}

#[test]
fn the_remote_share_weighs_cpu_time_with_memory() {
    let at = judged(
        &mut two_nodes(),
        task(&[(0, 3000), (4, 1000)], &[(0, 25), (1, 75)]),
    )
    .at;
    let remote = at.remote.known().unwrap();
    // Three quarters of the time see 75 %, a quarter 25 %.
    assert!((remote.share - 0.625).abs() < 1e-9, "{remote:?}");
    assert_eq!((at.cpu_s, remote.error), (Known::Yes(4.0), 0.0));
    // Distance 21 against 10: accesses take 1 + 0.75 x 1.1 and 1 + 0.25 x 1.1 times as long as near ones.
    let cost_s = 3.0 * (1.0 - 1.0 / 1.825) + 1.0 - 1.0 / 1.275;
    assert!((remote.cost_s.unwrap() - cost_s).abs() < 1e-9, "{remote:?}");
}

proptest::proptest! {
    /// The CPU time that was measured contains what was lost.
    #[test]
    fn no_task_loses_all_of_its_cpu_time(ms in 1u64..1_000_000, other_ms in 0u64..1_000_000, near in 0u64..1000, distance in 11u32..255) {
        let mut machine = common::machine(&["0-3", "4-7"], &[&[10, distance], &[distance, 10]]);
        let at = judged(&mut machine, task(&[(0, ms), (4, other_ms)], &[(0, near), (1, 640)])).at;
        let (cpu_s, cost_s) = (at.cpu_s.known().unwrap(), at.remote.known().unwrap().cost_s.unwrap());
        proptest::prop_assert!(0.0 < cost_s && cost_s < cpu_s, "{cost_s} of {cpu_s}");
        // All of the memory far from all of the time at distance 21 takes 2.1 times as long: 1.1 of 2.1 parts are lost.
        let far = judged(&mut two_nodes(), task(&[(0, ms)], &[(1, 640)])).at;
        let lost = far.remote.known().unwrap().cost_s.unwrap() / far.cpu_s.known().unwrap();
        proptest::prop_assert!((lost - 1.1 / 2.1).abs() < 1e-9, "{lost}");
    }
}

#[test]
fn a_remedy_saves_the_time_that_the_same_work_takes_less() {
    let spread = Task {
        age_ms: Known::Yes(1000),
        ..task(&[(0, 3000), (4, 300)], &[(1, 640)])
    };
    let remedy = judged(&mut two_nodes(), spread).remedy.unwrap();
    assert_eq!(
        (remedy.action, remedy.node),
        (Action::MoveMemory, Some(NodeId(0)))
    );
    // What took 3 s on node 0 takes 3 / 2.1 s with near memory, and what took 0.3 s on node 1 takes 2.1 times as long.
    let saved = remedy.estimate.unwrap().saved_per_s.known().unwrap();
    let after = 3.0 / 2.1 + 0.3 * 2.1;
    assert!((saved - (3.3 - after)).abs() < 1e-9, "{saved}");
}

#[test]
fn a_sample_of_the_only_node_has_no_error() {
    let sampled = |memory: &[(u32, u64)]| Task {
        sample: Some(MemorySample {
            pages: 2401,
            error_bytes: MIB,
        }),
        ..task(&[(0, 1000)], memory)
    };
    let mut one = common::machine(&["0-7"], &[&[10]]);
    let at = judged(&mut one, sampled(&[(0, 64)])).at;
    assert_eq!(at.remote.known().unwrap().error, 0.0);
    let at = judged(&mut two_nodes(), sampled(&[(0, 64)])).at;
    assert!(at.remote.known().unwrap().error > 0.0, "node 1 has memory");
}

/// As `top` has it: the CPU time is of the last interval, where it ran is of the time before.
#[test]
fn a_task_that_used_no_cpu_time_is_where_it_ran_before() {
    let idle = Task {
        cpu_ms: Known::Yes(0),
        ..task(&[(0, 9900), (4, 100)], &[(1, 64)])
    };
    let remote = judged(&mut two_nodes(), idle).at.remote.known().unwrap();
    assert!((remote.share - 0.99).abs() < 1e-9, "{remote:?}");
    assert_eq!(remote.cost_s, Some(0.0));
}

#[test]
fn memory_of_a_node_without_memory_is_near_on_the_nearest_one() {
    let mut machine = two_nodes();
    machine.nodes[0].memory = Known::Yes(nearfar_machine::Memory::of(0));
    let at = judged(&mut machine, task(&[(0, 1000)], &[(1, 64)])).at;
    assert_eq!(at.remote.known().unwrap().share, 0.0);
}

#[test]
fn what_is_unknown_stays_unknown_with_its_reason() {
    let mut one = task(&[(0, 1000)], &[]);
    one.memory = Known::no("/proc/7/numa_maps: permission denied");
    let mut other = task(&[(99, 1000)], &[(1, 64)]);
    other.pid = 8;
    let mut machine = two_nodes();
    machine.tasks = Known::Yes(vec![one, other]);
    let all = tasks::tasks(&machine, &Filter::default(), None)
        .known()
        .unwrap();
    assert_eq!(all.unknown.len(), 1);
    assert_eq!(
        all.unknown[0].unknown_reason,
        "/proc/PID/numa_maps: permission denied"
    );
    let reasons: Vec<_> = all
        .tasks
        .iter()
        .map(|it| it.at.remote.unknown_reason().unwrap())
        .collect();
    assert_eq!(
        reasons,
        [
            "/proc/7/numa_maps: permission denied",
            "the node of CPU 99 is unknown"
        ]
    );
    assert!(all.tasks.iter().all(|it| it.remedy.is_none()));
}

#[test]
fn the_costliest_comes_first_and_cpu_time_decides_among_the_near() {
    let numbered = |pid, cpu_ms: &[(u32, u64)], memory: &[(u32, u64)]| Task {
        pid,
        ..task(cpu_ms, memory)
    };
    let mut machine = two_nodes();
    machine.tasks = Known::Yes(vec![
        numbered(1, &[(0, 100)], &[(0, 64)]),
        numbered(2, &[(0, 900)], &[(0, 64)]),
        numbered(3, &[(0, 10)], &[(1, 64)]),
    ]);
    let all = tasks::tasks(&machine, &Filter::default(), None)
        .known()
        .unwrap();
    let pids: Vec<i32> = all.tasks.iter().map(|it| it.pid).collect();
    assert_eq!(pids, [3, 2, 1]);
}

#[test]
fn each_filter_takes_what_it_names() {
    let takes = |filter: Filter| {
        let mut machine = two_nodes();
        machine.tasks = Known::Yes(vec![task(&[(0, 1000)], &[(0, 64)])]);
        let found = tasks::tasks(&machine, &filter, None).known().unwrap();
        !found.tasks.is_empty()
    };
    let text = |text: &str| Some(text.to_owned());
    let none = Filter::default();
    assert!(takes(Filter {
        name: text("d"),
        ..none.clone()
    }));
    assert!(!takes(Filter {
        name: text("x"),
        ..none.clone()
    }));
    assert!(takes(Filter {
        user: Some(1000),
        ..none.clone()
    }));
    assert!(!takes(Filter {
        user: Some(0),
        ..none.clone()
    }));
    assert!(takes(Filter {
        group: text("system.slice"),
        ..none.clone()
    }));
    assert!(takes(Filter {
        group: text("db.service"),
        ..none.clone()
    }));
    assert!(!takes(Filter {
        group: text("b.service"),
        ..none.clone()
    }));
    assert!(takes(Filter {
        node: Some(NodeId(0)),
        ..none.clone()
    }));
    assert!(!takes(Filter {
        node: Some(NodeId(1)),
        ..none.clone()
    }));
    assert!(!takes(Filter {
        min_bytes: 65 * MIB,
        ..none
    }));
}

#[test]
fn what_keeps_a_task_is_named() {
    let mut machine = two_nodes();
    list(&mut machine.cpusets).push(Cpuset {
        path: "/system.slice".to_owned(),
        cpus: Known::Yes(set("0-3")),
        nodes: Known::Yes(NodeSet::parse_list("1").unwrap()),
        configured: true,
        version_2: Some(true),
    });
    let held = Task {
        allowed_cpus: Known::Yes(set("0-3")),
        allowed_nodes: Known::Yes(NodeSet::parse_list("1").unwrap()),
        policies: Known::Yes(vec![PolicyBytes {
            policy: "bind:1".to_owned(),
            bytes: 64 * MIB,
        }]),
        resident: Known::Yes(ResidentBytes {
            anonymous: 64 * MIB,
            pinned: 10 * MIB,
            ..ResidentBytes::default()
        }),
        ..task(&[(0, 1000)], &[(1, 64)])
    };
    let kinds = |machine: &mut Machine, task: &Task| -> Vec<HolderKind> {
        let held = judged(machine, task.clone()).held_by;
        held.into_iter().map(|it| it.kind).collect()
    };
    use HolderKind::{Affinity, CpusetCpus, CpusetMems, Pinned, Policy};
    assert_eq!(
        kinds(&mut machine, &held),
        [CpusetCpus, CpusetMems, Policy, Pinned]
    );
    let own = Task {
        allowed_cpus: Known::Yes(set("0-1")),
        ..task(&[(0, 1000)], &[(1, 64)])
    };
    assert_eq!(kinds(&mut machine, &own), [Affinity]);
    assert_eq!(kinds(&mut machine, &task(&[(0, 1)], &[(1, 64)])), []);
}

#[test]
fn the_remedy_follows_from_what_can_move() {
    let far = || task(&[(0, 60_000)], &[(1, 640)]);
    let node = |number| Some(NodeId(number));
    let (action, to, _) = remedy(far());
    assert_eq!((action, to), (Action::MoveMemory, node(0)));
    let resident = |resident| Task {
        resident: Known::Yes(resident),
        ..far()
    };
    let (action, to, reason) = remedy(resident(ResidentBytes {
        pinned: 400 * MIB,
        ..ResidentBytes::default()
    }));
    assert_eq!((action, to), (Action::MoveTask, node(1)), "{reason}");
    let (action, to, reason) = remedy(resident(ResidentBytes {
        huge: 400 * MIB,
        ..ResidentBytes::default()
    }));
    assert_eq!((action, to), (Action::MoveTask, node(1)), "{reason}");
    // Locked memory can move.
    let (action, _, _) = remedy(Task {
        pinned_bytes: Known::Yes(640 * MIB),
        ..far()
    });
    assert_eq!(action, Action::MoveMemory);
    let bound = |policy: &str| {
        remedy(Task {
            policies: Known::Yes(vec![PolicyBytes {
                policy: policy.to_owned(),
                bytes: 640 * MIB,
            }]),
            ..far()
        })
    };
    assert_eq!(bound("bind:1").0, Action::MoveTask);
    assert_eq!(
        bound("bind=static:1").2,
        "its memory policy is bind=static:1"
    );
    assert_eq!(bound("bind:0-1").0, Action::MoveMemory);
    assert_eq!(bound("prefer:1").0, Action::MoveMemory);
    let (action, _, reason) = remedy(Task {
        allowed_nodes: Known::Yes(NodeSet::parse_list("1").unwrap()),
        ..far()
    });
    assert_eq!(
        (action, &*reason),
        (Action::MoveTask, "its cpuset has no memory of node 0")
    );
    let (action, _, reason) = remedy(task(&[(0, 60_000)], &[(1, 80 << 10)]));
    assert_eq!(action, Action::MoveTask, "{reason}");
    let (action, to, _) = remedy(task(&[(0, 30_000), (4, 30_000)], &[(1, 640)]));
    assert_eq!((action, to), (Action::MoveTask, node(1)));
    let (action, to, reason) = remedy(task(&[(0, 30_000), (4, 30_000)], &[(0, 200), (1, 440)]));
    assert_eq!((action, to), (Action::MoveBoth, node(1)), "{reason}");
    let (action, to, _) = remedy(task(&[(0, 30_000), (4, 30_000)], &[(0, 320), (1, 320)]));
    assert_eq!((action, to), (Action::Nothing, None));
    let (action, _, reason) = remedy(task(&[(0, 900)], &[(1, 640)]));
    assert_eq!(
        (action, &*reason),
        (Action::Nothing, "it used 0.90 s of CPU time")
    );
}

#[test]
fn no_remedy_makes_a_task_more_remote() {
    // Locked by a policy to where a quarter of it is far: moving the task would make three quarters far.
    let bound = |memory: &[(u32, u64)]| Task {
        policies: Known::Yes(vec![PolicyBytes {
            policy: "bind:1".to_owned(),
            bytes: 800 * MIB,
        }]),
        ..task(&[(0, 60_000)], memory)
    };
    let (action, _, reason) = remedy(bound(&[(0, 750), (1, 250)]));
    assert_eq!(action, Action::Nothing, "{reason}");
    assert_eq!(remedy(bound(&[(0, 100), (1, 900)])).0, Action::MoveTask);
    // The mask is that of the main thread; the others run where the memory is.
    let leader = Task {
        allowed_cpus: Known::Yes(set("0-3")),
        ..task(&[(0, 1000), (4, 60_000)], &[(0, 1000)])
    };
    let (action, node, reason) = remedy(leader);
    assert_eq!(
        (action, node),
        (Action::MoveMemory, Some(NodeId(1))),
        "{reason}"
    );
}

#[test]
fn a_task_is_not_sent_where_it_cannot_run() {
    let stuck = || Task {
        allowed_nodes: Known::Yes(NodeSet::parse_list("1").unwrap()),
        ..task(&[(0, 60_000)], &[(1, 640)])
    };
    let mut machine = two_nodes();
    machine.nodes[1].cpus = set("").into();
    let remedy = judged(&mut machine, stuck()).remedy.unwrap();
    assert_eq!(remedy.action, Action::Nothing, "{}", remedy.reason);
    let mut machine = two_nodes();
    list(&mut machine.cpusets).push(Cpuset {
        path: "/system.slice".to_owned(),
        cpus: Known::Yes(set("0-3")),
        nodes: Known::Yes(NodeSet::parse_list("1").unwrap()),
        configured: true,
        version_2: Some(true),
    });
    let remedy = judged(&mut machine, stuck()).remedy.unwrap();
    assert_eq!(remedy.action, Action::Nothing, "{}", remedy.reason);
    let mut machine = two_nodes();
    machine.nodes[0].memory = Known::Yes(nearfar_machine::Memory {
        free_bytes: Some(600 * MIB),
        ..nearfar_machine::Memory::of(1 << 34)
    });
    let far = task(&[(0, 60_000)], &[(1, 640)]);
    let remedy = judged(&mut machine, far).remedy.unwrap();
    let expected = (Action::MoveTask, "node 0 has 600 MiB free for 640 MiB");
    assert_eq!((remedy.action, &*remedy.reason), expected);
}

#[test]
fn distances_that_say_nothing_give_no_cost() {
    let far = || task(&[(0, 60_000)], &[(1, 640)]);
    for distance in [255, 9] {
        let mut machine = common::machine(&["0-3", "4-7"], &[&[10, distance], &[distance, 10]]);
        let at = judged(&mut machine, far()).at;
        assert_eq!(at.remote.known().unwrap().cost_s, None, "{distance}");
    }
    let mut machine = common::machine(&["0-3", "4-7"], &[&[10, 10], &[10, 10]]);
    let remedy = judged(&mut machine, far()).remedy.unwrap();
    assert_eq!(remedy.reason, "all of its nodes are equally far");
}

#[test]
fn hostile_times_and_sizes_are_survived() {
    let time = |cpu| CpuTime {
        cpu: CpuId(cpu),
        ms: u64::MAX,
    };
    let hostile = Task {
        cpu_ms: Known::Yes(u64::MAX),
        cpu_times: Known::Yes(vec![time(0), time(4), time(4)]),
        memory: Known::Yes(vec![
            NodeBytes {
                node: NodeId(1),
                bytes: u64::MAX
            };
            3
        ]),
        ..task(&[], &[])
    };
    assert!(
        judged(&mut two_nodes(), hostile)
            .at
            .remote
            .known()
            .is_some()
    );
}

#[test]
fn memory_that_is_spread_on_purpose_stays() {
    let spread = Task {
        policies: Known::Yes(vec![PolicyBytes {
            policy: "interleave:0-1".to_owned(),
            bytes: 640 * MIB,
        }]),
        ..task(&[(0, 60_000)], &[(0, 320), (1, 320)])
    };
    assert_eq!(remedy(spread.clone()).2, "its memory is interleaved");
    let sampled = Task {
        policies: Known::no("sampled"),
        sample: Some(MemorySample {
            pages: 2401,
            error_bytes: 12 * MIB,
        }),
        ..spread
    };
    assert_eq!(remedy(sampled.clone()).0, Action::Nothing);
    // A page of a library on a third node changes nothing.
    let mut strays = sampled;
    let memory = strays.memory.known().unwrap();
    strays.memory = Known::Yes(
        [
            memory,
            vec![NodeBytes {
                node: NodeId(2),
                bytes: MIB,
            }],
        ]
        .concat(),
    );
    assert_eq!(remedy(strays).0, Action::Nothing);
}

#[test]
fn a_near_task_and_one_that_may_be_near_have_no_remedy() {
    let mut machine = two_nodes();
    assert_eq!(
        judged(&mut machine, task(&[(0, 60_000)], &[(0, 90), (1, 10)])).remedy,
        None
    );
    let unsure = Task {
        sample: Some(MemorySample {
            pages: 100,
            error_bytes: 10 * MIB,
        }),
        ..task(&[(0, 60_000)], &[(0, 75), (1, 25)])
    };
    let unsure = judged(&mut machine, unsure);
    assert!((unsure.at.remote.known().unwrap().error - 0.1).abs() < 1e-9);
    assert_eq!(unsure.remedy, None);
    let mut one_node = two_nodes();
    one_node.nodes.truncate(1);
    assert_eq!(
        judged(&mut one_node, task(&[(0, 60_000)], &[(0, 640)])).remedy,
        None
    );
}

#[test]
fn groups_are_sums_of_their_tasks() {
    let mut machine = two_nodes();
    machine.tasks = Known::Yes(vec![
        task(&[(0, 1000)], &[(1, 64)]),
        Task {
            pid: 8,
            ..task(&[(4, 1000)], &[(1, 192)])
        },
    ]);
    let all = tasks::tasks(&machine, &Filter::default(), None)
        .known()
        .unwrap();
    let groups = tasks::by_group(&all);
    let [group] = &groups[..] else {
        panic!("{groups:?}")
    };
    assert_eq!(
        (group.tasks, group.service.as_deref()),
        (2, Some("db.service"))
    );
    assert_eq!(group.at.memory_bytes(), 256 * MIB);
    let remote = group.at.remote.clone().known().unwrap();
    assert!((remote.share - 0.25).abs() < 1e-9, "{remote:?}");
}

/// What the kernel counts for a service is its memory, unless some of its tasks are not wanted.
#[test]
fn a_service_has_shared_memory_once_and_the_name_of_its_container() {
    let id = "c".repeat(64);
    let group = format!("/system.slice/docker-{id}.scope");
    let mut machine = two_nodes();
    let of_group = |pid, below: &str| Task {
        pid,
        group: Known::Yes(format!("{group}{below}")),
        ..task(&[(0, 1000)], &[(1, 64)])
    };
    machine.tasks = Known::Yes(vec![of_group(7, ""), of_group(8, "/worker")]);
    machine.services = vec![ServiceGroup {
        group: group.clone(),
        container: Some(ContainerName {
            name: "redis".to_owned(),
            pod: None,
        }),
        memory: Known::Yes(vec![NodeBytes {
            node: NodeId(1),
            bytes: 65 * MIB,
        }]),
    }];
    let sum = |filter: &Filter| {
        let all = tasks::tasks(&machine, filter, None).known().unwrap();
        let groups = tasks::by_group(&all);
        let [service] = &groups[..] else {
            panic!("{groups:?}")
        };
        assert_eq!(service.service.as_deref(), Some("docker redis"));
        assert_eq!(service.group, Known::Yes(group.clone()));
        (service.tasks, service.at.memory_bytes() / MIB)
    };
    assert_eq!(sum(&Filter::default()), (2, 65));
    let of_service = Filter {
        group: Some("docker redis".to_owned()),
        ..Filter::default()
    };
    assert_eq!(sum(&of_service), (2, 65));
    let of_worker = Filter {
        group: Some(format!("{group}/worker")),
        ..Filter::default()
    };
    assert_eq!(sum(&of_worker), (1, 64));
}

#[test]
fn a_group_is_a_service_or_all_that_is_of_its_job_or_pod() {
    let id = "c".repeat(64);
    let container = format!("/kubepods.slice/crio-{id}.scope");
    let groups = [
        "/system.slice/slurmstepd.scope/job_7/step_0",
        "/system.slice/slurmstepd.scope/job_7/step_batch/user",
        "/system.slice/slurmstepd.scope/job_71/step_0",
        "/system.slice/redis.service",
        &container,
    ];
    let mut machine = two_nodes();
    let tasks = (1..).zip(groups).map(|(pid, group)| Task {
        pid,
        group: Known::Yes(group.to_owned()),
        ..task(&[(0, 1000)], &[(1, 64)])
    });
    machine.tasks = Known::Yes(tasks.collect());
    machine.services = vec![ServiceGroup {
        group: container.clone(),
        container: Some(ContainerName {
            name: "nginx".to_owned(),
            pod: Some(("default".to_owned(), "web-0".to_owned())),
        }),
        memory: Known::no("not read"),
    }];
    for (group, pids) in [
        ("slurm 7", &[1, 2][..]),
        ("slurm 7.batch", &[2]),
        ("default/web-0", &[5]),
        ("default/web-0/nginx", &[5]),
        ("redis.service", &[4]),
        ("redis", &[]),
        ("slurm", &[]),
    ] {
        let filter = Filter {
            group: Some(group.to_owned()),
            ..Filter::default()
        };
        let found = tasks::tasks(&machine, &filter, None).known().unwrap();
        let mut found: Vec<i32> = found.tasks.iter().map(|task| task.pid).collect();
        found.sort_unstable();
        assert_eq!(found, pids, "{group}");
    }
}

#[test]
fn those_far_from_the_device_come_first_and_others_are_left_out() {
    let mut machine = two_nodes();
    add_nic(&mut machine, "eth0", "0000:81:00.0", Some(1), &[]);
    let numbered = |pid, cpu_ms: &[(u32, u64)]| Task {
        pid,
        ..task(cpu_ms, &[(0, 64)])
    };
    machine.tasks = Known::Yes(vec![
        numbered(1, &[(4, 9000)]),
        numbered(2, &[(0, 100)]),
        numbered(3, &[(0, 90), (4, 270)]),
        numbered(4, &[(0, 500)]),
        numbered(5, &[(0, 500)]),
        numbered(6, &[(99, 500)]),
    ]);
    let files = |pid| TaskFiles {
        pid,
        files: Known::Yes(vec![UsedFiles {
            name: "uverbs0".to_owned(),
            kind: UseKind::Device,
            count: 1,
        }]),
    };
    let mut users = vec![files(1), files(2), files(3), files(6)];
    users.push(TaskFiles {
        pid: 5,
        files: Known::no("/proc/5/fd: permission denied"),
    });
    let filter = Filter {
        device: Some(DeviceUsers::new(&machine, "eth0", users)),
        ..Filter::default()
    };
    let found = tasks::tasks(&machine, &filter, None).known().unwrap();
    let distance = |it: &TaskPlacement| {
        let used = it.device.as_ref().unwrap();
        (
            it.pid,
            used.distance.get().copied(),
            used.far_s.get().copied(),
        )
    };
    let all: Vec<_> = found.tasks.iter().map(distance).collect();
    let near = |a: Option<f64>, b: f64| (a.unwrap() - b).abs() < 1e-9;
    // All of 0.1 s at 21, a quarter of 0.36 s at 21, near, unknown.
    assert_eq!(all.iter().map(|it| it.0).collect::<Vec<_>>(), [2, 3, 1, 6]);
    assert!(
        near(all[0].1, 21.0) && near(all[0].2, 0.11 / 2.1),
        "{all:?}"
    );
    assert!(
        near(all[1].1, 12.75) && near(all[1].2, 0.099 / 2.1),
        "{all:?}"
    );
    assert!(near(all[2].1, 10.0) && near(all[2].2, 0.0), "{all:?}");
    assert_eq!(all[3].1, None);
    let device = found.device.unwrap();
    assert_eq!(device.localities[0].node, Some(NodeId(1)));
    let unknown = &device.unknown[0];
    assert_eq!(
        (&*unknown.unknown_reason, unknown.tasks),
        ("/proc/PID/fd: permission denied", 1)
    );
}

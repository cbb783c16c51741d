//! The policies that are published or follow from them: whatever a cache or a word holds, every thread reaches it.

use std::sync::atomic::{AtomicU32, Ordering};

use nearfar_tags::{Cpu, Group, Policy, Tags, Topology};

const POLICIES: [Policy; 7] = [
    Policy::Stock,
    Policy::Limit,
    Policy::LimitTopology,
    Policy::Coarse(Group::Core),
    Policy::Coarse(Group::Llc),
    Policy::Coarse(Group::Node),
    Policy::Bitmap,
];

/// Two nodes of two cores with two hardware threads.
fn two_nodes() -> Topology {
    let cpu = |number: u32| Some(Cpu::new(number / 2, number / 4));
    Topology::new((0..8).map(cpu).collect(), vec![vec![10, 21], vec![21, 10]])
}

fn tags(policy: Policy, tags: u32) -> Tags {
    let builder = Tags::builder(tags).policy(policy).topology(two_nodes());
    builder.build().expect("the topology is sound")
}

#[test]
fn one_thread_gets_every_tag_once() {
    for policy in POLICIES {
        for number in [1, 2, 7, 255] {
            let tags = tags(policy, number);
            for _ in 0..2 {
                let mut all: Vec<u32> = std::iter::from_fn(|| tags.try_take()).collect();
                assert_eq!(tags.free(), 0, "{policy:?}");
                all.sort_unstable();
                assert_eq!(all, (0..number).collect::<Vec<_>>(), "{policy:?}");
                all.into_iter().for_each(|tag| tags.put(tag));
                assert_eq!(tags.free(), number, "{policy:?}");
            }
        }
    }
}

/// Each tag has a word that says who holds it. At most `threads` x `depth` tags are held, no more than there are: no get may fail.
fn hold_in_turns(tags: &Tags, threads: u32, depth: usize, rounds: u32) {
    let owners: Vec<AtomicU32> = (0..tags.capacity()).map(|_| AtomicU32::new(0)).collect();
    let work = |thread: u32| {
        let mut held = std::collections::VecDeque::new();
        for _ in 0..rounds {
            if held.len() == depth {
                let tag: u32 = held.pop_front().expect("it is not empty");
                assert_eq!(owners[tag as usize].swap(0, Ordering::Relaxed), thread);
                tags.put(tag);
            }
            let tag = tags.try_take().expect("there is a free tag at any moment");
            let owner = owners[tag as usize].swap(thread, Ordering::Relaxed);
            assert_eq!(owner, 0, "tag {tag} was handed out twice");
            held.push_back(tag);
        }
        held.into_iter().for_each(|tag| {
            owners[tag as usize].store(0, Ordering::Relaxed);
            tags.put(tag);
        });
    };
    std::thread::scope(|scope| {
        (1..=threads).for_each(|thread| {
            scope.spawn(move || work(thread));
        });
    });
    assert_eq!(tags.free(), tags.size());
}

#[test]
fn no_get_fails_while_a_tag_is_free() {
    for policy in POLICIES {
        hold_in_turns(&tags(policy, 32), 8, 4, 20_000);
        hold_in_turns(&tags(policy, 255), 4, 60, 20_000);
    }
}

#[test]
fn tags_above_a_lower_limit_come_back_with_a_higher_one() {
    for policy in POLICIES {
        let tags = tags(policy, 64);
        let held: Vec<u32> = (0..40).filter_map(|_| tags.try_take()).collect();
        tags.resize(8).expect("8 tags are possible");
        let below = held.iter().filter(|tag| **tag < 8).count() as u32;
        assert_eq!(tags.free(), 8 - below, "{policy:?}");
        held.into_iter().for_each(|tag| tags.put(tag));
        let mut all: Vec<u32> = std::iter::from_fn(|| tags.try_take()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..8).collect::<Vec<_>>(), "{policy:?}");
        tags.resize(64).expect("64 tags are possible");
        assert_eq!(tags.free(), 56, "{policy:?}");
        all.into_iter().for_each(|tag| tags.put(tag));
        assert_eq!(std::iter::from_fn(|| tags.try_take()).count(), 64);
    }
}

fn error(topology: Topology) -> String {
    let builder = Tags::builder(255).policy(Policy::LimitTopology);
    let built = builder.topology(topology).build();
    built.expect_err("it is refused").to_string()
}

#[test]
fn a_topology_that_contradicts_itself_is_refused() {
    let sound = two_nodes();
    let messages = [
        error(Topology::default()),
        error(Topology::new(vec![None; 3], sound.distances.clone())),
        error(Topology::new(vec![None; 1 << 20], sound.distances.clone())),
        error(Topology::new(
            sound.cpus.clone(),
            vec![vec![10, 21], vec![21]],
        )),
        error(Topology::new(sound.cpus.clone(), vec![vec![10]])),
        {
            let mut split = sound.clone();
            split.cpus[1] = split.cpus[7];
            split.cpus[1].as_mut().expect("it is a CPU").core = 0;
            error(split)
        },
    ];
    let expected = [
        "topology: no CPU",
        "topology: no CPU",
        "topology: 1048576 numbers of CPUs, at most 65535 are possible",
        "topology: node 1 has no distance to each node",
        "topology: CPU 4 is on node 1, which has no distances",
        "topology: CPUs 0 and 1 share core 0 but not its core group, last-level cache or node",
    ];
    assert_eq!(messages, expected);
    let without = Tags::builder(255).policy(Policy::LimitTopology).build();
    let message = without.expect_err("it is refused").to_string();
    assert_eq!(
        message,
        "the policy LimitTopology needs to know where each CPU is"
    );
    let without_cpus = Tags::builder(255).possible_cpus(0).build();
    let message = without_cpus.expect_err("it is refused").to_string();
    assert_eq!(message, "0 possible CPUs: 1 to 65535 are possible");
}

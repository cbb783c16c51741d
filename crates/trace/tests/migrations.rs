//! Classes of migrations and lives of tasks.

use nearfar_machine::{Cache, CacheKind, CpuId, CpuSet, Known, Machine, NodeId};
use nearfar_sources::synthetic;
use nearfar_trace::migrations::{Class, Event, Migrations, Moves, Sharing};
use proptest::prelude::*;

/// Two nodes of four cores with two threads each; CPUs 0-7 and 8-15, siblings side by side; a last-level cache for each
/// pair of cores.
///
/// ```text
/// node 0: (0 1)(2 3) | (4 5)(6 7)      node 1: (8 9)(10 11) | (12 13)(14 15)
/// ```
fn machine() -> Machine {
    let mut machine = synthetic::parse("node:2 memory:1G core:4 pu:2 distance:20").unwrap();
    let cache = |level, first: u32, last: u32| Cache {
        level,
        kind: CacheKind::Unified,
        cpus: CpuSet::range(CpuId(first), CpuId(last)),
        size_bytes: Known::no("not needed"),
        line_bytes: None,
        ways: None,
    };
    machine.caches = (0..8)
        .map(|core| cache(2, 2 * core, 2 * core + 1))
        .collect();
    machine
        .caches
        .extend((0..4).map(|pair| cache(3, 4 * pair, 4 * pair + 3)));
    machine
}

fn moved(tid: i32, from: u32, to: u32) -> Event {
    Event::Moved {
        tid,
        name: "probe".to_owned(),
        from: CpuId(from),
        to: CpuId(to),
    }
}

fn forked(parent: i32, child: i32) -> Event {
    Event::Forked {
        parent,
        child,
        name: "probe".to_owned(),
    }
}

fn born(tid: i32, cpu: u32) -> Event {
    Event::Born {
        tid,
        cpu: CpuId(cpu),
    }
}

fn seconds_on(found: &Migrations, tid: i32, node: u32) -> f64 {
    let task = found.tasks.iter().find(|task| task.tid == tid).unwrap();
    task.time
        .iter()
        .find(|spent| spent.node == Some(NodeId(node)))
        .map_or(0.0, |spent| spent.seconds)
}

const SECOND: u64 = 1_000_000_000;

#[test]
fn a_move_is_classed_by_the_narrowest_thing_both_cpus_are_in() {
    let sharing = Sharing::new(&machine());
    for (from, to, class) in [
        (0, 1, Class::SameCore),
        (0, 2, Class::SameCache),
        (3, 0, Class::SameCache),
        (3, 4, Class::SameNode),
        (7, 8, Class::CrossNode),
        (15, 0, Class::CrossNode),
        (0, 99, Class::Unknown),
    ] {
        assert_eq!(
            sharing.class(CpuId(from), CpuId(to)),
            class,
            "{from} to {to}"
        );
    }
}

#[test]
fn a_cache_that_spans_nodes_does_not_hide_that_a_move_crossed_them() {
    let mut machine = machine();
    machine.caches.last_mut().unwrap().cpus = CpuSet::range(CpuId(0), CpuId(15));
    assert_eq!(
        Sharing::new(&machine).class(CpuId(7), CpuId(8)),
        Class::CrossNode
    );
}

#[test]
fn without_caches_a_move_within_a_node_is_just_that() {
    let mut machine = machine();
    machine.caches.clear();
    let sharing = Sharing::new(&machine);
    assert!(!sharing.caches_known());
    assert_eq!(sharing.class(CpuId(0), CpuId(2)), Class::SameNode);
    assert_eq!(sharing.class(CpuId(0), CpuId(1)), Class::SameCore);
}

/// Worked by hand:
///
/// ```text
/// second 0     1         2        3         5         6          8        9        10
/// 100    seen  |  0->2   .        |  2->8   .         |  8->9    .        .        end of trace: node 0 3 s, node 1 7 s
/// 101    .     .         forked   born 8    8->4      .          ended             node 1 2 s (3 to 5), node 0 3 s (5 to 8)
/// 999    another task    .        moves, and is not counted
/// ```
#[test]
fn lives_of_a_task_and_its_child() {
    let mut moves = Moves::new(Sharing::new(&machine()), true, Known::Yes(()));
    moves.adopt(100, "probe", Some(CpuId(7)), 0);
    for (second, event) in [
        (1, moved(100, 0, 2)),
        (2, forked(100, 101)),
        (3, born(101, 8)),
        (3, moved(100, 2, 8)),
        (4, moved(999, 0, 15)),
        (5, moved(101, 8, 4)),
        (6, moved(100, 8, 9)),
        (
            8,
            Event::Ended {
                tid: 101,
                name: "other".to_owned(),
            },
        ),
    ] {
        moves.take(second * SECOND, event);
    }
    assert!(moves.any_alive());
    let found = moves.finish(10 * SECOND, Known::no("not read"));
    assert_eq!((found.migrations.total(), found.gaps), (4, 0));
    let counts = found.migrations;
    assert_eq!(
        (
            counts.same_core,
            counts.same_cache,
            counts.same_node,
            counts.cross_node
        ),
        (1, 1, 0, 2)
    );
    assert_eq!(
        [(100, 0), (100, 1), (101, 1), (101, 0)].map(|(t, n)| seconds_on(&found, t, n)),
        [3.0, 7.0, 2.0, 3.0]
    );
    let matrix: Vec<_> = found
        .matrix
        .iter()
        .map(|cell| (cell.from.unwrap().0, cell.to.unwrap().0, cell.migrations))
        .collect();
    assert_eq!(matrix, [(0, 0, 1), (0, 1, 1), (1, 0, 1), (1, 1, 1)]);
    let ended: Vec<_> = found
        .tasks
        .iter()
        .map(|task| (task.tid, task.name.as_str(), task.ended))
        .collect();
    assert_eq!(ended, [(100, "probe", false), (101, "other", true)]);
}

#[test]
fn a_task_that_is_not_where_its_last_move_ended_is_a_gap() {
    let gaps = |cpu, looked_at| {
        let mut moves = Moves::new(Sharing::new(&machine()), true, Known::Yes(()));
        moves.adopt(100, "probe", Some(CpuId(7)), 0);
        moves.adopt(101, "probe", Some(CpuId(3)), 0);
        moves.take(2 * SECOND, moved(100, 7, 8));
        moves.was_seen(100, cpu, looked_at * SECOND);
        moves.was_seen(101, Some(CpuId(3)), looked_at * SECOND);
        moves.was_seen(999, Some(CpuId(3)), looked_at * SECOND);
        moves.finish(5 * SECOND, Known::no("not read")).gaps
    };
    assert_eq!(gaps(Some(CpuId(8)), 3), 0);
    assert_eq!(gaps(Some(CpuId(9)), 3), 1);
    // Of a look that an event may have been later than, and of one that did not find the CPU, nothing follows.
    assert_eq!(gaps(Some(CpuId(7)), 1), 0);
    assert_eq!(gaps(None, 3), 0);
    // A task of which no event told is where it was first seen.
    let mut moves = Moves::new(Sharing::new(&machine()), true, Known::Yes(()));
    moves.adopt(100, "probe", Some(CpuId(7)), 0);
    moves.was_seen(100, Some(CpuId(6)), SECOND);
    assert_eq!(moves.finish(5 * SECOND, Known::no("not read")).gaps, 1);
}

/// Thread 101 of process 100 becomes another program and takes the number of the first thread, which ends before. It is moved once
/// between taking the number and saying so.
///
/// ```text
/// second 0     1        2            3            4                       5          7        9
/// 100    on 0  .        ended by it  is 101 now:  moved 8->1, before that it says    8->1     ended
/// 101    on 8  born 8   .            the same     "100, before: 101"      .          no more
/// ```
#[test]
fn a_thread_that_takes_its_process_number_goes_on_under_that() {
    let mut moves = Moves::new(Sharing::new(&machine()), true, Known::Yes(()));
    moves.adopt(100, "probe", Some(CpuId(0)), 0);
    let ended = |tid| Event::Ended {
        tid,
        name: "probe".to_owned(),
    };
    for (second, event) in [
        (0, forked(100, 101)),
        (1, born(101, 8)),
        (2, ended(100)),
        (3, moved(100, 8, 1)),
        (4, Event::Renumbered { old: 101, new: 100 }),
        (7, moved(100, 1, 9)),
    ] {
        moves.take(second * SECOND, event);
        assert!(moves.any_alive());
    }
    assert!(moves.is_renumbered(100) && !moves.is_renumbered(101));
    moves.take(9 * SECOND, ended(100));
    assert!(!moves.any_alive(), "nothing is left under the old number");
    let found = moves.finish(20 * SECOND, Known::no("not read"));
    assert_eq!(
        (found.migrations.cross_node, found.gaps, found.tasks.len()),
        (2, 0, 2),
        "{:?}",
        found.tasks
    );
    assert!(found.tasks.iter().all(|task| task.tid == 100 && task.ended));
    assert_eq!(
        (seconds_on(&found, 100, 0), seconds_on(&found, 100, 1)),
        (4.0, 4.0),
        "second 1 to 9: {:?}",
        found.tasks
    );
}

#[test]
fn a_number_that_another_process_gets_later_is_not_taken_for_a_thread_of_the_first() {
    let mut moves = Moves::new(Sharing::new(&machine()), true, Known::Yes(()));
    moves.adopt(100, "probe", Some(CpuId(0)), 0);
    moves.adopt(101, "probe", Some(CpuId(0)), 0);
    moves.take(
        SECOND,
        Event::Ended {
            tid: 100,
            name: "probe".to_owned(),
        },
    );
    moves.take(2 * SECOND, forked(999, 100));
    moves.take(3 * SECOND, moved(100, 0, 15));
    moves.take(4 * SECOND, Event::Renumbered { old: 998, new: 100 });
    let found = moves.finish(5 * SECOND, Known::no("not read"));
    assert_eq!((found.migrations.total(), found.tasks.len()), (0, 2));
}

#[test]
fn a_task_whose_end_was_lost_ends_when_it_was_missed_twice() {
    let mut moves = Moves::new(Sharing::new(&machine()), true, Known::Yes(()));
    moves.adopt(100, "probe", Some(CpuId(0)), 0);
    moves.adopt(101, "probe", Some(CpuId(0)), 0);
    moves.end_missing(SECOND, |tid| tid != 100);
    assert!(
        moves.any_alive(),
        "its end may be in an event that was not read yet"
    );
    moves.end_missing(2 * SECOND, |tid| tid != 100);
    moves.end_missing(3 * SECOND, |_| true);
    let found = moves.finish(5 * SECOND, Known::no("not read"));
    let ended: Vec<_> = found
        .tasks
        .iter()
        .map(|task| (task.tid, task.ended, seconds_on(&found, task.tid, 0)))
        .collect();
    assert_eq!(ended, [(100, true, 2.0), (101, false, 5.0)]);
}

#[test]
fn a_first_move_that_was_not_seen_is_a_gap() {
    let gaps = |at_ns: u64, from: u32| {
        let mut moves = Moves::new(Sharing::new(&machine()), true, Known::Yes(()));
        moves.adopt(100, "probe", Some(CpuId(7)), 0);
        moves.were_seen_before(SECOND);
        moves.take(at_ns, moved(100, from, 15));
        moves.finish(3 * SECOND, Known::no("not read")).gaps
    };
    assert_eq!([gaps(2 * SECOND, 7), gaps(2 * SECOND, 0)], [0, 1]);
    assert_eq!(gaps(SECOND / 2, 0), 0, "it may have been seen after this");
}

#[test]
fn a_task_that_never_moves_is_where_it_was_seen() {
    let mut moves = Moves::new(Sharing::new(&machine()), true, Known::Yes(()));
    moves.adopt(100, "probe", Some(CpuId(9)), SECOND);
    moves.adopt(200, "other", None, SECOND);
    let found = moves.finish(3 * SECOND, Known::no("not read"));
    assert_eq!(seconds_on(&found, 100, 1), 2.0);
    let other = found.tasks.iter().find(|task| task.tid == 200).unwrap();
    assert_eq!(
        (other.time[0].node, other.time[0].seconds),
        (None, 2.0),
        "nothing told where"
    );
}

#[test]
fn a_thread_that_was_found_before_its_making_was_read_is_not_counted_twice() {
    let mut moves = Moves::new(Sharing::new(&machine()), true, Known::Yes(()));
    moves.adopt(100, "probe", None, 0);
    moves.adopt(101, "probe", Some(CpuId(0)), 0);
    moves.take(SECOND, forked(100, 101));
    moves.take(2 * SECOND, born(101, 8));
    let found = moves.finish(4 * SECOND, Known::no("not read"));
    assert_eq!(found.tasks.len(), 2);
    assert_eq!(
        [seconds_on(&found, 101, 0), seconds_on(&found, 101, 1)],
        [0.0, 2.0]
    );
}

#[test]
fn children_are_left_alone_where_that_was_asked() {
    let mut moves = Moves::new(Sharing::new(&machine()), false, Known::Yes(()));
    moves.adopt(100, "probe", None, 0);
    moves.take(SECOND, forked(100, 101));
    moves.take(SECOND, moved(101, 0, 8));
    assert_eq!(
        moves.finish(2 * SECOND, Known::no("not read")).tasks.len(),
        1
    );
}

#[test]
fn a_move_that_does_not_begin_where_the_last_one_ended_is_a_gap() {
    let mut moves = Moves::new(Sharing::new(&machine()), true, Known::Yes(()));
    moves.adopt(100, "probe", None, 0);
    moves.take(SECOND, moved(100, 0, 2));
    moves.take(2 * SECOND, moved(100, 4, 8));
    assert_eq!(moves.finish(3 * SECOND, Known::no("not read")).gaps, 1);
}

proptest! {
    #[test]
    fn every_move_has_one_class_and_time_is_never_lost(
        steps in proptest::collection::vec((0i32..4, 0u32..20, 0u32..20, 0u64..1000), 0..100),
    ) {
        let mut moves = Moves::new(Sharing::new(&machine()), true, Known::Yes(()));
        (0..3).for_each(|tid| moves.adopt(tid, "task", None, 0));
        let (mut now, mut followed) = (0, 0);
        for (tid, from, to, gap) in steps {
            now += gap;
            followed += u64::from(tid < 3 && from != to);
            moves.take(now, moved(tid, from, to));
        }
        let found = moves.finish(now, Known::no("not read"));
        prop_assert_eq!(found.migrations.total(), followed);
        prop_assert_eq!(found.matrix.iter().map(|cell| cell.migrations).sum::<u64>(), followed);
        let cross: u64 = found.matrix.iter().filter(|c| c.from.is_some() && c.to.is_some() && c.from != c.to).map(|c| c.migrations).sum();
        prop_assert_eq!(found.migrations.cross_node, cross);
        let spent: f64 = found.time.iter().map(|spent| spent.seconds).sum();
        prop_assert!((spent - 3.0 * now as f64 / 1e9).abs() < 1e-6);
    }

    #[test]
    fn classes_are_the_same_both_ways_but_for_what_is_unknown(a in 0u32..20, b in 0u32..20) {
        let sharing = Sharing::new(&machine());
        prop_assert_eq!(sharing.class(CpuId(a), CpuId(b)), sharing.class(CpuId(b), CpuId(a)));
    }
}

//! What NUMA balancing does: its events as kernels write them, its counts as files, and what a task's life makes of it.

use std::path::Path;
use std::sync::LazyLock;

use nearfar_machine::{CpuId, Known, NodeId};
use nearfar_sources::synthetic;
use nearfar_trace::Tracefs;
use nearfar_trace::format::{Format, FormatError};
use nearfar_trace::migrations::{Balanced, Decoder, Event, Formats, Moves, Sharing};
use nearfar_trace::numa_balancing::{MachineCounts, TaskCounts};
use proptest::prelude::*;

const PAGES_61: &str = include_str!("formats/mm_migrate_pages-6.1");
const PAGES_618: &str = include_str!("formats/mm_migrate_pages-6.18");
const MOVE: &str = include_str!("formats/sched_move_numa-6.18");
const SWAP: &str = include_str!("formats/sched_swap_numa-6.18");
const STICK: &str = include_str!("formats/sched_stick_numa-6.18");

/// The descriptions of a kernel as a tracefs has them, with that of `mm_migrate_pages`.
fn formats(pages: Option<&str>) -> Formats {
    let folder = tempfile::tempdir().unwrap();
    let write = |system: &str, name: &str, text: &str| {
        let place = folder.path().join("events").join(system).join(name);
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join("format"), text).unwrap();
    };
    write(
        "sched",
        "sched_migrate_task",
        include_str!("formats/sched_migrate_task-6.18"),
    );
    write(
        "sched",
        "sched_process_fork",
        include_str!("formats/sched_process_fork-6.18"),
    );
    write(
        "sched",
        "sched_wakeup_new",
        include_str!("formats/sched_wakeup_new-6.18"),
    );
    write(
        "sched",
        "sched_process_exec",
        include_str!("formats/sched_process_exec-6.18"),
    );
    write(
        "sched",
        "sched_process_exit",
        include_str!("formats/sched_process_exit-6.18"),
    );
    write("sched", "sched_move_numa", MOVE);
    write("sched", "sched_swap_numa", SWAP);
    write("sched", "sched_stick_numa", STICK);
    if let Some(pages) = pages {
        write("migrate", "mm_migrate_pages", pages);
    }
    Formats::read(&Tracefs::at(folder.path()).unwrap()).unwrap()
}

static DECODER: LazyLock<Decoder> =
    LazyLock::new(|| Decoder::new(&formats(Some(PAGES_618))).unwrap());

/// An event of a description, with those of its fields set; all are numbers.
fn event(description: &str, fields: &[(&str, i64)]) -> Vec<u8> {
    let mut bytes = vec![0; 72];
    let id = description
        .lines()
        .find_map(|line| line.strip_prefix("ID: "))
        .unwrap()
        .parse::<u16>()
        .unwrap();
    bytes[..2].copy_from_slice(&id.to_ne_bytes());
    for (field, value) in fields {
        let line = description
            .lines()
            .find(|line| line.contains(&format!(" {field};")))
            .unwrap();
        let number = |key: &str| {
            line.split_once(key)
                .unwrap()
                .1
                .split(';')
                .next()
                .unwrap()
                .parse::<usize>()
                .unwrap()
        };
        let (offset, size) = (number("offset:"), number("size:"));
        // Little or big endian: the lower bytes of a number are at its start or its end.
        let whole = value.to_ne_bytes();
        let part = if cfg!(target_endian = "little") {
            &whole[..size]
        } else {
            &whole[8 - size..]
        };
        bytes[offset..offset + size].copy_from_slice(part);
    }
    bytes
}

#[test]
fn pages_count_that_balancing_moved_and_no_others() {
    for description in [PAGES_61, PAGES_618] {
        let decoder = Decoder::new(&formats(Some(description))).unwrap();
        let decode = |pages, reason| {
            let fields = [
                ("common_pid", 100),
                ("succeeded", pages),
                ("failed", 1),
                ("reason", reason),
            ];
            decoder.decode(&event(description, &fields))
        };
        assert_eq!(
            decode(512, 5),
            Some(Event::PagesMoved {
                tid: 100,
                pages: 512
            })
        );
        assert_eq!(decode(0, 5), None, "all failed");
        assert_eq!(decode(512, 0), None, "compaction");
    }
}

#[test]
fn moves_that_balancing_orders_are_told_from_those_that_come_to_nothing() {
    let decoder = Decoder::new(&formats(Some(PAGES_618))).unwrap();
    let moved = event(MOVE, &[("pid", 100), ("src_cpu", 0), ("dst_cpu", 1)]);
    assert_eq!(
        decoder.decode(&moved),
        Some(Event::Steered {
            tid: 100,
            with: None
        })
    );
    let swapped = event(SWAP, &[("src_pid", 100), ("dst_pid", 200)]);
    assert_eq!(
        decoder.decode(&swapped),
        Some(Event::Steered {
            tid: 100,
            with: Some(200)
        })
    );
    let stuck = |cpu, other| {
        event(
            STICK,
            &[("src_pid", 100), ("dst_pid", other), ("dst_cpu", cpu)],
        )
    };
    assert_eq!(
        decoder.decode(&stuck(1, 0)),
        Some(Event::Stuck {
            tid: 100,
            with: None
        })
    );
    assert_eq!(
        decoder.decode(&stuck(1, 200)),
        Some(Event::Stuck {
            tid: 100,
            with: Some(200)
        })
    );
    assert_eq!(
        decoder.decode(&stuck(-1, 0)),
        None,
        "it had nowhere to go, so nothing was ordered"
    );
}

#[test]
fn a_kernel_without_these_events_still_traces_migrations_and_says_what_it_lacks() {
    let formats = formats(None);
    assert!(
        formats
            .balancing()
            .unknown_reason()
            .unwrap()
            .contains("migrate:mm_migrate_pages"),
        "{:?}",
        formats.balancing()
    );
    assert_eq!(formats.following().len(), 5);
    let decoder = Decoder::new(&formats).unwrap();
    assert_eq!(decoder.decode(&event(MOVE, &[("pid", 100)])), None);
    let mut moves = Moves::new(sharing(), true, formats.balancing());
    moves.adopt(100, "probe", None, 0);
    let found = moves.finish(10, Known::no("not read"));
    assert!(found.numa_balancing.tasks.get().is_none() && found.tasks[0].numa_balancing.is_none());
}

#[test]
fn filters_name_the_task_in_every_field_that_may_hold_it() {
    let formats = formats(Some(PAGES_618));
    let filters: Vec<_> = formats
        .only(&[7, 8])
        .unwrap()
        .into_iter()
        .map(|(f, filter)| (f.name().to_owned(), filter))
        .collect();
    let filter = |name: &str| {
        filters
            .iter()
            .find(|(event, _)| event == name)
            .unwrap()
            .1
            .clone()
            .unwrap()
    };
    assert_eq!(filter("sched_migrate_task"), "pid==7||pid==8");
    assert_eq!(filter("sched_process_exec"), "old_pid==7||old_pid==8");
    assert_eq!(
        filter("sched_swap_numa"),
        "src_pid==7||src_pid==8||dst_pid==7||dst_pid==8"
    );
    assert_eq!(filter("mm_migrate_pages"), "common_pid==7||common_pid==8");
    assert!(
        formats
            .only(&(100_000..100_200).collect::<Vec<_>>())
            .is_none(),
        "more than a page"
    );
}

#[test]
fn a_reason_that_the_kernel_does_not_name_is_an_error() {
    let format = Format::parse(&PAGES_618.replace("numa_misplaced", "other")).unwrap();
    let error = format
        .number_meaning("reason", "numa_misplaced")
        .unwrap_err();
    assert!(
        matches!(
            error,
            FormatError::NoMeaning {
                field: "reason",
                ..
            }
        ),
        "{error}"
    );
    let spaced =
        Format::parse(&PAGES_618.replace("{5, \"numa_misplaced\"}", "{ 7 , \"numa_misplaced\" }"))
            .unwrap();
    assert_eq!(spaced.number_meaning("reason", "numa_misplaced"), Ok(7));
}

fn sharing() -> Sharing {
    Sharing::new(&synthetic::parse("node:2 memory:1G core:2 pu:1 distance:20").unwrap())
}

#[test]
fn a_life_counts_what_was_done_to_it_since_it_was_followed() {
    let mut moves = Moves::new(sharing(), true, Known::Yes(()));
    moves.adopt(100, "probe", None, 50);
    moves.adopt(200, "other", None, 50);
    for (time, event) in [
        (
            40,
            Event::Steered {
                tid: 100,
                with: None,
            },
        ),
        (
            40,
            Event::Moved {
                tid: 100,
                name: "probe".to_owned(),
                from: CpuId(0),
                to: CpuId(2),
            },
        ),
        (
            60,
            Event::Steered {
                tid: 100,
                with: None,
            },
        ),
        (
            61,
            Event::Moved {
                tid: 100,
                name: "probe".to_owned(),
                from: CpuId(0),
                to: CpuId(2),
            },
        ),
        (
            70,
            Event::Steered {
                tid: 300,
                with: Some(200),
            },
        ),
        (
            80,
            Event::Steered {
                tid: 200,
                with: Some(100),
            },
        ),
        (
            81,
            Event::Stuck {
                tid: 200,
                with: Some(100),
            },
        ),
        (90, Event::PagesMoved { tid: 200, pages: 3 }),
        (
            91,
            Event::PagesMoved {
                tid: 300,
                pages: 100,
            },
        ),
        (
            92,
            Event::Moved {
                tid: 100,
                name: "probe".to_owned(),
                from: CpuId(2),
                to: CpuId(1),
            },
        ),
    ] {
        moves.take(time, event);
    }
    let found = moves.finish(100, Known::no("not read"));
    let of = |tid| found.tasks.iter().find(|task| task.tid == tid).unwrap();
    assert_eq!(
        of(100).numa_balancing,
        Some(Balanced {
            task_moves: 1,
            pages_migrated: 0
        })
    );
    assert_eq!(
        of(200).numa_balancing,
        Some(Balanced {
            task_moves: 1,
            pages_migrated: 3
        })
    );
    assert_eq!(
        found.numa_balancing.tasks,
        Known::Yes(Balanced {
            task_moves: 2,
            pages_migrated: 3
        })
    );
    assert_eq!(
        (of(100).migrations.cross_node, found.gaps),
        (2, 0),
        "the first was before it was followed"
    );
}

#[test]
fn counts_of_the_machine_and_of_a_task_are_read_from_the_kernels_text() {
    let text = "numa_hit 5\nnuma_pte_updates 70\nnuma_huge_pte_updates 1\nnuma_hint_faults 50\nnuma_hint_faults_local 40\nnuma_pages_migrated 9\n";
    let later = text.replace(" 50", " 60").replace("local 40", "local 43");
    let [before, after] = [text, &later].map(|text| MachineCounts::parse(text).known().unwrap());
    let between = MachineCounts {
        hint_faults: 10,
        hint_faults_local: 3,
        pages_migrated: 0,
        pte_updates: 0,
    };
    assert_eq!(after.since(before), between);
    assert!(
        MachineCounts::parse("numa_hit 5\n")
            .unknown_reason()
            .unwrap()
            .contains("numa_hint_faults")
    );
    let task = "probe (100, #threads: 1)\n---\nse.exec_start   :   12.5\nnuma_pages_migrated      :       9\n\
                numa_preferred_nid        :      1\ntotal_numa_faults      :    33\ncurrent_node=1, numa_group_id=0\n\
                numa_faults node=0 task_private=3 task_shared=1 group_private=0 group_shared=0\n\
                numa_faults node=1 task_private=29 task_shared=0 group_private=0 group_shared=0\n";
    let counts = TaskCounts::parse(task.as_bytes()).unwrap();
    assert_eq!(
        (
            counts.preferred_node,
            counts.pages_migrated,
            counts.recent_faults
        ),
        (Some(NodeId(1)), 9, 33)
    );
    assert_eq!(counts.by_node, [(NodeId(0), 4), (NodeId(1), 29)]);
    assert_eq!(
        TaskCounts::parse(task.replace(":      1", ":      -1").as_bytes())
            .unwrap()
            .preferred_node,
        None
    );
    assert_eq!(TaskCounts::parse(b"kthreadd (2, #threads: 1)\n"), None);
    assert!(
        TaskCounts::read(999_999_999)
            .unknown_reason()
            .unwrap()
            .contains("/proc/999999999/sched")
    );
    if Path::new("/proc/self/sched").exists() {
        println!(
            "{:?} {:?}",
            TaskCounts::read(std::process::id().cast_signed()),
            MachineCounts::read()
        );
    }
}

proptest! {
    #[test]
    fn no_text_or_event_makes_a_reader_panic(text in "\\PC{0,200}", bytes: Vec<u8>) {
        let _ = (MachineCounts::parse(&text), TaskCounts::parse(text.as_bytes()));
        let _ = DECODER.decode(&bytes);
    }
}

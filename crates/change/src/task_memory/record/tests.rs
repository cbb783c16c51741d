//! Records as they are written, cut, and forged.

use crate::lines::{Line, render};
use proptest::prelude::*;

use super::*;

pub(crate) fn header() -> RecordHeader {
    RecordHeader::new(4711, 815, Image { code: 1, stack: 2 }, NodeId(1), false)
}

fn text(entries: &[Entry]) -> String {
    let line = |(entry, n): (&Entry, u64)| {
        let line = Line {
            n,
            at_s: 1,
            record: entry,
        };
        render(&line).unwrap()
    };
    entries.iter().zip(0..).map(line).collect()
}

fn batches(bytes: &[u8]) -> Result<Vec<Batch>, BadLine> {
    let mut found = Vec::new();
    read(bytes, &mut |batch| found.push(batch)).map(|_| found)
}

fn pages(numbers: &[(u64, u32)]) -> Vec<Page> {
    let page = |&(number, node): &(u64, u32)| Page {
        address: number * 4096,
        node: NodeId(node),
    };
    numbers.iter().map(page).collect()
}

#[test]
fn neighbours_on_one_node_are_one_run() {
    let all = pages(&[(10, 0), (11, 0), (12, 2), (20, 2), (21, 2)]);
    let runs = Runs::of(&all, 4096);
    let expected = [(10, 2, NodeId(0)), (0, 1, NodeId(2)), (7, 2, NodeId(2))];
    assert_eq!(runs.runs, expected);
    assert_eq!(runs.pages().unwrap(), all);
}

#[test]
fn what_stayed_is_not_of_the_batch_and_a_torn_line_moved_nothing() {
    let moved = Runs::of(&pages(&[(1, 0), (2, 0), (3, 0)]), 4096);
    let stayed = Runs::of(&pages(&[(2, 0)]), 4096);
    let whole = text(&[
        Entry::Begin(header()),
        Entry::Before(moved.clone()),
        Entry::Stayed(stayed),
        Entry::Before(moved.clone()),
    ]);
    let found = batches(whole.as_bytes()).unwrap();
    assert_eq!(found[0].pages, pages(&[(1, 0), (3, 0)]));
    assert_eq!(found[1].pages.len(), 3);
    for cut in 0..whole.len() {
        assert!(batches(&whole.as_bytes()[..cut]).unwrap().len() <= 2);
    }
    for (entries, says) in [
        (vec![Entry::Before(moved.clone())], "names the process"),
        (
            vec![Entry::Begin(header()), Entry::Stayed(moved)],
            "were not to be moved",
        ),
        (
            vec![Entry::Begin(header()), Entry::Begin(header())],
            "second record",
        ),
    ] {
        let error = batches(text(&entries).as_bytes()).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn hostile_runs_take_no_memory() {
    for (page_bytes, run) in [
        (4096, (0, u64::MAX, NodeId(0))),
        (4096, (u64::MAX, 1, NodeId(0))),
        (4096, (u64::MAX / 4096, 1, NodeId(0))),
        (4096, (0, 1, NodeId(u32::MAX))),
        (4096, (0, 1 << 40, NodeId(0))),
        (0, (0, 1, NodeId(0))),
        (3, (0, 1, NodeId(0))),
    ] {
        let runs = vec![run];
        let files = None;
        assert!(
            Runs {
                page_bytes,
                runs,
                files
            }
            .pages()
            .is_err(),
            "{run:?}"
        );
        let (runs, files) = (Vec::new(), Some(vec![run]));
        assert!(
            Runs {
                page_bytes,
                runs,
                files
            }
            .batch()
            .is_err(),
            "{run:?}"
        );
    }
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes: Vec<u8>) {
        let _ = batches(&bytes);
    }

    #[test]
    fn no_record_panics(runs: Vec<(u64, u64, u32)>, page_bytes: u64) {
        let runs = runs.into_iter().map(|(gap, count, node)| (gap, count, NodeId(node))).collect();
        let files = Some(Vec::clone(&runs));
        let before = Entry::Before(Runs { page_bytes, runs, files });
        let _ = batches(text(&[Entry::Begin(header()), before]).as_bytes());
    }

    #[test]
    fn pages_are_read_as_they_were_written(steps in prop::collection::vec((1u64..9, 0u32..3), 0..200)) {
        let mut number = 0;
        let numbers: Vec<_> = steps.iter().map(|&(step, node)| { number += step; (number, node) }).collect();
        let all = pages(&numbers);
        let kinds: Vec<bool> = all.iter().map(|page| page.address % (3 << 12) == 0).collect();
        let runs = Runs::with_kinds(&all, Some(&kinds), 4096);
        let bytes = text(&[Entry::Begin(header()), Entry::Before(runs)]);
        let batch = &batches(bytes.as_bytes()).unwrap()[0];
        prop_assert_eq!(&batch.pages, &all);
        let files = batch.files.as_ref().unwrap();
        for (page, is_of_file) in all.iter().zip(kinds) {
            prop_assert_eq!(files.contains(&page.address), is_of_file);
        }
    }
}

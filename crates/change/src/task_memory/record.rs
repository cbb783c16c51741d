//! Where the pages of a process were: recorded before they are moved, next to the journal of the change set.
//!
//! `change-7-0.pages` is of write 0 of change set 7. Its lines are those of a journal ([`crate::journal`]): the
//! process, then for each batch the runs of neighbouring pages on one node, and which of them stayed there. A run is
//! the pages between it and the run before, its own pages, and their node:
//!
//! ```text
//! 0a1b2c3d {"n":0,"at_s":1763690000,"begin":{"record_format":1,"pid":4711,"start_ticks":815,…,"to":1,"shared":false}}
//! 55667788 {"n":1,"at_s":1763690000,"before":{"page_bytes":4096,"runs":[[34183512064,512,0]]}}
//! 99aabbcc {"n":2,"at_s":1763690000,"stayed":{"page_bytes":4096,"runs":[[34183512070,1,0]]}}
//! ```

use std::collections::BTreeSet;
use std::io;

use nearfar_machine::{MAX_NUMBER, NodeId};
use nearfar_proc::Image;
use nearfar_proc::resident::Page;
use nearfar_proc::resident::PageEntry;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::journal::{self, BadLine, ChangeSetId, FileRecord, LineFile};
use crate::state::{NEW_FILE, StateDir};
use crate::system::System;
use crate::task_memory::pages::Namespaces;

const RECORD_FORMAT: u32 = 1;
/// Of one file: 200 GiB of memory that alternates between nodes page by page, and many times that otherwise.
const MAX_RECORD_BYTES: u64 = 1 << 30;
/// Of one batch: several times what the mover takes at once.
const MAX_BATCH_PAGES: u64 = 1 << 17;

/// Whose pages a file is about, and where they went.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct RecordHeader {
    record_format: u32,
    pub(crate) pid: i32,
    pub(crate) start_ticks: u64,
    pub(crate) image: Image,
    /// `None` in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) namespaces: Option<Namespaces>,
    pub(crate) to: NodeId,
    pub(crate) shared: bool,
}

impl RecordHeader {
    pub(crate) fn new(pid: i32, start_ticks: u64, image: Image, to: NodeId, shared: bool) -> Self {
        Self {
            record_format: RECORD_FORMAT,
            pid,
            start_ticks,
            image,
            namespaces: Some(Namespaces::own()),
            to,
            shared,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Entry {
    /// The first line.
    Begin(RecordHeader),
    /// These pages are about to be moved.
    Before(Runs),
    /// These of them were not.
    Stayed(Runs),
}

impl FileRecord for Entry {
    const FORMAT: u32 = RECORD_FORMAT;
    const FILE: &str = "record";
    const OF: &str = "record";

    fn format(&self) -> Option<u32> {
        match self {
            Self::Begin(header) => Some(header.record_format),
            _ => None,
        }
    }

    fn no_beginning() -> String {
        "the line that names the process is missing".to_owned()
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Runs {
    page_bytes: u64,
    runs: Vec<Run>,
    /// The same pages of files and shared memory alone; `None` where unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    files: Option<Vec<Run>>,
}

/// Pages skipped, pages, their node.
type Run = (u64, u64, NodeId);

impl Runs {
    /// Of pages in ascending order.
    fn of(pages: &[Page], page_bytes: u64) -> Self {
        let mut runs: Vec<Run> = Vec::new();
        let mut end = 0;
        for page in pages {
            let number = page.address / page_bytes;
            match runs.last_mut() {
                Some((_, count, node)) if number == end && *node == page.node => *count += 1,
                _ => runs.push((number.saturating_sub(end), 1, page.node)),
            }
            end = number + 1;
        }
        Self {
            page_bytes,
            runs,
            files: None,
        }
    }

    /// With what is known of them.
    fn with_kinds(pages: &[Page], kinds: Option<&[bool]>, page_bytes: u64) -> Self {
        let files = kinds.map(|is_of_file| {
            let pages = pages.iter().zip(is_of_file);
            let files = pages.filter_map(|(page, is_of_file)| is_of_file.then_some(*page));
            Self::of(&files.collect::<Vec<_>>(), page_bytes).runs
        });
        Self {
            files,
            ..Self::of(pages, page_bytes)
        }
    }

    fn batch(&self) -> Result<Batch, String> {
        let files = self.files.as_ref().map(|files| self.pages_of(files));
        let files = files.transpose()?;
        let addresses = |pages: Vec<Page>| pages.into_iter().map(|page| page.address).collect();
        Ok(Batch {
            page_bytes: self.page_bytes,
            pages: self.pages()?,
            files: files.map(addresses),
        })
    }

    fn pages(&self) -> Result<Vec<Page>, String> {
        self.pages_of(&self.runs)
    }

    fn pages_of(&self, runs: &[Run]) -> Result<Vec<Page>, String> {
        if !self.page_bytes.is_power_of_two() {
            return Err(format!("pages of {} bytes", self.page_bytes));
        }
        let mut pages = Vec::new();
        let mut next = 0u64;
        for &(gap, count, node) in runs {
            let first = next.checked_add(gap);
            let end = first.and_then(|first| first.checked_add(count));
            let (Some(first), Some(end)) = (first, end) else {
                return Err("a run of pages has no addresses".to_owned());
            };
            if count > MAX_BATCH_PAGES - pages.len() as u64 {
                return Err(format!("a batch has more than {MAX_BATCH_PAGES} pages"));
            }
            if node.0 > MAX_NUMBER {
                return Err(format!("node {node} is above {MAX_NUMBER}"));
            }
            if end.checked_mul(self.page_bytes).is_none() {
                return Err("a run of pages has no addresses".to_owned());
            }
            next = end;
            pages.extend((first..end).map(|number| Page {
                address: number * self.page_bytes,
                node,
            }));
        }
        Ok(pages)
    }
}

/// The record of a move that is under way.
pub(crate) struct RecordFile {
    lines: LineFile,
}

/// The name of the record of a write.
pub(crate) fn file_of(run: ChangeSetId, write: u64) -> String {
    format!("change-{run}-{write}.pages")
}

impl RecordFile {
    /// Begins the record; on disk, with its name, when this returns. Leaves nothing behind on failure.
    pub(crate) fn begin(
        state: &StateDir,
        system: &dyn System,
        name: &str,
        header: RecordHeader,
    ) -> io::Result<Self> {
        // Not readable for others: the addresses of a process are secret (address space layout randomization).
        let file = state.open_file(name, NEW_FILE)?;
        let lines = LineFile::begin(state, system, name, file, Entry::Begin(header))?;
        Ok(Self { lines })
    }

    /// Where pages are that are about to be moved, and whether each is of a file, if that is known.
    pub(crate) fn before(
        &mut self,
        system: &dyn System,
        pages: &[Page],
        kinds: Option<&[bool]>,
        page_bytes: u64,
    ) -> io::Result<()> {
        if self.lines.length() > MAX_RECORD_BYTES / 2 {
            return Err(io::Error::other("the record may not become larger"));
        }
        let runs = Runs::with_kinds(pages, kinds, page_bytes);
        self.lines.append_cached(system, Entry::Before(runs))
    }

    /// Which of the last ones were not moved.
    pub(crate) fn stayed(
        &mut self,
        system: &dyn System,
        pages: &[Page],
        page_bytes: u64,
    ) -> io::Result<()> {
        let runs = Runs::of(pages, page_bytes);
        self.lines.append_cached(system, Entry::Stayed(runs))
    }

    /// Returns when all of it is on disk: once at the end of a move. The record guards against a kill of apply, which the
    /// page cache survives. After a power failure there is no process whose pages could be moved back.
    pub(crate) fn sync(&self, system: &dyn System) -> io::Result<()> {
        self.lines.sync(system)
    }
}

/// Pages that were moved, with the node that each came from. Of the last batch, where a kill came before the answer, they
/// may not have been.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Batch {
    pub(crate) page_bytes: u64,
    pub(crate) pages: Vec<Page>,
    /// Those of files and shared memory; `None` where unknown.
    pub(crate) files: Option<BTreeSet<u64>>,
}

impl Batch {
    /// Whether a page is still what it was: of a file or not. Another one at its address may be a page of other processes.
    pub(crate) fn has_kind(&self, page: &Page, now: Option<PageEntry>) -> bool {
        let then = self.files.as_ref().map(|it| it.contains(&page.address));
        let now = now.filter(|now| now.is_present());
        now.is_none_or(|now| then.is_none_or(|then| then == now.is_of_file()))
    }
}

/// The bytes of a record.
pub(crate) fn load(state: &StateDir, name: &str) -> io::Result<Vec<u8>> {
    journal::load(state.open_file(name, OFlags::RDONLY)?, MAX_RECORD_BYTES)
}

/// Hands each batch to `take`. Any bytes may come; `None` where the crash was during the very first line: nothing was
/// moved then.
pub(crate) fn read(
    bytes: &[u8],
    take: &mut dyn FnMut(Batch),
) -> Result<Option<RecordHeader>, BadLine> {
    let mut header = None;
    let mut batch: Option<Batch> = None;
    journal::read_lines(bytes, &mut |line: journal::Line<Entry>| {
        match line.record {
            Entry::Begin(begin) => header = Some(begin),
            Entry::Before(runs) => {
                batch
                    .replace(runs.batch()?)
                    .into_iter()
                    .for_each(&mut *take);
            }
            Entry::Stayed(runs) => {
                let stayed: BTreeSet<u64> = runs.pages()?.iter().map(|page| page.address).collect();
                let batch = batch
                    .as_mut()
                    .ok_or("pages stayed that were not to be moved")?;
                batch.pages.retain(|page| !stayed.contains(&page.address));
            }
        }
        Ok(())
    })?;
    batch.into_iter().for_each(take);
    Ok(header)
}

/// For the fuzzer: reads a record of any bytes.
#[doc(hidden)]
pub fn read_any(bytes: &[u8]) {
    let _ = read(bytes, &mut |_| {});
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::journal::{Line, render};
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
}

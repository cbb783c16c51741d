//! Pages are moved and put back, whatever becomes of them and of the disk meanwhile; by a kernel that answers as the real one.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use nearfar_machine::{NodeId, NodeSet};
use nearfar_proc::move_pages::MovePages;
use nearfar_proc::resident::PageEntry;
use nearfar_proc::resident::{Next, Page};
use proptest::prelude::*;

use crate::outcome::{RestoredMemory, UndoResult};
use crate::state::{Location, StateDir};
use crate::system::{Rooted, System};
use crate::task_memory::mover::{Mover, RateLimit, State, StopReason, put_back};
use crate::task_memory::pages::{Pages, ProcessChanged};
use crate::task_memory::record::tests::header;
use crate::task_memory::record::{self, RecordFile};
use crate::task_memory::{MoveRequest, ProgressSink};

/// A disk that is full after so many bytes.
struct Disk {
    system: Rooted,
    room: Cell<usize>,
}

impl System for Disk {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        self.system.read(path)
    }

    fn write(&self, path: &str, content: &[u8]) -> io::Result<()> {
        self.system.write(path, content)
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.system.list(path)
    }

    fn link(&self, path: &str) -> io::Result<String> {
        self.system.link(path)
    }

    fn append(&self, mut file: &File, line: &[u8]) -> io::Result<()> {
        let room = self.room.get();
        file.write_all(&line[..line.len().min(room)])?;
        if line.len() > room {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        self.room.set(room - line.len());
        Ok(())
    }
}

/// A state directory, and a disk.
struct Bench {
    _folder: tempfile::TempDir,
    state: StateDir,
    disk: Disk,
}

const NAME: &str = "change-1-0.pages";

impl Bench {
    fn new(room: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::make(&Location::Directory(folder.path().join("state"))).unwrap();
        let disk = Disk {
            system: Rooted::live().unwrap(),
            room: Cell::new(room),
        };
        Self {
            _folder: folder,
            state,
            disk,
        }
    }

    /// Moves all to [`TO`]; cancelled after so many looks.
    fn move_all(
        &self,
        fake: &impl FakePages,
        cancel_after: u64,
        huge_page_bytes: u64,
    ) -> io::Result<State> {
        let request = MoveRequest {
            pid: 4711,
            from: "0,2".parse().unwrap(),
            to: TO,
            shared: false,
        };
        let looks = Cell::new(0);
        let mut record = RecordFile::begin(&self.state, &self.disk, NAME, header())?;
        let mut mover = Mover {
            pages: fake,
            request: &request,
            system: &self.disk,
            record: &mut record,
            rate: RateLimit::new(None),
            is_cancelled: &|| {
                looks.set(looks.get() + 1);
                looks.get() > cancel_after
            },
            progress: &|_| {},
            huge_page_bytes,
            state: State::default(),
        };
        // As the walk gives them: in parts that have nothing to do with batches.
        for part in fake.fake().on(&request.from).chunks(700) {
            if mover.take(part, PAGE) == Next::Stop {
                break;
            }
        }
        mover.flush();
        Ok(mover.state)
    }

    fn undo(&self, fake: &Fake) -> RestoredMemory {
        let bytes = record::load(&self.state, NAME).unwrap();
        put_back(fake, TO, &bytes).ok().unwrap()
    }
}

fn pages(count: u64, of: impl Fn(u64) -> (u32, PageKind)) -> BTreeMap<u64, (NodeId, PageKind)> {
    let page = |number| {
        let (node, kind) = of(number);
        (number, (NodeId(node), kind))
    };
    (0..count).map(page).collect()
}

#[test]
fn every_outcome_is_counted_and_every_page_goes_back() {
    let bench = Bench::new(usize::MAX);
    let fake = Fake::new(pages(2000, |number| match number {
        0..=9 => (0, PageKind::Shared),
        10..=19 => (2, PageKind::Pinned),
        20..=29 => (0, PageKind::InHugePage),
        1990.. => (1, PageKind::Own),
        _ => (number as u32 % 2 * 2, PageKind::Own),
    }));
    let before = fake.nodes();
    let state = bench.move_all(&fake, u64::MAX, 2 << 20).unwrap();
    assert!(state.end.is_none() && !state.is_unsettled);
    let moved = state.moved;
    assert_eq!(moved.moved_bytes, 1970 * PAGE);
    assert_eq!(moved.not_moved.shared_bytes, 10 * PAGE);
    assert_eq!(moved.not_moved.busy_bytes, 10 * PAGE);
    assert_eq!(state.moved_from.values().sum::<u64>(), 1970 * PAGE);

    // One was unmapped, one moved on, and one that stayed was moved to the target by another program.
    fake.pages.borrow_mut().remove(&100);
    fake.pages
        .borrow_mut()
        .insert(101, (NodeId(3), PageKind::Own));
    fake.pages.borrow_mut().insert(0, (TO, PageKind::Own));
    let restored = bench.undo(&fake);
    assert_eq!(restored.back_bytes, 1968 * PAGE);
    assert_eq!(restored.changed_bytes, 2 * PAGE);
    assert_eq!(restored.not_moved.bytes(), 0);
    let mut expected = before;
    expected.remove(&100);
    expected.extend([(101, NodeId(3)), (0, TO)]);
    assert_eq!(fake.nodes(), expected);
    // Repeated, there is nothing to move.
    let again = bench.undo(&fake);
    assert_eq!((again.back_bytes, again.already_bytes), (0, 1968 * PAGE));
}

#[test]
fn a_full_target_ends_the_move_and_what_moved_goes_back() {
    let bench = Bench::new(usize::MAX);
    let fake = Fake::new(pages(3000, |_| (0, PageKind::Own)));
    fake.room.set(1000);
    let before = fake.nodes();
    let state = bench.move_all(&fake, u64::MAX, PAGE).unwrap();
    assert!(
        matches!(state.end, Some(StopReason::NoFreeMemory(TO))),
        "{:?}",
        state.end
    );
    assert_eq!(state.moved.moved_bytes, 1000 * PAGE);
    assert!(state.moved.not_moved.no_room_bytes > 0);
    assert_eq!(bench.undo(&fake).back_bytes, 1000 * PAGE);
    assert_eq!(fake.nodes(), before);
}

#[test]
fn a_huge_page_is_in_one_batch() {
    let bench = Bench::new(usize::MAX);
    // 300 small pages, then whole regions of 512.
    let fake = Fake::new(pages(512 * 4, |_| (0, PageKind::Own)));
    fake.pages.borrow_mut().retain(|&page, _| page >= 212);
    bench.move_all(&fake, u64::MAX, 2 << 20).unwrap();
    let bytes = record::load(&bench.state, NAME).unwrap();
    let mut first = Vec::new();
    record::read(&bytes, &mut |batch| {
        first.push(batch.pages[0].address / PAGE);
    })
    .unwrap();
    // The small pages and the huge one behind them, then one each.
    assert_eq!(first, [212, 1024, 1536]);
}

#[test]
fn a_process_that_ends_is_not_the_kernels_refusal() {
    let bench = Bench::new(usize::MAX);
    let fake = Fake::new(pages(3000, |_| (0, PageKind::Own)));
    fake.calls_left.set(2);
    let state = bench.move_all(&fake, u64::MAX, PAGE).unwrap();
    assert!(matches!(
        state.end,
        Some(StopReason::Process(ProcessChanged::Ended(_)))
    ));
    let bytes = record::load(&bench.state, NAME).unwrap();
    assert!(matches!(
        put_back(&fake, TO, &bytes),
        Err(StopReason::Process(ProcessChanged::Ended(_)))
    ));
}

#[test]
fn hidden_pages_are_not_gone_and_go_back_when_they_show() {
    let bench = Bench::new(usize::MAX);
    let fake = Fake::new(pages(1000, |_| (0, PageKind::Own)));
    let before = fake.nodes();
    bench.move_all(&fake, u64::MAX, PAGE).unwrap();
    for page in 100..300 {
        fake.pages.borrow_mut().insert(page, (TO, PageKind::Hidden));
    }
    let restored = bench.undo(&fake);
    assert_eq!(restored.not_moved.hidden_bytes, 200 * PAGE);
    assert_eq!(
        (restored.back_bytes, restored.changed_bytes),
        (800 * PAGE, 0)
    );
    let result = UndoResult::PagesBack { memory: restored };
    assert!(!result.is_settled(), "the record is still needed");
    // The process uses them while rollback waits.
    fake.hidden_looks.set(4);
    let restored = bench.undo(&fake);
    assert_eq!(restored.not_moved.bytes(), 0);
    assert_eq!(restored.back_bytes, 200 * PAGE);
    assert_eq!(fake.nodes(), before);
}

#[test]
fn a_page_that_hides_while_it_moves_stays_recorded() {
    let bench = Bench::new(usize::MAX);
    let fake = Fake::new(pages(10, |_| (0, PageKind::Hidden)));
    let before = fake.nodes();
    // Shown until the batch is recorded.
    fake.hidden_looks.set(0);
    let hide = HidesAfterMove(&fake);
    bench.move_all(&hide, u64::MAX, PAGE).unwrap();
    fake.hidden_looks.set(0);
    assert_eq!(bench.undo(&fake).back_bytes, 10 * PAGE);
    assert_eq!(fake.nodes(), before);
}

#[test]
fn a_node_that_refuses_pages_does_not_keep_the_others() {
    for (errno, what) in [(libc::EACCES, "cpuset"), (libc::ENODEV, "offline")] {
        let bench = Bench::new(usize::MAX);
        let fake = Fake::new(pages(2000, |number| (number as u32 % 2 * 2, PageKind::Own)));
        let before = fake.nodes();
        bench.move_all(&fake, u64::MAX, PAGE).unwrap();
        fake.refused.set(Some((NodeId(0), errno)));
        let restored = bench.undo(&fake);
        assert_eq!(restored.back_bytes, 1000 * PAGE);
        assert_eq!(restored.not_moved.bytes(), 1000 * PAGE);
        assert!(restored.described().contains(what), "{restored:?}");
        let abandoned = RestoredMemory {
            abandoned: true,
            ..restored
        };
        assert!(
            UndoResult::PagesBack { memory: abandoned }.is_settled(),
            "--force ends it"
        );
        fake.refused.set(None);
        assert_eq!(bench.undo(&fake).back_bytes, 1000 * PAGE);
        assert_eq!(fake.nodes(), before);
    }
}

#[test]
fn a_page_of_another_kind_at_the_address_is_not_moved() {
    let bench = Bench::new(usize::MAX);
    let kind = |number| {
        if number < 50 {
            PageKind::Own
        } else {
            PageKind::OfFile
        }
    };
    let fake = Fake::new(pages(100, |number| (0, kind(number))));
    bench.move_all(&fake, u64::MAX, PAGE).unwrap();
    // A library is mapped where memory was, and memory where a file was.
    fake.pages.borrow_mut().insert(7, (TO, PageKind::OfFile));
    fake.pages.borrow_mut().insert(70, (TO, PageKind::Own));
    let restored = bench.undo(&fake);
    assert_eq!(restored.back_bytes, 98 * PAGE);
    assert_eq!(restored.changed_bytes, 2 * PAGE);
    let nodes = fake.nodes();
    assert_eq!((nodes[&7], nodes[&70], nodes[&8]), (TO, TO, NodeId(0)));
}

#[test]
fn the_process_is_checked_between_the_record_and_the_move() {
    let bench = Bench::new(usize::MAX);
    let fake = Fake::new(pages(100, |_| (0, PageKind::Own)));
    let before = fake.nodes();
    let ends = EndsWhenRecorded(&fake);
    let state = bench.move_all(&ends, u64::MAX, PAGE).unwrap();
    assert!(matches!(state.end, Some(StopReason::Process(_))));
    assert_eq!(fake.nodes(), before, "pages of a later process moved");
}

#[test]
fn a_rate_delays_and_a_sink_is_called() {
    let (rate, began) = (RateLimit::new(Some(1_000_000)), Instant::now());
    let due = |began, bytes| rate.due(began, bytes);
    assert_eq!((due(began, 500_000) - due(began, 0)).as_millis(), 500);
    // After a pause it does not catch up.
    let resumed = began + Duration::from_secs(60);
    assert_eq!((due(resumed, 500_000) - resumed).as_millis(), 500);
    let unlimited = RateLimit::new(None);
    assert_eq!(unlimited.due(began, u64::MAX), unlimited.due(began, 0));
    let sink = ProgressSink(std::sync::Arc::new(|_| {}));
    assert_eq!(format!("{sink:?}"), "ProgressSink");
}

proptest! {
    /// Wherever the move ends, and however full the disk is: nothing moved that is not recorded, and all of it goes back.
    #[test]
    fn from_any_point_all_goes_back(
        kinds in prop::collection::vec((0u32..3, 0u8..8), 1..2500),
        disk in 0usize..20_000,
        cancel_after in 0u64..20,
    ) {
        let bench = Bench::new(disk);
        let fake = Fake::new(pages(kinds.len() as u64, |number| {
            let (node, kind) = kinds[number as usize];
            (node, match kind {
                0 => PageKind::Shared,
                1 => PageKind::Pinned,
                2 => PageKind::InHugePage,
                _ => PageKind::Own,
            })
        }));
        let before = fake.nodes();
        match bench.move_all(&fake, cancel_after, 2 << 20) {
            // Not even the record could be begun.
            Err(_) => prop_assert_eq!(fake.nodes(), before),
            Ok(_) => {
                bench.undo(&fake);
                prop_assert_eq!(fake.nodes(), before);
            }
        }
    }
}

const PAGE: u64 = 4096;
const TO: NodeId = NodeId(1);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PageKind {
    Own,
    Shared,
    /// Ends the call of move_pages that it is queued in.
    Pinned,
    /// It moves with the page before it, and its status says that it did not: as in a huge page.
    InHugePage,
    /// NUMA balancing watches it: only pagemap shows it.
    Hidden,
    OfFile,
}

/// The pages of a process by number.
#[derive(Default)]
struct Fake {
    pub(crate) pages: RefCell<BTreeMap<u64, (NodeId, PageKind)>>,
    /// Pages that the target still takes.
    pub(crate) room: Cell<u64>,
    /// Calls of move_pages before the process ends.
    calls_left: Cell<u64>,
    /// What the kernel answers for this node.
    pub(crate) refused: Cell<Option<(NodeId, i32)>>,
    /// Looks at pagemap before no page is hidden any more.
    hidden_looks: Cell<u64>,
}

impl Fake {
    pub(crate) fn new(pages: BTreeMap<u64, (NodeId, PageKind)>) -> Self {
        Self {
            pages: RefCell::new(pages),
            room: Cell::new(u64::MAX),
            calls_left: Cell::new(u64::MAX),
            hidden_looks: Cell::new(u64::MAX),
            refused: Cell::new(None),
        }
    }

    pub(crate) fn nodes(&self) -> BTreeMap<u64, NodeId> {
        let pages = self.pages.borrow();
        pages
            .iter()
            .map(|(&page, &(node, _))| (page, node))
            .collect()
    }

    pub(crate) fn on(&self, nodes: &NodeSet) -> Vec<Page> {
        let far = self
            .nodes()
            .into_iter()
            .filter(|(_, node)| nodes.contains(*node));
        far.map(|(page, node)| Page {
            address: page * PAGE,
            node,
        })
        .collect()
    }

    fn kind(&self, address: u64) -> Option<(NodeId, PageKind)> {
        let kind = self.pages.borrow().get(&(address / PAGE)).copied();
        kind.filter(|(_, kind)| *kind != PageKind::Hidden || self.hidden_looks.get() == 0)
    }

    /// Moves a queue of pages (migrate_pages); whether all of them moved.
    fn migrate(&self, queue: &mut Vec<u64>, to: NodeId) -> io::Result<bool> {
        let mut pages = self.pages.borrow_mut();
        let mut is_all = true;
        for address in queue.drain(..) {
            let Some((node, kind)) = pages.get_mut(&(address / PAGE)) else {
                continue;
            };
            if *kind == PageKind::Pinned {
                is_all = false;
                continue;
            }
            if to == TO {
                let room = self.room.get().checked_sub(1);
                self.room
                    .set(room.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?);
            }
            *node = to;
        }
        Ok(is_all)
    }
}

impl MovePages for Fake {
    fn where_are(&self, addresses: &[u64]) -> io::Result<Vec<libc::c_int>> {
        let node = |address: &u64| match self.kind(*address) {
            Some((node, _)) => node.0.cast_signed(),
            None => -libc::ENOENT,
        };
        Ok(addresses.iter().map(node).collect())
    }

    /// As do_pages_move in mm/migrate.c: a page that stays in the queue ends the call, and the queue has no statuses.
    fn move_once(
        &self,
        addresses: &[u64],
        to: NodeId,
        statuses: &mut [libc::c_int],
    ) -> io::Result<()> {
        self.calls_left.set(self.calls_left.get() - 1);
        if let Some((_, errno)) = self.refused.get().filter(|(node, _)| *node == to) {
            return Err(io::Error::from_raw_os_error(errno));
        }
        let (mut queue, mut first) = (Vec::new(), 0);
        for (index, &address) in addresses.iter().enumerate() {
            statuses[index] = match self.kind(address) {
                None => -libc::ENOENT,
                Some((node, _)) if node == to => to.0.cast_signed(),
                Some((_, PageKind::Shared)) => -libc::EACCES,
                Some((_, PageKind::InHugePage)) => {
                    queue.push(address);
                    -libc::EBUSY
                }
                Some(_) => {
                    queue.push(address);
                    continue;
                }
            };
            if !self.migrate(&mut queue, to)? {
                return Ok(());
            }
            statuses[first..index].fill(to.0.cast_signed());
            first = index + 1;
        }
        if self.migrate(&mut queue, to)? {
            statuses[first..].fill(to.0.cast_signed());
        }
        Ok(())
    }
}

impl Pages for Fake {
    fn entries(&self, addresses: &[u64]) -> io::Result<Vec<PageEntry>> {
        let left = self.hidden_looks.get();
        self.hidden_looks.set(left.saturating_sub(1));
        let pages = self.pages.borrow();
        let entry = |address: &u64| match pages.get(&(address / PAGE)) {
            Some((_, PageKind::OfFile)) => PageEntry(PageEntry::PRESENT.0 | PageEntry::FILE.0),
            Some(_) => PageEntry::PRESENT,
            None => PageEntry::default(),
        };
        Ok(addresses.iter().map(entry).collect())
    }

    fn check(&self) -> Result<(), ProcessChanged> {
        match self.calls_left.get() {
            0 => Err(ProcessChanged::Ended(4711)),
            _ => Ok(()),
        }
    }
}

/// A kernel that is a [`Fake`] but for something.
trait FakePages: Pages {
    fn fake(&self) -> &Fake;
}

impl FakePages for Fake {
    fn fake(&self) -> &Fake {
        self
    }
}

/// NUMA balancing hides the pages as soon as they were moved.
struct HidesAfterMove<'a>(pub(crate) &'a Fake);

/// The process ends while pagemap is read, just before the batch is recorded.
struct EndsWhenRecorded<'a>(pub(crate) &'a Fake);

macro_rules! is_fake {
    ($name:ident, $after_move:expr, $after_entries:expr) => {
        impl MovePages for $name<'_> {
            fn where_are(&self, addresses: &[u64]) -> io::Result<Vec<libc::c_int>> {
                self.0.where_are(addresses)
            }

            fn move_once(
                &self,
                addresses: &[u64],
                to: NodeId,
                statuses: &mut [libc::c_int],
            ) -> io::Result<()> {
                self.0.move_once(addresses, to, statuses)?;
                // Of the queue that the kernel moved last, the status is unknown.
                $after_move(self.0, statuses);
                Ok(())
            }
        }

        impl Pages for $name<'_> {
            fn entries(&self, addresses: &[u64]) -> io::Result<Vec<PageEntry>> {
                let entries = self.0.entries(addresses);
                $after_entries(self.0);
                entries
            }

            fn check(&self) -> Result<(), ProcessChanged> {
                self.0.check()
            }
        }

        impl FakePages for $name<'_> {
            fn fake(&self) -> &Fake {
                self.0
            }
        }
    };
}

is_fake!(
    HidesAfterMove,
    |fake: &Fake, statuses: &mut [libc::c_int]| {
        fake.hidden_looks.set(u64::MAX);
        statuses.fill(-libc::EBUSY);
    },
    |_| {}
);
is_fake!(EndsWhenRecorded, |_, _| {}, |fake: &Fake| fake
    .calls_left
    .set(0));

//! Pages that are on nodes, shared, pinned, hidden or gone, and a kernel that answers as the real one.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;

use nearfar_machine::{NodeId, NodeSet};
use nearfar_proc::move_pages::MovePages;
use nearfar_proc::pagemap::PageEntry;
use nearfar_proc::resident::Page;

use super::super::super::pages::{Pages, ProcessChanged};

pub(super) const PAGE: u64 = 4096;
pub(super) const TO: NodeId = NodeId(1);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PageKind {
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
pub(super) struct Fake {
    pub(super) pages: RefCell<BTreeMap<u64, (NodeId, PageKind)>>,
    /// Pages that the target still takes.
    pub(super) room: Cell<u64>,
    /// Calls of move_pages before the process ends.
    pub(super) calls_left: Cell<u64>,
    /// What the kernel answers for this node.
    pub(super) refused: Cell<Option<(NodeId, i32)>>,
    /// Looks at pagemap before no page is hidden any more.
    pub(super) hidden_looks: Cell<u64>,
}

impl Fake {
    pub(super) fn new(pages: BTreeMap<u64, (NodeId, PageKind)>) -> Self {
        Self {
            pages: RefCell::new(pages),
            room: Cell::new(u64::MAX),
            calls_left: Cell::new(u64::MAX),
            hidden_looks: Cell::new(u64::MAX),
            refused: Cell::new(None),
        }
    }

    pub(super) fn nodes(&self) -> BTreeMap<u64, NodeId> {
        let pages = self.pages.borrow();
        pages
            .iter()
            .map(|(&page, &(node, _))| (page, node))
            .collect()
    }

    pub(super) fn on(&self, nodes: &NodeSet) -> Vec<Page> {
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
pub(super) trait FakePages: Pages {
    fn fake(&self) -> &Fake;
}

impl FakePages for Fake {
    fn fake(&self) -> &Fake {
        self
    }
}

/// NUMA balancing hides the pages as soon as they were moved.
pub(super) struct HidesAfterMove<'a>(pub(super) &'a Fake);

/// The process ends while pagemap is read, just before the batch is recorded.
pub(super) struct EndsWhenRecorded<'a>(pub(super) &'a Fake);

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

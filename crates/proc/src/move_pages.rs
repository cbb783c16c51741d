//! move_pages(2): where pages of a process are, and moving them.
//!
//! The caller needs ptrace read access to the process (ptrace(2), `PTRACE_MODE_READ_REALCREDS`).
//!
//! [`page_cache_of`] says which nodes the pages of a file are on that the page cache has:
//!
//! ```text
//! mincore(2)             which pages are in memory; reads none
//! process_vm_readv(2)    a byte of each of these, of this process: a minor fault maps the page here
//! move_pages(2)          without nodes: the node of each page that is mapped
//! ```
//!
//! move_pages(2) knows only pages that the process has mapped, therefore the second step; a load would end the process with
//! SIGBUS where the file was cut meanwhile. A page that the kernel drops between the first two is read again.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nearfar_machine::{MAX_NUMBER, NodeBytes, NodeId, PageCache};

/// Move pages that only this process maps (include/uapi/linux/mempolicy.h).
const MPOL_MF_MOVE: libc::c_int = 1 << 1;
/// Also move pages that other processes map; needs CAP_SYS_NICE.
const MPOL_MF_MOVE_ALL: libc::c_int = 1 << 2;
/// What is in a status that the kernel has not written: no node, and no error that it gives.
const NOT_WRITTEN: libc::c_int = libc::c_int::MIN;
/// Calls for one list of pages. Each that ends early costs an interrupt to every CPU (lru_cache_disable in mm/swap.c); lists
/// that need more than a few have pinned and shared pages in turn.
const MAX_CALLS: usize = 64;

/// The node of each page, or the negative number of an error: `-ENOENT` where no page is in memory, `-EFAULT` where there is no
/// mapping or the page of zeros.
///
/// # Errors
/// `ESRCH` when the process is gone, `EPERM` without access to it, `EINVAL` for a kernel thread (no memory).
pub fn where_are(pid: i32, addresses: &[u64]) -> io::Result<Vec<libc::c_int>> {
    let mut statuses = vec![NOT_WRITTEN; addresses.len()];
    call(pid, addresses, None, MPOL_MF_MOVE, &mut statuses)?;
    Ok(statuses)
}

/// The node of a status; `None` for an error.
pub fn node_of(status: libc::c_int) -> Option<NodeId> {
    let node = u32::try_from(status).ok()?;
    (node <= MAX_NUMBER).then_some(NodeId(node))
}

/// The calls of move_pages(2) for one process. A trait, so that tests can be the kernel.
pub trait MovePages {
    /// As [`where_are`].
    ///
    /// # Errors
    /// As [`where_are`].
    fn where_are(&self, addresses: &[u64]) -> io::Result<Vec<libc::c_int>>;

    /// One call that moves pages. The statuses of pages that the kernel does not come to stay as they are.
    ///
    /// # Errors
    /// As [`where_are`]; `EACCES` where a cpuset forbids the node, `ENODEV` when it has no memory, `ENOMEM` when it is full,
    /// `EPERM` without CAP_SYS_NICE where pages of other processes are to move.
    fn move_once(
        &self,
        addresses: &[u64],
        node: NodeId,
        statuses: &mut [libc::c_int],
    ) -> io::Result<()>;
}

/// The pages of a process of this system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PagesOf {
    pub pid: i32,
    /// Also move pages that other processes map; needs CAP_SYS_NICE.
    pub shared: bool,
}

impl MovePages for PagesOf {
    fn where_are(&self, addresses: &[u64]) -> io::Result<Vec<libc::c_int>> {
        where_are(self.pid, addresses)
    }

    fn move_once(
        &self,
        addresses: &[u64],
        node: NodeId,
        statuses: &mut [libc::c_int],
    ) -> io::Result<()> {
        let node = libc::c_int::try_from(node.0).map_err(io::Error::other)?;
        let flags = match self.shared {
            true => MPOL_MF_MOVE_ALL,
            false => MPOL_MF_MOVE,
        };
        call(self.pid, addresses, Some(node), flags, statuses)
    }
}

/// What became of pages that were to be moved.
#[derive(Debug)]
pub struct Moved {
    /// Of each page, in the order of the addresses.
    pub pages: Vec<Result<(), NotMoved>>,
    /// Why the kernel refused pages as a whole, where it did; that a node is full is said of each page instead.
    pub refused: Option<io::Error>,
}

/// Moves pages to a node.
///
/// The kernel queues pages until one needs no move or cannot be queued, then moves the queue. If a page of the queue stays
/// (pinned), the call ends (do_pages_move in mm/migrate.c): no page of the queue has a status, though others of it moved, and
/// the pages behind it were not tried. So the rest is tried again, and where a page is decides, not its status: a huge page
/// that moved has `-EBUSY` at all addresses but the first.
///
/// # Errors
/// When the kernel does not answer where pages are afterwards: the process is gone, or another user's.
pub fn move_to<K: MovePages + ?Sized>(
    kernel: &K,
    addresses: &[u64],
    node: NodeId,
) -> io::Result<Moved> {
    let mut statuses = vec![NOT_WRITTEN; addresses.len()];
    let (mut tried, mut calls) = (0, 0);
    let (mut rest, mut refused) = (NotMoved::NotTried, None);
    while tried < addresses.len() && calls < MAX_CALLS {
        calls += 1;
        match kernel.move_once(&addresses[tried..], node, &mut statuses[tried..]) {
            Ok(()) => tried += tried_by_call(&mut statuses[tried..]),
            Err(error) => {
                rest = NotMoved::of_refusal(&error);
                refused = (rest != NotMoved::NoMemory).then_some(error);
                break;
            }
        }
    }
    let is_elsewhere = |index: &usize| node_of(statuses[*index]) != Some(node);
    let asked: Vec<usize> = (0..addresses.len()).filter(is_elsewhere).collect();
    let again: Vec<u64> = asked.iter().map(|&index| addresses[index]).collect();
    let mut pages = vec![Ok(()); addresses.len()];
    for (index, now) in asked.into_iter().zip(kernel.where_are(&again)?) {
        pages[index] = match (node_of(now), statuses[index]) {
            (Some(now), _) if now == node => Ok(()),
            (None, _) => Err(NotMoved::Gone),
            (Some(_), NOT_WRITTEN) => Err(rest),
            (Some(_), status) => Err(NotMoved::of(status)),
        };
    }
    Ok(Moved { pages, refused })
}

/// How many pages a call came to. Those without a status before one that has it were queued when the call ended: of them, what
/// did not move is in use.
fn tried_by_call(statuses: &mut [libc::c_int]) -> usize {
    let is_written = |status: &libc::c_int| *status != NOT_WRITTEN;
    let Some(first) = statuses.iter().position(|status| !is_written(status)) else {
        return statuses.len();
    };
    let queue = statuses[first..].iter().position(is_written);
    let end = queue.map_or(statuses.len(), |queue| first + queue);
    statuses[first..end].fill(-libc::EBUSY);
    (end + 1).min(statuses.len())
}

/// Why a page is not on the node that it was to go to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotMoved {
    /// Other processes map it as well.
    Shared,
    /// In use by the kernel at that moment, or pinned.
    Busy,
    /// The node has no free memory.
    NoMemory,
    /// No page is there any more.
    Gone,
    /// The cpuset of the process or of the caller forbids the node.
    Forbidden,
    /// The node is offline or has no memory.
    NoNode,
    /// The kernel ended `MAX_CALLS` calls before it came to this page.
    NotTried,
    /// Anything else: it cannot be moved.
    Other,
}

impl NotMoved {
    /// Of the status of a page that is not on its node afterwards (add_folio_for_migration in mm/migrate.c).
    fn of(status: libc::c_int) -> Self {
        match status.saturating_neg() {
            libc::EBUSY | libc::EAGAIN => Self::Busy,
            libc::EACCES => Self::Shared,
            libc::ENOMEM => Self::NoMemory,
            libc::ENOENT | libc::EFAULT => Self::Gone,
            _ => Self::Other,
        }
    }

    /// Of the error of a call, where numbers mean other things than in a status.
    fn of_refusal(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENOMEM) => Self::NoMemory,
            Some(libc::EACCES) => Self::Forbidden,
            Some(libc::ENODEV) => Self::NoNode,
            _ => Self::Other,
        }
    }
}

/// Whether pages that other processes map may be moved of a process. Moves nothing.
pub fn can_move_all(pid: i32) -> bool {
    // The kernel checks the flag before it looks at pages (kernel_move_pages() in mm/migrate.c).
    call(pid, &[0], None, MPOL_MF_MOVE_ALL, &mut [NOT_WRITTEN]).is_ok()
}

fn call(
    pid: i32,
    addresses: &[u64],
    node: Option<libc::c_int>,
    flags: libc::c_int,
    statuses: &mut [libc::c_int],
) -> io::Result<()> {
    assert_eq!(
        addresses.len(),
        statuses.len(),
        "the kernel writes a status for each address"
    );
    if addresses.is_empty() {
        return Ok(());
    }
    let nodes = node.map(|node| vec![node; addresses.len()]);
    let nodes = nodes.as_ref().map_or(std::ptr::null(), Vec::as_ptr);
    // SAFETY: the kernel reads as many addresses and nodes, where there are nodes, as the argument says, and writes as many statuses;
    // the addresses are those of another process or of this one, and are only looked up.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            pid,
            addresses.len(),
            addresses.as_ptr(),
            nodes,
            statuses.as_mut_ptr(),
            flags,
        )
    };
    // A positive answer is the number of pages that were not moved, those included that were not tried.
    match result {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Of a file so much is mapped at a time.
const WINDOW_BYTES: u64 = 256 << 20;
/// Most pages of one process_vm_readv(2) (`UIO_MAXIOV`).
const MAX_PAGES_OF_A_CALL: usize = 1024;

/// The cached pages of a file by node.
///
/// # Errors
/// When it cannot be opened or is not a regular file, and `EPERM` for a caller that neither owns nor may write it: since Linux
/// 5.2 mincore(2) calls every page of it cached (`can_do_mincore()` in mm/mincore.c).
pub fn page_cache_of(path: &Path) -> io::Result<PageCache> {
    let file = File::open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        ));
    }
    let owns = meta.uid() == rustix::process::geteuid().as_raw();
    let may_write = || rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok();
    if !owns && !may_write() {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    let page = rustix::param::page_size();
    let mut cache = PageCache {
        file_bytes: meta.len(),
        ..PageCache::default()
    };
    for start in (0..meta.len()).step_by(WINDOW_BYTES as usize) {
        let bytes = WINDOW_BYTES.min(meta.len() - start);
        Window::map(&file, start, bytes)?.count(page, &mut cache)?;
    }
    cache.nodes.sort_by_key(|on| on.node);
    Ok(cache)
}

/// A part of the file in the address space of this process.
struct Window {
    address: *mut libc::c_void,
    bytes: usize,
}

impl Window {
    fn map(file: &File, start: u64, bytes: u64) -> io::Result<Self> {
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        let start = libc::off_t::try_from(start).map_err(io::Error::other)?;
        // SAFETY: a new mapping at an address that the kernel chooses; nothing is read through it but by system calls.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                start,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let window = Self { address, bytes };
        // SAFETY: the range is that of the mapping. A page that was dropped is read alone, without those around it.
        let _ = unsafe { libc::madvise(address, bytes, libc::MADV_RANDOM) };
        Ok(window)
    }

    fn count(&self, page: usize, cache: &mut PageCache) -> io::Result<()> {
        let mut in_memory = vec![0u8; self.bytes.div_ceil(page)];
        // SAFETY: the range is that of the mapping, and the vector has a byte for each of its pages.
        let result = unsafe { libc::mincore(self.address, self.bytes, in_memory.as_mut_ptr()) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        let cached = in_memory
            .iter()
            .enumerate()
            .filter(|(_, flags)| **flags & 1 == 1);
        let addresses: Vec<u64> = cached
            .map(|(index, _)| self.address as u64 + (index * page) as u64)
            .collect();
        for some in addresses.chunks(MAX_PAGES_OF_A_CALL) {
            map_pages(some);
            for status in where_are(0, some)? {
                let bytes = page as u64;
                match node_of(status) {
                    None => cache.unknown_bytes += bytes,
                    Some(node) => match cache.nodes.iter_mut().find(|on| on.node == node) {
                        Some(on) => on.bytes += bytes,
                        None => cache.nodes.push(NodeBytes { node, bytes }),
                    },
                }
            }
        }
        Ok(())
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        let _ = unsafe { libc::munmap(self.address, self.bytes) };
    }
}

/// Lets the kernel map pages at these addresses of this process. Those that it cannot have no node afterwards.
fn map_pages(addresses: &[u64]) {
    let mut bytes = vec![0u8; addresses.len()];
    let mut done = 0;
    while done < addresses.len() {
        let remote: Vec<libc::iovec> = addresses[done..]
            .iter()
            .map(|&address| libc::iovec {
                iov_base: address as *mut libc::c_void,
                iov_len: 1,
            })
            .collect();
        let local = libc::iovec {
            iov_base: bytes[done..].as_mut_ptr().cast(),
            iov_len: remote.len(),
        };
        // SAFETY: the kernel writes at most as many bytes as the vector has left, and checks the addresses it reads.
        let read = unsafe {
            libc::process_vm_readv(
                libc::getpid(),
                &local,
                1,
                remote.as_ptr(),
                remote.len() as libc::c_ulong,
                0,
            )
        };
        // Behind a page that cannot be mapped the rest is tried again.
        done += match usize::try_from(read) {
            Ok(read) => read + usize::from(done + read < addresses.len()),
            Err(_) => 1,
        };
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::io::{Read as _, Seek as _, SeekFrom, Write as _};

    use super::*;

    /// Pages that are on node 0, at these addresses; a call ends with the queue that one of them is in.
    struct Kernel {
        pinned: Vec<u64>,
        shared: Vec<u64>,
        moved: RefCell<Vec<u64>>,
        calls: Cell<usize>,
    }

    impl Kernel {
        fn new(pinned: Vec<u64>, shared: Vec<u64>) -> Self {
            let (moved, calls) = (RefCell::default(), Cell::new(0));
            Self {
                pinned,
                shared,
                moved,
                calls,
            }
        }
    }

    impl MovePages for Kernel {
        fn where_are(&self, addresses: &[u64]) -> io::Result<Vec<libc::c_int>> {
            let moved = self.moved.borrow();
            let node = |address| libc::c_int::from(moved.contains(address));
            Ok(addresses.iter().map(node).collect())
        }

        fn move_once(
            &self,
            addresses: &[u64],
            _: NodeId,
            statuses: &mut [libc::c_int],
        ) -> io::Result<()> {
            self.calls.set(self.calls.get() + 1);
            let mut first = 0;
            for end in 0..=addresses.len() {
                let is_last = end == addresses.len();
                if !is_last && !self.shared.contains(&addresses[end]) {
                    continue;
                }
                if !is_last {
                    statuses[end] = -libc::EACCES;
                }
                let (stay, go): (Vec<u64>, Vec<u64>) = addresses[first..end]
                    .iter()
                    .partition(|address| self.pinned.contains(address));
                self.moved.borrow_mut().extend(go);
                if !stay.is_empty() {
                    return Ok(());
                }
                statuses[first..end].fill(1);
                first = end + 1;
            }
            Ok(())
        }
    }

    #[test]
    fn pages_behind_a_pinned_one_are_tried_too() {
        let kernel = Kernel::new(vec![2, 5], vec![3, 4, 8]);
        let addresses: Vec<u64> = (0..10).collect();
        let moved = move_to(&kernel, &addresses, NodeId(1)).unwrap();
        assert!(moved.refused.is_none());
        for (address, result) in addresses.into_iter().zip(moved.pages) {
            let expected = match address {
                2 | 5 => Err(NotMoved::Busy),
                3 | 4 | 8 => Err(NotMoved::Shared),
                _ => Ok(()),
            };
            assert_eq!(result, expected, "{address}");
        }
    }

    #[test]
    fn calls_are_bounded_and_what_no_call_came_to_is_said_so() {
        let addresses: Vec<u64> = (0..1000).collect();
        let (pinned, shared) = addresses.iter().partition(|&address| address % 2 == 0);
        let kernel = Kernel::new(pinned, shared);
        let moved = move_to(&kernel, &addresses, NodeId(1)).unwrap();
        assert_eq!(kernel.calls.get(), MAX_CALLS);
        let (tried, rest) = moved.pages.split_at(2 * MAX_CALLS);
        assert!(!tried.contains(&Err(NotMoved::NotTried)));
        assert!(rest.iter().all(|page| *page == Err(NotMoved::NotTried)));
    }

    #[test]
    fn a_number_means_another_thing_in_a_status_than_as_the_answer_of_a_call() {
        assert_eq!(NotMoved::of(-libc::EACCES), NotMoved::Shared);
        assert_eq!(NotMoved::of(-libc::EINVAL), NotMoved::Other);
        assert_eq!(NotMoved::of(1), NotMoved::Other);
        let refusal = |errno| NotMoved::of_refusal(&io::Error::from_raw_os_error(errno));
        assert_eq!(refusal(libc::EACCES), NotMoved::Forbidden);
        assert_eq!(refusal(libc::ENODEV), NotMoved::NoNode);
    }

    #[test]
    fn a_page_of_this_process_is_on_a_node_and_address_0_is_not() {
        let touched = Box::new(1_u8);
        let pid = std::process::id().cast_signed();
        match where_are(pid, &[&raw const *touched as u64, 0]) {
            Ok(nodes) => assert!(nodes[0] >= 0 && nodes[1] < 0, "{nodes:?}"),
            Err(error) => println!("skipped: kernel: {error}"),
        }
    }

    #[test]
    fn what_was_read_is_cached_on_some_node_and_looking_reads_nothing() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let page = rustix::param::page_size() as u64;
        file.as_file().set_len(64 << 20).unwrap();
        let untouched = page_cache_of(file.path()).unwrap();
        assert_eq!(
            (untouched.file_bytes, untouched.cached_bytes()),
            (64 << 20, 0)
        );
        file.seek(SeekFrom::Start(16 * page)).unwrap();
        file.write_all(&vec![1; 8 * page as usize]).unwrap();
        // What was written stays in memory at least until it is on the disk.
        let mut byte = [0];
        file.seek(SeekFrom::Start(16 * page)).unwrap();
        file.read_exact(&mut byte).unwrap();
        for _ in 0..2 {
            let written = page_cache_of(file.path()).unwrap();
            let known = written.cached_bytes() + written.unknown_bytes;
            assert!((8 * page..=1 << 20).contains(&known), "{written:?}");
            assert!(!written.nodes.is_empty(), "{written:?}");
        }
    }

    #[test]
    fn what_has_no_pages_is_refused_and_an_empty_file_has_none() {
        let directory = tempfile::tempdir().unwrap();
        let refused = page_cache_of(directory.path()).unwrap_err();
        assert_eq!(refused.to_string(), "not a regular file");
        let empty = directory.path().join("empty");
        std::fs::write(&empty, "").unwrap();
        assert_eq!(page_cache_of(&empty).unwrap(), PageCache::default());
        assert!(page_cache_of(&directory.path().join("none")).is_err());
    }
}

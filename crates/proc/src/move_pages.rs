//! move_pages(2): where pages of a process are, and moving them.
//!
//! The caller needs ptrace read access to the process (ptrace(2), `PTRACE_MODE_READ_REALCREDS`).

use std::io;

/// Move pages that only this process maps (include/uapi/linux/mempolicy.h).
const MPOL_MF_MOVE: libc::c_int = 1 << 1;
/// Also move pages that other processes map; needs CAP_SYS_NICE.
const MPOL_MF_MOVE_ALL: libc::c_int = 1 << 2;
/// What is in a status that the kernel has not written: no node, and no error that it gives.
const NOT_TRIED: libc::c_int = libc::c_int::MIN;

/// The node of each page, or the negative number of an error: `-ENOENT` where no page is in memory, `-EFAULT` where there is no
/// mapping or the page of zeros.
///
/// # Errors
/// `ESRCH` when the process is gone, `EPERM` without access to it, `EINVAL` for a kernel thread (no memory).
pub fn where_are(pid: i32, addresses: &[u64]) -> io::Result<Vec<libc::c_int>> {
    call(pid, addresses, None, MPOL_MF_MOVE)
}

/// Moves pages that no other process maps to a node. The statuses are as those of [`where_are`], with more errors, and are not
/// always true: huge pages that moved have `-EBUSY`, pinned ones have none. [`where_are`] afterwards is.
///
/// # Errors
/// As [`where_are`]; `EACCES` where a cpuset forbids the node, `ENODEV` when it has no memory, `ENOMEM` when it is full.
pub fn move_own(pid: i32, addresses: &[u64], node: libc::c_int) -> io::Result<Vec<libc::c_int>> {
    call(pid, addresses, Some(node), MPOL_MF_MOVE)
}

/// As [`move_own`], and also moves pages that other processes map.
///
/// # Errors
/// As [`move_own`]; `EPERM` without CAP_SYS_NICE.
pub fn move_all(pid: i32, addresses: &[u64], node: libc::c_int) -> io::Result<Vec<libc::c_int>> {
    call(pid, addresses, Some(node), MPOL_MF_MOVE_ALL)
}

/// Why a page is not on the node that it was to go to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotMoved {
    /// Other processes map it as well.
    Shared,
    /// In use by the kernel at that moment, or pinned: such a page has no status.
    Busy,
    /// The node has no room.
    NoMemory,
    /// No page is there any more.
    Gone,
    /// Anything else: it cannot be moved.
    Other,
}

impl NotMoved {
    /// Of the status of a page that is not on its node afterwards (add_folio_for_migration in mm/migrate.c).
    pub fn of(status: libc::c_int) -> Self {
        // Not as `-status`: there is no number for that of a status which was not written.
        match status.checked_neg() {
            None | Some(libc::EBUSY | libc::EAGAIN) => Self::Busy,
            Some(libc::EACCES) => Self::Shared,
            Some(libc::ENOMEM) => Self::NoMemory,
            Some(libc::ENOENT | libc::EFAULT) => Self::Gone,
            Some(_) => Self::Other,
        }
    }
}

/// Whether [`move_all`] is permitted for a process. Moves nothing.
pub fn can_move_all(pid: i32) -> bool {
    // The kernel checks the flag before it looks at pages (kernel_move_pages() in mm/migrate.c).
    call(pid, &[0], None, MPOL_MF_MOVE_ALL).is_ok()
}

fn call(
    pid: i32,
    addresses: &[u64],
    node: Option<libc::c_int>,
    flags: libc::c_int,
) -> io::Result<Vec<libc::c_int>> {
    let mut statuses = vec![NOT_TRIED; addresses.len()];
    if addresses.is_empty() {
        return Ok(statuses);
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
    // A positive answer is the number of pages that were not moved; each has its status.
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(statuses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_that_was_not_written_is_of_a_busy_page() {
        assert_eq!(NotMoved::of(NOT_TRIED), NotMoved::Busy);
        assert_eq!(NotMoved::of(-libc::EACCES), NotMoved::Shared);
        assert_eq!(NotMoved::of(-libc::EINVAL), NotMoved::Other);
        assert_eq!(NotMoved::of(1), NotMoved::Other);
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
}

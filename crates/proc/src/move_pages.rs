//! move_pages(2): where pages of a process are, and moving them.
//!
//! The caller needs ptrace read access to the process (ptrace(2), `PTRACE_MODE_READ_REALCREDS`).

use std::io;

/// Move pages that only this process maps (include/uapi/linux/mempolicy.h).
const MPOL_MF_MOVE: libc::c_int = 1 << 1;
/// What is in a status that the kernel has not written: no node, and no error that it gives.
const NOT_TRIED: libc::c_int = libc::c_int::MIN;

/// The node of each page, or the negative number of an error: `-ENOENT` where no page is in memory, `-EFAULT` where there is no
/// mapping or the page of zeros.
///
/// # Errors
/// `ESRCH` when the process is gone, `EPERM` without access to it, `EINVAL` for a kernel thread (no memory).
pub fn where_are(pid: i32, addresses: &[u64]) -> io::Result<Vec<libc::c_int>> {
    call(pid, addresses, None)
}

/// Moves pages that no other process maps to a node. The statuses are as those of [`where_are`], with more errors, and are not
/// always true: huge pages that moved have `-EBUSY`, pinned ones have none. [`where_are`] afterwards is.
///
/// # Errors
/// As [`where_are`]; `EACCES` where a cpuset forbids the node, `ENODEV` when it has no memory, `ENOMEM` when it is full.
pub fn move_own(pid: i32, addresses: &[u64], node: libc::c_int) -> io::Result<Vec<libc::c_int>> {
    call(pid, addresses, Some(node))
}

fn call(pid: i32, addresses: &[u64], node: Option<libc::c_int>) -> io::Result<Vec<libc::c_int>> {
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
            MPOL_MF_MOVE,
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
    fn a_page_of_this_process_is_on_a_node_and_address_0_is_not() {
        let touched = Box::new(1_u8);
        let pid = std::process::id().cast_signed();
        match where_are(pid, &[&raw const *touched as u64, 0]) {
            Ok(nodes) => assert!(nodes[0] >= 0 && nodes[1] < 0, "{nodes:?}"),
            Err(error) => println!("skipped: kernel: {error}"),
        }
    }
}

//! Which nodes the pages of a file are on that the page cache has.
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

use nearfar_machine::{NodeBytes, PageCache};

use crate::move_pages;

/// Of a file so much is mapped at a time.
const WINDOW_BYTES: u64 = 256 << 20;
/// Most pages of one process_vm_readv(2) (`UIO_MAXIOV`).
const MAX_PAGES_OF_A_CALL: usize = 1024;

/// The cached pages of a file by node.
///
/// # Errors
/// When it cannot be opened or is not a regular file, and `EPERM` for a caller that neither owns nor may write it: since Linux
/// 5.2 mincore(2) calls every page of it cached (`can_do_mincore()` in mm/mincore.c).
pub fn of_file(path: &Path) -> io::Result<PageCache> {
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
            for status in move_pages::where_are(0, some)? {
                let bytes = page as u64;
                match move_pages::node_of(status) {
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
    use std::io::{Read as _, Seek as _, SeekFrom, Write as _};

    use super::*;

    #[test]
    fn what_was_read_is_cached_on_some_node_and_looking_reads_nothing() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let page = rustix::param::page_size() as u64;
        file.as_file().set_len(64 << 20).unwrap();
        let untouched = of_file(file.path()).unwrap();
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
            let written = of_file(file.path()).unwrap();
            let known = written.cached_bytes() + written.unknown_bytes;
            assert!((8 * page..=1 << 20).contains(&known), "{written:?}");
            assert!(!written.nodes.is_empty(), "{written:?}");
        }
    }

    #[test]
    fn what_has_no_pages_is_refused_and_an_empty_file_has_none() {
        let directory = tempfile::tempdir().unwrap();
        let refused = of_file(directory.path()).unwrap_err();
        assert_eq!(refused.to_string(), "not a regular file");
        let empty = directory.path().join("empty");
        std::fs::write(&empty, "").unwrap();
        assert_eq!(of_file(&empty).unwrap(), PageCache::default());
        assert!(of_file(&directory.path().join("none")).is_err());
    }
}

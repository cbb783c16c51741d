//! `/proc/PID/pagemap`: an entry for each page of a process (Documentation/admin-guide/mm/pagemap.rst).
//!
//! Unlike move_pages(2) before Linux 6.6, it shows pages that NUMA balancing watches.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use crate::tasks;

const ENTRY_BYTES: u64 = 8;

/// What pagemap says of one page of the system's size.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PageEntry(pub u64);

impl PageEntry {
    /// In memory.
    pub const PRESENT: Self = Self(1 << 63);
    /// Of a file or shared memory. Before Linux 6.11 not set for a huge page.
    pub const FILE: Self = Self(1 << 61);

    pub fn is_present(self) -> bool {
        self.0 & Self::PRESENT.0 != 0
    }

    pub fn is_of_file(self) -> bool {
        self.0 & Self::FILE.0 != 0
    }
}

/// The open file: it stays that of the program that the process ran when it was opened.
#[derive(Debug)]
pub struct Pagemap {
    file: File,
    page_bytes: u64,
}

impl Pagemap {
    /// Opens the file of a process.
    ///
    /// # Errors
    /// When there is no such process, or it is another user's: only its owner may open it, whatever else the caller may
    /// do (CAP_DAC_READ_SEARCH).
    pub fn open(pid: i32) -> io::Result<Self> {
        let file = tasks::open(pid, "pagemap")?;
        let page_bytes = rustix::param::page_size() as u64;
        Ok(Self { file, page_bytes })
    }

    /// Entries from an address on; less than `count` where the addresses of the process end.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn range(&self, address: u64, count: usize) -> io::Result<Vec<PageEntry>> {
        let mut bytes = vec![0; count * ENTRY_BYTES as usize];
        let at = address / self.page_bytes * ENTRY_BYTES;
        let read = self.file.read_at(&mut bytes, at)?;
        let (entries, _) = bytes[..read].as_chunks();
        let entries = entries.iter().map(|entry| u64::from_ne_bytes(*entry));
        Ok(entries.map(PageEntry).collect())
    }

    /// The entry of each address. One that the process cannot have has no bit set.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn of(&self, addresses: &[u64]) -> io::Result<Vec<PageEntry>> {
        let mut found = Vec::with_capacity(addresses.len());
        let is_next = |one: &u64, next: &u64| next.wrapping_sub(*one) == self.page_bytes;
        for run in addresses.chunk_by(is_next) {
            let mut entries = self.range(run[0], run.len())?;
            entries.resize(run.len(), PageEntry::default());
            found.append(&mut entries);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_touched_page_is_present_and_of_no_file_and_address_0_is_not() {
        let page = rustix::param::page_size() as u64;
        let touched = vec![1_u8; 4 * page as usize];
        let inside = (touched.as_ptr() as u64).next_multiple_of(page);
        let code = PageEntry::is_present as *const () as u64 / page * page;
        let Ok(pagemap) = Pagemap::open(std::process::id().cast_signed()) else {
            return println!("skipped: kernel: no /proc/PID/pagemap");
        };
        let found = pagemap.of(&[0, inside, inside + page, code]).unwrap();
        let present: Vec<bool> = found.iter().map(|entry| entry.is_present()).collect();
        assert_eq!(present, [false, true, true, true]);
        let of_file: Vec<bool> = found.iter().map(|entry| entry.is_of_file()).collect();
        assert_eq!(of_file, [false, false, false, true]);
        std::hint::black_box(touched);
    }
}

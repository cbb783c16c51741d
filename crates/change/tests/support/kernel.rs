//! A kernel over a tree that refuses, normalises what is written, answers late, and loses its disk.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nearfar_change::system::{Rooted, System};
use nearfar_machine::CpuSet;

/// See the fields.
pub struct Kernel {
    below: Rooted,
    /// What a write to this file is answered with (errno).
    pub refuses: HashMap<String, i32>,
    /// CPUs without a free interrupt vector.
    pub full: CpuSet,
    /// Whether the effective affinity follows at once.
    pub remaps: bool,
    /// Files that take a write and go on showing this instead.
    pub shows: HashMap<String, String>,
    /// The driver of 0000:3b:00.0; in a cell since unbind and bind change it.
    pub driver: RefCell<Option<String>>,
    /// Whether bind is refused, and how often.
    pub bind_fails: Cell<u32>,
    /// The journal's disk is full from this record on, counted from 0, until [`Self::free_the_disk`].
    pub disk_full_from: Cell<Option<u32>>,
    /// After so many writes the user presses Ctrl-C.
    pub interrupted_after: Option<(usize, Arc<AtomicBool>)>,
    records: Cell<u32>,
    /// Every write, as "path <- text".
    pub log: RefCell<Vec<String>>,
}

impl Kernel {
    pub fn over(root: &Path) -> Self {
        Self {
            below: Rooted::tree(root).unwrap(),
            refuses: HashMap::new(),
            full: CpuSet::new(),
            remaps: false,
            shows: HashMap::new(),
            driver: RefCell::new(Some("nvme".into())),
            bind_fails: Cell::new(0),
            disk_full_from: Cell::new(None),
            interrupted_after: None,
            records: Cell::new(0),
            log: RefCell::new(Vec::new()),
        }
    }

    pub fn free_the_disk(&self) {
        self.disk_full_from.set(None);
    }

    pub fn log(&self) -> Vec<String> {
        self.log.borrow().clone()
    }

    fn bind(&self, path: &str) -> io::Result<()> {
        if path.ends_with("/unbind") {
            *self.driver.borrow_mut() = None;
            return Ok(());
        }
        if let Some(left) = self.bind_fails.get().checked_sub(1) {
            self.bind_fails.set(left);
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        *self.driver.borrow_mut() = path.split('/').nth_back(1).map(str::to_owned);
        Ok(())
    }
}

impl System for Kernel {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        self.below.read(path)
    }

    fn write(&self, path: &str, content: &[u8]) -> io::Result<()> {
        let text = String::from_utf8(content.to_vec()).unwrap();
        self.log
            .borrow_mut()
            .push(format!("{path} <- {}", text.trim_end()));
        if let Some((writes, cancel)) = &self.interrupted_after
            && self.log.borrow().len() == *writes
        {
            cancel.store(true, Ordering::Relaxed);
        }
        if let Some(&errno) = self.refuses.get(path) {
            return Err(io::Error::from_raw_os_error(errno));
        }
        if path.starts_with("/sys/bus/pci/drivers/") {
            return self.bind(path);
        }
        if let Some(shown) = self.shows.get(path) {
            return self.below.write(path, shown.as_bytes());
        }
        let Some(directory) = path.strip_suffix("/smp_affinity_list") else {
            return self.below.write(path, content);
        };
        let list =
            CpuSet::parse_list(&text).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        if list.is_subset(&self.full) {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        if self.remaps {
            self.below.write(
                &format!("{directory}/effective_affinity_list"),
                format!("{list}\n").as_bytes(),
            )?;
        }
        self.below.write(path, format!("{list}\n").as_bytes())
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.below.list(path)
    }

    fn link(&self, path: &str) -> io::Result<String> {
        if path == "/sys/bus/pci/devices/0000:3b:00.0/driver" {
            let driver = self.driver.borrow();
            let driver = driver
                .as_ref()
                .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
            return Ok(format!("../../../../bus/pci/drivers/{driver}"));
        }
        self.below.link(path)
    }

    fn append(&self, mut journal: &File, line: &[u8]) -> io::Result<()> {
        let number = self.records.get();
        if self.disk_full_from.get().is_some_and(|from| number >= from) {
            journal.write_all(&line[..line.len() / 2])?;
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        self.records.set(number + 1);
        journal.write_all(line)
    }

    fn sync(&self, _: &File) -> io::Result<()> {
        Ok(())
    }
}

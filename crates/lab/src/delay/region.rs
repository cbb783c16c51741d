//! The memory shared with the plugin: a file without a name, so that nothing is left behind when a process is killed.
//!
//! Its layout (version 6) is in docs/delay-plugin.md; all words are 64 bits in the host's byte order.

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::counts::{Counts, VcpuCounts};
use super::{DelaySetup, Doorbells};
use crate::error::LabError;

const MAGIC: [u8; 8] = *b"NFDELAY1";
const LAYOUT: u64 = 6;
const HEADER: usize = 128;
const GATE: usize = 72;
const STATE: usize = 80;
const OPEN: u64 = 2;
const DOORBELLS: usize = 88;
const SIMULATED: usize = 104;
/// Words of a vCPU before those by node.
const FIXED: usize = 11;
/// Words of a vCPU for each node: misses, picoseconds of waiting, transfers.
const BY_NODE: usize = 3;
const PS_PER_NS: u64 = 1000;
/// How long the gate may take to open or close.
const PATIENCE: Duration = Duration::from_secs(10);
/// Words of a controller's doorbells: start, bytes, stride, node.
const DOORBELL_WORDS: usize = 4;

/// A running plugin's configuration, gate and counters, from the host's side.
#[derive(Debug)]
pub struct DelayRegion {
    file: OwnedFd,
    base: *mut c_void,
    bytes: usize,
    counters: usize,
    stride: usize,
    doorbells: usize,
    setup: DelaySetup,
}

// SAFETY: after it is filled, the mapping is read and written through atomics only.
unsafe impl Send for DelayRegion {}
// SAFETY: as above.
unsafe impl Sync for DelayRegion {}

impl DelaySetup {
    /// Makes the region for one guest, with the gate closed.
    ///
    /// # Errors
    /// When the system has no memory for it.
    pub fn start(&self) -> Result<DelayRegion, LabError> {
        DelayRegion::new(self).map_err(|error| {
            LabError::system("making the memory shared with the delay plugin", error)
        })
    }

    /// QEMU's arguments that load the plugin, given the number the region's descriptor has in QEMU's process.
    pub fn arguments(&self, descriptor: impl std::fmt::Display) -> [String; 2] {
        // A comma in a value is written twice (QEMU's manual, "-device").
        let plugin = self.plugin.to_string_lossy().replace(',', ",,");
        [
            "-plugin".to_owned(),
            format!("file={plugin},region={descriptor}"),
        ]
    }
}

impl DelayRegion {
    fn new(setup: &DelaySetup) -> rustix::io::Result<Self> {
        // A line of the host's caches, so that two vCPUs do not write to one.
        let stride = ((FIXED + BY_NODE * setup.nodes.len()) * 8).next_multiple_of(128);
        let counters = (HEADER + setup.config.len()).next_multiple_of(128);
        let doorbells = counters + stride * setup.cpu_nodes.len();
        let bytes = doorbells + (1 + setup.controllers * DOORBELL_WORDS) * 8;
        let file = memfd_create("nearfar-delay", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, bytes as u64)?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap(ptr::null_mut(), bytes, protection, flags, &file, 0) }?;
        let region = Self {
            file,
            base,
            bytes,
            counters,
            stride,
            doorbells,
            setup: setup.clone(),
        };
        region.fill();
        Ok(region)
    }

    fn fill(&self) {
        let config = &self.setup.config;
        let header = [
            u64::from_ne_bytes(MAGIC),
            LAYOUT,
            self.bytes as u64,
            HEADER as u64,
            config.len() as u64,
            self.counters as u64,
            self.setup.cpu_nodes.len() as u64,
            self.setup.nodes.len() as u64,
            self.stride as u64,
        ];
        for (position, word) in header.into_iter().enumerate() {
            // The second word is the layout, then come the sizes from offset 16 on.
            self.word(position * 8).store(word, Relaxed);
        }
        self.word(DOORBELLS).store(self.doorbells as u64, Relaxed);
        let controllers = self.setup.controllers as u64;
        self.word(DOORBELLS + 8).store(controllers, Relaxed);
        // SAFETY: the text ends before the counters begin, and no other process has the mapping yet.
        unsafe {
            ptr::copy_nonoverlapping(
                config.as_ptr(),
                self.base.cast::<u8>().add(HEADER),
                config.len(),
            )
        };
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.bytes);
        // SAFETY: inside the mapping (asserted), which is page aligned and lives as long as `self`.
        unsafe { &*self.base.cast::<u8>().add(offset).cast() }
    }

    /// Starts the delays: QEMU throws away the code it translated so far and delays every access from then on. That
    /// begins at the guest's next idle moment or the next piece of new code that any of its CPUs runs.
    pub fn open(&self) {
        self.word(GATE).store(1, Relaxed);
    }

    /// Starts or ends the delays and simulated time, and waits until that is done, but not for ever: the guest does it at its next
    /// idle moment. Returns whether it is done.
    pub(crate) fn switch(&self, open: bool) -> bool {
        match open {
            true => self.open(),
            false => self.close(),
        }
        let started = Instant::now();
        let is_done = || (self.word(STATE).load(Relaxed) == OPEN) == open;
        while !is_done() && started.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        is_done()
    }

    /// Whether the guest has simulated time.
    pub(crate) fn is_simulated(&self) -> bool {
        self.setup.time.is_some()
    }

    /// How much simulated time has passed so far; `None` in the host's time.
    pub(crate) fn simulated(&self) -> Option<Duration> {
        let ns = || self.word(SIMULATED).load(Relaxed);
        self.is_simulated().then(|| Duration::from_nanos(ns()))
    }

    /// Whether doorbells are delayed, so that they have to be known.
    pub(crate) fn has_devices(&self) -> bool {
        self.setup.controllers != 0
    }

    /// Sets the doorbells whose writes are delayed from now on.
    pub(crate) fn set_doorbells(&self, doorbells: &[Doorbells]) {
        let count = self.word(self.doorbells);
        // The plugin looks at none while they change.
        count.store(0, Release);
        let rows = doorbells.iter().take(self.setup.controllers);
        let written = rows.len();
        for (row, it) in rows.enumerate() {
            let words = [it.start, it.bytes, it.stride, u64::from(it.node.0)];
            let first = self.doorbells + (1 + row * DOORBELL_WORDS) * 8;
            for (position, word) in words.into_iter().enumerate() {
                self.word(first + position * 8).store(word, Relaxed);
            }
        }
        count.store(written as u64, Release);
    }

    /// Ends the delays, in the same way.
    pub fn close(&self) {
        self.word(GATE).store(0, Relaxed);
    }

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        let vcpus = self
            .setup
            .cpu_nodes
            .iter()
            .enumerate()
            .map(|(number, &node)| {
                let at = |position: usize| {
                    self.word(self.counters + number * self.stride + position * 8)
                        .load(Relaxed)
                };
                let [accesses, near, far] = [0, 2, 3].map(at);
                let [same_cache, other_cache, other] = [4, 9, 5].map(at);
                let [delay_ns, doorbells_near, doorbells_far, wait_ns] = [6, 7, 8, 10].map(at);
                let paid = near + far + same_cache + other_cache + other;
                let nodes = &self.setup.nodes;
                let by_node = |kind: usize| {
                    let words = (FIXED + kind * nodes.len()..).map(&at);
                    nodes.iter().copied().zip(words)
                };
                let waits = by_node(1).map(|(node, ps)| (node, ps / PS_PER_NS));
                VcpuCounts {
                    node,
                    accesses,
                    hits: accesses.saturating_sub(paid),
                    near,
                    far,
                    transfers_same_node: same_cache + other_cache,
                    transfers_same_cache: same_cache,
                    transfers_other_node: other,
                    doorbells_near,
                    doorbells_far,
                    delay_ns,
                    wait_ns,
                    misses: by_node(0).collect(),
                    waits_ns: waits.collect(),
                    transfers: by_node(2).collect(),
                }
            });
        Counts {
            counting: self.word(STATE).load(Relaxed) == OPEN,
            simulated_ns: self
                .is_simulated()
                .then(|| self.word(SIMULATED).load(Relaxed)),
            vcpus: vcpus.collect(),
        }
    }
}

/// The descriptor QEMU has to inherit.
impl AsFd for DelayRegion {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for DelayRegion {
    fn drop(&mut self) {
        // SAFETY: mapped with this size in `new`; borrowed words cannot outlive `self`. A failure leaves the mapping.
        let _ = unsafe { munmap(self.base, self.bytes) };
    }
}

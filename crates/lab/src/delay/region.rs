//! The memory shared with the plugin: a file without a name, so that nothing is left behind when a process is killed.
//!
//! Its layout (version 7) is in docs/delay-plugin.md; all words are 64 bits in the host's byte order.
//!
//! What the plugin counts is read from there, and doorbells of NVMe controllers are written there: registers whose writes are
//! delayed by the nodes of the vCPU and of the controller.
//!
//! ```text
//!  BAR 0 + 0x1000  + 8 x queue       tail of a submission queue; queue 0 is the administrator's
//!                  + 8 x queue + 4   head of a completion queue
//! ```
//! (NVM Express base specification, 3.1; QEMU's controllers have a doorbell stride of 4 bytes.) A driver writes the tail after it
//! has put commands into a queue. BARs get their addresses while the guest boots, so QEMU is asked for them afterwards.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};

use nearfar_machine::NodeId;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use serde::Serialize;
use serde_json::Value;

use crate::delay::DelaySetup;
use crate::delay::transfers::{TransferRow, TransferTable};
use crate::error::LabError;

const MAGIC: [u8; 8] = *b"NFDELAY1";
const LAYOUT: u64 = 7;
const HEADER: usize = 128;
const GATE: usize = 72;
const STATE: usize = 80;
const OPEN: u64 = 2;
const DOORBELLS: usize = 88;
const SIMULATED: usize = 104;
const TRANSFERS: usize = 112;
/// Words of a vCPU before those by node.
const FIXED: usize = 11;
/// Words of a vCPU for each node: misses, picoseconds of waiting, transfers.
const BY_NODE: usize = 3;
const PS_PER_NS: u64 = 1000;
/// How long the gate may take to open or close.
const PATIENCE: Duration = Duration::from_secs(10);
/// Slots of the table of transfers: the pairs of a function and a line that a load has, some thousands, with room.
const SLOTS: usize = 1 << 17;
const SLOT_BYTES: usize = 64;
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
    transfers: usize,
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
        let doing = "making the memory shared with the delay plugin";
        DelayRegion::new(self).map_err(|error| LabError::system(doing, error))
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
        let end = doorbells + (1 + setup.controllers * DOORBELL_WORDS) * 8;
        let transfers = end.next_multiple_of(128);
        let bytes = transfers + (1 + SLOTS) * SLOT_BYTES;
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
            transfers,
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
        self.word(TRANSFERS).store(self.transfers as u64, Relaxed);
        self.word(TRANSFERS + 8).store(SLOTS as u64, Relaxed);
        // SAFETY: the text ends before the counters begin, and no other process has the mapping yet.
        unsafe {
            let place = self.base.cast::<u8>().add(HEADER);
            ptr::copy_nonoverlapping(config.as_ptr(), place, config.len())
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
        let is_done = || self.is_counting() == open;
        while !is_done() && started.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        is_done()
    }

    /// Whether accesses are looked at now.
    pub(crate) fn is_counting(&self) -> bool {
        self.word(STATE).load(Relaxed) == OPEN
    }

    /// Whether the guest has simulated time.
    pub(crate) fn is_simulated(&self) -> bool {
        self.setup.time.is_some()
    }

    /// How much simulated time has passed so far; `None` in the host's time.
    pub(crate) fn simulated(&self) -> Option<Duration> {
        self.simulated_ns().map(Duration::from_nanos)
    }

    fn simulated_ns(&self) -> Option<u64> {
        let is_simulated = self.is_simulated();
        is_simulated.then(|| self.word(SIMULATED).load(Relaxed))
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
        let vcpus = self.setup.cpu_nodes.iter().copied().enumerate();
        Counts {
            counting: self.is_counting(),
            simulated_ns: self.simulated_ns(),
            vcpus: vcpus
                .map(|(number, node)| self.of_vcpu(number, node))
                .collect(),
        }
    }

    /// Begins to count transfers, from nothing on.
    pub fn begin_transfers(&self) {
        let at =
            |slot: usize, word: usize| self.word(self.transfers + slot * SLOT_BYTES + word * 8);
        at(0, 0).store(0, Relaxed);
        for slot in (1..=SLOTS).filter(|&slot| at(slot, 0).load(Relaxed) != 0) {
            // The key last: without it another instruction may take the slot.
            (1..SLOT_BYTES / 8).for_each(|word| at(slot, word).store(0, Relaxed));
            at(slot, 0).store(0, Relaxed);
        }
        at(0, 1).store(1, Relaxed);
    }

    /// Counts no more transfers.
    pub(crate) fn end_transfers(&self) {
        self.word(self.transfers + 8).store(0, Relaxed);
    }

    /// Which instructions got which lines from other vCPUs so far.
    pub fn transfers(&self) -> TransferTable {
        let at = |slot: usize, word: usize| {
            let offset = self.transfers + slot * SLOT_BYTES + word * 8;
            self.word(offset).load(Relaxed)
        };
        let slots = (1..=SLOTS).filter(|&slot| at(slot, 0) != 0);
        TransferTable {
            lost: at(0, 0),
            rows: slots
                .map(|slot| {
                    let [instruction, line, home] = [1, 2, 3].map(|word| at(slot, word));
                    let [same_node, other_node, ps] = [4, 5, 6].map(|word| at(slot, word));
                    let row = TransferRow {
                        instruction,
                        line,
                        home,
                        same_node,
                        other_node,
                        ns: ps / PS_PER_NS,
                    };
                    ((instruction, line), row)
                })
                .collect(),
        }
    }

    fn of_vcpu(&self, number: usize, node: NodeId) -> VcpuCounts {
        let first = self.counters + number * self.stride;
        let at = |position: usize| self.word(first + position * 8).load(Relaxed);
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

/// Counts of a guest, as they are at one moment.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Counts {
    /// Whether accesses are looked at now.
    pub counting: bool,
    /// Nanoseconds of simulated time so far; `None` in the host's time.
    pub simulated_ns: Option<u64>,
    /// One a vCPU, by number.
    pub vcpus: Vec<VcpuCounts>,
}

/// A vCPU's counts since the guest started.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct VcpuCounts {
    pub node: NodeId,
    /// Loads and stores; instruction fetches are not among them.
    pub accesses: u64,
    /// Accesses to a line in the vCPU's last-level cache, which take the time of a hit, or that the filter knows.
    pub hits: u64,
    /// Accesses to memory of its own node.
    pub near: u64,
    /// Accesses to memory of other nodes.
    pub far: u64,
    /// Lines that another vCPU of its node had written.
    pub transfers_same_node: u64,
    /// Those of them that were in its own last-level cache.
    pub transfers_same_cache: u64,
    /// Lines that a vCPU of another node had.
    pub transfers_other_node: u64,
    /// Submissions to NVMe controllers of its own node, by doorbell writes. Counted with `device=` only.
    pub doorbells_near: u64,
    /// Submissions to NVMe controllers of other nodes.
    pub doorbells_far: u64,
    /// What all that was delayed by, in nanoseconds.
    pub delay_ns: u64,
    /// The part of it that was for others that used a memory or a link, in nanoseconds.
    pub wait_ns: u64,
    /// Accesses to memory by its node.
    pub misses: ByNode,
    /// Nanoseconds of these that were for others that used that memory, or the link to it.
    pub waits_ns: ByNode,
    /// Lines that another last-level cache had, by that cache's node.
    pub transfers: ByNode,
}

/// A count for each node with CPUs or memory.
pub type ByNode = BTreeMap<NodeId, u64>;

impl Counts {
    /// All vCPUs of a node together.
    pub fn node(&self, node: NodeId) -> VcpuCounts {
        let mut sum = VcpuCounts {
            node,
            ..VcpuCounts::default()
        };
        for vcpu in self.vcpus.iter().filter(|vcpu| vcpu.node == node) {
            sum.accesses += vcpu.accesses;
            sum.hits += vcpu.hits;
            sum.near += vcpu.near;
            sum.far += vcpu.far;
            sum.transfers_same_node += vcpu.transfers_same_node;
            sum.transfers_same_cache += vcpu.transfers_same_cache;
            sum.transfers_other_node += vcpu.transfers_other_node;
            sum.doorbells_near += vcpu.doorbells_near;
            sum.doorbells_far += vcpu.doorbells_far;
            sum.delay_ns += vcpu.delay_ns;
            sum.wait_ns += vcpu.wait_ns;
            for (sums, counts) in [
                (&mut sum.misses, &vcpu.misses),
                (&mut sum.waits_ns, &vcpu.waits_ns),
                (&mut sum.transfers, &vcpu.transfers),
            ] {
                for (to, count) in counts {
                    *sums.entry(*to).or_default() += count;
                }
            }
        }
        sum
    }
}

/// The tail doorbell of the first I/O submission queue, from the start of the BAR.
const FIRST_TAIL: u64 = 0x1008;
/// From one tail doorbell to the next.
const TAIL_STRIDE: u64 = 8;
/// Behind the last doorbell: QEMU has the interrupt table there, or nothing.
const DOORBELLS_END: u64 = 0x2000;

/// The submission doorbells of a controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Doorbells {
    /// Guest physical address of the first.
    pub start: u64,
    /// Bytes to the end of the last.
    pub bytes: u64,
    /// From one to the next.
    pub stride: u64,
    /// The controller's node.
    pub node: NodeId,
}

impl Doorbells {
    /// Those of the controllers in an answer of `query-pci`. `node` gives the node of a device by its id. A controller without an
    /// address has none that can be written.
    pub fn of_guest(buses: &Value, node: &dyn Fn(&str) -> Option<NodeId>) -> Vec<Self> {
        let mut all = Vec::new();
        for bus in buses.as_array().into_iter().flatten() {
            Self::behind(&bus["devices"], node, &mut all);
        }
        all.sort_by_key(|doorbells| doorbells.start);
        all.dedup();
        all
    }

    fn behind(devices: &Value, node: &dyn Fn(&str) -> Option<NodeId>, all: &mut Vec<Self>) {
        for device in devices.as_array().into_iter().flatten() {
            let place = device["qdev_id"].as_str().and_then(node);
            if let (Some(node), Some(start)) = (place, registers(device)) {
                all.push(Self {
                    start: start + FIRST_TAIL,
                    bytes: DOORBELLS_END - FIRST_TAIL,
                    stride: TAIL_STRIDE,
                    node,
                });
            }
            Self::behind(&device["pci_bridge"]["devices"], node, all);
        }
    }
}

/// The address of BAR 0, if it has one that is large enough for doorbells.
fn registers(device: &Value) -> Option<u64> {
    let bars = device["regions"].as_array()?;
    let bar = bars.iter().find(|bar| bar["bar"] == 0)?;
    let (address, bytes) = (bar["address"].as_u64()?, bar["size"].as_u64()?);
    // QEMU's sign of a BAR without an address is -1.
    (bytes >= DOORBELLS_END && address.checked_add(bytes).is_some()).then_some(address)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn doorbells_are_found_behind_bridges_and_only_where_there_is_an_address() {
        let bar = |address: u64| json!([{ "bar": 0, "address": address, "size": 16384 }]);
        let buses = json!([
            { "bus": 0, "devices": [
                { "qdev_id": "nvme1", "regions": bar(0x9000_0000) },
                { "qdev_id": "nic0", "regions": bar(0xa000_0000) },
                { "qdev_id": "nvme2", "regions": bar(u64::MAX) },
                { "qdev_id": "nvme3", "regions": [] }] },
            { "bus": 32, "devices": [{ "qdev_id": "port0", "regions": [], "pci_bridge": { "devices": [
                { "qdev_id": "nvme0", "regions": bar(0x8000_0000) }] } }] }
        ]);
        let node = |id: &str| {
            let number = id.strip_prefix("nvme")?;
            Some(NodeId(number.parse().ok()?))
        };
        let doorbells = |start, node| Doorbells {
            start,
            bytes: 0xff8,
            stride: 8,
            node: NodeId(node),
        };
        assert_eq!(
            Doorbells::of_guest(&buses, &node),
            [doorbells(0x8000_1008, 0), doorbells(0x9000_1008, 1)]
        );
    }
}

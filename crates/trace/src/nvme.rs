//! NVMe commands: which CPU handed which controller how many (`nvme:nvme_setup_cmd`, drivers/nvme/host/trace.h).
//!
//! The driver fires it in the context that hands the command to the controller, as a rule the task that does the I/O; buffered
//! writes come from the kernel's own threads, later and perhaps from elsewhere. Its fields, the same from Linux 6.1 to 6.12:
//!
//! ```text
//! disk      the disk the command went through: with native multipath the hidden path, nvme0c1n1; empty for admin commands
//! ctrl_id   N of the controller nvmeN
//! qid       queue: 0 is the admin queue, I/O is above
//! opcode    of the command: 0 flush, 1 write, 2 read (NVM command set specification, figure "Opcodes for I/O Commands")
//! ```

mod answer;

pub use answer::{
    ControllerView, Namespace, NodeTraffic, NvmeAnswer, NvmeTraceError, Submitter, Through,
    Unplaced, answer, subsystems,
};

use std::collections::{BTreeMap, HashMap};

use nearfar_machine::CpuId;
use serde::{Deserialize, Serialize};

use crate::format::{Format, FormatError, Number, Text};
use crate::records::Sample;

pub const SYSTEM: &str = "nvme";
pub const EVENT: &str = "nvme_setup_cmd";

/// Reads `nvme_setup_cmd` events.
#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    disk: Text,
    controller: Number,
    queue: Number,
    opcode: Number,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Command<'a> {
    /// The disk it went through; empty for commands to the controller itself.
    pub disk: &'a [u8],
    /// The controller's instance: N of `nvmeN`.
    pub controller: u32,
    /// 0 is the admin queue.
    pub queue: u32,
    /// What it asks for.
    pub opcode: u8,
}

impl Decoder {
    /// Finds the fields in this kernel's layout.
    ///
    /// # Errors
    /// When one is missing or is of another kind.
    pub fn new(format: &Format) -> Result<Self, FormatError> {
        Ok(Self {
            disk: format.text("disk")?,
            controller: format.number("ctrl_id")?,
            queue: format.number("qid")?,
            opcode: format.number("opcode")?,
        })
    }

    /// The command of an event; `None` where its bytes do not hold one.
    pub fn decode<'a>(&self, event: &'a [u8]) -> Option<Command<'a>> {
        Some(Command {
            disk: self.disk.read(event)?,
            controller: u32::try_from(self.controller.read(event)?).ok()?,
            queue: u32::try_from(self.queue.read(event)?).ok()?,
            opcode: u8::try_from(self.opcode.read(event)?).ok()?,
        })
    }
}

/// Numbers of commands by what they ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Kinds {
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    /// Anything else: discards, zeroes, zones, passed through by a tool.
    pub others: u64,
}

impl Kinds {
    pub fn total(&self) -> u64 {
        self.reads + self.writes + self.flushes + self.others
    }

    pub fn add(&mut self, other: &Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.flushes += other.flushes;
        self.others += other.others;
    }

    fn count(&mut self, opcode: u8) {
        *match opcode {
            0x00 => &mut self.flushes,
            0x01 => &mut self.writes,
            0x02 => &mut self.reads,
            _ => &mut self.others,
        } += 1;
    }
}

/// Where commands came from and went.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Way {
    disk: u32,
    controller: u32,
    cpu: CpuId,
    pid: i32,
}

/// The commands of a trace, counted as they come: memory grows with CPUs, disks and processes, not with time.
#[derive(Clone, Debug)]
pub struct Commands {
    decoder: Decoder,
    disks: Vec<String>,
    ways: HashMap<Way, Kinds>,
    names: BTreeMap<i32, Option<String>>,
    admin: u64,
    unreadable: u64,
}

impl Commands {
    pub fn new(decoder: Decoder) -> Self {
        Self {
            decoder,
            disks: Vec::new(),
            ways: HashMap::new(),
            names: BTreeMap::new(),
            admin: 0,
            unreadable: 0,
        }
    }

    /// Counts one event that was submitted from this CPU.
    pub fn take(&mut self, cpu: CpuId, sample: &Sample<'_>) {
        let Some(command) = self.decoder.decode(sample.event) else {
            self.unreadable += 1;
            return;
        };
        if command.queue == 0 {
            self.admin += 1;
            return;
        }
        let disk = self.disk(command.disk);
        let way = Way {
            disk,
            controller: command.controller,
            cpu,
            pid: sample.pid,
        };
        self.ways.entry(way).or_default().count(command.opcode);
        self.names.entry(sample.pid).or_default();
    }

    /// Asks for the names of processes that have none yet. To be called now and then: those that have ended are gone.
    pub fn name(&mut self, name_of: impl Fn(i32) -> Option<String>) {
        for (pid, name) in self.names.iter_mut().filter(|(_, name)| name.is_none()) {
            *name = name_of(*pid);
        }
    }

    /// The number of a disk among those seen: few enough to look through.
    fn disk(&mut self, name: &[u8]) -> u32 {
        let known = self.disks.iter().position(|disk| disk.as_bytes() == name);
        let position = known.unwrap_or_else(|| {
            self.disks.push(String::from_utf8_lossy(name).into_owned());
            self.disks.len() - 1
        });
        position as u32
    }
}

//! The values of the arguments.

use std::fmt;
use std::path::PathBuf;

use nearfar_machine::NodeId;
use serde_json::{Value, json};

use crate::registry::{Arguments, RunError};

/// What is to be measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    /// A block device by any of its names.
    Device(String),
    /// A regular file, or a directory for one.
    File(PathBuf),
    /// A null block device on a node.
    Null(NodeId),
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(name) => f.write_str(name),
            Self::File(path) => path.display().fmt(f),
            Self::Null(node) => write!(f, "a null block device on node {node}"),
        }
    }
}

/// One for each argument.
#[derive(Clone, Debug)]
pub(super) struct Parameters {
    pub(super) asked: Asked,
    pub(super) device_node: Option<NodeId>,
    pub(super) seconds: f64,
    pub(super) ramp_seconds: f64,
    pub(super) jobs: u32,
    pub(super) engine: String,
    /// Bytes.
    pub(super) size: u64,
    pub(super) buffered: bool,
    pub(super) trace: String,
    pub(super) locks: bool,
    pub(super) null_queues: u32,
    pub(super) null_delay_us: f64,
    pub(super) destroy: Option<String>,
    pub(super) override_device_node: bool,
}

impl Parameters {
    pub(super) fn read(arguments: &Arguments) -> Result<Self, RunError> {
        Ok(Self {
            asked: asked(arguments)?,
            device_node: arguments.within("device-node", 0..=u32::MAX)?.map(NodeId),
            seconds: arguments.seconds_or_default("seconds", 0.01..=3600.0)?,
            ramp_seconds: arguments.seconds_or_default("ramp-seconds", 0.0..=3600.0)?,
            jobs: arguments.within_or_default("jobs", 1..=1024)?,
            engine: arguments.get("engine")?,
            size: arguments.within_or_default("size", 1 << 20..=1 << 50)?,
            buffered: arguments.has("buffered")?,
            trace: arguments.get("trace")?,
            locks: arguments.has("locks")?,
            null_queues: arguments.within_or_default("null-queues", 1..=4096)?,
            null_delay_us: arguments.within_or_default("null-delay-us", 0.0..=1e6)?,
            destroy: text(arguments, "destroy")?,
            override_device_node: arguments.has("override-device-node")?,
        })
    }

    /// A key for each argument, for the store.
    pub(super) fn stored(&self) -> Value {
        let (mut device, mut file, mut null_node) = (None, None, None);
        match &self.asked {
            Asked::Device(name) => device = Some(name.clone()),
            Asked::File(path) => file = Some(path.to_string_lossy()),
            Asked::Null(node) => null_node = Some(*node),
        }
        json!({
            "device": device,
            "file": file,
            "null": null_node,
            "device_node": self.device_node,
            "seconds": self.seconds,
            "ramp_seconds": self.ramp_seconds,
            "jobs": self.jobs,
            "engine": self.engine,
            "size": self.size,
            "buffered": self.buffered,
            "trace": self.trace,
            "locks": self.locks,
            "null_queues": self.null_queues,
            "null_delay_us": self.null_delay_us,
            "destroy": self.destroy,
            "override_device_node": self.override_device_node,
        })
    }
}

fn asked(arguments: &Arguments) -> Result<Asked, RunError> {
    let device = text(arguments, "device")?.map(Asked::Device);
    let file = text(arguments, "file")?.map(|path| Asked::File(path.into()));
    let null = arguments.within("null", 0..=u32::MAX)?;
    let null = null.map(|node| Asked::Null(NodeId(node)));
    let mut given = [device, file, null].into_iter().flatten();
    match (given.next(), given.next()) {
        (Some(asked), None) => Ok(asked),
        (None, _) => Err(RunError::Target(
            "what to measure is missing: --device NAME, --file FILE-OR-DIRECTORY or --null NODE\na machine without a \
             device to spare has --file with a directory, and --null 0 for root where the kernel has null_blk; both only read \
             and write what nearfar makes"
                .into(),
        )),
        _ => Err(RunError::Target(
            "only one of --device, --file and --null can be measured".into(),
        )),
    }
}

fn text(arguments: &Arguments, name: &str) -> Result<Option<String>, RunError> {
    match arguments.has(name)? {
        true => Ok(Some(arguments.get(name)?)),
        false => Ok(None),
    }
}

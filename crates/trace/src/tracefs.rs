//! Where the kernel describes its tracepoints. Read only; nothing is switched on through it.

use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, open, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::TraceError;
use crate::format::Format;

/// Where it is usually mounted: the second since before Linux 4.1, with debugfs.
const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// The largest description known has 5 KiB.
const MOST_BYTES: u64 = 64 << 10;

/// The file system with the descriptions of tracepoints.
pub struct Tracefs {
    directory: OwnedFd,
    place: String,
}

impl Tracefs {
    /// The mounted one or, where there is none, one that only this process has: mounted nowhere, gone when it is dropped.
    ///
    /// # Errors
    /// When none is mounted and this user may not mount one.
    pub fn find() -> Result<Self, TraceError> {
        let (mut looked, mut forbidden) = (Vec::new(), false);
        for place in PLACES {
            match Self::at(Path::new(place)) {
                Ok(found) => return Ok(found),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    looked.push(format!("{place} has no events"))
                }
                Err(error) => {
                    // debugfs is for root alone, whether or not there is something in it.
                    forbidden |=
                        place == PLACES[0] && error.kind() == io::ErrorKind::PermissionDenied;
                    looked.push(format!("{place}: {error}"));
                }
            }
        }
        match unseen() {
            Ok(directory) => Ok(Self {
                directory,
                place: "tracefs".to_owned(),
            }),
            Err(error) => Err(TraceError::NoTracefs {
                forbidden,
                looked: looked.join(", "),
                source: error.into(),
            }),
        }
    }

    /// The one mounted there.
    ///
    /// # Errors
    /// When there is no directory `events` below.
    pub fn at(place: &Path) -> io::Result<Self> {
        let directory = open(
            place,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        openat(
            &directory,
            "events",
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        Ok(Self {
            directory,
            place: place.display().to_string(),
        })
    }

    /// The description of a tracepoint, `sched` and `sched_migrate_task`.
    ///
    /// # Errors
    /// When this kernel has no such event now, or its description cannot be read or understood.
    pub fn tracepoint(&self, system: &str, name: &str) -> Result<Format, TraceError> {
        let below = format!("events/{system}/{name}/format");
        let file = format!("{}/{below}", self.place);
        let opened = openat(
            &self.directory,
            &below,
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        let opened = opened.map_err(|error| match error {
            rustix::io::Errno::NOENT => TraceError::NoTracepoint {
                system: system.to_owned(),
                name: name.to_owned(),
            },
            _ => TraceError::Unreadable {
                file: file.clone(),
                source: error.into(),
            },
        })?;
        let mut text = String::new();
        let read = std::fs::File::from(opened)
            .take(MOST_BYTES)
            .read_to_string(&mut text);
        read.map_err(|source| TraceError::Unreadable {
            file: file.clone(),
            source,
        })?;
        Format::parse(&text).map_err(|problem| TraceError::Format { file, problem })
    }
}

/// A tracefs of our own, through the mount interface of Linux 5.2: never attached to a directory.
fn unseen() -> rustix::io::Result<OwnedFd> {
    let context = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    fsmount(
        &context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::MOUNT_ATTR_RDONLY,
    )
}

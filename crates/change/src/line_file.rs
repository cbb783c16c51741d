//! A file of records that is only appended to: the journal of a change set or a lease, and the record of where pages were.

use std::fs::File;
use std::io;

use crate::lines::{self, Line};
use serde::Serialize;

use crate::system::System;

/// A file of lines ([`crate::lines`]) that is being written.
pub(crate) struct LineFile {
    file: File,
    /// Bytes that are known to be whole records.
    length: u64,
    next: u64,
    /// A torn line that could not be cut off: what is appended behind it would not be found again.
    broken: bool,
}

impl LineFile {
    /// A new, empty file.
    pub(crate) fn new(file: File) -> Self {
        Self {
            file,
            length: 0,
            next: 0,
            broken: false,
        }
    }

    /// Goes on behind the whole records of a file: cuts off what follows them.
    pub(crate) fn resume(file: File, length: u64, records: u64) -> io::Result<Self> {
        file.set_len(length)?;
        Ok(Self {
            file,
            length,
            next: records,
            broken: false,
        })
    }

    /// Bytes of whole records.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Appends a record; on disk when this returns. After a failure the file ends where it ended before.
    pub(crate) fn append(&mut self, system: &dyn System, record: impl Serialize) -> io::Result<()> {
        self.add(record, |file, line| {
            system.append(file, line)?;
            system.sync(file)
        })
    }

    /// As [`Self::append`], but the line is on disk only after [`Self::sync`]. Until then it survives a kill, since the page cache
    /// does.
    pub(crate) fn append_cached(
        &mut self,
        system: &dyn System,
        record: impl Serialize,
    ) -> io::Result<()> {
        self.add(record, |file, line| system.append(file, line))
    }

    pub(crate) fn sync(&self, system: &dyn System) -> io::Result<()> {
        system.sync(&self.file)
    }

    fn add(
        &mut self,
        record: impl Serialize,
        write: impl Fn(&File, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        if self.broken {
            return Err(io::Error::other(
                "an earlier line could be neither finished nor cut off",
            ));
        }
        let line = lines::render(&Line {
            n: self.next,
            at_s: lines::now_s(),
            record,
        })?;
        if let Err(error) = write(&self.file, line.as_bytes()) {
            self.broken = self.file.set_len(self.length).is_err();
            return Err(error);
        }
        self.length += line.len() as u64;
        self.next += 1;
        Ok(())
    }
}

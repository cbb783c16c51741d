//! What the bytes of a tracepoint mean: the `format` file of tracefs.
//!
//! ```text
//! name: sched_migrate_task
//! ID: 371
//! format:
//!         field:unsigned short common_type;       offset:0;       size:2; signed:0;
//!         field:__data_loc char[] comm;   offset:8;       size:4; signed:0;
//!         field:int dest_cpu;     offset:24;      size:4; signed:1;
//!
//! print fmt: "comm=%s ..."
//! ```
//!
//! Fields move, grow and change their shape between kernels (`comm` was `char comm[16]` until Linux 6.17), so nothing
//! about them is built in but their names. A `__data_loc` field holds where its bytes are: the length in the upper and
//! the offset in the lower half of 32 bits (include/trace/trace_events.h); `__rel_loc` counts the offset from its own end.
//! Numbers are in the byte order of the machine that traces. Nothing an event holds is trusted: what points outside of
//! it reads as `None`.

use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, open, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::TraceError;

/// The most bytes that perf passes on of one event, twice over (PERF_MAX_TRACE_SIZE in include/linux/trace_events.h).
const MOST_EVENT_BYTES: usize = 16 * 1024;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Format {
    name: String,
    id: u16,
    fields: Vec<Field>,
    /// How the kernel prints the event, with the names of what its fields may hold.
    print: String,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Field {
    name: String,
    shape: Shape,
    offset: usize,
    size: usize,
    signed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shape {
    Scalar,
    Array,
    /// Elsewhere in the event: its place is counted from the event's start.
    DataLoc,
    /// Elsewhere in the event: its place is counted from this field's end.
    RelLoc,
}

/// A description of an event that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FormatError {
    #[error("line {line}: expected {expected}, found {found:?}")]
    Line {
        /// Counted from 1.
        line: usize,
        expected: &'static str,
        /// What is there, shortened.
        found: String,
    },
    #[error("it ends without {0}")]
    Ends(&'static str),
    #[error("field {field} reaches beyond {MOST_EVENT_BYTES} bytes")]
    TooLarge { field: String },
    #[error("field {field} is there twice")]
    Twice { field: String },
    #[error("this kernel's event {event} has no field {field}; it has: {}", .has.join(", "))]
    NoField {
        event: String,
        field: &'static str,
        has: Vec<String>,
    },
    #[error("field {field} of {event} is not {expected}")]
    Kind {
        event: String,
        field: &'static str,
        expected: &'static str,
    },
    #[error("field {field} of {event} does not say which number means {meaning}")]
    NoMeaning {
        event: String,
        field: &'static str,
        meaning: &'static str,
    },
}

/// Where a number is within an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Number {
    offset: usize,
    size: usize,
    signed: bool,
}

/// Where a text is within an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Text {
    shape: Shape,
    offset: usize,
    size: usize,
}

impl Format {
    /// Reads the text of a `format` file.
    ///
    /// # Errors
    /// When a line is not what the kernel writes there, a field is beyond what an event can hold, or two have one name.
    pub fn parse(text: &str) -> Result<Self, FormatError> {
        let mut lines = text.lines().enumerate();
        let mut headed = |key: &str, expected| {
            let (index, line) = lines.next().ok_or(FormatError::Ends(expected))?;
            let value = line.strip_prefix(key).map(str::trim);
            value
                .filter(|value| value.len() < 256)
                .ok_or_else(|| wrong(index, line, expected))
                .map(|v| (index, v))
        };
        let (index, name) = headed("name:", "\"name:\"")?;
        let name = some_word(name)
            .ok_or_else(|| wrong(index, name, "the event's name"))?
            .to_owned();
        let (index, number) = headed("ID:", "\"ID:\"")?;
        let id = decimal(number).and_then(|id| u16::try_from(id).ok());
        let id = id.ok_or_else(|| wrong(index, number, "a number up to 65535"))?;
        headed("format:", "\"format:\"")?;
        let mut fields: Vec<Field> = Vec::new();
        for (index, line) in lines {
            match line.trim() {
                "" => {}
                rest if rest.starts_with("print fmt:") => {
                    return Ok(Self {
                        name,
                        id,
                        fields,
                        print: rest.to_owned(),
                    });
                }
                rest => {
                    let field = field(rest)
                        .ok_or_else(|| wrong(index, line, "field, offset, size and signed"))?;
                    if field.offset + field.size > MOST_EVENT_BYTES {
                        return Err(FormatError::TooLarge { field: field.name });
                    }
                    if fields.iter().any(|other| other.name == field.name) {
                        return Err(FormatError::Twice { field: field.name });
                    }
                    fields.push(field);
                }
            }
        }
        Err(FormatError::Ends("\"print fmt:\""))
    }

    /// The event's name, without its system.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The event's number: `config` of its perf event, and the `common_type` that each sample begins with.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// Where the number of this name is.
    ///
    /// # Errors
    /// When there is no such field, or it is not a number of 1, 2, 4 or 8 bytes.
    pub fn number(&self, field: &'static str) -> Result<Number, FormatError> {
        let Field {
            shape,
            offset,
            size,
            signed,
            ..
        } = *self.field(field)?;
        match (shape, size) {
            (Shape::Scalar, 1 | 2 | 4 | 8) => Ok(Number {
                offset,
                size,
                signed,
            }),
            _ => Err(self.is_not(field, "a number")),
        }
    }

    /// Where the text of this name is.
    ///
    /// # Errors
    /// When there is no such field, or it is a number.
    pub fn text(&self, field: &'static str) -> Result<Text, FormatError> {
        let Field {
            shape,
            offset,
            size,
            ..
        } = *self.field(field)?;
        match shape {
            Shape::DataLoc | Shape::RelLoc if size != 4 => {
                Err(self.is_not(field, "a place in 32 bits"))
            }
            Shape::Scalar => Err(self.is_not(field, "a text")),
            _ => Ok(Text {
                shape,
                offset,
                size,
            }),
        }
    }

    /// Which number of a field means this, by the table that the event is printed with:
    /// `__print_symbolic(REC->reason, {5, "numa_misplaced"}, ...)`. Such numbers change between kernels.
    ///
    /// # Errors
    /// When there is no such table or word.
    pub fn number_meaning(
        &self,
        field: &'static str,
        meaning: &'static str,
    ) -> Result<i64, FormatError> {
        let find = || {
            let (_, rest) = self
                .print
                .split_once(&format!("__print_symbolic(REC->{field},"))?;
            let (table, _) = rest.split_once(')')?;
            let entry = |entry: &str| {
                let (number, word) = entry.split_once('}')?.0.split_once(',')?;
                (word.trim().trim_matches('"') == meaning).then(|| number.trim().parse().ok())?
            };
            table.split('{').skip(1).find_map(entry)
        };
        find().ok_or_else(|| FormatError::NoMeaning {
            event: self.name.clone(),
            field,
            meaning,
        })
    }

    fn is_not(&self, field: &'static str, expected: &'static str) -> FormatError {
        FormatError::Kind {
            event: self.name.clone(),
            field,
            expected,
        }
    }

    fn field(&self, name: &'static str) -> Result<&Field, FormatError> {
        self.fields
            .iter()
            .find(|field| field.name == name)
            .ok_or_else(|| FormatError::NoField {
                event: self.name.clone(),
                field: name,
                has: self.fields.iter().map(|field| field.name.clone()).collect(),
            })
    }
}

impl Number {
    /// The address in this event, of 4 or 8 bytes; those of the kernel are above what [`Self::read`] can have. `None` where the
    /// event is too short.
    pub fn read_address(&self, event: &[u8]) -> Option<u64> {
        let bytes = event.get(self.offset..self.offset + self.size)?;
        match *bytes {
            [a, b, c, d] => Some(u32::from_ne_bytes([a, b, c, d]).into()),
            [a, b, c, d, e, f, g, h] => Some(u64::from_ne_bytes([a, b, c, d, e, f, g, h])),
            _ => None,
        }
    }

    /// The number in this event; `None` where the event is too short, or the number does not fit.
    pub fn read(&self, event: &[u8]) -> Option<i64> {
        let bytes = event.get(self.offset..self.offset + self.size)?;
        Some(match *bytes {
            [a] if self.signed => i64::from(a.cast_signed()),
            [a] => i64::from(a),
            [a, b] if self.signed => i64::from(i16::from_ne_bytes([a, b])),
            [a, b] => i64::from(u16::from_ne_bytes([a, b])),
            [a, b, c, d] if self.signed => i64::from(i32::from_ne_bytes([a, b, c, d])),
            [a, b, c, d] => i64::from(u32::from_ne_bytes([a, b, c, d])),
            [a, b, c, d, e, f, g, h] if self.signed => i64::from_ne_bytes([a, b, c, d, e, f, g, h]),
            [a, b, c, d, e, f, g, h] => {
                i64::try_from(u64::from_ne_bytes([a, b, c, d, e, f, g, h])).ok()?
            }
            _ => return None,
        })
    }
}

impl Text {
    /// The text in this event up to its first NUL; `None` where it is not within the event.
    pub fn read<'a>(&self, event: &'a [u8]) -> Option<&'a [u8]> {
        let here = event.get(self.offset..self.offset + self.size)?;
        let bytes = match self.shape {
            Shape::Scalar | Shape::Array => here,
            Shape::DataLoc | Shape::RelLoc => {
                let place = u32::from_ne_bytes(here.try_into().ok()?);
                let (length, offset) = ((place >> 16) as usize, (place & 0xffff) as usize);
                let from = if self.shape == Shape::RelLoc {
                    self.offset + self.size + offset
                } else {
                    offset
                };
                event.get(from..from + length)?
            }
        };
        bytes.split(|&byte| byte == 0).next()
    }
}

/// `field:char disk[32];  offset:8;  size:32;  signed:0;`
fn field(line: &str) -> Option<Field> {
    let mut parts = line.strip_suffix(';')?.split(';').map(str::trim);
    let declaration = parts.next()?.strip_prefix("field:")?;
    let mut valued = |key: &str| decimal(parts.next()?.strip_prefix(key)?);
    let (offset, size) = (valued("offset:")?, valued("size:")?);
    let signed = match valued("signed:")? {
        0 => false,
        1 => true,
        _ => return None,
    };
    if parts.next().is_some() {
        return None;
    }
    let (shape, declaration) = match declaration.split_once(' ') {
        Some(("__data_loc", rest)) => (Shape::DataLoc, rest),
        Some(("__rel_loc", rest)) => (Shape::RelLoc, rest),
        _ if declaration.ends_with(']') => (Shape::Array, declaration.rsplit_once('[')?.0),
        _ => (Shape::Scalar, declaration),
    };
    // A pointer's star may touch the name: "const char *name".
    let (kind, name) = declaration.rsplit_once([' ', '*'])?;
    let name = some_word(name).filter(|_| !kind.is_empty())?.to_owned();
    Some(Field {
        name,
        shape,
        offset,
        size,
        signed,
    })
}

fn some_word(text: &str) -> Option<&str> {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (!text.is_empty() && text.len() < 128 && text.bytes().all(fine)).then_some(text)
}

fn decimal(text: &str) -> Option<usize> {
    let plain =
        !text.is_empty() && text.len() <= 9 && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok())?
}

fn wrong(index: usize, line: &str, expected: &'static str) -> FormatError {
    FormatError::Line {
        line: index + 1,
        expected,
        found: line.chars().take(80).collect(),
    }
}

/// Where it is usually mounted: the second since before Linux 4.1, with debugfs.
const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// The largest description known has 5 KiB.
const MOST_FORMAT_BYTES: u64 = 64 << 10;

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
            .take(MOST_FORMAT_BYTES)
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

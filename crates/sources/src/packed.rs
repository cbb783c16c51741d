//! Files packed by gzip, xz, zstd or bzip2, recognised by their first bytes.

use std::io::{self, BufRead as _, BufReader, Read};

use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

/// The most memory that unpacking takes, in KiB: `xz -9` needs 65 MiB. A damaged file can ask for 4 GiB.
const MOST_MEMORY_KIB: u32 = 256 << 10;
/// The most that is unpacked at once, in bytes.
const MOST: u64 = 1 << 30;
/// Nothing about a machine shrinks more than this; what claims to is meant to fill memory.
pub(crate) const MOST_RATIO: u64 = 200;
/// What a small file may inflate to whatever its ratio, in bytes.
const ALWAYS_ALLOWED: u64 = 16 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packing {
    Gzip,
    Xz,
    Zstd,
    Bzip2,
}

impl Packing {
    /// How content is packed, by its first six bytes.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0x1f, 0x8b, ..] => Some(Self::Gzip),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some(Self::Xz),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Self::Zstd),
            [b'B', b'Z', b'h', b'1'..=b'9', ..] => Some(Self::Bzip2),
            _ => None,
        }
    }

    /// The content of what is packed so, without an end to it: take as much as is wanted.
    ///
    /// # Errors
    /// When the head is damaged; the reader's own are those of damage later on.
    pub fn reader<'a>(self, packed: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
        Ok(match self {
            Self::Gzip => Box::new(flate2::read::MultiGzDecoder::new(packed)),
            Self::Xz => {
                let reader = lzma_rust2::XzReader::new_mem_limit(packed, true, MOST_MEMORY_KIB);
                Box::new(reader)
            }
            Self::Zstd => Box::new(Frames {
                frame: Some(frame(BufReader::new(packed))?),
            }),
            Self::Bzip2 => Box::new(bzip2::read::MultiBzDecoder::new(packed)),
        })
    }
}

/// The frames of zstd one after the other, as pzstd and `cat` leave them; the library reads one.
struct Frames<R: Read> {
    /// None after the last.
    frame: Option<StreamingDecoder<BufReader<R>, FrameDecoder>>,
}

impl<R: Read> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(open) = &mut self.frame {
            let got = open.read(buffer)?;
            if got > 0 || buffer.is_empty() {
                return Ok(got);
            }
            let mut rest = self.frame.take().map(StreamingDecoder::into_inner);
            if let Some(rest) = rest.take_if(|rest| !rest.fill_buf().is_ok_and(<[u8]>::is_empty)) {
                self.frame = Some(frame(rest)?);
            }
        }
        Ok(0)
    }
}

fn frame<R: Read>(
    packed: BufReader<R>,
) -> io::Result<StreamingDecoder<BufReader<R>, FrameDecoder>> {
    StreamingDecoder::new(packed).map_err(io::Error::other)
}

/// The content, unpacked if it is packed.
///
/// # Errors
/// As [`Packing::reader`].
pub fn reader(bytes: &[u8]) -> io::Result<Box<dyn Read + '_>> {
    match Packing::of(bytes) {
        Some(packing) => packing.reader(bytes),
        None => Ok(Box::new(bytes)),
    }
}

/// The first bytes of the content, as many as there are up to `most`. What is damaged behind them is reported by reading the
/// whole.
pub(crate) fn start(bytes: &[u8], most: u64) -> io::Result<Vec<u8>> {
    let mut start = Vec::new();
    match reader(bytes).and_then(|reader| reader.take(most).read_to_end(&mut start)) {
        Err(error) if start.is_empty() => Err(damaged(&error)),
        _ => Ok(start),
    }
}

fn damaged(error: &io::Error) -> io::Error {
    let problem = match error.kind() {
        io::ErrorKind::UnexpectedEof => "damaged or truncated: its end is missing".to_owned(),
        _ => format!("damaged or truncated ({error})"),
    };
    io::Error::new(error.kind(), problem)
}

/// What a packed file may inflate to, in bytes.
pub(crate) fn limit(bytes: &[u8]) -> u64 {
    (bytes.len() as u64)
        .saturating_mul(MOST_RATIO)
        .clamp(ALWAYS_ALLOWED, MOST)
}

/// The whole content of what is packed, up to `most` bytes and no more than its size allows.
pub(crate) fn unpack(bytes: &[u8], most: u64) -> io::Result<Vec<u8>> {
    let limit = limit(bytes).min(most);
    let mut content = Vec::new();
    let read = reader(bytes).and_then(|reader| reader.take(limit + 1).read_to_end(&mut content));
    read.map_err(|error| damaged(&error))?;
    match content.len() as u64 > limit {
        true => Err(io::Error::other(format!(
            "it inflates to more than {} MiB, which no text about a machine does",
            limit >> 20
        ))),
        false => Ok(content),
    }
}

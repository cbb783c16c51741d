//! Files packed by gzip, xz, zstd or bzip2, recognised by their first bytes.

use std::io::{self, Read};

/// The most memory that unpacking takes, in KiB: `xz -9` needs 65 MiB. A damaged file can ask for 4 GiB.
const MOST_MEMORY_KIB: u32 = 256 << 10;

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
            Self::Xz => Box::new(lzma_rust2::XzReader::new_mem_limit(
                packed,
                true,
                MOST_MEMORY_KIB,
            )),
            Self::Zstd => {
                let reader = ruzstd::decoding::StreamingDecoder::new(packed);
                Box::new(reader.map_err(io::Error::other)?)
            }
            Self::Bzip2 => Box::new(bzip2::read::MultiBzDecoder::new(packed)),
        })
    }
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

//! The memory of a guest as a file with holes: most of it was never written, or holds zeros.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crc32fast::Hasher;
use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// What is read at once, and what is left out when it is all zeros: larger and more zeros are kept, smaller and the file has
/// more pieces.
const BLOCK: usize = 64 << 10;

/// A second opening of a file, which begins at its start.
pub fn reopened(file: impl AsFd) -> io::Result<File> {
    File::open(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))
}

/// Copies a node's memory to a new file; gives the checksum as [`sum`] does.
pub fn copy(source: impl AsFd, path: &Path) -> io::Result<u32> {
    let source = reopened(source)?;
    let target = File::create(path)?;
    target.set_len(source.metadata()?.len())?;
    let mut sum = Hasher::new();
    each_block(&source, |at, block| {
        add(&mut sum, at, block);
        target.write_all_at(block, at)
    })?;
    Ok(sum.finalize())
}

/// A checksum of the offsets and contents of all blocks that are not zero: the same for a copy whose holes are elsewhere.
pub fn sum(file: &File) -> io::Result<u32> {
    let mut sum = Hasher::new();
    each_block(file, |at, block| {
        add(&mut sum, at, block);
        Ok(())
    })?;
    Ok(sum.finalize())
}

fn add(sum: &mut Hasher, at: u64, block: &[u8]) {
    sum.update(&at.to_le_bytes());
    sum.update(block);
}

/// Calls with each block that is not zero, and its place.
fn each_block(file: &File, mut call: impl FnMut(u64, &[u8]) -> io::Result<()>) -> io::Result<()> {
    let size = file.metadata()?.len();
    let zeros = vec![0; BLOCK];
    let mut buffer = vec![0; BLOCK];
    let mut at = 0;
    while at < size {
        // From the next data on; a file system without holes says that all is data.
        at = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) => data / BLOCK as u64 * BLOCK as u64,
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let length = usize::try_from(size - at).map_or(BLOCK, |left| left.min(BLOCK));
        file.read_exact_at(&mut buffer[..length], at)?;
        if buffer[..length] != zeros[..length] {
            call(at, &buffer[..length])?;
        }
        at += BLOCK as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_copy_has_the_content_and_leaves_zeros_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        let size = 40 * BLOCK as u64 + 100;
        let source = File::create(&from).expect("a file");
        source.set_len(size).expect("room");
        source
            .write_all_at(&vec![0; 8 * BLOCK], 4 * BLOCK as u64)
            .expect("room");
        source.write_all_at(b"near", 7).expect("room");
        source.write_all_at(b"far", size - 3).expect("room");
        let sum_of_copy =
            copy(File::open(&from).expect("it is there"), &to).expect("it can be copied");
        assert!(
            std::fs::read(&from).expect("it is there") == std::fs::read(&to).expect("it is there")
        );
        let copied = File::open(&to).expect("it is there");
        assert_eq!(sum(&copied).expect("it can be read"), sum_of_copy);
        assert!(copied.metadata().expect("it is there").blocks() * 512 <= 4 * BLOCK as u64);
        File::options()
            .write(true)
            .open(&to)
            .and_then(|file| file.write_all_at(b"x", 9))
            .expect("room");
        assert_ne!(sum(&copied).expect("it can be read"), sum_of_copy);
    }
}

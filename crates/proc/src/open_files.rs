//! What a process of the running system has open or mapped, by device number.
//!
//! `/proc/PID/fd/N` leads to the file without a path, so no link of another mount namespace is followed. A file is not opened, and its
//! attributes are those that this kernel has in memory: a server that does not answer delays nothing, except where NFS has to
//! ask it whether the file is still there.

use std::fs::File;
use std::io::{self, BufReader};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, StatxFlags, openat, statx};

use crate::{maps, tasks};

/// As many as a process can have (`NR_OPEN` in include/uapi/linux/fs.h).
const MAX_FILES: usize = 1 << 20;

/// Major and minor number.
pub type DeviceNumber = (u32, u32);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenFile {
    Block(DeviceNumber),
    Character(DeviceNumber),
    /// A file, directory, pipe or socket.
    Other {
        file_system: DeviceNumber,
        /// [`Mount::id`](crate::mountinfo::Mount::id); `None` before Linux 5.8.
        mount: Option<u64>,
    },
}

/// Calls `take` for each open file of a process. Those that it closes meanwhile are left out.
///
/// # Errors
/// When there is no such process, or it is another user's.
pub fn each(pid: i32, mut take: impl FnMut(OpenFile)) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat(CWD, format!("/proc/{pid}/fd"), flags, Mode::empty())?;
    let names = Dir::read_from(&directory)?;
    for entry in names.take(MAX_FILES) {
        let entry = entry?;
        if !entry.file_name().to_bytes()[0].is_ascii_digit() {
            continue;
        }
        let wanted = StatxFlags::TYPE | StatxFlags::MNT_ID;
        match statx(
            &directory,
            entry.file_name(),
            AtFlags::STATX_DONT_SYNC,
            wanted,
        ) {
            Ok(found) => take(kind(&found)),
            Err(error) if tasks::is_gone(&error.into()) => {}
            // A file system that does not tell, such as FUSE of another user.
            Err(
                rustix::io::Errno::ACCESS | rustix::io::Errno::NOTCONN | rustix::io::Errno::STALE,
            ) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn kind(found: &rustix::fs::Statx) -> OpenFile {
    let device = (found.stx_rdev_major, found.stx_rdev_minor);
    match FileType::from_raw_mode(found.stx_mode.into()) {
        FileType::BlockDevice => OpenFile::Block(device),
        FileType::CharacterDevice => OpenFile::Character(device),
        _ => {
            let has_mount = StatxFlags::from_bits_retain(found.stx_mask);
            OpenFile::Other {
                file_system: (found.stx_dev_major, found.stx_dev_minor),
                mount: has_mount
                    .contains(StatxFlags::MNT_ID)
                    .then_some(found.stx_mnt_id),
            }
        }
    }
}

/// Calls `take` with the device of the file system of each file that a process has mapped; neighbouring mappings of one file count once.
///
/// # Errors
/// As [`each`].
pub fn each_mapped(pid: i32, mut take: impl FnMut(DeviceNumber)) -> io::Result<()> {
    let file = File::open(format!("/proc/{pid}/maps"))?;
    let mut last = Vec::new();
    maps::each(BufReader::new(file), |mapping| {
        let is_same = last == mapping.name;
        if mapping.name.starts_with(b"/") && !is_same {
            last = mapping.name.to_vec();
            device_number(mapping.device)
                .into_iter()
                .for_each(&mut take);
        }
    })
}

/// `fd:01`, in hexadecimal.
fn device_number(text: &[u8]) -> Option<DeviceNumber> {
    let (major, minor) = std::str::from_utf8(text).ok()?.split_once(':')?;
    let number = |digits| u32::from_str_radix(digits, 16).ok();
    Some((number(major)?, number(minor)?))
}

/// `259:1`, as in sysfs and mountinfo.
pub fn parse_number(text: &str) -> Option<DeviceNumber> {
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn an_open_file_has_its_file_system_and_a_device_its_number() {
        let file = tempfile::tempfile().unwrap();
        let device = file.metadata().unwrap().dev();
        let expected = (libc::major(device), libc::minor(device));
        let _null = File::open("/dev/null").unwrap();
        let mut found = Vec::new();
        each(std::process::id().cast_signed(), |file| found.push(file)).unwrap();
        let is_file = |it: &OpenFile| matches!(it, OpenFile::Other { file_system, .. } if *file_system == expected);
        assert!(found.iter().any(is_file), "{found:?}");
        assert!(found.contains(&OpenFile::Character((1, 3))), "{found:?}");
    }

    #[test]
    fn a_mapped_program_has_the_device_of_its_file() {
        let mut found = Vec::new();
        each_mapped(std::process::id().cast_signed(), |device| {
            found.push(device)
        })
        .unwrap();
        assert!(!found.is_empty());
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        let error = each(i32::MAX, |_| {}).unwrap_err();
        assert!(tasks::is_gone(&error), "{error}");
    }

    #[test]
    fn numbers_are_decimal_in_sysfs_and_hexadecimal_in_maps() {
        assert_eq!(parse_number("259:10\n"), Some((259, 10)));
        assert_eq!(device_number(b"fd:10"), Some((253, 16)));
        for none in ["", "1", ":", "1:x", "99999999999:0"] {
            assert_eq!(parse_number(none), None, "{none}");
            assert_eq!(device_number(none.as_bytes()), None, "{none}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_number_panics(bytes: Vec<u8>, text: String) {
            let _ = device_number(&bytes);
            let _ = parse_number(&text);
        }
    }
}

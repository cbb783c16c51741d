//! `/proc/PID/mountinfo`: what is mounted where (proc_pid_mountinfo(5)).
//!
//! ```text
//! 36 35 98:0 /root /mount rw,noatime master:1 - ext3 /dev/sda1 rw,errors=continue
//!       dev  root  place  options    ...      - kind source    super options
//! ```

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use crate::text;

/// One mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mount {
    /// What statx(2) has as `stx_mnt_id`.
    pub id: u64,
    /// `major:minor` of the file system.
    pub device: String,
    /// The directory of the file system that is mounted.
    pub root: PathBuf,
    /// Where it is mounted.
    pub place: PathBuf,
    /// The kind of file system; `ext4`, `cgroup2`.
    pub kind: String,
    /// What is mounted, such as a block device.
    pub source: PathBuf,
    options: Vec<u8>,
}

impl Mount {
    /// Whether the file system was mounted with this option, such as a controller of version 1 control groups.
    pub fn has_option(&self, name: &str) -> bool {
        self.options
            .split(|&byte| byte == b',')
            .any(|option| option == name.as_bytes())
    }

    /// The value of an option: `/upper` of `upperdir=/upper`.
    pub fn option_value(&self, name: &str) -> Option<PathBuf> {
        let mut options = self.options.split(|&byte| byte == b',');
        let value = options.find_map(|option| {
            option
                .strip_prefix(name.as_bytes())?
                .strip_prefix(b"=".as_slice())
        });
        value.map(unescaped)
    }
}

/// The mounts that a process sees.
///
/// # Errors
/// When there is no such process, or it is another user's.
pub fn of_process(pid: i32) -> io::Result<Vec<Mount>> {
    Ok(mounts(&std::fs::read(format!("/proc/{pid}/mountinfo"))?))
}

/// The mounts of this process's mount namespace.
///
/// # Errors
/// When /proc/self/mountinfo cannot be read.
pub fn of_this_process() -> io::Result<Vec<Mount>> {
    Ok(mounts(&std::fs::read("/proc/self/mountinfo")?))
}

/// The mounts in the kernel's order. Lines that are none are left out.
pub fn mounts(content: &[u8]) -> Vec<Mount> {
    text::lines(content).filter_map(mount).collect()
}

fn mount(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
    // Optional fields end with a dash.
    let dash = 6 + fields.get(6..)?.iter().position(|field| *field == b"-")?;
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    Some(Mount {
        id: std::str::from_utf8(fields[0]).ok()?.parse().ok()?,
        device: text(fields[2]),
        root: unescaped(fields[3]),
        place: unescaped(fields[4]),
        kind: text(fields.get(dash + 1)?),
        source: unescaped(fields.get(dash + 2)?),
        options: fields.get(dash + 3)?.to_vec(),
    })
}

/// `\040` stands for a space (mangle() in fs/seq_file.c).
fn unescaped(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        let octal = after
            .get(..3)
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match (first, octal) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    const MOUNTS: &[u8] =
        b"30 1 0:1 / /sys/fs/cgroup/unified rw shared:1 - cgroup2 cgroup2 rw\n\
        31 1 0:2 /a\\040b /c rw - cgroup cgroup rw,cpuset\n32 1 8:1 / / rw - ext4 /dev/sda1 rw\nnonsense\n";

    #[test]
    fn mounts_are_found_with_their_roots_and_options() {
        let found = mounts(MOUNTS);
        assert_eq!(found.len(), 3);
        assert_eq!(found[0].kind, "cgroup2");
        assert_eq!(
            (&found[1].root, &found[1].place),
            (&"/a b".into(), &"/c".into())
        );
        assert!(found[1].has_option("cpuset") && !found[1].has_option("cpu"));
        assert_eq!(
            (&*found[2].device, &found[2].source),
            ("8:1", &"/dev/sda1".into())
        );
        assert_eq!(found[2].id, 32);
        let overlay =
            mounts(b"7 1 0:40 / / rw - overlay overlay rw,lowerdir=/l,upperdir=/u\\040v\n");
        assert_eq!(overlay[0].option_value("upperdir"), Some("/u v".into()));
        assert_eq!(overlay[0].option_value("upper"), None);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, line in "1 2 3:4 [\\\\0-9a-z/]{1,20} [\\\\0-9a-z/]{1,20} rw( [a-z:-]{1,5}){0,6}") {
            mounts(&bytes);
            mounts(line.as_bytes());
        }
    }

    #[test]
    fn bytes_of_paths_are_kept() {
        let found = mounts(b"1 2 3:4 / /\xff rw - ext4 x rw\n");
        assert_eq!(found[0].place.as_os_str().as_bytes(), b"/\xff");
    }
}

//! Whether several systems may see the same file: a write-ahead log's index is memory, which they would not share
//! (<https://www.sqlite.org/wal.html>: "WAL does not work over a network filesystem").
//!
//! The kind of file system is looked up in `/proc/self/mountinfo` (proc_pid_mountinfo(5)). statfs(2) does not tell: 9p answers
//! with the kind that the file has on the host.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nearfar_proc::mountinfo::{self, Mount};

/// Kinds of file systems that other systems may have mounted as well. FUSE is among them for sshfs and its like.
const SHARED: [&str; 15] = [
    "9p", "virtiofs", "nfs", "nfs4", "cifs", "smb3", "ceph", "afs", "lustre", "gfs2", "ocfs2",
    "beegfs", "gpfs", "vboxsf", "prl_fs",
];

/// Whether other systems may see the same file, which need not be there yet. What cannot be found out counts as no.
pub(super) fn between_systems(path: &Path) -> bool {
    let directory = path
        .parent()
        .filter(|directory| !directory.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let Ok(found) = std::fs::metadata(path).or_else(|_| std::fs::metadata(directory)) else {
        return false;
    };
    let Ok(mounts) = mountinfo::of_this_process() else {
        return false;
    };
    let (major, minor) = (
        rustix::fs::major(found.dev()),
        rustix::fs::minor(found.dev()),
    );
    kind_of(&mounts, major, minor).is_some_and(is_shared)
}

fn is_shared(kind: &str) -> bool {
    SHARED.contains(&kind) || kind == "fuse" || kind.starts_with("fuse.")
}

/// The kind of the file system on a device.
fn kind_of(mounts: &[Mount], major: u32, minor: u32) -> Option<&str> {
    let device = format!("{major}:{minor}");
    let mount = mounts.iter().find(|mount| mount.device == device)?;
    Some(&mount.kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &[u8] = b"22 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw\n\
        31 22 0:28 / /results rw,relatime shared:4 master:1 - 9p nearfar.results rw,trans=virtio\n\
        40 22 0:40 / /media/a\\040b rw - fuse.sshfs host: rw\n\
        41 22 8:17 / /media/disk rw - fuseblk /dev/sdb1 rw";

    #[test]
    fn the_kind_of_a_file_system_is_that_of_its_device() {
        let mounts = mountinfo::mounts(MOUNTS);
        assert_eq!(kind_of(&mounts, 254, 1), Some("ext4"));
        assert_eq!(kind_of(&mounts, 0, 28), Some("9p"));
        assert_eq!(kind_of(&mounts, 0, 2), None);
        let shared = [(0, 28), (0, 40), (8, 17), (254, 1)]
            .map(|(major, minor)| kind_of(&mounts, major, minor).map(is_shared));
        assert_eq!(shared, [true, true, false, false].map(Some));
    }
}

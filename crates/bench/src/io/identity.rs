//! Which disk a block device is. Its name may be another disk's once an NVMe driver has been bound again: a namespace that something
//! holds open keeps its number, and the others move on.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::writable::{block_directory, name};

const BLOCK_DEVICES: &str = "/sys/class/block";
/// What the kernel has of a disk's own identity, below its directory: of NVMe, of SCSI.
const IDENTITIES: [&str; 2] = ["wwid", "device/wwid"];

/// A disk or one of its partitions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Identity {
    /// Its own identity; of a disk without one, where it is in sysfs.
    disk: String,
    partition: Option<String>,
    sectors: String,
}

impl Identity {
    /// Of the block device with this number.
    ///
    /// # Errors
    /// When the kernel has no such device.
    pub(super) fn of(number: u64) -> io::Result<Self> {
        Self::read(&block_directory(number)?)
    }

    fn read(directory: &Path) -> io::Result<Self> {
        let text = |path: PathBuf| fs::read_to_string(path).map(|it| it.trim().to_owned());
        let partition = text(directory.join("partition")).ok();
        let disk = match (&partition, directory.parent()) {
            (Some(_), Some(disk)) => disk,
            _ => directory,
        };
        let own = IDENTITIES.iter().filter_map(|it| text(disk.join(it)).ok());
        let own = own.into_iter().find(|it| !it.is_empty());
        Ok(Self {
            disk: own.unwrap_or_else(|| disk.display().to_string()),
            partition,
            sectors: text(directory.join("size"))?,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sectors == "0"
    }

    /// Opens the device by the path that it had, or by the one that it has now. What is opened has to be this device.
    ///
    /// # Errors
    /// When there is no such device any more, or it cannot be opened.
    pub(super) fn open_with<E: From<io::Error>>(
        &self,
        path: &Path,
        open: impl Fn(&Path) -> Result<File, E>,
    ) -> Result<(PathBuf, File), E> {
        let now = self.path_now(path)?;
        let file = open(&now)?;
        let opened = Self::of(file.metadata()?.rdev())?;
        match opened == *self {
            true => Ok((now, file)),
            false => Err(self.lost(path).into()),
        }
    }

    fn path_now(&self, path: &Path) -> io::Result<PathBuf> {
        let has_it = |path: &Path| {
            let number = fs::metadata(path).ok().map(|it| it.rdev());
            number.is_some_and(|it| Self::of(it).is_ok_and(|found| found == *self))
        };
        if has_it(path) {
            return Ok(path.to_owned());
        }
        let mut found = Vec::new();
        for entry in fs::read_dir(BLOCK_DEVICES)? {
            let device = Path::new("/dev").join(name(&entry?.path()));
            if has_it(&device) {
                found.push(device);
            }
        }
        // Several where a disk has paths that no multipath driver joins.
        match <[PathBuf; 1]>::try_from(found) {
            Ok([device]) => Ok(device),
            Err(_) => Err(self.lost(path)),
        }
    }

    fn lost(&self, path: &Path) -> io::Error {
        io::Error::other(format!(
            "{} is not the device any more that was to be measured ({})",
            path.display(),
            self.disk
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(root: &Path, name: &str, wwid: Option<&str>) -> PathBuf {
        let directory = root.join(name);
        let partition = directory.join(format!("{name}p1"));
        fs::create_dir_all(&partition).unwrap();
        fs::write(directory.join("size"), "2048\n").unwrap();
        fs::write(partition.join("size"), "1024\n").unwrap();
        fs::write(partition.join("partition"), "1\n").unwrap();
        if let Some(wwid) = wwid {
            fs::write(directory.join("wwid"), format!("{wwid}\n")).unwrap();
        }
        directory
    }

    #[test]
    fn a_disk_is_known_by_its_own_identity_and_not_by_its_name() {
        let root = tempfile::tempdir().unwrap();
        let read = |path: &Path| Identity::read(path).unwrap();
        let before = read(&disk(root.path(), "nvme0n1", Some("uuid.1")));
        let renamed = disk(root.path(), "nvme0n2", Some("uuid.1"));
        assert_eq!(read(&renamed), before);
        let partition = read(&renamed.join("nvme0n2p1"));
        assert_eq!(
            (&partition.disk, partition.partition.as_deref()),
            (&before.disk, Some("1"))
        );
        assert_ne!(partition, before);
        assert_ne!(read(&disk(root.path(), "nvme0n3", Some("uuid.2"))), before);
        let nameless = ["loop0", "loop1"].map(|name| read(&disk(root.path(), name, None)));
        assert_ne!(nameless[0], nameless[1]);
    }

    #[test]
    fn a_device_that_is_gone_is_no_other_one() {
        let gone = Identity {
            disk: "uuid.none".to_owned(),
            partition: None,
            sectors: "1".to_owned(),
        };
        let error = gone.open_with(Path::new("/dev/null"), |path| File::open(path));
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("/dev/null is not the device any more"),
            "{error}"
        );
    }
}

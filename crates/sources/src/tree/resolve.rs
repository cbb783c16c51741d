//! Finding a path below a root without the kernel's help: `openat2` came with Linux 5.6, and some sandboxes refuse it.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

/// As many links as the kernel follows (`MAXSYMLINKS` in include/linux/namei.h).
const MOST_LINKS: usize = 40;

/// Opens `path` as if `root` were `/`: links and `..` do not lead out of it.
pub(super) fn open(root: BorrowedFd<'_>, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut parts: VecDeque<String> = split(path).collect();
    let mut above: Vec<OwnedFd> = Vec::new();
    let mut links = 0;
    while let Some(part) = parts.pop_front() {
        let here = above.last().map_or(root, AsFd::as_fd);
        if part == ".." {
            above.pop();
            continue;
        }
        let found = rustix::fs::openat(
            here,
            &*part,
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let is_link = FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode).is_symlink();
        let is_last = parts.is_empty();
        if is_link && !(is_last && flags.contains(OFlags::NOFOLLOW)) {
            links += 1;
            if links > MOST_LINKS {
                return Err(Errno::LOOP);
            }
            let target = rustix::fs::readlinkat(&found, "", Vec::new())?;
            let target = target.to_str().map_err(|_| Errno::INVAL)?;
            if target.starts_with('/') {
                above.clear();
            }
            split(target).rev().for_each(|part| parts.push_front(part));
        } else if is_last {
            return rustix::fs::openat(here, &*part, flags | OFlags::NOFOLLOW, Mode::empty());
        } else {
            above.push(found);
        }
    }
    // The path ends with `..` or is the root itself.
    rustix::fs::openat(
        above.last().map_or(root, AsFd::as_fd),
        ".",
        flags,
        Mode::empty(),
    )
}

fn split(path: &str) -> impl DoubleEndedIterator<Item = String> + '_ {
    path.split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use rustix::fs::ResolveFlags;

    use super::*;

    /// The inode that a path leads to, found in both ways.
    fn both(root: &OwnedFd, path: &str) -> [Result<u64, Errno>; 2] {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let inode = |opened: Result<OwnedFd, Errno>| {
            opened.map(|file| std::fs::File::from(file).metadata().unwrap().ino())
        };
        let kernel = rustix::fs::openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT);
        [inode(open(root.as_fd(), path, flags)), inode(kernel)]
    }

    #[test]
    fn paths_lead_where_the_kernel_leads() {
        let directory = tempfile::tempdir().unwrap();
        let at = |path: &str| directory.path().join(path);
        std::fs::create_dir_all(at("a/b")).unwrap();
        std::fs::write(at("a/b/file"), "x").unwrap();
        std::fs::write(at("etc"), "not the system's").unwrap();
        for (link, target) in [
            ("absolute", "/a/b/file"),
            ("a/up", "../../../../../etc"),
            ("a/loop", "loop"),
            ("chain", "a/b/../b/./file"),
            ("dangling", "nothing"),
            ("a/directory", "b"),
        ] {
            symlink(target, at(link)).unwrap();
        }
        let root = rustix::fs::open(
            directory.path(),
            OFlags::PATH | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .unwrap();
        for path in [
            "a/b/file",
            "/a//b/./file",
            "absolute",
            "a/up",
            "a/loop",
            "chain",
            "dangling",
            "a/directory/file",
            "..",
            "a/..",
            ".",
            "../../a",
            "a/b/file/x",
            "nothing/x",
            "a/b/../../etc",
        ] {
            let [ours, kernel] = both(&root, path);
            if kernel == Err(Errno::NOSYS) {
                eprintln!("skipped: kernel: this kernel has no openat2 to compare with");
                return;
            }
            assert_eq!(ours, kernel, "{path}");
        }
    }
}

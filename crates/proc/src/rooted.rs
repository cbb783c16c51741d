//! Opening a path as if a directory were `/`, so that no link and no `..` leads out of it.
//!
//! The kernel resolves the path where it can (`openat2` with RESOLVE_IN_ROOT, Linux 5.6). Elsewhere, and in sandboxes that
//! know no openat2, it is walked one name at a time.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

/// As many links as the kernel follows (`MAXSYMLINKS` in include/linux/namei.h).
pub const MAX_LINKS: usize = 40;
/// How often a path is tried again whose directories are being renamed.
const MAX_TRIES: usize = 16;

/// Opens `path` below `root`, creating nothing. `/` and the empty path are the root itself.
///
/// # Errors
/// The kernel's; `EAGAIN` where directories are renamed all the time, since it cannot tell then that the path stays inside.
pub fn open(root: impl AsFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let below = match path.trim_start_matches('/') {
        "" => ".",
        below => below,
    };
    let flags = flags | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..MAX_TRIES {
        match openat2(&root, below, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN) => {}
            Err(Errno::NOSYS) => return walk(root.as_fd(), below, flags),
            opened => return opened,
        }
    }
    Err(Errno::AGAIN)
}

/// Opens `name`, which has no `..`, in a directory; `ELOOP` for a link anywhere on the way, also the last name.
///
/// # Errors
/// The kernel's.
pub fn open_without_links(
    directory: impl AsFd,
    name: &str,
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC;
    if name.starts_with('/') || name.split('/').any(|part| part == "..") {
        return Err(Errno::LOOP);
    }
    if name.contains('/') {
        return openat2(
            directory,
            name,
            flags,
            Mode::empty(),
            ResolveFlags::NO_SYMLINKS,
        );
    }
    openat(directory, name, flags | OFlags::NOFOLLOW, Mode::empty())
}

fn walk(root: BorrowedFd<'_>, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut parts: VecDeque<String> = split(path).collect();
    let mut above: Vec<OwnedFd> = Vec::new();
    let mut links = 0;
    while let Some(part) = parts.pop_front() {
        let here = above.last().map_or(root, AsFd::as_fd);
        if part == ".." {
            above.pop();
            continue;
        }
        let found = openat(
            here,
            &*part,
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let is_link = FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode).is_symlink();
        let is_last = parts.is_empty();
        if is_link && !(is_last && flags.contains(OFlags::NOFOLLOW)) {
            links += 1;
            if links > MAX_LINKS {
                return Err(Errno::LOOP);
            }
            let target = rustix::fs::readlinkat(&found, "", Vec::new())?;
            let target = target.to_str().map_err(|_| Errno::INVAL)?;
            if target.starts_with('/') {
                above.clear();
            }
            split(target).rev().for_each(|part| parts.push_front(part));
        } else if is_last {
            return openat(here, &*part, flags | OFlags::NOFOLLOW, Mode::empty());
        } else {
            above.push(found);
        }
    }
    // The path ends with `..` or is the root itself.
    let here = above.last().map_or(root, AsFd::as_fd);
    openat(here, ".", flags, Mode::empty())
}

fn split(path: &str) -> impl DoubleEndedIterator<Item = String> + '_ {
    path.split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use super::*;

    fn inode(opened: Result<OwnedFd, Errno>) -> Result<u64, Errno> {
        opened.map(|file| File::from(file).metadata().unwrap().ino())
    }

    fn tree() -> (tempfile::TempDir, OwnedFd) {
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
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let root = rustix::fs::open(directory.path(), flags, Mode::empty()).unwrap();
        (directory, root)
    }

    #[test]
    fn paths_lead_where_the_kernel_leads() {
        let (_directory, root) = tree();
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
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let kernel = openat2(&root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT);
            if kernel.as_ref().is_err_and(|error| *error == Errno::NOSYS) {
                eprintln!("skipped: kernel: this kernel has no openat2 to compare with");
                return;
            }
            let kernel = inode(kernel);
            assert_eq!(inode(walk(root.as_fd(), path, flags)), kernel, "{path}");
            assert_eq!(inode(open(&root, path, flags)), kernel, "{path}");
        }
    }

    #[test]
    fn a_link_out_of_the_root_stays_inside() {
        let (directory, root) = tree();
        let inside = std::fs::metadata(directory.path().join("etc"))
            .unwrap()
            .ino();
        assert_eq!(inode(open(&root, "a/up", OFlags::RDONLY)), Ok(inside));
    }

    #[test]
    fn without_links_none_is_followed() {
        let (_directory, root) = tree();
        let open = |name| open_without_links(&root, name, OFlags::RDONLY).map(drop);
        assert_eq!(open("a/b/file"), Ok(()));
        for name in ["absolute", "a/directory/file", "a/../etc", "/etc"] {
            assert_eq!(open(name), Err(Errno::LOOP), "{name}");
        }
    }
}

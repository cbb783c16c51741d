//! Paths that other users could have changed.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, lchown, symlink};
use std::path::Path;

use nearfar_change::trusted::{TrustError, TrustedDir, open_to_read};
use rustix::fs::OFlags;

const NOBODY: u32 = 65534;

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Gives something to another user, which only root can.
fn gave_away(path: &Path) -> bool {
    lchown(path, Some(NOBODY), Some(NOBODY)).is_ok() || {
        println!("skipped: root: only root can make a file of another user");
        false
    }
}

fn text(error: TrustError) -> String {
    error.to_string()
}

#[test]
fn missing_directories_are_made_for_this_user_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/b");
    assert_eq!(
        TrustedDir::open(&path).unwrap_err().kind(),
        std::io::ErrorKind::NotFound
    );
    let made = TrustedDir::make(&path).unwrap();
    made.open_file("lock", OFlags::RDWR | OFlags::CREATE)
        .unwrap();
    for (path, expected) in [("a", 0o700), ("a/b", 0o700), ("a/b/lock", 0o600)] {
        assert_eq!(
            fs::metadata(dir.path().join(path)).unwrap().mode() & 0o777,
            expected,
            "{path}"
        );
    }
}

#[test]
fn a_file_is_never_opened_through_a_link() {
    let dir = tempfile::tempdir().unwrap();
    let victim = dir.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    symlink(&victim, dir.path().join("lock")).unwrap();
    let opened = TrustedDir::open(dir.path())
        .unwrap()
        .open_file("lock", OFlags::RDWR | OFlags::CREATE);
    assert!(text(opened.unwrap_err()).contains("symbolic links"));
    assert_eq!(fs::read_to_string(victim).unwrap(), "precious");
}

#[test]
fn own_links_on_the_way_are_followed_and_loops_end() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("real")).unwrap();
    mode(&dir.path().join("real"), 0o755);
    symlink("./real", dir.path().join("relative")).unwrap();
    symlink(
        dir.path().join("relative/../relative"),
        dir.path().join("absolute"),
    )
    .unwrap();
    TrustedDir::make(&dir.path().join("absolute/new")).unwrap();
    assert!(dir.path().join("real/new").is_dir());
    symlink("loop", dir.path().join("loop")).unwrap();
    assert!(
        text(TrustedDir::open(&dir.path().join("loop/x")).unwrap_err()).contains("symbolic links")
    );
    fs::write(dir.path().join("file"), "").unwrap();
    let through_file = TrustedDir::open(&dir.path().join("file/x")).unwrap_err();
    assert_eq!(through_file.kind(), std::io::ErrorKind::NotADirectory);
}

#[test]
fn a_link_or_directory_of_another_user_is_refused_wherever_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (own, planted, theirs) = (
        dir.path().join("own"),
        dir.path().join("planted"),
        dir.path().join("theirs"),
    );
    fs::create_dir_all(own.join("x")).unwrap();
    fs::create_dir_all(theirs.join("x")).unwrap();
    symlink(&own, &planted).unwrap();
    if !gave_away(&planted) || !gave_away(&theirs) {
        return;
    }
    for path in [
        planted.join("x"),
        planted.clone(),
        theirs.join("x"),
        theirs.clone(),
    ] {
        let error = text(TrustedDir::make(&path).unwrap_err());
        assert!(
            error.contains("belongs to user 65534"),
            "{}: {error}",
            path.display()
        );
    }
    // What is on the way is named.
    assert!(
        text(TrustedDir::open(&theirs.join("x")).unwrap_err())
            .starts_with(theirs.to_str().unwrap())
    );
}

#[test]
fn a_directory_that_others_may_write_is_refused_and_a_sticky_one_only_as_the_last() {
    let dir = tempfile::tempdir().unwrap();
    let shared = dir.path().join("shared");
    fs::create_dir_all(shared.join("own")).unwrap();
    mode(&shared.join("own"), 0o700);
    for (bits, passes) in [
        (0o777, false),
        (0o1777, true),
        (0o755, true),
        (0o757, false),
        // The group is this user's own. Which other users are in it is unknown.
        (0o775, false),
    ] {
        mode(&shared, bits);
        assert_eq!(
            TrustedDir::open(&shared.join("own")).is_ok(),
            passes,
            "{bits:o}"
        );
    }
    for bits in [0o777, 0o1777, 0o775, 0o757] {
        mode(&shared, bits);
        assert!(
            text(TrustedDir::open(&shared).unwrap_err()).contains("others may write there"),
            "{bits:o}"
        );
    }
}

#[test]
fn a_file_that_others_wrote_or_can_write_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "own").unwrap();
    mode(&file, 0o644);
    symlink("file", dir.path().join("link")).unwrap();
    for name in ["file", "link"] {
        let mut read = String::new();
        open_to_read(&dir.path().join(name))
            .unwrap()
            .read_to_string(&mut read)
            .unwrap();
        assert_eq!(read, "own", "{name}");
    }
    for bits in [0o646, 0o664] {
        mode(&file, bits);
        assert!(
            text(open_to_read(&file).unwrap_err()).contains("others may write it"),
            "{bits:o}"
        );
    }
    mode(&file, 0o644);
    mode(dir.path(), 0o777);
    assert!(text(open_to_read(&file).unwrap_err()).contains("others may write there"));
    mode(dir.path(), 0o1777);
    open_to_read(&file).unwrap();
    assert!(matches!(
        open_to_read(dir.path()),
        Err(TrustError::NotRegular)
    ));
    assert!(matches!(
        open_to_read(Path::new("/dev/null")),
        Err(TrustError::NotRegular)
    ));
    if gave_away(&file) {
        assert!(text(open_to_read(&file).unwrap_err()).contains("belongs to user 65534"));
    }
}

/// Lets [`NOBODY`] write it by an access control list, as `setfacl -m u:65534:rwx` does (acl(5); the layout is in
/// include/uapi/linux/posix_acl_xattr.h). Not every file system has them.
fn let_nobody_write(path: &Path) -> bool {
    const UNNAMED: u32 = u32::MAX;
    // ACL_USER_OBJ, ACL_USER, ACL_GROUP_OBJ, ACL_MASK, ACL_OTHER.
    let entries: [(u16, u16, u32); 5] = [
        (0x01, 7, UNNAMED),
        (0x02, 7, NOBODY),
        (0x04, 5, UNNAMED),
        (0x10, 7, UNNAMED),
        (0x20, 5, UNNAMED),
    ];
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, may, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(may.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    let flags = rustix::fs::XattrFlags::empty();
    let set = rustix::fs::setxattr(path, "system.posix_acl_access", &value, flags);
    set.is_ok() || {
        println!("skipped: kernel: the file system has no access control lists");
        false
    }
}

#[test]
fn what_an_access_control_list_lets_another_user_write_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (file, way) = (dir.path().join("file"), dir.path().join("way"));
    fs::write(&file, "own").unwrap();
    fs::create_dir_all(way.join("own")).unwrap();
    mode(&file, 0o644);
    mode(&way.join("own"), 0o755);
    if !let_nobody_write(&file) || !let_nobody_write(&way) {
        return;
    }
    assert!(text(open_to_read(&file).unwrap_err()).contains("others may write it"));
    for path in [&way, &way.join("own")] {
        let error = text(TrustedDir::open(path).unwrap_err());
        assert!(error.contains("others may write there"), "{error}");
    }
    // chmod g-w sets the list's mask, which takes the right from every user named in it.
    mode(&file, 0o644);
    mode(&way, 0o755);
    open_to_read(&file).unwrap();
    TrustedDir::open(&way.join("own")).unwrap();
}

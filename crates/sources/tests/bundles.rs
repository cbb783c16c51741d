//! Archives of trees, as people attach them.

use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::LazyLock;

use crate::small_trees;
use nearfar_machine::Machine;
use nearfar_sources::packed::{self, Packing};
use nearfar_sources::{Request, SourceError, Want, read, read_bytes};
use proptest::prelude::*;
use tar::{Builder, EntryType, Header};

fn from(source: &Path) -> Result<Machine, SourceError> {
    read(&Request::source(source.display().to_string(), Want::all()))
}

/// An archive of a folder, below `name`.
fn archive(folder: &Path, name: &str) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    builder.follow_symlinks(false);
    builder.append_dir_all(name, folder).unwrap();
    builder.into_inner().unwrap()
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(content).unwrap();
    packed.finish().unwrap()
}

fn bzip2(content: &[u8]) -> Vec<u8> {
    let mut packed = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    packed.write_all(content).unwrap();
    packed.finish().unwrap()
}

fn tree() -> tempfile::TempDir {
    small_trees::unpack(&small_trees::named("two-nodes")).0
}

/// What is read, without where.
fn without_place(mut machine: Machine, place: &str) -> Machine {
    let json = serde_json::to_string(&machine).unwrap();
    machine = serde_json::from_str(&json.replace(place, "PLACE")).unwrap();
    machine
}

#[test]
fn a_tree_in_an_archive_is_read_as_the_tree_itself() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in small_trees::all() {
        let (tree, _) = small_trees::unpack(&text);
        let tree = tree.path();
        let read = from(tree).unwrap();
        let plain = archive(tree, "sosreport-host-1");
        let contents = [gzip(&plain), bzip2(&plain), plain];
        for (packing, content) in contents.into_iter().enumerate() {
            let file = folder.path().join("sosreport");
            std::fs::write(&file, content).unwrap();
            let place = format!("{}/sosreport-host-1", file.display());
            let mut unpacked = from(&file).unwrap();
            assert_eq!(unpacked.origin.kind.to_string(), "archive", "{name}");
            unpacked.origin.kind = read.origin.kind;
            assert_eq!(
                without_place(unpacked, &place),
                without_place(read.clone(), &tree.display().to_string()),
                "{name} {packing}"
            );
        }
    }
}

#[test]
fn content_is_unpacked_however_it_is_packed() {
    let packed: [(Packing, &[u8]); 4] = [
        (Packing::Gzip, &gzip(b"x\n")),
        (Packing::Bzip2, &bzip2(b"x\n")),
        (
            Packing::Xz,
            b"\xfd7zXZ\0\0\x04\xe6\xd6\xb4\x46\x02\0\x21\x01\x16\0\0\0\x74\x2f\xe5\xa3\x01\0\x01x\n\0\
              \0\0\x37\x4a\x51\xdc\x33\xa2\xca\xb0\0\x01\x1a\x02\xdc\x2e\xa5\x7e\x1f\xb6\xf3\x7d\x01\0\0\0\0\x04YZ",
        ),
        (
            Packing::Zstd,
            b"\x28\xb5\x2f\xfd\x04\x58\x11\0\0x\n\xae\xfd\xe9\x22",
        ),
    ];
    for (packing, content) in packed {
        assert_eq!(Packing::of(content), Some(packing));
        let mut text = String::new();
        let mut reader = packed::reader(content).unwrap();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "x\n", "{packing:?}");
        // What several programs at once, or `cat`, put one after the other.
        let twice = [content, content].concat();
        let mut text = String::new();
        let mut reader = packed::reader(&twice).unwrap();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "x\nx\n", "{packing:?}");
    }
}

/// Archives of nodes in an archive of a cluster, whether that was extracted or not.
#[test]
fn of_several_machines_one_is_named_by_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let tree = tree();
    // What lies above the archive does not count.
    let cluster = folder.path().join("dev/must-gather");
    for node in ["a", "b"] {
        let folder = cluster.join("nodes").join(node);
        std::fs::create_dir_all(&folder).unwrap();
        let content = gzip(&archive(tree.path(), ""));
        std::fs::write(folder.join("sysinfo.tgz"), content).unwrap();
        std::fs::write(folder.join("dmesg.gz"), gzip(b"Linux version 6.1\n")).unwrap();
    }
    let file = folder.path().join("must-gather.tar.gz");
    std::fs::write(&file, gzip(&archive(&cluster, "must-gather"))).unwrap();
    let inner = "nodes/b/sysinfo.tgz";
    for top in [cluster, file.join("must-gather")] {
        let one = top.join(inner);
        let source = if top.exists() { &top } else { &file };
        let error = from(source).unwrap_err().to_string();
        assert!(error.contains("it holds 2 machines"), "{error}");
        assert!(
            error
                .lines()
                .any(|line| line.trim() == one.to_str().unwrap()),
            "{error}"
        );
        let machine = from(&one).unwrap();
        assert_eq!(machine.nodes.len(), from(tree.path()).unwrap().nodes.len());
        assert_eq!(machine.origin.place, one.display().to_string());
        let error = from(&top.join("nodes/c")).unwrap_err().to_string();
        assert!(error.contains("nodes/c"), "{error}");
    }
}

/// Whatever an archive says, nothing is written or read outside of the folder it is unpacked to.
#[test]
fn paths_and_links_of_an_archive_lead_nowhere_else() {
    let folder = tempfile::tempdir().unwrap();
    let outside = folder.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("secret"), "7").unwrap();
    let mut builder = Builder::new(Vec::new());
    let mut add = |kind: EntryType, path: &str, target: &str, content: &str| {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        // set_path() refuses what this is about.
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        builder.append(&header, content.as_bytes()).unwrap();
    };
    let out = outside.to_str().unwrap();
    let (file, link, hard) = (EntryType::Regular, EntryType::Symlink, EntryType::Link);
    add(file, "sys/devices/system/cpu/online", "", "0-1\n");
    add(file, "sys/devices/system/node/online", "", "0\n");
    add(file, "sys/devices/system/node/node0/cpulist", "", "0-1\n");
    add(
        file,
        &format!("sys/../../../../../../../../..{out}/a"),
        "",
        "x",
    );
    add(file, &format!("{out}/sys/b"), "", "x");
    add(link, "sys/out", out, "");
    add(file, "sys/out/c", "", "x");
    add(link, "sys/out/d", "e", "");
    add(link, "proc/in", "../../../../../../../../..", "");
    add(
        hard,
        "sys/devices/system/node/node0/distance",
        &format!("{out}/secret"),
        "",
    );
    add(
        hard,
        "sys/devices/system/node/node0/meminfo",
        "../../../../../../../../../etc/passwd",
        "",
    );
    add(
        link,
        "sys/devices/system/node/node0/vmstat",
        &format!("{out}/secret"),
        "",
    );
    let deep = "a/".repeat(45);
    add(file, &format!("sys/{deep}b"), "", "x");
    add(EntryType::Fifo, "proc/cpuinfo", "", "");
    add(EntryType::Char, "proc/interrupts", "", "");
    add(file, "sys/devices/system/cpu/online/below-a-file", "", "x");
    let content = builder.into_inner().unwrap();
    let machine = read_bytes(&content, "hostile.tar").unwrap();
    assert_eq!(machine.nodes.len(), 1);
    assert!(machine.distances.get().is_none(), "{:?}", machine.distances);
    let left_out: Vec<&str> = machine
        .warnings
        .iter()
        .map(|warning| &*warning.message)
        .collect();
    assert!(
        left_out
            .iter()
            .any(|message| message.contains("leads out of the archive")),
        "{left_out:?}"
    );
    let names = std::fs::read_dir(&outside)
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["secret"]);
}

#[test]
fn an_archive_without_a_machine_or_with_its_end_missing_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("logs")).unwrap();
    symlink("/", folder.path().join("logs/root")).unwrap();
    std::fs::write(folder.path().join("logs/journal"), "nothing").unwrap();
    let error = |content: &[u8]| read_bytes(content, "logs.tar").unwrap_err().to_string();
    let none = error(&archive(folder.path(), "x"));
    assert!(none.contains("logs.tar: no directory in it"), "{none}");
    let none = from(folder.path()).unwrap_err().to_string();
    assert!(none.contains("the directory that holds"), "{none}");
    for (content, length) in [(gzip(&ARCHIVE), 40), (ARCHIVE.clone(), 600)] {
        let cut = error(&content[..length]);
        assert!(cut.contains("logs.tar"), "{cut}");
        assert!(!cut.contains("deflate") && !cut.contains("block"), "{cut}");
    }
}

#[test]
fn what_comes_before_the_cut_of_an_archive_is_read() {
    let mut builder = Builder::new(Vec::new());
    for (path, content) in [
        ("x/sys/devices/system/cpu/online", "0-3\n"),
        ("x/sys/devices/system/node/online", "0-1\n"),
        ("x/sys/devices/system/node/node0/cpulist", "0-1\n"),
        ("x/sys/devices/system/node/node1/cpulist", "2-3\n"),
    ] {
        let mut header = Header::new_gnu();
        header.set_size(content.len() as u64);
        builder
            .append_data(&mut header, path, content.as_bytes())
            .unwrap();
    }
    let whole = builder.into_inner().unwrap();
    // Each member is a head and a block: of the last one a part of the content, of the head, or of the padding is missing.
    for length in [3 * 1024 + 512 + 2, 3 * 1024 + 200] {
        let content = &whole[..length];
        let inner = {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("a.tar"), content).unwrap();
            archive(folder.path(), "")
        };
        for (content, named) in [
            (content.to_vec(), "the archive was cut: x/sys"),
            (inner, "a.tar was cut: a.tar/x/sys"),
        ] {
            let machine = read_bytes(&content, "cut.tar").unwrap();
            assert_eq!(machine.cpus.len(), 4);
            let node = |at: usize| machine.nodes[at].cpus.get().map(ToString::to_string);
            assert_eq!((node(0).as_deref(), node(1)), (Some("0-1"), None));
            let is_named = |it: &nearfar_machine::Warning| {
                it.message.starts_with(named)
                    && it.message.contains("node0/cpulist is its last whole")
            };
            assert!(
                machine.warnings.iter().any(is_named),
                "{:?}",
                machine.warnings
            );
        }
    }
    let packed = gzip(&whole);
    let machine = read_bytes(&packed[..packed.len() - 12], "cut.tgz").unwrap();
    assert_eq!(machine.nodes.len(), 2);
}

static ARCHIVE: LazyLock<Vec<u8>> = LazyLock::new(|| archive(tree().path(), "x"));

#[test]
fn a_damaged_archive_in_another_one_gives_nothing_and_a_cut_one_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let whole = gzip(&ARCHIVE);
    std::fs::write(folder.path().join("a.tgz"), &whole).unwrap();
    let mut damaged = whole.clone();
    let middle = whole.len() / 2;
    damaged[middle..middle + 8].fill(0xff);
    std::fs::write(folder.path().join("b.tgz"), damaged).unwrap();
    let machine = read_bytes(&archive(folder.path(), ""), "outer.tar").unwrap();
    assert_eq!(machine.origin.place, "outer.tar/a.tgz/x");
    let [warning] = &machine.warnings[..] else {
        panic!("{:?}", machine.warnings);
    };
    assert!(
        warning.message.contains("b.tgz was left out"),
        "{warning:?}"
    );
    // Without the blocks of zeros at its end.
    let end = ARCHIVE.iter().rposition(|&byte| byte != 0).unwrap();
    let machine = read_bytes(&ARCHIVE[..(end / 512 + 1) * 512], "cut.tar").unwrap();
    let cut = |it: &&nearfar_machine::Warning| it.message.contains("perhaps it was cut");
    assert_eq!(
        machine.warnings.iter().filter(cut).count(),
        1,
        "{:?}",
        machine.warnings
    );
}

#[test]
fn folders_of_an_archive_are_limited() {
    let mut builder = Builder::new(Vec::new());
    let parts = "d/".repeat(60);
    for number in 0..20_000 {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Directory);
        header.set_size(0);
        let path = format!("m/sys/{number}/{parts}");
        builder.append_data(&mut header, path, &[][..]).unwrap();
    }
    let error = read_bytes(&gzip(&builder.into_inner().unwrap()), "folders.tgz").unwrap_err();
    assert!(
        error.to_string().contains("more than any bundle"),
        "{error}"
    );
}

#[test]
fn the_last_of_two_entries_counts_and_file_systems_of_the_kernel_are_not_looked_through() {
    let mut builder = Builder::new(Vec::new());
    for content in ["0-7\n", "0-3\n"] {
        let mut header = Header::new_gnu();
        header.set_size(4);
        let path = "sys/devices/system/cpu/online";
        builder
            .append_data(&mut header, path, content.as_bytes())
            .unwrap();
    }
    let machine = read_bytes(&builder.into_inner().unwrap(), "twice.tar").unwrap();
    assert_eq!(machine.cpus.len(), 4);
    for place in ["/proc", "/sys"] {
        let error = from(Path::new(place)).unwrap_err().to_string();
        assert!(error.contains("is wanted"), "{error}");
    }
}

proptest! {
    #[test]
    fn any_archive_is_read_without_panic(at in any::<prop::sample::Index>(), byte: u8, length in any::<prop::sample::Index>()) {
        let mut content = ARCHIVE.clone();
        let place = at.index(content.len());
        content[place] = byte;
        content.truncate(content.len() - length.index(content.len() / 8));
        let _ = read_bytes(&content, "any.tar");
    }
}

#[test]
fn processes_that_were_not_gathered_are_unknown() {
    let tree = tree();
    assert!(!tree.path().join("proc/1").exists());
    let machine = from(tree.path()).unwrap();
    assert!(machine.tasks.get().is_none(), "{:?}", machine.tasks);
}

#[test]
fn two_hosts_are_not_one_machine() {
    let trees = ["a", "b"].map(|host| {
        let tree = tree();
        std::fs::write(tree.path().join("proc/sys/kernel/hostname"), host).unwrap();
        tree
    });
    let request = Request {
        sources: trees
            .each_ref()
            .map(|tree| tree.path().display().to_string())
            .to_vec(),
        ..Request::live(Want::all())
    };
    let error = read(&request).unwrap_err().to_string();
    assert!(
        error.contains("different machines: host \"a\" and \"b\""),
        "{error}"
    );
}

//! Listing, limiting and clearing made-up caches. None of this needs QEMU.

use std::fs::{self, File};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use nearfar_lab::LabError;
use nearfar_lab::cache::{Cache, CacheEntry, DEFAULT_LIMIT_BYTES, Kind, parse_limit};
use nearfar_lab::guest::SavedRecord;
use proptest::prelude::*;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

fn new_cache() -> (TempDir, Cache) {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path().join("nearfar"));
    fs::create_dir(cache.root()).unwrap();
    (folder, cache)
}

fn write(path: &Path, bytes: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

fn set_age(path: &Path, hours: u64) {
    let time = SystemTime::now() - Duration::from_secs(hours * 3600);
    File::open(path).unwrap().set_modified(time).unwrap();
}

fn unpacked(cache: &Cache, name: &str, bytes: u64, hours: u64) -> PathBuf {
    let path = cache.root().join("unpacked").join(name);
    write(&path, vec![1; bytes as usize]);
    set_age(&path, hours);
    path
}

fn record(memory_bytes: u64) -> String {
    let memory = [serde_json::json!({ "file": "memory-0", "bytes": memory_bytes })];
    serde_json::json!({
        "format": 1, "machine": "two-node", "kernel": "6.12.117+deb12-amd64", "arch": "x86_64", "cpus": 4, "nodes": 2,
        "qemu": "10.0.2", "state_sha256": "", "memory": memory, "a key of a later version": [],
    })
    .to_string()
}

/// A saved guest of 1 GiB, of which `bytes` are allocated.
fn saved(cache: &Cache, digit: char, bytes: u64, hours: u64) -> PathBuf {
    let folder = cache
        .root()
        .join("saved")
        .join(digit.to_string().repeat(64));
    write(&folder.join("state"), "state");
    let mut memory = File::create(folder.join("memory-0")).unwrap();
    memory.set_len(1 << 30).unwrap();
    memory.seek(SeekFrom::Start(512 * MIB)).unwrap();
    memory.write_all(&vec![1; bytes as usize]).unwrap();
    write(&folder.join("record.json"), record(1 << 30));
    set_age(&folder.join("record.json"), hours);
    folder
}

fn kernel(cache: &Cache, bytes: u64, hours: u64) -> PathBuf {
    let folder = cache.root().join("kernels/x86_64/6.1.0-56-amd64");
    write(&folder.join("boot/vmlinuz"), vec![1; bytes as usize]);
    write(&folder.join("lib/modules/6.1.0-56-amd64/modules.dep"), "");
    let record = serde_json::json!({
        "series": "6.1", "arch": "x86_64", "release": "6.1.0-56-amd64", "package": "", "version": "",
        "package_sha256": "", "image": "boot/vmlinuz", "image_bytes": bytes, "image_sha256": "",
    });
    write(&folder.join("record.json"), record.to_string());
    set_age(&folder.join("record.json"), hours);
    folder
}

fn paths(entries: &[CacheEntry]) -> Vec<&Path> {
    entries.iter().map(|entry| entry.path.as_path()).collect()
}

fn only(cache: &Cache) -> CacheEntry {
    let mut entries = cache.entries().unwrap();
    assert_eq!(entries.len(), 1, "{entries:#?}");
    entries.remove(0)
}

#[test]
fn entries_have_a_kind_a_name_and_a_time() {
    let (_folder, cache) = new_cache();
    unpacked(&cache, "vmlinuz-6.12-8dd5b23fe1b9e5b2", 10, 5);
    saved(&cache, 'a', MIB, 3);
    kernel(&cache, MIB, 50);
    write(&cache.root().join("foreign/aarch64/busybox"), "x");
    write(&cache.root().join("packages/x86_64/lists/a"), "x");
    write(&cache.root().join("probes/kvm-x86_64.json"), "{}");
    set_age(&cache.root().join("packages/x86_64"), 1);
    set_age(&cache.root().join("probes"), 2);
    // Not entries: files of the cache itself, unfinished work, files of other programs.
    for name in [
        "lock",
        "limit.json",
        "making-abcd/half",
        "notes/mine",
        "unpacked/.tmpXYZ",
    ] {
        write(&cache.root().join(name), "x");
    }
    let entries = cache.entries().unwrap();
    let seen: Vec<_> = entries
        .iter()
        .map(|entry| (entry.kind, entry.name.as_str()))
        .collect();
    let wanted = [
        (
            Kind::SavedGuest,
            "two-node, 4 CPUs on 2 nodes, Linux 6.12.117+deb12-amd64, QEMU 10.0.2",
        ),
        (Kind::Unpacked, "vmlinuz-6.12"),
        (Kind::Kernel, "6.1.0-56-amd64 (x86_64)"),
        (Kind::Foreign, "programs for aarch64 guests"),
        (Kind::Other, "package lists (x86_64)"),
        (Kind::Other, "results of probes of QEMU and KVM"),
    ];
    assert_eq!(seen, wanted);
    assert!(
        entries.iter().all(|entry| entry.problem.is_none()),
        "{entries:#?}"
    );
    for (entry, hours) in entries.iter().zip([3, 5, 50]) {
        let age = entry.last_used.elapsed().unwrap().as_secs();
        assert!(
            (hours * 3600..hours * 3600 + 600).contains(&age),
            "{entry:?}"
        );
    }
    let json = serde_json::to_value(&entries[0]).unwrap();
    assert_eq!(json["kind"], "saved-guest");
    assert!(
        json["last_used_at_s"].is_u64() && json["bytes"].is_u64(),
        "{json}"
    );
}

#[test]
fn sizes_are_allocated_blocks() {
    let (_folder, cache) = new_cache();
    let folder = saved(&cache, 'a', MIB, 1);
    let bytes = only(&cache).bytes;
    assert!((MIB..10 * MIB).contains(&bytes), "{bytes}");
    let files = ["", "state", "memory-0", "record.json"]
        .map(|name| fs::symlink_metadata(folder.join(name)).unwrap());
    assert_eq!(
        bytes,
        files.iter().map(|file| file.blocks() * 512).sum::<u64>()
    );
}

#[test]
fn a_link_is_neither_followed_nor_counted_nor_emptied() {
    let (folder, cache) = new_cache();
    let outside = folder.path().join("outside/file");
    write(&outside, vec![1; MIB as usize]);
    fs::create_dir(cache.root().join("saved")).unwrap();
    std::os::unix::fs::symlink(outside.parent().unwrap(), cache.root().join("saved/link")).unwrap();
    assert!(only(&cache).bytes < MIB);
    assert_eq!(cache.clear(&[Kind::SavedGuest]).unwrap().removed.len(), 1);
    assert!(outside.exists() && cache.entries().unwrap().is_empty());
}

#[test]
fn a_damaged_saved_guest_is_listed_with_the_problem() {
    type Damage = fn(&Path);
    let cases: [(Damage, &str); 9] = [
        (
            |folder| fs::remove_file(folder.join("record.json")).unwrap(),
            "record.json: No such file",
        ),
        (
            |folder| write(&folder.join("record.json"), b"\xff{"),
            "record.json: ",
        ),
        (
            |folder| write(&folder.join("record.json"), "{\"format\":2}"),
            "another version",
        ),
        (
            |folder| write(&folder.join("record.json"), vec![b' '; 2 << 20]),
            "larger than",
        ),
        (
            |folder| {
                write(
                    &folder.join("record.json"),
                    record(5).replace("memory-0", "../a"),
                )
            },
            "not a file name",
        ),
        (
            |folder| fs::remove_file(folder.join("state")).unwrap(),
            "state: No such file",
        ),
        (
            |folder| fs::remove_file(folder.join("memory-0")).unwrap(),
            "memory-0: No such file",
        ),
        (
            |folder| write(&folder.join("memory-0"), "short"),
            "memory-0: 5 bytes instead of 1073741824",
        ),
        (
            |folder| {
                fs::remove_file(folder.join("record.json")).unwrap();
                fs::create_dir(folder.join("record.json")).unwrap();
            },
            "not a regular file",
        ),
    ];
    for (damage, problem) in cases {
        let (_folder, cache) = new_cache();
        damage(&saved(&cache, 'a', 1, 1));
        let found = only(&cache).problem.unwrap();
        assert!(found.contains(problem), "{found:?} is not {problem:?}");
    }
}

#[test]
fn stray_files_and_odd_names_are_entries_with_a_problem() {
    let (_folder, cache) = new_cache();
    write(&cache.root().join("saved/a file"), "x");
    let odd = std::ffi::OsStr::from_bytes(b"not-\xffUTF-8");
    fs::create_dir(cache.root().join("saved").join(odd)).unwrap();
    let entries = cache.entries().unwrap();
    assert!(
        entries.len() == 2 && entries.iter().all(|entry| entry.problem.is_some()),
        "{entries:#?}"
    );
    serde_json::to_string(&entries).unwrap();
    assert_eq!(cache.clear(&[Kind::SavedGuest]).unwrap().removed.len(), 2);
}

#[test]
fn the_least_recently_used_are_removed_until_the_limit_is_met() {
    let (_folder, cache) = new_cache();
    let newest = saved(&cache, 'a', 2 * MIB, 1);
    let third = unpacked(&cache, "b", 2 * MIB, 2);
    let second = saved(&cache, 'c', 2 * MIB, 3);
    let oldest = unpacked(&cache, "d", 2 * MIB, 4);
    let total: u64 = cache
        .entries()
        .unwrap()
        .iter()
        .map(|entry| entry.bytes)
        .sum();
    cache.set_limit(total).unwrap();
    assert_eq!(cache.trim(&[]).unwrap().removed, []);
    cache.set_limit(5 * MIB).unwrap();
    let trimmed = cache.trim(&[]).unwrap();
    assert_eq!(paths(&trimmed.removed), [&oldest, &second]);
    assert!(
        !trimmed.is_over_limit() && trimmed.freed_bytes() >= 4 * MIB && trimmed.warnings.is_empty()
    );
    assert_eq!(trimmed.total_bytes, total - trimmed.freed_bytes());
    assert!(newest.exists() && third.exists() && !second.exists() && !oldest.exists());
}

#[test]
fn a_damaged_saved_guest_is_removed_before_older_whole_ones() {
    let (_folder, cache) = new_cache();
    saved(&cache, 'a', MIB, 9);
    let damaged = saved(&cache, 'b', MIB, 1);
    fs::remove_file(damaged.join("state")).unwrap();
    cache.set_limit(2 * MIB).unwrap();
    assert_eq!(paths(&cache.trim(&[]).unwrap().removed), [&damaged]);
}

#[test]
fn what_is_kept_or_was_just_used_stays() {
    let (_folder, cache) = new_cache();
    let kept = saved(&cache, 'a', MIB, 9);
    let kept_by_a_file = saved(&cache, 'b', MIB, 9);
    let just_used = unpacked(&cache, "vmlinuz", MIB, 0);
    let removed = saved(&cache, 'c', MIB, 1);
    cache.set_limit(0).unwrap();
    let trimmed = cache
        .trim(&[kept.clone(), kept_by_a_file.join("memory-0")])
        .unwrap();
    assert_eq!(paths(&trimmed.removed), [&removed]);
    assert!(trimmed.is_over_limit() && trimmed.untrimmed_bytes == 0);
    assert!(kept.exists() && kept_by_a_file.exists() && just_used.exists());
}

#[test]
fn kernels_count_towards_the_limit_and_are_never_trimmed() {
    let (_folder, cache) = new_cache();
    let kernel = kernel(&cache, 3 * MIB, 1000);
    let guest = saved(&cache, 'a', MIB, 1);
    cache.set_limit(2 * MIB).unwrap();
    let trimmed = cache.trim(&[]).unwrap();
    assert_eq!(paths(&trimmed.removed), [&guest]);
    assert!(trimmed.is_over_limit() && kernel.exists());
    assert_eq!(
        (trimmed.total_bytes, trimmed.limit_bytes),
        (trimmed.untrimmed_bytes, 2 * MIB)
    );
    assert_eq!(paths(&cache.clear(&Kind::ALL).unwrap().removed), [&kernel]);
}

#[test]
fn a_time_in_the_future_does_not_protect_an_entry() {
    let (_folder, cache) = new_cache();
    let path = unpacked(&cache, "a", 1, 0);
    File::open(&path)
        .unwrap()
        .set_modified(SystemTime::now() + Duration::from_secs(1 << 30))
        .unwrap();
    assert!(only(&cache).last_used <= SystemTime::now());
}

#[test]
fn two_that_trim_at_once_remove_each_entry_once() {
    let (_folder, cache) = new_cache();
    for digit in "0123456789abcdef".chars() {
        saved(&cache, digit, 4096, 1);
    }
    cache.set_limit(0).unwrap();
    let removed: usize = thread::scope(|scope| {
        let reader = scope.spawn(|| {
            // No listing while others remove shows half of an entry.
            for _ in 0..50 {
                for entry in cache.entries().unwrap() {
                    assert!(
                        entry.problem.is_none() || !entry.path.exists(),
                        "{entry:#?}"
                    );
                }
            }
        });
        let trims: Vec<_> = (0..2)
            .map(|_| scope.spawn(|| cache.trim(&[]).unwrap()))
            .collect();
        let trims: Vec<_> = trims.into_iter().map(|trim| trim.join().unwrap()).collect();
        reader.join().unwrap();
        assert!(
            trims.iter().all(|trim| trim.warnings.is_empty()),
            "{trims:#?}"
        );
        trims.iter().map(|trim| trim.removed.len()).sum()
    });
    assert_eq!(removed, 16);
    let left = fs::read_dir(cache.root())
        .unwrap()
        .flatten()
        .filter(|entry| entry.path().is_dir())
        .count();
    assert_eq!(left, 1, "only saved/ is left");
}

#[test]
fn clear_removes_the_named_kinds() {
    let (_folder, cache) = new_cache();
    let kernel = kernel(&cache, MIB, 1);
    let guest = saved(&cache, 'a', MIB, 1);
    let file = unpacked(&cache, "b", MIB, 0);
    assert_eq!(
        paths(&cache.clear(&[Kind::Unpacked]).unwrap().removed),
        [&file]
    );
    assert!(kernel.exists() && guest.exists() && !file.exists());
    let removed = cache.clear(&Kind::LOCAL).unwrap();
    assert!(
        removed.removed.len() == 1 && removed.freed_bytes() >= MIB && removed.warnings.is_empty()
    );
    assert!(kernel.exists() && !guest.exists());
}

#[test]
fn the_limit_is_the_default_until_it_is_set() {
    let (_folder, cache) = new_cache();
    assert_eq!(cache.limit().unwrap(), DEFAULT_LIMIT_BYTES);
    for bytes in [0, 1, u64::MAX] {
        cache.set_limit(bytes).unwrap();
        assert_eq!(cache.limit().unwrap(), bytes);
    }
    let left: Vec<_> = fs::read_dir(cache.root())
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn a_damaged_limit_is_an_error_and_elsewhere_the_default_with_a_warning() {
    let (_folder, cache) = new_cache();
    saved(&cache, 'a', MIB, 1);
    let path = cache.root().join("limit.json");
    let huge = "9".repeat(8192);
    for text in [
        "",
        "{",
        "8G",
        "{\"format\":1,\"bytes\":-1}",
        "{\"format\":1,\"bytes\":1e30}",
        "{\"format\":2}",
        &huge,
    ] {
        write(&path, text);
        let error = cache.limit().unwrap_err();
        assert!(
            matches!(error, LabError::Content { .. }) && error.to_string().contains("limit.json"),
            "{error}"
        );
        let trimmed = cache.trim(&[]).unwrap();
        assert_eq!(
            (trimmed.limit_bytes, trimmed.removed.len()),
            (DEFAULT_LIMIT_BYTES, 0)
        );
        assert!(
            trimmed.warnings[0].contains("limit.json"),
            "{:?}",
            trimmed.warnings
        );
    }
    cache.set_limit(7).unwrap();
    assert_eq!(cache.limit().unwrap(), 7);
}

#[test]
fn a_cache_that_does_not_exist_is_empty_and_stays_so() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path().join("none"));
    assert_eq!(cache.entries().unwrap(), []);
    assert_eq!(cache.trim(&[]).unwrap().limit_bytes, DEFAULT_LIMIT_BYTES);
    assert_eq!(cache.clear(&Kind::ALL).unwrap().removed, []);
    assert!(!cache.root().exists());
}

#[test]
fn a_cache_that_is_a_file_is_an_error_with_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path().join("file"));
    write(cache.root(), "x");
    let errors = [
        cache.entries().map(drop),
        cache.trim(&[]).map(drop),
        cache.set_limit(1),
    ];
    for error in errors.map(Result::unwrap_err) {
        assert!(
            error.to_string().contains(cache.root().to_str().unwrap()),
            "{error}"
        );
    }
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse_limit(&bytes);
        let _ = SavedRecord::parse(&bytes);
    }

    #[test]
    fn no_altered_file_panics(at in 0..400_usize, byte in any::<u8>(), cut in 0..400_usize) {
        let (_folder, cache) = new_cache();
        for (path, text) in [("saved/a/record.json", record(5)), ("limit.json", "{\"format\":1,\"bytes\":5}".to_owned())] {
            let mut bytes = text.into_bytes();
            let length = bytes.len();
            bytes[at % length] = byte;
            bytes.truncate(cut);
            write(&cache.root().join(path), bytes);
        }
        let _ = cache.limit();
        assert!(only(&cache).problem.is_some(), "there is no state");
    }
}

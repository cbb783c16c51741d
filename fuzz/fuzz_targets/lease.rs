//! Journals of leases, as a crash or a stranger may leave them: each line gets its checksum, which fuzzing would not find. A
//! journal of this boot may name threads, whose masks are then set; its boot cannot be guessed.
#![no_main]
use std::os::unix::fs::PermissionsExt as _;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use nearfar_apply::lease::Leases;

static DIRECTORY: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a temporary directory");
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o700)).expect("permissions");
    directory
});

fuzz_target!(|text: &str| {
    let line = |json: &str| format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes()));
    let journal = DIRECTORY.path().join("lease-1-0.journal");
    std::fs::write(&journal, text.lines().map(line).collect::<String>()).expect("a file");
    let _ = Leases::at(DIRECTORY.path().to_owned()).recover();
});

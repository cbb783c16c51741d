//! Who may have written the folder of a run.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use nearfar_fleet::{Folder, FolderError};

use crate::simulated::{self, Planted, name};

fn mode(path: &Path, bits: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(bits)).unwrap();
}

#[test]
fn a_folder_that_the_group_can_write_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let above = dir.path().join("above");
    fs::create_dir(&above).unwrap();
    mode(&above, 0o755);
    let run = above.join("run");
    drop(simulated::simulate(&run, 1, &Planted::default(), 1));
    for (part, usual) in [
        ("../run/../../above", 0o755),
        ("", 0o755),
        ("hosts", 0o755),
        ("logs", 0o755),
        ("fleet-run.json", 0o644),
    ] {
        let part = run.join(part);
        for others in [0o020, 0o002] {
            mode(&part, usual | others);
            let refused = Folder::open(&run);
            assert!(
                matches!(refused, Err(FolderError::NotTrusted { .. })),
                "{} {others:o}: {refused:?}",
                part.display()
            );
        }
        mode(&part, usual);
        Folder::open(&run).unwrap();
    }
    // A forged answer or event says that a host is as it was.
    let folder = Folder::open(&run).unwrap();
    mode(&folder.result_path(&name(0)), 0o664);
    let refused = folder.result(&name(0));
    assert!(matches!(refused, Err(FolderError::NotTrusted { .. })));
    fs::write(run.join("events.jsonl"), "").unwrap();
    mode(&run.join("events.jsonl"), 0o664);
    let refused = folder.events();
    assert!(matches!(refused, Err(FolderError::NotTrusted { .. })));
}

#[test]
fn links_and_pipes_in_the_folder_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let folder = simulated::simulate(&dir.path().join("run"), 1, &Planted::default(), 1);
    let manifest = folder.path().join("fleet-run.json");
    let moved = dir.path().join("moved");
    fs::rename(&manifest, &moved).unwrap();
    std::os::unix::fs::symlink(&moved, &manifest).unwrap();
    assert!(matches!(folder.lock(), Err(FolderError::File { .. })));
    fs::remove_file(&manifest).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o644);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &manifest,
        rustix::fs::FileType::Fifo,
        mode,
        0,
    )
    .unwrap();
    assert!(matches!(folder.lock(), Err(FolderError::NotTrusted { .. })));
    assert!(matches!(
        Folder::open(folder.path()),
        Err(FolderError::NotTrusted { .. })
    ));
}

//! Every file of /sys and /proc that nearfar reads, below a root: an input replaces some of them in a small machine.
//!
//! An input is parts separated by 0xff; the first byte of a part chooses the file, the rest is its content.
#![no_main]
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use nearfar_sources::tree::Tree;
use nearfar_sources::{Want, sysfs};

struct Place {
    directory: tempfile::TempDir,
    files: Vec<(PathBuf, Vec<u8>)>,
}

static PLACE: LazyLock<Place> = LazyLock::new(|| lay_out().expect("a machine in a temporary directory"));

/// The recorded machine in the tests of the sources, with the lines of few files.
fn lay_out() -> std::io::Result<Place> {
    let directory = tempfile::tempdir_in("/dev/shm")?;
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/sources/tests/machines/x86-third-node-offline.tree");
    let mut files = Vec::new();
    for line in std::fs::read_to_string(recorded)?.lines().filter(|line| !line.starts_with('#')) {
        let (kind, entry) = line.split_at(2);
        let (path, content) = entry.split_once('\t').unwrap_or((entry, ""));
        let file = directory.path().join(path);
        if kind == "D " {
            std::fs::create_dir_all(&file)?;
            continue;
        }
        std::fs::create_dir_all(file.parent().unwrap_or(&file))?;
        match kind {
            "L " => std::os::unix::fs::symlink(content, &file)?,
            _ => {
                let content = match kind {
                    "X " => (0..content.len() / 2).filter_map(|at| u8::from_str_radix(content.get(2 * at..2 * at + 2)?, 16).ok()).collect(),
                    _ => content.replace("\\n", "\n").replace("\\t", "\t").into_bytes(),
                };
                std::fs::write(&file, &content)?;
                // Of the many like each other some are enough to choose from.
                let last = path.rsplit('/').next().unwrap_or_default().to_owned();
                let like_it = files.iter().filter(|(other, _): &&(PathBuf, Vec<u8>)| other.ends_with(&last)).count();
                if like_it < 2 && files.len() < 250 {
                    files.push((file, content));
                }
            }
        }
    }
    Ok(Place { directory, files })
}

fuzz_target!(|bytes: &[u8]| {
    let place = &*PLACE;
    let mut changed = Vec::new();
    for part in bytes.split(|&byte| byte == 0xff).take(4) {
        let Some((choice, content)) = part.split_first() else { continue };
        let (file, before) = &place.files[usize::from(*choice) % place.files.len()];
        std::fs::write(file, content).expect("a file");
        changed.push((file, before));
    }
    let tree = Tree::at(place.directory.path()).expect("the tree");
    if let Ok(machine) = sysfs::read(&tree, &Want::all()) {
        assert_eq!(machine.check(), Vec::<String>::new());
        let audit = nearfar_placement::audit::audit(&machine, &Default::default());
        let _ = nearfar_placement::plan::plan(&machine, &audit, &Default::default());
    }
    for (file, before) in changed {
        std::fs::write(file, before).expect("a file");
    }
});

//! Trees in which something is broken on purpose: reading them neither panics nor hangs, and what comes out is whole.

use std::path::Path;

use crate::small_trees;
use nearfar_machine::Machine;
use nearfar_sources::tree::Tree;
use nearfar_sources::{Want, sysfs};
use proptest::prelude::*;

/// What a file's content becomes.
#[derive(Debug, Clone)]
enum Harm {
    Truncated(prop::sample::Index),
    Flipped(prop::sample::Index, u8),
    Replaced(&'static str),
    Gone,
    Directory,
    Fifo,
    Loop,
    Unreadable,
}

const NASTY: [&str; 12] = [
    "",
    "0-4294967295",
    "-1",
    "18446744073709551616",
    "0-65535",
    "65535",
    "ffffffff,ffffffff,ffffffff,ffffffff,ffffffff",
    "3-1",
    "0-",
    "\u{fffd}\0\0",
    "10 10 10 10 10 10 10 10 10 10 10 10 10 10 10 10 10 10 10 10",
    "processor : 65535\nCPU9: online\nMemTotal: 18446744073709551615 kB\nphysical id : 9223372036854775808",
];

fn harm() -> impl Strategy<Value = Harm> {
    prop_oneof![
        any::<prop::sample::Index>().prop_map(Harm::Truncated),
        (any::<prop::sample::Index>(), any::<u8>()).prop_map(|(at, mask)| Harm::Flipped(at, mask)),
        prop::sample::select(&NASTY[..]).prop_map(Harm::Replaced),
        Just(Harm::Gone),
        Just(Harm::Directory),
        Just(Harm::Fifo),
        Just(Harm::Loop),
        Just(Harm::Unreadable),
    ]
}

fn inflict(path: &Path, harm: &Harm) {
    // Harmed before: a FIFO would be waited for.
    if !std::fs::symlink_metadata(path).is_ok_and(|status| status.is_file()) {
        return;
    }
    let Ok(content) = std::fs::read(path) else {
        return;
    };
    let rewrite = |content: &[u8]| std::fs::write(path, content).expect("a file of ours");
    let remove = || std::fs::remove_file(path).expect("a file of ours");
    match harm {
        Harm::Truncated(at) => rewrite(&content[..at.index(content.len() + 1)]),
        Harm::Flipped(at, mask) if !content.is_empty() => {
            let mut content = content;
            let at = at.index(content.len());
            content[at] ^= mask;
            rewrite(&content);
        }
        Harm::Flipped(..) => {}
        Harm::Replaced(with) => rewrite(with.as_bytes()),
        Harm::Gone => remove(),
        Harm::Directory => {
            remove();
            std::fs::create_dir(path).expect("a directory");
        }
        Harm::Fifo => {
            remove();
            let mode = rustix::fs::Mode::RUSR;
            rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0)
                .expect("a FIFO");
        }
        Harm::Loop => {
            remove();
            std::os::unix::fs::symlink(path, path).expect("a link");
        }
        Harm::Unreadable => {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o000);
            std::fs::set_permissions(path, mode).expect("a file of ours");
        }
    }
}

/// Reads everything there is to read; `None` for a tree without CPUs.
fn read(root: &Path) -> Option<Machine> {
    let tree = Tree::at(root).expect("the root can be opened");
    let machine = sysfs::read(&tree, &Want::all()).ok()?;
    assert_eq!(machine.check(), Vec::<String>::new());
    assert!(
        machine.warnings.len() <= 201,
        "{} warnings",
        machine.warnings.len()
    );
    Some(machine)
}

proptest! {
    #[test]
    fn harm_to_any_files_leaves_a_machine_that_is_whole(
        machine in any::<prop::sample::Index>(),
        harms in prop::collection::vec((any::<prop::sample::Index>(), harm()), 1..12),
    ) {
        let machines = small_trees::all();
        let (_, text) = &machines[machine.index(machines.len())];
        let (root, files) = small_trees::unpack(text);
        for (file, harm) in &harms {
            inflict(&files[file.index(files.len())], harm);
        }
        read(root.path());
    }
}

#[test]
fn any_file_may_hold_any_nasty_thing() {
    for name in ["two-nodes", "memory-tier-with-hmat", "no-node-directories"] {
        let (root, files) = small_trees::unpack(&small_trees::named(name));
        // Two of them for each file, in turn: all pairs would take minutes and teach the same.
        for (number, path) in files.iter().enumerate() {
            let content = std::fs::read(path).unwrap();
            for nasty in [
                NASTY[number % NASTY.len()],
                NASTY[(number / 7 + 5) % NASTY.len()],
            ] {
                std::fs::write(path, nasty).unwrap();
                assert!(
                    read(root.path()).is_some(),
                    "{name}: {} = {nasty:?}",
                    path.display()
                );
            }
            std::fs::write(path, content).unwrap();
        }
    }
}

#[test]
fn a_list_that_cannot_be_is_named_with_its_file() {
    let (root, _) = small_trees::unpack(&small_trees::named("node-without-memory"));
    for file in [
        "cpu/present",
        "node/node0/cpulist",
        "node/possible",
        "node/node0/distance",
        "node/node0/meminfo",
    ] {
        let path = root.path().join("sys/devices/system").join(file);
        let content = std::fs::read(&path).unwrap();
        std::fs::write(&path, "0-4294967295").unwrap();
        let machine = read(root.path()).unwrap();
        let found: Vec<String> = machine.warnings.iter().map(ToString::to_string).collect();
        assert!(
            found.iter().any(|found| found.contains(file)),
            "{file}: {found:?}"
        );
        std::fs::write(&path, content).unwrap();
    }
}

#[test]
fn ten_megabytes_of_garbage_in_every_file_are_survived() {
    let (root, files) = small_trees::unpack(&small_trees::named("two-nodes"));
    let garbage: Vec<u8> = (0..10 << 20)
        .map(|number: u32| (number.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let kept = root.path().join("sys/devices/system/cpu/online");
    for path in files.iter().filter(|path| **path != kept).step_by(7) {
        std::fs::write(path, &garbage).unwrap();
    }
    assert!(read(root.path()).is_some());
}

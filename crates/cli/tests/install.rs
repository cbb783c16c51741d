//! `make install` and `make uninstall`, below a directory of the test: what is put there, and that nothing stays.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A folder with the built files as release builds have them: the plugin is only copied, so any file stands for it.
fn build() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_nearfar"), folder.path().join("nearfar"))
        .unwrap();
    std::fs::write(folder.path().join("libnearfar_lab_delay.so"), "plugin").unwrap();
    folder
}

fn install_files(action: &str, prefix: &str, destination: &Path, build: &Path) -> Output {
    let mut command = Command::new("tools/install-files");
    command
        .args([action, prefix])
        .arg(destination)
        .current_dir(REPOSITORY)
        .env("NEARFAR_BUILD", build);
    command.output().unwrap()
}

#[track_caller]
fn done(output: &Output) {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Every file and directory below that one.
fn tree(root: &Path) -> BTreeSet<PathBuf> {
    let (mut found, mut open) = (BTreeSet::new(), vec![root.to_owned()]);
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                open.push(entry.path());
            }
            found.insert(entry.path().strip_prefix(root).unwrap().to_owned());
        }
    }
    found
}

#[test]
fn what_is_installed_is_removed_to_the_last_directory() {
    let (build, place) = (build(), tempfile::tempdir().unwrap());
    done(&install_files(
        "install",
        "/usr/local",
        place.path(),
        build.path(),
    ));
    let installed = tree(place.path());
    for file in [
        "bin/nearfar",
        "lib/nearfar/libnearfar_lab_delay.so",
        "lib/systemd/system/nearfar-prefer.service",
        "lib/systemd/system/nearfar-exporter.service",
        "share/man/man1/nearfar.1",
        "share/man/man1/nearfar-lab-run.1",
        "share/bash-completion/completions/nearfar",
        "share/zsh/site-functions/_nearfar",
        "share/fish/vendor_completions.d/nearfar.fish",
        "share/doc/nearfar/docs/audit.md",
        "share/doc/nearfar/docs/case-2/table.txt",
        "share/doc/nearfar/docs/exporter/alerts.yml",
        "share/doc/nearfar/docs/exporter/dashboard.json",
        "share/doc/nearfar/README.md",
        "share/doc/nearfar/LICENSE-MIT",
    ] {
        assert!(
            installed.contains(&Path::new("usr/local").join(file)),
            "{file} is not installed"
        );
        assert!(
            std::fs::metadata(place.path().join("usr/local").join(file))
                .unwrap()
                .len()
                > 0,
            "{file} is empty"
        );
    }
    // A second installation changes nothing; one of a version that lacks a file removes it.
    let list = place.path().join("usr/local/lib/nearfar/installed");
    let stale = place
        .path()
        .join("usr/local/share/man/man1/nearfar-stale.1");
    std::fs::write(&stale, "of an older version").unwrap();
    let text = std::fs::read_to_string(&list).unwrap() + "f share/man/man1/nearfar-stale.1\n";
    std::fs::write(&list, text).unwrap();
    done(&install_files(
        "install",
        "/usr/local",
        place.path(),
        build.path(),
    ));
    assert_eq!(tree(place.path()), installed);
    done(&install_files(
        "uninstall",
        "/usr/local",
        place.path(),
        build.path(),
    ));
    assert_eq!(tree(place.path()), BTreeSet::new());
}

#[test]
fn what_is_somebody_elses_stays() {
    let (build, place) = (build(), tempfile::tempdir().unwrap());
    let theirs = ["usr/share/man/man1", "usr/share/empty", "usr/lib/nearfar"];
    theirs
        .iter()
        .for_each(|directory| std::fs::create_dir_all(place.path().join(directory)).unwrap());
    std::fs::write(place.path().join("usr/share/man/man1/other.1"), "theirs").unwrap();
    let before = tree(place.path());
    done(&install_files(
        "install",
        "/usr",
        place.path(),
        build.path(),
    ));
    // A list that was tampered with leads nowhere else.
    let list = place.path().join("usr/lib/nearfar/installed");
    let text =
        std::fs::read_to_string(&list).unwrap() + "f ../outside\nf /outside\nd ../other\np ../..\n";
    std::fs::write(&list, text).unwrap();
    std::fs::write(place.path().join("outside"), "theirs").unwrap();
    done(&install_files(
        "uninstall",
        "/usr",
        place.path(),
        build.path(),
    ));
    std::fs::remove_file(place.path().join("outside")).unwrap();
    assert_eq!(tree(place.path()), before);
    let again = install_files("uninstall", "/usr", place.path(), build.path());
    assert_eq!(
        again.status.code(),
        Some(2),
        "{}",
        String::from_utf8_lossy(&again.stderr)
    );
}

//! What QEMU prints about itself, and programs that take its place.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nearfar_lab::advice::Installer;
use nearfar_lab::arch::Arch;
use nearfar_lab::cache::Cache;
use nearfar_lab::doctor::{self, State};
use nearfar_lab::packages::sources::{Archive, Source};
use nearfar_lab::qemu::{self, Qemu};
use nearfar_machine::Acceleration;
use proptest::prelude::*;

/// Held by tests that write programs or start some: a child forked while a program is being written holds it open for
/// writing until it executes its own, and the kernel runs no program that is open for writing (ETXTBSY).
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A program that answers as a script says.
fn program(folder: &tempfile::TempDir, script: &str) -> PathBuf {
    let path = folder.path().join("qemu-system-x86_64");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn versions_are_read_from_what_qemu_prints() {
    assert_eq!(
        qemu::version_in("QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)\n"),
        Some((10, 0, 2))
    );
    assert_eq!(
        qemu::version_in("QEMU emulator version 7.2\n"),
        Some((7, 2, 0))
    );
    assert_eq!(
        qemu::version_in("QEMU emulator version 11.0.50 (v11-rc1)"),
        Some((11, 0, 50))
    );
    assert_eq!(qemu::version_in("QEMU emulator version x"), None);
    assert_eq!(qemu::version_in("bash: no"), None);
}

#[test]
fn devices_are_known_by_name_and_by_alias() {
    let text = "Network devices:\nname \"e1000\", bus PCI, alias \"e1000-82540em\", desc \"Intel \"GbE\"\"\nname \"igb\", bus PCI\n";
    let devices = qemu::devices_in(text);
    assert_eq!(
        devices.iter().map(String::as_str).collect::<Vec<_>>(),
        ["e1000", "e1000-82540em", "igb"]
    );
}

#[test]
fn an_old_qemu_has_no_plugins_and_a_new_one_only_if_it_was_built_with_them() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let with = |version: &str, help: &str| {
        let script = format!(
            "case $1 in --version) echo 'QEMU emulator version {version} (x)';; -h) echo '{help}';; -device) echo 'name \"igb\", bus PCI';; esac"
        );
        Qemu::at(program(&folder, &script), Arch::X86_64).unwrap()
    };
    let plugin = "-plugin [file=]<file>[,<argname>=<argvalue>]";
    assert!(!with("7.2.11", plugin).plugins);
    assert!(!with("10.0.2", "-smp n").plugins);
    let new = with("10.0.2", plugin);
    assert!(new.plugins && new.version == (10, 0, 2));
    assert!(new.has_device("igb") && !new.has_device("ig"));
}

#[test]
fn a_program_that_is_no_qemu_is_named_in_the_error() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let error = |script: &str| {
        Qemu::at(program(&folder, script), Arch::X86_64)
            .unwrap_err()
            .to_string()
    };
    assert!(error("echo hello").contains("qemu-system-x86_64: its --version"));
    assert!(error("echo 'cannot load libfoo' >&2; exit 127").contains("cannot load libfoo"));
}

#[test]
fn foreign_guests_are_never_accelerated() {
    let folder = tempfile::tempdir().unwrap();
    let foreign = Arch::ALL
        .into_iter()
        .find(|arch| Some(*arch) != Arch::host())
        .unwrap();
    let qemu = Qemu {
        arch: foreign,
        program: "/nowhere".into(),
        version: (10, 0, 2),
        plugins: true,
    };
    let answer = qemu::acceleration(&Cache::at(folder.path()), &qemu, None);
    assert_eq!(answer.acceleration, Acceleration::Tcg);
    assert!(answer.reason.unwrap().contains("host's architecture"));
}

#[test]
fn kvm_is_not_assumed_while_there_is_no_kernel_to_try_it_with() {
    let Some(host) = Arch::host() else {
        println!("skipped: arch: this machine's architecture is not one of the lab's");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let qemu = Qemu {
        arch: host,
        program: "/nowhere".into(),
        version: (10, 0, 2),
        plugins: true,
    };
    let answer = qemu::acceleration(&Cache::at(folder.path()), &qemu, None);
    assert_eq!(answer.acceleration, Acceleration::Tcg);
    assert!(
        answer
            .reason
            .is_some_and(|reason| reason.contains("/dev/kvm") || reason.contains("not tried"))
    );
}

#[test]
fn the_doctor_names_a_consequence_for_whatever_is_not_as_it_should_be() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path());
    let doctor = doctor::examine(&cache);
    for item in &doctor.items {
        assert_eq!(
            item.state == State::Ok,
            item.consequence.is_none(),
            "{item:?}"
        );
        assert!(!item.what.is_empty() && !item.detail.is_empty(), "{item:?}");
    }
    let kernels = doctor
        .items
        .iter()
        .filter(|item| item.what.starts_with("kernel "));
    assert_eq!(
        kernels
            .filter(|item| item.state == State::Missing && item.command.is_some())
            .count(),
        5
    );
    assert!(!cache.root().join("lock").exists(), "looking takes no lock");
}

#[test]
fn a_newer_qemu_comes_from_the_backports_of_the_machines_own_mirror() {
    let main = Source {
        uris: vec!["http://mirror.example/debian".to_owned()],
        suites: vec!["bookworm".to_owned()],
        signed_by: Some("/k.gpg".to_owned()),
        check_valid_until: None,
    };
    let mut archive = Archive {
        name: "Debian GNU/Linux 12 (bookworm)".to_owned(),
        codename: "bookworm".to_owned(),
        main,
        security: None,
        has_backports: false,
    };
    let command = Installer::with(Ok(archive.clone()))
        .install_newer("qemu-system-x86")
        .unwrap();
    let wanted = "printf '%s\\n' 'Types: deb' 'URIs: http://mirror.example/debian' 'Suites: bookworm-backports' \
                  'Components: main' 'Signed-By: /k.gpg' | sudo tee /etc/apt/sources.list.d/nearfar-backports.sources \
                  && sudo apt-get update && sudo apt-get install --no-install-recommends -t bookworm-backports qemu-system-x86";
    assert_eq!(command, wanted);
    archive.has_backports = true;
    let command = Installer::with(Ok(archive.clone()))
        .install_newer("qemu-system-x86")
        .unwrap();
    assert!(
        command.starts_with("sudo apt-get update && sudo apt-get install"),
        "{command}"
    );
    archive.has_backports = false;
    archive.main.signed_by = Some("/k'; rm -rf /'".to_owned());
    assert_eq!(
        Installer::with(Ok(archive)).install_newer("x"),
        None,
        "nothing that ends a quotation goes to a shell"
    );
    assert_eq!(
        Installer::with(Err("this is Ubuntu".to_owned())).install_newer("x"),
        None
    );
}

proptest! {
    #[test]
    fn any_output_is_read_without_harm(text in "(?s)(QEMU emulator version |name \"|, alias \"|[0-9.]|.){0,40}") {
        let _ = qemu::version_in(&text);
        prop_assert!(qemu::devices_in(&text).iter().all(|name| !name.contains('"')));
    }
}

//! The lab's cache and what `lab doctor` finds, as text.

use std::time::{Duration, SystemTime};

use nearfar_lab::cache::{CacheEntry, Kind, Trimmed};
use nearfar_lab::doctor::{Doctor, Item, State};
use nearfar_report::{Style, lab};

const PLAIN: Style = Style {
    colour: false,
    width: 100,
};

fn entry(kind: Kind, name: &str, bytes: u64, seconds: u64) -> CacheEntry {
    let last_used = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 - seconds);
    CacheEntry {
        kind,
        name: name.to_owned(),
        path: name.into(),
        bytes,
        last_used,
        problem: None,
    }
}

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000)
}

#[test]
fn a_line_an_entry_and_one_for_all_modules() {
    let mut damaged = entry(Kind::SavedGuest, "abc\u{1b}[31m", 4096, 100_000);
    damaged.problem = Some("state: No such file".to_owned());
    let entries = [
        entry(
            Kind::SavedGuest,
            "two-node, 4 CPUs on 2 nodes",
            3 << 28,
            190,
        ),
        damaged,
        entry(Kind::Unpacked, "nvme.ko.xz", 1 << 20, 10),
        entry(Kind::Unpacked, "vmlinuz-6.12", 55 << 20, 190),
        entry(Kind::Unpacked, "9p.ko.xz", 1 << 19, 190),
        entry(Kind::Kernel, "6.12 (x86_64)", 120 << 20, 400_000),
    ];
    let text = lab::list(&entries, 8 << 30, now()).to_text(&PLAIN);
    let wanted = "\
kind         name                            size   last used
saved-guest  two-node, 4 CPUs on 2 nodes  768 MiB   3 min ago
saved-guest  abc\u{fffd}[31m                       4 KiB    27 h ago
unpacked     vmlinuz-6.12                  55 MiB   3 min ago
unpacked     2 kernel modules             1.5 MiB    10 s ago
kernel       6.12 (x86_64)                120 MiB  4 days ago
! abc\u{fffd}[31m: state: No such file
total 945 MiB, limit 8 GiB
";
    assert_eq!(text, wanted);
}

#[test]
fn an_empty_cache_has_a_total() {
    assert_eq!(
        lab::list(&[], 1 << 30, now()).to_text(&PLAIN),
        "total 0 B, limit 1 GiB\n"
    );
    assert_eq!(lab::removed(&[], true).to_text(&PLAIN), "would free 0 B\n");
}

#[test]
fn kernels_alone_over_the_limit_are_named() {
    let trimmed = Trimmed {
        total_bytes: 3 << 20,
        untrimmed_bytes: 2 << 20,
        limit_bytes: 1 << 20,
        ..Trimmed::default()
    };
    let text = lab::limit(&trimmed).to_text(&PLAIN);
    assert!(
        text.starts_with("total 3 MiB, over the limit of 1 MiB\n2 MiB of it are kernels"),
        "{text}"
    );
}

fn item(what: &str, state: State, command: Option<&str>) -> Item {
    let consequence = (state != State::Ok).then(|| "guests are slower".to_owned());
    let command = command.map(str::to_owned);
    Item {
        what: what.to_owned(),
        state,
        detail: "seen".to_owned(),
        consequence,
        command,
    }
}

#[test]
fn a_whole_lab_has_nothing_to_do() {
    let doctor = Doctor {
        items: vec![item("QEMU", State::Ok, None)],
    };
    assert_eq!(
        lab::doctor(&doctor).to_text(&PLAIN),
        "Lab  everything is there\n      part\n  ok  QEMU  seen\n"
    );
}

#[test]
fn what_is_missing_comes_first_with_its_command() {
    let doctor = Doctor {
        items: vec![
            item("KVM", State::Degraded, None),
            item("QEMU", State::Missing, Some("sudo apt-get install qemu")),
        ],
    };
    let text = lab::doctor(&doctor).to_text(&PLAIN);
    let wanted = "\nWhat to do\n  QEMU: guests are slower\n    sudo apt-get install qemu\n  KVM: guests are slower\n";
    assert!(text.ends_with(wanted), "{text}");
    assert!(
        text.starts_with("Lab  0 of 2 parts ok, 1 degraded, 1 missing\n"),
        "{text}"
    );
}

//! Guests that start from a saved one: what is new in each, what becomes of a damaged one, how a guest that hangs is noticed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::booting::{boot, check_start, fail, prepared, tried_again};
use nearfar_lab::cache::Cache;
use nearfar_lab::guest::{
    BootFailure, Exec, Guest, HangSign, Input, PreparedGuest, SavedRecord, Signals, Streams,
};
use nearfar_lab::{Arch, LabError, Start};
use nearfar_machine::Emulation;

/// A guest whose saved states belong to this process alone, so that a test may count and damage them.
struct Own {
    prepared: PreparedGuest,
    word: String,
}

impl Own {
    fn new(machine: &str, arch: Arch, test: &str) -> Option<Self> {
        let word = format!("nearfar.test={test}-{}", std::process::id());
        let mut prepared = prepared(machine, arch)?;
        prepared.request.append.push(word.clone());
        Some(Self { prepared, word })
    }

    /// The folders of its saved guests.
    fn saved(&self) -> Vec<PathBuf> {
        let folder = Cache::of_user().expect("a cache").root().join("saved");
        let entries = fs::read_dir(folder)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path());
        let made_of =
            |path: &PathBuf| fs::read_to_string(path.join("record.json")).unwrap_or_default();
        entries
            .filter(|path| made_of(path).contains(&self.word))
            .collect()
    }

    fn start(&self, start: Start) -> Guest {
        let guest = boot(&self.prepared);
        check_start(&guest, start);
        guest
    }
}

/// The description that programs in the guest find.
fn emulation(guest: &mut Guest) -> Emulation {
    let words = said(guest, "cat /proc/cmdline");
    let word = words.split_whitespace().next().unwrap_or_default();
    let json = word.strip_prefix("nearfar.lab=").unwrap_or_default();
    serde_json::from_str(json).unwrap_or_else(|error| panic!("{words}: {error}"))
}

impl Drop for Own {
    fn drop(&mut self) {
        for folder in self.saved() {
            drop(fs::remove_dir_all(folder));
        }
    }
}

fn said(guest: &mut Guest, script: &str) -> String {
    let output = guest.output(&["/run/nearfar-lab/bin/busybox", "sh", "-c", script]);
    let output = output.unwrap_or_else(|error| fail(error));
    assert_eq!(
        (
            output.code,
            String::from_utf8_lossy(&output.stderr).as_ref()
        ),
        (0, ""),
        "{script}"
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Seconds by which a guest's clock is certainly wrong, and how long asking for it took: it may be wrong by so much more.
fn clock_error(guest: &mut Guest) -> (f64, f64) {
    let now = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("after 1970")
            .as_secs_f64()
    };
    let before = now();
    // The shell's own variable: starting a program would take longer than the clock may be wrong.
    let seen: f64 = said(guest, "echo $EPOCHREALTIME").parse().expect("seconds");
    let after = now();
    ((before - seen).max(seen - after).max(0.0), after - before)
}

/// By how much a guest's clock may be wrong, in seconds. The real-time clock of a PC counts whole ones.
const MAX_CLOCK_ERROR_S: f64 = 0.1;

/// Guests that start from one state, and their clocks: other work on the host makes a clock wrong for a moment, and never right, so that
/// the best counts.
fn check_guests_of_one_state(own: &Own, arch: Arch) {
    let mut drawn = BTreeSet::new();
    let mut least_error = f64::INFINITY;
    for number in 0..3 {
        let mut guest = own.start(Start::Load);
        let (error, asking) = clock_error(&mut guest);
        let seconds = guest.boot_seconds();
        println!(
            "{arch:?}: guest {number} started in {seconds:.2} s, clock off by {error:.3} s (+ {asking:.3} s)"
        );
        least_error = least_error.min(error);
        let sources = [
            "cat /proc/sys/kernel/random/uuid",
            "head -c 32 /dev/urandom | md5sum",
            "cat /proc/sys/kernel/random/boot_id",
            "cat /etc/machine-id",
        ];
        for source in sources {
            assert!(
                drawn.insert(said(&mut guest, source)),
                "{arch:?}: {source} gave the same twice"
            );
        }
        if arch == Arch::X86_64 && Arch::host() == Some(arch) {
            // It says it once more where it has measured something else.
            let given = "dmesg | grep -q 'tsc: Detected [0-9]*[.]000 MHz' && echo given";
            assert_eq!(said(&mut guest, given), "given");
        }
        // What is of the host is not in the state: it is mounted after the start, and the description is this guest's own.
        assert_eq!(emulation(&mut guest), own.prepared.emulation());
    }
    assert!(
        least_error <= MAX_CLOCK_ERROR_S,
        "{arch:?}: the clock is off by {least_error} s"
    );
    assert_eq!(own.saved().len(), 1, "one state serves all");
}

/// In the slow tier: the first boots take long.
#[test]
fn foreign_guests_from_one_state_share_no_random_numbers_and_have_the_hosts_time() {
    tried_again(foreign_guests);
}

fn foreign_guests() {
    for arch in [Arch::Aarch64, Arch::Powerpc64le] {
        if let Some(own) = Own::new("two-node", arch, "random") {
            drop(own.start(Start::Save));
            check_guests_of_one_state(&own, arch);
        }
    }
}

#[test]
fn guests_from_one_state_share_nothing_and_a_damaged_state_is_replaced() {
    tried_again(one_state);
}

fn one_state() {
    let Some(mut own) = Own::new("two-node", Arch::X86_64, "state") else {
        return;
    };
    drop(own.start(Start::Save));
    check_guests_of_one_state(&own, Arch::X86_64);
    check_damaged(&own);
    check_what_a_state_depends_on(&mut own);
}

fn check_what_a_state_depends_on(own: &mut Own) {
    let results = tempfile::tempdir().expect("a folder");
    own.prepared.request.name = "another name, it's \"so\"".to_owned();
    own.prepared.request.results = Some(results.path().to_owned());
    let mut guest = own.start(Start::Load);
    assert_eq!(emulation(&mut guest), own.prepared.emulation());
    said(&mut guest, "echo kept > $NEARFAR_RESULTS/file");
    drop(guest);
    assert_eq!(
        fs::read_to_string(results.path().join("file")).expect("it was written"),
        "kept\n"
    );
    own.prepared
        .request
        .append
        .push("numa_balancing=disable".to_owned());
    let mut guest = own.start(Start::Save);
    assert_eq!(said(&mut guest, "cat /proc/sys/kernel/numa_balancing"), "0");
    drop(guest);
    own.prepared.request.cold = true;
    drop(own.start(Start::Boot));
    assert_eq!(own.saved().len(), 2);
}

/// One that is damaged and one that QEMU refuses are each replaced.
fn check_damaged(own: &Own) {
    let folder = own.saved().pop().expect("a saved guest");
    File::options()
        .write(true)
        .open(folder.join("state"))
        .and_then(|file| file.write_all_at(b"x", 5000))
        .expect("room");
    drop(own.start(Start::Save));
    let content = b"no state at all, with a checksum that fits";
    fs::write(folder.join("state"), content).expect("room");
    let record = SavedRecord::parse(&fs::read(folder.join("record.json")).expect("it is there"))
        .expect("a record");
    let record = SavedRecord {
        state_sha256: nearfar_lab::packages::sha256_of_bytes(content),
        ..record
    };
    fs::write(
        folder.join("record.json"),
        serde_json::to_vec(&record).expect("a record"),
    )
    .expect("room");
    let guest = own.start(Start::Save);
    // Only the first is the test's doing: a boot after it fails by chance now and then.
    let why = guest.failed_boots().first().expect("it did not load");
    assert!(matches!(why, BootFailure::NotLoaded(_)), "{why}");
}

#[test]
fn a_guest_at_work_does_not_count_as_hanging_and_one_that_hangs_is_noticed_at_once() {
    tried_again(at_work_and_hanging);
}

fn at_work_and_hanging() {
    let Some(mut own) = Own::new("two-node", Arch::X86_64, "hang") else {
        return;
    };
    // It ends the command only where no hang is noticed.
    own.prepared.request.command_timeout = Some(Duration::from_secs(300));
    let mut guest = own.start(Start::Save);
    // More loops than CPUs, of the highest priority that is not real-time.
    let loops = "for i in 1 2 3 4 5 6; do nice -n -20 timeout 12 sh -c 'while :; do :; done' & done; wait; echo done";
    assert_eq!(said(&mut guest, loops), "done");
    thread::sleep(Duration::from_millis(10));
    assert_eq!(said(&mut guest, "sleep 12; echo done"), "done");

    // A kernel that complains has its timers looked at: a process for each of four CPUs and one that starts them,
    // within seconds: on a busy host not within one.
    let script = "count() { while read -r key value rest; do [ $key = processes ] && n=$value; done < /proc/stat; }
        echo '<2>rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:' > /dev/kmsg
        count; i=0
        while [ $i -lt 24 ]; do
            i=$((i + 1)); before=$n; sleep 5; count
            [ $((n - before - 1)) -ge 5 ] && echo looked && exit
        done";
    assert_eq!(said(&mut guest, script), "looked");

    // Without the processes that talk to the host nothing of the guest is heard again, and its CPUs sleep.
    let script = "for p in /proc/[0-9]*; do p=${p#/proc/}; [ $p = 1 ] || [ $p = $$ ] || kill -9 $p; done 2> /dev/null; sleep 600";
    let streams = Streams {
        input: Input::Nothing,
        output: Box::new(std::io::sink()),
        errors: Box::new(std::io::sink()),
    };
    match guest.exec(
        &Exec::new(&["/run/nearfar-lab/bin/busybox", "sh", "-c", script]),
        streams,
        &Signals::none(),
    ) {
        Err(LabError::Hung { sign, console }) => {
            assert!(matches!(sign, HangSign::Silent { .. }), "{sign}");
            assert!(console.contains("vCPU 0"), "{console}");
        }
        other => panic!("{other:?}"),
    }
}

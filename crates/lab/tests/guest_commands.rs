//! Commands in a guest with a real kernel: their bytes, codes, signals and files. One boot serves all checks of a root.

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use crate::booting::{boot, fail, fed, prepared, tried_again};
use nearfar_lab::guest::{Exec, Guest, HotPlug, Input, PlugDevice, Root, Signals, Streams};
use nearfar_lab::{Arch, LabError};
use nearfar_machine::NodeId;

fn said(guest: &mut Guest, script: &str) -> String {
    let output = guest
        .output(&["sh", "-c", script])
        .unwrap_or_else(|error| fail(error));
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

/// Bytes without a pattern, the same in each run.
fn noise(count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..count).map(|_| (next() >> 32) as u8).collect()
}

#[test]
fn commands_in_a_guest_behave_as_on_the_host() {
    tried_again(commands);
}

fn commands() {
    let Some(mut prepared) = prepared("two-node", Arch::X86_64) else {
        return;
    };
    let results = tempfile::tempdir().expect("a folder");
    prepared.request.results = Some(results.path().to_owned());
    let mut guest = boot(&prepared);
    codes_are_exact(&mut guest);
    streams_are_apart_and_exact(&mut guest);
    words_arrive_as_they_are(&mut guest);
    input_reaches_the_command_and_ends(&mut guest);
    a_stop_by_signal_reaches_the_command(&mut guest);
    the_hosts_files_are_there_and_stay_as_they_are(&mut guest);
    results_reach_the_host(&mut guest, results.path());
    the_nodes_are_those_of_the_machine(&mut guest);
    devices_can_be_plugged_in(&mut guest);
    ctrl_c_reaches_the_command(&mut guest);
    power_off_waits_for_nothing_in_the_guest(guest);
}

/// A guest that was asked to shut down would wait for this command. 60 s is a limit against hanging: a power-off takes milliseconds.
fn power_off_waits_for_nothing_in_the_guest(mut guest: Guest) {
    said(
        &mut guest,
        "(trap '' HUP INT TERM; while :; do sleep 600; done) > /dev/null 2>&1 &",
    );
    let started = Instant::now();
    guest.power_off();
    assert!(started.elapsed() < Duration::from_secs(60));
}

fn codes_are_exact(guest: &mut Guest) {
    for (script, code) in [
        ("true", 0),
        ("exit 1", 1),
        ("exit 255", 255),
        ("kill -9 $$", 137),
        ("kill -TERM $$", 143),
    ] {
        let output = guest
            .output(&["sh", "-c", script])
            .expect("a guest that lives");
        assert_eq!(
            (output.code, output.stderr.as_slice()),
            (code, b"".as_slice()),
            "{script}"
        );
    }
    let output = guest
        .output(&["no-such-program-anywhere"])
        .expect("a guest that lives");
    assert_eq!(output.code, 127);
    assert!(String::from_utf8_lossy(&output.stderr).contains("no-such-program-anywhere"));
}

fn streams_are_apart_and_exact(guest: &mut Guest) {
    let output = guest
        .output(&[
            "sh",
            "-c",
            "echo out; echo err >&2; echo more > /dev/stdout",
        ])
        .expect("it lives");
    assert_eq!(
        (output.stdout.as_slice(), output.stderr.as_slice()),
        (b"out\nmore\n".as_slice(), b"err\n".as_slice())
    );
    let bytes = noise(5_000_000);
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), &bytes).expect("room");
    let output = guest
        .output(&["cat", &file.path().display().to_string()])
        .expect("it lives");
    assert!(
        output.stdout == bytes,
        "{} bytes of {} came, or others",
        output.stdout.len(),
        bytes.len()
    );
}

fn words_arrive_as_they_are(guest: &mut Guest) {
    let odd = "a b'\"\\ $x `y` \n\t*?[é] --";
    let output = guest
        .output(&["printf", "%s|%s", odd, ""])
        .expect("it lives");
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{odd}|"));
    let mut run = Exec::new(&["sh", "-c", "pwd; printf %s \"$ODD\""]);
    run.directory = Some("/usr/bin".into());
    run.environment = vec![("ODD".into(), odd.into())];
    let mut stdout = Vec::new();
    let streams = Streams {
        input: Input::Nothing,
        output: Box::new(&mut stdout),
        errors: Box::new(std::io::sink()),
    };
    assert_eq!(
        guest
            .exec(&run, streams, &Signals::none())
            .expect("it lives")
            .code,
        0
    );
    assert_eq!(String::from_utf8_lossy(&stdout), format!("/usr/bin\n{odd}"));
}

fn input_reaches_the_command_and_ends(guest: &mut Guest) {
    let bytes = noise(1_000_003);
    let output = fed(guest, "cat", bytes.clone());
    assert!(output.stdout == bytes && output.code == 0);
    // A command that leaves its input alone does not disturb the next one's.
    assert_eq!(fed(guest, "exit 3", bytes).code, 3);
    assert_eq!(
        fed(guest, "head -c 3; cat > /dev/null", b"abcdef".to_vec()).stdout,
        b"abc"
    );
    assert_eq!(said(guest, "cat | wc -c"), "0");
}

fn a_stop_by_signal_reaches_the_command(guest: &mut Guest) {
    // A reader that closes early: the command gets SIGPIPE, as `yes | head` does on the host.
    struct Closed;
    impl std::io::Write for Closed {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let streams = Streams {
        input: Input::Nothing,
        output: Box::new(Closed),
        errors: Box::new(std::io::sink()),
    };
    let exit = guest
        .exec(&Exec::new(&["yes"]), streams, &Signals::none())
        .expect("it lives");
    assert_eq!(exit.code, 128 + 13);
}

fn the_hosts_files_are_there_and_stay_as_they_are(guest: &mut Guest) {
    let host = std::fs::metadata("/etc/passwd").expect("a file of every system");
    assert_eq!(
        said(guest, "stat -c %s /etc/passwd"),
        host.size().to_string()
    );
    let name = format!("/usr/nearfar-test-{}", std::process::id());
    assert_eq!(
        said(guest, &format!("echo here > {name}; cat {name}")),
        "here"
    );
    assert!(!std::path::Path::new(&name).exists());
}

fn results_reach_the_host(guest: &mut Guest, folder: &std::path::Path) {
    assert_eq!(
        said(
            guest,
            "echo figures > $NEARFAR_RESULTS/run.txt; echo $NEARFAR_RESULTS"
        ),
        "/results"
    );
    assert_eq!(
        std::fs::read_to_string(folder.join("run.txt")).expect("a result"),
        "figures\n"
    );
}

fn the_nodes_are_those_of_the_machine(guest: &mut Guest) {
    assert_eq!(said(guest, "cat /sys/devices/system/node/online"), "0-1");
    assert!(said(guest, "cat /proc/cmdline").contains("nearfar.lab={\"machine\":\"two-node"));
}

fn devices_can_be_plugged_in(guest: &mut Guest) {
    let disks =
        "for d in /sys/class/nvme/nvme*; do cat $d/device/numa_node; done 2> /dev/null; true";
    assert_eq!(said(guest, disks), "");
    let plug = HotPlug {
        device: PlugDevice::Nvme,
        node: Some(NodeId(1)),
    };
    guest
        .hot_plug(&plug)
        .unwrap_or_else(|error| panic!("{error}\n{}", guest.console()));
    assert_eq!(said(guest, disks), "1");
    assert_eq!(
        said(
            guest,
            "dd if=/dev/zero of=/dev/nvme0n1 bs=1M count=4 2> /dev/null; cat /sys/block/nvme0n1/size"
        ),
        "131072"
    );
    let error = guest
        .hot_plug(&plug)
        .expect_err("the node's one spare port is taken")
        .to_string();
    assert!(
        error.contains("no port is free on a host bridge of node 1"),
        "{error}"
    );
    // From within, by the command that is in the guest's PATH: a bridge, and what is behind it, on the node of its port.
    let found = "nearfar-lab plug bridge node=0; for d in /sys/class/nvme/nvme*; do cat $d/device/numa_node; done | sort";
    assert_eq!(said(guest, found), "0\n1");
}

/// Sends this process a SIGINT whenever something is written to it, so many times, each a request of its own.
struct Interrupting {
    times: u32,
    has_sent: bool,
}

impl std::io::Write for Interrupting {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.times > 0 {
            self.times -= 1;
            if std::mem::replace(&mut self.has_sent, true) {
                std::thread::sleep(nearfar_lab::guest::SAME_REQUEST);
            }
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::INT)?;
        }
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn interrupted(guest: &mut Guest, script: &str, times: u32) -> Result<i32, LabError> {
    let signals = Signals::of_process().expect("handlers");
    let output = Box::new(Interrupting {
        times,
        has_sent: false,
    });
    let streams = Streams {
        input: Input::Nothing,
        output,
        errors: Box::new(std::io::sink()),
    };
    guest
        .exec(&Exec::new(&["sh", "-c", script]), streams, &signals)
        .map(|exit| exit.code)
}

fn ctrl_c_reaches_the_command(guest: &mut Guest) {
    let handled = "trap 'exit 42' INT; echo runs; while :; do sleep 0.1; done";
    assert_eq!(interrupted(guest, handled, 1).expect("it lives"), 42);
    assert_eq!(
        interrupted(guest, "echo runs; exec sleep 100", 1).expect("it lives"),
        128 + 2
    );
    assert_eq!(said(guest, "echo still here"), "still here");
}

#[test]
fn a_second_ctrl_c_powers_the_guest_off() {
    tried_again(second_ctrl_c);
}

fn second_ctrl_c() {
    let Some(prepared) = prepared("two-node", Arch::X86_64) else {
        return;
    };
    let mut guest = boot(&prepared);
    let stubborn = "trap 'echo no' INT; echo runs; while :; do sleep 0.1; done";
    assert!(matches!(
        interrupted(&mut guest, stubborn, 2),
        Err(LabError::Interrupted)
    ));
    assert!(matches!(
        guest.output(&["true"]),
        Err(LabError::Died { .. })
    ));
}

#[test]
fn a_read_only_root_refuses_writes_and_still_has_a_place_for_results() {
    tried_again(read_only_root);
}

fn read_only_root() {
    let Some(mut prepared) = prepared("two-node", Arch::X86_64) else {
        return;
    };
    let results = tempfile::tempdir().expect("a folder");
    prepared.request.results = Some(results.path().to_owned());
    prepared.request.root = Root::ReadOnly;
    let mut guest = boot(&prepared);
    let refused = guest
        .output(&["sh", "-c", "echo x > /usr/nearfar-test"])
        .expect("it lives");
    assert_ne!(refused.code, 0);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("Read-only"));
    assert_eq!(
        said(
            &mut guest,
            "echo y > $NEARFAR_RESULTS/y; echo z > /run/z; cat /run/z"
        ),
        "z"
    );
    assert!(results.path().join("y").exists());
}

//! A standard error that is no longer read (`2>&1 >/dev/null | head -0`) ends nothing before its time: the exit code is the same, so is
//! standard output, and what was changed for a while is put back. On two nodes there is more of that: the last test is in a guest. A service
//! there is in guest_prefer_service.rs.

use std::fs;
use std::io::Read as _;
use std::process::{Output, Stdio};

use crate::guests;
use crate::harness;
use crate::harness::Nearfar;
use crate::tasks::{Manager, Owned, Waiting, node};
use tempfile::TempDir;

/// A directory of its own for whatever nearfar keeps.
fn nearfar(dir: &TempDir, arguments: &[&str]) -> Nearfar {
    harness::nearfar(arguments)
        .env("XDG_STATE_HOME", dir.path())
        .env("RUNTIME_DIRECTORY", dir.path())
        .env("NEARFAR_STORE", dir.path().join("runs.db"))
}

/// A pipe's writing end, of which there is no reading end.
fn unread() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

/// What it answers when its standard error is read, and when it is not. The command prints to it.
#[track_caller]
fn read_and_unread(arguments: &[&str]) -> [Output; 2] {
    let dir = tempfile::tempdir().unwrap();
    let read = nearfar(&dir, arguments).output().unwrap();
    assert!(!read.stderr.is_empty(), "{arguments:?} says nothing");
    [
        read,
        nearfar(&dir, arguments).stderr(unread()).output().unwrap(),
    ]
}

#[test]
fn errors_of_every_kind_have_the_same_exit_code_when_nothing_reads_them() {
    let nowhere = "/nonexistent/nearfar";
    let cases: [(&[&str], i32); 9] = [
        (&["nosuch"], 2),
        (&["topo", "--source", nowhere], 2),
        (&["audit", "--source", nowhere], 2),
        (&["runs", "show", "last"], 2),
        (&["prefer", "service", "--config", nowhere], 2),
        (&["prefer", "--node", "4000", "--", "true"], 2),
        (&["trace", "migrations", "--", nowhere], 127),
        (&["lab", "run", "--machine", "nosuch", "--", "true"], 2),
        (
            &[
                "ab",
                "--a",
                "machine=nosuch",
                "--b",
                "machine=nosuch",
                "--",
                "true",
            ],
            2,
        ),
    ];
    for (arguments, code) in cases {
        let codes = read_and_unread(arguments).map(|output| output.status.code());
        assert_eq!(codes, [Some(code); 2], "{arguments:?}");
    }
}

#[test]
fn a_kept_commands_output_and_exit_code_are_its_own_when_nothing_reads_the_report() {
    let node = node();
    for (script, code) in [("sleep 0.3; echo mine", 0), ("echo mine; exit 7", 7)] {
        for output in read_and_unread(&["prefer", "--node", &node, "--", "sh", "-c", script]) {
            assert_eq!(
                (output.status.code(), output.stdout.as_slice()),
                (Some(code), &b"mine\n"[..])
            );
        }
    }
}

#[test]
fn a_kept_process_has_its_own_cpus_again_when_nothing_reads_the_report() {
    let waiting = Waiting::start("cat");
    let (dir, before) = (tempfile::tempdir().unwrap(), waiting.allowed());
    let arguments = [
        "prefer",
        "--node",
        &node(),
        "--pid",
        &waiting.id().to_string(),
        "--seconds",
        "0.3",
    ];
    let output = nearfar(&dir, &arguments).stderr(unread()).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(waiting.allowed(), before);
}

#[test]
fn a_service_goes_on_and_ends_as_it_should_when_nothing_reads_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("prefer.toml");
    fs::write(
        &config,
        format!(
            "[[prefer]]\nname = \"one\"\nnode = {}\ncommand = \"nobody-is-called-so\"\n",
            node()
        ),
    )
    .unwrap();
    let mut command = nearfar(
        &dir,
        &["prefer", "service", "--config", config.to_str().unwrap()],
    );
    let manager = Manager::of(&mut command, dir.path());
    let mut child = Owned(
        command
            .stdout(Stdio::null())
            .stderr(unread())
            .spawn()
            .unwrap(),
    );
    let signal = |signal| {
        // SAFETY: a child of this test that has not been waited for.
        assert_eq!(unsafe { libc::kill(child.id().cast_signed(), signal) }, 0);
    };
    for (expected, next) in [("READY=1", libc::SIGTERM), ("STOPPING=1", 0)] {
        manager.receives(expected);
        signal(next);
    }
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_matrix_is_measured_when_nothing_reads_its_progress() {
    let dir = tempfile::tempdir().unwrap();
    let tiny = [
        "--bytes", "4M", "--counts", "4", "--steps", "20000", "--load", "5", "--format", "json",
    ];
    let few = [
        "--samples",
        "2",
        "--factor",
        "preferred_node=-1",
        "--factor",
        "numa_balancing=0",
        "--factor",
        "memory_node=F",
        "--factor",
        "cpu_node=F",
    ];
    let arguments = [&["bench", "probe"][..], &tiny, &few].concat();
    let mut command = nearfar(&dir, &arguments);
    let mut child = Owned(
        command
            .stdout(Stdio::piped())
            .stderr(unread())
            .spawn()
            .unwrap(),
    );
    let mut text = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        answer["answer"]["rows"][0]["seconds"]["samples"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
}

#[test]
fn on_two_nodes_settings_and_masks_are_put_back_when_nothing_reads_of_it() {
    if guests::skipped() {
        return;
    }
    let text = r#"
        mask() { sed -n "s/^Cpus_allowed_list:\t//p" /proc/$task/status; }
        settings() { cat /sys/kernel/debug/sched/migration_cost_ns /proc/sys/kernel/numa_balancing; }
        before=$(settings)
        "$0" bench probe --no-store --bytes 4M --counts 4 --steps 20000 --samples 1 --factor preferred_node=-1 --factor memory_node=F --factor cpu_node=F --migration-cost-ns 700000 2> >(:)
        echo "matrix ended with $?"
        [ "$(settings)" = "$before" ] && echo settings as before
        sleep 1000 & task=$!
        "$0" prefer --node 1 --pid $task 2> >(:) & keeper=$!
        left=1000; until [ "$(mask)" = 2-3 ] || [ $((left -= 1)) = 0 ]; do sleep 0.1; done
        echo "kept on $(mask)"
        kill -TERM $keeper; wait $keeper
        echo "keeper ended with $?, task on $(mask)"
    "#;
    let said = guests::script(
        "two-node",
        &["--scale", "cpus=2,memory=512M"],
        &format!("exec bash -c '{text}' \"$0\""),
    );
    let expected =
        "matrix ended with 0\nsettings as before\nkept on 2-3\nkeeper ended with 0, task on 0-3\n";
    assert!(said.ends_with(expected), "{said}");
}

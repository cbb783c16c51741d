//! `--verbose`, `NEARFAR_LOG` and the journal: what nearfar says of its own work, and that standard output stays as it is.

use std::fs;
use std::os::linux::fs::MetadataExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::harness::{NEARFAR, nearfar};
use crate::tasks::{Manager, Owned, Waiting, node};
use tempfile::TempDir;

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn said(output: &Output) -> String {
    text(&output.stderr)
}

/// A tree with one setting, and a plan that changes it and one that is not there.
fn tree() -> (TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let kernel = dir.path().join("proc/sys/kernel");
    fs::create_dir_all(&kernel).unwrap();
    fs::write(kernel.join("numa_balancing"), "1\n").unwrap();
    let change = |change: serde_json::Value| serde_json::json!({ "change": change, "before": null, "rule": "test", "reason": "test", "distance": null });
    let there = change(
        serde_json::json!({ "kind": "sysctl", "name": "kernel.numa_balancing", "value": "0" }),
    );
    let gone =
        change(serde_json::json!({ "kind": "rps", "interface": "eth0", "queue": 0, "cpus": "" }));
    let plan = serde_json::json!({
        "plan_format": 1, "host": null, "changes": [there, gone], "left_alone": [], "nearest": []
    });
    let file = dir.path().join("plan.json");
    fs::write(&file, plan.to_string()).unwrap();
    let file = file.to_str().unwrap().to_owned();
    (dir, file)
}

#[test]
fn apply_says_each_write_with_path_old_and_new_and_each_refusal() {
    let run = |more: &[&str], variable: Option<&str>| {
        let (dir, plan) = tree();
        let mut command =
            nearfar(["apply", &plan, "--root", dir.path().to_str().unwrap()]).args(more);
        command.envs(variable.map(|text| ("NEARFAR_LOG", text)));
        let mut output = command.output().unwrap();
        // The command that undoes the run names the directory, which each run has its own.
        output.stdout = text(&output.stdout)
            .replace(dir.path().to_str().unwrap(), "DIR")
            .into_bytes();
        output
    };
    let quiet = run(&[], None);
    assert!(text(&quiet.stdout).contains("numa_balancing"), "{quiet:?}");
    let verbose = run(&["--verbose"], None);
    assert_eq!(
        (verbose.status, &verbose.stdout),
        (quiet.status, &quiet.stdout)
    );
    let line = |output: &Output, part: &str| {
        let said = said(output);
        said.lines()
            .find(|line| line.contains(part))
            .unwrap_or_else(|| panic!("no {part:?} in\n{said}"))
            .to_owned()
    };
    let write = line(&verbose, ": write ");
    assert!(
        write.contains(r#"path="/proc/sys/kernel/numa_balancing" old="1" new="0""#),
        "{write}"
    );
    // 2026-11-22T07:01:26.123456Z
    assert!(
        write.as_bytes()[10] == b'T' && write.contains("Z  INFO nearfar_change::"),
        "{write}"
    );
    assert!(
        line(&verbose, "not changed")
            .contains(r#"path="/sys/class/net/eth0/queues/rx-0/rps_cpus" reason="#)
    );
    assert!(!said(&verbose).contains("DEBUG") && !said(&verbose).contains("TRACE"));
    assert!(said(&run(&["-vvv"], None)).contains("TRACE"));
    let chosen = run(&["-v"], Some("nearfar_change=debug,nearfar_sources=off"));
    assert!(
        said(&chosen).contains("DEBUG nearfar_change"),
        "{}",
        said(&chosen)
    );
    assert!(!said(&quiet).contains("INFO"));
}

#[test]
fn sources_say_what_they_read_and_what_they_cannot() {
    let output = nearfar(["topo", "-vvv"]).run();
    assert!(
        said(&output).contains("TRACE nearfar_sources::tree"),
        "{}",
        said(&output)
    );
    assert!(said(&output).contains(r#"path=/sys/devices/system/"#));
    // Not compared with another answer: free memory changes meanwhile.
    let answer = text(&output.stdout);
    assert!(
        output.status.success() && answer.contains("Nodes") && !answer.contains("TRACE"),
        "{answer}"
    );
}

#[test]
fn a_bad_filter_is_wrong_usage() {
    for (filter, part) in [
        ("loud", "\"loud\" is none of off"),
        ("nearfar_prefre=info", "there is no \"nearfar_prefre\""),
    ] {
        let output = nearfar(["topo", "--source", "node:2"])
            .env("NEARFAR_LOG", filter)
            .run();
        assert_eq!(
            (output.status.code(), output.stdout.len()),
            (Some(2), 0),
            "{output:?}"
        );
        assert!(
            said(&output).starts_with("nearfar: NEARFAR_LOG: ") && said(&output).contains(part),
            "{}",
            said(&output)
        );
    }
    let output = nearfar(["topo", "--source", "node:2"])
        .env("NEARFAR_LOG", "")
        .run();
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn prefer_says_whom_it_keeps() {
    let state = tempfile::tempdir().unwrap();
    let script = "echo mine; sleep 0.2";
    let output = nearfar(["prefer", "--node", &node(), "--", "sh", "-c", script])
        .env("NEARFAR_LOG", "nearfar_prefer=debug")
        .env("XDG_STATE_HOME", state.path())
        .run();
    assert_eq!(
        (output.status.code(), text(&output.stdout).as_str()),
        (Some(0), "mine\n"),
        "{}",
        said(&output)
    );
    let lines = said(&output);
    let kept = lines
        .lines()
        .find(|line| line.contains("keep process"))
        .unwrap_or_else(|| panic!("{lines}"));
    assert!(
        kept.contains("INFO nearfar_prefer::keeper") && kept.contains(&format!("node={}", node())),
        "{kept}"
    );
}

/// A rule for one executable, and its service's directory.
fn service(dir: &Path, program: &Path) -> String {
    let config = dir.join("prefer.toml");
    let rule = format!(
        "[[prefer]]\nname = \"test\"\nnode = {}\ncommand = \"{}\"\n",
        node(),
        program.display()
    );
    fs::write(&config, "scan_seconds = 0.1\n".to_owned() + &rule).unwrap();
    config.to_str().unwrap().to_owned()
}

/// A process whose executable and name hold what would end a line, or move a terminal's cursor.
fn with_a_hostile_name(dir: &Path) -> Waiting {
    let program = dir.join("a\u{1b}[2J\nroot: b");
    let copied = Command::new("cp")
        .arg("/bin/cat")
        .arg(&program)
        .status()
        .unwrap();
    assert!(copied.success());
    Waiting::start(program)
}

#[test]
fn a_name_with_line_ends_and_escapes_stays_within_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let task = with_a_hostile_name(dir.path());
    let pattern = dir.path().join("a*");
    let config = service(dir.path(), &pattern);
    let mut service = nearfar(["prefer", "service", "--config", &config]).start();
    service.wait_for_error(&format!(
        "test: a\u{fffd}[2J\u{fffd}root: b (process {}) prefers node",
        task.id()
    ));
    let lines = service.stderr.so_far();
    assert!(!lines.contains('\u{1b}'), "{lines:?}");
    assert!(
        lines.lines().all(|line| !line.starts_with("root:")),
        "{lines:?}"
    );
}

/// The fields of a message of the journal's native protocol: `KEY=value`, or a key, a length and the value.
fn fields(mut message: &[u8]) -> Vec<(String, String)> {
    let mut fields = Vec::new();
    while let Some(end) = message
        .iter()
        .position(|&byte| matches!(byte, b'=' | b'\n'))
    {
        let (key, rest) = (text(&message[..end]), &message[end + 1..]);
        let (value, rest) = if message[end] == b'=' {
            let line = rest.iter().position(|&byte| byte == b'\n').unwrap();
            (&rest[..line], &rest[line + 1..])
        } else {
            let length = u64::from_le_bytes(*rest.first_chunk().unwrap()) as usize;
            (&rest[8..8 + length], &rest[9 + length..])
        };
        fields.push((key, text(value)));
        message = rest;
    }
    fields
}

/// In a mount namespace of its own, in which the journal's socket is one of this test.
#[test]
fn under_systemd_the_service_gives_the_journal_fields() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("journal");
    fs::create_dir(&socket).unwrap();
    let journal = UnixDatagram::bind(socket.join("socket")).unwrap();
    journal
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let task = with_a_hostile_name(dir.path());
    let config = service(dir.path(), &dir.path().join("a*"));
    let error = dir.path().join("error");
    let stream = fs::File::create(&error).unwrap();
    let place = stream.metadata().unwrap();

    let script = "mount -t tmpfs none /run && mkdir -p /run/systemd/journal && mount --bind \"$1\" /run/systemd/journal || exit 77
        shift; exec \"$@\"";
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", script, "sh"])
        .arg(&socket)
        .arg(NEARFAR);
    command
        .args(["prefer", "service", "--config", &config])
        .env_remove("NEARFAR_LOG");
    command
        .env("RUNTIME_DIRECTORY", dir.path())
        .env("XDG_STATE_HOME", dir.path().join("state"));
    command.env(
        "JOURNAL_STREAM",
        format!("{}:{}", place.st_dev(), place.st_ino()),
    );
    let manager = Manager::of(&mut command, dir.path());
    if !Command::new("unshare")
        .args(["--mount", "true"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|ran| ran.success())
    {
        return println!("skipped: root: no mount namespace can be made here");
    }
    let _child = Owned(command.stderr(stream).spawn().unwrap());
    manager.receives("READY=1");
    let mut buffer = vec![0; 1 << 16];
    let kept = loop {
        let length = journal.recv(&mut buffer).unwrap();
        let fields = fields(&buffer[..length]);
        if fields.iter().any(|(key, _)| key == "NEARFAR_PID") {
            break fields;
        }
    };
    let value = |key: &str| {
        kept.iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value.as_str())
    };
    assert_eq!(
        value("NEARFAR_PID"),
        Some(task.id().to_string().as_str()),
        "{kept:?}"
    );
    assert_eq!(
        (value("NEARFAR_RULE"), value("NEARFAR_NODE")),
        (Some("test"), Some(node().as_str())),
        "{kept:?}"
    );
    assert_eq!(
        value("NEARFAR_NAME"),
        Some("a\u{1b}[2J\nroot: b"),
        "a value is what it is: {kept:?}"
    );
    assert_eq!(value("SYSLOG_IDENTIFIER"), Some("nearfar"));
    assert_eq!(
        (value("PRIORITY"), value("TARGET")),
        (Some("5"), Some("nearfar_prefer::service")),
        "{kept:?}"
    );
    assert!(
        value("MESSAGE").is_some_and(|line| line.contains("prefers node")),
        "{kept:?}"
    );
    assert_eq!(
        fs::read_to_string(error).unwrap(),
        "",
        "nothing is said twice"
    );
}

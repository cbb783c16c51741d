//! `nearfar prefer service` on the machine that tests run on: it starts, finds tasks, reads its file again, and ends. What it
//! does to tasks where there are nodes to choose from is in guest_prefer_service.rs.

mod harness;
mod keys;
mod tasks;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tasks::{Lines, Manager, Owned, Waiting, node};
use tempfile::TempDir;

const NEARFAR: &str = env!("CARGO_BIN_EXE_nearfar");

/// A service with a directory of its own: its configuration, lock, leases and the socket of its manager.
struct Served {
    child: Owned,
    lines: Lines,
    dir: TempDir,
}

fn command(dir: &Path) -> Command {
    let mut command = Command::new(NEARFAR);
    command
        .args(["prefer", "service", "--config"])
        .arg(dir.join("prefer.toml"));
    command
        .env("RUNTIME_DIRECTORY", dir)
        .env("XDG_STATE_HOME", dir.join("state"));
    command
}

fn directory(config: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("prefer.toml"), config).unwrap();
    dir
}

/// A rule for an executable that only one test has.
fn rule(name: &str, program: &Path) -> String {
    format!(
        "scan_seconds = 0.1\n[[prefer]]\nname = \"{name}\"\nnode = {}\ncommand = \"{}\"\n",
        node(),
        program.display()
    )
}

impl Served {
    /// Starts it, and waits until it is ready.
    fn start(config: &str) -> Self {
        let dir = directory(config);
        let mut command = command(dir.path());
        let manager = Manager::of(&mut command, dir.path());
        let mut child = Owned(
            command
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap(),
        );
        let lines = Lines::of(child.stderr.take().unwrap());
        manager.hears("READY=1");
        Self { child, lines, dir }
    }

    fn wait_for(&mut self, part: &str) {
        self.lines.wait_for(part);
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: a child of this test that has not been waited for.
        let sent = unsafe { libc::kill(self.child.id().cast_signed(), signal) };
        assert_eq!(sent, 0);
    }

    /// Ends it as a service manager does; all that it said.
    fn end(mut self) -> String {
        self.signal(libc::SIGTERM);
        let said = self.lines.all();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}\n{said}");
        said
    }
}

/// A process with an executable of its own that waits until it is dropped.
fn waiting(program: &Path) -> Waiting {
    if !program.exists() {
        // Not copied by this process: a child that another test forks meanwhile would hold the copy open for
        // writing until it executes its own program, and the kernel runs no program that is open for writing.
        let copied = Command::new("cp")
            .arg("/bin/cat")
            .arg(program)
            .status()
            .unwrap();
        assert!(copied.success());
    }
    Waiting::start(program)
}

fn check(dir: &Path, options: &[&str]) -> (Output, String) {
    let output = command(dir).arg("--check").args(options).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    (output, text)
}

#[test]
fn tasks_are_found_as_they_come_and_given_back_at_the_end() {
    let bin = tempfile::tempdir().unwrap();
    let program = bin.path().join("preferred");
    let early = waiting(&program);
    let before = early.allowed();
    let mut served = Served::start(&rule("test", &program));
    served.wait_for(&format!(
        "test: preferred (process {}) prefers node {}",
        early.id(),
        node()
    ));
    let late = waiting(&program);
    served.wait_for(&format!("(process {}) prefers", late.id()));
    let said = served.end();
    assert!(
        said.contains("test: given back (2 processes kept"),
        "{said}"
    );
    assert_eq!(early.allowed(), before);
    assert_eq!(late.allowed(), before);
}

#[test]
fn a_changed_file_is_read_again_and_one_with_a_fault_changes_nothing() {
    let bin = tempfile::tempdir().unwrap();
    let (one, other) = (bin.path().join("one"), bin.path().join("other"));
    let (first, second) = (waiting(&one), waiting(&other));
    let mut served = Served::start(&rule("first", &one));
    served.wait_for(&format!("(process {}) prefers", first.id()));
    let file = served.dir.path().join("prefer.toml");

    fs::write(&file, "[[prefer]]\nname = 1\n").unwrap();
    served.signal(libc::SIGHUP);
    served.wait_for("the configuration stays as it was");
    assert!(
        served.lines.said.contains("prefer.toml:2: invalid type"),
        "{}",
        served.lines.said
    );

    fs::write(&file, rule("second", &other)).unwrap();
    served.signal(libc::SIGHUP);
    served.wait_for("first: given back");
    served.wait_for("read again");
    served.wait_for(&format!("second: other (process {}) prefers", second.id()));

    served.signal(libc::SIGHUP);
    served.wait_for("the configuration is the same");
    served.end();
}

#[test]
fn a_second_service_is_refused() {
    let served = Served::start(&rule("only", Path::new("/nowhere/at/all")));
    let output = command(served.dir.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(
        text.contains(&format!(
            "process {} is a nearfar prefer service already",
            served.child.id()
        )),
        "{text}"
    );
    served.end();
}

#[test]
fn a_rule_without_its_device_waits_while_the_others_serve() {
    let bin = tempfile::tempdir().unwrap();
    let program = bin.path().join("served");
    let task = waiting(&program);
    let waiting = "\n[[prefer]]\nname = \"waits\"\nnear = \"eth77\"\ncommand = \"whatever\"\n";
    let mut served = Served::start(&(rule("serves", &program) + waiting));
    served.wait_for("waits: there is no device \"eth77\" here");
    served.wait_for(&format!("serves: served (process {}) prefers", task.id()));
    served.end();
}

#[test]
fn check_shows_what_would_match_and_changes_nothing() {
    let bin = tempfile::tempdir().unwrap();
    let program = bin.path().join("checked");
    let task = waiting(&program);
    let before = task.allowed();
    let dir = directory(&rule("shown", &program));
    let (output, text) = check(dir.path(), &[]);
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("shown") && text.contains(&format!("checked {}", task.id())),
        "{text}"
    );
    let (_, text) = check(dir.path(), &["--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["schema"], "prefer-service-check/1");
    assert_eq!(json["rules"][0]["tasks"][0]["pid"], task.id());
    keys::documented([&json]);
    assert_eq!(task.allowed(), before);
    assert!(!dir.path().join("prefer-service.lock").exists());
}

#[test]
fn check_says_where_a_file_is_wrong_and_which_rule_has_no_node() {
    let dir = directory("[[prefer]]\nname = \"a\"\nnode = 0\ncomand = \"x\"\n");
    let (output, text) = check(dir.path(), &[]);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(
        text.contains("prefer.toml:4: unknown field `comand`"),
        "{text}"
    );
    fs::write(
        dir.path().join("prefer.toml"),
        "[[prefer]]\nname = \"a\"\nnode = 1000\ncommand = \"x\"\n",
    )
    .unwrap();
    let (output, text) = check(dir.path(), &[]);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(
        text.contains("prefer.toml:1: a: there is no node 1000"),
        "{text}"
    );
    let missing = command(&dir.path().join("gone")).output().unwrap();
    assert_eq!(missing.status.code(), Some(2));
}

#[test]
fn a_lock_that_another_user_planted_does_not_lead_to_a_file_of_this_one() {
    let dir = directory(&rule("only", Path::new("/nowhere/at/all")));
    let victim = dir.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    std::os::unix::fs::symlink(&victim, dir.path().join("prefer-service.lock")).unwrap();
    let output = command(dir.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(
        text.contains("prefer-service.lock: Too many levels of symbolic links"),
        "{text}"
    );
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");

    // As in /tmp: another user cannot remove what is there, and was first to make what is not.
    let shared = dir.path().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).unwrap();
    let own = dir.path().join("own");
    fs::create_dir(&own).unwrap();
    std::os::unix::fs::symlink(&own, shared.join("nearfar")).unwrap();
    if std::os::unix::fs::lchown(shared.join("nearfar"), Some(65534), Some(65534)).is_err() {
        return println!("skipped: root: only root can make a link of another user");
    }
    let output = command(dir.path())
        .env("RUNTIME_DIRECTORY", shared.join("nearfar"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("belongs to user 65534"), "{text}");
    assert_eq!(fs::read_dir(&own).unwrap().count(), 0);
}

#[test]
fn a_configuration_that_others_can_write_is_refused() {
    let dir = directory(&rule("only", Path::new("/nowhere/at/all")));
    fs::set_permissions(
        dir.path().join("prefer.toml"),
        fs::Permissions::from_mode(0o666),
    )
    .unwrap();
    for checked in [true, false] {
        let output = command(dir.path())
            .args(checked.then_some("--check"))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(
            text.contains("prefer.toml: others may write it: chmod go-w it"),
            "{text}"
        );
    }
}

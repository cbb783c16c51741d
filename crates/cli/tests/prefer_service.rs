//! `nearfar prefer service` on the machine that tests run on: it starts, finds tasks, reads its file again, and ends. What it
//! does to tasks where there are nodes to choose from is in guest_prefer_service.rs.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::harness::{Answer, Nearfar, Running, Sandbox};
use crate::keys;
use crate::tasks::{Manager, Waiting, node};
use rustix::process::Signal;

/// A running service in a sandbox of its own: its configuration, lock, leases and the socket of its manager.
struct Served {
    running: Running,
    sandbox: Sandbox,
}

fn command(sandbox: &Sandbox) -> Nearfar {
    sandbox.nearfar(["prefer", "service", "--config", "prefer.toml"])
}

fn sandbox(config: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("prefer.toml", config);
    sandbox
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
        let sandbox = sandbox(config);
        let mut command = command(&sandbox);
        let manager = Manager::of(&mut command, sandbox.root());
        let running = command.start();
        manager.receives("READY=1");
        Self { running, sandbox }
    }

    #[track_caller]
    fn wait_for(&mut self, part: &str) {
        self.running.wait_for_error(part);
    }

    fn reload(&self) {
        self.running.signal(Signal::HUP);
    }

    /// Ends it as a service manager does; all that it logged.
    #[track_caller]
    fn end(self) -> String {
        self.running.end_by(Signal::TERM).succeeded().errors()
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

fn check(sandbox: &Sandbox, options: &[&str]) -> Answer {
    command(sandbox).arg("--check").args(options).run()
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
    let file = served.sandbox.path("prefer.toml");

    fs::write(&file, "[[prefer]]\nname = 1\n").unwrap();
    served.reload();
    served.wait_for("the configuration stays as it was");
    let log = served.running.stderr.so_far();
    assert!(log.contains("prefer.toml:2: invalid type"), "{log}");

    fs::write(&file, rule("second", &other)).unwrap();
    served.reload();
    served.wait_for("first: given back");
    served.wait_for("read again");
    served.wait_for(&format!("second: other (process {}) prefers", second.id()));

    served.reload();
    served.wait_for("the configuration is the same");
    served.end();
}

#[test]
fn a_second_service_is_refused() {
    let served = Served::start(&rule("only", Path::new("/nowhere/at/all")));
    let first = served.running.id();
    let said = format!("process {first} is a nearfar prefer service already");
    command(&served.sandbox).run().exited(3).says(&[&said]);
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
    let sandbox = sandbox(&rule("shown", &program));
    let text = check(&sandbox, &[]).succeeded().text();
    assert!(
        text.contains("shown") && text.contains(&format!("checked {}", task.id())),
        "{text}"
    );
    let json = check(&sandbox, &["--format", "json"]).json();
    assert_eq!(json["schema"], "prefer-service-check/1");
    assert_eq!(json["rules"][0]["tasks"][0]["pid"], task.id());
    keys::documented([&json]);
    assert_eq!(task.allowed(), before);
    let lock = sandbox.directory("RUNTIME_DIRECTORY");
    assert!(!lock.join("prefer-service.lock").exists());
}

#[test]
fn check_says_where_a_file_is_wrong_and_which_rule_has_no_node() {
    let sandbox = sandbox("[[prefer]]\nname = \"a\"\nnode = 0\ncomand = \"x\"\n");
    check(&sandbox, &[])
        .exited(2)
        .says(&["prefer.toml:4: unknown field `comand`"]);
    let absent = "[[prefer]]\nname = \"a\"\nnode = 1000\ncommand = \"x\"\n";
    sandbox.write("prefer.toml", absent);
    let answer = check(&sandbox, &[]).exited(2);
    let text = answer.text() + &answer.errors();
    assert!(
        text.contains("prefer.toml:1: a: there is no node 1000"),
        "{answer}"
    );
    fs::remove_file(sandbox.path("prefer.toml")).unwrap();
    command(&sandbox).run().exited(2);
}

#[test]
fn a_lock_that_another_user_planted_does_not_lead_to_a_file_of_this_one() {
    let sandbox = sandbox(&rule("only", Path::new("/nowhere/at/all")));
    let victim = sandbox.write("victim", "precious");
    let lock = sandbox
        .directory("RUNTIME_DIRECTORY")
        .join("prefer-service.lock");
    std::os::unix::fs::symlink(&victim, lock).unwrap();
    command(&sandbox)
        .run()
        .exited(3)
        .says(&["prefer-service.lock: Too many levels of symbolic links"]);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");

    // As in /tmp: another user cannot remove what is there, and was first to make what is not.
    let shared = sandbox.path("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).unwrap();
    let own = sandbox.path("own");
    fs::create_dir(&own).unwrap();
    std::os::unix::fs::symlink(&own, shared.join("nearfar")).unwrap();
    if std::os::unix::fs::lchown(shared.join("nearfar"), Some(65534), Some(65534)).is_err() {
        return println!("skipped: root: only root can make a link of another user");
    }
    command(&sandbox)
        .env("RUNTIME_DIRECTORY", shared.join("nearfar"))
        .run()
        .exited(3)
        .says(&["belongs to user 65534"]);
    assert_eq!(fs::read_dir(&own).unwrap().count(), 0);
}

#[test]
fn a_configuration_that_others_can_write_is_refused() {
    let sandbox = sandbox(&rule("only", Path::new("/nowhere/at/all")));
    let everyone = fs::Permissions::from_mode(0o666);
    fs::set_permissions(sandbox.path("prefer.toml"), everyone).unwrap();
    for options in [&["--check"][..], &[]] {
        command(&sandbox)
            .args(options)
            .run()
            .exited(2)
            .says(&["prefer.toml: others may write it: chmod go-w it"]);
    }
}

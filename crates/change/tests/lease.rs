//! Temporary changes: undone at release, after SIGKILL by the guard, and without it by the next one who looks.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::support::examples::{example, writes_and_early_ones};
use nearfar_change::UndoResult;
use nearfar_change::lease::{LeaseError, Leases};
use nearfar_machine::CpuSet;
use nearfar_proc::{affinity, tasks};
use tempfile::TempDir;

/// A directory for leases, and a file that is changed for a while.
struct Place {
    directory: TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self {
            directory: tempfile::tempdir().unwrap(),
        };
        fs::DirBuilder::new()
            .mode(0o700)
            .create(place.state())
            .unwrap();
        fs::write(place.file(), "1\n").unwrap();
        place
    }

    fn file(&self) -> PathBuf {
        // In the directory of the journals, where a lease may set files that are not the kernel's.
        self.state().join("numa_balancing")
    }

    fn content(&self) -> String {
        fs::read_to_string(self.file()).unwrap()
    }

    fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    fn leases(&self) -> Leases {
        Leases::at(self.state())
    }

    fn journals(&self) -> usize {
        let names = fs::read_dir(self.state())
            .unwrap()
            .map(|entry| entry.unwrap().file_name());
        names
            .filter(|name| name.to_str().unwrap().ends_with(".journal"))
            .count()
    }

    /// A process that holds a lease.
    fn owner(&self, words: &[&str], guarded: bool) -> Owner {
        static BINARY: OnceLock<PathBuf> = OnceLock::new();
        let mut command = Command::new(BINARY.get_or_init(|| example("hold_lease")));
        command
            .arg(self.state())
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if guarded {
            command.env("GUARDED", "1");
        }
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "held\n");
        Owner(child)
    }

    fn owner_of_file(&self, guarded: bool) -> Owner {
        self.owner(&[self.file().to_str().unwrap(), "0"], guarded)
    }
}

struct Owner(Child);

impl Owner {
    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Kills a process that is no child of this one.
fn kill(pid: i32) {
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
}

/// Waits until it holds. That takes milliseconds; a machine with much else to do may take its time.
#[track_caller]
fn soon(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{what}: not in a minute"
        );
        sleep(Duration::from_millis(2));
    }
}

#[test]
fn no_setting_is_written_before_its_record_is_on_disk() {
    let place = Place::new();
    let mut command = Command::new(example("hold_lease"));
    command
        .arg(place.state())
        .arg(place.file())
        .args(["0", "2"]);
    let Some((writes, early)) = writes_and_early_ones(&command, &place.file()) else {
        return;
    };
    assert_eq!(place.content(), "1\n");
    assert!(writes >= 3, "{writes} writes");
    assert_eq!(early, 0, "of {writes} writes");
}

#[test]
fn a_released_lease_leaves_everything_as_it_was() {
    let place = Place::new();
    let mut lease = place.leases().take("a test").unwrap();
    for value in ["0", "2", "0"] {
        lease.set_file(&place.file(), value.as_bytes()).unwrap();
        assert_eq!(place.content(), value);
    }
    let recovered = lease.release().unwrap();
    assert_eq!(
        recovered
            .undone
            .iter()
            .map(|undone| &undone.result)
            .collect::<Vec<_>>(),
        [&UndoResult::Restored {
            from: "0".into(),
            to: "1".into(),
            note: None
        }]
    );
    assert_eq!((place.content().as_str(), place.journals()), ("1\n", 0));
}

#[test]
fn a_dropped_lease_is_released() {
    let place = Place::new();
    let mut lease = place.leases().take("a test").unwrap();
    lease.set_file(&place.file(), b"0").unwrap();
    drop(lease);
    assert_eq!((place.content().as_str(), place.journals()), ("1\n", 0));
}

#[test]
fn the_guard_undoes_when_its_owner_dies() {
    let place = Place::new();
    let owner = place.owner_of_file(true);
    assert_eq!(place.content(), "0");
    owner.kill();
    soon("put back", || {
        place.content() == "1\n" && place.journals() == 0
    });
}

#[test]
fn a_guard_that_is_sent_home_does_not_wait_for_what_its_owner_still_holds() {
    let place = Place::new();
    let mut lease = place.leases().take("a test").unwrap();
    lease.set_file(&place.file(), b"0").unwrap();
    for (word, goes_home) in [(&b"."[..], true), (&b""[..], false)] {
        let mut guard = Command::new(example("hold_lease"));
        guard
            .arg("lease-guard")
            .arg(place.state())
            .arg(std::process::id().to_string());
        let mut guard = guard
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut guard.stdin.take().unwrap(), word).unwrap();
        let begun = Instant::now();
        let mut ended = false;
        while !ended && begun.elapsed() < Duration::from_secs(if goes_home { 60 } else { 1 }) {
            ended = guard.try_wait().unwrap().is_some();
            sleep(Duration::from_millis(2));
        }
        assert_eq!((ended, place.content().as_str()), (goes_home, "0"));
        guard.kill().unwrap();
        guard.wait().unwrap();
    }
    lease.release().unwrap();
    assert_eq!(place.content(), "1\n");
}

#[test]
fn without_a_guard_the_next_one_undoes() {
    let place = Place::new();
    let owner = place.owner_of_file(false);
    assert_eq!(place.leases().recover().unwrap(), [], "its owner lives");
    assert_eq!(place.content(), "0");
    owner.kill();
    assert_eq!(place.content(), "0");
    let recovered = place.leases().recover().unwrap();
    assert_eq!((recovered.len(), recovered[0].what.as_str()), (1, "a test"));
    assert_eq!((place.content().as_str(), place.journals()), ("1\n", 0));
    assert_eq!(place.leases().recover().unwrap(), []);
}

#[test]
fn of_several_that_look_at_once_one_undoes() {
    let place = Place::new();
    place.owner_of_file(false).kill();
    let undone: Vec<usize> = std::thread::scope(|scope| {
        let look = || place.leases().recover().unwrap().len();
        let lookers = [0; 6].map(|_| scope.spawn(look));
        lookers.map(|looker| looker.join().unwrap()).to_vec()
    });
    assert_eq!(undone.iter().sum::<usize>(), 1, "{undone:?}");
    assert_eq!((place.content().as_str(), place.journals()), ("1\n", 0));
}

#[test]
fn with_guard_and_owner_killed_the_next_one_undoes() {
    let place = Place::new();
    let owner = place.owner_of_file(true);
    let pid = owner.0.id().cast_signed();
    let [guard] = tasks::children(pid, pid).unwrap()[..] else {
        panic!("not one guard")
    };
    kill(guard);
    owner.kill();
    place.leases().recover().unwrap();
    assert_eq!(place.content(), "1\n");
}

#[test]
fn killed_at_any_moment_of_a_change_it_is_undone() {
    let place = Place::new();
    for moment in 0..15_u64 {
        let owner = place.owner(
            &["--for-ever", place.file().to_str().unwrap(), "0", "2", "3"],
            false,
        );
        sleep(Duration::from_micros(moment * 797));
        owner.kill();
        place.leases().recover().unwrap();
        assert_eq!(
            (place.content().as_str(), place.journals()),
            ("1\n", 0),
            "moment {moment}"
        );
    }
}

#[test]
fn a_file_belongs_to_one_lease_and_the_second_is_told_whose() {
    let place = Place::new();
    let owner = place.owner_of_file(false);
    let mut second = place.leases().take("another").unwrap();
    match second.set_file(&place.file(), b"2") {
        Err(LeaseError::Held { pid, what, .. }) => {
            assert_eq!((pid, what.as_str()), (owner.0.id(), "a test"))
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(place.content(), "0");
    owner.kill();
    // Of a dead owner it is undone first, so that the value before is kept and not the dead one's.
    second.set_file(&place.file(), b"2").unwrap();
    second.release().unwrap();
    assert_eq!(place.content(), "1\n");
}

#[test]
fn what_another_program_has_set_meanwhile_is_left() {
    let place = Place::new();
    let owner = place.owner_of_file(false);
    fs::write(place.file(), "7\n").unwrap();
    owner.kill();
    let recovered = place.leases().recover().unwrap();
    assert_eq!(
        recovered[0].undone[0].result,
        UndoResult::ChangedSince {
            now: "7".into(),
            by_change_set: None
        }
    );
    assert_eq!((place.content().as_str(), place.journals()), ("7\n", 0));
}

/// A lease stays as long as one of its files cannot be put back; another program may have set the others meanwhile.
#[test]
fn what_was_put_back_is_not_put_back_again() {
    let place = Place::new();
    let stuck = place.state().join("stuck");
    fs::write(&stuck, "1\n").unwrap();
    let words = [&stuck, &place.file()].map(|it| it.to_str().unwrap().to_owned());
    let mut lease = place.leases().take("a test").unwrap();
    for file in &words {
        lease.set_file(Path::new(file), b"0").unwrap();
    }
    fs::remove_file(&stuck).unwrap();
    fs::create_dir(&stuck).unwrap();
    assert!(matches!(lease.release(), Err(LeaseError::Undo { .. })));
    assert_eq!((place.content().as_str(), place.journals()), ("1\n", 1));
    fs::write(place.file(), "0").unwrap();
    fs::remove_dir(&stuck).unwrap();
    fs::write(&stuck, "0").unwrap();
    let recovered = place.leases().recover().unwrap();
    assert_eq!(recovered[0].undone.len(), 1);
    assert_eq!(fs::read_to_string(&stuck).unwrap(), "1\n");
    assert_eq!((place.content().as_str(), place.journals()), ("0", 0));
}

#[test]
fn a_directory_that_others_write_to_is_not_trusted() {
    let place = Place::new();
    fs::set_permissions(place.state(), fs::Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(
        place.leases().take("a test"),
        Err(LeaseError::Directory(_))
    ));
    assert!(matches!(
        place.leases().recover(),
        Err(LeaseError::Directory(_))
    ));
}

#[test]
fn a_damaged_journal_is_named_and_keeps_no_other_from_being_undone() {
    let place = Place::new();
    place.owner_of_file(false).kill();
    fs::write(
        place.state().join("lease-1-0.journal"),
        "0 nonsense\nmore\nand more\n",
    )
    .unwrap();
    let error = place.leases().recover().unwrap_err().to_string();
    assert!(
        error.contains("lease-1-0.journal") && error.contains("line 1"),
        "{error}"
    );
    assert_eq!((place.content().as_str(), place.journals()), ("1\n", 1));
}

impl Place {
    /// The journal of a killed owner, in which one file's path is replaced by another's, with good checksums.
    fn forged(&self, path: &Path) -> PathBuf {
        self.owner_of_file(false).kill();
        let entries = fs::read_dir(self.state())
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let journal = entries
            .into_iter()
            .find(|path| path.extension().is_some_and(|end| end == "journal"))
            .unwrap();
        let forge = |line: &str| {
            let json = line[9..].replace(self.file().to_str().unwrap(), path.to_str().unwrap());
            format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes()))
        };
        let forged: String = fs::read_to_string(&journal)
            .unwrap()
            .lines()
            .map(forge)
            .collect();
        assert!(forged.contains(path.to_str().unwrap()));
        fs::write(&journal, forged).unwrap();
        journal
    }
}

#[test]
fn a_forged_journal_cannot_name_other_files() {
    let outside = tempfile::NamedTempFile::new().unwrap();
    let in_no_group = tempfile::tempdir().unwrap().keep().join("cpuset.cpus");
    let place = Place::new();
    let link = place.state().join("link");
    symlink(outside.path(), &link).unwrap();
    let above = place.state().join("../outside");
    fs::write(&in_no_group, "0").unwrap();
    fs::write(outside.path(), "0").unwrap();
    fs::write(&above, "0").unwrap();
    let cases = [
        (outside.path(), "none of the files"),
        (&above, "none of the files"),
        (
            Path::new("/proc/self/../sys/kernel/numa_balancing"),
            "none of the files",
        ),
        (
            Path::new("/proc/sys/kernel/core_pattern"),
            "none of the files",
        ),
        (&in_no_group, "in no control group"),
        (&link, "symbolic links"),
    ];
    for (path, says) in cases {
        let journal = place.forged(path);
        let error = place.leases().recover().unwrap_err().to_string();
        assert!(error.contains(says), "{}: {error}", path.display());
        fs::remove_file(journal).unwrap();
        fs::write(place.file(), "1\n").unwrap();
    }
    for path in [outside.path(), &above, &in_no_group] {
        assert_eq!(fs::read_to_string(path).unwrap(), "0", "{}", path.display());
    }
    fs::remove_dir_all(in_no_group.parent().unwrap()).unwrap();
}

#[test]
fn what_could_not_be_put_back_is_not_set() {
    let outside = tempfile::NamedTempFile::new().unwrap();
    let place = Place::new();
    let mut lease = place.leases().take("a test").unwrap();
    let error = lease
        .set_file(outside.path(), b"1")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("none of the files that nearfar sets"),
        "{error}"
    );
    assert_eq!(fs::read(outside.path()).unwrap(), b"");
}

#[test]
fn a_journal_of_another_user_is_not_acted_on() {
    let place = Place::new();
    let journal = place.forged(&place.file());
    if std::os::unix::fs::chown(&journal, Some(12_345), None).is_err() {
        return println!("skipped: root: only root can give files away");
    }
    let error = place.leases().recover().unwrap_err().to_string();
    assert!(error.contains("belongs to user 12345"), "{error}");
    assert_eq!(place.content(), "0");
}

proptest::proptest! {
    #[test]
    fn no_journal_panics_or_writes(lines in proptest::collection::vec("\\{\"n\":[0-2],\"at_s\":0,\"(intent|done|undoing|undone|old|new|lease|masks)\":\\{.{0,40}\\}\\}", 0..4)) {
        let place = Place::new();
        let line = |json: &String| format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes()));
        fs::write(place.state().join("lease-1-0.journal"), lines.iter().map(line).collect::<String>()).unwrap();
        let _ = place.leases().recover();
        proptest::prop_assert_eq!(place.content(), "1\n");
    }
}

/// A shell with a child, both waiting, in a session of their own: orphans of other tests are not its descendants.
fn family() -> (Owner, i32) {
    let mut command = Command::new("setsid");
    command
        .args(["sh", "-c", "sleep 60 & echo $!; wait"])
        .stdout(Stdio::piped());
    let mut shell = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(shell.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    (Owner(shell), line.trim().parse().unwrap())
}

fn one_of(own: &CpuSet) -> CpuSet {
    own.lowest(1)
}

#[test]
fn masks_are_put_back_where_they_are_still_ours() {
    let own = affinity::get(0).unwrap();
    if own.len() < 2 {
        println!("skipped: cpus: one CPU has no narrower set");
        return;
    }
    let place = Place::new();
    let (shell, child) = family();
    let tid = shell.0.id().to_string();
    let owner = place.owner(&["--task", &tid, &one_of(&own).to_string()], true);
    let shell_tid = shell.0.id().cast_signed();
    assert_eq!(affinity::get(shell_tid).unwrap(), one_of(&own));
    assert_eq!(affinity::get(child).unwrap(), own, "made before the lease");
    owner.kill();
    soon("put back", || affinity::get(shell_tid).unwrap() == own);
    kill(child);
    shell.kill();
}

#[test]
fn children_made_meanwhile_get_their_masks_back_and_those_that_chose_keep_theirs() {
    let own = affinity::get(0).unwrap();
    if own.len() < 2 {
        println!("skipped: cpus: one CPU has no narrower set");
        return;
    }
    let place = Place::new();
    // Two children, of which one chooses for itself, and a grandchild that loses its parent at once.
    let chosen = own.difference(&one_of(&own));
    let script = format!(
        "echo; read go; sleep 61 & echo $!; taskset -c {chosen} sleep 62 & echo $!; sh -c 'sleep 63 & echo $!'; read end"
    );
    let mut command = Command::new("setsid");
    command
        .args(["sh", "-c", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut shell = command.spawn().unwrap();
    let shell_tid = shell.id().cast_signed();
    let mut lines = BufReader::new(shell.stdout.take().unwrap()).lines();
    assert_eq!(
        lines.next().unwrap().unwrap(),
        "",
        "it has begun its session"
    );
    let owner = place.owner(
        &["--task", &shell_tid.to_string(), &one_of(&own).to_string()],
        false,
    );
    std::io::Write::write_all(shell.stdin.as_mut().unwrap(), b"go\n").unwrap();
    let made: Vec<i32> = lines
        .take(3)
        .map(|line| line.unwrap().parse().unwrap())
        .collect();
    soon("the one that chooses", || {
        affinity::get(made[1]).unwrap() == chosen
    });
    assert_eq!(affinity::get(made[0]).unwrap(), one_of(&own));
    assert_eq!(affinity::get(made[2]).unwrap(), one_of(&own));
    owner.kill();
    place.leases().recover().unwrap();
    assert_eq!(
        [made[0], made[2], shell_tid].map(|tid| affinity::get(tid).unwrap()),
        [&own, &own, &own].map(Clone::clone)
    );
    assert_eq!(affinity::get(made[1]).unwrap(), chosen);
    for pid in made {
        kill(pid);
    }
    Owner(shell).kill();
}

#[test]
fn a_thread_that_ended_is_no_reason_to_touch_another() {
    let own = affinity::get(0).unwrap();
    let place = Place::new();
    let (shell, child) = family();
    let owner = place.owner(
        &[
            "--task",
            &shell.0.id().to_string(),
            &one_of(&own).to_string(),
        ],
        false,
    );
    kill(child);
    shell.kill();
    owner.kill();
    let recovered = place.leases().recover().unwrap();
    assert!(
        recovered.iter().all(|lease| lease.undone.is_empty()),
        "{recovered:?}"
    );
    assert_eq!(place.journals(), 0);
    assert!(Path::new(&place.state()).exists());
}

/// One after the other, as the samples of an experiment have them.
#[test]
fn a_lease_with_many_removed_resources_has_a_small_journal() {
    let place = Place::new();
    let mut lease = place.leases().take("test").unwrap();
    let kept = lease.temporary_file(1).unwrap();
    for _ in 0..2000 {
        let mark = lease.resource_mark();
        let path = lease.temporary_file(0).unwrap();
        lease.remove_since(mark).unwrap();
        assert!(!path.exists());
    }
    let journals = fs::read_dir(place.state()).unwrap().map(Result::unwrap);
    let journals =
        journals.filter(|entry| entry.path().extension().is_some_and(|it| it == "journal"));
    let bytes: Vec<u64> = journals
        .map(|entry| entry.metadata().unwrap().len())
        .collect();
    assert!(bytes.len() == 1 && bytes[0] < 160 << 10, "{bytes:?}");
    assert!(kept.exists());
    lease.release().unwrap();
    assert!(!kept.exists());
}

/// A process that ended by itself, and one that is killed.
#[test]
fn processes_of_a_lease_are_waited_for() {
    let place = Place::new();
    let mut lease = place.leases().take("test").unwrap();
    for script in ["exit 3", "sleep 600"] {
        let mark = lease.resource_mark();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let pid = lease.start(command).unwrap().pid();
        if script == "exit 3" {
            soon("it has not ended", || !tasks::is_alive(pid));
        }
        lease.remove_since(mark).unwrap();
        assert!(tasks::stat(pid).is_err(), "{script}: its number is left");
    }
}

/// Its environment is empty while the kernel replaces its address space.
#[test]
fn a_process_that_executes_one_program_after_another_ends_with_its_lease() {
    let place = Place::new();
    for round in 0..200 {
        let mut lease = place.leases().take("test").unwrap();
        let mut command = Command::new("sh");
        // In a session of its own: only its environment tells whose it is.
        command.args(["-c", "setsid sh -c \"$again\" & echo $!"]);
        command.env("again", "exec sh -c \"$again\"");
        command.stdout(std::process::Stdio::piped());
        let mut process = lease.start(command).unwrap();
        let mut line = String::new();
        let out = process.child.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
        let started: i32 = line.trim().parse().unwrap();
        lease.release().unwrap();
        let left = tasks::is_alive(started);
        if left {
            let pid = rustix::process::Pid::from_raw(started).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        assert!(!left, "round {round}");
    }
}

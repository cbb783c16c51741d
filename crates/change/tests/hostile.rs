//! Trees and journals from an attacker: nothing is written outside the tree, nothing panics, errors name the place.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use crate::support::*;
use nearfar_change::StateError;
use nearfar_change::system::{Rooted, System};
use nearfar_change::{
    Applied, ApplyError, ApplyOptions, ChangeSetState, RollbackOptions, Target, apply, history,
    rollback,
};
use proptest::prelude::*;

fn one_interrupt() -> nearfar_change::Plan {
    plan(vec![planned(interrupt(10, "4"), None)])
}

/// A plan that moves memory, as text with other words in it.
fn memory_plan(words: &str, start_ticks: u64) -> serde_json::Result<nearfar_change::Plan> {
    serde_json::from_str(&format!(
        r#"{{"plan_format":1,"host":null,"boot":"0","changes":[{{"change":{{"kind":"task-memory",{words}}},"before":null,
        "owner":{{"process":{{"start_ticks":{start_ticks},"name":"x"}}}},"rule":"requested","reason":"","distance":null}}],
        "left_alone":[],"nearest":[]}}"#
    ))
}

#[test]
fn memory_of_no_process_to_no_node_is_refused() {
    let me = std::process::id();
    for (words, says) in [
        (r#""pid":0,"from":"0","to":1"#.to_owned(), "numbers above 1"),
        (
            r#""pid":-1,"from":"0","to":1"#.to_owned(),
            "numbers above 1",
        ),
        (r#""pid":1,"from":"0","to":1"#.to_owned(), "numbers above 1"),
        (format!(r#""pid":{me},"from":"0","to":1"#), "nearfar itself"),
        (r#""pid":7,"from":"0-1","to":1"#.to_owned(), "same node"),
        (r#""pid":7,"from":"","to":1"#.to_owned(), "no other node"),
    ] {
        let plan = memory_plan(&words, 1).unwrap();
        let error = nearfar_change::check(&plan).unwrap_err().to_string();
        assert!(error.contains(says), "{words}: {error}");
    }
    assert!(memory_plan(r#""pid":7,"from":"0","to":4294967295"#, 1).is_err());
    assert!(memory_plan(r#""pid":7,"from":"0-99999999","to":1"#, 1).is_err());
    assert!(memory_plan(r#""pid":99999999999,"from":"0","to":1"#, 1).is_err());
}

#[test]
fn a_plan_without_the_identity_of_its_process_or_of_another_boot_moves_nothing() {
    let state = tempfile::tempdir().unwrap();
    let target = Target::live(Some(state.path().join("a")));
    let refused = |plan: &nearfar_change::Plan| {
        apply(plan, &target, &ApplyOptions::default())
            .unwrap_err()
            .to_string()
    };
    let mut child = std::process::Command::new("sleep")
        .arg("60")
        .spawn()
        .unwrap();
    let pid = child.id();
    let start = nearfar_proc::tasks::stat(pid.cast_signed())
        .unwrap()
        .id
        .start;
    let words = format!(r#""pid":{pid},"from":"1","to":0"#);
    let mut plan = memory_plan(&words, start).unwrap();
    assert!(refused(&plan).contains("was made in boot 0"));
    plan.boot = None;
    assert!(refused(&plan).contains("was made in boot not named"));
    let other = memory_plan(&words, start + 1).unwrap();
    assert!(refused(&other).contains(&format!("sleep (began at clock tick {start}) now")));
    plan.changes[0].owner = None;
    assert!(refused(&plan).contains("does not say when process"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(refused(&other).contains("it is no process now"));
    assert!(!state.path().join("a").exists());
}

#[test]
fn a_record_that_does_not_hold_moves_nothing() {
    let tree = Tree::machine();
    let state = tree.at("/var/lib/nearfar");
    fs::create_dir_all(&state).unwrap();
    fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).unwrap();
    let line = |n: u64, json: &str| {
        let json = format!(r#"{{"n":{n},"at_s":1,{json}}}"#);
        format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes()))
    };
    let journal = line(
        0,
        r#""run":{"journal_format":1,"id":1,"boot":null,"host":null,"plan":"","pid":1,"tool_version":""}"#,
    ) + &line(
        1,
        r#""intent":{"write":0,"change":0,"setting":{"kind":"task-memory","pid":7},"old":"","new":"","owner":{"process":{"start_ticks":1,"name":"x"}}}"#,
    );
    fs::write(state.join("change-1.journal"), journal).unwrap();
    // Its processes are on the running system, which a journal of a tree says nothing about.
    let undone = rollback(&tree.target(), &RollbackOptions::default()).unwrap();
    assert!(!undone.is_complete());
    let target = Target::live(Some(state.clone()));
    for record in [None, Some("nothing\nat all\n"), Some("")] {
        if let Some(record) = record {
            fs::write(state.join("change-1-0.pages"), record).unwrap();
        }
        let options = RollbackOptions {
            selection: nearfar_change::Selection::Number(nearfar_change::ChangeSetId(1)),
            ..RollbackOptions::default()
        };
        let undone = rollback(&target, &options).unwrap();
        // An empty one was killed before its first line: nothing had moved.
        assert_eq!(undone.is_complete(), record == Some(""), "{undone:?}");
    }
}

#[test]
fn links_out_of_the_tree_end_inside_it() {
    let outside = Tree::machine();
    let before = outside.files();
    let tree = Tree::empty();
    fs::create_dir_all(tree.at("/proc/irq")).unwrap();
    symlink(outside.at("/proc/irq/10"), tree.at("/proc/irq/10")).unwrap();
    symlink(
        "../../../../../../../../../../../../proc/irq/11",
        tree.at("/proc/irq/11"),
    )
    .unwrap();
    fs::create_dir_all(tree.at("/proc/irq/12")).unwrap();
    symlink(
        outside.at("/proc/irq/12/smp_affinity_list"),
        tree.at("/proc/irq/12/smp_affinity_list"),
    )
    .unwrap();
    symlink(outside.root(), tree.at("/sys")).unwrap();
    symlink(outside.root(), tree.at("/var")).unwrap();
    let changes = [10, 11, 12]
        .map(|irq| planned(interrupt(irq, "4"), None))
        .into_iter();
    let plan = plan(changes.chain([planned(xps("4"), None)]).collect());
    // The state directory's place leads outside too.
    let refused = apply(&plan, &tree.target(), &ApplyOptions::default());
    assert!(
        matches!(
            refused,
            Err(ApplyError::State(StateError::Directory { .. }))
        ),
        "{refused:?}"
    );
    let state = tempfile::tempdir().unwrap();
    let target = Target::tree(tree.root(), Some(state.path().join("a/b")));
    let outcome = apply(&plan, &target, &ApplyOptions::default()).unwrap();
    assert!(
        outcome
            .changes
            .iter()
            .all(|it| matches!(it.result, Applied::Failed { .. })),
        "{outcome:#?}"
    );
    assert_eq!(outside.files(), before);
}

#[test]
fn links_inside_the_tree_are_followed_as_sysfs_needs_it() {
    let tree = Tree::machine();
    let device = "/sys/devices/pci0000:00/0000:00:03.0/net/eth1";
    tree.put(&format!("{device}/queues/tx-0/xps_cpus"), "00\n");
    symlink(format!("../../..{device}"), tree.at("/sys/class/net/eth1")).unwrap();
    let change = nearfar_change::Change::Xps {
        interface: "eth1".into(),
        queue: 0,
        cpus: cpus("4"),
    };
    let outcome = apply(
        &plan(vec![planned(change, None)]),
        &tree.target(),
        &ApplyOptions::default(),
    )
    .unwrap();
    assert!(outcome.is_complete(), "{outcome:?}");
    assert_eq!(tree.get(&format!("{device}/queues/tx-0/xps_cpus")), "10\n");
    let system = Rooted::tree(&tree.root()).unwrap();
    assert_eq!(
        system.link("/sys/class/net/eth1").unwrap(),
        format!("../../..{device}")
    );
    assert_eq!(
        system.link("/sys/class/net/eth0").unwrap_err().kind(),
        std::io::ErrorKind::NotFound
    );
}

#[test]
fn files_with_a_second_name_and_what_is_no_file_are_refused() {
    let outside = Tree::machine();
    let tree = Tree::machine();
    let list = |irq: u32| format!("/proc/irq/{irq}/smp_affinity_list");
    fs::remove_file(tree.at(&list(10))).unwrap();
    fs::hard_link(outside.at(&list(10)), tree.at(&list(10))).unwrap();
    fs::remove_file(tree.at(&list(11))).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        tree.at(&list(11)),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    fs::write(tree.at(&list(12)), [0xff, 0xfe, b'\n']).unwrap();
    let changes = [10, 11, 12].map(|irq| planned(interrupt(irq, "4"), None));
    let outcome = apply(
        &plan(changes.into()),
        &tree.target(),
        &ApplyOptions::default(),
    )
    .unwrap();
    for (tried, said) in outcome
        .changes
        .iter()
        .zip(["second name", "not a regular file", "text"])
    {
        let Applied::Failed { error } = &tried.result else {
            panic!("{tried:?}")
        };
        assert!(error.contains(said), "{error}");
    }
    assert_eq!(outside.get(&list(10)), "0-7\n");
}

#[test]
fn a_damaged_line_is_named_and_stops_rollback_but_not_history() {
    let tree = Tree::machine();
    apply(
        &plan_of_all_kinds(),
        &tree.target(),
        &ApplyOptions::default(),
    )
    .unwrap();
    let whole = fs::read_to_string(tree.journal(1)).unwrap();
    fs::write(tree.journal(1), whole.replacen("numa\\n", "evil\\n", 1)).unwrap();
    let error = rollback(&tree.target(), &RollbackOptions::default()).unwrap_err();
    let ApplyError::Corrupt { line, .. } = &error else {
        panic!("{error}")
    };
    assert!(
        error
            .to_string()
            .contains(&format!("line {line}: its checksum")),
        "{error}"
    );
    let runs = history(&tree.target()).unwrap();
    assert!(
        matches!(&runs[0].state, ChangeSetState::Unreadable { reason } if reason.contains("checksum"))
    );
    // And a line that is missing.
    let mut lines: Vec<&str> = whole.lines().collect();
    lines.remove(3);
    fs::write(tree.journal(1), lines.join("\n") + "\n").unwrap();
    let error = rollback(&tree.target(), &RollbackOptions::default())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("line 4: record 4 where 3 was due"),
        "{error}"
    );
    assert!(matches!(
        apply(&one_interrupt(), &tree.target(), &ApplyOptions::default()),
        Err(ApplyError::Corrupt { .. })
    ));
}

#[test]
fn a_forged_journal_with_good_checksums_cannot_name_other_files() {
    let tree = Tree::machine();
    apply(&one_interrupt(), &tree.target(), &ApplyOptions::default()).unwrap();
    let whole = fs::read_to_string(tree.journal(1)).unwrap();
    let forge = |from: &str, to: &str| {
        let line = |line: &str| {
            let json = line[9..].replace(from, to);
            format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes()))
        };
        fs::write(tree.journal(1), whole.lines().map(line).collect::<String>()).unwrap();
        rollback(&tree.target(), &RollbackOptions::default())
            .unwrap_err()
            .to_string()
    };
    let setting = r#"{"kind":"interrupt-affinity","irq":10}"#;
    assert!(whole.contains(setting));
    let error = forge(setting, r#"{"kind":"sysctl","name":"kernel.core_pattern"}"#);
    assert!(error.contains("line 2: sysctl"), "{error}");
    let error = forge(setting, r#"{"kind":"xps","interface":"../..","queue":0}"#);
    assert!(
        error.contains("line 2:") && error.contains("not the name of a network interface"),
        "{error}"
    );
    assert!(
        forge(r#""write":0,"now""#, r#""write":9,"now""#).contains("write 9, which was not begun")
    );
    assert!(forge(r#""id":1"#, r#""id":2"#).contains("it is the journal of change set 2"));
    assert!(forge(r#""journal_format":1"#, r#""journal_format":9"#).contains("journal format 9"));
}

#[test]
fn a_state_directory_of_another_user_is_refused() {
    let tree = Tree::machine();
    let state = tempfile::tempdir().unwrap();
    let target = Target::tree(tree.root(), Some(state.path().into()));
    fs::set_permissions(state.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let error = apply(&one_interrupt(), &target, &ApplyOptions::default())
        .unwrap_err()
        .to_string();
    assert!(error.contains("others may write there"), "{error}");
    fs::set_permissions(state.path(), fs::Permissions::from_mode(0o700)).unwrap();
    if !rustix::process::geteuid().is_root() {
        println!("skipped: root: only root can give a directory away");
        return;
    }
    std::os::unix::fs::chown(state.path(), Some(65534), None).unwrap();
    let error = apply(&one_interrupt(), &target, &ApplyOptions::default())
        .unwrap_err()
        .to_string();
    assert!(error.contains("belongs to user 65534"), "{error}");
    let file = tempfile::NamedTempFile::new().unwrap();
    let target = Target::tree(tree.root(), Some(file.path().join("state")));
    let error = apply(&one_interrupt(), &target, &ApplyOptions::default())
        .unwrap_err()
        .to_string();
    assert!(error.contains("Not a directory"), "{error}");
    assert_eq!(tree.get("/proc/irq/10/smp_affinity_list"), "0-7\n");
}

#[test]
fn what_is_kept_is_written_by_its_owner_only() {
    let tree = Tree::machine();
    apply(&one_interrupt(), &tree.target(), &ApplyOptions::default()).unwrap();
    let mode = |path: &str| fs::metadata(tree.at(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("/var/lib/nearfar"), 0o755);
    assert_eq!(
        (
            mode("/var/lib/nearfar/change-1.journal"),
            mode("/var/lib/nearfar/lock")
        ),
        (0o644, 0o600)
    );
}

proptest! {
    #[test]
    fn no_bytes_in_a_journal_panic_or_write(garbage in proptest::collection::vec(any::<u8>(), 0..400)) {
        let tree = Tree::machine();
        let before = tree.files();
        fs::create_dir_all(tree.at("/var/lib/nearfar")).unwrap();
        fs::write(tree.journal(3), &garbage).unwrap();
        let _ = history(&tree.target());
        let _ = rollback(&tree.target(), &RollbackOptions::default());
        prop_assert_eq!(tree.files(), before);
    }

    #[test]
    fn a_journal_cut_anywhere_undoes_what_it_still_tells(share in 0.0..1.0f64) {
        let tree = Tree::machine();
        apply(&plan_of_all_kinds(), &tree.target(), &ApplyOptions::default()).unwrap();
        let whole = fs::read(tree.journal(1)).unwrap();
        let cut = (whole.len() as f64 * share) as usize;
        fs::write(tree.journal(1), &whole[..cut]).unwrap();
        let outcome = rollback(&tree.target(), &RollbackOptions::default()).unwrap();
        prop_assert!(outcome.is_complete());
        let told = whole[..cut].iter().filter(|&&byte| byte == b'\n').count();
        prop_assert_eq!(outcome.changes.len(), (told / 2).min(8));
    }
}

//! Control groups, units and memory: `plan --cpuset-mems`, `--bind-unit` and `--memory`, and what they refuse.

use std::process::Command;

use crate::harness::{Answer, nearfar};
use crate::machines::Laid;

/// Four nodes, and a unit with the cpuset controller.
fn tree() -> (Laid, String) {
    let tree = Laid::out("x86-queues-on-node-2");
    let root = tree.path("").display().to_string();
    let cgroup =
        |file: &str, text: &str| tree.write(&format!("sys/fs/cgroup/{file}"), text.as_bytes());
    cgroup("cgroup.controllers", "cpuset memory\n");
    cgroup("system.slice/cpuset.mems.effective", "0-3\n");
    cgroup("system.slice/redis.service/cpuset.mems", "\n");
    cgroup("system.slice/redis.service/cpuset.mems.effective", "0-3\n");
    tree.write(
        "usr/lib/systemd/system/redis.service",
        b"[Service]\nExecStart=/bin/true\n",
    );
    (tree, root)
}

fn run(root: &str, words: &str) -> Answer {
    nearfar(words.split(' ').chain(["--root", root])).run()
}

#[test]
fn the_nodes_of_a_unit_are_planned_set_and_undone() {
    let (tree, root) = tree();
    let mems = || {
        let file = tree.path("sys/fs/cgroup/system.slice/redis.service/cpuset.mems");
        std::fs::read_to_string(file).unwrap()
    };
    let plan = run(&root, "plan --cpuset-mems redis.service=1,3 --format json")
        .succeeded()
        .json();
    let change = &plan["changes"][0];
    assert_eq!(change["change"]["kind"], "cpuset-memory");
    assert_eq!(change["change"]["group"], "system.slice/redis.service");
    assert_eq!(
        (&change["change"]["nodes"], &change["before"]),
        (&"1,3".into(), &"".into())
    );
    let text = run(&root, "plan --cpuset-mems redis.service=1,3")
        .succeeded()
        .text();
    assert!(
        text.contains("not set") && text.contains("rollback restores the nodes"),
        "{text}"
    );
    run(&root, "apply --cpuset-mems redis.service=1,3 --yes").succeeded();
    assert_eq!(mems(), "1,3\n");
    run(&root, "rollback").succeeded();
    assert_eq!(mems(), "\n");
}

#[test]
fn groups_and_nodes_that_do_not_exist_are_wrong_usage() {
    let (_tree, root) = tree();
    for (words, says) in [
        (
            "plan --cpuset-mems redis.service=9",
            "nodes 9 are not online",
        ),
        (
            "plan --cpuset-mems nginx.service=1",
            "there is no control group \"nginx.service\"",
        ),
        (
            "plan --cpuset-mems ../redis.service=1",
            "is not a control group",
        ),
        (
            "plan --cpuset-mems redis.service",
            "such as redis.service=1",
        ),
        ("plan --cpuset-mems redis.service=", "would have no node"),
        (
            "plan --cpuset-mems redis.service=1 --to-node 1",
            "--to-node",
        ),
        (
            "plan --memory redis.service --to-node 1",
            "for the running system",
        ),
        ("plan --memory redis.service", "--to-node"),
        (
            "plan --bind-unit nginx.service --to-node 1 --format systemd",
            "there is no unit nginx.service",
        ),
        (
            "plan --bind-unit redis.slice --to-node 1 --format systemd",
            "is not the name of a service",
        ),
        (
            "plan --bind-unit redis.service --to-node 9 --format systemd",
            "there is no node 9",
        ),
        (
            "plan --bind-unit redis.service --to-node 1",
            "--format systemd",
        ),
        (
            "plan --bind-unit redis.service --format systemd",
            "--to-node",
        ),
        (
            "plan --bind-unit redis.service --to-node 0,2 --format systemd",
            "--to-node takes one node",
        ),
        (
            "plan --bind-unit redis.service --policy interleave --to-node 0,9 --format systemd",
            "there is no node 9",
        ),
        (
            "plan --bind-unit redis.service --policy interleave --to-node none --format systemd",
            "a list of nodes such as 0,2-3, or all",
        ),
        ("plan --policy interleave", "--bind-unit"),
        (
            "plan --memory redis.service --bind-unit redis.service --to-node 1",
            "cannot be used with",
        ),
        ("plan --memory 0 --to-node 1", "above 0"),
        (
            "apply --memory redis.service --to-node all",
            "--to-node takes one node",
        ),
        ("apply --bind-unit redis.service --to-node 1", "--bind-unit"),
    ] {
        run(&root, words).refused(&[says]);
    }
}

#[test]
fn a_drop_in_is_one_that_systemd_takes() {
    let (tree, root) = tree();
    let unit = tree.path("units");
    std::fs::create_dir_all(unit.join("redis.service.d")).unwrap();
    std::fs::copy(
        tree.path("usr/lib/systemd/system/redis.service"),
        unit.join("redis.service"),
    )
    .unwrap();
    for (policy, expected) in [
        (
            "interleave --to-node 0,2",
            "\nNUMAPolicy=interleave\nNUMAMask=0,2\n",
        ),
        ("bind --to-node 2", "\nNUMAPolicy=bind\nNUMAMask=2\n"),
        (
            "preferred --to-node 2",
            "\nNUMAPolicy=preferred\nNUMAMask=2\n",
        ),
        (
            "local --to-node 2",
            "\nNUMAPolicy=local\n# The CPUs of node 2.\nCPUAffinity=4-5\n",
        ),
    ] {
        let words = format!("plan --bind-unit redis.service --policy {policy} --format systemd");
        let text = run(&root, &words).succeeded().text();
        assert!(text.contains(expected), "{text}");
        assert!(
            text.contains("its file is /usr/lib/systemd/system/redis.service"),
            "{text}"
        );
        std::fs::write(unit.join("redis.service.d/50-nearfar-numa.conf"), &text).unwrap();
        let verify = Command::new("systemd-analyze")
            .arg("verify")
            .arg(unit.join("redis.service"))
            .output();
        let Ok(verify) = verify else {
            return println!("skipped: tools: there is no systemd-analyze");
        };
        let said = String::from_utf8_lossy(&verify.stderr);
        assert!(!said.contains("redis.service"), "{said}\n{text}");
    }
    // The check above finds what systemd does not take.
    std::fs::write(
        unit.join("redis.service.d/50-nearfar-numa.conf"),
        "[Service]\nNUMAPolicy=near\n",
    )
    .unwrap();
    let verify = Command::new("systemd-analyze")
        .arg("verify")
        .arg(unit.join("redis.service"))
        .output()
        .unwrap();
    assert!(
        String::from_utf8_lossy(&verify.stderr).contains("50-nearfar-numa.conf"),
        "{verify:?}"
    );
}

#[test]
fn a_masked_unit_is_refused_and_an_instance_has_the_file_of_its_template() {
    let (tree, root) = tree();
    tree.link("etc/systemd/system/redis.service", "/dev/null");
    run(
        &root,
        "plan --bind-unit redis.service --to-node 1 --format systemd",
    )
    .refused(&["is masked"]);
    tree.write("etc/systemd/system/empty.service", b"");
    run(
        &root,
        "plan --bind-unit empty.service --to-node 1 --format systemd",
    )
    .refused(&["is masked"]);
    // The file of an instance, wherever it is, comes before its template.
    tree.link("etc/systemd/system/fsck@.service", "/dev/null");
    tree.write("usr/lib/systemd/system/fsck@x.service", b"[Service]\n");
    run(
        &root,
        "plan --bind-unit fsck@x.service --to-node 1 --format systemd",
    )
    .succeeded();
    tree.write("etc/systemd/system/a\\x2db.service", b"[Service]\n");
    let escaped = "plan --bind-unit a\\x2db.service --to-node 1 --format systemd";
    let text = run(&root, escaped).succeeded().text();
    assert!(
        text.contains("systemctl restart 'a\\x2db.service'"),
        "{text}"
    );
    tree.write("etc/systemd/system/db@.service", b"[Service]\n");
    let text = run(
        &root,
        "plan --bind-unit db@7.service --to-node 1 --format systemd",
    )
    .succeeded()
    .text();
    assert!(
        text.contains("its file is /etc/systemd/system/db@.service"),
        "{text}"
    );
    assert!(
        text.contains("/etc/systemd/system/db@7.service.d/50-nearfar-numa.conf"),
        "{text}"
    );
}

#[test]
fn a_snapshot_of_this_system_is_not_this_system() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("here.nearfar").display().to_string();
    nearfar(["snapshot", "--no-tasks", "-o", &file])
        .run()
        .succeeded();
    let plan = ["plan", "--source", &file, "--memory", "1", "--to-node", "0"];
    nearfar(plan)
        .run()
        .exited(2)
        .says(&["is for the running system"]);
}

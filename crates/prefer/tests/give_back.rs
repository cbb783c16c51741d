//! The keeper gives back exactly what it took: masks that a program asked for stay, masks that it inherited do not.

use std::io::{Read as _, Write as _};
use std::process::Stdio;

use crate::support;
use crate::support::{
    Cpuset, KeeperProcess, Tasks, can_observe, confining, cpus, home, own, wait_until,
};
use nearfar_prefer::{KeeperOptions, OpenProcess};

fn observing() -> KeeperOptions {
    KeeperOptions {
        observe: true,
        ..confining()
    }
}

/// Cyrillic, cut within a character, with a line feed.
const NAME: &str = "d181d0b5d180d0b2d0b5d180d0b00ad1";

#[test]
fn a_task_whose_name_is_no_utf8_is_given_back() {
    let Some(own) = own() else { return };
    let mut tasks = Tasks::new();
    tasks.make(0, "thread", 1);
    tasks.tell(0, &format!("name {NAME}"));
    tasks.tell(1, "name ff20280a54676964");
    let keeper = tasks.keeper(confining()).unwrap();
    assert_eq!(
        [0, 1].map(|task| tasks.tasks[&task].mask()),
        [home(), home()]
    );
    keeper.stop().unwrap();
    assert_eq!(
        [0, 1].map(|task| tasks.tasks[&task].mask()),
        [own.clone(), own.clone()]
    );
    // And by a process that finds the journal.
    KeeperProcess::start(&tasks.state(), &[tasks.tasks[&0].pid], false)
        .unwrap()
        .kill();
    assert_eq!(tasks.tasks[&1].mask(), home());
    tasks.leases().recover().unwrap();
    assert_eq!(
        [0, 1].map(|task| tasks.tasks[&task].mask()),
        [own.clone(), own]
    );
}

#[test]
fn a_thread_that_was_pinned_to_exactly_the_node_stays_pinned() {
    let Some(own) = own() else { return };
    let mut tasks = Tasks::new();
    tasks.make(0, "thread", 1);
    tasks.make(0, "thread", 2);
    tasks.tell(1, "pin 0");
    for killed in [false, true] {
        let keeper = KeeperProcess::start(&tasks.state(), &[tasks.tasks[&0].pid], false).unwrap();
        assert_eq!(
            [0, 1, 2].map(|task| tasks.tasks[&task].mask()),
            [home(), home(), home()]
        );
        match killed {
            true => keeper.kill(),
            false => keeper.stop(),
        }
        tasks.leases().recover().unwrap();
        assert_eq!(
            [0, 1, 2].map(|task| tasks.tasks[&task].mask()),
            [own.clone(), home(), own.clone()],
            "{killed}"
        );
    }
}

#[test]
fn a_process_pinned_to_the_node_keeps_its_mask_beside_a_kept_one() {
    let Some(own) = own() else { return };
    let mut tasks = Tasks::new();
    let pinned = tasks.make(0, "fork", 1);
    tasks.tell(1, "pin 0");
    let keeper = tasks.keeper(confining()).unwrap();
    // Kept by the same keeper: it asked for what it has.
    keeper.add(OpenProcess::open(pinned.pid).unwrap()).unwrap();
    let made = tasks.make(1, "fork", 2);
    wait_until("its child is seen", || {
        keeper.report().unwrap().processes == 3
    });
    keeper.stop().unwrap();
    assert_eq!(
        [tasks.tasks[&0].mask(), pinned.mask(), made.mask()],
        [own, home(), home()]
    );
}

#[test]
fn an_orphan_that_pinned_itself_beside_a_kept_task_stays_pinned() {
    let Some(own) = own() else { return };
    let mut tasks = Tasks::new();
    // Of the session of the kept one, as of a shell, and not kept; its child loses its parent.
    let unrelated = tasks.make(0, "fork", 1);
    let keeper = KeeperProcess::start(&tasks.state(), &[tasks.tasks[&0].pid], false).unwrap();
    let orphan = tasks.make(1, "fork", 2);
    tasks.tell(2, "pin 0");
    tasks.kill(unrelated.pid);
    keeper.kill();
    tasks.leases().recover().unwrap();
    assert_eq!([tasks.tasks[&0].mask(), orphan.mask()], [own, home()]);
}

#[test]
fn who_was_left_in_peace_is_not_given_back_whatever_it_asks_for_later() {
    let Some(own) = own() else { return };
    let mut tasks = Tasks::new();
    let thread = tasks.make(0, "thread", 1);
    let keeper = tasks.keeper(confining()).unwrap();
    tasks.tell(1, "pin 1");
    wait_until("it is noticed", || {
        keeper.report().unwrap().skipped_count == 1
    });
    tasks.tell(1, "pin 0");
    keeper.stop().unwrap();
    assert_eq!([tasks.tasks[&0].mask(), thread.mask()], [own, home()]);
}

#[test]
fn a_choice_of_exactly_the_node_is_seen_where_it_can_be_observed() {
    let (Some(own), true) = (own(), can_observe()) else {
        return;
    };
    let mut tasks = Tasks::new();
    tasks.make(0, "thread", 1);
    let keeper = tasks.keeper(observing()).unwrap();
    tasks.tell(1, "pin 0");
    // Born of the one that chose, and of the one that did not.
    let (chosen, inherited) = (tasks.make(1, "thread", 2), tasks.make(0, "thread", 3));
    assert_eq!(
        [1, 2, 3].map(|task| tasks.tasks[&task].mask()),
        [home(), home(), home()]
    );
    let report = keeper.stop().unwrap();
    assert_eq!(
        [0, 1].map(|task| tasks.tasks[&task].mask()),
        [own.clone(), home()],
        "{report:?}"
    );
    assert_eq!([chosen.mask(), inherited.mask()], [home(), own]);
}

#[test]
fn a_child_that_chose_before_it_was_seen_keeps_its_choice_and_what_it_made_earlier_does_not() {
    let (Some(own), true) = (own(), can_observe()) else {
        return;
    };
    for how in ["fork", "daemon"] {
        let mut tasks = Tasks::new();
        // No look comes in between.
        let options = KeeperOptions {
            interval: std::time::Duration::from_secs(60),
            ..observing()
        };
        let keeper = tasks.keeper(options).unwrap();
        let child = tasks.make(0, how, 1);
        let (earlier, alone) = (tasks.make(1, "thread", 2), tasks.make(0, how, 3));
        tasks.tell(1, "pin 0");
        tasks.tell(3, "pin 0");
        let later = tasks.make(1, "thread", 4);
        keeper.stop().unwrap();
        let masks = [tasks.tasks[&0], child, earlier, alone, later].map(support::Task::mask);
        assert_eq!(
            masks,
            [own.clone(), home(), own.clone(), home(), home()],
            "{how}"
        );
    }
}

#[test]
fn what_a_thread_made_after_its_choice_keeps_that_also_where_the_maker_has_ended() {
    let (Some(own), true) = (own(), can_observe()) else {
        return;
    };
    let mut tasks = Tasks::new();
    tasks.make(0, "thread", 1);
    // No look comes in between.
    let options = KeeperOptions {
        interval: std::time::Duration::from_secs(60),
        ..observing()
    };
    let keeper = tasks.keeper(options).unwrap();
    let earlier = tasks.make(1, "fork", 2);
    tasks.tell(1, "pin 0");
    let later = tasks.make(1, "fork", 3);
    tasks.end(1);
    keeper.stop().unwrap();
    let masks = [tasks.tasks[&0], earlier, later].map(support::Task::mask);
    assert_eq!(masks, [own.clone(), own, home()]);
}

/// A shell that is the first process of a pid namespace: it says `up`, then runs each line that it reads.
struct Contained {
    outer: std::process::Child,
    /// Its number in this namespace.
    pid: i32,
}

impl Contained {
    fn start() -> Option<Self> {
        let script = "echo up; while read -r line; do eval \"$line\" >/dev/null; echo done; done";
        let mut command = std::process::Command::new("unshare");
        command.args([
            "--pid",
            "--fork",
            "--mount-proc",
            "--kill-child",
            "sh",
            "-c",
            script,
        ]);
        let mut outer = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let mut said = [0; 3];
        if outer
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut said)
            .is_err()
        {
            println!("skipped: root: no pid namespace can be made");
            return None;
        }
        let children = format!("/proc/{0}/task/{0}/children", outer.id());
        let pid = std::fs::read_to_string(children)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        Some(Self { outer, pid })
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.outer.stdin.as_mut().unwrap(), "{line}").unwrap();
        self.outer
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut [0; 5])
            .unwrap();
    }
}

impl Drop for Contained {
    fn drop(&mut self) {
        let _ = self.outer.kill();
        let _ = self.outer.wait();
    }
}

#[test]
fn a_choice_in_a_container_is_of_the_thread_that_has_the_number_there() {
    let (Some(own), true) = (own(), can_observe()) else {
        return;
    };
    let (Some(mut pinned), Some(mut other)) = (Contained::start(), Contained::start()) else {
        return;
    };
    let tasks = Tasks::new();
    let keeper = tasks.keeper(observing()).unwrap();
    for kept in [&pinned, &other] {
        keeper.add(OpenProcess::open(kept.pid).unwrap()).unwrap();
    }
    // Both are number 1 of their namespaces; taskset has ended when its call is read.
    pinned.tell("taskset -pc 0 1");
    other.tell("true");
    let report = keeper.stop().unwrap();
    let masks = [pinned.pid, other.pid, tasks.tasks[&0].pid].map(support::mask);
    assert_eq!(masks, [home(), own.clone(), own], "{report:?}");
}

#[test]
fn a_number_of_another_namespace_is_not_taken_for_a_kept_thread_of_this_one() {
    let (Some(own), true) = (own(), can_observe()) else {
        return;
    };
    let Some(mut contained) = Contained::start() else {
        return;
    };
    let tasks = Tasks::new();
    let kept = tasks.tasks[&0].pid;
    let keeper = tasks.keeper(observing()).unwrap();
    // The number of the kept one, given to a child in the other namespace.
    contained.tell(&format!(
        "echo {} > /proc/sys/kernel/ns_last_pid; sleep 60 & taskset -pc 0 $!; kill $!",
        kept - 1
    ));
    let report = keeper.stop().unwrap();
    assert_eq!(
        (support::mask(kept), report.skipped_count),
        (own, 0),
        "{report:?}"
    );
}

#[test]
fn a_daemon_is_found_where_descent_can_be_observed() {
    let (Some(own), true) = (own(), can_observe()) else {
        return;
    };
    let mut tasks = Tasks::new();
    let keeper = tasks.keeper(observing()).unwrap();
    let daemon = tasks.make(0, "daemon", 1);
    assert_eq!(daemon.mask(), home());
    wait_until("it is kept", || keeper.report().unwrap().processes == 2);
    let late = tasks.make(1, "daemon", 2);
    keeper.stop().unwrap();
    assert_eq!(
        [tasks.tasks[&0], daemon, late].map(support::Task::mask),
        [own.clone(), own.clone(), own]
    );
}

#[test]
fn a_thread_that_becomes_another_program_keeps_what_it_asked_for() {
    let (Some(own), true) = (own(), can_observe()) else {
        return;
    };
    for pinned in [0, 1] {
        let mut tasks = Tasks::new();
        tasks.make(0, "thread", 1);
        tasks.tell(pinned, "pin 0");
        let mut keeper =
            KeeperProcess::start(&tasks.state(), &[tasks.tasks[&0].pid], true).unwrap();
        keeper.settle();
        let now = tasks.exec(1);
        assert_eq!((now.tid, now.mask()), (now.pid, home()));
        keeper.settle();
        keeper.stop();
        assert_eq!(
            now.mask(),
            if pinned == 1 { home() } else { own.clone() },
            "{pinned} was pinned"
        );
    }
}

#[test]
fn a_cpuset_that_changes_meanwhile_leaves_the_task_as_without_a_keeper() {
    let Some(own) = own() else { return };
    let Some(cpuset) = Cpuset::new("changes") else {
        return;
    };
    let tasks = Tasks::new();
    let task = tasks.tasks[&0];
    cpuset.take(task.pid);
    for killed in [false, true] {
        for (before, meanwhile, after) in
            [("0-1", "1", "0-1"), ("0", "0-1", "1"), ("0-1", "0", "0-1")]
        {
            assert!(cpuset.set(before));
            let mut keeper = KeeperProcess::start(&tasks.state(), &[task.pid], false).unwrap();
            assert_eq!(task.mask(), home());
            assert!(cpuset.set(meanwhile));
            keeper.settle();
            let effective = cpus(meanwhile).intersection(&home());
            let kept = if effective.is_empty() {
                cpus(meanwhile)
            } else {
                effective
            };
            assert_eq!(task.mask(), kept, "kept within {meanwhile}");
            match killed {
                true => keeper.kill(),
                false => keeper.stop(),
            }
            tasks.leases().recover().unwrap();
            assert_eq!(task.mask(), cpus(meanwhile), "{before}, then {meanwhile}");
            assert!(cpuset.set(after));
            assert_eq!(
                task.mask(),
                cpus(after),
                "{before}, then {meanwhile}, then {after}"
            );
        }
    }
    cpuset.release(task.pid);
    assert_eq!(task.mask(), own);
}

#[test]
fn a_child_found_after_its_cpuset_changed_has_inherited_all_the_same() {
    let Some(own) = own() else { return };
    let Some(cpuset) = Cpuset::new("child") else {
        return;
    };
    let mut tasks = Tasks::new();
    let task = tasks.tasks[&0];
    cpuset.take(task.pid);
    assert!(cpuset.set("0"));
    // No look comes in between.
    let options = KeeperOptions {
        interval: std::time::Duration::from_secs(60),
        ..confining()
    };
    let keeper = tasks.keeper(options).unwrap();
    let child = tasks.make(0, "fork", 1);
    assert!(cpuset.set("1"));
    keeper.stop().unwrap();
    assert!(cpuset.set("0-1"));
    assert_eq!([task.mask(), child.mask()], [own.clone(), own]);
}

#[test]
fn cpus_of_the_node_that_come_online_later_are_used() {
    let Some(own) = own() else { return };
    let nodes = tempfile::tempdir().unwrap();
    std::fs::create_dir(nodes.path().join("node0")).unwrap();
    let list = |cpus: &str| std::fs::write(nodes.path().join("node0/cpulist"), cpus).unwrap();
    list("0\n");
    let mut tasks = Tasks::new();
    tasks.make(0, "thread", 1);
    tasks.tell(1, "pin 0");
    let options = KeeperOptions {
        nodes: Some(nodes.path().to_owned()),
        ..confining()
    };
    let keeper = tasks.keeper(options).unwrap();
    let task = tasks.tasks[&0];
    assert_eq!(task.mask(), home());
    list("0-1\n");
    wait_until("its node has two CPUs", || task.mask() == own);
    list("1\n");
    wait_until("its node has the other CPU", || task.mask() == cpus("1"));
    list("\n");
    keeper.stop().unwrap();
    assert_eq!([task.mask(), tasks.tasks[&1].mask()], [own, home()]);
}

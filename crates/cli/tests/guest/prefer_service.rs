//! The preferred-node service, and `prefer --group`, on a real kernel with two nodes of two CPUs: a guest.
//!
//! `cargo test -p nearfar --test guest prefer_service:: -- --nocapture` prints what the guests did, with the guest's own times.

use crate::guests::{script, skipped};

/// Seconds for what takes less than one: a round of the service's scanning, or its guard. Emulated on a busy host a look at a mask
/// alone may take one. Judged in the slow tier only.
const SOON: f64 = 15.0;

const SCALE: &[&str] = &["--scale", "cpus=2,memory=512M"];

/// What the scripts share. `$0` is nearfar.
const TOOLS: &str = r#"
set -u
cp "$(command -v bash)" /run/burner
cp /run/burner /run/hog
burn='while :; do :; done'
mask() { sed -n 's/^Cpus_allowed_list:\t//p' "/proc/$1/status"; }
now() { cut -d' ' -f1 /proc/uptime; }
# Waits until a command says what is expected, at most 60 s, against hanging; says how long it took.
until_says() {
    what=$1 expected=$2 begun=$(now); shift 2
    limit=$((${begun%.*} + 60))
    while said=$("$@"); [ "$(now | cut -d. -f1)" -lt $limit ]; do
        [ "$said" = "$expected" ] && { echo "$what: $expected after $(awk "BEGIN{print $(now) - $begun}") s"; return; }
        sleep 0.5
    done
    echo "$what: $said instead of $expected"
}
"#;

fn run(text: &str) -> String {
    run_on("two-node", text)
}

fn run_on(machine: &str, text: &str) -> String {
    // bash in the place of sh: the guest's root is this machine's, and `$0` is handed on.
    let text = format!(
        "exec bash -c '{}' \"$0\"",
        (TOOLS.to_owned() + text).replace('\'', r"'\''")
    );
    script(machine, SCALE, &text)
}

/// How long something took, by the name it was waited for under.
fn seconds(text: &str, what: &str, expected: &str) -> f64 {
    let begin = format!("{what}: {expected} after ");
    let line = text.lines().find_map(|line| line.strip_prefix(&begin));
    let line = line.unwrap_or_else(|| panic!("no {begin:?} in\n{text}"));
    line.trim_end_matches(" s").parse().unwrap()
}

/// What the service does to tasks that are there, that come, that are kept elsewhere, and when it is reloaded, killed and stopped.
fn served() -> String {
    run(r#"
        rule() { printf '[[prefer]]\nname = "burn"\nnode = %s\ncommand = "burner"\n' "$1" >/run/prefer.toml; }
        where() { cut -d' ' -f39 "/proc/$1/stat"; }
        rule 1
        /run/burner -c "$burn" & early=$!
        until_says before 0-3 mask $early
        "$0" prefer service --config /run/prefer.toml & service=$!
        until_says early 2-3 mask $early
        # The service is at work: from here on it is a matter of its scanning.
        /run/burner -c "$burn" & late=$!
        until_says late 2-3 mask $late
        echo "late runs on $(where $late)"
        "$0" prefer --node 0 --pid $late 2>&1; echo "a second keeper ended with $?"
        # One that its operator keeps elsewhere is left there until it may come. It takes no room: a third one that burns would
        # be released from two CPUs.
        taskset -c 0 /run/burner -c "sleep 300; :" & kept_off=$!
        sleep 4; echo "kept off on $(mask $kept_off)"
        taskset -pc 0-3 $kept_off >/dev/null
        until_says let_go 2-3 mask $kept_off
        kill $kept_off
        rule 0; kill -HUP $service
        until_says reloaded 0-1 mask $late
        kill -KILL $service
        until_says killed 0-3 mask $early
        until_says killed-late 0-3 mask $late
        # The output of this one is not read.
        rule 1; "$0" prefer service --config /run/prefer.toml 2> >(:) & service=$!
        until_says again 2-3 mask $late
        kill -TERM $service; wait $service; echo "ended with $?"
        echo "at last $(mask $early) $(mask $late)"
        kill $early $late
    "#)
}

/// In the slow tier: times are judged.
#[test]
fn the_service_finds_tasks_and_gives_them_back_within_seconds() {
    if skipped() {
        return;
    }
    let text = served();
    for (what, expected) in [("late", "2-3"), ("killed", "0-3"), ("killed-late", "0-3")] {
        assert!(seconds(&text, what, expected) < SOON, "{text}");
    }
}

#[test]
fn the_service_brings_tasks_to_their_node_and_gives_them_back_however_it_ends() {
    if skipped() {
        return;
    }
    let text = served();
    for (what, expected) in [
        ("before", "0-3"),
        ("early", "2-3"),
        ("late", "2-3"),
        ("let_go", "2-3"),
        ("reloaded", "0-1"),
        ("killed", "0-3"),
        ("killed-late", "0-3"),
        ("again", "2-3"),
    ] {
        seconds(&text, what, expected);
    }
    assert!(
        text.contains(
            "which says \"prefer node 1\": end that first\na second keeper ended with 3\n"
        ),
        "{text}"
    );
    assert!(text.contains("kept off on 0\n"), "{text}");
    assert!(
        text.contains("late runs on 2\n") || text.contains("late runs on 3\n"),
        "{text}"
    );
    assert!(text.contains("ended with 0\nat last 0-3 0-3\n"), "{text}");
}

#[test]
fn a_group_is_let_out_of_its_cpuset_while_the_node_is_full_and_comes_back() {
    if skipped() {
        return;
    }
    let text = run(r#"
        g=/sys/fs/cgroup; grep -q " $g cgroup2" /proc/mounts || mount -t cgroup2 none $g
        echo +cpuset >$g/cgroup.subtree_control
        mkdir -p $g/jobs/inner; echo 0-3 >$g/jobs/cpuset.cpus
        # One task: what polls in here takes from the room on the preferred node, too.
        /run/burner -c "$burn" & task=$!; echo $task >$g/jobs/inner/cgroup.procs
        cpus() { cat $g/jobs/cpuset.cpus; }
        "$0" prefer --node 1 --group /jobs & keeper=$!
        until_says narrow 2-3 cpus
        echo "nested $(mask $task)"
        for cpu in 2 3; do taskset -c $cpu /run/hog -c "$burn" & hogs="${hogs-} $!"; done
        until_says full 0-3 cpus
        kill $hogs
        until_says room 2-3 cpus
        kill -TERM $keeper; wait $keeper
        echo "given back $(cpus) $(mask $task)"
        "$0" prefer --node 1 --group /jobs & keeper=$!
        until_says narrow-again 2-3 cpus
        kill -KILL $keeper
        until_says killed 0-3 cpus
        # An empty cpuset cannot be put back: thread by thread.
        mkdir $g/plain; echo $task >$g/plain/cgroup.procs
        "$0" prefer --node 1 --group /plain & keeper=$!
        until_says threads 2-3 mask $task
        echo "still empty [$(cat $g/plain/cpuset.cpus)]"
        kill -TERM $keeper; wait $keeper
        echo "given back too $(mask $task)"
        taskset -pc 0 $task >/dev/null
        "$0" prefer --node 1 --group /plain --through cpuset 2>&1; echo "refused with $?"
        kill $task
    "#);
    for (what, expected) in [
        ("narrow", "2-3"),
        ("full", "0-3"),
        ("room", "2-3"),
        ("narrow-again", "2-3"),
        ("killed", "0-3"),
        ("threads", "2-3"),
    ] {
        seconds(&text, what, expected);
    }
    for expected in [
        "nested 2-3\n",
        "given back 0-3 0-3\n",
        "still empty []\n",
        "given back too 0-3\n",
    ] {
        assert!(text.contains(expected), "{expected:?} in\n{text}");
    }
    assert!(
        text.contains("has chosen CPUs of its own") && text.contains("refused with 2\n"),
        "{text}"
    );
}

/// Case 1's machine: an NVMe controller on node 0, and one whose node the firmware knows and the kernel does not.
#[test]
fn near_a_device_without_a_node_is_the_node_nearest_to_the_firmwares() {
    if skipped() {
        return;
    }
    let text = run_on(
        "x86-case1",
        r#"
        left=600; until [ "$(ls -d /sys/class/nvme/nvme? 2>/dev/null | wc -l)" = 2 ] || [ $((left -= 1)) = 0 ]; do sleep 0.1; done
        for one in /sys/class/nvme/nvme?; do
            node=$(cat $one/device/numa_node); echo "kernel: node $node"
            echo "near $node: $("$0" prefer --near ${one##*/} -- sed -n 's/^Cpus_allowed_list:\t//p' /proc/self/status)"
        done
    "#,
    );
    for expected in [
        "kernel: node -1\n",
        "kernel: node 0\n",
        "near -1: 2-3\n",
        "near 0: 0-1\n",
    ] {
        assert!(text.contains(expected), "{expected:?} in\n{text}");
    }
}

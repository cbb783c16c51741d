//! `nearfar fleet` on a real Slurm cluster: four nodes on this machine. In all tests but the first each job runs in a guest of its node's
//! machine. What guests measure is judged in the slow tier.
//!
//! `cargo test -p nearfar --test guest fleet_slurm:: -- --nocapture` prints what was measured.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::fleets;
use crate::guests;
use crate::harness;
use crate::harness::{Nearfar, Sandbox};
use crate::slurm;
use crate::slurm::machines::{FAR_NS, FAR_NS_OF_N2, GROUP, NEAR_NS, NODES, REPAIRED};
use crate::slurm::{Cluster, PARTITION, Silence};
use crate::waiting::wait_until;
use nearfar_lab::qemu::Qemu;
use nearfar_lab::shell::word;
use nearfar_lab::{Arch, delay};
use rustix::process::Signal;
use serde_json::{Value, json};

/// 12 samples a pair, also on a busy machine: `fleet show` judges hosts with 6 or more.
const MEASURED: &str = "bench latency --what latency --samples 12 --budget 40 --format json";
/// As little as answers.
const ANSWERED: &str = "bench latency --what latency --samples 1 --budget 1 --format json";
/// A task on node 0 whose memory is bound to no node. All its accesses are near or all are far.
const PROBE: &str = "bench probe --cell preferred_node=-1,numa_balancing=0,memory_node=F,cpu_node=0 --load 0 --bytes 4M \
    --counts 1 --samples 6 --format json";
/// A sample over its delay: what the emulation takes besides is 0.7 to 1.5 %.
const MAX_UNDISTURBED: f64 = 1.05;

/// `nearfar fleet` with these words, in the environment of a cluster.
fn fleet(sandbox: &Sandbox, cluster: &Cluster, words: &str) -> Nearfar {
    let mut command = sandbox.nearfar(["fleet"]).args(words.split_whitespace());
    for (name, value) in cluster.environment() {
        command = command.env(name, value);
    }
    command
}

/// n3 fails until there is a file `repaired`; n4 goes on until there is a file `go`.
fn write_command(sandbox: &Sandbox) -> PathBuf {
    let script = format!(
        "#!/bin/sh
case $SLURMD_NODENAME in
n3) [ -e repaired ] || {{ echo 'the disk is full' >&2; exit 3; }} ;;
n4) until [ -e go ]; do sleep 0.05; done ;;
esac
exec {} \"$@\"
",
        word(harness::NEARFAR.as_ref())
    );
    let file = sandbox.write("nearfar-on-node", script);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    file
}

#[test]
fn jobs_go_on_without_the_command_and_only_missing_hosts_are_asked_again() {
    let sandbox = Sandbox::new();
    let Some(cluster) = Cluster::start(&sandbox.root().join("slurm"), &NODES, Silence::Long) else {
        return;
    };
    let command = write_command(&sandbox);
    let words = format!(
        "run --engine slurm --partition {PARTITION} --results r --command {} --exclusive yes -- snapshot",
        command.display()
    );
    let run = fleet(&sandbox, &cluster, &words).start();
    let folder = sandbox.path("r");
    wait_until("all but n4 have ended", || {
        let events = fleets::events(&folder);
        let number = |host: &str| events.get(host).map_or(0, Vec::len);
        [2, 2, 2, 1] == NODES.map(number)
    });
    run.end_by(Signal::KILL);
    sandbox.write("go", "");

    let resume = "run --resume --results r --format json";
    let answer = fleet(&sandbox, &cluster, resume).run().exited(3).json();
    assert_eq!(answer["answered"], json!(["n1", "n2", "n4"]));
    let reason = &fleets::reasons(&answer["lost"])["n3"];
    assert_eq!(
        reason,
        "its job ended as FAILED (NonZeroExitCode): the disk is full"
    );
    assert_eq!(
        fleets::events(&folder)["n4"],
        ["started", "answered"],
        "its job was taken over"
    );

    sandbox.write("repaired", "");
    fleet(&sandbox, &cluster, resume).run().exited(0);
    let events = fleets::events(&folder);
    assert_eq!(events["n1"], ["started", "answered"]);
    let of_n3 = ["started", "lost", "started", "lost", "started", "answered"];
    assert_eq!(events["n3"], of_n3);
}

/// A cluster whose jobs run in guests.
struct Guests {
    sandbox: Sandbox,
    cluster: Cluster,
    silence: Silence,
    wrapper: PathBuf,
}

impl Guests {
    /// `None`, having said why, where there can be none.
    fn start(silence: Silence) -> Option<Self> {
        if guests::skipped() {
            return None;
        }
        if let Err(error) = Qemu::find(Arch::X86_64).and_then(|qemu| delay::find_plugin(&qemu)) {
            println!("skipped: guests: {error}");
            return None;
        }
        let sandbox = Sandbox::new();
        let cluster = Cluster::start(&sandbox.root().join("slurm"), &NODES, silence)?;
        let wrapper = slurm::machines::write_wrapper(&sandbox.path(""));
        Some(Self {
            sandbox,
            cluster,
            silence,
            wrapper,
        })
    }

    fn fleet(&self, words: &str) -> Nearfar {
        fleet(&self.sandbox, &self.cluster, words)
    }

    /// n1 crashes while its guest runs; the others answer, and n1 does when it is back.
    fn lose_a_node(&mut self, measured: &str) {
        let command = self.wrapper.display();
        let run = self.fleet(&format!(
            "run --engine slurm --partition {PARTITION} --results r --command {command} --at-once 2 --format json -- {measured}"
        ));
        let run = run.start();
        let folder = self.sandbox.path("r");
        // A job whose node crashes while it is launched is FAILED.
        wait_until("the guest of n1 runs", || self.cluster.has_guest("n1"));
        self.cluster.crash("n1");
        if self.silence == Silence::Long {
            self.cluster.set_down("n1");
        }
        let answer = run.wait().exited(3);
        println!("{}", answer.errors());
        let summary = answer.json();
        assert_eq!(summary["answered"], json!(["n2", "n3", "n4"]));
        let lost = fleets::reasons(&summary["lost"]);
        assert_eq!(lost.len(), 1, "{lost:?}");
        // With the last word of the job's command, if that had the time for one.
        let last = lost["n1"].strip_prefix("its node failed during the job");
        assert!(
            matches!(last, Some("" | ": nearfar: interrupted")),
            "{lost:?}"
        );
        for none in ["failed", "not_asked"] {
            assert_eq!(summary[none], json!([]));
        }
        assert_eq!(fleets::events(&folder)["n1"], ["started", "lost"]);

        let resume = "run --resume --results r --format json";
        let answer = self.fleet(resume).run().exited(3).json();
        let reason = &fleets::reasons(&answer["lost"])["n1"];
        assert!(reason.starts_with("its node is down"), "{reason}");
        self.sandbox.write(REPAIRED, "");
        self.cluster.restart_slurmd("n1");
        if self.silence == Silence::Long {
            self.cluster.set_up("n1");
        }
        self.cluster.wait_until_idle();
        let answer = self.fleet(resume).run().exited(0).json();
        assert_eq!(answer["answered"], json!(NODES));
        let events = fleets::events(&folder);
        assert_eq!(
            events["n1"],
            ["started", "lost", "lost", "started", "answered"]
        );
        for host in &NODES[1..] {
            assert_eq!(events[*host], ["started", "answered"], "{host}");
        }
        for host in NODES {
            print_latencies(host, &fleets::result(&folder, host));
        }
    }

    /// Hosts in which a quarter of a pair's samples is longer than its delay: other work on this machine disturbs them.
    fn print_disturbed(&self) {
        let is_disturbed = |host: &&str| {
            let result = fleets::result(&self.sandbox.path("r"), host);
            let pairs = result["answer"]["latency"]["pairs"].clone();
            pairs.as_array().unwrap().iter().any(|pair| {
                let delay = match pair["cpu_node"] == pair["memory_node"] {
                    true => NEAR_NS,
                    false if *host == "n2" => FAR_NS_OF_N2,
                    false => FAR_NS,
                };
                let samples = pair["samples_ns"].as_array().unwrap().iter();
                let is_long = |ns: &f64| *ns > MAX_UNDISTURBED * f64::from(delay);
                let long = samples.clone().filter_map(Value::as_f64).filter(is_long);
                4 * long.count() >= samples.len()
            })
        };
        let disturbed: Vec<_> = NODES.into_iter().filter(is_disturbed).collect();
        println!("disturbed by other work: {disturbed:?}");
    }

    /// What `fleet show` says of the four hosts.
    fn survey(&self) -> Value {
        self.fleet("collect r --dataset d").run().exited(0);
        println!("{}", self.fleet("show --dataset d").prints());
        self.fleet("show --dataset d --format json").json()
    }

    /// n1 and n3 deviate in one fact each, also in a page, and no host in anything else that is not measured.
    fn check_facts(&self, survey: &Value) {
        let deviations = fleets::deviations(survey).into_iter();
        let facts: Vec<_> = deviations
            .filter(|(.., it)| it["kind"] != "metric")
            .collect();
        let named = |(hosts, name, _): &(&Value, &str, &Value)| format!("{hosts} {name}");
        let mut of_facts: Vec<_> = facts.iter().map(named).collect();
        of_facts.sort_unstable();
        let planted = ["[\"n1\"] distances", "[\"n3\"] finding_interrupt_far"];
        assert_eq!(of_facts, planted);
        for (_, name, it) in facts {
            match name {
                "distances" => assert_eq!(
                    it["differences"],
                    json!(["0 to 1: 31 instead of 21", "1 to 0: 31 instead of 21"])
                ),
                _ => assert_eq!(it["usual"], "0"),
            }
        }

        let outlier = "show --dataset d --html page.html --fail-on outlier";
        self.fleet(outlier).run().exited(1);
        let page = fs::read_to_string(self.sandbox.path("page.html")).unwrap();
        let all = fleets::deviations(survey);
        for host in NODES {
            let is_named = |(hosts, ..): &(&Value, &str, &Value)| {
                hosts.as_array().unwrap().contains(&json!(host))
            };
            let is_in_page = page.contains(&format!("#g0-{host}"));
            assert_eq!(is_in_page, all.iter().any(is_named), "{host}");
        }
    }

    /// n2 deviates in its latency to far memory, and no host in anything else that was measured.
    fn check_metrics(&self, survey: &Value) {
        let deviations = fleets::deviations(survey).into_iter();
        let metrics = deviations.filter(|(.., it)| it["kind"] == "metric");
        let (of_n2, of_others): (Vec<_>, Vec<_>) =
            metrics.partition(|(hosts, ..)| **hosts == json!(["n2"]));
        // What a failure below may come from.
        self.print_disturbed();
        assert!(of_others.is_empty(), "{of_others:?}");
        let [(_, "latency_ns", of_n2)] = of_n2[..] else {
            panic!("{of_n2:?}");
        };
        assert_eq!(of_n2["cells"], "cpu_node and memory_node differ");
        assert_eq!(of_n2["is_worse"], true);
        let number = |key: &str| of_n2[key].as_f64().unwrap();
        let planted = f64::from(FAR_NS_OF_N2) / f64::from(FAR_NS);
        // The emulation takes a little besides the delays.
        let interval = 0.97 * number("low")..=1.03 * number("high");
        assert!(interval.contains(&planted), "{of_n2}");
    }

    /// On n2 the change makes the probe worse: its memory is no longer on the node of its CPU. n4 is not changed. Accesses are counted;
    /// whether they take longer as well depends on their number.
    fn stop_at_a_canary(&self, steps: u32) -> Value {
        // On both CPUs, the probe might take its memory from either node before the change.
        let command = format!("env JOB_CPUS=0 {}", self.wrapper.display());
        let words =
            "apply --engine slurm --hosts n2,n4 --canary 1 --results c --margin 0.2 --format json";
        let apply = self.fleet(words).args(["--command", &command]);
        let measure = format!("{PROBE} --steps {steps}");
        let apply = apply.args(["--measure", &measure, "--", "--cpuset-mems"]);
        let answer = apply.arg(format!("{GROUP}=1")).run().exited(3);
        println!("{}", answer.errors());
        let rolled_out = answer.json();
        assert_eq!(rolled_out["stopped_at"][0]["host"], "n2", "{rolled_out}");
        assert_eq!(rolled_out["untouched"], json!(["n4"]));
        assert_eq!(rolled_out["kept"], json!([]));

        let folder = self.sandbox.path("c");
        let rollout = fleets::result(&folder, "n2")["rollout"].clone();
        println!("{rollout}");
        assert_eq!(
            (&rollout["outcome"], &rollout["is_undone"]),
            (&json!("worse"), &json!(true))
        );
        let log = fleets::lines(&folder.join("audit.jsonl"));
        assert_eq!(log.len(), 2, "{log:?}");
        assert!(log.iter().all(|line| line["host"] == "n2"), "{log:?}");
        assert_eq!(log[0]["action"], "starting");
        assert_eq!(log[1]["action"], "applied_and_undone");
        assert!(log[1]["by"].as_str().unwrap().contains('@'), "{log:?}");
        assert_eq!(
            log[1]["changes"],
            json!([format!("/sys/fs/cgroup/{GROUP}/cpuset.mems:  -> 1")])
        );
        assert_eq!(fleets::events(&folder).len(), 1);
        assert!(!has_file(&folder.join("../logs"), "n4"));
        self.fleet("rollback --results c").run().exited(0);
        let jobs = ["--noheader", "--states=all", "--nodelist=n4", "--format=%j"];
        let jobs = self.cluster.command("squeue", &jobs);
        assert_eq!(jobs.lines().count(), 1, "that of the first run: {jobs}");
        rollout
    }
}

/// Whether there is an answer, whole or not, whose file begins with this.
fn has_file(folder: &Path, start: &str) -> bool {
    let entries = fs::read_dir(folder.join("hosts"));
    let mut names = entries.into_iter().flatten().flatten();
    names.any(|entry| entry.file_name().to_string_lossy().starts_with(start))
}

fn print_latencies(host: &str, result: &Value) {
    for pair in result["answer"]["latency"]["pairs"].as_array().unwrap() {
        let samples = pair["samples_ns"].as_array().unwrap().len();
        println!(
            "{host}: {} ns from node {} to {}, {samples} samples",
            pair["median_ns"], pair["cpu_node"], pair["memory_node"]
        );
    }
}

/// Nothing that takes time is judged: n1 is set down rather than found silent, facts are named, and the probe is worse by where its
/// accesses go.
#[test]
fn a_lost_guest_is_asked_again_facts_that_deviate_are_named_and_a_worse_canary_is_undone() {
    let Some(mut guests) = Guests::start(Silence::Long) else {
        return;
    };
    guests.lose_a_node(ANSWERED);
    guests.check_facts(&guests.survey());
    let rollout = guests.stop_at_a_canary(1000);
    assert!(
        ["elapsed_s", "remote_access_share"].contains(&rollout["metric"].as_str().unwrap()),
        "{rollout}"
    );
}

/// In the slow tier: latencies and run times are compared, and the controller finds out by itself that a node is down.
#[test]
fn a_lost_guest_is_asked_again_deviating_ones_are_named_and_a_canary_that_gets_slower_is_undone() {
    let Some(mut guests) = Guests::start(Silence::Short) else {
        return;
    };
    let start = Instant::now();
    let after = |what: &str| println!("{what} after {:.1} s", start.elapsed().as_secs_f64());
    guests.lose_a_node(MEASURED);
    after("all answered");
    let survey = guests.survey();
    guests.check_facts(&survey);
    guests.check_metrics(&survey);
    after("deviations named");
    let rollout = guests.stop_at_a_canary(100_000);
    assert_eq!(rollout["metric"], "elapsed_s", "{rollout}");
    after("canary undone");
}

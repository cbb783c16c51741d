//! Fleets on a real Slurm cluster: four nodes on this machine, whose jobs each run in a guest of another machine.

mod guests;
mod harness;
mod slurm;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Instant;

use harness::Sandbox;
use nearfar_lab::qemu::Qemu;
use nearfar_lab::{Arch, delay};
use serde_json::{Map, Value};
use slurm::Cluster;
use slurm::machines::{FAR_NS, FAR_NS_OF_N2, NEAR_NS, NODES};
use waiting::wait_until;

#[test]
fn jobs_run_on_their_nodes_and_fail_with_a_crashed_node() {
    let sandbox = Sandbox::new();
    let Some(mut cluster) = Cluster::start(&sandbox.root().join("slurm"), &NODES) else {
        return;
    };
    let jobs = NODES.map(|node| {
        let script = format!("echo $SLURMD_NODENAME > {}", sandbox.file(node));
        cluster.submit(&["--nodelist", node, "--exclusive"], &script)
    });
    for (job, node) in jobs.iter().zip(NODES) {
        cluster.wait_for_job(job, "COMPLETED");
        assert_eq!(
            fs::read_to_string(sandbox.path(node)).unwrap(),
            format!("{node}\n")
        );
    }

    let options = ["--nodelist", "n2", "--exclusive", "--no-requeue"];
    let started = sandbox.path("started");
    let script = format!("touch {}; sleep 300", started.display());
    let job = cluster.submit(&options, &script);
    // A job whose node crashes while it is launched is FAILED.
    wait_until("the job starts", || started.exists());
    cluster.crash("n2");
    let took = cluster.wait_for_job(&job, "NODE_FAIL");
    println!("NODE_FAIL after {:.1} s", took.as_secs_f64());
    assert_eq!(cluster.node_states()["n2"], "down*");

    cluster.restart_slurmd("n2");
    cluster.wait_until_idle();
    let job = cluster.submit(&options, "exit 3");
    cluster.wait_for_job(&job, "FAILED");
}

/// What differs between two guests of one machine as well: counts, free memory, times, names of the emulation, tasks.
fn is_accidental(path: &str) -> bool {
    ["/origin/boot", "/origin/taken_at_s"].contains(&path)
        || ["/origin/emulation/", "/tasks/"]
            .iter()
            .any(|start| path.starts_with(start))
        || path.starts_with("/interrupts/") && path.ends_with("/count")
        || path.ends_with("/free_bytes")
}

/// The paths at which two answers differ, without accidental ones.
fn differences(a: &Value, b: &Value) -> BTreeSet<String> {
    fn add(path: &str, a: &Value, b: &Value, found: &mut BTreeSet<String>) {
        let children = |value: &Value| match value {
            Value::Object(map) => map.clone(),
            Value::Array(items) => items
                .iter()
                .enumerate()
                .map(|(index, item)| (index.to_string(), item.clone()))
                .collect(),
            _ => Map::new(),
        };
        let (of_a, of_b) = (children(a), children(b));
        let names: BTreeSet<_> = of_a.keys().chain(of_b.keys()).collect();
        if names.is_empty() && a != b && !is_accidental(path) {
            found.insert(path.to_owned());
        }
        for name in names {
            let [a, b] = [&of_a, &of_b].map(|map| map.get(name).unwrap_or(&Value::Null));
            add(&format!("{path}/{name}"), a, b, found);
        }
    }
    let mut found = BTreeSet::new();
    add("", a, b, &mut found);
    found
}

/// The checkup of each node in its guest, two nodes at the same time: as many CPUs as the guests have, the host may have.
fn checkups(cluster: &Cluster, sandbox: &Sandbox) -> BTreeMap<&'static str, Value> {
    let wrapper = slurm::machines::write_wrapper(&sandbox.path(""));
    let mut answers = BTreeMap::new();
    for pair in NODES.chunks(2) {
        let start = Instant::now();
        let jobs: Vec<_> = pair
            .iter()
            .map(|node| {
                let file = sandbox.file(&format!("{node}.json"));
                let script = format!(
                    "{} checkup --probe 5 --format json --no-html --no-store > {file}",
                    wrapper.display()
                );
                cluster.submit(&["--nodelist", node, "--exclusive"], &script)
            })
            .collect();
        for (job, node) in jobs.iter().zip(pair) {
            cluster.wait_for_job(job, "COMPLETED");
            let text = fs::read(sandbox.path(&format!("{node}.json"))).unwrap();
            answers.insert(*node, serde_json::from_slice(&text).unwrap());
        }
        println!("{pair:?}: {:.1} s", start.elapsed().as_secs_f64());
    }
    answers
}

fn rules(answer: &Value) -> BTreeSet<&str> {
    let findings = answer["audit"]["findings"].as_array().unwrap();
    findings
        .iter()
        .map(|finding| finding["rule"].as_str().unwrap())
        .collect()
}

/// The latencies are those of the delays, except where a busy machine left time for too few samples.
fn check_latencies(node: &str, answer: &Value) {
    for pair in answer["probe"]["pairs"].as_array().unwrap() {
        let delay = match pair["cpu_node"] == pair["memory_node"] {
            true => NEAR_NS,
            false if node == "n2" => FAR_NS_OF_N2,
            false => FAR_NS,
        };
        let median = pair["median_ns"].as_f64().unwrap();
        let samples = pair["samples_ns"].as_array().unwrap().len();
        println!("{node}: {median} ns, delay {delay} ns, {samples} samples");
        let ratio = median / f64::from(delay);
        assert!(
            samples < 6 || (0.97..1.1).contains(&ratio),
            "{node}: {pair}"
        );
    }
}

#[test]
fn the_guests_of_the_nodes_differ_in_what_is_planted_and_nothing_else() {
    if guests::skipped() {
        return;
    }
    if let Err(error) = Qemu::find(Arch::X86_64).and_then(|qemu| delay::find_plugin(&qemu)) {
        return println!("skipped: guests: {error}");
    }
    let sandbox = Sandbox::new();
    let Some(cluster) = Cluster::start(&sandbox.root().join("slurm"), &NODES) else {
        return;
    };
    let _turn = guests::turn();
    let answers = checkups(&cluster, &sandbox);
    for (node, answer) in &answers {
        assert_eq!(
            rules(answer).contains("interrupt-far"),
            *node == "n3",
            "{node}"
        );
        check_latencies(node, answer);
        let found = differences(&answer["machine"], &answers["n4"]["machine"]);
        let planted: &[&str] = match *node {
            "n1" => &["/distances/", "/firmware_distances/"],
            "n3" => &["/interrupts/"],
            _ => &[],
        };
        let is_planted = |path: &String| planted.iter().any(|start| path.starts_with(start));
        assert!(found.iter().all(is_planted), "{node}: {found:?}");
        assert_eq!(found.is_empty(), planted.is_empty(), "{node}");
    }
}

//! `bench rps` in a guest with two network cards: which CPUs serve the queues of the servers on the adjacent node, before and after
//! interrupts are spread nearest first. No speed is judged.
//!
//! Needs QEMU, a cached kernel (`nearfar lab kernels get 6.12`), a static busybox, redis, ethtool and iproute2; without them it
//! says so and passes.

use crate::guests;
use serde_json::Value;

/// `$0` is nearfar. A line of JSON for the run, then the state of both cards.
const SCRIPT: &str = "export HOME=/tmp XDG_STATE_HOME=/tmp/state
irqs() { grep -h . $(ls -d /sys/bus/pci/devices/0000:21:00.0/msi_irqs/* | sed 's,.*/,/proc/irq/,; s,$,/smp_affinity_list,'); }
before=$(irqs)
\"$0\" bench rps --device 0000:21:00.0 --client-device 0000:41:00.0 --factor server_node=adjacent \
  --factor interrupts=kernel_pre_6_3,nearest_first --samples 1 --seconds 0.5 --warm-up 0.2 --no-store --format json | tr -d '\\n'
echo
ip -oneline address show scope global | grep -v ' lo ' || echo no addresses
ip -oneline link show up | grep -c eth
[ \"$before\" = \"$(irqs)\" ] && echo same interrupts
";

fn has(program: &str) -> bool {
    ["/usr/bin", "/usr/sbin", "/bin", "/sbin"]
        .iter()
        .any(|directory| std::path::Path::new(directory).join(program).exists())
}

#[test]
fn queues_of_the_adjacent_nodes_servers_are_served_there_only_when_spread_nearest_first() {
    if guests::skipped() {
        return;
    }
    if let Some(missing) = ["redis-server", "ethtool", "ip"].iter().find(|it| !has(it)) {
        return println!("skipped: tools: there is no {missing}");
    }
    let said = guests::script(
        "cards-back-to-back",
        &["--scale", "cpus=2,memory=512M"],
        SCRIPT,
    );
    let (json, after) = said.split_once('\n').unwrap();
    let run: Value = serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {said}"));
    assert_eq!(run["state"], "complete", "{said}");
    let cells = run["summary"].as_array().unwrap();
    let counts = |level: &str| {
        let cell = cells
            .iter()
            .find(|it| it["cell"]["interrupts"] == level)
            .unwrap();
        ["interrupts_near", "interrupts_far"].map(|name| {
            let metrics = cell["metrics"].as_array().unwrap();
            let metric = metrics.iter().find(|it| it["metric"] == name).unwrap();
            metric["median"].as_f64().unwrap()
        })
    };
    // The card itself raises each queue's interrupt every two seconds, and a change of the CPU takes effect at the next one.
    let [near, far] = counts("kernel_pre_6_3");
    assert!(far > 10.0 * near, "before: {near} near, {far} far");
    let [near, far] = counts("nearest_first");
    assert!(near > 10.0 * far, "after: {near} near, {far} far");
    assert_eq!(after, "no addresses\n2\nsame interrupts\n");
}

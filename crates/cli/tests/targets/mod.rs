//! Every argument that names something on a machine, with a command in which it names something there is not.
//!
//! Two tests read this table. tests/targets.rs runs each command: exit code 2, and a message that holds `says`. A unit test
//! of src/command.rs walks the definitions of the arguments: one that takes a value is in [`TARGETS`] or in [`NO_TARGETS`].

/// One argument of one verb.
pub struct Target {
    /// The verb and the argument's name in the definitions: `["trace migrations", "pid"]`.
    pub of: [&'static str; 2],
    /// What is typed.
    pub words: &'static str,
    /// What the message has to name: the target, and what there is.
    pub says: &'static [&'static str],
}

const fn target(
    of: [&'static str; 2],
    words: &'static str,
    says: &'static [&'static str],
) -> Target {
    Target { of, words, says }
}

/// `{tree}` is the folder of a recorded machine, `{store}` a store without runs.
pub const TARGETS: &[Target] = &[
    target(
        ["checkup", "source"],
        "checkup --source two-nod",
        &["two-nod", "did you mean \"two-node\"?"],
    ),
    target(
        ["checkup", "root"],
        "checkup --root /nonexistent",
        &["/nonexistent"],
    ),
    target(
        ["checkup", "pid"],
        "checkup --probe 0 --no-html --pid 99999999",
        &["process 99999999"],
    ),
    target(
        ["topo", "source"],
        "topo --source kunpen",
        &["kunpen", "did you mean \"kunpeng\"?"],
    ),
    target(
        ["topo", "root"],
        "topo --root /nonexistent",
        &["/nonexistent"],
    ),
    target(
        ["topo", "pid"],
        "topo --pid 99999999",
        &["process 99999999"],
    ),
    target(
        ["topo", "pid"],
        "topo --pid 99999999 --format json",
        &["process 99999999"],
    ),
    target(
        ["topo", "pid"],
        "topo --source kunpeng --pid 1",
        &["process 1", "kunpeng"],
    ),
    target(
        ["tasks", "source"],
        "tasks --source nope",
        &["nope", "two-node"],
    ),
    target(
        ["tasks", "root"],
        "tasks --root /nonexistent",
        &["/nonexistent"],
    ),
    target(
        ["tasks", "pid"],
        "tasks --pid 99999999",
        &["process 99999999"],
    ),
    target(
        ["tasks", "user"],
        "tasks --user no:such",
        &["user \"no:such\""],
    ),
    target(
        ["top", "pid"],
        "top --batch --pid 99999999",
        &["process 99999999"],
    ),
    target(
        ["top", "user"],
        "top --batch --user no:such",
        &["user \"no:such\""],
    ),
    target(
        ["top", "node"],
        "top --batch --node 999",
        &["node 999", "there are: 0"],
    ),
    target(
        ["tasks", "device"],
        "tasks --device nvme99",
        &["nvme99", "there are"],
    ),
    target(
        ["tasks", "node"],
        "tasks --node 999",
        &["node 999", "there are: 0"],
    ),
    target(
        ["snapshot", "source"],
        "snapshot -o /dev/null --source nope",
        &["nope", "two-node"],
    ),
    target(
        ["snapshot", "root"],
        "snapshot -o /dev/null --root /nonexistent",
        &["/nonexistent"],
    ),
    target(
        ["snapshot", "pid"],
        "snapshot -o /dev/null --pid 99999999",
        &["process 99999999"],
    ),
    target(
        ["audit", "source"],
        "audit --source nope",
        &["nope", "two-node"],
    ),
    target(
        ["audit", "root"],
        "audit --root /nonexistent",
        &["/nonexistent"],
    ),
    target(
        ["audit", "pid"],
        "audit --pid 99999999",
        &["process 99999999"],
    ),
    target(["audit", "pid"], "audit --pid 0", &["--pid", "above 0"]),
    target(
        ["audit", "pid"],
        "audit --root {tree} --pid 99999999",
        &["process 99999999"],
    ),
    target(
        ["explain", "rule"],
        "explain nope",
        &["\"nope\"", "interrupt-far", "input-contradiction"],
    ),
    target(
        ["explain", "rule"],
        "explain interupt-far",
        &["did you mean \"interrupt-far\"?"],
    ),
    target(
        ["spread", "source"],
        "spread --count 1 --source nope",
        &["nope", "two-node"],
    ),
    target(
        ["spread", "root"],
        "spread --count 1 --root /nonexistent",
        &["/nonexistent"],
    ),
    target(
        ["spread", "node"],
        "spread --source kunpeng --count 1 --node 9",
        &["node 9", "0-3"],
    ),
    target(
        ["spread", "count"],
        "spread --source kunpeng --count 0",
        &["--count", "1 to"],
    ),
    target(
        ["spread", "allowed"],
        "spread --source kunpeng --count 1 --allowed 0,500",
        &["CPU 500", "0-95"],
    ),
    target(
        ["path", "source"],
        "path --cpu 0 --subsystem nvme-subsys0 --source nope",
        &["nope", "two-node"],
    ),
    target(
        ["path", "root"],
        "path --cpu 0 --subsystem nvme-subsys0 --root /nonexistent",
        &["/nonexistent"],
    ),
    target(
        ["path", "cpu"],
        "path --source nvme-two-controllers --cpu 999 --subsystem nvme-subsys0",
        &["CPU 999", "0-7"],
    ),
    target(
        ["path", "subsystem"],
        "path --source nvme-two-controllers --cpu 0 --subsystem nvme-subsy0",
        &["nvme-subsy0", "did you mean \"nvme-subsys0\"?"],
    ),
    target(
        ["plan", "source"],
        "plan --source nope",
        &["nope", "two-node"],
    ),
    target(
        ["plan", "root"],
        "plan --root /nonexistent",
        &["/nonexistent"],
    ),
    target(
        ["plan", "rules"],
        "plan --rule nope",
        &["\"nope\"", "interrupt-far", "input-contradiction"],
    ),
    target(
        ["plan", "rules"],
        "plan --rule interupt-far",
        &["did you mean \"interrupt-far\"?"],
    ),
    target(
        ["plan", "devices"],
        "plan --root {tree} --device 0000:99:00.0",
        &["0000:99:00.0", "there are: 0000:"],
    ),
    target(
        ["plan", "devices"],
        "plan --source kunpeng --device 0000:99:00.0",
        &["0000:99:00.0"],
    ),
    target(
        ["plan", "not_devices"],
        "plan --root {tree} --not-device 0000:99:00.0",
        &["0000:99:00.0", "there are: "],
    ),
    target(
        ["plan", "task_memory"],
        "plan --task-memory 99999999 --to-node 0 --from-node 0",
        &["process 99999999"],
    ),
    target(
        ["plan", "to_node"],
        "plan --task-memory 2 --to-node 4711",
        &["node 4711", "nodes with memory: 0"],
    ),
    target(
        ["plan", "from_node"],
        "plan --task-memory 2 --to-node 0 --from-node 4711",
        &["node 4711", "nodes with memory: 0"],
    ),
    target(
        ["plan", "task_memory"],
        "plan --source kunpeng --task-memory 2 --to-node 0",
        &["for the running system"],
    ),
    target(
        ["plan", "group_memory"],
        "plan --group-memory nosuch.service --to-node 0",
        &["\"nosuch.service\""],
    ),
    target(
        ["plan", "cpuset_mems"],
        "plan --root {tree} --cpuset-mems nosuch.service=0",
        &["\"nosuch.service\""],
    ),
    target(
        ["plan", "bind_unit"],
        "plan --bind-unit nosuch.service --to-node 0 --format systemd",
        &["no unit nosuch.service"],
    ),
    target(
        ["apply", "group_memory"],
        "apply --dry-run --group-memory nosuch.service --to-node 0",
        &["\"nosuch.service\""],
    ),
    target(
        ["apply", "cpuset_mems"],
        "apply --dry-run --root {tree} --cpuset-mems nosuch.service=0",
        &["\"nosuch.service\""],
    ),
    target(
        ["apply", "bind_unit"],
        "apply --bind-unit nosuch.service --to-node 0",
        &["unit nosuch.service"],
    ),
    target(
        ["apply", "task_memory"],
        "apply --dry-run --task-memory 99999999 --to-node 0 --from-node 0",
        &["process 99999999"],
    ),
    target(
        ["apply", "to_node"],
        "apply --dry-run --task-memory 2 --to-node 4711",
        &["node 4711", "nodes with memory: 0"],
    ),
    target(
        ["apply", "from_node"],
        "apply --dry-run --task-memory 2 --to-node 0 --from-node 4711",
        &["node 4711", "nodes with memory: 0"],
    ),
    target(
        ["apply", "file"],
        "apply /nonexistent/plan.json",
        &["/nonexistent/plan.json"],
    ),
    target(
        ["apply", "root"],
        "apply --dry-run --root /nonexistent",
        &["/nonexistent"],
    ),
    target(
        ["apply", "rules"],
        "apply --dry-run --root {tree} --rule nope",
        &["\"nope\"", "interrupt-far"],
    ),
    target(
        ["apply", "devices"],
        "apply --dry-run --root {tree} --device 0000:99:00.0",
        &["0000:99:00.0", "there are: "],
    ),
    target(
        ["apply", "not_devices"],
        "apply --dry-run --root {tree} --not-device 0000:99:00.0",
        &["0000:99:00.0", "there are: "],
    ),
    target(
        ["rollback", "root"],
        "rollback --root /nonexistent",
        &["/nonexistent"],
    ),
    target(
        ["rollback", "state"],
        "rollback --state /nonexistent",
        &["/nonexistent"],
    ),
    target(
        ["rollback", "change"],
        "rollback --root {tree} --change 999",
        &["change set 999", "nearfar history"],
    ),
    target(
        ["history", "root"],
        "history --root /nonexistent",
        &["/nonexistent"],
    ),
    target(
        ["history", "state"],
        "history --state /nonexistent",
        &["/nonexistent"],
    ),
    target(
        ["prefer", "node"],
        "prefer --node 999 --pid 1",
        &["node 999", "online are 0"],
    ),
    target(
        ["prefer", "near"],
        "prefer --near nosuch0 --pid 1",
        &["nosuch0"],
    ),
    target(
        ["prefer", "pid"],
        "prefer --node 0 --pid 99999999",
        &["process 99999999"],
    ),
    target(
        ["prefer", "cgroup"],
        "prefer --node 0 --cgroup no-such-group",
        &["no-such-group"],
    ),
    target(
        ["prefer service", "config"],
        "prefer service --config /nonexistent.toml",
        &["/nonexistent.toml"],
    ),
    target(
        ["prefer service", "config"],
        "prefer service --check --config /nonexistent.toml",
        &["/nonexistent.toml"],
    ),
    target(
        ["bench latency", "from"],
        "bench latency --from 999",
        &["node 999", "online are 0"],
    ),
    target(
        ["bench latency", "to"],
        "bench latency --to 0,999",
        &["node 999", "online are 0"],
    ),
    target(
        ["bench probe", "factor"],
        "bench probe --no-store --factor preferred_node=999",
        &["preferred_node=999"],
    ),
    target(
        ["bench probe", "factor"],
        "bench probe --no-store --factor memory_node=999",
        &["memory_node=999"],
    ),
    target(
        ["bench probe", "factor"],
        "bench probe --no-store --factor cpu_node=999",
        &["cpu_node=999"],
    ),
    target(
        ["bench probe", "cell"],
        "bench probe --no-store --cell preferred_node=999,numa_balancing=1,memory_node=0,cpu_node=0",
        &["999"],
    ),
    target(
        ["bench tags", "factor"],
        "bench tags --no-store --factor policy=stok",
        &["stock, limit"],
    ),
    target(
        ["bench tags", "cell"],
        "bench tags --no-store --cell policy=auto,distance=alone,depth=9,completion=nobody",
        &["completion has no level \"nobody\": there are: submitter, any, device"],
    ),
    target(
        ["bench scale", "factor"],
        "bench scale --no-store --factor workload=tlb",
        &["tlb_flush", "page_fault"],
    ),
    target(
        ["bench scale", "cell"],
        "bench scale --no-store --cell workload=tlb_flush,tasks=0",
        &["tasks", "1"],
    ),
    target(
        ["bench scale", "guest"],
        "bench scale --factor tasks=1 --guest machine=nope",
        &["nope"],
    ),
    target(
        ["bench tags", "device-node"],
        "bench tags --no-store --device-node 999",
        &["node 999", "nodes with one: 0"],
    ),
    target(
        ["bench rps", "factor"],
        "bench rps --no-store --factor server_node=cart",
        &["card, adjacent, together"],
    ),
    target(
        ["bench rps", "cell"],
        "bench rps --no-store --cell server_node=card,interrupts=kept,receive=keep",
        &["interrupts has no level \"kept\": did you mean \"keep\"?"],
    ),
    target(
        ["bench rps", "device"],
        "bench rps --no-store --device nope --client-device eth1",
        &["--device nope", "no network card"],
    ),
    target(
        ["bench rps", "client-device"],
        "bench rps --no-store --client-device nope",
        &["--client-device nope", "it takes --device as well"],
    ),
    target(
        ["bench rps", "server-nodes"],
        "bench rps --no-store --server-nodes 999",
        &["node 999", "nodes with one: 0"],
    ),
    target(
        ["bench rps", "client-cpus"],
        "bench rps --no-store --client-cpus 9999",
        &["--client-cpus 9999", "this process may use"],
    ),
    target(
        ["bench rps", "client-command"],
        "bench rps --no-store --client-command=wrk",
        &["wrk", "--client-rate is missing"],
    ),
    target(
        ["bench rps", "client-rate"],
        "bench rps --no-store --client-rate=([0-9]+)",
        &["([0-9]+)", "it takes --client-command"],
    ),
    target(
        ["bench rps", "guest"],
        "bench rps --guest machine=nope",
        &["nope", "two-node"],
    ),
    target(
        ["bench io", "cell"],
        "bench io --no-store --null 0 --cell pattern=reed",
        &["pattern has no level \"reed\": did you mean \"read\"? there are: randread"],
    ),
    target(
        ["bench io", "device"],
        "bench io --no-store --device /dev/nope",
        &["--device /dev/nope", "no such device"],
    ),
    target(
        ["bench io", "file"],
        "bench io --no-store --file /nonexistent",
        &["/nonexistent"],
    ),
    target(
        ["bench io", "null"],
        "bench io --no-store --null 999",
        &["--null: node 999 is not online"],
    ),
    target(
        ["bench io", "device-node"],
        "bench io --no-store --file / --device-node 999",
        &["--device-node: node 999 is not online"],
    ),
    target(
        ["bench io", "destroy"],
        "bench io --no-store --file / --destroy /dev/null",
        &["--destroy /dev/null", "what is measured is /"],
    ),
    target(
        ["bench io", "guest"],
        "bench io --null 0 --guest machine=nope",
        &["nope", "two-node"],
    ),
    target(
        ["bench mock", "factor"],
        "bench mock --no-store --factor speed=fats",
        &["fast, slow"],
    ),
    target(
        ["bench mock", "cell"],
        "bench mock --no-store --cell speed=fast,zone_reclaim=9",
        &["zone_reclaim has no level \"9\": there are: keep, 0, 1"],
    ),
    target(
        ["trace nvme", "subsystem"],
        "trace nvme --seconds 0.1 --subsystem nope",
        &["\"nope\""],
    ),
    target(
        ["trace migrations", "pid"],
        "trace migrations --seconds 0.1 --pid 99999999",
        &["process 99999999"],
    ),
    target(
        ["trace migrations", "cgroup"],
        "trace migrations --seconds 0.1 --cgroup no-such-group",
        &["no-such-group"],
    ),
    target(
        ["runs list", "experiment"],
        "runs list --experiment prob",
        &["\"prob\"", "did you mean \"probe\"?"],
    ),
    target(
        ["runs list", "experiment"],
        "runs list --store {store} --experiment prob",
        &["did you mean \"probe\"?"],
    ),
    target(
        ["runs list", "store"],
        "runs list --store /nonexistent/runs.db",
        &["/nonexistent/runs.db"],
    ),
    target(
        ["bench io", "resume"],
        "bench io --resume=99 --store {store}",
        &["nothing to resume", "of io with the number 99"],
    ),
    target(
        ["bench mock", "resume"],
        "bench mock --resume=99 --store {store}",
        &["nothing to resume", "of mock with the number 99"],
    ),
    target(
        ["bench probe", "resume"],
        "bench probe --resume=99 --store {store}",
        &["nothing to resume", "of probe with the number 99"],
    ),
    target(
        ["bench rps", "resume"],
        "bench rps --resume=99 --store {store}",
        &["nothing to resume", "of rps with the number 99"],
    ),
    target(
        ["bench scale", "resume"],
        "bench scale --resume=99 --store {store}",
        &["nothing to resume", "of scale with the number 99"],
    ),
    target(
        ["bench tags", "resume"],
        "bench tags --resume=99 --store {store}",
        &["nothing to resume", "of tags with the number 99"],
    ),
    target(
        ["runs show", "run"],
        "runs show --store {store} 99",
        &["run 99", "nearfar runs list"],
    ),
    target(
        ["runs show", "run"],
        "runs show --store {store} last",
        &["no run"],
    ),
    target(
        ["runs show", "published"],
        "runs show --store {store} 1 --published /nonexistent.csv",
        &["/nonexistent.csv"],
    ),
    target(
        ["runs show", "store"],
        "runs show --store /nonexistent/runs.db 1",
        &["/nonexistent/runs.db"],
    ),
    target(
        ["runs export", "runs"],
        "runs export --store {store} 99",
        &["run 99", "nearfar runs list"],
    ),
    target(
        ["runs export", "store"],
        "runs export --store /nonexistent/runs.db 1",
        &["/nonexistent/runs.db"],
    ),
    target(
        ["runs import", "files"],
        "runs import --store {store} /nonexistent.json",
        &["/nonexistent.json"],
    ),
    target(
        ["compare", "sides"],
        "compare --store {store} 98 99",
        &["run 98", "nearfar runs list"],
    ),
    target(
        ["compare", "sides"],
        "compare --store {store} before after",
        &["\"before\"", "nearfar runs list"],
    ),
    target(
        ["compare", "sides"],
        "compare --store {store} /nonexistent.csv x.csv",
        &["/nonexistent.csv", "no such file"],
    ),
    target(
        ["compare", "store"],
        "compare --store /nonexistent/runs.db 1 2",
        &["/nonexistent/runs.db"],
    ),
    target(
        ["runs rm", "runs"],
        "runs rm --store {store} 99",
        &["run 99", "nearfar runs list"],
    ),
    target(
        ["runs rm", "store"],
        "runs rm --store /nonexistent/runs.db 1",
        &["/nonexistent/runs.db"],
    ),
    target(
        ["lab run", "machine"],
        "lab run --machine two-nod -- true",
        &["two-nod", "did you mean \"two-node\"?"],
    ),
    target(
        ["lab run", "arch"],
        "lab run --arch vax -- true",
        &["vax", "arm64"],
    ),
    target(
        ["lab run", "kernel"],
        "lab run --kernel 9.9 -- true",
        &["9.9", "nearfar lab kernels get"],
    ),
    target(
        ["lab run", "kernel"],
        "lab run --kernel /nonexistent -- true",
        &["/nonexistent"],
    ),
    target(
        ["lab run", "results"],
        "lab run --results /nonexistent -- true",
        &["/nonexistent"],
    ),
    target(
        ["lab shell", "machine"],
        "lab shell --machine nope",
        &["nope", "two-node"],
    ),
    target(
        ["lab shell", "arch"],
        "lab shell --arch vax",
        &["vax", "arm64"],
    ),
    target(["lab shell", "kernel"], "lab shell --kernel 9.9", &["9.9"]),
    target(
        ["lab shell", "results"],
        "lab shell --results /nonexistent",
        &["/nonexistent"],
    ),
    target(
        ["lab kernels get", "series"],
        "lab kernels get next",
        &["next", "6.12"],
    ),
    target(
        ["lab kernels get", "arch"],
        "lab kernels get 6.12 --arch vax",
        &["vax", "arm64"],
    ),
    target(
        ["lab kernels path", "kernel"],
        "lab kernels path 9.9",
        &["9.9", "nearfar lab kernels get"],
    ),
    target(
        ["lab kernels path", "arch"],
        "lab kernels path 6.12 --arch vax",
        &["vax", "arm64"],
    ),
    target(
        ["lab cache clear", "kinds"],
        "lab cache clear kernel",
        &["kernel", "kernels"],
    ),
    target(
        ["case", "number"],
        "case 9",
        &["no case 9", "1, 2, 3, 4, 5"],
    ),
    target(
        ["case", "store"],
        "case 5 --here --store /proc/version",
        &["/proc/version"],
    ),
    target(
        ["ab", "a"],
        "ab --a machine=nope --b kernel=6.12 -- true",
        &["nope", "two-node"],
    ),
    target(
        ["ab", "b"],
        "ab --a machine=two-node --b machine=nope -- true",
        &["nope", "two-node"],
    ),
    target(
        ["ab", "machine"],
        "ab --machine nope --a kernel=6.1 --b kernel=6.12 -- true",
        &["nope", "two-node"],
    ),
    target(
        ["bench mock", "guest"],
        "bench mock --guest machine=nope",
        &["nope", "two-node"],
    ),
    target(
        ["bench tags", "guest"],
        "bench tags --guest machine=nope",
        &["nope", "two-node"],
    ),
    target(
        ["bench probe", "guest"],
        "bench probe --guest machine=nope",
        &["nope", "nearfar lab run -- nearfar bench probe"],
    ),
    target(
        ["ab", "arch"],
        "ab --arch vax --a kernel=6.1 --b kernel=6.12 -- true",
        &["vax", "arm64"],
    ),
    target(
        ["ab", "kernel"],
        "ab --kernel 9.9 --a append=x --b append=y -- true",
        &["9.9"],
    ),
    target(
        ["ab", "results"],
        "ab --results /nonexistent --a append=x --b append=y -- true",
        &["/nonexistent"],
    ),
    target(
        ["completions", "shell"],
        "completions bsh",
        &["bsh", "bash"],
    ),
];

/// Arguments that name nothing which has to be there: sizes, times, formats, places that are written to, free text. By
/// themselves, or with their verb.
pub const NO_TARGETS: &[&str] = &[
    "accel",
    "top",
    "min_memory",
    "group",
    "name",
    "across",
    "append",
    "batch",
    "boot_timeout",
    "budget",
    "buffer",
    "bytes",
    "color",
    "command",
    "command_timeout",
    "connections",
    "count",
    "counts",
    "rows",
    "sort",
    "options",
    "status",
    "delay",
    "directory",
    "factor",
    "fail_on",
    "fake",
    "format",
    "html",
    "huge",
    "iops",
    "iopolicy",
    "label",
    "limit",
    "load",
    "margin",
    "migration-cost-ns",
    "output",
    "pattern",
    "policy",
    "possible-cpus",
    "probe",
    "queue-memory",
    "rate",
    "request-bytes",
    "samples",
    "scale",
    "scan-delay-ms",
    "scan-period-ms",
    "seconds",
    "seed",
    "server-command",
    "servers",
    "service-us",
    "since",
    "size",
    "slow-ms",
    "steps",
    "svg",
    "tags",
    "threads",
    "through",
    "value",
    "value-bytes",
    "wait",
    "warm-up",
    "what",
    "workers",
    // The same word names a target elsewhere. Here: how often each side runs, directories and files that are made, a policy.
    "ab runs",
    "ab store",
    "apply state",
    "bench latency store",
    "exporter listen",
    "exporter service",
    "exporter textfile",
    "bench mock store",
    "checkup store",
    "bench probe store",
    "bench rps store",
    "bench scale store",
    "bench scale sweep",
    "bench scale trace-seconds",
    "bench scale profile-frequency",
    "bench scale memory-size",
    "bench tags store",
    "bench io store",
    "bench io ramp-seconds",
    "bench io jobs",
    "bench io engine",
    "bench io trace",
    "bench io null-queues",
    "bench io null-delay-us",
    // Names of what a run has; tests/compare.rs has runs.
    "compare baseline",
    "compare by",
    "compare metric",
    "prefer memory",
    "runs import store",
];

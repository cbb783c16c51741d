//! A kernel of the distribution's source, built and booted.

use std::path::Path;

use crate::guests;
use crate::harness::Sandbox;

/// What experiments and verbs read in a guest, one path a line.
const NEEDED: [&str; 9] = [
    "/sys/devices/system/node/node1",
    "/proc/sys/kernel/numa_balancing",
    "/proc/self/numa_maps",
    "/sys/kernel/mm/damon/admin",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/kernel/tracing/events/lock/contention_begin",
    "/sys/kernel/tracing/events/migrate/mm_migrate_pages",
    "/sys/module/nvme_core/parameters/iopolicy",
    "/sys/fs/cgroup/memory.numa_stat",
];

#[test]
fn a_kernel_of_the_distributions_source_is_built_and_has_what_experiments_need() {
    if guests::skipped() {
        return;
    }
    if std::env::var_os("NEARFAR_NETWORK_TESTS").is_none_or(|value| value != "1") {
        return println!(
            "skipped: network: fetches from the network, which NEARFAR_NETWORK_TESTS=1 would allow"
        );
    }
    if !Path::new("/usr/include/libelf.h").exists() {
        return println!("skipped: tools: no headers of libelf (libelf-dev)");
    }
    let sandbox = Sandbox::new();
    let tag = sandbox.nearfar("lab kernels source 6.12 linux".split(' '));
    let tag = tag.run().succeeded().text();
    assert!(tag.starts_with("v6.12."), "{tag}");
    sandbox.write("more.config", "CONFIG_KASAN_STACK=y\n");
    let refused = "lab kernels get git:HEAD --tree linux --config more.config";
    let refused = sandbox.nearfar(refused.split(' ')).run().exited(2).errors();
    assert!(
        refused.contains("CONFIG_KASAN_STACK=y has no effect"),
        "{refused}"
    );
    let get = format!("lab kernels get git:{} --tree linux", tag.trim());
    let image = sandbox.nearfar(get.split(' ')).run().succeeded().text();
    let look = format!("uname -r; ls -d {}", NEEDED.join(" "));
    let run = [
        "lab",
        "run",
        "--kernel",
        image.trim(),
        "--",
        "sh",
        "-c",
        &look,
    ];
    let shown = sandbox.nearfar(run).run().text();
    let release = format!("6.12.{}", &tag.trim()[6..]);
    assert!(shown.starts_with(&release), "{shown}");
    for path in NEEDED {
        assert!(shown.lines().any(|line| line == path), "no {path}: {shown}");
    }
}

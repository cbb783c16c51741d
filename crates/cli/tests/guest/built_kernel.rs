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
fn a_kernel_of_the_distributions_source_has_what_experiments_need_and_a_commit_after_it_is_found() {
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
    let cards = "readlink /sys/class/net/eth0/device /sys/class/net/eth1/device";
    let look = format!("uname -r; ls -d {}; {cards}", NEEDED.join(" "));
    let run = [
        "lab",
        "run",
        "--machine=cards-back-to-back",
        "--scale=cpus=1,memory=512M",
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
    // The first card by address is the first by name, as with drivers that are modules.
    let cards = shown.lines().filter(|line| line.ends_with("1:00.0"));
    let buses = Vec::from_iter(cards.map(|line| line.rsplit('/').next().unwrap()));
    assert_eq!(buses, ["0000:21:00.0", "0000:41:00.0"], "{shown}");
    // Four more commits, the third of which changes what the command reads.
    let commit = |number: u32, file: &str, from: &str, to: &str| {
        let path = format!("linux/{file}");
        let text = std::fs::read_to_string(sandbox.file(&path)).unwrap();
        assert!(text.contains(from), "{file} has no {from}");
        sandbox.write(&path, text.replacen(from, to, 1));
        let message = format!("commit {number}");
        let words = [
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@b",
            "commit",
            "-qam",
            &message,
        ];
        let git = std::process::Command::new("git")
            .arg("-C")
            .arg(sandbox.file("linux"))
            .args(words)
            .status();
        assert!(git.unwrap().success(), "{message}");
    };
    let remark = |text: &str| format!("/* {text} */\n");
    for number in [1, 2] {
        commit(
            number,
            "mm/mmzone.c",
            "#include",
            &(remark("a remark") + "#include"),
        );
    }
    let ratio = "dirty_background_ratio = ";
    commit(
        3,
        "mm/page-writeback.c",
        &format!("{ratio}10"),
        &format!("{ratio}11"),
    );
    commit(
        4,
        "mm/mmzone.c",
        "#include",
        &(remark("another") + "#include"),
    );
    let script = r#"printf '{"ratio": %s}' $(cat /proc/sys/vm/dirty_background_ratio)"#;
    let bisect = format!(
        "bisect --tree linux --good {} --bad HEAD --value ratio --format json --no-store --scale cpus=1,memory=256M --",
        tag.trim()
    );
    let words = bisect.split(' ').chain(["sh", "-c", script]);
    let found = sandbox.nearfar(words).run().succeeded().json();
    assert_eq!(
        found["conclusion"]["first"]["subject"], "commit 3",
        "{found}"
    );
}

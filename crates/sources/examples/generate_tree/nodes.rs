//! `/sys/devices/system/node`.

use std::fmt::Write as _;
use std::io;

use crate::cpus::sets;
use crate::output::Output;
use crate::shape::Shape;

const ROOT: &str = "sys/devices/system/node";
/// Memory of each node in kilobytes: 64 GiB without what the kernel keeps.
pub const NODE_KILOBYTES: u64 = (64 << 20) - 300_000;

pub fn write(output: &Output, shape: &Shape) -> io::Result<()> {
    let all = format!("0-{}", shape.nodes - 1);
    for name in [
        "possible",
        "online",
        "has_cpu",
        "has_memory",
        "has_normal_memory",
    ] {
        output.line(&format!("{ROOT}/{name}"), &all)?;
    }
    output.line(&format!("{ROOT}/has_generic_initiator"), "")?;
    for node in 0..shape.nodes {
        let directory = format!("{ROOT}/node{node}");
        let (mask, list) = (
            format!("{directory}/cpumap"),
            format!("{directory}/cpulist"),
        );
        let cpus = shape.cpus_of_node(node);
        sets(output, shape, &mask, &list, &cpus)?;
        for cpu in cpus.iter() {
            output.link(
                &format!("{directory}/cpu{cpu}"),
                &format!("sys/devices/system/cpu/cpu{cpu}"),
            )?;
        }
        let row: Vec<String> = (0..shape.nodes)
            .map(|to| shape.distance(node, to).to_string())
            .collect();
        output.line(&format!("{directory}/distance"), row.join(" "))?;
        output.bytes(&format!("{directory}/meminfo"), meminfo(node).as_bytes())?;
        let numastat = "numa_hit 1000\nnuma_miss 0\nnuma_foreign 0\ninterleave_hit 10\nlocal_node 990\nother_node 10";
        output.line(&format!("{directory}/numastat"), numastat)?;
        for (kilobytes, pages) in [(2048, 1024), (1_048_576, 0)] {
            let pool = format!("{directory}/hugepages/hugepages-{kilobytes}kB");
            for (name, number) in [
                ("nr_hugepages", pages),
                ("free_hugepages", pages / 2),
                ("surplus_hugepages", 0),
            ] {
                output.line(&format!("{pool}/{name}"), number)?;
            }
        }
        let access = format!("{directory}/access1/initiators");
        for (name, figure) in [
            ("read_latency", 90),
            ("write_latency", 90),
            ("read_bandwidth", 200_000),
            ("write_bandwidth", 180_000),
        ] {
            output.line(&format!("{access}/{name}"), figure)?;
        }
        output.link(&format!("{access}/node{node}"), &directory)?;
    }
    Ok(())
}

fn meminfo(node: u32) -> String {
    let mut text = String::new();
    for (key, kilobytes) in [
        ("MemTotal", NODE_KILOBYTES),
        ("MemFree", NODE_KILOBYTES / 2),
        ("MemUsed", NODE_KILOBYTES / 2),
        ("SwapCached", 0),
        ("Active", NODE_KILOBYTES / 4),
        ("Inactive", NODE_KILOBYTES / 8),
        ("FilePages", NODE_KILOBYTES / 8),
        ("AnonPages", NODE_KILOBYTES / 8),
        ("Slab", 300_000),
    ] {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "Node {node} {:<16}{kilobytes:>10} kB",
            format!("{key}:")
        );
    }
    for (key, pages) in [
        ("HugePages_Total", 1024),
        ("HugePages_Free", 512),
        ("HugePages_Surp", 0),
    ] {
        let _ = writeln!(text, "Node {node} {key}: {pages:>5}");
    }
    text
}

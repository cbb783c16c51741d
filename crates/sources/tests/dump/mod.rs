//! A machine as a page of text, for golden files that a person can check.

use std::fmt::Write as _;

use nearfar_machine::{Known, Machine};

/// The nodes, CPUs, caches, distances and warnings of a machine. `place` is cut from paths.
pub fn dump(machine: &Machine, place: &str) -> String {
    let mut text = String::new();
    lines(machine, &mut text).expect("writing to a String cannot fail");
    text.replace(place, "")
}

fn lines(machine: &Machine, out: &mut String) -> std::fmt::Result {
    let origin = &machine.origin;
    writeln!(out, "kernel {}", known(&origin.kernel))?;
    writeln!(out, "architecture {}", known(&origin.architecture))?;
    writeln!(out, "product {}", known(&origin.product))?;
    writeln!(out, "host {:?}", origin.host)?;
    let states = &machine.cpu_states;
    writeln!(
        out,
        "possible {}\nonline {}",
        known(&states.possible),
        states.online
    )?;
    writeln!(
        out,
        "isolated {}\nnohz_full {}",
        known(&states.isolated),
        known(&states.nohz_full)
    )?;
    writeln!(out, "possible nodes {}", known(&machine.possible_nodes))?;
    for node in &machine.nodes {
        let state = if node.online { "online" } else { "offline" };
        write!(out, "node {} {state} cpus [{}]", node.id, node.known_cpus())?;
        match &node.memory {
            Known::Yes(memory) => write!(
                out,
                " memory {} free {:?}",
                memory.total_bytes, memory.free_bytes
            )?,
            Known::No { unknown_reason } => write!(out, " memory unknown: {unknown_reason}")?,
        }
        for pool in node
            .memory
            .get()
            .iter()
            .flat_map(|memory| &memory.huge_pages)
        {
            write!(
                out,
                " huge {}x{} free {:?}",
                pool.total, pool.page_bytes, pool.free
            )?;
        }
        if node.generic_initiator {
            write!(out, " initiator")?;
        }
        if let Some(tier) = node.tier {
            write!(out, " tier {tier}")?;
        }
        writeln!(out)?;
        for access in &node.access {
            let initiators = &access.initiators;
            write!(out, "  access {} from [{initiators}]", access.class)?;
            write!(
                out,
                " latency {:?}/{:?}",
                access.read_latency_ns, access.write_latency_ns
            )?;
            let (read, write) = (
                access.read_bandwidth_mib_per_s,
                access.write_bandwidth_mib_per_s,
            );
            writeln!(out, " bandwidth {read:?}/{write:?}")?;
        }
        for cache in &node.memory_side_caches {
            writeln!(out, "  memory-side cache {cache:?}")?;
        }
    }
    match &machine.distances {
        Known::No { unknown_reason } => writeln!(out, "distances unknown: {unknown_reason}")?,
        Known::Yes(table) => {
            for &from in table.nodes() {
                let entry = |(_, distance): (_, Option<nearfar_machine::Distance>)| {
                    distance.map_or_else(|| "-".to_owned(), |distance| distance.to_string())
                };
                writeln!(
                    out,
                    "distance {from}: {}",
                    table.row(from).map(entry).collect::<Vec<_>>().join(" ")
                )?;
            }
        }
    }
    for cpu in &machine.cpus {
        write!(
            out,
            "cpu {} online {} node {}",
            cpu.id,
            cpu.is_online(),
            or_dash(cpu.node)
        )?;
        write!(
            out,
            " core {} ({})",
            or_dash(cpu.core),
            or_dash(cpu.kernel_core_id)
        )?;
        write!(
            out,
            " package {} ({})",
            or_dash(cpu.package_leader),
            or_dash(cpu.package)
        )?;
        writeln!(out, " capacity {}", or_dash(cpu.capacity))?;
    }
    for cache in &machine.caches {
        let size = known(&cache.size_bytes);
        let (line, ways) = (or_dash(cache.line_bytes), or_dash(cache.ways));
        writeln!(
            out,
            "L{} {:?} [{}] {size} line {line} ways {ways}",
            cache.level, cache.kind, cache.cpus
        )?;
    }
    for warning in &machine.warnings {
        writeln!(out, "! {warning}")?;
    }
    Ok(())
}

fn known<T: std::fmt::Display>(value: &Known<T>) -> String {
    match value {
        Known::Yes(value) => format!("[{value}]"),
        Known::No { unknown_reason } => format!("unknown: {unknown_reason}"),
    }
}

fn or_dash<T: std::fmt::Display>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

//! `/sys/devices/system/cpu`.

use std::io;

use crate::output::Output;
use crate::shape::Shape;
use nearfar_machine::CpuSet;

const ROOT: &str = "sys/devices/system/cpu";

pub fn write(output: &Output, shape: &Shape) -> io::Result<()> {
    let all = format!("0-{}", shape.cpus - 1);
    for name in ["possible", "present", "online"] {
        output.line(&format!("{ROOT}/{name}"), &all)?;
    }
    for name in ["offline", "isolated", "nohz_full"] {
        output.line(&format!("{ROOT}/{name}"), "")?;
    }
    output.line(&format!("{ROOT}/kernel_max"), 8191)?;
    output.line(&format!("{ROOT}/smt/active"), 1)?;
    output.line(&format!("{ROOT}/smt/control"), "on")?;
    // Two halves on two threads: file systems make files side by side.
    let half = shape.cpus / 2;
    std::thread::scope(|scope| {
        let upper = scope.spawn(|| (half..shape.cpus).try_for_each(|cpu| one(output, shape, cpu)));
        (0..half).try_for_each(|cpu| one(output, shape, cpu))?;
        upper
            .join()
            .map_err(|_| io::Error::other("a thread failed"))?
    })
}

fn one(output: &Output, shape: &Shape, cpu: u32) -> io::Result<()> {
    let directory = format!("{ROOT}/cpu{cpu}");
    let node = shape.node_of(cpu);
    if cpu > 0 {
        output.line(&format!("{directory}/online"), 1)?;
    }
    for (name, content) in [
        ("crash_notes", "10007f2a0"),
        ("crash_notes_size", "424"),
        ("uevent", "DRIVER=processor"),
    ] {
        output.line(&format!("{directory}/{name}"), content)?;
    }
    output.link(
        &format!("{directory}/node{node}"),
        &format!("sys/devices/system/node/node{node}"),
    )?;
    topology(output, shape, cpu, &format!("{directory}/topology"))?;
    caches(output, shape, cpu, &format!("{directory}/cache"))
}

fn topology(output: &Output, shape: &Shape, cpu: u32, directory: &str) -> io::Result<()> {
    let (core, package) = (shape.core_of(cpu), shape.node_of(cpu) / 2);
    let package_cores = shape.cores_per_node() * 2;
    let siblings = shape.threads(core, 1);
    let package_cpus = shape.threads(package * package_cores, package_cores);
    for (name, set) in [
        ("core_cpus", &siblings),
        ("thread_siblings", &siblings),
        ("cluster_cpus", &siblings),
        ("core_siblings", &package_cpus),
        ("package_cpus", &package_cpus),
        ("die_cpus", &package_cpus),
    ] {
        sets(
            output,
            shape,
            &format!("{directory}/{name}"),
            &format!("{directory}/{name}_list"),
            set,
        )?;
    }
    for (name, id) in [
        ("core_id", core % package_cores),
        ("cluster_id", core),
        ("die_id", 0),
        ("physical_package_id", package),
    ] {
        output.line(&format!("{directory}/{name}"), id)?;
    }
    output.line(&format!("{directory}/ppin"), "0x0")
}

fn caches(output: &Output, shape: &Shape, cpu: u32, directory: &str) -> io::Result<()> {
    let core = shape.core_of(cpu);
    let own = shape.threads(core, 1);
    let wide = shape.cores_per_node().min(8);
    let shared = shape.threads(core / wide * wide, wide);
    for (index, level, kind, kilobytes, ways, set) in [
        (0, 1, "Data", 32, 8, &own),
        (1, 1, "Instruction", 32, 8, &own),
        (2, 2, "Unified", 1024, 8, &own),
        (3, 3, "Unified", 32768, 16, &shared),
    ] {
        let directory = format!("{directory}/index{index}");
        for (name, number) in [
            ("coherency_line_size", 64),
            ("id", core / if level == 3 { wide } else { 1 }),
            ("level", level),
            ("number_of_sets", kilobytes * 1024 / 64 / ways),
            ("physical_line_partition", 1),
            ("ways_of_associativity", ways),
        ] {
            output.line(&format!("{directory}/{name}"), number)?;
        }
        output.line(&format!("{directory}/size"), format!("{kilobytes}K"))?;
        output.line(&format!("{directory}/type"), kind)?;
        output.bytes(&format!("{directory}/uevent"), b"")?;
        sets(
            output,
            shape,
            &format!("{directory}/shared_cpu_map"),
            &format!("{directory}/shared_cpu_list"),
            set,
        )?;
    }
    Ok(())
}

/// A set in both formats.
pub fn sets(
    output: &Output,
    shape: &Shape,
    mask: &str,
    list: &str,
    set: &CpuSet,
) -> io::Result<()> {
    output.line(mask, set.to_mask(shape.cpus))?;
    output.line(list, set)
}

//! `/proc/irq`, `/sys/kernel/irq` and each device's `msi_irqs`. `/proc/interrupts`, a column for each CPU, would have
//! hundreds of megabytes and is left out.

use std::io;

use crate::devices::Device;
use crate::output::Output;
use crate::shape::Shape;
use nearfar_machine::{CpuId, CpuSet};

/// Where message-signalled interrupts begin.
const FIRST: u32 = 64;

pub fn write(output: &Output, shape: &Shape, devices: &[Device]) -> io::Result<()> {
    let everywhere = CpuSet::range(CpuId(0), CpuId(shape.cpus - 1)).to_mask(shape.cpus);
    output.line("proc/irq/default_smp_affinity", everywhere)?;
    if devices.is_empty() {
        return Ok(());
    }
    for number in 0..shape.interrupts {
        let device = &devices[number as usize % devices.len()];
        let queue = number / devices.len() as u32;
        one(output, shape, FIRST + number, device, queue)?;
    }
    Ok(())
}

fn one(output: &Output, shape: &Shape, irq: u32, device: &Device, queue: u32) -> io::Result<()> {
    let local = shape.cpus_of_node(device.node);
    // One of eight is served by another node's CPU, so that there is something to find.
    let far = irq.is_multiple_of(8);
    let from = if far {
        shape.cpus_of_node((device.node + shape.nodes / 2) % shape.nodes)
    } else {
        local.clone()
    };
    let cpu = from
        .iter()
        .nth(queue as usize % from.len())
        .unwrap_or_default();
    let affinity = CpuSet::single(cpu);
    let proc = format!("proc/irq/{irq}");
    let name = format!("{}{queue}", device.interrupt);
    output.line(
        &format!("{proc}/smp_affinity"),
        affinity.to_mask(shape.cpus),
    )?;
    output.line(&format!("{proc}/smp_affinity_list"), &affinity)?;
    output.line(
        &format!("{proc}/effective_affinity"),
        affinity.to_mask(shape.cpus),
    )?;
    output.line(&format!("{proc}/effective_affinity_list"), &affinity)?;
    output.line(
        &format!("{proc}/affinity_hint"),
        CpuSet::new().to_mask(shape.cpus),
    )?;
    output.line(&format!("{proc}/node"), device.node)?;
    output.line(
        &format!("{proc}/spurious"),
        "count 0\nunhandled 0\nlast_unhandled 0 ms",
    )?;
    output.directory(&format!("{proc}/{name}"))?;
    let sys = format!("sys/kernel/irq/{irq}");
    for (file, content) in [
        ("actions", name.as_str()),
        ("chip_name", "IR-PCI-MSIX"),
        ("name", "edge"),
        ("type", "edge"),
        ("wakeup", "disabled"),
    ] {
        output.line(&format!("{sys}/{file}"), content)?;
    }
    output.line(&format!("{sys}/hwirq"), queue)?;
    let counts: Vec<&str> = (0..shape.cpus)
        .map(|other| if other == cpu.0 { "1000" } else { "0" })
        .collect();
    output.line(&format!("{sys}/per_cpu_count"), counts.join(","))?;
    output.line(&format!("{}/msi_irqs/{irq}", device.directory), "msix")
}

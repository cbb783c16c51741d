//! Makes the sysfs and procfs of a large machine as plain files, for measuring how reading grows.
//!
//! `generate_tree DIR --cpus 4096 --nodes 64 --pci 512 --interrupts 4096` makes DIR, with attributes as a Linux 6.12 on
//! x86 has them. Two threads a core, numbered as firmware does: the second threads come after all first ones.
//!
//! ```text
//! package = 2 nodes,  node = cpus/nodes CPUs,  last-level cache = 8 cores (or the node, when it is smaller)
//! each node has a host bridge (its own PCI domain), below it root ports with NVMe disks and network cards
//! ```

mod cpus;
mod devices;
mod interrupts;
mod nodes;
mod output;
mod procfs;
mod shape;

use std::path::PathBuf;

use output::Output;
use shape::Shape;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut directory = None;
    let mut shape = Shape {
        cpus: 4096,
        nodes: 64,
        pci: 512,
        interrupts: 4096,
    };
    while let Some(argument) = arguments.next() {
        let mut number = || -> Result<u32, Box<dyn std::error::Error>> {
            let value = arguments
                .next()
                .ok_or_else(|| format!("{argument} needs a number"))?;
            Ok(value
                .parse()
                .map_err(|_| format!("{argument} {value}: not a number"))?)
        };
        match argument.as_str() {
            "--cpus" => shape.cpus = number()?,
            "--nodes" => shape.nodes = number()?,
            "--pci" => shape.pci = number()?,
            "--interrupts" => shape.interrupts = number()?,
            _ if argument.starts_with('-') => {
                return Err(format!("unknown option {argument}").into());
            }
            _ => directory = Some(PathBuf::from(argument)),
        }
    }
    let directory = directory
        .ok_or("usage: generate_tree DIR [--cpus N] [--nodes N] [--pci N] [--interrupts N]")?;
    shape.check()?;
    let output = Output::new(directory)?;
    nodes::write(&output, &shape)?;
    cpus::write(&output, &shape)?;
    let devices = devices::write(&output, &shape)?;
    interrupts::write(&output, &shape, &devices)?;
    procfs::write(&output, &shape)?;
    Ok(())
}

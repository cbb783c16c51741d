//! Near and interleaved memory: a table.

use nearfar_bench::interleaved::InterleavedMemory;

use super::loaded::{latency, read};
use crate::document::{Align, Document, Table, Text};
use crate::style::Role::{Heading, Plain};

/// What each placement gives all CPUs, and one of them.
pub(super) fn placements(all: &InterleavedMemory, out: &mut Document) {
    let label = super::label(all.method.emulation.as_ref());
    out.heading("Interleaved memory", label);
    out.remark(format!(
        "what all {} CPUs read together, and ns per load of CPU {} alone, by where their memory is",
        all.readers.len(),
        all.cpu
    ));
    let mut table = Table::new(&[
        ("memory", Align::Left),
        ("read GB/s", Align::Right),
        ("ns", Align::Right),
    ]);
    for it in &all.placements {
        table.row([
            Text::new(Heading, it.memory),
            Text::new(Plain, read(&it.read_bytes_per_s)),
            Text::new(Plain, latency(&it.latency_ns)),
        ]);
    }
    out.table(table);
}

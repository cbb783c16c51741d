//! Kernels for guests: what is cached, what could be.

use nearfar_lab::kernels::Entry;

use crate::document::{Document, Table, cells};
use crate::style::Role::{Dim, Notice, Subject, Warning};

/// One line a kernel; for one that is not cached, the command that fetches it.
pub fn document(kernels: &[Entry]) -> Document {
    let mut table = Table::of(["series", "for", "release", ""]).indent(0);
    for entry in kernels {
        let state = match (&entry.damage, entry.cached) {
            (Some(damage), _) => Warning.text(damage),
            (None, true) => Dim.text(entry.package.as_deref().unwrap_or_default()),
            (None, false) => Notice.text(nearfar_lab::advice::get_kernel(entry.series, entry.arch)),
        };
        let release = entry.release.as_deref().unwrap_or("not cached");
        table.row(cells![
            Subject.text(entry.series),
            entry.arch,
            release,
            state
        ]);
    }
    table.into()
}

//! Kernels for guests: what is cached, what could be.

use nearfar_lab::kernels::Entry;

use crate::layout::{Cell, Grid, Side};
use crate::style::{Role, Style};

/// One line a kernel; for one that is not cached, the command that fetches it.
pub fn table(kernels: &[Entry], style: &Style) -> String {
    let mut grid = Grid::new(&[
        ("series", Side::Left),
        ("for", Side::Left),
        ("release", Side::Left),
        ("", Side::Left),
    ])
    .indent(0);
    for entry in kernels {
        let (role, state) = match (&entry.damage, entry.cached) {
            (Some(damage), _) => (Role::Warning, damage.clone()),
            (None, true) => (Role::Dim, entry.package.clone().unwrap_or_default()),
            (None, false) => (
                Role::Notice,
                nearfar_lab::advice::get_kernel(entry.series, entry.arch),
            ),
        };
        grid.row(vec![
            Cell::new(Role::Subject, entry.series.to_string()),
            entry.arch.to_string().into(),
            entry.release.as_deref().unwrap_or("not cached").into(),
            Cell::new(role, state),
        ]);
    }
    grid.render(style)
}

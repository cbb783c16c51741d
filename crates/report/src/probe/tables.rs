//! The two tables: run times, and migrations.

use nearfar_bench::matrix::Row;
use nearfar_machine::Known;

use crate::document::{Align, Table, Text};
use crate::style::Role;

/// The published heads of the columns that name a cell.
pub(super) const KEY: [&str; 5] = ["row", "PNID", "NB", "Mem", "CPU"];

/// The published table's columns, then the median, its interval and the number of samples something was wrong with.
pub(super) fn times(rows: &[Row]) -> Table {
    let columns = [
        ("row", Align::Right),
        ("PNID", Align::Right),
        ("NB", Align::Right),
        ("Mem", Align::Right),
        ("CPU", Align::Right),
        ("avg", Align::Right),
        ("max", Align::Right),
        ("min", Align::Right),
        ("stdev", Align::Right),
        ("median", Align::Right),
        ("95 % interval", Align::Left),
        ("n", Align::Right),
        ("warnings", Align::Right),
        ("failed", Align::Right),
    ];
    let mut table = Table::new(&columns).caption("Run times");
    let digits = digits(rows);
    let seconds = |value: f64| format!("{value:.digits$}");
    for row in rows {
        let mut cells = key(row);
        let Some((moments, figures)) = row.moments.as_ref().zip(row.seconds.as_ref()) else {
            cells.push(Text::new(Role::Warning, "none"));
            cells.extend(vec![Text::default(); 7]);
            cells.push(some(failures(row)));
            table.row(cells);
            continue;
        };
        let interval = figures
            .confidence
            .map(|c| format!("{} to {}", seconds(c.low), seconds(c.high)));
        cells.extend(
            [moments.mean, moments.max, moments.min].map(|value| Text::from(seconds(value))),
        );
        cells.push(moments.stdev.map_or_else(String::new, seconds).into());
        cells.push(Text::new(Role::Subject, seconds(figures.median)));
        cells.push(
            interval
                .unwrap_or_else(|| "from 6 samples on".to_owned())
                .into(),
        );
        cells.push(figures.samples.len().to_string().into());
        cells.push(some(row.with_warnings));
        cells.push(some(failures(row)));
        table.row(cells);
    }
    table
}

/// Medians of the migrations a run, and what goes with them.
pub(super) fn migrations(rows: &[Row]) -> Table {
    let columns = [
        ("row", Align::Right),
        ("PNID", Align::Right),
        ("NB", Align::Right),
        ("Mem", Align::Right),
        ("CPU", Align::Right),
        ("core", Align::Right),
        ("cache", Align::Right),
        ("node", Align::Right),
        ("cross node", Align::Right),
        ("far %", Align::Right),
        ("NB pages", Align::Right),
        ("keeper %", Align::Right),
    ];
    let mut table = Table::new(&columns).caption("Migrations");
    let unknown = || Text::new(Role::Dim, "?");
    for row in rows {
        let mut cells = key(row);
        match &row.migrations {
            Known::Yes(m) => {
                let all = [m.same_core, m.same_cache, m.same_node, m.cross_node];
                cells.extend(all.map(|number| Text::from(number.to_string())));
            }
            Known::No { .. } => cells.extend([unknown(), unknown(), unknown(), unknown()]),
        }
        cells.push(
            row.far_share
                .get()
                .map_or_else(unknown, |share| format!("{:.1}", share * 100.0).into()),
        );
        cells.push(
            row.pages_migrated
                .get()
                .map_or_else(Text::default, |pages| {
                    if *pages > 0.0 {
                        pages.to_string().into()
                    } else {
                        Text::default()
                    }
                }),
        );
        cells.push(row.keeper_cpu_share.map_or_else(Text::default, |share| {
            format!("{:.2}", share * 100.0).into()
        }));
        table.row(cells);
    }
    table
}

/// The columns that name the cell.
pub(super) fn key(row: &Row) -> Vec<Text> {
    let cell = &row.cell;
    let nb = u8::from(cell.policy.numa_balancing);
    let texts = [
        row.row.to_string(),
        cell.preferred_number().to_string(),
        nb.to_string(),
        cell.memory_node.to_string(),
        cell.cpu_node.to_string(),
    ];
    texts.map(Text::from).to_vec()
}

fn failures(row: &Row) -> usize {
    row.failed.iter().map(|failed| failed.samples).sum()
}

/// A number, or nothing for none, so that a column without any is left out.
fn some(number: usize) -> Text {
    if number == 0 {
        Text::default()
    } else {
        Text::new(Role::Warning, number.to_string())
    }
}

/// Decimals with which the shortest run time of the table has three figures and more.
fn digits(rows: &[Row]) -> usize {
    let least = rows
        .iter()
        .filter_map(|row| row.moments.as_ref())
        .map(|m| m.min)
        .fold(f64::INFINITY, f64::min);
    match least {
        _ if least >= 100.0 => 2,
        _ if least >= 1.0 => 3,
        _ if least >= 0.01 => 4,
        _ if least >= 1e-4 => 6,
        _ => 9,
    }
}

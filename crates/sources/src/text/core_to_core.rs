//! `core-to-core-latency --csv`: what a line takes from each CPU to each other.
//!
//! ```text
//! ,,,                          a row a CPU, a column a CPU: nanoseconds one way, below the diagonal
//! 47.8,,,
//! 48.1,47.9,,
//! 140.2,141.0,140.7,
//! ```
//!
//! The table does not say which CPUs share a core, a cache or a node: other sources of the machine do. Nor does it have the CPUs' numbers:
//! they are 0, 1 and so on unless the tool was given others, so the table counts only where it has as many CPUs as the machine.
//!
//! It is a file of its own: where it is pasted into other text, the commas behind a line are not told from that text's.

use nearfar_machine::{CpuId, Machine, Origin, SourceKind, Timing};

use crate::error::Warnings;

/// Reads a table, as far as it is one; `None` for what does not begin like one.
pub(crate) fn parse(text: &str, place: &str) -> Option<Machine> {
    let mut lines = (1..).zip(text.lines());
    let (_, heads) = lines.next()?;
    let columns = heads.len() + 1;
    let is_head = !heads.is_empty() && heads.bytes().all(|byte| byte == b',');
    let mut between_cpus = Vec::new();
    let (mut rows, mut end) = (1, None);
    for (number, line) in lines.filter(|(_, line)| is_head && !line.trim().is_empty()) {
        let Some(row) = row(line, rows, columns) else {
            end = Some(number);
            break;
        };
        let cpu = |number: usize| CpuId(number as u32);
        let pairs = row.into_iter().enumerate();
        between_cpus.extend(pairs.map(|(column, ps)| (cpu(column), cpu(rows), ps)));
        rows += 1;
    }
    if rows == 1 {
        return None;
    }
    let mut warnings = Warnings::about(place);
    if let Some(number) = end.or((rows < columns).then_some(rows)) {
        let message = format!(
            "the table of {columns} CPUs ends after {rows} rows: the next line is not {rows} numbers of nanoseconds and empty fields"
        );
        warnings.note_line(number, message);
    }
    let only = "core-to-core-latency has only what a line takes between CPUs";
    let mut machine = Machine::empty(Origin::new(SourceKind::Text, place), only);
    machine.timing = Some(Timing {
        between_cpus,
        ..Timing::default()
    });
    machine.warnings = warnings.finish();
    Some(machine)
}

/// Picoseconds, of a row of so many numbers and empty fields behind them.
fn row(line: &str, numbers: usize, columns: usize) -> Option<Vec<u32>> {
    let fields: Vec<&str> = line.trim().split(',').collect();
    if fields.len() != columns || numbers >= columns {
        return None;
    }
    let (own, others) = fields.split_at(numbers);
    let row: Option<Vec<u32>> = own.iter().map(|field| picoseconds(field)).collect();
    row.filter(|_| others.iter().all(|field| field.is_empty()))
}

fn picoseconds(text: &str) -> Option<u32> {
    let ns = text.parse().ok();
    let ns = ns.filter(|ns: &f64| (0.001..=1e6).contains(ns))?;
    Some((ns * 1000.0).round() as u32)
}

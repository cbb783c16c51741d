//! The lab's cache: what it holds, what was removed, its limit.

use std::time::SystemTime;

use nearfar_lab::cache::{CacheEntry, Kind, Trimmed};

use crate::amount::{ago, bytes, count};
use crate::layout::{Cell, Grid, Side, paragraph};
use crate::style::{Role, Style};

/// A line an entry, its problem below the table, and the total with the limit. The kernel modules among the unpacked files
/// share a line.
pub fn list(entries: &[CacheEntry], limit_bytes: u64, now: SystemTime, style: &Style) -> String {
    let mut grid = Grid::new(&[
        ("kind", Side::Left),
        ("name", Side::Left),
        ("size", Side::Right),
        ("last used", Side::Right),
    ])
    .indent(0);
    // The sort is stable: within a kind the order stays that of the cache.
    let mut lines = lines_of(entries);
    lines.sort_by_key(|entry| entry.kind);
    for entry in &lines {
        grid.row(vec![
            Cell::new(Role::Dim, entry.kind.name()),
            Cell::new(Role::Subject, &entry.name),
            bytes(entry.bytes).into(),
            ago(now.duration_since(entry.last_used).unwrap_or_default()).into(),
        ]);
    }
    let total = entries
        .iter()
        .fold(0_u64, |sum, entry| sum.saturating_add(entry.bytes));
    let mut out = grid.render(style);
    for entry in entries {
        let Some(problem) = &entry.problem else {
            continue;
        };
        let text = format!("{}: {problem}", entry.name);
        out.push_str(&paragraph(
            style,
            0,
            (Role::Warning, "! "),
            Role::Plain,
            &text,
        ));
    }
    format!("{out}{}\n", of_limit(total, limit_bytes))
}

/// The entries that have a line each, and the modules as one entry.
fn lines_of(entries: &[CacheEntry]) -> Vec<CacheEntry> {
    let (modules, others): (Vec<_>, Vec<_>) = entries.iter().partition(|entry| is_module(entry));
    others
        .into_iter()
        .cloned()
        .chain(together(&modules))
        .collect()
}

fn is_module(entry: &CacheEntry) -> bool {
    entry.kind == Kind::Unpacked && entry.problem.is_none() && entry.name.contains(".ko")
}

/// Several entries as one; `None` for none.
fn together(entries: &[&CacheEntry]) -> Option<CacheEntry> {
    let newest = entries.iter().max_by_key(|entry| entry.last_used)?;
    let bytes = entries
        .iter()
        .fold(0_u64, |sum, entry| sum.saturating_add(entry.bytes));
    Some(CacheEntry {
        name: count(entries.len(), "kernel module"),
        bytes,
        ..(*newest).clone()
    })
}

fn of_limit(total_bytes: u64, limit_bytes: u64) -> String {
    let (total, limit) = (bytes(total_bytes), bytes(limit_bytes));
    match total_bytes > limit_bytes {
        true => format!("total {total}, over the limit of {limit}"),
        false => format!("total {total}, limit {limit}"),
    }
}

/// A line for each entry that was removed, or with `is_dry_run` would be, and the sum; one line for all modules.
pub fn removed(entries: &[CacheEntry], is_dry_run: bool, style: &Style) -> String {
    let (remove, free) = if is_dry_run {
        ("would remove", "would free")
    } else {
        ("removed", "freed")
    };
    let mut grid = Grid::new(&[
        ("", Side::Left),
        ("", Side::Left),
        ("", Side::Left),
        ("", Side::Right),
    ])
    .indent(0);
    for entry in &lines_of(entries) {
        grid.row(vec![
            remove.into(),
            Cell::new(Role::Dim, entry.kind.name()),
            Cell::new(Role::Subject, &entry.name),
            bytes(entry.bytes).into(),
        ]);
    }
    let total = entries
        .iter()
        .fold(0_u64, |sum, entry| sum.saturating_add(entry.bytes));
    format!("{}{free} {}\n", grid.render(style), bytes(total))
}

/// What was removed for the limit, and what the cache uses now.
pub fn limit(trimmed: &Trimmed, style: &Style) -> String {
    let mut out = match trimmed.removed.is_empty() {
        true => String::new(),
        false => removed(&trimmed.removed, false, style),
    };
    out.push_str(&format!(
        "{}\n",
        of_limit(trimmed.total_bytes, trimmed.limit_bytes)
    ));
    if trimmed.untrimmed_bytes > trimmed.limit_bytes {
        let fetched = bytes(trimmed.untrimmed_bytes);
        out.push_str(&format!(
            "{fetched} of it are kernels and other fetched files, which only `clear` removes\n"
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn entry(kind: Kind, name: &str, bytes: u64, seconds: u64) -> CacheEntry {
        let last_used = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 - seconds);
        CacheEntry {
            kind,
            name: name.to_owned(),
            path: name.into(),
            bytes,
            last_used,
            problem: None,
        }
    }

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000)
    }

    #[test]
    fn a_line_an_entry_and_one_for_all_modules() {
        let mut damaged = entry(Kind::SavedGuest, "abc\u{1b}[31m", 4096, 100_000);
        damaged.problem = Some("state: No such file".to_owned());
        let entries = [
            entry(
                Kind::SavedGuest,
                "two-node, 4 CPUs on 2 nodes",
                3 << 28,
                190,
            ),
            damaged,
            entry(Kind::Unpacked, "nvme.ko.xz", 1 << 20, 10),
            entry(Kind::Unpacked, "vmlinuz-6.12", 55 << 20, 190),
            entry(Kind::Unpacked, "9p.ko.xz", 1 << 19, 190),
            entry(Kind::Kernel, "6.12 (x86_64)", 120 << 20, 400_000),
        ];
        let text = list(&entries, 8 << 30, now(), &Style::default());
        let wanted = "\
kind         name                            size   last used
saved-guest  two-node, 4 CPUs on 2 nodes  768 MiB   3 min ago
saved-guest  abc\u{fffd}[31m                       4 KiB    27 h ago
unpacked     vmlinuz-6.12                  55 MiB   3 min ago
unpacked     2 kernel modules             1.5 MiB    10 s ago
kernel       6.12 (x86_64)                120 MiB  4 days ago
! abc\u{fffd}[31m: state: No such file
total 945 MiB, limit 8 GiB
";
        assert_eq!(text, wanted);
    }

    #[test]
    fn an_empty_cache_has_a_total() {
        assert_eq!(
            list(&[], 1 << 30, now(), &Style::default()),
            "total 0 B, limit 1 GiB\n"
        );
        assert_eq!(removed(&[], true, &Style::default()), "would free 0 B\n");
    }

    #[test]
    fn kernels_alone_over_the_limit_are_named() {
        let trimmed = Trimmed {
            total_bytes: 3 << 20,
            untrimmed_bytes: 2 << 20,
            limit_bytes: 1 << 20,
            ..Trimmed::default()
        };
        let text = limit(&trimmed, &Style::default());
        assert!(
            text.starts_with("total 3 MiB, over the limit of 1 MiB\n2 MiB of it are kernels"),
            "{text}"
        );
    }
}

//! `lscpu` of util-linux: its summary, and its tables of CPUs (`-e`, `-p`). What `-J` prints is the same in JSON.
//!
//! ```text
//! On-line CPU(s) list:             0-159          summary; a node's CPUs are those that are online
//! NUMA node0 CPU(s):               0-39,80-119
//! CPU NODE SOCKET CORE L1d:L1i:L2:L3 ONLINE       -e; "-" where lscpu does not know
//!   0    0      0    0 0:0:0:0          yes
//! # CPU,Core,Socket,Node,,L1d,L1i,L2,L3           -p
//! 0,0,0,0,,0,0,0,0
//! ```
//!
//! The numbers of cores, sockets and caches are lscpu's own, counted from 0 over the machine.

use std::collections::BTreeMap;

use nearfar_machine::{
    Cache, CacheKind, Cpu, CpuId, CpuSet, Id, IdSet, Known, MAX_NUMBER, Machine, NodeId, NodeSet,
};
use serde_json::Value;

use super::lines::{Line, expression};
use super::{Kind, Reading, Start, first_line, json};
use crate::error::{TextError, excerpt};
use crate::value;

/// One of these columns is in each table.
const COLUMNS: [&str; 3] = ["NODE", "SOCKET", "CORE"];

fn is_head(line: &str) -> bool {
    line.starts_with("CPU,") || COLUMNS.iter().any(|column| line.contains(column))
}

/// The first field of a summary.
const HEADING: &str = "Architecture";

const FIELD: &str = r"(?:^|\W)((?:CPU\(s\)|On-line CPU\(s\) (?:list|mask)|Off-line CPU\(s\) (?:list|mask)|Thread\(s\) per core|Core\(s\) per \w+|Socket\(s\)|NUMA node\(s\)|NUMA node\d+ CPU\(s\)):)(?:\s|$)";

pub(super) const SUMMARY: Kind = Kind {
    name: "lscpu",
    has: "CPUs and the nodes that they are on",
    starts: &[
        Start::before(
            &["Architecture:"],
            r"(?:^|\W)(Architecture:)\s",
            r"^\s*(?:CPU op-mode|Byte Order|CPU\(s\)|Address sizes)",
        ),
        Start::new(&["CPU(s)", "(s) per ", "Socket(s):", "NUMA node"], FIELD),
    ],
    goes_on: r"^[A-Z][\w ()-]*:\s",
    read: read_summary,
};

pub(super) const TABLE: Kind = Kind {
    name: "lscpu -e",
    has: "CPUs, the nodes that they are on, cores, packages and which CPUs share a cache",
    starts: &[
        Start::before(
            &["CPU"],
            r"(?:^|\W)(CPU\s+(?:[A-Z0-9:a-z]+\s+)*(?:NODE|SOCKET|CORE)\b.*)$",
            r"^\s*\d+\s",
        )
        .if_likely(is_head),
        Start::before(&["CPU,"], r"(#?\s*CPU,\w[\w,]*)\s*$", r"^\d+,"),
    ],
    goes_on: r"^\s*\d+(?:\s+(?:-|\d)|,)",
    read: read_table,
};

/// The fields of a summary, the first of each name: those of a core type come again for each type.
fn read_summary(lines: &[Line], reading: &mut Reading) -> Result<(), String> {
    let mut fields: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
    for line in lines {
        let Some((name, value)) = line.text.split_once(':') else {
            continue;
        };
        let name = name.trim();
        let is_second = match name {
            HEADING => reading.is_second_heading(HEADING, line.number),
            _ => is_of_machine(name) && reading.is_second(name, line.number),
        };
        if is_second {
            break;
        }
        fields.entry(name).or_insert((line.number, value.trim()));
    }
    let number = |name: &str| fields.get(name)?.1.parse::<usize>().ok();
    let text = |name: &str| {
        let found = fields.get(name).map(|(_, value)| (*value).to_owned());
        found.filter(|value| !value.is_empty() && value != "-")
    };
    let mut nodes: BTreeMap<NodeId, CpuSet> = BTreeMap::new();
    let mut no_list = None;
    for (name, (line, value)) in &fields {
        let id = name.strip_prefix("NUMA node");
        let id = id.and_then(|name| value::id(name.strip_suffix(" CPU(s)")?));
        let Some(id) = id else {
            continue;
        };
        match set(value) {
            Some(cpus) => drop(nodes.insert(id, cpus)),
            None => {
                let message = format!("{:?} is not a list of CPUs", excerpt(value));
                reading.warnings.note_line(*line, message.clone());
                no_list.get_or_insert(message);
            }
        }
    }
    let listed = |name: &str| fields.get(name).and_then(|(_, value)| set::<CpuId>(value));
    let online = listed("On-line CPU(s) list");
    let offline = listed("Off-line CPU(s) list").unwrap_or_default();
    if online.is_none() && nodes.is_empty() {
        const MISSING: &str = "lscpu's lines with the CPUs (\"On-line CPU(s) list\", \"NUMA node0 CPU(s)\") are missing";
        return Err(no_list.unwrap_or_else(|| MISSING.to_owned()));
    }
    let on_nodes: CpuSet = nodes.values().collect();
    let online = online.unwrap_or_else(|| on_nodes.clone());
    let mut present = online.union(&offline);
    let stray = on_nodes.difference(&present);
    if text("Vendor ID").is_some_and(|vendor| vendor == "IBM/S390") {
        // Its kernel lists all possible CPUs on a node.
        for cpus in nodes.values_mut() {
            *cpus = cpus.intersection(&present);
        }
    } else if !stray.is_empty() {
        reading.warnings.note(format!(
            "lscpu: CPUs {stray} are on a node and not in the list of online CPUs ({online})"
        ));
        present = present.union(&stray);
    }
    let (cpus, ids) = (online.len() + offline.len(), nodes.keys().copied());
    let ids = ids.collect::<NodeSet>().to_string();
    let counted = [
        ("CPU(s)", cpus, "CPUs", online.to_string()),
        ("NUMA node(s)", nodes.len(), "nodes", ids),
    ];
    for (name, found, what, list) in counted {
        if let Some(said) = number(name).filter(|&said| said != found && found > 0) {
            reading.warnings.note_line(
                fields[name].0,
                format!("lscpu says {said} {what}, and its lines list {found} ({list}); the lists were taken"),
            );
        }
    }
    reading.set_nodes(nodes);
    let machine = &mut reading.machine;
    if let Some(architecture) = text("Architecture") {
        machine.origin.architecture = Known::Yes(architecture);
    }
    machine.origin.cpu_model = text("Model name").or_else(|| text("BIOS Model name"));
    let one_thread = number("Thread(s) per core") == Some(1);
    let one_package = number("Socket(s)") == Some(1);
    let first = online.first();
    for id in present.iter() {
        let mut cpu = Cpu::new(id, None);
        if offline.contains(id) {
            cpu.online = Known::Yes(false);
        } else {
            cpu.core = one_thread.then_some(id);
            cpu.package_leader = first.filter(|&first| one_package && first <= id);
        }
        machine.cpus.push(cpu);
    }
    Ok(())
}

/// Whether lscpu prints the field once: it is about the whole machine, or about one node.
fn is_of_machine(name: &str) -> bool {
    name == "CPU(s)"
        || name.starts_with("NUMA node")
        || name.ends_with("CPU(s) list")
        || name.ends_with("CPU(s) mask")
}

/// A list (`0-3,8`) or a mask (`0xff`).
fn set<T: Id>(value: &str) -> Option<IdSet<T>> {
    match value {
        "-" => Some(IdSet::new()),
        mask if mask.starts_with("0x") => IdSet::parse_mask(mask).ok(),
        list => IdSet::parse_list(list).ok(),
    }
}

/// One row of a table, by the names of its columns in capitals.
struct Row<'a> {
    cells: Vec<(&'a str, &'a str)>,
}

impl Row<'_> {
    fn cell(&self, column: &str) -> Option<&str> {
        let mut cells = self.cells.iter();
        let (_, cell) = cells.find(|(name, _)| name.eq_ignore_ascii_case(column))?;
        Some(cell)
    }

    fn number(&self, column: &str) -> Option<u32> {
        let number = self.cell(column)?.parse().ok();
        number.filter(|&number| number <= MAX_NUMBER)
    }
}

fn read_table(lines: &[Line], reading: &mut Reading) -> Result<(), String> {
    let row = expression(r"^\s*\d+\s*(?:[\s,]|$)");
    let mut columns: Vec<&str> = Vec::new();
    let mut separator = ' ';
    let mut rows: BTreeMap<CpuId, Row<'_>> = BTreeMap::new();
    for line in lines {
        let text = line.text.trim().trim_start_matches('#').trim_start();
        if text.starts_with("CPU") && (columns.is_empty() || is_head(text)) {
            if reading.is_second("CPU", line.number) {
                break;
            }
            separator = if text.starts_with("CPU,") { ',' } else { ' ' };
            columns = cells(text, separator);
            continue;
        }
        if columns.is_empty() || !row.is_match(text) {
            continue;
        }
        let cells = columns.iter().copied().zip(cells(text, separator));
        let read = Row {
            cells: cells.flat_map(caches_apart).collect(),
        };
        let Some(cpu) = read.number("CPU").map(CpuId) else {
            continue;
        };
        if let Some(before) = rows.get(&cpu) {
            let differs = |column: &&str| {
                let numbers = before.number(column).zip(read.number(column));
                numbers.is_some_and(|(before, now)| before != now)
            };
            if COLUMNS.iter().any(differs) && reading.is_second("CPU", line.number) {
                break;
            }
            continue;
        }
        rows.insert(cpu, read);
    }
    if rows.is_empty() {
        return Err("lscpu's table has no row of a CPU".to_owned());
    }
    fill(&rows, reading);
    Ok(())
}

fn cells(text: &str, separator: char) -> Vec<&str> {
    match separator {
        ',' => text.split(',').map(str::trim).collect(),
        _ => text.split_whitespace().collect(),
    }
}

/// The column `L1d:L1i:L2:L3` is four.
fn caches_apart<'a>((column, cell): (&'a str, &'a str)) -> Vec<(&'a str, &'a str)> {
    match column.contains(':') {
        true => column.split(':').zip(cell.split(':')).collect(),
        false => vec![(column, cell)],
    }
}

fn fill(rows: &BTreeMap<CpuId, Row<'_>>, reading: &mut Reading) {
    let machine = &mut reading.machine;
    let mut leaders: BTreeMap<(&str, u32, u32), CpuId> = BTreeMap::new();
    let mut caches: BTreeMap<(u32, CacheKind, u32), CpuSet> = BTreeMap::new();
    let mut nodes: BTreeMap<NodeId, CpuSet> = BTreeMap::new();
    for (&id, row) in rows {
        let mut cpu = Cpu::new(id, None);
        let state = row.cell("ONLINE");
        // Translated, but it is "no" or a dash only where the row says nothing else either.
        let is_offline = state.is_some_and(|state| matches!(state, "no" | "N" | "false"))
            || (row.number("CORE").is_none() && row.number("NODE").is_none() && state.is_some());
        cpu.online = Known::Yes(!is_offline);
        let socket = row.number("SOCKET");
        let mut leader = |what, number: Option<u32>| {
            let key = (what, socket.unwrap_or(0), number?);
            Some(*leaders.entry(key).or_insert(id))
        };
        cpu.package_leader = leader("socket", socket);
        cpu.core = leader("core", row.number("CORE"));
        cpu.cluster = leader("cluster", row.number("CLUSTER"));
        cpu.package = socket.map(i64::from);
        if let Some(node) = row.number("NODE") {
            nodes.entry(NodeId(node)).or_default().insert(id);
        }
        for (name, _) in &row.cells {
            if let (Some((level, kind)), Some(number)) = (cache_kind(name), row.number(name)) {
                caches.entry((level, kind, number)).or_default().insert(id);
            }
        }
        machine.cpus.push(cpu);
    }
    let caches = caches.into_iter();
    let caches = caches.map(|((level, kind, _), cpus)| Cache {
        level,
        kind,
        cpus,
        size_bytes: Known::no("the table has no sizes of caches"),
        line_bytes: None,
        ways: None,
    });
    machine.caches = caches.collect();
    Cache::sort(&mut machine.caches);
    reading.set_nodes(nodes);
}

/// `L1d`, `L1i`, `L2`.
fn cache_kind(column: &str) -> Option<(u32, CacheKind)> {
    let name = column.strip_prefix(['L', 'l'])?;
    let (level, letter) = name.split_at_checked(1)?;
    let kind = match letter.to_ascii_lowercase().as_str() {
        "" => CacheKind::Unified,
        "d" => CacheKind::Data,
        "i" => CacheKind::Instruction,
        _ => return None,
    };
    Some((level.parse().ok()?, kind))
}

const NEXT: &str = "copy all of it";

/// Reads the JSON of `lscpu -J`: fields and data, some of them below others.
///
/// # Errors
/// As for the text.
pub(super) fn parse_summary(text: &str, place: &str) -> Result<Machine, TextError> {
    fn fields(value: &Value, number: usize, lines: &mut Vec<Line>) {
        for item in value.as_array().into_iter().flatten() {
            let text = |key: &str| item[key].as_str().unwrap_or_default();
            lines.push(Line {
                number,
                text: format!("{}: {}", text("field").trim_end_matches(':'), text("data")),
            });
            fields(&item["children"], number, lines);
        }
    }
    let mut lines = Vec::new();
    let value = json(text, place, NEXT)?;
    fields(&value["lscpu"], first_line(text), &mut lines);
    super::read_alone(&SUMMARY, &lines, place)
}

/// Reads the JSON of `lscpu -e -J`: an object for each CPU.
///
/// # Errors
/// As for the text.
pub(super) fn parse_table(text: &str, place: &str) -> Result<Machine, TextError> {
    let value = json(text, place, NEXT)?;
    let rows = value["cpus"].as_array().map_or(&[][..], Vec::as_slice);
    let mut columns: Vec<String> = match rows.first() {
        Some(Value::Object(row)) => row.keys().cloned().collect(),
        _ => Vec::new(),
    };
    columns.sort_by_key(|column| column != "cpu");
    let head = columns.join(" ").to_uppercase();
    let cell = |row: &Value, column: &String| match &row[column] {
        Value::String(text) if !text.is_empty() => text.replace(' ', ""),
        Value::Null | Value::String(_) => "-".to_owned(),
        other => other.to_string(),
    };
    let row = |row| {
        let cells = columns.iter().map(|column| cell(row, column));
        cells.collect::<Vec<_>>().join(" ")
    };
    let texts = std::iter::once(head).chain(rows.iter().map(row));
    let number = first_line(text);
    let lines: Vec<Line> = texts.map(|text| Line { number, text }).collect();
    super::read_alone(&TABLE, &lines, place)
}

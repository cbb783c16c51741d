//! Cache lines that went from CPU to CPU: which functions got them, and which lines they were. Of guests of the lab, whose emulation
//! counts each transfer by the instruction and the line; hardware has no such count.
//!
//! ```text
//! host: Transfers, by address ─────────────────────────────┐
//! /proc/kallsyms ──────────► Symbols      functions, data ─┼──► HotLines
//! waits for kernel locks ──► WaitedLocks  if asked for ────┤
//! /proc/PID/maps, events ──► Mapping ──► ELF symbols ──────┘
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{File, OpenOptions};
use std::io::BufReader;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nearfar_machine::{Known, NodeId};
use nearfar_proc::maps::{self, MapsEntry};
use nearfar_proc::tasks;
use object::{Object as _, ObjectSegment as _, ObjectSymbol as _, ReadCache, SymbolKind};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::locks::{LockKind, WaitedLocks};
use crate::session::Mapping;
use crate::symbols::Symbols;

/// Addresses from here on are the kernel's, on x86-64, arm64 and Power (Documentation/arch/x86/x86_64/mm.rst,
/// Documentation/arch/arm64/memory.rst; Power's kernel is at 0xc000000000000000).
const KERNEL: u64 = 1 << 63;
/// What stands for the kernel's file.
pub(crate) const KERNEL_FILE: &str = "[kernel]";
/// Larger files are not read for their symbols.
const LARGEST_FILE: u64 = 4 << 30;
const LINE_BYTES: u64 = 64;
const S_PER_NS: f64 = 1e-9;

/// Transfers of lines by address, as the host of a guest counted them.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct Transfers {
    /// By instruction, those that took longest first; the host leaves off those that took least.
    instructions: Vec<Row>,
    /// By instruction and line: all rows of the lines that took longest.
    lines: Vec<Row>,
    /// Of lines that the host had no room for.
    without_line: Row,
    all: Row,
    lost: u64,
}

/// In JSON the list of these numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(from = "(u64, u64, u32, u64, u64, u64)")]
struct Row {
    instruction: u64,
    line: u64,
    /// The node of the line's memory.
    home: u32,
    same_node: u64,
    other_node: u64,
    ns: u64,
}

/// How many transfers, and what they took.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct TransferSum {
    /// Lines that a CPU of the same node had.
    pub same_node: u64,
    /// Lines that a CPU of another node had.
    pub other_node: u64,
    /// Seconds that all CPUs together waited for them.
    pub wait_s: f64,
}

/// Which functions got lines from other CPUs, and which lines.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct HotLines {
    #[serde(flatten)]
    pub all: TransferSum,
    /// Those of them whose line is unknown: the host has no room for more lines.
    pub without_line: TransferSum,
    /// Transfers that the host had no room to count by address; they are not in the other figures.
    pub lost: u64,
    /// The longest waits first. What the host left off is not there.
    pub functions: Vec<FunctionTransfers>,
    /// As above.
    pub lines: Vec<HotLine>,
    /// Why functions and data of the kernel have no names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_names_reason: Option<String>,
}

/// A function that got lines.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct FunctionTransfers {
    /// Its name; `FILE+0xOFFSET` where the program's file has none, or its address.
    pub name: String,
    /// The program's or library's file, `[kernel]` for the kernel; `None` where it is unknown.
    pub file: Option<String>,
    #[serde(flatten)]
    pub sum: TransferSum,
}

/// A line that CPUs got from each other.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct HotLine {
    /// Its first virtual address, in hexadecimal.
    pub address: String,
    /// Variables of the kernel in it.
    pub variables: Vec<String>,
    /// Kernel locks in it that were waited for, if that was traced; from where, most waits first.
    pub locks: Vec<WaitedLock>,
    /// The node of its memory.
    pub node: NodeId,
    #[serde(flatten)]
    pub sum: TransferSum,
    /// The functions that got it, the longest wait first.
    pub functions: Vec<String>,
}

/// From where a lock is taken.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct WaitedLock {
    pub call_site: String,
    pub kind: LockKind,
}

impl From<(u64, u64, u32, u64, u64, u64)> for Row {
    fn from(numbers: (u64, u64, u32, u64, u64, u64)) -> Self {
        let (instruction, line, home, same_node, other_node, ns) = numbers;
        Self {
            instruction,
            line,
            home,
            same_node,
            other_node,
            ns,
        }
    }
}

impl Row {
    fn sum(&self) -> TransferSum {
        TransferSum {
            same_node: self.same_node,
            other_node: self.other_node,
            wait_s: self.ns as f64 * S_PER_NS,
        }
    }
}

impl TransferSum {
    fn add(&mut self, other: &Self) {
        self.same_node += other.same_node;
        self.other_node += other.other_node;
        self.wait_s += other.wait_s;
    }

    /// All transfers.
    pub fn count(&self) -> u64 {
        self.same_node + self.other_node
    }
}

/// Names for the addresses: the kernel's of its symbols and of `locks`, if these were traced; programs' by what was mapped where.
pub fn answer(
    transfers: &Transfers,
    symbols: &Known<Symbols>,
    mappings: &BTreeSet<Mapping>,
    locks: Option<&WaitedLocks>,
) -> HotLines {
    let instructions = transfers.instructions.iter().chain(&transfers.lines);
    let mut names = Names {
        symbols: symbols.get(),
        mappings,
        of_files: HashMap::new(),
    };
    names.look_up(instructions.map(|row| row.instruction));
    let mut functions = BTreeMap::<(String, Option<String>), TransferSum>::new();
    for row in &transfers.instructions {
        let sum = functions.entry(names.of(row.instruction)).or_default();
        sum.add(&row.sum());
    }
    let mut lines = BTreeMap::<u64, (NodeId, TransferSum, Vec<String>)>::new();
    for row in &transfers.lines {
        let (_, sum, functions) = lines
            .entry(row.line)
            .or_insert_with(|| (NodeId(row.home), TransferSum::default(), Vec::new()));
        sum.add(&row.sum());
        let (name, _) = names.of(row.instruction);
        if !functions.contains(&name) {
            functions.push(name);
        }
    }
    let function = |((name, file), sum)| FunctionTransfers { name, file, sum };
    let mut functions = Vec::from_iter(functions.into_iter().map(function));
    longest_first(&mut functions, |it| it.sum);
    let locks = locks.zip(symbols.get());
    let locks = locks.map_or_else(BTreeMap::new, |(locks, symbols)| locks.call_sites(symbols));
    let locks_in = |line: u64| {
        let locks = locks.range(line..line.saturating_add(LINE_BYTES));
        let sites = locks.flat_map(|(_, sites)| sites.iter().cloned());
        let lock = |(call_site, kind)| WaitedLock { call_site, kind };
        sites.map(lock).collect()
    };
    let line = |(address, (node, sum, functions))| HotLine {
        address: format!("{address:#x}"),
        variables: names.variables(address),
        locks: locks_in(address),
        node,
        sum,
        functions,
    };
    let mut lines = Vec::from_iter(lines.into_iter().map(line));
    longest_first(&mut lines, |it| it.sum);
    HotLines {
        all: transfers.all.sum(),
        without_line: transfers.without_line.sum(),
        lost: transfers.lost,
        functions,
        lines,
        no_names_reason: symbols.unknown_reason().map(ToOwned::to_owned),
    }
}

fn longest_first<T>(rows: &mut [T], sum: impl Fn(&T) -> TransferSum) {
    rows.sort_by(|a, b| sum(b).wait_s.total_cmp(&sum(a).wait_s));
}

/// The names of addresses.
struct Names<'a> {
    symbols: Option<&'a Symbols>,
    mappings: &'a BTreeSet<Mapping>,
    /// Those of programs and libraries.
    of_files: HashMap<u64, (String, Option<String>)>,
}

impl Names<'_> {
    /// Reads the symbols of the files that these addresses are in: each once.
    fn look_up(&mut self, addresses: impl Iterator<Item = u64>) {
        let mut wanted = BTreeMap::<&str, BTreeMap<u64, u64>>::new();
        for address in addresses.filter(|it| *it < KERNEL) {
            let mapped = self.mappings.iter().filter(|it| it.has(address));
            let places = mapped.map(|it| (it.file.as_str(), it.offset(address)));
            // Programs at fixed addresses may be where others are: then it is not known which one it was.
            if let [(file, offset)] = *Vec::from_iter(BTreeSet::from_iter(places)) {
                wanted.entry(file).or_default().insert(offset, address);
            }
        }
        for (file, offsets) in wanted {
            let names = functions_at(Path::new(file), &offsets);
            let short = file.rsplit('/').next().unwrap_or(file);
            for (offset, address) in offsets {
                let name = names.get(&offset).cloned();
                let name = name.unwrap_or_else(|| format!("{short}+{offset:#x}"));
                self.of_files.insert(address, (name, Some(file.to_owned())));
            }
        }
    }

    /// The function of an instruction and its file.
    fn of(&self, address: u64) -> (String, Option<String>) {
        let kernel = || {
            let symbols = self.symbols.filter(|_| address >= KERNEL);
            let name = symbols?.name(address)?.to_owned();
            Some((name, Some(KERNEL_FILE.to_owned())))
        };
        let known = self.of_files.get(&address).cloned().or_else(kernel);
        known.unwrap_or_else(|| (format!("{address:#x}"), None))
    }

    fn variables(&self, line: u64) -> Vec<String> {
        let symbols = self.symbols.filter(|_| line >= KERNEL);
        let variables = symbols.map(|symbols| symbols.variables(line..line + LINE_BYTES));
        variables.unwrap_or_default()
    }
}

/// The functions at offsets of an ELF file. Those that it does not name are left out, and all of them where it cannot be read: it may
/// have gone, or be none.
fn functions_at(file: &Path, offsets: &BTreeMap<u64, u64>) -> BTreeMap<u64, String> {
    let mut names = BTreeMap::new();
    // It may have become a pipe, which is not waited for.
    let without_waiting = OFlags::NONBLOCK.bits().cast_signed();
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(without_waiting)
        .open(file);
    let is_read = |it: &File| {
        let metadata = it.metadata();
        metadata.is_ok_and(|it| it.is_file() && it.len() <= LARGEST_FILE)
    };
    let Some(opened) = opened.ok().filter(is_read) else {
        return names;
    };
    let bytes = ReadCache::new(opened);
    let Ok(elf) = object::File::parse(&bytes) else {
        return names;
    };
    let virtual_address = |offset: u64| {
        let mut segments = elf.segments();
        segments.find_map(|segment| {
            let (start, size) = segment.file_range();
            let inside = offset.checked_sub(start).filter(|at| *at < size)?;
            Some((segment.address() + inside, offset))
        })
    };
    let wanted = BTreeMap::from_iter(offsets.keys().filter_map(|&it| virtual_address(it)));
    for symbol in elf.symbols().chain(elf.dynamic_symbols()) {
        if symbol.kind() != SymbolKind::Text || !symbol.is_definition() {
            continue;
        }
        let end = symbol.address().saturating_add(symbol.size());
        for (_, &offset) in wanted.range(symbol.address()..end) {
            if let Ok(name) = symbol.name() {
                let name = format!("{:#}", rustc_demangle::demangle(name));
                names.entry(offset).or_insert(name);
            }
        }
    }
    names
}

/// What running processes have mapped of programs and libraries now. A process that ends meanwhile, or is another user's, is left out.
pub fn mapped_now() -> BTreeSet<Mapping> {
    let mut all = BTreeSet::new();
    for pid in tasks::processes().unwrap_or_default() {
        let maps = tasks::open(pid, "maps");
        let _ = maps.and_then(|maps| maps::each(BufReader::new(maps), |it| all.extend(code(&it))));
    }
    all
}

/// A mapping of code in a file.
fn code(it: &MapsEntry<'_>) -> Option<Mapping> {
    (it.is_executable && it.name.starts_with(b"/")).then(|| Mapping {
        start: it.addresses.start,
        end: it.addresses.end,
        file_offset: it.offset,
        file: String::from_utf8_lossy(it.name).into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn named_here() {
        std::hint::black_box(());
    }

    #[test]
    fn functions_of_this_program_and_of_the_kernel_have_their_names() {
        let address = named_here as fn() as usize as u64;
        let kernel = KERNEL + 0x10;
        let symbols = Known::Yes(Symbols::parse(
            "8000000000000000 T lru_add\n8000000000000100 T end\n8000000000001008 d lru_lock\n8000000000001020 b other\n\
             8000000000001040 b next\n",
        ));
        let row = |instruction, line, ns| format!("[{instruction},{line},1,1,2,{ns}]");
        let line = KERNEL + 0x1000;
        let rows = [row(kernel, line, 300), row(address, 64, 200)].join(",");
        let all = row(0, 0, 500);
        let transfers = format!(
            r#"{{"instructions":[{rows}],"lines":[{rows}],"all":{all},"without_line":{all},"lost":3}}"#
        );
        let transfers: Transfers = serde_json::from_str(&transfers).unwrap();
        let found = answer(&transfers, &symbols, &mapped_now(), None);
        let names = Vec::from_iter(found.functions.iter().map(|it| it.name.as_str()));
        assert_eq!(names[0], "lru_add");
        assert_eq!(found.functions[0].file.as_deref(), Some(KERNEL_FILE));
        assert!(names[1].ends_with("named_here"), "{names:?}");
        assert_eq!(found.lines[0].variables, ["lru_lock", "other"]);
        assert_eq!(found.lines[0].functions, ["lru_add"]);
        assert_eq!(found.lines[0].node, NodeId(1));
        assert!(found.lines[1].variables.is_empty());
        assert_eq!((found.all.count(), found.lost), (3, 3));
        assert!((found.functions[0].sum.wait_s - 3e-7).abs() < 1e-12);
    }

    #[test]
    fn a_function_where_two_programs_are_has_no_name() {
        let at = |file: &str| Mapping {
            start: 0x40_0000,
            end: 0x50_0000,
            file_offset: 0,
            file: file.to_owned(),
        };
        let row = "[4194320,64,0,1,0,10]";
        let text = format!(
            r#"{{"instructions":[{row}],"lines":[],"all":{row},"without_line":{row},"lost":0}}"#
        );
        let transfers: Transfers = serde_json::from_str(&text).unwrap();
        let symbols = Known::no("hidden");
        let named = |mappings: &[Mapping]| {
            let mappings = mappings.iter().cloned().collect();
            let found = answer(&transfers, &symbols, &mappings, None);
            (
                found.functions[0].name.clone(),
                found.functions[0].file.clone(),
            )
        };
        let one = named(&[at("/nonexistent/a")]);
        assert_eq!(
            one,
            ("a+0x10".to_owned(), Some("/nonexistent/a".to_owned()))
        );
        let both = named(&[at("/nonexistent/a"), at("/nonexistent/b")]);
        assert_eq!(both, ("0x400010".to_owned(), None));
    }

    #[test]
    fn only_code_of_files_is_a_mapping() {
        let mapping = |line: &str| code(&MapsEntry::parse(line.as_bytes()).unwrap());
        let line = "7f00-8f00 r-xp 00001000 fe:01 1234   /usr/lib/a b.so";
        assert_eq!(
            mapping(line),
            Some(Mapping {
                start: 0x7f00,
                end: 0x8f00,
                file_offset: 0x1000,
                file: "/usr/lib/a b.so".to_owned()
            })
        );
        for other in [
            "7f00-8f00 rw-p 00001000 fe:01 1234   /usr/lib/a.so",
            "7f00-8f00 r-xp 00000000 00:00 0   [vdso]",
            "7f00-8f00 r-xp",
        ] {
            assert_eq!(mapping(other), None, "{other}");
        }
    }
}

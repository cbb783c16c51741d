//! hwloc's view: `lstopo-no-graphics` reads a tree when `HWLOC_FSROOT` names it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use nearfar_machine::{CacheKind, CpuSet};
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use super::seen::Seen;

const PROGRAM: &str = "lstopo-no-graphics";

/// Its version, where it is installed.
pub fn version() -> Option<String> {
    let output = Command::new(PROGRAM).arg("--version").output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Reads a tree.
pub fn read(root: &Path) -> Result<Seen, String> {
    let output = Command::new(PROGRAM)
        .args(["--disallowed", "--no-io", "--of", "xml"])
        .env("HWLOC_FSROOT", root)
        .env("HWLOC_THISSYSTEM", "0")
        .env("HWLOC_COMPONENTS", "linux,stop")
        // Without these, nodes of GPUs and nodes that share CPUs are dropped; nearfar shows them.
        .env("HWLOC_KEEP_NVIDIA_GPU_NUMA_NODES", "1")
        .env("HWLOC_DEBUG_ALLOW_OVERLAPPING_NODE_CPUSETS", "2")
        .output()
        .map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!(
            "{}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        ));
    }
    parse(&String::from_utf8_lossy(&output.stdout))
}

fn parse(xml: &str) -> Result<Seen, String> {
    let mut seen = Seen {
        cores: Some(BTreeSet::new()),
        packages: Some(BTreeSet::new()),
        ..Seen::default()
    };
    seen.caches = Some(BTreeSet::new());
    let mut online = CpuSet::new();
    let mut reader = Reader::from_str(xml);
    let mut table = Table::default();
    loop {
        match reader.read_event().map_err(|error| error.to_string())? {
            Event::Start(element) | Event::Empty(element) => match element.name().as_ref() {
                "object" => object(&element, &mut seen, &mut online),
                "distances2" => {
                    table = Table {
                        wanted: attribute(&element, "name").as_deref() == Some("NUMALatency"),
                        ..table
                    }
                }
                name => table.element = name.to_owned(),
            },
            Event::Text(text) if table.wanted => table.text(&text),
            Event::End(element) if element.name().as_ref() == "distances2" => {
                if let Some(distances) = std::mem::take(&mut table).distances() {
                    seen.distances = Some(distances);
                }
            }
            Event::End(_) => table.element.clear(),
            Event::Eof => break,
            _ => {}
        }
    }
    seen.online = Some(online);
    Ok(seen)
}

#[derive(Default)]
struct Table {
    wanted: bool,
    element: String,
    indexes: Vec<u32>,
    values: Vec<u32>,
}

impl Table {
    fn text(&mut self, text: &str) {
        let numbers = text
            .split_ascii_whitespace()
            .filter_map(|number| number.parse::<u32>().ok());
        match self.element.as_str() {
            "indexes" => self.indexes.extend(numbers),
            "u64values" => self.values.extend(numbers),
            _ => {}
        }
    }

    fn distances(self) -> Option<BTreeMap<(u32, u32), u32>> {
        let pairs = || {
            self.indexes
                .iter()
                .flat_map(|&from| self.indexes.iter().map(move |&to| (from, to)))
        };
        self.wanted
            .then(|| pairs().zip(self.values.iter().copied()).collect())
    }
}

fn object(element: &BytesStart<'_>, seen: &mut Seen, online: &mut CpuSet) {
    let get = |name: &str| attribute(element, name);
    let number = |name: &str| get(name).and_then(|text| text.parse::<u64>().ok());
    let cpus = get("cpuset")
        .map(|mask| mask_to_set(&mask))
        .unwrap_or_default();
    let index = number("os_index").unwrap_or_default() as u32;
    let kind = get("type").unwrap_or_default();
    match kind.as_str() {
        "PU" => *online = online.union(&cpus),
        "Core" => {
            seen.cores
                .as_mut()
                .map(|cores| cores.insert(cpus.to_string()));
        }
        "Package" => {
            seen.packages
                .as_mut()
                .map(|packages| packages.insert(cpus.to_string()));
        }
        "NUMANode" => {
            seen.node_numbers.insert(index);
            seen.nodes.insert(index, cpus);
            // A node without memory has no such attribute, and one of which nothing is known neither.
            seen.memory
                .extend(number("local_memory").map(|bytes| (index, bytes)));
        }
        _ if kind.starts_with('L') && kind.ends_with("Cache") => {
            let type_of = match number("cache_type") {
                Some(1) => CacheKind::Data,
                Some(2) => CacheKind::Instruction,
                _ => CacheKind::Unified,
            };
            let level = number("depth").unwrap_or_default() as u32;
            let size = number("cache_size").unwrap_or_default();
            seen.caches
                .as_mut()
                .map(|caches| caches.insert((level, type_of, cpus.to_string(), size)));
        }
        _ => {}
    }
}

/// hwloc writes `0x00000300,,0x00000007`: an empty word is zero.
fn mask_to_set(mask: &str) -> CpuSet {
    let words = mask.split(',').map(|word| word.trim_start_matches("0x"));
    let words: Vec<&str> = words
        .map(|word| if word.is_empty() { "0" } else { word })
        .collect();
    CpuSet::parse_mask(&words.join(",")).expect("hwloc writes masks of hex words")
}

fn attribute(element: &BytesStart<'_>, name: &str) -> Option<String> {
    let attribute = element.try_get_attribute(name).ok()??;
    Some(attribute.value.into_owned())
}

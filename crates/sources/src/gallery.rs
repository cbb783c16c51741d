//! The machines that come with nearfar: descriptions from `machines/`, known by their file's name.

#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub struct GalleryEntry {
    pub name: &'static str,
    /// What it is, in a sentence: the `description` in its file.
    pub description: &'static str,
}

macro_rules! machines {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../machines/", $name, ".toml")))),*]
    };
}

/// By name, ascending.
const MACHINES: &[(&str, &str)] = machines![
    "asymmetric",
    "cards-back-to-back",
    "cxl-memory-only",
    "database-host",
    "eight-node-ring",
    "epyc-7742",
    "epyc-7742-nps1",
    "fake-nodes",
    "five-nodes",
    "kunpeng",
    "kunpeng-4826",
    "nvme-two-controllers",
    "powerpc-case1",
    "powerpc-case1-after",
    "queues-on-node-2",
    "sixteen-node-ring",
    "sub-numa-clusters",
    "two-node",
    "x86-case1",
    "xeon-6242",
    "xeon-8180",
    "xeon-8269cy-snc",
    "xeon-e7-4870",
];

/// All machines of the gallery, by name.
pub fn gallery() -> Vec<GalleryEntry> {
    let entry = |&(name, text): &(&'static str, &'static str)| GalleryEntry {
        name,
        description: sentence(text),
    };
    MACHINES.iter().map(entry).collect()
}

pub fn text(name: &str) -> Option<&'static str> {
    MACHINES
        .iter()
        .find(|machine| machine.0 == name)
        .map(|machine| machine.1)
}

/// The value of the line `description = "..."`. The tests see to it that every file has one.
fn sentence(text: &'static str) -> &'static str {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("description = \""));
    line.map_or("", |rest| rest.trim_end().trim_end_matches('"'))
}

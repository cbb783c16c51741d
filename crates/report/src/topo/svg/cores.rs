//! The cores of a node, grouped by the last-level cache they share.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use maud::{Markup, html};
use nearfar_machine::{Cache, CpuId, CpuSet, Machine, Node, NodeSet};

use super::{Detail, Drawn, at, text};
use crate::amount::{bytes, or};
use crate::topo::marks::Marks;

/// Most numbered cells in a box; more are drawn small and without numbers.
const MAX_NUMBERED: usize = 64;
/// Most caches in a box that are drawn around their cores.
const MAX_GROUPS: usize = 16;
/// Space between cells.
const GAP: i32 = 3;

/// What all boxes need to know about CPUs, computed once.
pub(super) struct Cores<'a> {
    /// CPUs by the lowest one of their core.
    by_leader: BTreeMap<CpuId, CpuSet>,
    last_level: Vec<&'a Cache>,
    online: &'a CpuSet,
    kept_free: CpuSet,
    marks: &'a Marks,
    machine: &'a Machine,
}

/// Cores behind one cache.
struct Group {
    label: String,
    /// Whether the cache also serves other nodes: it is drawn open, once in the box of each.
    is_shared: bool,
    cores: Vec<CpuSet>,
}

/// The size of a core's cell.
struct Cell {
    width: i32,
    height: i32,
    numbered: bool,
}

impl<'a> Cores<'a> {
    pub(super) fn of(machine: &'a Machine, marks: &'a Marks) -> Self {
        let mut by_leader: BTreeMap<CpuId, CpuSet> = BTreeMap::new();
        for cpu in &machine.cpus {
            by_leader
                .entry(cpu.core.unwrap_or(cpu.id))
                .or_default()
                .insert(cpu.id);
        }
        let (online, kept_free) = (&machine.cpu_states.online, machine.cpu_states.kept_free());
        Self {
            by_leader,
            last_level: machine.last_level_caches().collect(),
            online,
            kept_free,
            marks,
            machine,
        }
    }

    pub(super) fn machine(&self) -> &Machine {
        self.machine
    }

    /// The cores of one node; nothing for a node without CPUs.
    pub(super) fn draw(&self, node: &Node, width: i32, detail: Detail) -> Option<Drawn> {
        let groups = self.groups(node);
        let cores: usize = groups.iter().map(|group| group.cores.len()).sum();
        if cores == 0 {
            return None;
        }
        let cell = cell(&groups, cores, detail);
        let boxed = detail < Detail::Small && groups.iter().any(|group| !group.label.is_empty());
        let columns = group_columns(&groups, width, &cell);
        let own_width = (width - (columns as i32 - 1) * 6) / columns as i32;
        let mut y = 0;
        let mut placed: Vec<Markup> = Vec::new();
        for row in groups.chunks(columns) {
            let mut height = 0;
            for (x, group) in (0..).step_by(own_width as usize + 6).zip(row) {
                let drawn = self.group(group, own_width, &cell, boxed);
                let class = if group.is_shared {
                    "group shared"
                } else {
                    "group"
                };
                height = height.max(drawn.height);
                placed.push(html! {
                    g transform=(at(x, y)) {
                        @if boxed { rect class=(class) width=(own_width) height=(drawn.height) rx="6" {} }
                        (drawn.markup)
                    }
                });
            }
            y += height + 6;
        }
        Some(Drawn {
            markup: html! { @for group in &placed { (group) } },
            height: y - 6,
        })
    }

    /// The node's cores by cache. Caches that every core has for itself, or that are too many, group nothing.
    fn groups(&self, node: &Node) -> Vec<Group> {
        let mut cores: Vec<CpuSet> = Vec::new();
        let mut left = node.known_cpus().clone();
        while let Some(cpu) = left.first() {
            // A core's leader is its lowest CPU, so the first one left leads, or its core began on another node.
            let core = self.by_leader.get(&cpu).map_or_else(
                || CpuSet::single(cpu),
                |core| core.intersection(node.known_cpus()),
            );
            left = left.difference(&core);
            left.remove(cpu);
            cores.push(core);
        }
        let group = |label, is_shared, cores| Group {
            label,
            is_shared,
            cores,
        };
        let is_here = |cache: &&&Cache| cache.cpus.intersects(node.known_cpus());
        let caches: Vec<&&Cache> = self.last_level.iter().filter(is_here).collect();
        let are_own = caches.len() > 1 && caches.len() >= cores.len();
        if caches.is_empty() || caches.len() > MAX_GROUPS || are_own {
            return vec![group(String::new(), false, cores)];
        }
        let mut groups = Vec::new();
        for cache in caches {
            let (own, others) = cores
                .into_iter()
                .partition(|core| core.intersects(&cache.cpus));
            cores = others;
            let size = or(
                cache
                    .size_bytes
                    .get()
                    .map(|&size| format!(" {}", bytes(size))),
                "",
            );
            let nodes = cache
                .cpus
                .iter()
                .filter_map(|cpu| self.machine.node_of(cpu));
            let nodes: NodeSet = nodes.collect();
            // One cache behind several nodes must not look like one in each of them.
            let with = match nodes.len() {
                0 | 1 => String::new(),
                _ => format!(", one for nodes {nodes}"),
            };
            let label = format!("L{}{size}{with}", cache.level);
            groups.push(group(label, nodes.len() > 1, own));
        }
        groups.push(group(String::new(), false, cores));
        groups.retain(|group| !group.cores.is_empty());
        groups
    }

    fn group(&self, group: &Group, width: i32, cell: &Cell, boxed: bool) -> Drawn {
        let (inset, top) = if boxed {
            (6, if group.label.is_empty() { 6 } else { 18 })
        } else {
            (0, 0)
        };
        let most = cells_per_row(width - 2 * inset, cell);
        let rows = group.cores.len().div_ceil(most).max(1);
        // Rows of equal length are easier to count than full ones and a rest.
        let per_row = group.cores.len().div_ceil(rows).max(1);
        let place = |index: usize| {
            let (column, row) = ((index % per_row) as i32, (index / per_row) as i32);
            (
                inset + column * (cell.width + GAP),
                top + row * (cell.height + GAP),
            )
        };
        let cells = if cell.numbered {
            self.numbered(group, cell, place)
        } else {
            self.plain(group, cell, place)
        };
        let markup = html! {
            @if boxed { (text("dim", inset + 1, 13, width - 2 * inset, 9, &group.label)) }
            (cells)
        };
        Drawn {
            markup,
            height: top + rows as i32 * (cell.height + GAP) - GAP + inset,
        }
    }

    fn numbered(&self, group: &Group, cell: &Cell, place: impl Fn(usize) -> (i32, i32)) -> Markup {
        html! {
            @for (index, core) in group.cores.iter().enumerate() {
                @let (x, y) = place(index);
                rect class=(self.class(core, false)) x=(x) y=(y) width=(cell.width) height=(cell.height) rx="3" {}
                text.number x=(x + cell.width / 2) y=(y + 12) font-size="9" { (core) }
                (self.mark(core, x + cell.width, y))
            }
        }
    }

    /// Cells without numbers: one path for all of a kind, because there may be thousands.
    fn plain(&self, group: &Group, cell: &Cell, place: impl Fn(usize) -> (i32, i32)) -> Markup {
        let mut paths: BTreeMap<&str, String> = BTreeMap::new();
        for (index, core) in group.cores.iter().enumerate() {
            let (x, y) = place(index);
            let path = paths.entry(self.class(core, true)).or_default();
            // Writing to a String cannot fail.
            let _ = write!(path, "M{x} {y}h{0}v{1}h-{0}z", cell.width, cell.height);
        }
        html! { @for (class, path) in &paths { path class=(class) d=(path) {} } }
    }

    /// In the upper right corner: a triangle for interrupts of a device on another node, a dot for those of its own.
    fn mark(&self, core: &CpuSet, right: i32, top: i32) -> Markup {
        html! {
            @if core.intersects(&self.marks.far) { path.far-mark d={ "M" (right - 8) " " (top) "h8v8z" } {} }
            @else if core.intersects(&self.marks.near) { circle.near-mark cx=(right - 4) cy=(top + 4) r="2" {} }
        }
    }

    /// The kind of a core's cell; a small one has no room for a mark and is filled instead.
    fn class(&self, core: &CpuSet, small: bool) -> &'static str {
        if !core.intersects(self.online) {
            "down"
        } else if core.intersects(&self.marks.far) && small {
            "serves-far"
        } else if core.intersects(&self.kept_free) {
            "kept"
        } else {
            "cpu"
        }
    }
}

fn cell(groups: &[Group], cores: usize, detail: Detail) -> Cell {
    let cells = groups.iter().flat_map(|group| &group.cores);
    let longest = cells.map(|core| core.to_string().len()).max().unwrap_or(1);
    let (max_numbered, side) = match detail {
        Detail::Full => (MAX_NUMBERED, 10),
        Detail::Medium => (MAX_NUMBERED / 4, 7),
        Detail::Small => (0, 5),
    };
    let numbered = cores <= max_numbered && longest <= 12;
    let (width, height) = match numbered {
        true => ((longest as i32 * 5 + 9).max(20), 17),
        false => (side, side),
    };
    Cell {
        width,
        height,
        numbered,
    }
}

fn cells_per_row(width: i32, cell: &Cell) -> usize {
    ((width + GAP) / (cell.width + GAP)).max(1) as usize
}

/// How many caches stand side by side: as many as still have room for four cores, or for all of theirs.
fn group_columns(groups: &[Group], width: i32, cell: &Cell) -> usize {
    let most = groups
        .iter()
        .map(|group| group.cores.len())
        .max()
        .unwrap_or(1);
    let needed = most.min(4) as i32 * (cell.width + GAP) + 12;
    (width / needed.max(50))
        .clamp(1, 4)
        .min(groups.len().max(1) as i32) as usize
}

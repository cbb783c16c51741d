//! The boxes: one a node, in a grid, all of a row equally high; the cores in them, grouped by the last-level cache they share; the
//! lines between the boxes of machines with two or four nodes, each with its distance.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use maud::{Markup, html};
use nearfar_machine::{Cache, CpuId, CpuSet, Machine, Node, NodeId, NodeSet, PciDevice};

use super::{Detail, Piece, at, device, device_line, on_no_node, text};
use crate::amount::{bytes, count, or};
use crate::document::clean;
use crate::summary::Packages;
use crate::topo::distances::both_ways;
use crate::topo::marks::{Lot, Marks};
use crate::topo::{node_of, notable};

/// Where the boxes are.
struct Grid {
    columns: usize,
    gap: i32,
    /// Of a box.
    width: i32,
}

impl Grid {
    fn plan(nodes: usize, width: i32) -> Self {
        let columns = box_columns(nodes);
        // Links with their labels are between two columns.
        let gap = match columns {
            2 => 92,
            MOST_COLUMNS => 8,
            _ => 16,
        };
        let width = (width - (columns - 1) * gap) / columns;
        Self {
            columns: columns as usize,
            gap,
            width,
        }
    }

    /// The left edge of a box.
    fn x(&self, index: usize) -> i32 {
        (index % self.columns) as i32 * (self.width + self.gap)
    }
}

/// Columns of many small boxes.
const MOST_COLUMNS: i32 = 8;

/// Columns of so many boxes: rows are equally long where that is possible, 4 as 2 x 2 and 16 as 4 x 4.
pub(crate) fn box_columns(nodes: usize) -> i32 {
    match nodes {
        0 | 1 => 1,
        2 | 4 => 2,
        3 | 5 | 6 | 9 => 3,
        7..=16 => 4,
        _ => MOST_COLUMNS,
    }
}

/// All boxes, with the links between them where there are few.
pub(super) fn draw(machine: &Machine, marks: &Marks, width: i32) -> Piece {
    let grid = Grid::plan(machine.nodes.len(), width);
    let parts = Parts::of(machine, marks, Detail::of(machine.nodes.len()));
    let drawn = machine.nodes.iter();
    let drawn = drawn.map(|node| parts.inside(node).draw(grid.width));
    let drawn: Vec<Piece> = drawn.collect();
    // Links with their labels take more space between rows.
    let below = if grid.gap > 50 { 72 } else { grid.gap };
    let (mut placed, mut edges, mut y) = (Vec::new(), Vec::new(), 0);
    let rows = machine.nodes.chunks(grid.columns);
    for (nodes, row) in rows.zip(drawn.chunks(grid.columns)) {
        let height = row.iter().map(|drawn| drawn.height).max().unwrap_or(0);
        for (node, drawn) in nodes.iter().zip(row) {
            let x = grid.x(edges.len());
            edges.push((x, y, height));
            placed.push(html! {
                g transform=(at(x, y)) {
                    rect class=(class(node)) width=(grid.width) height=(height) rx="10" {}
                    (drawn.markup)
                }
            });
        }
        y += height + below;
    }
    let markup = html! {
        (links(machine, &grid, &edges))
        @for part in &placed { (part) }
    };
    Piece {
        markup,
        height: (y - below).max(0),
    }
}

fn class(node: &Node) -> &'static str {
    if node.online { "box" } else { "box off" }
}

/// A picture for each node, for a page that puts at most [`box_columns`] side by side; then one of the devices without a node. Each has a title
/// and a description that say the same in words.
pub(crate) fn cards<'a>(
    machine: &Machine,
    marks: &Marks,
    nodes: impl ExactSizeIterator<Item = &'a Node>,
) -> Vec<Markup> {
    let parts = Parts::of(machine, marks, Detail::of(nodes.len()));
    let width = match box_columns(nodes.len()) {
        MOST_COLUMNS => 130,
        4 => 240,
        _ => 300,
    };
    let node_card = |node| {
        let inside = parts.inside(node);
        let drawn = inside.draw(width);
        html! {
            svg viewBox={ "0 0 " (width) " " (drawn.height) } role="img" {
                title { "Node " (node.id) }
                desc { (clean(&inside.describe())) }
                rect class=(class(node)) x="0.5" y="0.5" width=(width - 1) height=(drawn.height - 1) rx="10" {}
                (drawn.markup)
            }
        }
    };
    let mut cards: Vec<Markup> = nodes.map(node_card).collect();
    cards.extend(on_no_node(machine, marks, 300).map(|drawn| {
        let about = "Devices on no node, as far as the kernel knows; nearfar topo lists them.";
        html! {
            svg viewBox={ "-0.5 -0.5 301 " (drawn.height + 1) } role="img" { title { "Devices without a node" } desc { (about) } (drawn.markup) }
        }
    }));
    cards
}

/// What all boxes need.
struct Parts<'a> {
    cores: Cores<'a>,
    packages: Packages,
    /// Bytes of the node that has most.
    largest: u64,
    /// Devices that move data, by the node the kernel gives them.
    devices: BTreeMap<NodeId, Vec<&'a PciDevice>>,
    marks: &'a Marks,
    detail: Detail,
}

impl<'a> Parts<'a> {
    fn of(machine: &'a Machine, marks: &'a Marks, detail: Detail) -> Self {
        let mut devices: BTreeMap<NodeId, Vec<&PciDevice>> = BTreeMap::new();
        let all = machine.pci.get().into_iter().flatten();
        for device in all.filter(|device| notable(device)) {
            if let Some(node) = node_of(device) {
                devices.entry(node).or_default().push(device);
            }
        }
        let sizes = machine.nodes.iter().filter_map(Node::total_bytes);
        Self {
            cores: Cores::of(machine, marks),
            packages: Packages::of(machine),
            largest: sizes.max().unwrap_or(0),
            devices,
            marks,
            detail,
        }
    }

    fn is_small(&self) -> bool {
        self.detail == Detail::Small
    }

    fn inside(&'a self, node: &'a Node) -> Inside<'a> {
        Inside { node, parts: self }
    }
}

/// What one box holds.
struct Inside<'a> {
    node: &'a Node,
    parts: &'a Parts<'a>,
}

impl Inside<'_> {
    /// In a box of this width, with the space to its edges.
    fn draw(&self, width: i32) -> Piece {
        let padding = self.parts.detail.padding();
        let width = width - 2 * padding;
        let mut parts = vec![self.title(width)];
        parts.extend(self.parts.cores.draw(self.node, width, self.parts.detail));
        parts.push(self.memory(width));
        parts.extend(self.devices(width));
        parts.extend(self.interrupts(width));
        let gap = if self.parts.is_small() { 5 } else { 10 };
        let mut y = padding;
        let mut placed: Vec<Markup> = Vec::new();
        for part in parts {
            placed.push(html! { g transform=(at(padding, y)) { (part.markup) } });
            y += part.height + gap;
        }
        Piece {
            markup: html! { @for part in &placed { (part) } },
            height: y - gap + padding,
        }
    }

    fn title(&self, width: i32) -> Piece {
        let (id, remark) = (self.node.id, self.remark());
        if self.parts.is_small() {
            let cpus = Some(remark).filter(|remark| !remark.is_empty());
            let cpus = cpus.unwrap_or_else(|| format!("{} CPUs", self.node.known_cpus().len()));
            let markup = html! {
                (text("node", 0, 11, width / 2, 12, &id.to_string()))
                text.dim.end x=(width) y="11" font-size="9" { (cpus) }
            };
            return Piece { markup, height: 13 };
        }
        let machine = self.parts.cores.machine;
        let package = match self.parts.packages.on(machine, self.node) {
            package if package.is_empty() => String::new(),
            package => format!(", package {package}"),
        };
        let markup = html! {
            (text("node", 0, 14, width, 16, &format!("Node {id}")))
            text.warn.end x=(width) y="13" font-size="11" { (remark) }
            (text("dim", 0, 31, width, 11, &(self.cpus() + &package)))
        };
        Piece { markup, height: 34 }
    }

    fn cpus(&self) -> String {
        match self.node.cpus.get() {
            None => "CPUs unknown".to_owned(),
            Some(cpus) if cpus.is_empty() => "no CPUs".to_owned(),
            Some(cpus) if cpus.len() == 1 => format!("CPU {cpus}"),
            Some(cpus) => format!("CPUs {cpus}"),
        }
    }

    fn remark(&self) -> String {
        let node = self.node;
        let tier = node.tier.map(|tier| format!("memory only, tier {tier}"));
        let tier = or(tier, "memory only");
        let fake = node
            .fake_of
            .map(|real| format!("fake, part of node {real}"));
        let short = |short: &str, long: &str| match self.parts.is_small() {
            true => short.to_owned(),
            false => long.to_owned(),
        };
        match (node.online, node.has_cpus(), node.has_memory()) {
            (false, ..) => "not online".to_owned(),
            (_, Some(false), Some(false)) => short("empty", "neither CPUs nor memory"),
            (_, None, _) if self.parts.is_small() => "CPUs ?".to_owned(),
            (_, Some(false), _) => short("no CPUs", &tier),
            (_, _, Some(false)) => "no memory".to_owned(),
            _ => or(fake, ""),
        }
    }

    /// A bar as long as the node's memory is large, as a share of the largest node; the filled part is in use.
    fn memory(&self, width: i32) -> Piece {
        let small = self.parts.is_small();
        let (size, bar) = if small { (9, 5) } else { (11, 8) };
        let memory = self.node.memory.get();
        let free = memory.and_then(|memory| memory.free_bytes);
        let total = self.node.total_bytes().unwrap_or(0);
        let label = match (memory, free) {
            (None, _) if small => return Piece::default(),
            (None, _) => "memory unknown".to_owned(),
            (Some(_), _) if total == 0 => "no memory".to_owned(),
            (Some(_), Some(free)) if !small => format!("{}, {} free", bytes(total), bytes(free)),
            _ => bytes(total),
        };
        let share = |part: u64| {
            let share = part.min(self.parts.largest) as f64 / self.parts.largest.max(1) as f64;
            (share * f64::from(width)) as i32
        };
        let used = free.map_or(0, |free| total.saturating_sub(free));
        let top = if total > 0 { bar + 2 } else { 0 };
        let markup = html! {
            @if total > 0 {
                rect class="track" width=(share(total).max(3)) height=(bar) rx="3" {}
                @if used > 0 { rect class="used" width=(share(used).max(2)) height=(bar) rx="3" {} }
            }
            (text("dim", 0, top + size, width, size, &label))
        };
        Piece {
            markup,
            height: top + size + 2,
        }
    }

    fn all_devices(&self) -> &[&PciDevice] {
        let devices = self.parts.devices.get(&self.node.id);
        devices.map_or(&[], Vec::as_slice)
    }

    fn devices(&self, width: i32) -> Option<Piece> {
        let all = self.all_devices();
        let shown = match self.parts.detail {
            _ if all.is_empty() => return None,
            Detail::Full => all.len().min(6),
            Detail::Medium => all.len().min(3),
            Detail::Small => {
                let markup = html! {
                    rect class="port" y="2" width="7" height="7" rx="2" {}
                    (text("item", 11, 9, width - 11, 9, &count(all.len(), "device")))
                };
                return Some(Piece { markup, height: 11 });
            }
        };
        let more = all.len() - shown;
        let markup = html! {
            @for (y, it) in (10..).step_by(17).zip(&all[..shown]) { (device(it, self.parts.marks, 0, y, width)) }
            @if more > 0 { (text("dim", 14, 10 + shown as i32 * 17, width - 14, 11, &format!("and {} more", count(more, "device")))) }
        };
        Some(Piece {
            markup,
            height: (shown as i32 + i32::from(more > 0)) * 17 - 4,
        })
    }

    /// What the node's CPUs serve, far devices first.
    fn interrupts(&self, width: i32) -> Option<Piece> {
        let small = self.parts.is_small();
        let (most, size) = if small { (1, 9) } else { (4, 11) };
        let lots = self.parts.marks.lots(self.node.id);
        let line = |lot: &Lot| match lot.home == self.node.id {
            true => ("dim", near(lot)),
            false if small => ("warn", near(lot)),
            false => ("warn", far(lot)),
        };
        let mut lines: Vec<(&str, String)> = lots.iter().take(most).map(line).collect();
        let rest: usize = lots.iter().skip(most).map(|lot| lot.interrupts).sum();
        if rest > 0 {
            lines.push(("dim", format!("and {}", count(rest, "other interrupt"))));
        }
        let step = size + 6;
        let markup = html! {
            @for (y, (class, line)) in (size - 1..).step_by(step as usize).zip(&lines) { (text(class, 0, y, width, size, line)) }
        };
        (!lines.is_empty()).then(|| Piece {
            markup,
            height: lines.len() as i32 * step - 4,
        })
    }

    /// All of it in words.
    fn describe(&self) -> String {
        const MAX_NAMED: usize = 12;
        let memory = self.node.total_bytes();
        let memory = memory.map(|size| format!("{} of memory", bytes(size)));
        let all = self.all_devices();
        let devices = all.iter().take(MAX_NAMED);
        let devices = devices.map(|it| device_line(it, self.parts.marks));
        let more = all.len().checked_sub(MAX_NAMED).filter(|more| *more > 0);
        let more = more.map(|more| format!("and {}", count(more, "other device")));
        let lots = self.parts.marks.lots(self.node.id).iter();
        let parts = [self.cpus(), or(memory, "memory unknown"), self.remark()].into_iter();
        let parts = parts
            .chain(devices)
            .chain(more)
            .chain(lots.take(MAX_NAMED).map(far));
        let parts: Vec<String> = parts.filter(|part| !part.is_empty()).collect();
        parts.join("; ")
    }
}

/// `24 interrupts of eth0`.
fn near(lot: &Lot) -> String {
    format!("{} of {}", count(lot.interrupts, "interrupt"), lot.device)
}

/// `24 interrupts of eth0, on node 0 (21)`: what is served, where its device is, how far that is.
fn far(lot: &Lot) -> String {
    let distance = or(lot.distance.map(|distance| format!(" ({distance})")), "");
    format!("{}, on node {}{distance}", near(lot), lot.home)
}

/// The links; `boxes` are left edge, top and height of each box.
fn links(machine: &Machine, grid: &Grid, boxes: &[(i32, i32, i32)]) -> Markup {
    let drawable = matches!(boxes.len(), 2 | 4) && grid.columns == 2;
    if !drawable {
        return html! {};
    }
    let mut links = Vec::new();
    for from in 0..boxes.len() {
        for to in from + 1..boxes.len() {
            let label = both_ways(machine, machine.nodes[from].id, machine.nodes[to].id);
            links.extend(label.map(|label| link(grid.width, boxes, (from, to), &label)));
        }
    }
    html! { @for link in &links { (link) } }
}

/// From the middle of the side, or the corner, that faces the other box.
fn link(width: i32, boxes: &[(i32, i32, i32)], (from, to): (usize, usize), label: &str) -> Markup {
    let ((ax, ay, ah), (bx, by, bh)) = (boxes[from], boxes[to]);
    let (x1, y1, x2, y2) = match (ax == bx, ay == by) {
        (_, true) => (ax + width, ay + ah / 2, bx, by + bh / 2),
        (true, _) => (ax + width / 2, ay + ah, bx + width / 2, by),
        _ if ax < bx => (ax + width - 4, ay + ah - 4, bx + 4, by + 4),
        _ => (ax + 4, ay + ah - 4, bx + width - 4, by + 4),
    };
    // Crossing lines have their labels on either side of the crossing.
    let share = if ax == bx || ay == by { 0.5 } else { 0.28 };
    let along = |start: i32, end: i32| start + (f64::from(end - start) * share) as i32;
    let (x, y) = (along(x1, x2), along(y1, y2));
    let plate = label.len() as i32 * 8 + 8;
    html! {
        line.link x1=(x1) y1=(y1) x2=(x2) y2=(y2) {}
        rect.plate x=(x - plate / 2) y=(y - 10) width=(plate) height="20" rx="4" {}
        text.far x=(x) y=(y + 5) font-size="13" { (label) }
    }
}

/// Most numbered cells in a box; more are drawn small and without numbers.
const MAX_NUMBERED: usize = 64;
/// Most caches in a box that are drawn around their cores.
const MAX_GROUPS: usize = 16;
/// Space between cells.
const GAP: i32 = 3;

/// What all boxes need to know about CPUs, computed once.
struct Cores<'a> {
    /// CPUs by the lowest one of their core.
    by_leader: BTreeMap<CpuId, CpuSet>,
    last_level: Vec<&'a Cache>,
    online: &'a CpuSet,
    kept_free: CpuSet,
    marks: &'a Marks,
    machine: &'a Machine,
}

/// Cores behind one cache.
struct CoreGroup {
    label: String,
    /// Whether the cache also serves other nodes: it is drawn open, once in the box of each.
    is_shared: bool,
    cores: Vec<CpuSet>,
}

/// The size of a core's cell.
struct CoreCell {
    width: i32,
    height: i32,
    numbered: bool,
}

impl<'a> Cores<'a> {
    fn of(machine: &'a Machine, marks: &'a Marks) -> Self {
        let mut by_leader: BTreeMap<CpuId, CpuSet> = BTreeMap::new();
        for cpu in &machine.cpus {
            let leader = cpu.core.unwrap_or(cpu.id);
            by_leader.entry(leader).or_default().insert(cpu.id);
        }
        Self {
            by_leader,
            last_level: machine.last_level_caches().collect(),
            online: &machine.cpu_states.online,
            kept_free: machine.cpu_states.kept_free(),
            marks,
            machine,
        }
    }

    /// The cores of one node; nothing for a node without CPUs.
    fn draw(&self, node: &Node, width: i32, detail: Detail) -> Option<Piece> {
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
                let class = match group.is_shared {
                    true => "group shared",
                    false => "group",
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
        Some(Piece {
            markup: html! { @for group in &placed { (group) } },
            height: y - 6,
        })
    }

    /// The node's cores by cache. Caches that every core has for itself, or that are too many, group nothing.
    fn groups(&self, node: &Node) -> Vec<CoreGroup> {
        let mut cores: Vec<CpuSet> = Vec::new();
        let mut left = node.known_cpus().clone();
        while let Some(cpu) = left.first() {
            // A core's leader is its lowest CPU, so the first one left leads, or its core began on another node.
            let core = self.by_leader.get(&cpu);
            let core = core.map(|core| core.intersection(node.known_cpus()));
            let core = core.unwrap_or_else(|| CpuSet::single(cpu));
            left = left.difference(&core);
            left.remove(cpu);
            cores.push(core);
        }
        let group = |label, is_shared, cores| CoreGroup {
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
            let is_own = |core: &CpuSet| core.intersects(&cache.cpus);
            let (own, others) = cores.into_iter().partition(is_own);
            cores = others;
            let size = cache.size_bytes.get();
            let size = or(size.map(|&size| format!(" {}", bytes(size))), "");
            let nodes = cache.cpus.iter();
            let nodes = nodes.filter_map(|cpu| self.machine.node_of(cpu));
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

    fn group(&self, group: &CoreGroup, width: i32, cell: &CoreCell, boxed: bool) -> Piece {
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
        let cells = match cell.numbered {
            true => self.numbered(group, cell, place),
            false => self.plain(group, cell, place),
        };
        let markup = html! {
            @if boxed { (text("dim", inset + 1, 13, width - 2 * inset, 9, &group.label)) }
            (cells)
        };
        Piece {
            markup,
            height: top + rows as i32 * (cell.height + GAP) - GAP + inset,
        }
    }

    fn numbered(
        &self,
        group: &CoreGroup,
        cell: &CoreCell,
        place: impl Fn(usize) -> (i32, i32),
    ) -> Markup {
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
    fn plain(
        &self,
        group: &CoreGroup,
        cell: &CoreCell,
        place: impl Fn(usize) -> (i32, i32),
    ) -> Markup {
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

fn cell(groups: &[CoreGroup], cores: usize, detail: Detail) -> CoreCell {
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
    CoreCell {
        width,
        height,
        numbered,
    }
}

fn cells_per_row(width: i32, cell: &CoreCell) -> usize {
    ((width + GAP) / (cell.width + GAP)).max(1) as usize
}

/// How many caches stand side by side: as many as still have room for four cores, or for all of theirs.
fn group_columns(groups: &[CoreGroup], width: i32, cell: &CoreCell) -> usize {
    let most = groups.iter().map(|group| group.cores.len()).max();
    let needed = most.unwrap_or(1).min(4) as i32 * (cell.width + GAP) + 12;
    let columns = (width / needed.max(50)).clamp(1, 4) as usize;
    columns.min(groups.len().max(1))
}

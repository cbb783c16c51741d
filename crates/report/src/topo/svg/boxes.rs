//! The boxes: one a node, in a grid, all of a row equally high.

use std::collections::BTreeMap;

use maud::{Markup, html};
use nearfar_machine::{Machine, Node, NodeId, PciDevice};

use super::cores::Cores;
use super::{Detail, Drawn, at, device, device_line, links, on_no_node, text};
use crate::amount::{bytes, count, or};
use crate::summary::Packages;
use crate::topo::marks::{Lot, Marks};
use crate::topo::{node_of, notable};
use crate::wrapping::clean;

/// Where the boxes are.
pub(super) struct Grid {
    pub(super) columns: usize,
    pub(super) gap: i32,
    /// Of a box.
    pub(super) width: i32,
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
pub(super) fn draw(machine: &Machine, marks: &Marks, width: i32) -> Drawn {
    let grid = Grid::plan(machine.nodes.len(), width);
    let parts = Parts::of(machine, marks, Detail::of(machine.nodes.len()));
    let drawn: Vec<Drawn> = machine
        .nodes
        .iter()
        .map(|node| parts.inside(node).draw(grid.width))
        .collect();
    // Links with their labels take more space between rows.
    let below = if grid.gap > 50 { 72 } else { grid.gap };
    let (mut placed, mut edges, mut y) = (Vec::new(), Vec::new(), 0);
    for (nodes, row) in machine
        .nodes
        .chunks(grid.columns)
        .zip(drawn.chunks(grid.columns))
    {
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
        (links::draw(machine, &grid, &edges))
        @for part in &placed { (part) }
    };
    Drawn {
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
    fn draw(&self, width: i32) -> Drawn {
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
        Drawn {
            markup: html! { @for part in &placed { (part) } },
            height: y - gap + padding,
        }
    }

    fn title(&self, width: i32) -> Drawn {
        let (id, remark) = (self.node.id, self.remark());
        if self.parts.is_small() {
            let cpus = Some(remark).filter(|remark| !remark.is_empty());
            let cpus = cpus.unwrap_or_else(|| format!("{} CPUs", self.node.known_cpus().len()));
            let markup = html! {
                (text("node", 0, 11, width / 2, 12, &id.to_string()))
                text.dim.end x=(width) y="11" font-size="9" { (cpus) }
            };
            return Drawn { markup, height: 13 };
        }
        let package = match self
            .parts
            .packages
            .on(self.parts.cores.machine(), self.node)
        {
            package if package.is_empty() => String::new(),
            package => format!(", package {package}"),
        };
        let markup = html! {
            (text("node", 0, 14, width, 16, &format!("Node {id}")))
            text.warn.end x=(width) y="13" font-size="11" { (remark) }
            (text("dim", 0, 31, width, 11, &(self.cpus() + &package)))
        };
        Drawn { markup, height: 34 }
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
        let tier = || {
            or(
                node.tier.map(|tier| format!("memory only, tier {tier}")),
                "memory only",
            )
        };
        let short = |short: &str, long: String| {
            if self.parts.is_small() {
                short.to_owned()
            } else {
                long
            }
        };
        match (node.online, node.has_cpus(), node.has_memory()) {
            (false, ..) => "not online".to_owned(),
            (_, Some(false), Some(false)) => short("empty", "neither CPUs nor memory".to_owned()),
            (_, None, _) if self.parts.is_small() => "CPUs ?".to_owned(),
            (_, Some(false), _) => short("no CPUs", tier()),
            (_, _, Some(false)) => "no memory".to_owned(),
            _ => or(
                node.fake_of
                    .map(|real| format!("fake, part of node {real}")),
                "",
            ),
        }
    }

    /// A bar as long as the node's memory is large, as a share of the largest node; the filled part is in use.
    fn memory(&self, width: i32) -> Drawn {
        let small = self.parts.is_small();
        let (size, bar) = if small { (9, 5) } else { (11, 8) };
        let memory = self.node.memory.get();
        let free = memory.and_then(|memory| memory.free_bytes);
        let total = self.node.total_bytes().unwrap_or(0);
        let label = match (memory, free) {
            (None, _) if small => return Drawn::default(),
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
        Drawn {
            markup,
            height: top + size + 2,
        }
    }

    fn all_devices(&self) -> &[&PciDevice] {
        self.parts
            .devices
            .get(&self.node.id)
            .map_or(&[], Vec::as_slice)
    }

    fn devices(&self, width: i32) -> Option<Drawn> {
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
                return Some(Drawn { markup, height: 11 });
            }
        };
        let more = all.len() - shown;
        let markup = html! {
            @for (y, it) in (10..).step_by(17).zip(&all[..shown]) { (device(it, self.parts.marks, 0, y, width)) }
            @if more > 0 { (text("dim", 14, 10 + shown as i32 * 17, width - 14, 11, &format!("and {} more", count(more, "device")))) }
        };
        Some(Drawn {
            markup,
            height: (shown as i32 + i32::from(more > 0)) * 17 - 4,
        })
    }

    /// What the node's CPUs serve, far devices first.
    fn interrupts(&self, width: i32) -> Option<Drawn> {
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
        (!lines.is_empty()).then(|| Drawn {
            markup,
            height: lines.len() as i32 * step - 4,
        })
    }

    /// All of it in words.
    fn describe(&self) -> String {
        const MAX_NAMED: usize = 12;
        let memory = self
            .node
            .total_bytes()
            .map(|size| format!("{} of memory", bytes(size)));
        let all = self.all_devices();
        let devices = all
            .iter()
            .take(MAX_NAMED)
            .map(|it| device_line(it, self.parts.marks));
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

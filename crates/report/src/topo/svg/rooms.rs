//! The rooms: one a node, in a grid, all of a row equally high.

use maud::{Markup, html};
use nearfar_machine::{Machine, Node, PciDevice};

use super::cores::Cores;
use super::{Detail, Drawn, at, device, links, text};
use crate::amount::{bytes, count};
use crate::topo::notable;

const PADDING: i32 = 14;

/// Where the rooms are.
pub(super) struct Floor {
    pub(super) columns: usize,
    pub(super) gap: i32,
    pub(super) width: i32,
}

impl Floor {
    fn plan(nodes: usize, width: i32) -> Self {
        let columns = match nodes {
            0 | 1 => 1,
            2 | 4 => 2,
            3 | 5 | 6 => 3,
            7..=16 => 4,
            _ => 8,
        };
        let gap = match nodes {
            2 | 4 => 92,
            0..=16 => 16,
            _ => 8,
        };
        let count = columns as i32;
        Self { columns, gap, width: (width - (count - 1) * gap) / count }
    }

    /// The left edge of a room.
    pub(super) fn x(&self, index: usize) -> i32 {
        (index % self.columns) as i32 * (self.width + self.gap)
    }
}

/// All rooms, with the links between them where there are few.
pub(super) fn draw(machine: &Machine, width: i32) -> Drawn {
    let floor = Floor::plan(machine.nodes.len(), width);
    let detail = Detail::of(machine.nodes.len());
    let cores = Cores::of(machine);
    let largest = machine.nodes.iter().filter_map(Node::total_bytes).max().unwrap_or(0);
    let devices = DevicesByNode::of(machine);
    let padding = if detail == Detail::Small { 7 } else { PADDING };
    let contents: Vec<Drawn> = machine
        .nodes
        .iter()
        .map(|node| {
            let inside = Inside { node, cores: &cores, largest, devices: devices.on(node), detail };
            inside.draw(floor.width - 2 * padding)
        })
        .collect();
    let mut rooms = Vec::new();
    let mut boxes = Vec::new();
    let mut y = 0;
    for (row, drawn) in contents.chunks(floor.columns).enumerate() {
        let height = drawn.iter().map(|drawn| drawn.height).max().unwrap_or(0) + 2 * padding;
        for (column, drawn) in drawn.iter().enumerate() {
            let index = row * floor.columns + column;
            let class = if machine.nodes[index].online { "room" } else { "room off" };
            boxes.push((floor.x(index), y, height));
            rooms.push(html! {
                g transform=(at(floor.x(index), y)) {
                    rect class=(class) width=(floor.width) height=(height) rx="10" {}
                    g transform=(at(padding, padding)) { (drawn.markup) }
                }
            });
        }
        y += height + if floor.gap > 50 { 72 } else { floor.gap };
    }
    let below = if floor.gap > 50 { 72 } else { floor.gap };
    let markup = html! {
        (links::draw(machine, &floor, &boxes))
        @for room in &rooms { (room) }
    };
    Drawn { markup, height: (y - below).max(0) }
}

/// Devices that move data, by the node the kernel gives them.
struct DevicesByNode<'a>(Vec<&'a PciDevice>);

impl<'a> DevicesByNode<'a> {
    fn of(machine: &'a Machine) -> Self {
        let mut devices: Vec<_> = machine.pci.get().into_iter().flatten().filter(|device| notable(device)).collect();
        devices.sort_by_key(|device| device.node.get().copied().flatten());
        Self(devices)
    }

    fn on(&self, node: &Node) -> &[&'a PciDevice] {
        let place = |device: &&PciDevice| device.node.get().copied().flatten();
        let start = self.0.partition_point(|device| place(device) < Some(node.id));
        let end = self.0.partition_point(|device| place(device) <= Some(node.id));
        &self.0[start..end]
    }
}

/// What one room holds.
struct Inside<'a> {
    node: &'a Node,
    cores: &'a Cores<'a>,
    largest: u64,
    devices: &'a [&'a PciDevice],
    detail: Detail,
}

impl Inside<'_> {
    fn draw(&self, width: i32) -> Drawn {
        let mut parts = vec![self.title(width)];
        parts.extend(self.cores.draw(self.node, width, self.detail));
        parts.push(self.memory(width));
        parts.extend(self.devices(width));
        let gap = if self.detail == Detail::Small { 5 } else { 10 };
        let mut y = 0;
        let mut placed: Vec<Markup> = Vec::new();
        for part in parts {
            placed.push(html! { g transform=(at(0, y)) { (part.markup) } });
            y += part.height + gap;
        }
        Drawn { markup: html! { @for part in &placed { (part) } }, height: y - gap }
    }

    fn title(&self, width: i32) -> Drawn {
        let remark = self.remark();
        if self.detail == Detail::Small {
            let cpus = if remark.is_empty() { format!("{} CPUs", self.node.cpus.len()) } else { remark };
            let markup = html! {
                (text("node", 0, 11, width / 2, 12, &self.node.id.to_string()))
                text.dim.end x=(width) y="11" font-size="9" { (cpus) }
            };
            return Drawn { markup, height: 13 };
        }
        let cpus = match self.node.cpus.len() {
            0 => "no CPUs".to_owned(),
            1 => format!("CPU {}", self.node.cpus),
            _ => format!("CPUs {}", self.node.cpus),
        };
        let markup = html! {
            (text("node", 0, 14, width, 16, &format!("Node {}", self.node.id)))
            text.warn.end x=(width) y="13" font-size="11" { (remark) }
            (text("dim", 0, 31, width, 11, &cpus))
        };
        Drawn { markup, height: 34 }
    }

    fn remark(&self) -> String {
        let node = self.node;
        let small = self.detail == Detail::Small;
        match (node.online, node.cpus.is_empty(), node.has_memory()) {
            (false, ..) => "not online".to_owned(),
            (_, true, Some(false)) if small => "empty".to_owned(),
            (_, true, Some(false)) => "neither CPUs nor memory".to_owned(),
            (_, true, _) if small => "no CPUs".to_owned(),
            (_, true, _) => node.tier.map_or("memory only".to_owned(), |tier| format!("memory only, tier {tier}")),
            (_, _, Some(false)) => "no memory".to_owned(),
            _ => node.fake_of.map_or_else(String::new, |real| format!("fake, part of node {real}")),
        }
    }

    /// A bar as long as the node's memory is large, beside that of the largest node; the filled part is in use.
    fn memory(&self, width: i32) -> Drawn {
        let small = self.detail == Detail::Small;
        let (size, height) = if small { (9, 5) } else { (11, 8) };
        let label = match self.node.memory.get() {
            None if small => return Drawn { markup: html! {}, height: 0 },
            None => "memory not known".to_owned(),
            Some(memory) if memory.total_bytes == 0 => "no memory".to_owned(),
            Some(memory) => match memory.free_bytes {
                Some(free) if !small => format!("{}, {} free", bytes(memory.total_bytes), bytes(free)),
                _ => bytes(memory.total_bytes),
            },
        };
        let share = |part: u64, whole: u64| (part.min(whole) as f64 / whole.max(1) as f64 * f64::from(width)) as i32;
        let total = self.node.total_bytes().unwrap_or(0);
        let free = self.node.memory.get().and_then(|memory| memory.free_bytes);
        let used = free.map_or(0, |free| total.saturating_sub(free));
        let markup = html! {
            @if total > 0 {
                rect class="track" width=(share(total, self.largest).max(3)) height=(height) rx="3" {}
                @if used > 0 { rect class="used" width=(share(used, self.largest).max(2)) height=(height) rx="3" {} }
            }
            @let y = if total > 0 { height + size + 2 } else { size };
            (text("dim", 0, y, width, size, &label))
        };
        Drawn { markup, height: if total > 0 { height + size + 4 } else { size + 2 } }
    }

    fn devices(&self, width: i32) -> Option<Drawn> {
        let most = match self.detail {
            Detail::Full => 6,
            Detail::Medium => 3,
            Detail::Small => 0,
        };
        let (all, shown) = (self.devices.len(), self.devices.len().min(most));
        if all == 0 {
            return None;
        }
        if self.detail == Detail::Small {
            let markup = html! {
                rect class="port" y="2" width="7" height="7" rx="2" {}
                (text("item", 11, 9, width - 11, 9, &count(all, "device")))
            };
            return Some(Drawn { markup, height: 11 });
        }
        let more = (all > shown).then(|| format!("and {} more", count(all - shown, "device")));
        let markup = html! {
            @for (index, device) in self.devices.iter().take(shown).enumerate() {
                (self::device(device, 0, 10 + index as i32 * 17, width))
            }
            @if let Some(more) = &more { (text("dim", 14, 10 + shown as i32 * 17, width - 14, 11, more)) }
        };
        Some(Drawn { markup, height: (shown as i32 + i32::from(more.is_some())) * 17 - 4 })
    }
}

//! The rooms: one a node, in a grid, all of a row equally high.

use maud::{Markup, html};
use nearfar_machine::{Machine, Node, PciDevice};

use super::cores::Cores;
use super::{Detail, Drawn, at, device, device_line, homeless, links, text};
use crate::amount::{bytes, count};
use crate::summary::Packages;
use crate::topo::marks::{Lot, Marks};
use crate::topo::notable;
use crate::wrapping::clean;

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
        Self {
            columns,
            gap,
            width: (width - (count - 1) * gap) / count,
        }
    }

    /// The left edge of a room.
    pub(super) fn x(&self, index: usize) -> i32 {
        (index % self.columns) as i32 * (self.width + self.gap)
    }
}

/// All rooms, with the links between them where there are few.
pub(super) fn draw(machine: &Machine, marks: &Marks, width: i32) -> Drawn {
    let floor = Floor::plan(machine.nodes.len(), width);
    let detail = Detail::of(machine.nodes.len());
    let parts = Parts::of(machine, marks);
    let padding = detail.padding();
    let inside = |node| parts.inside(node, detail).draw(floor.width - 2 * padding);
    let contents: Vec<Drawn> = machine.nodes.iter().map(inside).collect();
    let mut rooms = Vec::new();
    let mut boxes = Vec::new();
    let mut y = 0;
    for (row, drawn) in contents.chunks(floor.columns).enumerate() {
        let height = drawn.iter().map(|drawn| drawn.height).max().unwrap_or(0) + 2 * padding;
        for (column, drawn) in drawn.iter().enumerate() {
            let index = row * floor.columns + column;
            let class = if machine.nodes[index].online {
                "room"
            } else {
                "room off"
            };
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
    Drawn {
        markup,
        height: (y - below).max(0),
    }
}

/// A picture a node, for a page that puts as many side by side as fit; then one of the devices without a node. Each has a title
/// and a description that say the same in words.
pub(crate) fn cards<'a>(
    machine: &Machine,
    marks: &Marks,
    nodes: impl ExactSizeIterator<Item = &'a Node>,
) -> Vec<Markup> {
    let detail = Detail::of(nodes.len());
    let parts = Parts::of(machine, marks);
    let (width, padding) = (
        if detail == Detail::Small { 130 } else { 300 },
        detail.padding(),
    );
    let card = |title: &str, about: &str, height: i32, markup: Markup| {
        html! {
            svg viewBox={ "0 0 " (width) " " (height) } role="img" {
                title { (clean(title)) }
                desc { (clean(about)) }
                (markup)
            }
        }
    };
    let node_card = |node| {
        let inside = parts.inside(node, detail);
        let drawn = inside.draw(width - 2 * padding);
        let height = drawn.height + 2 * padding;
        let markup = html! {
            rect class=(if node.online { "room" } else { "room off" }) x="0.5" y="0.5" width=(width - 1) height=(height - 1) rx="10" {}
            g transform=(at(padding, padding)) { (drawn.markup) }
        };
        card(
            &format!("Node {}", node.id),
            &inside.describe(),
            height,
            markup,
        )
    };
    let mut cards: Vec<Markup> = nodes.map(node_card).collect();
    if let Some(drawn) = homeless(machine, marks, 300) {
        let about = "Devices on no node, as far as the kernel knows; nearfar topo lists them.";
        cards.push(html! {
            svg viewBox={ "-0.5 -0.5 301 " (drawn.height + 1) } role="img" { title { "Devices without a node" } desc { (about) } (drawn.markup) }
        });
    }
    cards
}

/// What all rooms need.
struct Parts<'a> {
    cores: Cores<'a>,
    packages: Packages,
    largest: u64,
    devices: DevicesByNode<'a>,
    marks: &'a Marks,
}

impl<'a> Parts<'a> {
    fn of(machine: &'a Machine, marks: &'a Marks) -> Self {
        let largest = machine
            .nodes
            .iter()
            .filter_map(Node::total_bytes)
            .max()
            .unwrap_or(0);
        Self {
            cores: Cores::of(machine, marks),
            packages: Packages::of(machine),
            largest,
            devices: DevicesByNode::of(machine),
            marks,
        }
    }

    fn inside(&'a self, node: &'a Node, detail: Detail) -> Inside<'a> {
        let Self {
            cores,
            packages,
            largest,
            devices,
            marks,
        } = self;
        Inside {
            node,
            cores,
            packages,
            largest: *largest,
            devices: devices.on(node),
            marks,
            detail,
        }
    }
}

/// Devices that move data, by the node the kernel gives them.
struct DevicesByNode<'a>(Vec<&'a PciDevice>);

impl<'a> DevicesByNode<'a> {
    fn of(machine: &'a Machine) -> Self {
        let mut devices: Vec<_> = machine
            .pci
            .get()
            .into_iter()
            .flatten()
            .filter(|device| notable(device))
            .collect();
        devices.sort_by_key(|device| device.node.get().copied().flatten());
        Self(devices)
    }

    fn on(&self, node: &Node) -> &[&'a PciDevice] {
        let place = |device: &&PciDevice| device.node.get().copied().flatten();
        let start = self
            .0
            .partition_point(|device| place(device) < Some(node.id));
        let end = self
            .0
            .partition_point(|device| place(device) <= Some(node.id));
        &self.0[start..end]
    }
}

/// What one room holds.
struct Inside<'a> {
    node: &'a Node,
    cores: &'a Cores<'a>,
    packages: &'a Packages,
    largest: u64,
    devices: &'a [&'a PciDevice],
    marks: &'a Marks,
    detail: Detail,
}

impl Inside<'_> {
    fn draw(&self, width: i32) -> Drawn {
        let mut parts = vec![self.title(width)];
        parts.extend(self.cores.draw(self.node, width, self.detail));
        parts.push(self.memory(width));
        parts.extend(self.devices(width));
        parts.extend(self.interrupts(width));
        let gap = if self.detail == Detail::Small { 5 } else { 10 };
        let mut y = 0;
        let mut placed: Vec<Markup> = Vec::new();
        for part in parts {
            placed.push(html! { g transform=(at(0, y)) { (part.markup) } });
            y += part.height + gap;
        }
        Drawn {
            markup: html! { @for part in &placed { (part) } },
            height: y - gap,
        }
    }

    fn title(&self, width: i32) -> Drawn {
        let remark = self.remark();
        if self.detail == Detail::Small {
            let cpus = if remark.is_empty() {
                format!("{} CPUs", self.node.cpus.len())
            } else {
                remark
            };
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
        let cpus = match self.packages.on(self.cores.machine(), self.node) {
            package if package.is_empty() => cpus,
            package => format!("{cpus}, package {package}"),
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
            (_, true, _) => node.tier.map_or("memory only".to_owned(), |tier| {
                format!("memory only, tier {tier}")
            }),
            (_, _, Some(false)) => "no memory".to_owned(),
            _ => node
                .fake_of
                .map_or_else(String::new, |real| format!("fake, part of node {real}")),
        }
    }

    /// A bar as long as the node's memory is large, as a share of the largest node; the filled part is in use.
    fn memory(&self, width: i32) -> Drawn {
        let small = self.detail == Detail::Small;
        let (size, height) = if small { (9, 5) } else { (11, 8) };
        let label = match self.node.memory.get() {
            None if small => {
                return Drawn {
                    markup: html! {},
                    height: 0,
                };
            }
            None => "memory unknown".to_owned(),
            Some(memory) if memory.total_bytes == 0 => "no memory".to_owned(),
            Some(memory) => match memory.free_bytes {
                Some(free) if !small => {
                    format!("{}, {} free", bytes(memory.total_bytes), bytes(free))
                }
                _ => bytes(memory.total_bytes),
            },
        };
        let share = |part: u64, whole: u64| {
            (part.min(whole) as f64 / whole.max(1) as f64 * f64::from(width)) as i32
        };
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
        Drawn {
            markup,
            height: if total > 0 {
                height + size + 4
            } else {
                size + 2
            },
        }
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
                (self::device(device, self.marks, 0, 10 + index as i32 * 17, width))
            }
            @if let Some(more) = &more { (text("dim", 14, 10 + shown as i32 * 17, width - 14, 11, more)) }
        };
        Some(Drawn {
            markup,
            height: (shown as i32 + i32::from(more.is_some())) * 17 - 4,
        })
    }

    /// What the node's CPUs serve, far devices first.
    fn interrupts(&self, width: i32) -> Option<Drawn> {
        let (most, size) = if self.detail == Detail::Small {
            (1, 9)
        } else {
            (4, 11)
        };
        let lots = self.marks.lots(self.node.id);
        let line = |lot: &Lot| match lot.home == self.node.id {
            _ if self.detail == Detail::Small => {
                format!("{} of {}", count(lot.interrupts, "interrupt"), lot.device)
            }
            true => format!("{} of {}", count(lot.interrupts, "interrupt"), lot.device),
            false => far(lot),
        };
        let class = |lot: &Lot| {
            if lot.home == self.node.id {
                "dim"
            } else {
                "warn"
            }
        };
        let mut lines: Vec<(&str, String)> = lots
            .iter()
            .take(most)
            .map(|lot| (class(lot), line(lot)))
            .collect();
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
        const MOST: usize = 12;
        let node = self.node;
        let cpus = if node.cpus.is_empty() {
            "no CPUs".to_owned()
        } else {
            format!("CPUs {}", node.cpus)
        };
        let memory = node.total_bytes().map_or_else(
            || "memory unknown".to_owned(),
            |size| format!("{} of memory", bytes(size)),
        );
        let remark = Some(self.remark()).filter(|remark| !remark.is_empty());
        let devices = self
            .devices
            .iter()
            .take(MOST)
            .map(|device| device_line(device, self.marks));
        let more = self.devices.len().saturating_sub(MOST);
        let more = (more > 0).then(|| format!("and {}", count(more, "other device")));
        let lots = self.marks.lots(node.id).iter().take(MOST).map(far);
        [cpus, memory]
            .into_iter()
            .chain(remark)
            .chain(devices)
            .chain(more)
            .chain(lots)
            .collect::<Vec<_>>()
            .join("; ")
    }
}

/// `24 interrupts of eth0, on node 0 (21)`: what is served, where its device is, how far that is.
fn far(lot: &Lot) -> String {
    let distance = lot
        .distance
        .map_or_else(String::new, |distance| format!(" ({distance})"));
    format!(
        "{} of {}, on node {}{distance}",
        count(lot.interrupts, "interrupt"),
        lot.device,
        lot.home
    )
}

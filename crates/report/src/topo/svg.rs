//! The machine as a picture: nodes are boxes, with their CPUs, caches, memory and devices inside.
//!
//! ```text
//!  ┌ Node 0 ──────────┐          ┌ Node 1 ──────────┐      links with distances between the boxes of 2 and of
//!  │ ┌ L3 32 MiB ───┐ │    21    │ ...              │      4 nodes; for all machines a heat map below
//!  │ │ 0,4 1,5 2,6  │ ├──────────┤                  │
//!  │ └──────────────┘ │          │                  │      the more nodes, the fewer details in a box:
//!  │ ▓▓▓░░░░ 64 GiB   │          │                  │      up to 4 full, up to 16 medium, above that small
//!  │ ▪ nvme 3b:00.0   │          │                  │
//!  └──────────────────┘          └──────────────────┘
//!  ┌ no node, says the kernel: ▪ ... ┐
//! ```

pub(crate) mod blocks;
mod boxes;
mod cores;
pub(crate) mod legend;
mod links;
mod matrix;
pub(crate) mod theme;

use maud::{Markup, PreEscaped, html};
use nearfar_machine::{Machine, PciDevice};
use nearfar_placement::locality::Localities;

use super::marks::Marks;
use super::{device_place, notable};
use crate::summary::{self, Summary};
use crate::wrapping::{clean, columns, cut};

/// Width of the picture in its own units.
const WIDTH: i32 = 960;
/// Space around everything.
const MARGIN: i32 = 16;

pub(crate) use boxes::{box_columns, cards};
pub(crate) use matrix::ticks;

/// How much of a node is drawn.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Detail {
    Full,
    Medium,
    Small,
}

impl Detail {
    /// Space between a box's edge and what is in it.
    fn padding(self) -> i32 {
        if self == Self::Small { 7 } else { 14 }
    }

    fn of(nodes: usize) -> Self {
        match nodes {
            0..=4 => Self::Full,
            5..=16 => Self::Medium,
            _ => Self::Small,
        }
    }
}

/// A part of the picture and the height it takes.
#[derive(Default)]
struct Drawn {
    markup: Markup,
    height: i32,
}

/// A picture that stands alone: a whole SVG file, legible on light and dark, with all foreign text escaped.
pub fn svg(machine: &Machine) -> String {
    let inner = WIDTH - 2 * MARGIN;
    let marks = Marks::of(machine, None);
    let mut parts = vec![head(machine), boxes::draw(machine, &marks, inner)];
    parts.extend(on_no_node(machine, &marks, inner));
    parts.push(legend::draw(machine, &marks, inner));
    parts.extend(matrix::draw(machine, inner));
    let mut y = MARGIN;
    let mut placed = Vec::new();
    for part in parts {
        placed.push(html! { g transform=(at(MARGIN, y)) { (part.markup) } });
        y += part.height + 14;
    }
    let height = y - 14 + MARGIN;
    let caption = format!(
        "{}: {}",
        summary::name(machine),
        Summary::of(machine).line()
    );
    let drawing = html! {
        svg xmlns="http://www.w3.org/2000/svg" class="nearfar-map" viewBox={ "0 0 " (WIDTH) " " (height) } role="img" {
            title { (clean(&caption)) }
            desc { (describe(machine)) }
            style { (PreEscaped(theme::style())) }
            rect class="paper" width=(WIDTH) height=(height) {}
            @for part in &placed { (part) }
        }
    };
    theme::with_attributes(&drawing.into_string())
}

/// What the picture shows, for those who do not see it.
fn describe(machine: &Machine) -> String {
    let distances = match machine
        .distances
        .get()
        .filter(|table| table.nodes().len() > 1)
    {
        Some(_) => "; below them the distances between nodes",
        None => "",
    };
    format!(
        "Each node with its CPUs, caches, memory and devices{distances}. nearfar topo prints the same as text."
    )
}

fn head(machine: &Machine) -> Drawn {
    let mut about = summary::circumstances(machine).join(", ");
    if let Some(emulation) = &machine.origin.emulation {
        about = format!("{emulation}, {about}");
    }
    let room = WIDTH - 2 * MARGIN;
    let markup = html! {
        (text("name", 0, 18, room, 18, &summary::name(machine)))
        (text("summary", 0, 37, room, 12, &Summary::of(machine).line()))
        (text("dim", 0, 53, room, 11, &about))
    };
    Drawn { markup, height: 58 }
}

/// Devices for which the kernel knows no node: they are drawn outside all boxes.
fn on_no_node(machine: &Machine, marks: &Marks, width: i32) -> Option<Drawn> {
    const MOST: usize = 8;
    let without = |device: &&PciDevice| notable(device) && device.node.get() == Some(&None);
    let devices: Vec<&PciDevice> = machine.pci.get()?.iter().filter(without).collect();
    // On one node every device is near; firmware of such machines often says nothing.
    if devices.is_empty() || machine.nodes.len() < 2 {
        return None;
    }
    let localities = Localities::new(machine);
    let shown = devices.len().min(MOST) as i32;
    // In a narrow picture the place stands below the device.
    let (step, second) = if width < 600 {
        (34, (28, 17, width - 42))
    } else {
        (17, (width / 2, 0, width / 2 - 14))
    };
    let height = 32 + shown * step + 4;
    let title = match devices.len().saturating_sub(MOST) {
        0 => "on no node, as far as the kernel knows".to_owned(),
        more => format!("on no node, as far as the kernel knows ({more} more not drawn)"),
    };
    let markup = html! {
        rect class="no-node" width=(width) height=(height) rx="8" {}
        (text("warn", 14, 20, width - 28, 12, &title))
        @for (y, device) in (38..).step_by(step as usize).zip(devices.iter().take(MOST)) {
            (self::device(device, marks, 14, y, if width < 600 { width - 28 } else { width / 2 - 28 }))
            (text("dim", second.0, y + second.1, second.2, 11, &device_place(&localities, device)))
        }
    };
    Some(Drawn { markup, height })
}

/// A device in words: the name the system has for it, where it is, what it is.
fn device_line(device: &PciDevice, marks: &Marks) -> String {
    let short = device.address.to_string();
    let short = short.strip_prefix("0000:").unwrap_or(&short);
    let system = marks.known_name(device.address).unwrap_or("");
    let what = device
        .driver
        .as_deref()
        .or(device.class_name.as_deref())
        .unwrap_or("");
    let name = device.name.as_deref().unwrap_or("");
    [system, short, what, name]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join("  ")
}

/// One device on a line, with a flag where there are findings about it.
fn device(device: &PciDevice, marks: &Marks, x: i32, y: i32, width: i32) -> Markup {
    let findings = marks.findings(device.address);
    let flag = findings.map(|(severity, number)| (severity, number.to_string()));
    let taken = flag
        .as_ref()
        .map_or(14, |(_, number)| number.len() as i32 * 7 + 16);
    html! {
        @match &flag {
            Some((severity, number)) => {
                rect class={ "flag " (severity) } x=(x) y=(y - 10) width=(taken - 5) height="13" rx="3" {}
                text class={ "flagged " (severity) } x=(x + (taken - 5) / 2) y=(y) font-size="10" { "!" (number) }
            }
            None => rect class="port" x=(x) y=(y - 8) width="8" height="8" rx="2" {},
        }
        (text("item", x + taken, y, width - taken, 11, &device_line(device, marks)))
    }
}

pub(crate) fn at(x: i32, y: i32) -> String {
    format!("translate({x} {y})")
}

/// A line of text, cut to what fits into `width` at this font size.
pub(crate) fn text(class: &str, x: i32, y: i32, width: i32, size: i32, line: &str) -> Markup {
    let line = clean(line);
    // A sans-serif letter is about 0.56 of its size wide.
    let room = (f64::from(width) / (0.56 * f64::from(size))).max(1.0) as usize;
    let short = cut(&line, room.max(4));
    html! {
        text class=(class) x=(x) y=(y) font-size=(size) {
            (short)
            @if columns(&short) < columns(&line) { title { (line) } }
        }
    }
}

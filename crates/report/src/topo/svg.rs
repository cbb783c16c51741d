//! The machine as a picture: nodes are rooms, with their CPUs, caches, memory and devices inside.
//!
//! ```text
//!  ┌ Node 0 ──────────┐          ┌ Node 1 ──────────┐      links with distances between the rooms of 2 and of
//!  │ ┌ L3 32 MiB ───┐ │    21    │ ...              │      4 nodes; for all machines a heat map below
//!  │ │ 0,4 1,5 2,6  │ ├──────────┤                  │
//!  │ └──────────────┘ │          │                  │      the more nodes, the fewer details in a room:
//!  │ ▓▓▓░░░░ 64 GiB   │          │                  │      up to 4 full, up to 16 medium, above that small
//!  │ ▪ nvme 3b:00.0   │          │                  │
//!  └──────────────────┘          └──────────────────┘
//!  ┌ no node, says the kernel: ▪ ... ┐
//! ```

mod cores;
mod links;
mod matrix;
mod rooms;

use maud::{Markup, PreEscaped, html};
use nearfar_machine::{Machine, PciDevice};
use nearfar_placement::locality::Localities;

use super::{device_place, notable};
use crate::summary::{self, Summary};
use crate::wrapping::{clean, columns, cut};

/// Width of the picture in its own units.
const WIDTH: i32 = 960;
/// Space around everything.
const MARGIN: i32 = 16;

/// Colours and type, for light and dark surroundings.
pub(crate) const THEME: &str = include_str!("svg/theme.css");

/// Where the picture stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Surroundings {
    /// In a file of its own: with title, theme and a heat map of distances.
    Alone,
    /// In a page that has all of these itself.
    Page,
}

/// How much of a node is drawn.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Detail {
    Full,
    Medium,
    Small,
}

impl Detail {
    fn of(nodes: usize) -> Self {
        match nodes {
            0..=4 => Self::Full,
            5..=16 => Self::Medium,
            _ => Self::Small,
        }
    }
}

/// A part of the picture and the height it takes.
struct Drawn {
    markup: Markup,
    height: i32,
}

/// A picture that stands alone: a whole SVG file, legible on light and dark, with all foreign text escaped.
pub fn svg(machine: &Machine) -> String {
    drawing(machine, Surroundings::Alone).into_string()
}

/// The picture as markup.
pub(crate) fn drawing(machine: &Machine, surroundings: Surroundings) -> Markup {
    let alone = surroundings == Surroundings::Alone;
    let margin = if alone { MARGIN } else { 1 };
    let inner = WIDTH - 2 * margin;
    let mut parts = Vec::new();
    if alone {
        parts.push(head(machine));
    }
    parts.push(rooms::draw(machine, inner));
    parts.extend(homeless(machine, inner));
    if alone {
        parts.extend(matrix::draw(machine, inner));
    }
    let mut y = margin;
    let mut placed = Vec::new();
    for part in parts {
        placed.push(html! { g transform=(at(margin, y)) { (part.markup) } });
        y += part.height + 14;
    }
    let height = y - 14 + margin;
    let caption = format!("{}: {}", summary::name(machine), Summary::of(machine).line());
    html! {
        svg xmlns="http://www.w3.org/2000/svg" class="nearfar-map" viewBox={ "0 0 " (WIDTH) " " (height) } role="img" {
            title { (clean(&caption)) }
            @if alone { style { (PreEscaped(THEME)) } }
            rect class="paper" width=(WIDTH) height=(height) {}
            @for part in &placed { (part) }
        }
    }
}

fn head(machine: &Machine) -> Drawn {
    let mut about = summary::circumstances(machine).join(", ");
    if let Some(label) = &machine.origin.emulated {
        about = format!("{label}, {about}");
    }
    let room = WIDTH - 2 * MARGIN;
    let markup = html! {
        (text("name", 0, 18, room, 18, &summary::name(machine)))
        (text("line", 0, 37, room, 12, &Summary::of(machine).line()))
        (text("dim", 0, 53, room, 11, &about))
    };
    Drawn { markup, height: 58 }
}

/// Devices for which the kernel knows no node: they are drawn outside all rooms.
fn homeless(machine: &Machine, width: i32) -> Option<Drawn> {
    const MOST: usize = 8;
    let without = |device: &&PciDevice| notable(device) && device.node.get() == Some(&None);
    let devices: Vec<&PciDevice> = machine.pci.get()?.iter().filter(without).collect();
    // On one node every device is near; firmware of such machines often says nothing.
    if devices.is_empty() || machine.nodes.len() < 2 {
        return None;
    }
    let localities = Localities::new(machine);
    let shown = devices.len().min(MOST) as i32;
    let height = 32 + shown * 17 + 4;
    let title = match devices.len().saturating_sub(MOST) {
        0 => "on no node, as far as the kernel knows".to_owned(),
        more => format!("on no node, as far as the kernel knows ({more} more not drawn)"),
    };
    let markup = html! {
        rect class="homeless" width=(width) height=(height) rx="8" {}
        (text("warn", 14, 20, width - 28, 12, &title))
        @for (y, device) in (38..).step_by(17).zip(devices.iter().take(MOST)) {
            (self::device(device, 14, y, width / 2 - 28))
            (text("dim", width / 2, y, width / 2 - 14, 11, &device_place(&localities, device)))
        }
    };
    Some(Drawn { markup, height })
}

/// One device on a line.
fn device(device: &PciDevice, x: i32, y: i32, width: i32) -> Markup {
    let short = device.address.to_string();
    let short = short.strip_prefix("0000:").unwrap_or(&short);
    let what = device.driver.as_deref().or(device.class_name.as_deref()).unwrap_or("");
    let name = device.name.as_deref().unwrap_or("");
    let line = [short, what, name].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("  ");
    html! {
        rect class="port" x=(x) y=(y - 8) width="8" height="8" rx="2" {}
        (text("item", x + 14, y, width - 14, 11, &line))
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

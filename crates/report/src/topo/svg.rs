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

mod boxes;
pub(crate) mod matrix;
pub(crate) mod theme;

use maud::{Markup, PreEscaped, html};
use nearfar_machine::{Machine, PciDevice};
use nearfar_placement::locality::Localities;

use super::marks::Marks;
use super::{device_place, notable};
use crate::document::{clean, columns, cut};
use crate::summary::{self, Summary};

/// Width of the picture in its own units.
const WIDTH: i32 = 960;
/// Space around everything.
const MARGIN: i32 = 16;

pub(crate) use boxes::{box_columns, cards};

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
struct Piece {
    markup: Markup,
    height: i32,
}

/// A picture that stands alone: a whole SVG file, legible on light and dark, with all foreign text escaped.
pub fn svg(machine: &Machine) -> String {
    let inner = WIDTH - 2 * MARGIN;
    let marks = Marks::of(machine, None);
    let mut parts = vec![head(machine), boxes::draw(machine, &marks, inner)];
    parts.extend(on_no_node(machine, &marks, inner));
    parts.push(legend(machine, &marks, inner));
    parts.extend(matrix::draw(machine, inner));
    let mut y = MARGIN;
    let mut placed = Vec::new();
    for part in parts {
        placed.push(html! { g transform=(at(MARGIN, y)) { (part.markup) } });
        y += part.height + 14;
    }
    let height = y - 14 + MARGIN;
    let (name, line) = (summary::name(machine), Summary::of(machine).line());
    let caption = format!("{name}: {line}");
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
    let table = machine.distances.get();
    let distances = match table.is_some_and(|table| table.nodes().len() > 1) {
        true => "; below them the distances between nodes",
        false => "",
    };
    format!(
        "Each node with its CPUs, caches, memory and devices{distances}. nearfar topo prints the same as text."
    )
}

fn head(machine: &Machine) -> Piece {
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
    Piece { markup, height: 58 }
}

/// Devices for which the kernel knows no node: they are drawn outside all boxes.
fn on_no_node(machine: &Machine, marks: &Marks, width: i32) -> Option<Piece> {
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
    let (step, first, second) = match width {
        ..600 => (34, width - 28, (28, 17, width - 42)),
        _ => (17, width / 2 - 28, (width / 2, 0, width / 2 - 14)),
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
            (self::device(device, marks, 14, y, first))
            (text("dim", second.0, y + second.1, second.2, 11, &device_place(&localities, device)))
        }
    };
    Some(Piece { markup, height })
}

/// A device in words: the name the system has for it, where it is, what it is.
fn device_line(device: &PciDevice, marks: &Marks) -> String {
    let short = device.address.to_string();
    let short = short.strip_prefix("0000:").unwrap_or(&short);
    let system = marks.known_name(device.address).unwrap_or("");
    let what = device.driver.as_deref().or(device.class_name.as_deref());
    let name = device.name.as_deref();
    let mut parts = vec![system, short, what.unwrap_or(""), name.unwrap_or("")];
    parts.retain(|part| !part.is_empty());
    parts.join("  ")
}

/// One device on a line, with a flag where there are findings about it.
fn device(device: &PciDevice, marks: &Marks, x: i32, y: i32, width: i32) -> Markup {
    let findings = marks.findings(device.address);
    let flag = findings.map(|(severity, number)| (severity, number.to_string()));
    let digits = flag.as_ref().map(|(_, number)| number.len() as i32);
    let taken = digits.map_or(14, |digits| digits * 7 + 16);
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

/// A shape of 12 x 12 and what it means.
struct Sign {
    shape: Markup,
    means: &'static str,
}

fn signs(machine: &Machine, marks: &Marks) -> Vec<Sign> {
    let box_of =
        |class: &str| html! { rect class=(class) x="0.5" y="0.5" width="11" height="11" rx="3" {} };
    let states = &machine.cpu_states;
    let nodes = || machine.nodes.iter();
    let online = nodes().any(|node| node.known_cpus().intersects(&states.online));
    let down = nodes().any(|node| !node.known_cpus().is_subset(&states.online));
    let memory = nodes().any(|node| node.total_bytes().is_some_and(|size| size > 0));
    let mut memories = nodes().filter_map(|node| node.memory.get());
    let free = memories.any(|memory| memory.free_bytes.is_some());
    let all = [
        (online, box_of("cpu"), "core, with its CPUs"),
        (
            !states.kept_free().is_empty(),
            box_of("kept"),
            "kept free (isolcpus=, nohz_full=)",
        ),
        (down, box_of("down"), "offline"),
        (
            !marks.far.is_empty(),
            html! { (box_of("cpu")) path.far-mark d="M4 0h8v8z" {} },
            "serves interrupts of a device on another node (small cells: filled)",
        ),
        (
            !marks.near.is_empty(),
            html! { (box_of("cpu")) circle.near-mark cx="8" cy="4" r="2" {} },
            "serves interrupts of a device on its own node",
        ),
        (
            memory,
            html! { rect.track y="3" width="12" height="6" rx="3" {} @if free { rect.used y="3" width="6" height="6" rx="3" {} } },
            if free {
                "memory; its length is its size; dark: in use"
            } else {
                "memory; its length is its size"
            },
        ),
    ];
    let there = all.into_iter().filter(|(there, ..)| *there);
    there
        .map(|(_, shape, means)| Sign { shape, means })
        .collect()
}

/// The legend of a picture that stands alone: two signs a line.
fn legend(machine: &Machine, marks: &Marks, width: i32) -> Piece {
    let signs = signs(machine, marks);
    let markup = html! {
        @for (index, sign) in signs.iter().enumerate() {
            @let (x, y) = ((index % 2) as i32 * width / 2, index as i32 / 2 * 18);
            g transform=(at(x, y)) { (sign.shape) (text("dim", 18, 10, width / 2 - 22, 11, sign.means)) }
        }
    };
    Piece {
        markup,
        height: signs.len().div_ceil(2) as i32 * 18,
    }
}

/// The legend of a page: a list.
pub(crate) fn legend_list(machine: &Machine, marks: &Marks) -> Markup {
    html! {
        ul.legend.signs {
            @for sign in signs(machine, marks) {
                li { svg viewBox="0 0 12 12" width="12" height="12" aria-hidden="true" { (sign.shape) } " " (sign.means) }
            }
        }
    }
}

//! What the shapes of the picture mean: those that are in it.

use maud::{Markup, html};
use nearfar_machine::Machine;

use super::{Drawn, text};
use crate::topo::marks::Marks;

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
    let free = nodes()
        .filter_map(|node| node.memory.get())
        .any(|memory| memory.free_bytes.is_some());
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
pub(super) fn draw(machine: &Machine, marks: &Marks, width: i32) -> Drawn {
    let signs = signs(machine, marks);
    let markup = html! {
        @for (index, sign) in signs.iter().enumerate() {
            @let (x, y) = ((index % 2) as i32 * width / 2, index as i32 / 2 * 18);
            g transform=(super::at(x, y)) { (sign.shape) (text("dim", 18, 10, width / 2 - 22, 11, sign.means)) }
        }
    };
    Drawn {
        markup,
        height: signs.len().div_ceil(2) as i32 * 18,
    }
}

/// The legend of a page: a list.
pub(crate) fn list(machine: &Machine, marks: &Marks) -> Markup {
    html! {
        ul.legend.signs {
            @for sign in signs(machine, marks) {
                li { svg viewBox="0 0 12 12" width="12" height="12" aria-hidden="true" { (sign.shape) } " " (sign.means) }
            }
        }
    }
}

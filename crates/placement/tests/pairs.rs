//! How GPUs and network cards reach each other, compared with machines of which both the PCI tree
//! and the matrix of `nvidia-smi topo -m` are published.
//!
//! Both are bare metal and have no NVLink, so every cell is about PCI. They are in
//! <https://github.com/luigifcruz/stelline>, commit 383e316755e36e66f619d1dfccc9bd7e5f19d008 of
//! 2026-07-05, directory `hardware`. Here are the functions in the matrix and the bridges above
//! them, by `lspci -tv`. No two of them share a switch: `PIX` below a switch, and `PXB`, are not
//! compared.

use nearfar_machine::Machine;
use nearfar_placement::pairs::gpu_paths;

use crate::common::{add_function, function, machine, pci};

const BRIDGE: u32 = 0x06_0400;
const GPU: u32 = 0x03_0000;
const CARD: u32 = 0x02_0000;

/// Adds a function and the bridges above it: their addresses from the root bus down.
fn add(host: &mut Machine, class: u32, node: Option<u32>, path: &str) {
    let path: Vec<String> = path.split(' ').map(|it| format!("0000:{it}")).collect();
    for (index, address) in path.iter().enumerate() {
        let is_last = index + 1 == path.len();
        let class = if is_last { class } else { BRIDGE };
        let mut device = function(address, class, "driver", node);
        device.root = pci(&path[0]).into();
        device.parent = index.checked_sub(1).map(|above| pci(&path[above]));
        if host.pci_device(device.address).is_none() {
            add_function(host, device);
        }
    }
}

fn compare(mut host: Machine, functions: &[(u32, Option<u32>, &str)], published: &[&str]) {
    for &(class, node, path) in functions {
        add(&mut host, class, node, path);
    }
    let paths = gpu_paths(&host);
    let rows: Vec<String> = paths.matrix.iter().map(|row| row.join(" ")).collect();
    assert_eq!(rows, published);
}

/// `asus-esc8000a-e12.md`: two sockets, each with four host bridges; the nodes are those of
/// `lspci -vvv`, and of the first function of a card for its second.
#[test]
fn two_sockets_with_cards_of_two_functions() {
    compare(
        machine(&["0-31", "32-63"], &[&[10, 32], &[32, 10]]),
        &[
            (GPU, Some(0), "00:01.1 01:00.0"),
            (GPU, Some(0), "40:01.1 41:00.0"),
            (GPU, Some(1), "c0:01.1 c1:00.0"),
            (GPU, Some(1), "e0:01.1 e1:00.0"),
            (CARD, Some(0), "20:03.1 21:00.0"),
            (CARD, Some(0), "20:03.1 21:00.1"),
            (CARD, Some(1), "80:01.1 81:00.0"),
            (CARD, Some(1), "80:01.1 81:00.1"),
        ],
        &[
            "X NODE SYS SYS NODE NODE SYS SYS",
            "NODE X SYS SYS NODE NODE SYS SYS",
            "SYS SYS X NODE SYS SYS NODE NODE",
            "SYS SYS NODE X SYS SYS NODE NODE",
            "NODE NODE SYS SYS X PIX SYS SYS",
            "NODE NODE SYS SYS PIX X SYS SYS",
            "SYS SYS NODE NODE SYS SYS X PIX",
            "SYS SYS NODE NODE SYS SYS PIX X",
        ],
    );
}

/// `puget-threadripper-pro-wrx90.md`: one socket and one node. `lspci -vvv` prints no node for any
/// function, so the kernel has none (-1) for them.
#[test]
fn one_node_that_the_kernel_gives_no_device() {
    compare(
        machine(&["0-23"], &[&[10]]),
        &[
            (GPU, None, "c0:01.1 c1:00.0"),
            (GPU, None, "c0:03.1 c2:00.0"),
            (CARD, None, "20:01.1 21:00.0"),
            (CARD, None, "20:01.1 21:00.1"),
        ],
        &[
            "X PHB NODE NODE",
            "PHB X NODE NODE",
            "NODE NODE X PIX",
            "NODE NODE PIX X",
        ],
    );
}

//! How GPUs and network cards reach each other, compared with machines of which both the PCI tree
//! and the matrix of `nvidia-smi topo -m` are published:
//!
//! - <https://github.com/luigifcruz/stelline>, commit 383e316755e36e66f619d1dfccc9bd7e5f19d008 of
//!   2026-07-05, directory `hardware`: two machines, bare metal, without NVLink. No two devices
//!   share a switch. The trees are those of `lspci -tv`.
//! - <https://github.com/NVIDIA/nccl-tests/issues/380> of 2026-04-30: a machine with switches below
//!   switches, and a guest that has its GPUs and network cards. The trees are those of `lstopo`,
//!   which does not print the addresses of bridges: those here are made up.
//! - <https://github.com/nvidia-holoscan/holohub>, commit 00a70dbe162ce6a0f19b4973a971bd4a6cb42e9e
//!   of 2026-08-20, `tutorials/high_performance_networking/README.md`: an IGX Orin developer kit.
//!   The tree is that of `lspci -tv`.
//!
//! A cell of NVLink (`NV18`) is not compared: `topo -m` prints it instead of the path through PCI,
//! and NVLink is not in sysfs. Every other published cell follows from the tree.

use nearfar_machine::{Machine, PciAddress};
use nearfar_placement::pairs::gpu_paths;

use crate::common::{add_function, function, machine, pci};

const BRIDGE: u32 = 0x06_0400;
const GPU: u32 = 0x03_0000;
const CARD: u32 = 0x02_0000;

/// A function and the bridges above it, from the root bus down: all in the domain of the first.
fn addresses(path: &str) -> Vec<PciAddress> {
    let mut addresses: Vec<PciAddress> = path.split(' ').map(pci).collect();
    let domain = addresses[0].domain;
    for address in &mut addresses {
        address.domain = domain;
    }
    addresses
}

/// Adds a function and the bridges above it.
fn add(host: &mut Machine, class: u32, node: Option<u32>, path: &str) {
    let path = addresses(path);
    for (index, &address) in path.iter().enumerate() {
        let is_last = index + 1 == path.len();
        let class = if is_last { class } else { BRIDGE };
        let mut device = function(&address.to_string(), class, "driver", node);
        device.root = path[0].into();
        device.parent = index.checked_sub(1).map(|above| path[above]);
        if host.pci_device(address).is_none() {
            add_function(host, device);
        }
    }
}

/// Compares each cell of the matrix. A function is its kind, its node (`-`: none), the bridges
/// above it and its address; the functions are in the order of the matrix.
fn compare(mut host: Machine, functions: &[&str], published: &[&str]) {
    let mut printed = Vec::new();
    for function in functions {
        let parts: Vec<&str> = function.splitn(3, ' ').collect();
        let [kind, node, path] = parts[..] else {
            panic!("{function}");
        };
        let class = if kind == "GPU" { GPU } else { CARD };
        add(&mut host, class, node.parse().ok(), path);
        printed.extend(addresses(path).pop());
    }
    let paths = gpu_paths(&host);
    let position = |address: &PciAddress| paths.devices.iter().position(|it| it == address);
    let order: Vec<usize> = printed.iter().filter_map(position).collect();
    assert_eq!(order.len(), functions.len());
    assert_eq!(paths.devices.len(), order.len());
    assert_eq!(published.len(), order.len());
    for (&row, cells) in order.iter().zip(published) {
        let cells: Vec<&str> = cells.split(' ').collect();
        assert_eq!(cells.len(), order.len());
        for (&column, &cell) in order.iter().zip(&cells) {
            let (a, b) = (paths.devices[row], paths.devices[column]);
            if !cell.starts_with("NV") {
                assert_eq!(paths.matrix[row][column], cell, "{a} and {b}");
            }
        }
    }
}

/// `asus-esc8000a-e12.md`: two sockets, each with four host bridges; the nodes are those of
/// `lspci -vvv`, and of the first function of a card for its second.
#[test]
fn two_sockets_with_cards_of_two_functions() {
    compare(
        machine(&["0-31", "32-63"], &[&[10, 32], &[32, 10]]),
        &[
            "GPU 0 00:01.1 01:00.0",
            "GPU 0 40:01.1 41:00.0",
            "GPU 1 c0:01.1 c1:00.0",
            "GPU 1 e0:01.1 e1:00.0",
            "CARD 0 20:03.1 21:00.0",
            "CARD 0 20:03.1 21:00.1",
            "CARD 1 80:01.1 81:00.0",
            "CARD 1 80:01.1 81:00.1",
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
            "GPU - c0:01.1 c1:00.0",
            "GPU - c0:03.1 c2:00.0",
            "CARD - 20:01.1 21:00.0",
            "CARD - 20:01.1 21:00.1",
        ],
        &[
            "X PHB NODE NODE",
            "PHB X NODE NODE",
            "NODE NODE X PIX",
            "NODE NODE PIX X",
        ],
    );
}

/// Issue 380, the host: GPUs of nodes 0 and 2, each pair below switches of its own. GPUs have their
/// numbers by address, as `nvidia-smi` gives them, and NIC2 to NIC5 are `mlx5_2` to `mlx5_5`. The
/// issue has the other two cards neither in the tree nor in the matrix. It has no distances, which
/// the matrix does not depend on.
#[test]
fn switches_below_switches() {
    compare(
        machine(
            &["0-23", "24-47", "48-71", "72-95"],
            &[
                &[10, 12, 21, 21],
                &[12, 10, 21, 21],
                &[21, 21, 10, 12],
                &[21, 21, 12, 10],
            ],
        ),
        &[
            "GPU 0 00:01.0 01:00.0 02:00.0 03:00.0 04:00.0 0a:00.0",
            "GPU 0 00:01.0 01:00.0 02:01.0 10:00.0 11:01.0 18:00.0",
            "GPU 0 30:01.0 31:00.0 32:00.0 33:00.0 34:00.0 3c:00.0",
            "GPU 0 30:01.0 31:00.0 32:01.0 40:00.0 41:01.0 45:00.0",
            "GPU 2 80:01.0 81:00.0 82:00.0 83:00.0 84:00.0 87:00.0",
            "GPU 2 80:01.0 81:00.0 82:01.0 8b:00.0 8c:01.0 90:00.0",
            "GPU 2 b0:01.0 b1:00.0 b2:00.0 b3:00.0 b4:00.0 b9:00.0",
            "GPU 2 b0:01.0 b1:00.0 b2:01.0 bd:00.0 be:01.0 c2:00.0",
            "CARD 0 00:01.0 01:00.0 02:01.0 10:00.0 11:00.0 17:00.0",
            "CARD 0 30:01.0 31:00.0 32:01.0 40:00.0 41:00.0 44:00.0",
            "CARD 2 80:01.0 81:00.0 82:01.0 8b:00.0 8c:00.0 8f:00.0",
            "CARD 2 b0:01.0 b1:00.0 b2:01.0 bd:00.0 be:00.0 c1:00.0",
        ],
        &[
            "X NV18 NV18 NV18 NV18 NV18 NV18 NV18 PXB NODE SYS SYS",
            "NV18 X NV18 NV18 NV18 NV18 NV18 NV18 PIX NODE SYS SYS",
            "NV18 NV18 X NV18 NV18 NV18 NV18 NV18 NODE PXB SYS SYS",
            "NV18 NV18 NV18 X NV18 NV18 NV18 NV18 NODE PIX SYS SYS",
            "NV18 NV18 NV18 NV18 X NV18 NV18 NV18 SYS SYS PXB NODE",
            "NV18 NV18 NV18 NV18 NV18 X NV18 NV18 SYS SYS PIX NODE",
            "NV18 NV18 NV18 NV18 NV18 NV18 X NV18 SYS SYS NODE PXB",
            "NV18 NV18 NV18 NV18 NV18 NV18 NV18 X SYS SYS NODE PIX",
            "PXB PIX NODE NODE SYS SYS SYS SYS X NODE SYS SYS",
            "NODE NODE PXB PIX SYS SYS SYS SYS NODE X SYS SYS",
            "SYS SYS SYS SYS PXB PIX NODE NODE SYS SYS X NODE",
            "SYS SYS SYS SYS NODE NODE PXB PIX SYS SYS NODE X",
        ],
    );
}

/// Issue 380, the guest: one GPU of each pair is below the upper switch itself. The cards are in
/// the order of their names, `mlx5_0` to `mlx5_3`, which is not that of their addresses.
#[test]
fn switches_of_a_guest() {
    compare(
        machine(&["0-23", "24-47"], &[&[10, 20], &[20, 10]]),
        &[
            "GPU 0 20:00.0 21:00.0 22:00.0 23:00.0",
            "GPU 0 20:00.0 21:00.0 22:01.0 24:00.0 25:01.0 27:00.0",
            "GPU 0 40:00.0 41:00.0 42:00.0 43:00.0",
            "GPU 0 40:00.0 41:00.0 42:01.0 44:00.0 45:01.0 47:00.0",
            "GPU 1 66:00.0 67:00.0 68:00.0 69:00.0",
            "GPU 1 66:00.0 67:00.0 68:01.0 6a:00.0 6b:01.0 6d:00.0",
            "GPU 1 80:00.0 81:00.0 82:00.0 83:00.0",
            "GPU 1 80:00.0 81:00.0 82:01.0 84:00.0 85:01.0 87:00.0",
            "CARD 1 80:00.0 81:00.0 82:01.0 84:00.0 85:00.0 86:00.0",
            "CARD 1 66:00.0 67:00.0 68:01.0 6a:00.0 6b:00.0 6c:00.0",
            "CARD 0 40:00.0 41:00.0 42:01.0 44:00.0 45:00.0 46:00.0",
            "CARD 0 20:00.0 21:00.0 22:01.0 24:00.0 25:00.0 26:00.0",
        ],
        &[
            "X NV18 NV18 NV18 NV18 NV18 NV18 NV18 SYS SYS NODE PXB",
            "NV18 X NV18 NV18 NV18 NV18 NV18 NV18 SYS SYS NODE PIX",
            "NV18 NV18 X NV18 NV18 NV18 NV18 NV18 SYS SYS PXB NODE",
            "NV18 NV18 NV18 X NV18 NV18 NV18 NV18 SYS SYS PIX NODE",
            "NV18 NV18 NV18 NV18 X NV18 NV18 NV18 NODE PXB SYS SYS",
            "NV18 NV18 NV18 NV18 NV18 X NV18 NV18 NODE PIX SYS SYS",
            "NV18 NV18 NV18 NV18 NV18 NV18 X NV18 PXB NODE SYS SYS",
            "NV18 NV18 NV18 NV18 NV18 NV18 NV18 X PIX NODE SYS SYS",
            "SYS SYS SYS SYS NODE NODE PXB PIX X NODE SYS SYS",
            "SYS SYS SYS SYS PXB PIX NODE NODE NODE X SYS SYS",
            "NODE NODE PXB PIX SYS SYS SYS SYS SYS SYS X NODE",
            "PXB PIX NODE NODE SYS SYS SYS SYS SYS SYS NODE X",
        ],
    );
}

/// The IGX Orin developer kit: an RTX A6000 below a switch of its own, which is below the switch of
/// a ConnectX-7 of two functions. Their nodes are not published, which the matrix does not depend
/// on. The matrix is that of `topo -mp`, which leaves NVLink out. Tree and matrix are examples in
/// one document, for an IGX developer kit; it does not say that one machine printed both.
#[test]
fn card_with_a_switch_above_the_switch_of_a_gpu() {
    compare(
        machine(&["0-11"], &[&[10]]),
        &[
            "GPU - 0005:00:00.0 01:00.0 02:02.0 07:00.0 08:00.0 09:00.0",
            "CARD - 0005:00:00.0 01:00.0 02:00.0 03:00.0",
            "CARD - 0005:00:00.0 01:00.0 02:00.0 03:00.1",
        ],
        &["X PXB PXB", "PXB X PIX", "PXB PIX X"],
    );
}

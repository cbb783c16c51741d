// SPDX-License-Identifier: GPL-2.0-or-later
//! A QEMU plugin that makes far memory slow.
//!
//! ```text
//!  guest load or store
//!        │ every one
//!        ▼
//!   filter        the vCPU's last lines, by virtual address ──► hit: nothing happens
//!        │ not there
//!        ▼
//!   memory map    physical address ──► line and its node      ──► I/O, ROM: nothing happens
//!        │
//!        ▼
//!   cache         last level of the vCPU's node               ──► hit: nothing happens
//!   ownership     who wrote the line last, who has copies     ──► another vCPU: a transfer
//!        │ in no cache
//!        ▼
//!   delay         of (vCPU's node, memory's node): the vCPU's thread spins, the guest's clock runs on
//! ```
//!
//! What to do comes as text in a shared memory region ([`region`], [`config`]); what was counted is left there. While
//! the region's gate is closed no guest code is instrumented at all, so a boot costs what it costs without the plugin.
//!
//! QEMU's functions are looked up when QEMU loads the plugin ([`qemu`]), so the crate builds and tests without QEMU.

pub mod config;
pub mod model;
pub mod plugin;
pub mod qemu;
pub mod region;
pub mod time;
pub mod vcpu;

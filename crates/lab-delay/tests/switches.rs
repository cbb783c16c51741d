// SPDX-License-Identifier: GPL-2.0-or-later
//! Which instructions empty the filter; encodings as GNU as writes them.

use nearfar_lab_delay::plugin::InstructionSet;

#[test]
fn x86_switches_by_cr3_and_takes_pages_away_by_invlpg_and_invpcid() {
    let x86 = InstructionSet::of("x86_64");
    assert!(x86.switches(&[0x0f, 0x22, 0xd8]), "mov %rax,%cr3");
    assert!(x86.switches(&[0x41, 0x0f, 0x22, 0xdc]), "mov %r12,%cr3");
    assert!(x86.switches(&[0x0f, 0x01, 0x38]), "invlpg (%rax)");
    assert!(
        x86.switches(&[0x66, 0x0f, 0x38, 0x82, 0x04, 0x24]),
        "invpcid (%rsp),%rax"
    );
    assert!(!x86.switches(&[0x0f, 0x20, 0xd8]), "mov %cr3,%rax");
    assert!(!x86.switches(&[0x0f, 0x22, 0xc0]), "mov %rax,%cr0");
    assert!(!x86.switches(&[0x0f, 0x01, 0xf8]), "swapgs");
    assert!(!x86.switches(&[]) && !x86.switches(&[0x66; 15]));
}

#[test]
fn only_x86_has_a_pause() {
    let is_pause = |target, bytes: &[u8]| InstructionSet::of(target).is_pause(bytes);
    assert!(is_pause("x86_64", &[0xf3, 0x90]));
    assert!(!is_pause("x86_64", &[0x90]) && !is_pause("x86_64", &[0x66, 0x90]));
    assert!(!is_pause("aarch64", &[0xf3, 0x90]));
}

#[test]
fn arm_switches_by_its_table_registers() {
    let arm = InstructionSet::of("aarch64");
    assert!(
        arm.switches(&0xd518_2000u32.to_le_bytes()),
        "msr ttbr0_el1, x0"
    );
    assert!(
        arm.switches(&0xd518_2021u32.to_le_bytes()),
        "msr ttbr1_el1, x1"
    );
    assert!(
        !arm.switches(&0xd518_2040u32.to_le_bytes()),
        "msr tcr_el1, x0"
    );
    assert!(!arm.switches(&[0xd5]));
}

#[test]
fn power_switches_by_its_process_number_or_segments() {
    let power = InstructionSet::of("ppc64");
    assert!(power.switches(&0x7c70_0ba6u32.to_le_bytes()), "mtpidr r3");
    assert!(
        power.switches(&0x7c60_2324u32.to_le_bytes()),
        "slbmte r3,r4"
    );
    assert!(!power.switches(&0x7c08_03a6u32.to_le_bytes()), "mtlr r0");
}

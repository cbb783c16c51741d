// SPDX-License-Identifier: GPL-2.0-or-later
//! Instructions that are told apart.
//!
//! After some, a virtual address may stand for other memory. The filter of [`crate::vcpu`] goes by virtual addresses, so it must be emptied when the guest's kernel switches to
//! another process or takes a page away. On x86-64 every CPU does both with instructions of its own. On arm64 and Power
//! pages are taken away on all CPUs at once by one of them; there, a line of the filter may outlive its page until the
//! next process switch.

/// The guest's instruction set, by QEMU's name for the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InstructionSet {
    /// `x86_64`.
    X86,
    /// `aarch64`.
    Arm,
    /// `ppc64`; little-endian guests.
    Power,
    /// Anything else: nothing is recognised.
    Other,
}

impl InstructionSet {
    /// By QEMU's name.
    pub fn of(target: &str) -> Self {
        match target {
            "x86_64" | "i386" => Self::X86,
            "aarch64" => Self::Arm,
            "ppc64" => Self::Power,
            _ => Self::Other,
        }
    }

    /// Whether an instruction is one that waits for [`PAUSE_PS`].
    pub fn is_pause(self, instruction: &[u8]) -> bool {
        self == Self::X86 && instruction == [0xf3, 0x90]
    }

    /// Whether an instruction changes what addresses stand for.
    pub fn switches(self, instruction: &[u8]) -> bool {
        match self {
            Self::X86 => x86(instruction),
            Self::Arm => word(instruction).is_some_and(arm),
            Self::Power => word(instruction).is_some_and(power),
            Self::Other => false,
        }
    }
}

/// What `pause` takes, in picoseconds: some 140 cycles of 3 GHz since Skylake (Intel's optimization manual, 2.5.4). A loop that
/// waits for a lock consists of it, and would otherwise be executed for each half nanosecond of the wait.
pub const PAUSE_PS: u64 = 47_000;

fn word(instruction: &[u8]) -> Option<u32> {
    instruction.try_into().ok().map(u32::from_le_bytes)
}

/// `mov %reg, %cr3`, `invlpg`, `invpcid` (Intel's manual, volume 2), with any legacy or REX prefixes.
fn x86(instruction: &[u8]) -> bool {
    let prefix = |byte: &u8| {
        matches!(
            byte,
            0x40..=0x4f | 0x66 | 0xf2 | 0xf3 | 0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65
        )
    };
    let prefixes = instruction.iter().take_while(|byte| prefix(byte)).count();
    match instruction[prefixes..] {
        [0x0f, 0x22, modrm, ..] => modrm >> 3 & 7 == 3,
        [0x0f, 0x01, modrm, ..] => modrm >> 3 & 7 == 7 && modrm < 0xc0,
        [0x0f, 0x38, 0x82, ..] => true,
        _ => false,
    }
}

/// `msr ttbr0_el1, xN` and `msr ttbr1_el1, xN`, which carry the address space's number (Arm's manual, C5.2).
fn arm(word: u32) -> bool {
    matches!(word & 0xffff_ffe0, 0xd518_2000 | 0xd518_2020)
}

/// `mtspr PID, rN` of the radix MMU, and `slbmte` of the hashed one (Power ISA, book III).
fn power(word: u32) -> bool {
    word & 0xfc1f_ffff == 0x7c10_0ba6 || word & 0xfc1f_07fe == 0x7c00_0324
}

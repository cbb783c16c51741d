//! Instructions of a known number, each of which waits for the one before.

/// Additions in a turn; two more instructions count the turns.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const TURN: u64 = 64;

/// Executes so many instructions, rounded down to whole turns, and hardly any more. `false` where this architecture has no such loop.
#[inline(never)]
#[cfg(target_arch = "x86_64")]
pub fn execute(instructions: u64) -> bool {
    // SAFETY: computes in two registers, and touches no memory.
    unsafe {
        core::arch::asm!(
            "2:",
            ".rept 62",
            "add {sum}, {turns}",
            ".endr",
            "dec {turns}",
            "jnz 2b",
            sum = inout(reg) 0_u64 => _,
            turns = inout(reg) (instructions / TURN).max(1) => _,
            options(nomem, nostack)
        );
    }
    true
}

/// Executes so many instructions, rounded down to whole turns, and hardly any more. `false` where this architecture has no such loop.
#[inline(never)]
#[cfg(target_arch = "aarch64")]
pub fn execute(instructions: u64) -> bool {
    // SAFETY: computes in two registers, and touches no memory.
    unsafe {
        core::arch::asm!(
            "2:",
            ".rept 62",
            "add {sum}, {sum}, {turns}",
            ".endr",
            "subs {turns}, {turns}, #1",
            "b.ne 2b",
            sum = inout(reg) 0_u64 => _,
            turns = inout(reg) (instructions / TURN).max(1) => _,
            options(nomem, nostack)
        );
    }
    true
}

/// Executes so many instructions, rounded down to whole turns, and hardly any more. `false` where this architecture has no such loop.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn execute(_: u64) -> bool {
    false
}

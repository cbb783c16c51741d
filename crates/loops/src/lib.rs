//! The loops that are timed, and nothing else: builds for tests optimise this crate and leave `bench`, which calls it, as it is.
//!
//! None of them is generic or inlined into its caller: what runs is what was compiled here.

pub mod access;
pub mod chase;
pub mod hand_over;

/// Additions in a turn of [`execute_additions`]; two more instructions count the turns.
const ADDITIONS_TURN: u64 = 64;

/// Executes so many instructions, each of which waits for the one before, rounded down to whole turns, and hardly any more. `false` where
/// this architecture has no such loop.
#[inline(never)]
pub fn execute_additions(instructions: u64) -> bool {
    let turns = (instructions / ADDITIONS_TURN).max(1);
    // SAFETY: computes in two registers, and touches no memory.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!(
            "2:",
            ".rept 62",
            "add {sum}, {turns}",
            ".endr",
            "dec {turns}",
            "jnz 2b",
            sum = inout(reg) 0_u64 => _,
            turns = inout(reg) turns => _,
            options(nomem, nostack)
        );
    }
    // SAFETY: computes in two registers, and touches no memory.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!(
            "2:",
            ".rept 62",
            "add {sum}, {sum}, {turns}",
            ".endr",
            "subs {turns}, {turns}, #1",
            "b.ne 2b",
            sum = inout(reg) 0_u64 => _,
            turns = inout(reg) turns => _,
            options(nomem, nostack)
        );
    }
    // Other architectures do not use it.
    let _ = turns;
    cfg!(any(target_arch = "x86_64", target_arch = "aarch64"))
}

/// No-operations in a turn of [`execute_nothing`]; two more instructions count the turns. An emulator that translates blocks of code makes
/// a block of them.
const NOTHING_TURN: u64 = 480;

/// Executes about so many instructions that do nothing, whole turns of them: an emulator that translates code makes nothing of them, and
/// counts them nevertheless. On other architectures a pause for each turn.
#[inline(never)]
pub fn execute_nothing(instructions: u64) {
    for _ in 0..(instructions / NOTHING_TURN).max(1) {
        // SAFETY: touches no register and no memory.
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        unsafe {
            core::arch::asm!(
                ".rept 478",
                "nop",
                ".endr",
                options(nomem, nostack, preserves_flags)
            );
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        std::hint::spin_loop();
    }
}

//! How a guest's kernel died, as its console shows it, and when that is the emulation's fault.
//!
//! Linux patches its own code while other CPUs run it: a breakpoint first, the rest, then the first byte (`text_poke_bp_batch` in
//! arch/x86/kernel/alternative.c). QEMU under software emulation drops what it translated of the old bytes before it stores the new
//! one (`notdirty_write` in accel/tcg/cputlb.c); a vCPU that translates in between keeps the breakpoint for ever, and the kernel, which
//! has forgotten it by then, dies of it: "int3" with the next instruction whole in its "Code:" line. Seen once in some thousand boots
//! with QEMU 10.0.2 and Linux 6.12.

use super::console::Console;

/// A crash is looked for in so many of the console's last lines: a kernel's report of one, with its second half after a panic, has about 70.
const REPORT_LINES: usize = 160;

/// The first words of a report of an unknown x86 breakpoint (`do_int3` in arch/x86/kernel/traps.c), between "Oops: " of newer
/// kernels and the number of the crash.
const BREAKPOINT: &str = "int3: 0000 [#";

/// What every report of an exception in the kernel ends with (`oops_exit` in kernel/panic.c).
const END_OF_REPORT: &str = "---[ end trace ";

/// How a guest's kernel died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Crash {
    /// Of a breakpoint that QEMU kept from the kernel's patching of its own code.
    #[error(
        "its kernel met a breakpoint left by its own patching, a rare fault of QEMU's software emulation"
    )]
    LeftBreakpoint,
    /// Of another exception.
    #[error("its kernel crashed")]
    Exception,
}

impl Crash {
    /// The crash that a console shows; `None` where the kernel ended in order, or panicked without an exception: for want of a root,
    /// of memory, of a first program, which it would do again.
    pub fn shown(console: &Console) -> Option<Self> {
        let said = console.last_lines(REPORT_LINES);
        match (said.contains(BREAKPOINT), said.contains(END_OF_REPORT)) {
            (true, _) => Some(Self::LeftBreakpoint),
            (false, true) => Some(Self::Exception),
            (false, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crash(said: &str) -> Option<Crash> {
        let console = Console::default();
        console.hear(said.as_bytes());
        Crash::shown(&console)
    }

    #[test]
    fn a_left_breakpoint_is_told_from_other_crashes_and_from_a_panic_that_would_come_again() {
        let after = "\n".repeat(3)
            + &"[    1.9] R13: ffff888004a81e88\n".repeat(80)
            + "---[ end trace 0000000000000000 ]---\n";
        let newer = "[    1.9] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI\n".to_owned() + &after;
        let older = "[    1.9] int3: 0000 [#1] PREEMPT SMP NOPTI\n".to_owned() + &after;
        assert_eq!(
            [crash(&newer), crash(&older)],
            [Some(Crash::LeftBreakpoint); 2]
        );
        assert_eq!(
            crash(&("BUG: kernel NULL pointer dereference\n".to_owned() + &after)),
            Some(Crash::Exception)
        );
        assert_eq!(
            crash(
                "Kernel panic - not syncing: No working init found.\n---[ end Kernel panic ]---\n"
            ),
            None
        );
        assert_eq!(
            crash("[    0.0] Linux version 6.12\n[    1.1] alternatives: int3 self-test\n"),
            None
        );
    }
}

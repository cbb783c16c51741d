//! The sequences for aarch64; what each may do, and why an interruption is harmless, is said in `x86_64.rs`. The thread's area is at
//! TPIDR_EL0 + offset: `cpu_id` at 4, `rseq_cs` at 8.
//!
//! The stores of a sequence need no order: threads of the same CPU see them in program order, and a thread that empties the cache of
//! another CPU waits for a membarrier first.

use core::arch::asm;

use super::Popped;

/// glibc's `__rseq_offset` and `__rseq_size`; `None` where it has none or did not register the area.
pub(crate) fn area() -> Option<(isize, u32)> {
    let (offset, size): (*const isize, *const u32);
    // SAFETY: reads two entries of the global offset table: the addresses of weak symbols, null where nothing defines them.
    unsafe {
        asm!(
            ".weak __rseq_offset",
            ".weak __rseq_size",
            "adrp {offset}, :got:__rseq_offset",
            "ldr {offset}, [{offset}, :got_lo12:__rseq_offset]",
            "adrp {size}, :got:__rseq_size",
            "ldr {size}, [{size}, :got_lo12:__rseq_size]",
            offset = out(reg) offset,
            size = out(reg) size,
            options(nostack, readonly, preserves_flags),
        );
    }
    if offset.is_null() || size.is_null() {
        return None;
    }
    // SAFETY: glibc defines both as constants of these types and sets them before main.
    Some(unsafe { (offset.read(), size.read()) })
}

/// # Safety
/// `offset` is that of `area`.
#[inline(always)]
pub(crate) unsafe fn cpu(offset: isize) -> u32 {
    let cpu: u32;
    // SAFETY: reads the thread's own area, which the kernel changes only between two instructions of this thread.
    unsafe {
        asm!(
            "mrs {area}, tpidr_el0",
            "add {area}, {area}, {offset}",
            "ldr {cpu:w}, [{area}, #4]",
            offset = in(reg) offset,
            area = out(reg) _,
            cpu = lateout(reg) cpu,
            options(nostack, readonly, preserves_flags),
        );
    }
    cpu
}

/// Takes the last tag of this CPU's cache.
///
/// # Safety
/// `offset` is that of `area`; `control` is readable; `caches` are `cpus` caches that only sequences write while the gate is 0.
#[inline(always)]
pub(crate) unsafe fn pop(offset: isize, control: *const u64, caches: *mut u8, cpus: u32) -> Popped {
    let (tag, cache, pushes): (u32, usize, u32);
    // SAFETY: as on x86-64: one store commits, the inputs stay in their registers. Registers clobbered: those declared, and flags.
    unsafe {
        asm!(
            "mrs {area}, tpidr_el0",
            "add {area}, {area}, {offset}",
            "2:",
            "adrp {cache}, 6f",
            "add {cache}, {cache}, :lo12:6f",
            "str {cache}, [{area}, #8]",
            "3:",
            "ldr {count:w}, [{control}]",
            "cbnz {count:w}, 8f",
            "ldr {cache:w}, [{area}, #4]",
            "cmp {cache:w}, {cpus:w}",
            "b.hs 8f",
            "add {cache}, {cache}, {cache}, lsl #1",
            "add {cache}, {caches}, {cache}, lsl #6",
            "ldr {count:w}, [{cache}]",
            "ldr {pushes:w}, [{cache}, #8]",
            "cbz {count:w}, 8f",
            "sub {count:w}, {count:w}, #1",
            "add {slot}, {cache}, {count}, lsl #2",
            "ldr {tag:w}, [{slot}, #16]",
            "str {count:w}, [{cache}]",
            "4:",
            "b 5f",
            "8:",
            "mov {tag:w}, #-1",
            "5:",
            // The signature before the handler, as glibc registered it: an instruction that traps (brk #0x45e0).
            ".pushsection __rseq_failure, \"ax\", @progbits",
            ".balign 4",
            ".inst 0xd428bc00",
            "7:",
            "b 2b",
            ".popsection",
            ".pushsection __rseq_cs, \"aw\", @progbits",
            ".balign 32",
            "6:",
            ".long 0, 0",
            ".quad 3b, 4b - 3b, 7b",
            ".popsection",
            offset = in(reg) offset,
            control = in(reg) control,
            caches = in(reg) caches,
            cpus = in(reg) cpus,
            area = out(reg) _,
            cache = out(reg) cache,
            count = out(reg) _,
            slot = out(reg) _,
            pushes = out(reg) pushes,
            tag = out(reg) tag,
            options(nostack),
        );
    }
    Popped { tag, cache, pushes }
}

/// Puts a tag into this CPU's cache. False, and no tag put, if the cache is full or there is none, if the gate is not 0, or if the tag
/// is not below the size.
///
/// # Safety
/// As `pop`.
#[inline(always)]
pub(crate) unsafe fn push(
    offset: isize,
    control: *const u64,
    caches: *mut u8,
    cpus: u32,
    tag: u32,
) -> bool {
    let failed: u32;
    // SAFETY: as in `pop`.
    unsafe {
        asm!(
            "mrs {area}, tpidr_el0",
            "add {area}, {area}, {offset}",
            "2:",
            "adrp {cache}, 6f",
            "add {cache}, {cache}, :lo12:6f",
            "str {cache}, [{area}, #8]",
            "3:",
            "ldr {count:w}, [{control}]",
            "cbnz {count:w}, 8f",
            "ldr {count:w}, [{control}, #8]",
            "cmp {tag:w}, {count:w}",
            "b.hs 8f",
            "ldr {cache:w}, [{area}, #4]",
            "cmp {cache:w}, {cpus:w}",
            "b.hs 8f",
            "add {cache}, {cache}, {cache}, lsl #1",
            "add {cache}, {caches}, {cache}, lsl #6",
            "ldr {count:w}, [{cache}]",
            "ldr {slot:w}, [{cache}, #4]",
            "cmp {count:w}, {slot:w}",
            "b.hs 8f",
            "ldr {slot:w}, [{cache}, #8]",
            "add {slot:w}, {slot:w}, #1",
            "str {slot:w}, [{cache}, #8]",
            "add {slot}, {cache}, {count}, lsl #2",
            "str {tag:w}, [{slot}, #16]",
            "mov {failed:w}, #0",
            "add {count:w}, {count:w}, #1",
            "str {count:w}, [{cache}]",
            "4:",
            "b 5f",
            "8:",
            "mov {failed:w}, #1",
            "5:",
            ".pushsection __rseq_failure, \"ax\", @progbits",
            ".balign 4",
            ".inst 0xd428bc00",
            "7:",
            "b 2b",
            ".popsection",
            ".pushsection __rseq_cs, \"aw\", @progbits",
            ".balign 32",
            "6:",
            ".long 0, 0",
            ".quad 3b, 4b - 3b, 7b",
            ".popsection",
            offset = in(reg) offset,
            control = in(reg) control,
            caches = in(reg) caches,
            cpus = in(reg) cpus,
            tag = in(reg) tag,
            area = out(reg) _,
            cache = out(reg) _,
            count = out(reg) _,
            slot = out(reg) _,
            failed = out(reg) failed,
            options(nostack),
        );
    }
    failed == 0
}

//! The sequences for aarch64; what each may do, and why an interruption is harmless, is said in `x86_64.rs`. The thread's area is at
//! TPIDR_EL0 + offset: `cpu_id` at 4, `rseq_cs` at 8.
//!
//! The gate is read first, by an acquire. The stores of a sequence need no order: threads of the same CPU see them in program order, and a thread that empties the cache of
//! another CPU waits for a membarrier first.

use core::arch::asm;

/// A sequence that finds this CPU's cache, then does `$body`; `$failed` is done outside of it, after a jump to 8:.
macro_rules! sequence {
    ($offset:ident, $control:ident: $($body:literal),+; $failed:literal; $($operands:tt)+) => {
        asm!(
            "mrs {area}, tpidr_el0",
            "add {area}, {area}, {offset}",
            "2:",
            "adrp {cache}, 6f",
            "add {cache}, {cache}, :lo12:6f",
            "str {cache}, [{area}, #8]",
            "3:",
            // An acquire: what the sequence reads of the size and the cache is not older than the gate, which another CPU may have opened.
            "ldar {other:w}, [{control}]",
            "cbnz {other:w}, 8f",
            "ldr {cache:w}, [{area}, #4]",
            "ldr {other:w}, [{control}, #24]",
            "cmp {cache:w}, {other:w}",
            "b.hs 8f",
            "add {cache}, {cache}, {cache}, lsl #1",
            "ldr {other}, [{control}, #16]",
            "add {cache}, {other}, {cache}, lsl #6",
            $($body,)+
            "4:",
            "b 5f",
            "8:",
            $failed,
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
            offset = in(reg) $offset,
            control = in(reg) $control,
            area = out(reg) _,
            cache = out(reg) _,
            other = out(reg) _,
            $($operands)+
            options(nostack),
        )
    };
}

/// The addresses of glibc's `__rseq_offset` and `__rseq_size`, null where it has none.
pub(crate) fn symbols() -> (*const isize, *const u32) {
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
    (offset, size)
}

/// # Safety
/// `offset` is that of `Rseq`.
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

/// Takes a tag of this CPU's cache: the one in front, or the last one of the slots.
///
/// # Safety
/// `offset` is that of `Rseq`; `control` is a `Control` whose caches only sequences write while the gate is 0.
#[inline(always)]
pub(crate) unsafe fn pop(offset: isize, control: *const u64) -> u32 {
    let tag: u32;
    // SAFETY: as on x86-64: one store commits, the inputs stay in their registers. Registers clobbered: those declared, and flags.
    unsafe {
        sequence!(
            offset, control:
            "mov {value:w}, #-1",
            "ldr {tag:w}, [{cache}]",
            "sub {tag:w}, {tag:w}, #1",
            "cmn {tag:w}, #2",
            "b.lo 9f",
            "ldr {value:w}, [{cache}, #8]",
            "cbz {value:w}, 8f",
            "sub {value:w}, {value:w}, #1",
            "add {other}, {cache}, {value}, lsl #2",
            "ldr {tag:w}, [{other}, #20]",
            "add {cache}, {cache}, #8",
            "9:",
            "str {value:w}, [{cache}]";
            "mov {tag:w}, #-1";
            value = out(reg) _,
            tag = out(reg) tag,
        );
    }
    tag
}

/// Puts a tag into this CPU's cache. False, and no tag put, if the cache is full or there is none, if the gate is not 0, or if the tag
/// is not below the size.
///
/// # Safety
/// As `pop`.
#[inline(always)]
pub(crate) unsafe fn push(offset: isize, control: *const u64, tag: u32) -> bool {
    let value: u32;
    // SAFETY: as in `pop`.
    unsafe {
        sequence!(
            offset, control:
            "ldr {other:w}, [{control}, #8]",
            "cmp {tag:w}, {other:w}",
            "b.hs 8f",
            "add {value:w}, {tag:w}, #1",
            "ldr {other:w}, [{cache}]",
            "cmn {other:w}, #1",
            "b.eq 9f",
            "ldr {count:w}, [{cache}, #8]",
            "add {value:w}, {count:w}, #1",
            "ldr {other:w}, [{cache}, #4]",
            "cmp {value:w}, {other:w}",
            "b.hs 8f",
            "add {other}, {cache}, {count}, lsl #2",
            "str {tag:w}, [{other}, #20]",
            "add {cache}, {cache}, #8",
            "9:",
            "str {value:w}, [{cache}]";
            "mov {value:w}, #0";
            tag = in(reg) tag,
            count = out(reg) _,
            value = out(reg) value,
        );
    }
    value != 0
}

/// Takes up to `most` tags of the slots of this CPU's cache, the last ones, into `tags`. Returns how many.
///
/// # Safety
/// As `pop`; `tags` has space for `most`.
#[inline(always)]
pub(crate) unsafe fn pop_some(
    offset: isize,
    control: *const u64,
    tags: *mut u32,
    most: u32,
) -> u32 {
    let popped: u32;
    // SAFETY: as in `pop`; writes `most` tags at most to `tags`.
    unsafe {
        sequence!(
            offset, control:
            "ldr {value:w}, [{cache}, #8]",
            "cmp {value:w}, {most:w}",
            "csel {popped:w}, {value:w}, {most:w}, lo",
            "sub {value:w}, {value:w}, {popped:w}",
            "cbz {popped:w}, 8f",
            "add {from}, {cache}, {value}, lsl #2",
            "add {from}, {from}, #20",
            "mov {index:w}, {popped:w}",
            "22:",
            "sub {index:w}, {index:w}, #1",
            "ldr {other:w}, [{from}, {index}, lsl #2]",
            "str {other:w}, [{tags}, {index}, lsl #2]",
            "cbnz {index:w}, 22b",
            "str {value:w}, [{cache}, #8]";
            "mov {popped:w}, #0";
            tags = in(reg) tags,
            most = in(reg) most,
            value = out(reg) _,
            index = out(reg) _,
            from = out(reg) _,
            popped = out(reg) popped,
        );
    }
    popped
}

/// Puts as many of these tags, the first ones, into the slots of this CPU's cache as have space. Returns how many: none if one of them
/// is not below the size, or for a reason for which `push` fails.
///
/// # Safety
/// As `pop`; `tags` are `count` tags.
#[inline(always)]
pub(crate) unsafe fn push_some(
    offset: isize,
    control: *const u64,
    tags: *const u32,
    count: u32,
) -> u32 {
    let pushed: u32;
    // SAFETY: as in `pop`; reads `count` tags at most.
    unsafe {
        sequence!(
            offset, control:
            "ldr {size:w}, [{control}, #8]",
            "ldr {value:w}, [{cache}, #8]",
            "ldr {pushed:w}, [{cache}, #4]",
            "subs {pushed:w}, {pushed:w}, #1",
            "b.lo 8f",
            "subs {pushed:w}, {pushed:w}, {value:w}",
            "b.ls 8f",
            "cmp {pushed:w}, {count:w}",
            "csel {pushed:w}, {pushed:w}, {count:w}, lo",
            "cbz {pushed:w}, 8f",
            "add {to}, {cache}, {value}, lsl #2",
            "add {to}, {to}, #20",
            "add {value:w}, {value:w}, {pushed:w}",
            "mov {index:w}, {pushed:w}",
            "22:",
            "sub {index:w}, {index:w}, #1",
            "ldr {other:w}, [{tags}, {index}, lsl #2]",
            "cmp {other:w}, {size:w}",
            "b.hs 8f",
            "str {other:w}, [{to}, {index}, lsl #2]",
            "cbnz {index:w}, 22b",
            "str {value:w}, [{cache}, #8]";
            "mov {pushed:w}, #0";
            tags = in(reg) tags,
            count = in(reg) count,
            size = out(reg) _,
            value = out(reg) _,
            index = out(reg) _,
            to = out(reg) _,
            pushed = out(reg) pushed,
        );
    }
    pushed
}

/// This CPU's cache while it is empty and the gate 0: how many tags it may hold, and how often tags landed. `None` otherwise.
///
/// As on x86-64. `landed` is read by an acquire: what is read after the sequence is not older.
///
/// # Safety
/// As `pop`.
#[inline(always)]
pub(crate) unsafe fn sight(offset: isize, control: *const u64) -> Option<(u32, u64)> {
    let (most, landed): (u32, u64);
    // SAFETY: as in `pop`.
    unsafe {
        sequence!(
            offset, control:
            "ldr {most:w}, [{cache}]",
            "add {most:w}, {most:w}, #1",
            "cmp {most:w}, #1",
            "b.hi 8f",
            "ldr {most:w}, [{cache}, #8]",
            "cbnz {most:w}, 8f",
            "ldr {most:w}, [{cache}, #4]",
            "add {other}, {control}, #128",
            "ldar {landed}, [{other}]";
            "mov {most:w}, #-1";
            most = out(reg) most,
            landed = out(reg) landed,
        );
    }
    (most != super::NONE).then_some((most, landed))
}

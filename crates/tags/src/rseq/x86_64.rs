//! The sequences for x86-64. The thread's area is at FS + offset: `cpu_id` at 4, `rseq_cs` at 8.
//!
//! `Control`: the gate at 0, the size at 8. A cache has 192 bytes: `count` at 0, `most` at 4, `pushes` at 8, slots at 16.

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
            "mov {offset}, qword ptr [rip + __rseq_offset@GOTPCREL]",
            "mov {size}, qword ptr [rip + __rseq_size@GOTPCREL]",
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
            "mov {cpu:e}, dword ptr fs:[{offset} + 4]",
            offset = in(reg) offset,
            cpu = lateout(reg) cpu,
            options(nostack, readonly, preserves_flags),
        );
    }
    cpu
}

/// Takes the last tag of this CPU's cache.
///
/// The sequence is 3: to 4:. It writes registers until its last instruction, the one store that commits: `count` becomes one less.
/// - Before that store nothing is changed, and each input is kept in its register, so the abort handler starts again at 2:.
/// - A preemption, a migration or a signal between 3: and 4: makes the kernel resume at 7:. So from the read of `cpu_id` to the store
///   no other thread ran on this CPU and the thread stayed there: `count` and the slot are what was read.
/// - The gate is read inside. A thread that closes it and then interrupts all sequences (membarrier) knows that none commits afterwards that
///   saw it open.
/// - A jump to 8: leaves the sequence without a store; the kernel then ignores the descriptor.
///
/// # Safety
/// `offset` is that of `area`; `control` is readable; `caches` are `cpus` caches that only sequences write while the gate is 0.
#[inline(always)]
pub(crate) unsafe fn pop(offset: isize, control: *const u64, caches: *mut u8, cpus: u32) -> Popped {
    let (tag, cache, pushes): (u32, usize, u32);
    // SAFETY: see above. Registers clobbered: those declared, and flags; memory as the compiler assumes without `nomem`.
    unsafe {
        asm!(
            "2:",
            "lea {cache}, [rip + 6f]",
            "mov qword ptr fs:[{offset} + 8], {cache}",
            "3:",
            "cmp dword ptr [{control}], 0",
            "jne 8f",
            "mov {cache:e}, dword ptr fs:[{offset} + 4]",
            "cmp {cache:e}, {cpus:e}",
            "jae 8f",
            "lea {cache}, [{cache} + 2*{cache}]",
            "shl {cache}, 6",
            "add {cache}, {caches}",
            "mov {count:e}, dword ptr [{cache}]",
            "mov {pushes:e}, dword ptr [{cache} + 8]",
            "sub {count:e}, 1",
            "jb 8f",
            "mov {tag:e}, dword ptr [{cache} + 4*{count:r} + 16]",
            "mov dword ptr [{cache}], {count:e}",
            "4:",
            "5:",
            // The signature before the handler, as glibc registered it; with 0f b9 3d it is an instruction that traps.
            ".pushsection __rseq_failure, \"ax\", @progbits",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "7:",
            "jmp 2b",
            "8:",
            "mov {tag:e}, -1",
            "jmp 5b",
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
            cache = out(reg) cache,
            count = out(reg) _,
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
/// As `pop`. Before the last store it counts a push, which is harmless if it is interrupted and counts again, and writes the slot above
/// `count`, which holds no tag. The last store, `count` plus one, commits. The size is read inside as the gate is, so that after a
/// membarrier no tag is put that is above a smaller size.
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
            "2:",
            "lea {cache}, [rip + 6f]",
            "mov qword ptr fs:[{offset} + 8], {cache}",
            "3:",
            "cmp dword ptr [{control}], 0",
            "jne 8f",
            "cmp {tag:e}, dword ptr [{control} + 8]",
            "jae 8f",
            "mov {cache:e}, dword ptr fs:[{offset} + 4]",
            "cmp {cache:e}, {cpus:e}",
            "jae 8f",
            "lea {cache}, [{cache} + 2*{cache}]",
            "shl {cache}, 6",
            "add {cache}, {caches}",
            "mov {count:e}, dword ptr [{cache}]",
            "cmp {count:e}, dword ptr [{cache} + 4]",
            "jae 8f",
            "add dword ptr [{cache} + 8], 1",
            "mov dword ptr [{cache} + 4*{count:r} + 16], {tag:e}",
            "xor {failed:e}, {failed:e}",
            "add {count:e}, 1",
            "mov dword ptr [{cache}], {count:e}",
            "4:",
            "5:",
            ".pushsection __rseq_failure, \"ax\", @progbits",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "7:",
            "jmp 2b",
            "8:",
            "mov {failed:e}, 1",
            "jmp 5b",
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
            cache = out(reg) _,
            count = out(reg) _,
            failed = out(reg) failed,
            options(nostack),
        );
    }
    failed == 0
}

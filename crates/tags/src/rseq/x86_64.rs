//! The sequences for x86-64. The thread's area is at FS + offset: `cpu_id` at 4, `rseq_cs` at 8.
//!
//! A cache: count at 0, most at 4, slots at 16, `STRIDE` bytes.

use core::arch::asm;

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

/// Takes the last tag of this CPU's cache; `NONE` if it has none, `*gate` is not 0, or the CPU has no cache.
///
/// The sequence is 3: to 4:. It writes registers until its last instruction, the one store that commits: `count` becomes one less.
/// - Before that store nothing is changed, and each input is kept in its register, so the abort handler starts again at 2:.
/// - A preemption, a migration or a signal between 3: and 4: makes the kernel resume at 7:. So from the read of `cpu_id` to the store
///   no other thread ran on this CPU and the thread stayed there: `count` and the slot are what was read.
/// - `gate` is read inside. Whoever closes it and then interrupts all sequences (membarrier) knows that none commits afterwards that
///   saw it open.
/// - A jump to 5: leaves the sequence without a store; the kernel then ignores the descriptor.
///
/// # Safety
/// `offset` is that of `area`; `gate` is readable; `caches` are `cpus` caches that only sequences write while `*gate` is 0.
#[inline(always)]
pub(crate) unsafe fn pop(offset: isize, gate: *const u64, caches: *mut u8, cpus: u32) -> u32 {
    let tag: u32;
    // SAFETY: see above. Registers clobbered: those declared, and flags; memory as the compiler assumes without `nomem`.
    unsafe {
        asm!(
            "2:",
            "lea {cache}, [rip + 6f]",
            "mov qword ptr fs:[{offset} + 8], {cache}",
            "3:",
            "mov {tag:e}, -1",
            "cmp dword ptr [{gate}], 0",
            "jne 5f",
            "mov {cache:e}, dword ptr fs:[{offset} + 4]",
            "cmp {cache:e}, {cpus:e}",
            "jae 5f",
            "lea {cache:e}, [{cache} + 2*{cache}]",
            "shl {cache}, 6",
            "add {cache}, {caches}",
            "mov {count:e}, dword ptr [{cache}]",
            "sub {count:e}, 1",
            "jb 5f",
            "mov {tag:e}, dword ptr [{cache} + 4*{count} + 16]",
            "mov dword ptr [{cache}], {count:e}",
            "4:",
            "5:",
            // The signature before the handler, as glibc registered it; with 0f b9 3d it is an instruction that traps.
            ".pushsection __rseq_failure, \"ax\", @progbits",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "7:",
            "jmp 2b",
            ".popsection",
            ".pushsection __rseq_cs, \"aw\", @progbits",
            ".balign 32",
            "6:",
            ".long 0, 0",
            ".quad 3b, 4b - 3b, 7b",
            ".popsection",
            offset = in(reg) offset,
            gate = in(reg) gate,
            caches = in(reg) caches,
            cpus = in(reg) cpus,
            cache = out(reg) _,
            count = out(reg) _,
            tag = out(reg) tag,
            options(nostack),
        );
    }
    tag
}

/// Puts a tag into this CPU's cache. False, and nothing done, if the cache is full or there is none, if `*gate` is not 0, or if the
/// tag is not below `*limit`.
///
/// As `pop`: the slot above `count` is written first. It holds no tag, so that an interrupted sequence has changed nothing that
/// anybody reads; the last store, `count` plus one, commits. `limit` is read inside as `gate` is, so that after a membarrier no tag
/// is put under an old limit.
///
/// # Safety
/// As `pop`; `limit` is readable.
#[inline(always)]
pub(crate) unsafe fn push(
    offset: isize,
    (gate, limit): (*const u64, *const u32),
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
            "mov {failed:e}, 1",
            "cmp dword ptr [{gate}], 0",
            "jne 5f",
            "cmp {tag:e}, dword ptr [{limit}]",
            "jae 5f",
            "mov {cache:e}, dword ptr fs:[{offset} + 4]",
            "cmp {cache:e}, {cpus:e}",
            "jae 5f",
            "lea {cache:e}, [{cache} + 2*{cache}]",
            "shl {cache}, 6",
            "add {cache}, {caches}",
            "mov {count:e}, dword ptr [{cache}]",
            "cmp {count:e}, dword ptr [{cache} + 4]",
            "jae 5f",
            "mov dword ptr [{cache} + 4*{count} + 16], {tag:e}",
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
            ".popsection",
            ".pushsection __rseq_cs, \"aw\", @progbits",
            ".balign 32",
            "6:",
            ".long 0, 0",
            ".quad 3b, 4b - 3b, 7b",
            ".popsection",
            offset = in(reg) offset,
            gate = in(reg) gate,
            limit = in(reg) limit,
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

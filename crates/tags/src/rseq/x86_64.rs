//! The sequences for x86-64. The thread's area is at FS + offset: `cpu_id` at 4, `rseq_cs` at 8.
//!
//! `Control`: the gate at 0, the size at 8, the caches' address at 16, their number at 24, `landed` at 128. A cache has 192 bytes: the front at 0, `most` at 4, `count` at 8, slots
//! at 20.

use core::arch::asm;

/// A sequence that finds this CPU's cache, then does `$body`; `$failed` is done outside of it, after a jump to 8:.
macro_rules! sequence {
    ($offset:ident, $control:ident: $($body:literal),+; $failed:literal; $($operands:tt)+) => {
        asm!(
            "2:",
            "lea {cache}, [rip + 6f]",
            "mov qword ptr fs:[{offset} + 8], {cache}",
            "3:",
            "cmp dword ptr [{control}], 0",
            "jne 8f",
            "mov {cache:e}, dword ptr fs:[{offset} + 4]",
            "cmp {cache:e}, dword ptr [{control} + 24]",
            "jae 8f",
            "lea {cache}, [{cache} + 2*{cache}]",
            "shl {cache}, 6",
            "add {cache}, qword ptr [{control} + 16]",
            $($body,)+
            "4:",
            "5:",
            // The signature before the handler, as glibc registered it; with 0f b9 3d it is an instruction that traps.
            ".pushsection __rseq_failure, \"ax\", @progbits",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "7:",
            "jmp 2b",
            "8:",
            $failed,
            "jmp 5b",
            ".popsection",
            ".pushsection __rseq_cs, \"aw\", @progbits",
            ".balign 32",
            "6:",
            ".long 0, 0",
            ".quad 3b, 4b - 3b, 7b",
            ".popsection",
            offset = in(reg) $offset,
            control = in(reg) $control,
            cache = out(reg) _,
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
            "mov {offset}, qword ptr [rip + __rseq_offset@GOTPCREL]",
            "mov {size}, qword ptr [rip + __rseq_size@GOTPCREL]",
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
            "mov {cpu:e}, dword ptr fs:[{offset} + 4]",
            offset = in(reg) offset,
            cpu = lateout(reg) cpu,
            options(nostack, readonly, preserves_flags),
        );
    }
    cpu
}

/// Takes a tag of this CPU's cache: the one in front, or the last one of the slots.
///
/// The sequence is 3: to 4:. It writes registers until its last instruction, the one store that commits: the front becomes empty, or `count`
/// one less.
/// - Before that store nothing is changed, and each input is kept in its register, so the abort handler starts again at 2:.
/// - A preemption, a migration or a signal between 3: and 4: makes the kernel resume at 7:. So from the read of `cpu_id` to the store
///   no other thread ran on this CPU and the thread stayed there: the front, `count` and the slot are what was read.
/// - The gate is read inside. A thread that closes it and then interrupts all sequences (membarrier) knows that none commits afterwards that
///   saw it open.
/// - A jump to 8: leaves the sequence without a store; the kernel then ignores the descriptor.
///
/// # Safety
/// `offset` is that of `Rseq`; `control` is a `Control` whose caches only sequences write while the gate is 0.
#[inline(always)]
pub(crate) unsafe fn pop(offset: isize, control: *const u64) -> u32 {
    let tag: u32;
    // SAFETY: see above. Registers clobbered: those declared, and flags; memory as the compiler assumes without `nomem`.
    unsafe {
        sequence!(
            offset, control:
            "mov {value:e}, -1",
            "mov {tag:e}, dword ptr [{cache}]",
            "sub {tag:e}, 1",
            "cmp {tag:e}, -2",
            "jb 9f",
            "mov {value:e}, dword ptr [{cache} + 8]",
            "sub {value:e}, 1",
            "jb 8f",
            "mov {tag:e}, dword ptr [{cache} + 4*{value:r} + 20]",
            "add {cache}, 8",
            "9:",
            "mov dword ptr [{cache}], {value:e}";
            "mov {tag:e}, -1";
            value = out(reg) _,
            tag = out(reg) tag,
        );
    }
    tag
}

/// Puts a tag into this CPU's cache. False, and no tag put, if the cache is full or there is none, if the gate is not 0, or if the tag
/// is not below the size.
///
/// As `pop`. Before the last store it writes the slot above `count`, which holds no tag. The last store commits: the tag is in front, or
/// `count` is one more. The size is read inside as the gate is, so that after a membarrier no tag is put that is above a smaller size.
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
            "cmp {tag:e}, dword ptr [{control} + 8]",
            "jae 8f",
            "lea {value:e}, [{tag:r} + 1]",
            "cmp dword ptr [{cache}], -1",
            "je 9f",
            "mov {count:e}, dword ptr [{cache} + 8]",
            "lea {value:e}, [{count:r} + 1]",
            "cmp {value:e}, dword ptr [{cache} + 4]",
            "jae 8f",
            "mov dword ptr [{cache} + 4*{count:r} + 20], {tag:e}",
            "add {cache}, 8",
            "9:",
            "mov dword ptr [{cache}], {value:e}";
            "xor {value:e}, {value:e}";
            tag = in(reg) tag,
            count = out(reg) _,
            value = out(reg) value,
        );
    }
    value != 0
}

/// Takes up to `most` tags of the slots of this CPU's cache, the last ones, into `tags`. Returns how many.
///
/// As `pop`. `tags` belongs to the caller: what an interrupted sequence wrote there, the next one overwrites.
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
            "mov {value:e}, dword ptr [{cache} + 8]",
            "mov {popped:e}, {value:e}",
            "cmp {popped:e}, {most:e}",
            "cmova {popped:e}, {most:e}",
            "sub {value:e}, {popped:e}",
            "mov {index:e}, {popped:e}",
            "lea {from}, [{cache} + 4*{value:r} + 16]",
            "test {index:e}, {index:e}",
            "jz 8f",
            "22:",
            "mov {tag:e}, dword ptr [{from} + 4*{index:r}]",
            "mov dword ptr [{tags} + 4*{index:r} - 4], {tag:e}",
            "sub {index:e}, 1",
            "jnz 22b",
            "mov dword ptr [{cache} + 8], {value:e}";
            "xor {popped:e}, {popped:e}";
            tags = in(reg) tags,
            most = in(reg) most,
            value = out(reg) _,
            index = out(reg) _,
            from = out(reg) _,
            tag = out(reg) _,
            popped = out(reg) popped,
        );
    }
    popped
}

/// Puts as many of these tags, the first ones, into the slots of this CPU's cache as have space. Returns how many: none if one of them
/// is not below the size, or for a reason for which `push` fails.
///
/// As `push`.
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
            "mov {value:e}, dword ptr [{cache} + 8]",
            "mov {pushed:e}, dword ptr [{cache} + 4]",
            "sub {pushed:e}, 1",
            "jb 8f",
            "sub {pushed:e}, {value:e}",
            "jbe 8f",
            "cmp {pushed:e}, {count:e}",
            "cmova {pushed:e}, {count:e}",
            "mov {index:e}, {pushed:e}",
            "lea {to}, [{cache} + 4*{value:r} + 16]",
            "add {value:e}, {pushed:e}",
            "test {index:e}, {index:e}",
            "jz 8f",
            "22:",
            "mov {tag:e}, dword ptr [{tags} + 4*{index:r} - 4]",
            "cmp {tag:e}, dword ptr [{control} + 8]",
            "jae 8f",
            "mov dword ptr [{to} + 4*{index:r}], {tag:e}",
            "sub {index:e}, 1",
            "jnz 22b",
            "mov dword ptr [{cache} + 8], {value:e}";
            "xor {pushed:e}, {pushed:e}";
            tags = in(reg) tags,
            count = in(reg) count,
            value = out(reg) _,
            index = out(reg) _,
            to = out(reg) _,
            tag = out(reg) _,
            pushed = out(reg) pushed,
        );
    }
    pushed
}

/// This CPU's cache while it is empty and the gate 0: how many tags it may hold, and how often tags landed. `None` otherwise.
///
/// As `pop`. Nothing is stored; the last instruction reads `landed`. So there was a moment at which the cache was empty and `landed`
/// was that. The gate was read before that moment: the caller looks at it again.
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
            "mov {most:e}, dword ptr [{cache}]",
            "add {most:e}, 1",
            "cmp {most:e}, 1",
            "ja 8f",
            "cmp dword ptr [{cache} + 8], 0",
            "jne 8f",
            "mov {most:e}, dword ptr [{cache} + 4]",
            "mov {landed}, qword ptr [{control} + 128]";
            "mov {most:e}, -1";
            most = out(reg) most,
            landed = out(reg) landed,
        );
    }
    (most != super::NONE).then_some((most, landed))
}

// SPDX-License-Identifier: GPL-2.0-or-later
//! The host's time stamp counter, which QEMU's emulation of x86 reads by an instruction of its own, as the guest sees it in simulated time.
//!
//! In a thread that runs a vCPU the instruction is made to fault (`PR_SET_TSC`, prctl(2)), and the handler of the signal answers. Where
//! QEMU reads it most it jumps to `detour` instead. The guest has measured the counter's frequency at boot, so it stays the host's.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::OnceLock;
#[cfg(target_arch = "x86_64")]
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::preload::{host_raw_ns, ticks};

thread_local! {
    /// Whether the instruction faults in this thread.
    static FAULTS: Cell<bool> = const { Cell::new(false) };
}

/// The frequency is rounded to this, in Hz: the same guest then has the same one at each start, whatever a measurement of some
/// seconds is wrong by.
const STEP_HZ: f64 = 10_000.0;
const PS_PER_S: f64 = 1e12;
/// How often both clocks are read for one pair of readings: the host may run another task in between.
const READINGS: usize = 16;

/// The guest's counter, which follows its time from the moment on when simulated time began first.
#[derive(Debug)]
pub struct Counter {
    started: Reading,
    begun: OnceLock<Begun>,
}

#[derive(Clone, Copy, Debug)]
struct Begun {
    ps: u64,
    ticks: u64,
    ticks_per_ps: f64,
}

/// The host's clock, which no other program corrects, and its counter at one moment.
#[derive(Clone, Copy, Debug)]
struct Reading {
    ns: u64,
    ticks: u64,
}

impl Reading {
    fn now() -> Self {
        let read = |_| {
            let (before, ns, after) = (host_ticks(), host_raw_ns(), host_ticks());
            let took = after.wrapping_sub(before);
            let ticks = before.wrapping_add(took / 2);
            (took, Self { ns, ticks })
        };
        let readings = (0..READINGS).map(read);
        let best = readings.min_by_key(|(took, _)| *took);
        best.map_or(Self { ns: 0, ticks: 0 }, |(_, reading)| reading)
    }

    fn ticks_per_ps(&self, later: &Self) -> f64 {
        let ticks = later.ticks.wrapping_sub(self.ticks) as f64;
        let hz = ticks * 1e9 / later.ns.saturating_sub(self.ns).max(1) as f64;
        (hz / STEP_HZ).round() * STEP_HZ / PS_PER_S
    }
}

impl Counter {
    /// Begins to measure the host's counter, and answers for the instruction where it faults.
    pub fn started() -> Self {
        handle_faults();
        Self {
            started: Reading::now(),
            begun: OnceLock::new(),
        }
    }

    /// Simulated time begins at this moment, for the first time or again.
    pub fn begin(&self, now_ps: u64) {
        self.begun.get_or_init(|| {
            let reading = Reading::now();
            Begun {
                ps: now_ps,
                ticks: reading.ticks,
                ticks_per_ps: self.started.ticks_per_ps(&reading),
            }
        });
    }

    /// Whether simulated time has ever begun.
    pub fn has_begun(&self) -> bool {
        self.begun.get().is_some()
    }

    /// The counter at a moment of the guest's time, since simulated time began first.
    pub fn at(&self, ps: u64) -> u64 {
        self.begun.get().map_or(0, |begun| {
            let passed_ps = ps.saturating_sub(begun.ps) as f64;
            let ticks = (passed_ps * begun.ticks_per_ps) as u64;
            begun.ticks.wrapping_add(ticks)
        })
    }

    /// From now on the instruction faults in this thread.
    pub fn trap_on_this_thread(&self) {
        FAULTS.set(true);
        // SAFETY: changes nothing but how this thread may read the counter. Where it fails, the guest's clocks differ, which the
        // self-test of the guest finds.
        unsafe { libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_SIGSEGV, 0, 0, 0) };
    }
}

/// The host's counter, in a thread in which it does not fault yet.
#[cfg(target_arch = "x86_64")]
fn host_ticks() -> u64 {
    // SAFETY: every x86-64 processor has the counter, and reading it touches no memory.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn host_ticks() -> u64 {
    host_raw_ns()
}

fn handle_faults() {
    // SAFETY: an all-zero action is a valid value; the handler below has the signature that SA_SIGINFO asks for.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut());
    }
    #[cfg(target_arch = "x86_64")]
    take_the_place_of_the_reading();
}

/// Where QEMU's `cpu_get_ticks` (system/cpu-timers.c) reads the counter: `rdtsc`, and the halves put together in `rax`, in two ways that
/// compilers write it. Nearly all of the guest's readings are made there, and a fault takes the host microseconds each time.
#[cfg(target_arch = "x86_64")]
const READS: [&[u8]; 2] = [
    b"\x0f\x31\x48\xc1\xe2\x20\x89\xc0\x48\x09\xd0",
    b"\x0f\x31\x48\xc1\xe2\x20\x48\x09\xd0",
];

/// Where [`detour`] goes back to.
#[cfg(target_arch = "x86_64")]
static AFTER_READ: AtomicUsize = AtomicUsize::new(0);

/// In place of the reading in QEMU a jump to [`detour`], by way of a page that is near enough for a jump. A QEMU that is compiled otherwise
/// stays as it is: its readings fault.
#[cfg(target_arch = "x86_64")]
fn take_the_place_of_the_reading() {
    /// The function is shorter.
    const BYTES: usize = 160;
    /// `jmp` to an address that is relative to the next instruction, and to one that follows.
    const JUMP: u8 = 0xe9;
    const FAR_JUMP: [u8; 6] = [0xff, 0x25, 0, 0, 0, 0];
    // SAFETY: a symbol of QEMU is its function, which is followed by others, so the bytes can be read. No vCPU runs yet; the bytes that
    // change are of one reading, which nothing jumps into the middle of; the protection is the usual one of code afterwards.
    unsafe {
        let code = libc::dlsym(libc::RTLD_DEFAULT, c"cpu_get_ticks".as_ptr()).cast::<u8>();
        if code.is_null() {
            return;
        }
        let bytes = std::slice::from_raw_parts(code, BYTES);
        let found = READS.iter().find_map(|read| {
            let at = bytes.windows(read.len()).position(|it| it == *read)?;
            Some((code.add(at), read.len()))
        });
        let Some((read, length)) = found else {
            return;
        };
        let page = libc::sysconf(libc::_SC_PAGESIZE) as usize;
        let Some(near) = map_near(read as usize, page) else {
            return;
        };
        let far = (detour as *const () as usize).to_ne_bytes();
        near.copy_from(FAR_JUMP.as_ptr(), FAR_JUMP.len());
        near.add(FAR_JUMP.len()).copy_from(far.as_ptr(), far.len());
        let usual = libc::PROT_READ | libc::PROT_EXEC;
        AFTER_READ.store(read as usize + length, Relaxed);
        let start = (read as usize / page * page) as *mut c_void;
        let pages = (read as usize + length).next_multiple_of(page) - start as usize;
        let protect = |at, bytes, by| libc::mprotect(at, bytes, by) == 0;
        if protect(near.cast(), page, usual) && protect(start, pages, usual | libc::PROT_WRITE) {
            let by = near.offset_from(read.add(5)) as i32;
            read.write(JUMP);
            read.add(1).copy_from(by.to_ne_bytes().as_ptr(), 4);
            protect(start, pages, usual);
        }
    }
}

/// A page that a jump of 32 bits reaches from `to`; none where all is taken.
#[cfg(target_arch = "x86_64")]
fn map_near(to: usize, page: usize) -> Option<*mut u8> {
    /// A hundred of them are less than a jump reaches.
    const STEP: usize = 16 << 20;
    let places = (1..100).flat_map(|steps| [to.wrapping_sub(steps * STEP), to + steps * STEP]);
    places.map(|it| it / page * page).find_map(|place| {
        // SAFETY: maps a page where nothing is.
        let mapped = unsafe {
            libc::mmap(
                place as *mut c_void,
                page,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            )
        };
        // A kernel before 4.17 takes the place for a wish.
        (mapped as usize == place).then_some(mapped.cast())
    })
}

/// Reads the counter as the guest sees it, and leaves all registers but those of `rdtsc` as they were: QEMU's function expects no call
/// there, and may use the 128 bytes below its stack (System V ABI, "red zone").
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn detour() {
    core::arch::naked_asm!(
        "lea rsp, [rsp - 128]",
        "push rcx",
        "push rsi",
        "push rdi",
        "push r8",
        "push r9",
        "push r10",
        "push r11",
        "push rbp",
        "mov rbp, rsp",
        "and rsp, -16",
        "sub rsp, 512",
        "fxsave64 [rsp]",
        "call {read}",
        "fxrstor64 [rsp]",
        "mov rsp, rbp",
        "pop rbp",
        "pop r11",
        "pop r10",
        "pop r9",
        "pop r8",
        "pop rdi",
        "pop rsi",
        "pop rcx",
        "lea rsp, [rsp + 128]",
        "mov rdx, rax",
        "shr rdx, 32",
        "shl rdx, 32",
        "test rax, rax",
        "jmp qword ptr [rip + {after}]",
        read = sym ticks_of_this_thread,
        after = sym AFTER_READ,
    )
}

/// What `rdtsc` is to this thread.
#[cfg(target_arch = "x86_64")]
extern "C" fn ticks_of_this_thread() -> u64 {
    match FAULTS.get() {
        true => ticks(),
        false => host_ticks(),
    }
}

/// Answers `rdtsc` (0f 31) and `rdtscp` (0f 01 f9; Intel's manual, volume 2).
/// Any other fault is QEMU's own: the instruction is executed again, and the process ends as it would have.
#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn on_fault(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a context; the instruction at its address was executed, so its bytes can be read.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let code = registers[libc::REG_RIP as usize] as *const u8;
        let bytes = match (*code, *code.add(1)) {
            (0x0f, 0x31) => 2,
            (0x0f, 0x01) if *code.add(2) == 0xf9 => 3,
            _ => {
                libc::signal(libc::SIGSEGV, libc::SIG_DFL);
                return;
            }
        };
        let ticks = ticks();
        registers[libc::REG_RAX as usize] = (ticks & 0xffff_ffff) as i64;
        registers[libc::REG_RDX as usize] = (ticks >> 32) as i64;
        if bytes == 3 {
            registers[libc::REG_RCX as usize] = 0;
        }
        registers[libc::REG_RIP as usize] += bytes;
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe extern "C" fn on_fault(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: restores what the process had before.
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_that_are_a_little_wrong_give_the_same_frequency() {
        let at = |ns, ticks| Reading { ns, ticks };
        let started = at(1000, 50);
        for wrong in [-60i64, 0, 60] {
            let ticks = (5_799_992_000i64 + 50 + wrong) as u64;
            let ticks_per_ps = started.ticks_per_ps(&at(2_000_001_000, ticks));
            assert_eq!(ticks_per_ps, 2.9e-3, "{wrong}");
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_reading_by_way_of_the_detour_changes_the_registers_of_rdtsc_only() {
        let (ticks, high): (u64, u64);
        let mut kept = [1u64, 2, 3, 4, 5, 6, 7];
        let [rcx, rsi, rdi, r8, r9, r10, r11] = &mut kept;
        let mut float = 0.5f64;
        let before = host_ticks();
        // SAFETY: the detour leaves the stack and all other registers as they are, and jumps to the label.
        unsafe {
            core::arch::asm!(
                "lea rax, [rip + 2f]",
                "mov [rip + {after}], rax",
                "jmp {detour}",
                "2:",
                after = sym AFTER_READ,
                detour = sym detour,
                out("rax") ticks,
                out("rdx") high,
                inout("rcx") *rcx,
                inout("rsi") *rsi,
                inout("rdi") *rdi,
                inout("r8") *r8,
                inout("r9") *r9,
                inout("r10") *r10,
                inout("r11") *r11,
                inout("xmm0") float,
            );
        }
        assert!((before..=host_ticks()).contains(&ticks), "{before} {ticks}");
        assert_eq!(high, ticks >> 32 << 32);
        assert_eq!((kept, float), ([1, 2, 3, 4, 5, 6, 7], 0.5));
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_page_is_mapped_where_a_jump_reaches_it() {
        let code = detour as *const () as usize;
        let near = map_near(code, 4096).unwrap() as usize;
        assert!(near.abs_diff(code) < 1 << 31, "{near:x} {code:x}");
    }
}

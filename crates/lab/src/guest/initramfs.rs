//! The first root that QEMU loads: what is in it, the archive that it is written as, and the program in it that renews a guest's clock.
//!
//! The archive is the "newc" form of cpio, uncompressed.
//! Format: Documentation/driver-api/early-userspace/buffer-format.rst of the kernel.
//!
//! ```text
//! 110 bytes of header (magic 070701, 13 numbers of 8 hexadecimal digits) | name, NUL | pad to 4 | content | pad to 4
//! ... an entry named TRAILER!!! ends it
//! ```
//!
//! Not compressed: it goes from memory to memory, and unpacking it under emulation would take longer than that saves.
//!
//! `renew`, the program that gives a guest the time and its own random numbers, is a static ELF file of some 300 bytes, made here.
//!
//! ```text
//!  guest: renew <run port >link port 2>/dev/urandom            host
//!    write(1, "clock\n")                     ────────────────► reads its clock and 32 random bytes
//!    read(0, 56 bytes)                       ◄────────────────
//!    clock_settime(CLOCK_REALTIME, bytes 0 to 15)
//!    ioctl(2, RNDADDENTROPY, bytes 16 to 55)
//!    ioctl(2, RNDRESEEDCRNG)
//!    exit(0, or the bits of all errors)
//! ```
//!
//! A guest that starts from a saved one has the clock and the random pool of the moment in which it was saved. No tool of
//! busybox sets a clock to less than a second or reseeds the pool at once (a write to /dev/urandom is mixed in and used
//! up to a minute later: crng_reseed_interval() in drivers/char/random.c), and a compiler for each architecture of guests is
//! more than a build of nearfar should need. A guest that booted runs the same program: the real-time clock of a PC counts
//! seconds, so a booted guest is off by up to one.

use std::collections::BTreeSet;
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::advice;
use crate::arch::Arch;
use crate::error::LabError;
use crate::guest::modules::Modules;
use crate::guest::{PreparedGuest, arguments, random, read_needed};

/// What init.sh calls, apart from what the shell has itself.
const TOOLS: [&str; 9] = [
    "cp",
    "insmod",
    "ln",
    "mkdir",
    "mount",
    "mv",
    "sh",
    "switch_root",
    "cat",
];

/// What `udev` would make in `/dev`.
const LINKS: [(&str, &str); 4] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];

/// Where the kernel finds the emulator of the host's programs while it registers it.
const EMULATOR: &str = "bin/emulator";

/// The archive for all guests of a design: nothing in it is of one guest.
///
/// # Errors
/// When busybox or the emulator of a foreign guest cannot be read.
pub fn build(prepared: &PreparedGuest, modules: &Modules) -> Result<Vec<u8>, LabError> {
    let mut archive = CpioArchive::new();
    for folder in ["bin", "dev", "proc", "sys", "modules", "later", "links"] {
        archive.folder(folder);
    }
    // The kernel opens it for the first process before anything is mounted.
    archive.character_device("dev/console", 5, 1);
    let hint = "install it with: apt install busybox-static";
    let busybox = read_needed(&prepared.busybox, hint)?;
    archive.file("bin/busybox", 0o755, &busybox);
    for tool in TOOLS {
        archive.link(&format!("bin/{tool}"), "busybox");
    }
    archive.file("bin/renew", 0o755, &renew_program(prepared.design.arch));
    archive.file("init", 0o755, include_bytes!("init.sh"));
    archive.file("agent.sh", 0o755, include_bytes!("agent.sh"));
    archive.file("nearfar-lab", 0o755, include_bytes!("nearfar-lab.sh"));
    archive.file("guest.fstab", 0o644, include_bytes!("guest.fstab"));
    let mut settings = arguments::settings_of_design(prepared, modules);
    for (name, order) in &modules.hot_plug {
        settings += &format!("PLUG_{name}='{}'\n", order.join(" "));
    }
    archive.file("guest.conf", 0o644, settings.as_bytes());
    let loaded = modules.boot.iter().chain(&modules.devices);
    for name in loaded.chain(&modules.late) {
        archive.file(&format!("modules/{name}.ko"), 0o644, modules.content(name));
    }
    for (link, target) in LINKS {
        archive.link(&format!("links/{link}"), target);
    }
    let later = modules.hot_plug.iter().flat_map(|(_, order)| order);
    for name in later.collect::<BTreeSet<_>>() {
        archive.file(&format!("later/{name}.ko"), 0o644, modules.content(name));
    }
    if let Some(foreign) = &prepared.foreign {
        let emulator = read_needed(&foreign.user_emulator, &format!("run: {}", advice::GET_ALL))?;
        archive.file(EMULATOR, 0o755, &emulator);
        archive.file("foreign.binfmt", 0o644, registration().as_bytes());
    }
    Ok(archive.finish())
}

/// How x86-64 programs are recognised: Documentation/admin-guide/binfmt-misc.rst of the kernel; magic and mask as in QEMU's
/// scripts/qemu-binfmt-conf.sh. P keeps the program's own first argument, F opens the emulator at registration.
fn registration() -> String {
    let magic = concat!(
        r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x3e\x00:",
        r"\xff\xff\xff\xff\xff\xfe\xfe\xfc\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
    );
    format!(":nearfar-x86_64:M::{magic}:/{EMULATOR}:PF\n")
}

/// Writes an archive, entry by entry.
#[derive(Debug, Default)]
pub struct CpioArchive {
    bytes: Vec<u8>,
    entries: u32,
}

/// File types, as in `st_mode`.
const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const CHARACTER: u32 = 0o020_000;

impl CpioArchive {
    /// An archive without entries.
    pub fn new() -> Self {
        Self::default()
    }

    /// A folder; those above it have to come first.
    pub fn folder(&mut self, path: &str) {
        self.entry(path, FOLDER | 0o755, (0, 0), &[]);
    }

    /// A regular file with its permission bits.
    pub fn file(&mut self, path: &str, permissions: u32, content: &[u8]) {
        self.entry(path, FILE | permissions, (0, 0), content);
    }

    /// A symbolic link.
    pub fn link(&mut self, path: &str, target: &str) {
        self.entry(path, LINK | 0o777, (0, 0), target.as_bytes());
    }

    /// A character device.
    pub fn character_device(&mut self, path: &str, major: u32, minor: u32) {
        self.entry(path, CHARACTER | 0o600, (major, minor), &[]);
    }

    /// The finished archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        self.entries += 1;
        let length = u32::try_from(content.len()).unwrap_or(u32::MAX);
        let name_length = u32::try_from(path.len() + 1).unwrap_or(u32::MAX);
        // inode, mode, uid, gid, links, time, length, device of the file system (2), of a device file (2), name, check sum
        let (major, minor) = device;
        let about = [self.entries, mode, 0, 0, 1, 0, length];
        let rest = [0, 0, major, minor, name_length, 0];
        let numbers = about.iter().chain(&rest);
        let numbers: String = numbers.map(|number| format!("{number:08X}")).collect();
        self.pad_after(format!("070701{numbers}{path}\0").as_bytes());
        self.pad_after(content);
    }

    fn pad_after(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// Where the program is loaded.
const BASE: u64 = 0x1000_0000;
/// Bytes of the file's header and of its one program header.
const HEADERS: u64 = 64 + 56;
/// What the program says to ask for its answer.
const QUESTION: &[u8; 6] = b"clock\n";
/// Bytes of random seed in an answer.
const SEED_BYTES: usize = 32;
/// Bytes of an answer: a `timespec`, then a `rand_pool_info` with the seed.
const ANSWER_BYTES: usize = 16 + 8 + SEED_BYTES;

/// x86-64: Linux system calls in rax, arguments in rdi, rsi, rdx (System V ABI, A.2.1).
const X86_64: [&[u8]; 24] = [
    &[0x48, 0x83, 0xec, 0x40],                              // sub  rsp, 64
    &[0xb8, 1, 0, 0, 0, 0xbf, 1, 0, 0, 0],                  // mov  eax, write; mov edi, 1
    &[0x48, 0x8d, 0x35, 0x5c, 0, 0, 0],                     // lea  rsi, [rip + QUESTION]
    &[0xba, 6, 0, 0, 0, 0x0f, 0x05],                        // mov  edx, 6; syscall
    &[0x31, 0xc0, 0x31, 0xff],                              // xor  eax, eax (read); xor edi, edi
    &[0x48, 0x89, 0xe6, 0xba, ANSWER_BYTES as u8, 0, 0, 0], // mov rsi, rsp; mov edx, ANSWER_BYTES
    &[0x0f, 0x05],                                          // syscall
    &[0x89, 0xc3, 0x83, 0xeb, ANSWER_BYTES as u8],          // mov  ebx, eax; sub ebx, ANSWER_BYTES
    &[0xb8, 0xe3, 0, 0, 0, 0x31, 0xff],                     // mov  eax, clock_settime; xor edi, edi
    &[0x48, 0x89, 0xe6],                                    // mov  rsi, rsp
    &[0x0f, 0x05],                                          // syscall
    &[0x09, 0xc3],                                          // or   ebx, eax
    &[0xb8, 0x10, 0, 0, 0, 0xbf, 2, 0, 0, 0],               // mov  eax, ioctl; mov edi, 2
    &[0xbe, 0x03, 0x52, 0x08, 0x40],                        // mov  esi, RNDADDENTROPY
    &[0x48, 0x8d, 0x54, 0x24, 0x10],                        // lea  rdx, [rsp + 16]
    &[0x0f, 0x05],                                          // syscall
    &[0x09, 0xc3],                                          // or   ebx, eax
    &[0xb8, 0x10, 0, 0, 0, 0xbf, 2, 0, 0, 0],               // mov  eax, ioctl; mov edi, 2
    &[0xbe, 0x07, 0x52, 0, 0],                              // mov  esi, RNDRESEEDCRNG
    &[0x0f, 0x05],                                          // syscall
    &[0x09, 0xc3],                                          // or   ebx, eax
    &[0x89, 0xdf],                                          // mov  edi, ebx
    &[0xb8, 0x3c, 0, 0, 0],                                 // mov  eax, exit
    &[0x0f, 0x05],                                          // syscall
];

/// arm64: system calls in x8, arguments in x0, x1, x2.
const AARCH64: [u32; 32] = [
    0xd101_03ff, // sub  sp, sp, #64
    0xd280_0020, // mov  x0, #1
    0x1000_03c1, // adr  x1, QUESTION
    0xd280_00c2, // mov  x2, #6
    0xd280_0808, // mov  x8, write
    0xd400_0001, // svc  #0
    0xd280_0000, // mov  x0, #0
    0x9100_03e1, // mov  x1, sp
    0xd280_0702, // mov  x2, #56
    0xd280_07e8, // mov  x8, read
    0xd400_0001, // svc  #0
    0xd100_e013, // sub  x19, x0, #56
    0xd280_0000, // mov  x0, #0
    0x9100_03e1, // mov  x1, sp
    0xd280_0e08, // mov  x8, clock_settime
    0xd400_0001, // svc  #0
    0xaa00_0273, // orr  x19, x19, x0
    0xd280_0040, // mov  x0, #2
    0xd28a_4061, // mov  x1, RNDADDENTROPY, its lower half
    0xf2a8_0101, // movk x1, RNDADDENTROPY, its upper half
    0x9100_43e2, // add  x2, sp, #16
    0xd280_03a8, // mov  x8, ioctl
    0xd400_0001, // svc  #0
    0xaa00_0273, // orr  x19, x19, x0
    0xd280_0040, // mov  x0, #2
    0xd28a_40e1, // mov  x1, RNDRESEEDCRNG
    0xd280_03a8, // mov  x8, ioctl
    0xd400_0001, // svc  #0
    0xaa00_0273, // orr  x19, x19, x0
    0xaa13_03e0, // mov  x0, x19
    0xd280_0ba8, // mov  x8, exit
    0xd400_0001, // svc  #0
];

/// Power: system calls in r0, arguments in r3, r4, r5; its ioctl numbers have other direction bits.
const POWERPC64: [u32; 36] = [
    0x3821_ffc0, // addi r1, r1, -64
    0x3800_0004, // li   r0, write
    0x3860_0001, // li   r3, 1
    0x3c80_1000, // lis  r4, QUESTION, its upper half
    0x6084_0108, // ori  r4, r4, QUESTION, its lower half
    0x38a0_0006, // li   r5, 6
    0x4400_0002, // sc
    0x3800_0003, // li   r0, read
    0x3860_0000, // li   r3, 0
    0x3881_0000, // addi r4, r1, 0
    0x38a0_0038, // li   r5, 56
    0x4400_0002, // sc
    0x3be3_ffc8, // addi r31, r3, -56
    0x3800_00f5, // li   r0, clock_settime
    0x3860_0000, // li   r3, 0
    0x3881_0000, // addi r4, r1, 0
    0x4400_0002, // sc
    0x7fff_1b78, // or   r31, r31, r3
    0x3800_0036, // li   r0, ioctl
    0x3860_0002, // li   r3, 2
    0x3c80_8008, // lis  r4, RNDADDENTROPY, its upper half
    0x6084_5203, // ori  r4, r4, its lower half
    0x38a1_0010, // addi r5, r1, 16
    0x4400_0002, // sc
    0x7fff_1b78, // or   r31, r31, r3
    0x3800_0036, // li   r0, ioctl
    0x3860_0002, // li   r3, 2
    0x3c80_2000, // lis  r4, RNDRESEEDCRNG, its upper half
    0x6084_5207, // ori  r4, r4, its lower half
    0x4400_0002, // sc
    0x7fff_1b78, // or   r31, r31, r3
    0x7fe3_fb78, // mr   r3, r31
    0x3800_0001, // li   r0, exit
    0x4400_0002, // sc
    0x4800_0000, // b    . (never reached)
    0x4800_0000, // b    .
];

/// The program for guests of an architecture.
fn renew_program(arch: Arch) -> Vec<u8> {
    // ELF's number of the machine, and its flags: version 2 of the ABI on Power.
    let halves = |all: &[u16]| {
        all.iter()
            .flat_map(|it| it.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let words = |all: &[u32]| {
        all.iter()
            .flat_map(|it| it.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let doubles = |all: &[u64]| {
        all.iter()
            .flat_map(|it| it.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let (machine, flags, mut code) = match arch {
        Arch::X86_64 => (62, 0, X86_64.concat()),
        Arch::Aarch64 => (183, 0, words(&AARCH64)),
        Arch::Powerpc64le => (21, 2, words(&POWERPC64)),
    };
    code.extend(QUESTION);
    let bytes = HEADERS + code.len() as u64;
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    // An executable for that machine, version 1.
    file.extend(halves(&[2, machine]));
    file.extend(words(&[1]));
    // Its entry, its program headers, no section headers.
    file.extend(doubles(&[BASE + HEADERS, 64, 0]));
    file.extend(words(&[flags]));
    // Sizes of the headers, and one program header.
    file.extend(halves(&[64, 56, 1, 64, 0, 0]));
    // Load all of it, to be read and executed.
    file.extend(words(&[1, 5]));
    file.extend(doubles(&[0, BASE, BASE, bytes, bytes, 0x1_0000]));
    file.extend(code);
    file
}

/// The answer to the program's question: the host's time now, and random numbers that no other guest gets.
///
/// # Errors
/// When the host's random numbers cannot be read.
pub fn renew_answer() -> io::Result<[u8; ANSWER_BYTES]> {
    let mut answer = [0; ANSWER_BYTES];
    random(&mut answer[24..])?;
    // Bits of entropy, bytes of the seed (struct rand_pool_info, include/uapi/linux/random.h).
    answer[16..20].copy_from_slice(&(SEED_BYTES as u32 * 8).to_le_bytes());
    answer[20..24].copy_from_slice(&(SEED_BYTES as u32).to_le_bytes());
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default();
    answer[..8].copy_from_slice(&now.as_secs().to_le_bytes());
    answer[8..16].copy_from_slice(&u64::from(now.subsec_nanos()).to_le_bytes());
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where a program's code reads its question from, as an offset in the file.
    fn question_offset(arch: Arch) -> u64 {
        let word = |place: usize| u64::from(AARCH64[place]);
        match arch {
            // The displacement counts from the end of the lea.
            Arch::X86_64 => {
                let end: usize = X86_64[..3].iter().map(|part| part.len()).sum();
                HEADERS + end as u64 + u64::from(X86_64[2][3])
            }
            // The offset of an adr is in words in bits 5 up, and counts from the instruction.
            Arch::Aarch64 => HEADERS + 2 * 4 + ((word(2) >> 5) & 0x7_ffff) * 4,
            Arch::Powerpc64le => {
                (u64::from(POWERPC64[3] & 0xffff) << 16) + u64::from(POWERPC64[4] & 0xffff) - BASE
            }
        }
    }

    #[test]
    fn each_program_points_to_its_question() {
        for arch in [Arch::X86_64, Arch::Aarch64, Arch::Powerpc64le] {
            let file = renew_program(arch);
            let at = question_offset(arch) as usize;
            assert_eq!(
                file.get(at..),
                Some(QUESTION.as_slice()),
                "{arch}: {at} of {}",
                file.len()
            );
        }
    }

    #[test]
    fn answers_differ_in_their_seed() {
        let (one, two) = (
            renew_answer().expect("random numbers"),
            renew_answer().expect("random numbers"),
        );
        assert_ne!(one[24..], two[24..]);
        assert_eq!(one[16..24], [0, 1, 0, 0, 32, 0, 0, 0]);
    }
}

//! Static programs for guests: busybox for the initramfs, and for guests of another architecture the emulator that lets
//! the host's own programs run in them.
//!
//! ```text
//! foreign/ARCH/busybox         busybox-static:ARCH               the guest's init, shell, mount, modprobe
//! foreign/ARCH/qemu-x86_64     qemu-user(-static):ARCH           an ARCH program that runs x86-64 programs
//! foreign/ppc64le/drmgr/       powerpc-utils, librtas2 ...       configures devices that are plugged in at run time
//! ```

pub mod drmgr;

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::arch::Arch;
use crate::cache::{Cache, CacheLock};
use crate::error::LabError;
use crate::packages::{Progress, Repository, Stanza};

/// What a guest of another architecture than the host's needs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Foreign {
    /// The guest's architecture.
    pub arch: Arch,
    /// A static busybox for it.
    pub busybox: PathBuf,
    /// A static program for it that runs programs of the host's architecture (`qemu-x86_64`).
    pub user_emulator: PathBuf,
}

/// A program of a package.
struct Program {
    /// Its name in the cache.
    name: String,
    /// Where packages have it.
    paths: Vec<String>,
    /// The packages that have it, in the order to be tried: one of them may have it linked dynamically.
    packages: &'static [&'static str],
}

fn busybox_program() -> Program {
    let paths = ["bin/busybox", "usr/bin/busybox"]
        .map(str::to_owned)
        .to_vec();
    Program {
        name: "busybox".to_owned(),
        paths,
        packages: &["busybox-static"],
    }
}

fn emulator_program(host: Arch) -> Program {
    let name = format!("qemu-{}", host.uname());
    let paths = vec![format!("usr/bin/{name}"), format!("usr/bin/{name}-static")];
    // Debian 13's qemu-user is static, and its qemu-user-static has only links to it; before, qemu-user was dynamic.
    Program {
        name,
        paths,
        packages: &["qemu-user", "qemu-user-static"],
    }
}

/// The programs for guests of a foreign architecture, fetched unless they are cached.
///
/// Errors: [`LabError::Missing`] where they cannot be fetched, saying why.
pub fn get(cache: &Cache, arch: Arch) -> Result<Foreign, LabError> {
    get_with(cache, arch, &mut |_| {})
}

/// [`get`], telling how far it is.
pub fn get_with(
    cache: &Cache,
    arch: Arch,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Foreign, LabError> {
    let host = Arch::host().ok_or_else(|| LabError::Missing {
        what: "an emulator for this machine's programs".to_owned(),
        hint: "foreign guests need a host of x86_64, arm64 or powerpc64le".to_owned(),
    })?;
    let busybox = program(cache, &busybox_program(), arch, progress)?;
    let user_emulator = program(cache, &emulator_program(host), arch, progress)?;
    Ok(Foreign {
        arch,
        busybox,
        user_emulator,
    })
}

/// What is cached of [`get`], without fetching anything.
pub fn cached(cache: &Cache, arch: Arch) -> Option<Foreign> {
    let there =
        |program: &Program| Some(place(cache, program, arch)).filter(|path| is_static(path, arch));
    Some(Foreign {
        arch,
        busybox: there(&busybox_program())?,
        user_emulator: there(&emulator_program(Arch::host()?))?,
    })
}

/// A static busybox for an architecture: the installed one if it is that, else fetched unless it is cached.
pub fn busybox(cache: &Cache, arch: Arch) -> Result<PathBuf, LabError> {
    match installed_busybox(arch) {
        Some(busybox) => Ok(busybox),
        None => program(cache, &busybox_program(), arch, &mut |_| {}),
    }
}

/// The installed busybox, if it is a static one for the architecture.
pub fn installed_busybox(arch: Arch) -> Option<PathBuf> {
    crate::programs::find("busybox").filter(|path| is_static(path, arch))
}

/// [`busybox`] for who holds the cache's lock.
pub(crate) fn busybox_under(
    lock: &CacheLock<'_>,
    arch: Arch,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<PathBuf, LabError> {
    match installed_busybox(arch) {
        Some(busybox) => Ok(busybox),
        None => program_under(lock, &busybox_program(), arch, progress),
    }
}

fn place(cache: &Cache, program: &Program, arch: Arch) -> PathBuf {
    cache
        .root()
        .join("foreign")
        .join(arch.uname())
        .join(&program.name)
}

fn program(
    cache: &Cache,
    program: &Program,
    arch: Arch,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<PathBuf, LabError> {
    let path = place(cache, program, arch);
    if is_static(&path, arch) {
        return Ok(path);
    }
    let lock = cache.lock(&mut || progress(Progress::Waiting))?;
    program_under(&lock, program, arch, progress)
}

fn program_under(
    lock: &CacheLock<'_>,
    program: &Program,
    arch: Arch,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<PathBuf, LabError> {
    let path = place(lock.cache(), program, arch);
    if is_static(&path, arch) {
        return Ok(path);
    }
    let missing = |hint: String| LabError::Missing {
        what: format!("a static {} for {arch}", program.name),
        hint,
    };
    let repository = Repository::open(lock, arch).map_err(|error| missing(error.to_string()))?;
    for package in program.packages {
        let newest = repository
            .newest(package, |name| name == *package, None, progress)
            .map_err(|error| missing(error.to_string()))?;
        let Some(newest) = newest else { continue };
        let workshop = lock.workshop()?;
        let folder = workshop.path().join("package");
        repository
            .unpack(&newest, &folder, progress)
            .map_err(|error| missing(error.to_string()))?;
        let files = program.paths.iter().map(|path| folder.join(path));
        if let Some(file) = files.into_iter().find(|file| is_static(file, arch)) {
            note(&path, &newest).map_err(|error| {
                LabError::system(format!("writing next to {}", path.display()), error)
            })?;
            lock.put(&file, &path)?;
            return Ok(path);
        }
    }
    Err(missing(format!(
        "{} has none in {}",
        repository.name(),
        program.packages.join(" or ")
    )))
}

/// Writes next to a program where it is from.
fn note(program: &Path, package: &Stanza) -> io::Result<()> {
    let Some(folder) = program.parent() else {
        return Ok(());
    };
    fs::create_dir_all(folder)?;
    let Stanza {
        package,
        version,
        sha256,
        ..
    } = package;
    let text = format!("{package} {version}\nSHA-256 of the package: {sha256}\n");
    fs::write(program.with_extension("origin"), text)
}

/// Whether a file is a program for an architecture that needs no other file: an ELF without interpreter.
pub fn is_static(path: &Path, arch: Arch) -> bool {
    File::open(path)
        .ok()
        .filter(|file| file.metadata().is_ok_and(|it| it.is_file()))
        .is_some_and(|mut file| {
            let is_static = interpreter_of(&mut file, arch);
            matches!(is_static, Ok(Some(false)))
        })
}

/// Whether an ELF asks for an interpreter (`PT_INTERP`, elf(5)); `None`: not an ELF for the architecture.
fn interpreter_of(file: &mut (impl Read + Seek), arch: Arch) -> io::Result<Option<bool>> {
    const PT_INTERP: u32 = 3;
    let mut header = [0; 64];
    file.read_exact(&mut header)?;
    if crate::kernels::image::arch_of_elf(&header) != Some(arch) {
        return Ok(None);
    }
    let number16 = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let table = header[0x20..0x28]
        .iter()
        .rev()
        .fold(0, |value, byte| value << 8 | u64::from(*byte));
    let (size, count) = (u64::from(number16(0x36)), u64::from(number16(0x38)));
    for index in 0..count {
        let Some(at) = table.checked_add(index * size) else {
            return Ok(None);
        };
        file.seek(SeekFrom::Start(at))?;
        let mut kind = [0; 4];
        file.read_exact(&mut kind)?;
        if u32::from_le_bytes(kind) == PT_INTERP {
            return Ok(Some(true));
        }
    }
    Ok(Some(false))
}

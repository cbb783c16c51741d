//! Static programs for guests: busybox for the initramfs, and for guests of another architecture the emulator that lets
//! the host's own programs run in them. For Power also `drmgr` of powerpc-utils, with which Linux there configures devices that are plugged
//! in at run time.
//!
//! ```text
//! foreign/ARCH/busybox         busybox-static:ARCH               the guest's init, shell, mount, modprobe
//! foreign/ARCH/qemu-x86_64     qemu-user(-static):ARCH           an ARCH program that runs x86-64 programs
//! foreign/ppc64le/drmgr/       powerpc-utils, librtas2 ...       drmgr, its loader ld64.so.2, and the libraries it needs
//! ```
//! A guest runs drmgr from the host's cache, by that loader: neither the host nor the first root has its libraries.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::advice::find_program;
use crate::arch::Arch;
use crate::cache::{Cache, CacheLock};
use crate::error::LabError;
use crate::kernels::image;
use crate::packages::control::Stanza;
use crate::packages::{Progress, Repository};

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
    Program {
        name: "busybox".to_owned(),
        paths: ["bin/busybox", "usr/bin/busybox"].map(str::to_owned).into(),
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
    Some(Foreign {
        arch,
        busybox: cached_busybox(cache, arch)?,
        user_emulator: cached_program(cache, &emulator_program(Arch::host()?), arch)?,
    })
}

/// A static busybox for an architecture, if it is cached.
pub(crate) fn cached_busybox(cache: &Cache, arch: Arch) -> Option<PathBuf> {
    cached_program(cache, &busybox_program(), arch)
}

fn cached_program(cache: &Cache, program: &Program, arch: Arch) -> Option<PathBuf> {
    Some(place(cache, program, arch)).filter(|path| is_static(path, arch))
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
    find_program("busybox").filter(|path| is_static(path, arch))
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
    let folder = cache.root().join("foreign").join(arch.uname());
    folder.join(&program.name)
}

fn program(
    cache: &Cache,
    program: &Program,
    arch: Arch,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<PathBuf, LabError> {
    if let Some(path) = cached_program(cache, program, arch) {
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
    let repository = Repository::open(lock, arch).map_err(missing)?;
    for package in program.packages {
        let newest = repository
            .newest(package, |name| name == *package, None, progress)
            .map_err(missing)?;
        let Some(newest) = newest else { continue };
        let workshop = lock.workshop()?;
        let folder = workshop.path().join("package");
        let unpacked = repository.unpack(&newest, &folder, progress);
        unpacked.map_err(missing)?;
        let mut files = program.paths.iter().map(|path| folder.join(path));
        if let Some(file) = files.find(|file| is_static(file, arch)) {
            note(&path, &newest).map_err(LabError::at("writing next to", &path))?;
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
    let file = File::open(path).ok();
    let file = file.filter(|file| file.metadata().is_ok_and(|it| it.is_file()));
    file.is_some_and(|mut file| matches!(interpreter_of(&mut file, arch), Ok(Some(false))))
}

/// Whether an ELF asks for an interpreter (`PT_INTERP`, elf(5)); `None`: not an ELF for the architecture.
fn interpreter_of(file: &mut (impl Read + Seek), arch: Arch) -> io::Result<Option<bool>> {
    const PT_INTERP: u32 = 3;
    let mut header = [0; 64];
    file.read_exact(&mut header)?;
    if image::arch_of_elf(&header) != Some(arch) {
        return Ok(None);
    }
    let number16 = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let table = header[0x20..0x28].iter().rev();
    let table = table.fold(0, |value, byte| value << 8 | u64::from(*byte));
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

/// Packages, and the files that are taken from each.
const DRMGR_FILES: [(&str, &[&str]); 4] = [
    ("powerpc-ibm-utils", &["usr/sbin/drmgr"]),
    ("librtas2", &["usr/lib/powerpc64le-linux-gnu/librtas.so.2"]),
    ("libnuma1", &["usr/lib/powerpc64le-linux-gnu/libnuma.so.1"]),
    (
        "libc6",
        &[
            "lib/powerpc64le-linux-gnu/ld64.so.2",
            "lib/powerpc64le-linux-gnu/libc.so.6",
        ],
    ),
];

/// The folder with `drmgr`, if it is cached.
pub fn cached_drmgr(cache: &Cache) -> Option<PathBuf> {
    let folder = drmgr_folder(cache);
    folder.join("drmgr").is_file().then_some(folder)
}

/// The folder with `drmgr`, fetched unless it is cached.
///
/// # Errors
/// [`LabError::Missing`] where a package cannot be fetched, saying why.
pub fn get_drmgr(
    cache: &Cache,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<PathBuf, LabError> {
    if let Some(folder) = cached_drmgr(cache) {
        return Ok(folder);
    }
    let missing = |hint: String| LabError::Missing {
        what: "drmgr of powerpc-utils".to_owned(),
        hint,
    };
    let lock = cache.lock(&mut || progress(Progress::Waiting))?;
    let repository = Repository::open(&lock, Arch::Powerpc64le).map_err(missing)?;
    let workshop = lock.workshop()?;
    let made = workshop.path().join("drmgr");
    fs::create_dir(&made).map_err(LabError::at("creating", &made))?;
    for (package, files) in DRMGR_FILES {
        let newest = repository.newest(package, |name| name == package, None, progress);
        let lacks = || format!("{} has no {package}", repository.name());
        let newest = newest.and_then(|newest| newest.ok_or_else(lacks));
        let newest = newest.map_err(missing)?;
        let unpacked = workshop.path().join(package);
        let done = repository.unpack(&newest, &unpacked, progress);
        done.map_err(missing)?;
        for file in files {
            let lacks = |error| missing(format!("{package} has no {file} ({error})"));
            take(&unpacked, file, &made).map_err(lacks)?;
        }
    }
    let place = drmgr_folder(cache);
    lock.put(&made, &place)?;
    Ok(place)
}

/// Copies a file of an unpacked package; newer packages have below `usr` what older ones have in the root.
fn take(package: &Path, file: &str, into: &Path) -> io::Result<()> {
    let name = Path::new(file).file_name().unwrap_or_default();
    let places = [package.join(file), package.join("usr").join(file)];
    let place = places.iter().find(|place| place.exists());
    fs::copy(place.unwrap_or(&places[0]), into.join(name)).map(drop)
}

fn drmgr_folder(cache: &Cache) -> PathBuf {
    let arch = Arch::Powerpc64le.uname();
    cache.root().join("foreign").join(arch).join("drmgr")
}

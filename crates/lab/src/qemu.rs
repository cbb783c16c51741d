//! Finding QEMU, finding out what it can do here, and whether guests live under KVM.
//!
//! `/dev/kvm` says little: inside of cloud machines it may open, make virtual machines and start CPUs, and yet a
//! guest's kernel hangs at its first use of a newer instruction, or QEMU aborts over a register. So a real kernel is
//! booted:
//!
//! ```text
//! -accel kvm, one CPU, no disk ─► kernel initialises ─► "Kernel panic - not syncing: VFS" ─► it lives
//!                              └► anything else, or 20 s without that ─► it does not, and the last line says why
//! ```
//!
//! The answer holds for one boot of the host and one version of QEMU; it is kept in the cache. So is what QEMU answers about itself: asking
//! takes a tenth of a second, which is a third of the start of a saved guest.

use std::collections::{BTreeSet, HashMap};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, thread};

use nearfar_machine::Acceleration;
use nearfar_proc::system::boot_id;
use serde::{Deserialize, Serialize};

use crate::advice::{Installer, find_program};
use crate::arch::Arch;
use crate::cache::{Cache, write_renamed};
use crate::error::LabError;
use crate::kernels::{self, Kernel};

/// The oldest QEMU that loads the delay plugin, which speaks version 2 of the interface (`qemu-plugin.h`): 9.0 brought
/// it, the stable 8.2.4 took it over. Debian 12's own 7.2 has version 1.
pub const PLUGINS_SINCE: (u32, u32, u32) = (8, 2, 4);

/// An installed QEMU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Qemu {
    /// For which guests.
    pub arch: Arch,
    pub program: PathBuf,
    /// `(10, 0, 2)`.
    pub version: (u32, u32, u32),
    /// Whether it loads TCG plugins whose interface the delay plugin speaks.
    pub plugins: bool,
}

impl Qemu {
    /// Finds the QEMU for guests of an architecture on `PATH`, and asks it for its version and options.
    pub fn find(arch: Arch) -> Result<Self, LabError> {
        let name = arch.qemu_program();
        let program = find_program(name).ok_or_else(|| LabError::Missing {
            what: name.to_owned(),
            hint: match Installer::of_system().install_qemu(arch) {
                Some(command) => format!("run: {command}"),
                None => format!("install QEMU (Debian's package is {})", package(arch)),
            },
        })?;
        Self::at(program, arch)
    }

    /// The QEMU of a given file.
    pub fn at(program: PathBuf, arch: Arch) -> Result<Self, LabError> {
        let answers = Answers::of(&program)?;
        let text = &answers.version;
        let version = version_in(text).ok_or_else(|| LabError::Content {
            path: program.clone(),
            problem: format!(
                "its --version does not say which QEMU it is: {}",
                text.lines().next().unwrap_or_default()
            ),
        })?;
        let plugins = version >= PLUGINS_SINCE && answers.has_plugins;
        Ok(Self {
            arch,
            program,
            version,
            plugins,
        })
    }

    /// Whether it knows a device (`igb` came with 8.0). One that does not answer has none.
    pub fn has_device(&self, name: &str) -> bool {
        Answers::of(&self.program).is_ok_and(|answers| answers.devices.contains(name))
    }

    /// As people write it: `10.0.2`.
    pub fn version_text(&self) -> String {
        dotted(self.version)
    }
}

/// A version as people write it.
pub(crate) fn dotted((major, minor, micro): (u32, u32, u32)) -> String {
    format!("{major}.{minor}.{micro}")
}

/// The package with QEMU for an architecture (and, for arm64 guests, without firmware: the lab boots kernels directly).
pub const fn package(arch: Arch) -> &'static str {
    match arch {
        Arch::X86_64 => "qemu-system-x86",
        Arch::Aarch64 => "qemu-system-arm",
        Arch::Powerpc64le => "qemu-system-ppc",
    }
}

/// The version in `QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)`.
pub fn version_in(text: &str) -> Option<(u32, u32, u32)> {
    let (_, rest) = text.split_once("QEMU emulator version ")?;
    let version = rest
        .split(|c: char| !c.is_ascii_digit() && c != '.')
        .next()?;
    let mut numbers = version.split('.').map(|number| number.parse().ok());
    let (major, minor) = (numbers.next()??, numbers.next()??);
    Some((major, minor, numbers.next().flatten().unwrap_or(0)))
}

/// The devices in what `-device help` prints: `name "igb", bus PCI, desc "..."`, and other names in `alias
/// "e1000-82540em"`.
pub fn devices_in(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in text.lines().filter(|line| line.starts_with("name \"")) {
        let quoted = |key: &str| {
            let (_, rest) = line.split_once(key)?;
            Some(rest.split_once('"')?.0.to_owned())
        };
        names.extend(quoted("name \""));
        names.extend(quoted(", alias \""));
    }
    names
}

fn ask(program: &Path, arguments: &[&str]) -> Result<String, LabError> {
    let mut command = Command::new(program);
    let output = command.args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(LabError::at("running", program))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().next().unwrap_or("it said nothing").to_owned();
    Err(LabError::Content {
        path: program.to_owned(),
        problem: format!("{} failed: {said}", arguments.join(" ")),
    })
}

/// The answers of one program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Answers {
    program: PathBuf,
    /// Size, modification time in seconds and nanoseconds, inode.
    identity: (u64, i64, i64, u64),
    /// What `--version` prints.
    pub version: String,
    /// Whether `-h` lists `-plugin`.
    pub has_plugins: bool,
    /// What `-device help` lists; nothing where that fails.
    pub devices: BTreeSet<String>,
}

impl Answers {
    /// Of a program, asked once in a process, and once for all processes where the cache can be written.
    pub fn of(program: &Path) -> Result<Arc<Self>, LabError> {
        type Known = HashMap<PathBuf, Arc<Answers>>;
        static KNOWN: Mutex<Option<Known>> = Mutex::new(None);
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.get_or_insert_default();
        let identity = identity(program)?;
        let of_process = known.get(program);
        if let Some(answers) = of_process.filter(|answers| answers.identity == identity) {
            return Ok(answers.clone());
        }
        let kept = Self::kept(program, identity);
        let answers = Arc::new(kept.map_or_else(|| Self::asked(program, identity), Ok)?);
        known.insert(program.to_owned(), answers.clone());
        Ok(answers)
    }

    fn asked(program: &Path, identity: (u64, i64, i64, u64)) -> Result<Self, LabError> {
        let version = ask(program, &["--version"])?;
        let (options, devices) = (ask(program, &["-h"]), ask(program, &["-device", "help"]));
        // One that fails now may do better the next time.
        let is_whole = options.is_ok() && devices.is_ok();
        let has_plugins =
            options.is_ok_and(|text| text.lines().any(|line| line.starts_with("-plugin ")));
        let devices = devices_in(&devices.unwrap_or_default());
        let answers = Self {
            program: program.to_owned(),
            identity,
            version,
            has_plugins,
            devices,
        };
        if is_whole {
            answers.keep();
        }
        Ok(answers)
    }

    fn kept(program: &Path, identity: (u64, i64, i64, u64)) -> Option<Self> {
        let text = fs::read(file(program)?).ok()?;
        let kept: Self = serde_json::from_slice(&text).ok()?;
        (kept.identity == identity && kept.program == program).then_some(kept)
    }

    /// Where they cannot be kept, the next process asks again.
    fn keep(&self) {
        if let (Some(file), Ok(bytes)) = (file(&self.program), serde_json::to_vec(self)) {
            let _ = write_renamed(&file, &bytes);
        }
    }
}

/// Only what the system installs is kept: a QEMU of one's own build changes, and one of a test is gone soon.
fn file(program: &Path) -> Option<PathBuf> {
    let name = program.file_name()?.to_str()?;
    let folders = ["/usr/bin", "/usr/local/bin"];
    let is_installed = folders.iter().any(|folder| program.starts_with(folder));
    let cache = is_installed.then(Cache::of_user)?.ok()?;
    Some(cache.root().join(format!("probes/{name}.json")))
}

fn identity(program: &Path) -> Result<(u64, i64, i64, u64), LabError> {
    let seen = fs::metadata(program).map_err(LabError::at("cannot run", program))?;
    Ok((seen.len(), seen.mtime(), seen.mtime_nsec(), seen.ino()))
}

/// How long a kernel may take to find that it has no root: 2 s with KVM on slow machines.
const LIMIT: Duration = Duration::from_secs(20);

/// What a kernel without root file system says last (`mount_block_root` and `kernel_init` in init/).
const ALIVE: [&str; 2] = [
    "Kernel panic - not syncing: VFS",
    "Kernel panic - not syncing: No working init",
];

/// KVM where a guest was seen to live under it, software emulation otherwise, with the reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Accelerated {
    /// What guests of this architecture run on here.
    pub acceleration: Acceleration,
    /// Why it is not KVM, in words.
    pub reason: Option<String>,
}

impl Accelerated {
    fn tcg(reason: impl Into<String>) -> Self {
        Self {
            acceleration: Acceleration::Tcg,
            reason: Some(reason.into()),
        }
    }
}

/// Probes with a kernel, or else the newest in a cache, unless the cache has the answer of this boot of the host.
pub fn acceleration(cache: &Cache, qemu: &Qemu, kernel: Option<&Kernel>) -> Accelerated {
    let arch = qemu.arch;
    if Arch::host() != Some(arch) {
        return Accelerated::tcg(format!(
            "KVM runs only guests of the host's architecture, not {arch}"
        ));
    }
    if let Err(error) = fs::File::options().read(true).write(true).open("/dev/kvm") {
        let hint = match error.kind() {
            ErrorKind::PermissionDenied => {
                "; to be allowed to use it: sudo usermod -aG kvm $USER, and log in again"
            }
            ErrorKind::NotFound => {
                " (no virtualisation in the CPU, switched off in the firmware, or inside of another guest)"
            }
            _ => "",
        };
        return Accelerated::tcg(format!("/dev/kvm: {error}{hint}"));
    }
    let file = cache.root().join(format!("probes/kvm-{arch}.json"));
    let Some(conditions) = Conditions::of(qemu) else {
        return Accelerated::tcg(
            "/proc/sys/kernel/random/boot_id cannot be read, so no answer could be kept",
        );
    };
    if let Some(answer) = Answer::read(&file).filter(|answer| answer.conditions == conditions) {
        return answer.accelerated();
    }
    let kernel = kernel.cloned();
    let kernel = match kernel.map_or_else(|| kernels::find_in(cache, None, arch), Ok) {
        Ok(kernel) => kernel,
        Err(error) => return Accelerated::tcg(format!("whether KVM works was not tried: {error}")),
    };
    let died = boots(qemu, &kernel.image).err();
    let answer = Answer { conditions, died };
    answer.write(&file);
    answer.accelerated()
}

/// What an answer holds for.
#[derive(PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Conditions {
    boot_id: String,
    program: PathBuf,
    version: (u32, u32, u32),
}

impl Conditions {
    fn of(qemu: &Qemu) -> Option<Self> {
        Some(Self {
            boot_id: boot_id().ok()?,
            program: qemu.program.clone(),
            version: qemu.version,
        })
    }
}

/// What was seen.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    conditions: Conditions,
    /// How the guest ended; nothing when it lived.
    died: Option<String>,
}

impl Answer {
    fn read(file: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(file).ok()?).ok()
    }

    /// Where it cannot be kept, the next run probes again.
    fn write(&self, file: &Path) {
        if let Ok(bytes) = serde_json::to_vec_pretty(self) {
            let _ = write_renamed(file, &bytes);
        }
    }

    fn accelerated(&self) -> Accelerated {
        match &self.died {
            None => Accelerated {
                acceleration: Acceleration::Kvm,
                reason: None,
            },
            Some(died) => Accelerated::tcg(format!(
                "/dev/kvm is there, but a guest does not live under it: {died}"
            )),
        }
    }
}

/// Boots a kernel without a root under KVM; the error is how a guest ended that did not live.
fn boots(qemu: &Qemu, image: &Path) -> Result<(), String> {
    let (machine, console) = match qemu.arch {
        Arch::X86_64 => ("q35", "ttyS0"),
        Arch::Aarch64 => ("virt,gic-version=host", "ttyAMA0"),
        Arch::Powerpc64le => ("pseries", "hvc0"),
    };
    // The CPU model of the lab's own guests: another model may live where this one dies.
    let words = format!(
        "-nodefaults -no-user-config -display none -M {machine} -accel kvm -cpu host -smp 1 -m 512 -serial stdio -no-reboot"
    );
    let mut command = Command::new(&qemu.program);
    command.args(words.split(' ')).arg("-kernel").arg(image);
    command.arg("-append");
    command.arg(format!("console={console} quiet panic=-1"));
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn();
    let mut child = child.map_err(|error| format!("{}: {error}", qemu.program.display()))?;
    let verdict = watch(&mut child, LIMIT);
    let _ = child.kill();
    let _ = child.wait();
    verdict
}

/// Reads what QEMU and the guest print until the guest is seen to live, both ends close, or time is up.
fn watch(child: &mut Child, limit: Duration) -> Result<(), String> {
    let (sender, pieces) = mpsc::channel();
    fn boxed(pipe: impl Read + Send + 'static) -> Box<dyn Read + Send> {
        Box::new(pipe)
    }
    let (console, errors) = (child.stdout.take(), child.stderr.take());
    let pipes = [console.map(boxed), errors.map(boxed)];
    for mut pipe in pipes.into_iter().flatten() {
        let sender = sender.clone();
        thread::spawn(move || {
            let mut block = [0; 4096];
            while let Ok(length @ 1..) = pipe.read(&mut block) {
                if sender.send(block[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
    }
    drop(sender);
    let end = Instant::now() + limit;
    let mut seen = Vec::new();
    loop {
        match pieces.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(piece) => seen.extend(piece),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(format!("QEMU ended: {}", last_line(&seen)));
            }
            Err(RecvTimeoutError::Timeout) => {
                let (seconds, last_line) = (limit.as_secs(), last_line(&seen));
                return Err(format!("its kernel hung for {seconds} s: {last_line}"));
            }
        }
        let text = String::from_utf8_lossy(&seen);
        if ALIVE.iter().any(|words| text.contains(words)) {
            return Ok(());
        }
    }
}

/// The last line with words in it, without what is no text.
fn last_line(seen: &[u8]) -> String {
    let text = String::from_utf8_lossy(seen);
    let mut lines = text.lines().rev().map(str::trim);
    let line = lines.find(|line| !line.is_empty());
    let line = line.unwrap_or("it printed nothing");
    line.chars().filter(|c| !c.is_control()).take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(script: &str, limit: Duration) -> Result<(), String> {
        let mut command = Command::new("sh");
        command
            .args(["-c", script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let verdict = watch(&mut child, limit);
        let _ = child.kill();
        let _ = child.wait();
        verdict
    }

    #[test]
    fn a_kernel_that_finds_no_root_lives() {
        let panic =
            "Kernel panic - not syncing: VFS: Unable to mount root fs on unknown-block(0,0)";
        assert_eq!(
            verdict(&format!("echo '[    0.9] {panic}'; exec cat"), LIMIT),
            Ok(())
        );
        assert_eq!(
            verdict("printf 'Kernel panic - not '; echo 'syncing: VFS'", LIMIT),
            Ok(()),
            "in two pieces"
        );
    }

    #[test]
    fn another_end_is_told_by_its_last_line() {
        let died = verdict(
            "echo early; echo 'Assertion `ret` failed.' >&2; exit 134",
            LIMIT,
        )
        .unwrap_err();
        assert!(died.starts_with("QEMU ended: "), "{died}");
        let died =
            verdict("echo 'Kernel panic - not syncing: Fatal exception'", LIMIT).unwrap_err();
        assert!(died.contains("Fatal exception"), "{died}");
        assert_eq!(
            verdict("exit 0", LIMIT),
            Err("QEMU ended: it printed nothing".to_owned())
        );
    }

    #[test]
    fn a_guest_that_says_nothing_more_is_given_up() {
        let died = verdict("exec sleep 600", Duration::from_millis(50)).unwrap_err();
        assert!(died.starts_with("its kernel hung for 0 s: "), "{died}");
    }

    #[test]
    fn an_answer_holds_only_under_the_conditions_it_was_found_in() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("probes/kvm.json");
        let conditions = |boot: &str| Conditions {
            boot_id: boot.to_owned(),
            program: "/usr/bin/qemu-system-x86_64".into(),
            version: (10, 0, 2),
        };
        Answer {
            conditions: conditions("a"),
            died: Some("hung".to_owned()),
        }
        .write(&file);
        let read = Answer::read(&file).unwrap();
        assert!(read.conditions == conditions("a") && read.conditions != conditions("b"));
        assert_eq!(read.accelerated().acceleration, Acceleration::Tcg);
    }
}

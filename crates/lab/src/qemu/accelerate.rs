//! Whether guests live under KVM here.
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
//! The answer holds for one boot of the host and one version of QEMU; it is kept in the cache.

use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use nearfar_machine::Acceleration;
use serde::{Deserialize, Serialize};

use crate::arch::Arch;
use crate::cache::Cache;
use crate::kernels::{self, Kernel};
use crate::qemu::Qemu;
use nearfar_proc::system::boot_id;

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

/// Probes with the newest cached kernel, once a boot of the host (the answer is kept in the user's cache folder).
pub fn acceleration(qemu: &Qemu) -> Accelerated {
    match Cache::of_user() {
        Ok(cache) => acceleration_with(&cache, qemu, None),
        Err(error) => Accelerated::tcg(error.to_string()),
    }
}

/// Probes with a kernel, or else the newest in a cache, unless the cache has the answer.
pub fn acceleration_with(cache: &Cache, qemu: &Qemu, kernel: Option<&Kernel>) -> Accelerated {
    if Arch::host() != Some(qemu.arch) {
        return Accelerated::tcg(format!(
            "KVM runs only guests of the host's architecture, not {}",
            qemu.arch
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
    let file = cache
        .root()
        .join("probes")
        .join(format!("kvm-{}.json", qemu.arch));
    let Some(conditions) = Conditions::of(qemu) else {
        return Accelerated::tcg(
            "/proc/sys/kernel/random/boot_id cannot be read, so no answer could be kept",
        );
    };
    if let Some(answer) = Answer::read(&file).filter(|answer| answer.conditions == conditions) {
        return answer.accelerated();
    }
    let kernel = kernel
        .cloned()
        .map_or_else(|| kernels::find_in(cache, None, qemu.arch), Ok);
    let answer = match kernel {
        Ok(kernel) => Answer {
            conditions,
            died: boots(qemu, &kernel.image).err().map(|end| end.to_string()),
        },
        Err(error) => return Accelerated::tcg(format!("whether KVM works was not tried: {error}")),
    };
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

    /// Where it cannot be kept, the next run probes again. Renamed, so that no process reads half of it.
    fn write(&self, file: &Path) {
        let Some(folder) = file.parent() else { return };
        let written =
            fs::create_dir_all(folder).and_then(|()| tempfile::NamedTempFile::new_in(folder));
        if let (Ok(new), Ok(bytes)) = (written, serde_json::to_vec_pretty(self))
            && fs::write(new.path(), bytes).is_ok()
        {
            let _ = new.persist(file);
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

/// How a guest ended that did not live.
#[derive(PartialEq, Eq, Debug, thiserror::Error)]
enum BootEnd {
    #[error("{program}: {reason}")]
    NotStarted { program: String, reason: String },
    #[error("QEMU ended: {last_line}")]
    Ended { last_line: String },
    #[error("its kernel hung for {seconds} s: {last_line}")]
    Hung { seconds: u64, last_line: String },
}

/// Boots a kernel without a root under KVM.
fn boots(qemu: &Qemu, image: &Path) -> Result<(), BootEnd> {
    let (machine, console) = match qemu.arch {
        Arch::X86_64 => ("q35", "ttyS0"),
        Arch::Aarch64 => ("virt,gic-version=host", "ttyAMA0"),
        Arch::Powerpc64le => ("pseries", "hvc0"),
    };
    let mut command = Command::new(&qemu.program);
    // The CPU model of the lab's own guests: another model may live where this one dies.
    command.args([
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-M",
        machine,
        "-accel",
        "kvm",
        "-cpu",
        "host",
    ]);
    command
        .args([
            "-smp",
            "1",
            "-m",
            "512",
            "-serial",
            "stdio",
            "-no-reboot",
            "-kernel",
        ])
        .arg(image);
    command
        .arg("-append")
        .arg(format!("console={console} quiet panic=-1"));
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| BootEnd::NotStarted {
        program: qemu.program.display().to_string(),
        reason: error.to_string(),
    })?;
    let verdict = watch(&mut child, LIMIT);
    let _ = child.kill();
    let _ = child.wait();
    verdict
}

/// Reads what QEMU and the guest print until the guest is seen to live, both ends close, or time is up.
fn watch(child: &mut Child, limit: Duration) -> Result<(), BootEnd> {
    let (sender, pieces) = mpsc::channel();
    let console = child
        .stdout
        .take()
        .map(|pipe| Box::new(pipe) as Box<dyn Read + Send>);
    let errors = child
        .stderr
        .take()
        .map(|pipe| Box::new(pipe) as Box<dyn Read + Send>);
    for mut pipe in [console, errors].into_iter().flatten() {
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
                let last_line = last_line(&seen);
                return Err(BootEnd::Ended { last_line });
            }
            Err(RecvTimeoutError::Timeout) => {
                return Err(BootEnd::Hung {
                    seconds: limit.as_secs(),
                    last_line: last_line(&seen),
                });
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
    let line = text
        .lines()
        .rev()
        .map(str::trim)
        .find(|line| !line.is_empty())
        .unwrap_or("it printed nothing");
    line.chars().filter(|c| !c.is_control()).take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(script: &str, limit: Duration) -> Result<(), BootEnd> {
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
        assert!(matches!(died, BootEnd::Ended { .. }), "{died}");
        let died =
            verdict("echo 'Kernel panic - not syncing: Fatal exception'", LIMIT).unwrap_err();
        assert!(died.to_string().contains("Fatal exception"), "{died}");
        assert_eq!(
            verdict("exit 0", LIMIT),
            Err(BootEnd::Ended {
                last_line: "it printed nothing".to_owned()
            })
        );
    }

    #[test]
    fn a_guest_that_says_nothing_more_is_given_up() {
        let died = verdict("exec sleep 600", Duration::from_millis(50)).unwrap_err();
        assert!(matches!(died, BootEnd::Hung { .. }), "{died}");
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

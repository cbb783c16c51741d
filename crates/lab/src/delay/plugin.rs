//! Where the plugin's file is.

use std::env;
use std::path::{Path, PathBuf};

use crate::advice;
use crate::doctor::Installer;
use crate::error::LabError;
use crate::qemu::{self, PLUGINS_SINCE, Qemu};

const FILE: &str = "libnearfar_lab_delay.so";

/// Finds the plugin next to the running program, in the build folder above it, or in `../lib/nearfar`.
///
/// # Errors
/// When this QEMU loads no plugins of our interface, or when the file is nowhere; both say what to do.
pub fn find_plugin(qemu: &Qemu) -> Result<PathBuf, LabError> {
    if !qemu.plugins {
        return Err(LabError::Missing {
            what: format!("plugin support in QEMU {}", qemu.version_text()),
            hint: format!(
                "delays need QEMU {} or later, built with plugins{}, or --delay off",
                qemu::dotted(PLUGINS_SINCE),
                advice::newer_qemu(&Installer::of_system(), qemu.arch)
                    .map_or_else(String::new, |command| format!(" (run: {command})"))
            ),
        });
    }
    let program = env::current_exe()
        .map_err(|error| LabError::system("finding the running program", error))?;
    let places = places(&program);
    places.iter().find(|place| place.is_file()).cloned().ok_or_else(|| LabError::Missing {
        what: format!("the delay plugin {FILE}"),
        hint: format!(
            "build it with: cargo build -p nearfar-lab-delay (looked for {}), or use --delay off",
            places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(", ")
        ),
    })
}

/// Where a program looks for it: test programs are in `deps` or `examples` below the build folder.
fn places(program: &Path) -> Vec<PathBuf> {
    let folder = program.parent().unwrap_or(Path::new("."));
    let mut places = vec![folder.join(FILE)];
    if folder.ends_with("deps") || folder.ends_with("examples") {
        places.extend(folder.parent().map(|above| above.join(FILE)));
    }
    places.extend(
        folder
            .parent()
            .map(|above| above.join("lib/nearfar").join(FILE)),
    );
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plugin_is_looked_for_beside_the_program_and_in_the_library_folder() {
        let found = places(Path::new("/usr/bin/nearfar"));
        assert_eq!(
            found,
            [
                Path::new("/usr/bin").join(FILE),
                Path::new("/usr/lib/nearfar").join(FILE)
            ]
        );
    }

    #[test]
    fn a_test_program_finds_the_plugin_of_its_build() {
        assert!(
            places(Path::new("/t/debug/deps/guest-1")).contains(&Path::new("/t/debug").join(FILE))
        );
    }
}

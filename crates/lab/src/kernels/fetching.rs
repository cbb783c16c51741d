//! From a series to a kernel in the cache: which package, what is in it, what an installation would have added.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::arch::Arch;
use crate::cache::CacheLock;
use crate::error::LabError;
use crate::foreign;
use crate::kernels::record::{self, Record};
use crate::kernels::{Kernel, Series, own};
use crate::packages::{PackageError, Progress, Repository, Stanza, sha256};

/// Fetches the newest kernel of a series that the distribution has.
pub(super) fn fetch(
    lock: &CacheLock<'_>,
    series: Series,
    arch: Arch,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Kernel, LabError> {
    let refused = |problem: PackageError| LabError::Kernel {
        spec: series.to_string(),
        arch,
        problem: problem.to_string(),
    };
    let repository = Repository::open(lock, arch).map_err(&refused)?;
    let wanted = |name: &str| release_of(name, series, arch).is_some();
    let prefix = format!("linux-image-{series}.");
    let package = repository
        .newest(&prefix, wanted, suite_with(series), progress)
        .map_err(&refused)?;
    let Some(package) = package else {
        let what = format!(
            "the distribution ({}) has no such kernel; `nearfar lab kernels list` shows those it has, --kernel PATH takes your own",
            repository.name()
        );
        return Err(LabError::Kernel {
            spec: series.to_string(),
            arch,
            problem: what,
        });
    };
    let workshop = lock.workshop()?;
    let folder = workshop.path().join("kernel");
    repository
        .unpack(&package, &folder, progress)
        .map_err(&refused)?;
    progress(Progress::Preparing("modules.dep"));
    let record = prepared(&folder, &package, series, arch).map_err(&refused)?;
    index_modules(lock, &folder, &record.release, progress).map_err(&refused)?;
    let place = record::folder(lock.cache(), arch).join(&record.release);
    lock.put(&folder, &place)?;
    Ok(record.kernel(&place))
}

/// The release of a package's kernel, if the package is an image of that series for ordinary machines: not of the
/// flavours `cloud` (no NVMe, no 9p) and `rt`, not the debug symbols or the unsigned twin.
fn release_of(package: &str, series: Series, arch: Arch) -> Option<&str> {
    let release = package.strip_prefix("linux-image-")?;
    let flavour = match arch {
        Arch::X86_64 => "amd64",
        Arch::Aarch64 => "arm64",
        Arch::Powerpc64le => "powerpc64le",
    };
    let number = release.strip_suffix(flavour)?.strip_suffix('-')?;
    // Debian 12 numbers its interfaces, 6.1.0-56; later releases name the kernel's own number, 6.12.107+deb12.
    let plain = |part: &str| {
        part.bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'.')
    };
    let ordinary = match number.split_once('-') {
        Some((number, interface)) => plain(number) && plain(interface),
        None => true,
    };
    (ordinary && Series::of_release(release) == Some(series)).then_some(release)
}

/// The release of Debian whose own kernel that series is, for machines whose release has another.
fn suite_with(series: Series) -> Option<&'static str> {
    match series {
        Series::V6_1 => Some("bookworm"),
        Series::V6_12 => Some("trixie"),
        _ => None,
    }
}

/// Puts an unpacked package in the cache's form and describes it.
fn prepared(
    folder: &Path,
    package: &Stanza,
    series: Series,
    arch: Arch,
) -> Result<Record, PackageError> {
    let failed = || PackageError::system(format!("unpacked {}", package.package));
    let lacks = |lacks| PackageError::Content {
        package: package.package.clone(),
        lacks,
    };
    // Debian 13's packages know /usr/lib only.
    let (split, merged) = (folder.join("lib/modules"), folder.join("usr/lib/modules"));
    if !split.exists() && merged.exists() {
        fs::create_dir_all(folder.join("lib"))
            .and_then(|()| fs::rename(&merged, &split))
            .map_err(failed())?;
    }
    let release = release_of(&package.package, series, arch)
        .ok_or_else(|| lacks("kernel of that series"))?
        .to_owned();
    let images = own::images_in(&folder.join("boot"));
    let image = images
        .iter()
        .find(|image| image.to_string_lossy().ends_with(&format!("-{release}")));
    let image = image.ok_or_else(|| lacks("image in /boot"))?;
    let bytes = fs::metadata(image).map_err(failed())?.len();
    let record = Record {
        series,
        arch,
        release,
        package: package.package.clone(),
        version: package.version.clone(),
        package_sha256: package.sha256.clone(),
        image: image
            .strip_prefix(folder)
            .unwrap_or(image)
            .to_string_lossy()
            .into_owned(),
        image_bytes: bytes,
        image_sha256: sha256::of_file(image).map_err(failed())?,
    };
    record.write(folder).map_err(failed())?;
    Ok(record)
}

/// Makes `modules.dep` and its like, which Debian's packages leave to the installation. kmod's `depmod` and busybox's
/// both work on a folder of any architecture and need no root.
fn index_modules(
    lock: &CacheLock<'_>,
    folder: &Path,
    release: &str,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<(), PackageError> {
    let mut command = match depmod() {
        Some(program) => Command::new(program),
        None => {
            let host = Arch::host().ok_or(PackageError::NoDepmod)?;
            let busybox = foreign::busybox_under(lock, host, progress).map_err(Box::new)?;
            let mut command = Command::new(busybox);
            command.arg("depmod");
            command
        }
    };
    let output = command.arg("-b").arg(folder).arg(release).output();
    let output = output.map_err(PackageError::system("depmod"))?;
    let index = folder.join("lib/modules").join(release).join("modules.dep");
    match fs::metadata(&index) {
        Ok(metadata) if output.status.success() && metadata.len() > 0 => Ok(()),
        _ => Err(PackageError::failed(
            "depmod made no list of modules",
            &output.stderr,
        )),
    }
}

/// kmod's `depmod`, which users often have outside of their `PATH`.
pub(crate) fn depmod() -> Option<PathBuf> {
    crate::programs::find("depmod")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_signed_kernels_for_ordinary_machines_are_taken() {
        let release = |name, series, arch| release_of(name, series, arch);
        let (v1, v12) = (Series::V6_1, Series::V6_12);
        assert_eq!(
            release("linux-image-6.1.0-56-amd64", v1, Arch::X86_64),
            Some("6.1.0-56-amd64")
        );
        assert_eq!(
            release("linux-image-6.12.90+deb12.1-arm64", v12, Arch::Aarch64),
            Some("6.12.90+deb12.1-arm64")
        );
        let power = "linux-image-6.12.95+deb12-powerpc64le";
        assert_eq!(
            release(power, v12, Arch::Powerpc64le),
            Some("6.12.95+deb12-powerpc64le")
        );
        for other in [
            "linux-image-6.1.0-56-cloud-amd64",
            "linux-image-6.1.0-56-rt-amd64",
            "linux-image-6.1.0-56-amd64-unsigned",
            "linux-image-6.1.0-56-amd64-dbg",
            "linux-image-6.12.107+deb12-amd64",
            "linux-image-6.12.107+deb12-rt-amd64",
            "linux-image-6.1-amd64-signed-template",
            "linux-image-amd64",
        ] {
            assert_eq!(release(other, v1, Arch::X86_64), None, "{other}");
        }
        assert_eq!(
            release("linux-image-6.12.107+deb12-cloud-arm64", v12, Arch::Aarch64),
            None
        );
        assert_eq!(
            release("linux-image-6.12.107+deb12-arm64-16k", v12, Arch::Aarch64),
            None
        );
    }
}

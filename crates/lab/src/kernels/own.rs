//! Kernels of the user's own: an image, the folder of an extracted package, a build tree, the running kernel.
//!
//! | what is named | image | modules in |
//! |---|---|---|
//! | a file | itself | its folder and three above, else the host's |
//! | a folder with `boot/` | `boot/vmlin*-REL` | that folder |
//! | a build tree (`include/config/kernel.release`) | `arch/*/boot/...` or `vmlinux` | the tree, else the host's |
//! | `host` | `/boot/vmlinuz-REL` | the host's |
//!
//! Modules are those of the image's own release, in `lib/modules/REL` or `usr/lib/modules/REL`. A build tree has them there
//! after `make modules_install INSTALL_MOD_PATH=$PWD`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::arch::Arch;
use crate::error::LabError;
use crate::kernels::{Kernel, image};

/// A kernel by path.
pub fn at_path(path: &Path, arch: Arch) -> Result<Kernel, LabError> {
    let metadata =
        fs::metadata(path).map_err(|error| problem(path, arch, &format!("{error}; {KINDS}")))?;
    if metadata.is_file() {
        return from_image(path, arch, None);
    }
    let release_file = path.join("include/config/kernel.release");
    if release_file.exists() {
        return from_build_tree(path, &release_file, arch);
    }
    from_package_folder(path, arch)
}

/// The kernel this machine runs.
pub fn of_host(arch: Arch) -> Result<Kernel, LabError> {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    let images =
        ["vmlinuz", "vmlinux"].map(|name| PathBuf::from(format!("/boot/{name}-{release}")));
    let image = images.iter().find(|image| image.exists());
    let image = image.ok_or_else(|| {
        LabError::kernel("host", arch)(format!(
            "there is no image of the running kernel {release} in /boot; `nearfar lab kernels get` fetches one"
        ))
    })?;
    from_image(image, arch, None)
}

const KINDS: &str = "a kernel is a series such as 6.12, `host`, or a path to an image, a build tree, or a folder with boot/ \
                     and lib/modules/";

fn problem(path: &Path, arch: Arch, problem: &str) -> LabError {
    LabError::kernel(path.display(), arch)(problem.to_owned())
}

/// `release`: what a build tree says, for images that do not say it themselves.
fn from_image(path: &Path, arch: Arch, release: Option<String>) -> Result<Kernel, LabError> {
    let path = &fs::canonicalize(path).map_err(|error| problem(path, arch, &error.to_string()))?;
    let image = image::read(path).map_err(|error| unreadable(path, arch, &error))?;
    let Some(image) = image else {
        let what = "not a kernel image (bzImage, Image or a 64-bit little-endian vmlinux)";
        return Err(problem(path, arch, what));
    };
    if image.arch != arch {
        let what = format!("this is a kernel for {0}; say --arch {0}", image.arch);
        return Err(problem(path, arch, &what));
    }
    let release = match (image.release, release) {
        (Some(says), Some(tree)) if says != tree => {
            let what = format!(
                "the image is {says}, but the tree is configured as {tree}; run make again"
            );
            return Err(problem(path, arch, &what));
        }
        (Some(release), _) | (None, Some(release)) => release,
        (None, None) => {
            let what = "its release is not to be seen; name the file vmlinuz-RELEASE, as `uname -r` would say it";
            release_in_name(path).ok_or_else(|| problem(path, arch, what))?
        }
    };
    let modules = modules_next_to(path, &release, arch)?;
    Ok(Kernel {
        arch,
        release,
        image: path.clone(),
        modules,
    })
}

fn unreadable(path: &Path, arch: Arch, error: &std::io::Error) -> LabError {
    let hint = match error.kind() {
        // Ubuntu keeps its kernels from users.
        std::io::ErrorKind::PermissionDenied => {
            "; copy it as root to a place of yours, or use a fetched kernel"
        }
        _ => "",
    };
    problem(path, arch, &format!("{error}{hint}"))
}

fn release_in_name(path: &Path) -> Option<String> {
    let (_, release) = path.file_name()?.to_str()?.split_once('-')?;
    image::is_release(release).then(|| release.to_owned())
}

/// The modules folder of an image, from the nearest place to the farthest. `None`: none anywhere, as for a kernel that
/// has all it needs built in.
fn modules_next_to(image: &Path, release: &str, arch: Arch) -> Result<Option<PathBuf>, LabError> {
    // arch/x86/boot/bzImage lies three folders deep in its tree.
    let above = image.ancestors().skip(1).take(4);
    // The host's modules are for programs of the host.
    let of_host = (Arch::host() == Some(arch)).then(|| Path::new("/"));
    let mut places = above
        .chain(of_host)
        .flat_map(|folder| modules_in(folder, release));
    let Some(folder) = places.find(|folder| folder.is_dir()) else {
        return Ok(None);
    };
    if folder.join("modules.dep").exists() {
        return Ok(Some(folder));
    }
    let base = folder.ancestors().nth(3).unwrap_or(Path::new("/"));
    let what = format!(
        "{} has no modules.dep, so no module can be loaded; run: depmod -b {} {release}",
        folder.display(),
        base.display()
    );
    Err(problem(image, arch, &what))
}

fn modules_in(folder: &Path, release: &str) -> [PathBuf; 2] {
    ["lib/modules", "usr/lib/modules"].map(|modules| folder.join(modules).join(release))
}

fn from_build_tree(tree: &Path, release_file: &Path, arch: Arch) -> Result<Kernel, LabError> {
    let release = fs::read_to_string(release_file)
        .map_err(|error| problem(release_file, arch, &error.to_string()))?;
    let release = release.trim();
    if !image::is_release(release) {
        let what = "no kernel release in it; run make again";
        return Err(problem(release_file, arch, what));
    }
    let images: &[&str] = match arch {
        Arch::X86_64 => &["arch/x86/boot/bzImage"],
        Arch::Aarch64 => &[
            "arch/arm64/boot/Image",
            "arch/arm64/boot/Image.gz",
            "arch/arm64/boot/vmlinuz.efi",
        ],
        Arch::Powerpc64le => &["vmlinux", "arch/powerpc/boot/zImage"],
    };
    let mut paths = images.iter().map(|image| tree.join(image));
    match paths.find(|image| image.exists()) {
        Some(image) => from_image(&image, arch, Some(release.to_owned())),
        None => {
            let what = format!("a build tree without {}; run make there first", images[0]);
            Err(problem(tree, arch, &what))
        }
    }
}

fn from_package_folder(folder: &Path, arch: Arch) -> Result<Kernel, LabError> {
    let mut images = images_in(&folder.join("boot"));
    if images.is_empty() {
        images = images_in(folder);
    }
    match images.as_slice() {
        [] => {
            let what = format!("no kernel in this folder; {KINDS}");
            Err(problem(folder, arch, &what))
        }
        [image] => from_image(image, arch, None),
        several => {
            let names = several.iter().map(|image| image.display().to_string());
            let names = names.collect::<Vec<_>>().join(", ");
            let what = format!("several kernels; name one of {names}");
            Err(problem(folder, arch, &what))
        }
    }
}

/// The images in a folder, by name.
pub fn images_in(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let kinds = ["vmlinuz", "vmlinux", "bzImage", "Image"];
    let is_image = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        let kind = name.map(|name| name.split('-').next().unwrap_or(name));
        kind.is_some_and(|kind| kinds.contains(&kind)) && path.is_file()
    };
    let entries = entries.flatten().map(|entry| entry.path());
    let mut images: Vec<_> = entries.filter(is_image).collect();
    images.sort();
    images
}

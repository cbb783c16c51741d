//! Kernels found in made-up folders, images made by hand, and the cache's lock.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use nearfar_lab::arch::Arch;
use nearfar_lab::cache::Cache;
use nearfar_lab::kernels::bisection::{Bisection, Commit, Mark, Next};
use nearfar_lab::kernels::{self, Series, build, image, own};
use proptest::prelude::*;

/// The start of a bzImage with a version string.
fn bzimage(release: &str) -> Vec<u8> {
    let mut bytes = vec![0; 0x1000];
    bytes[0x202..0x206].copy_from_slice(b"HdrS");
    bytes[0x20e..0x210].copy_from_slice(&0x300_u16.to_le_bytes());
    let text = format!("{release} (builder@example) #1 SMP\0");
    bytes[0x500..0x500 + text.len()].copy_from_slice(text.as_bytes());
    bytes
}

fn arm_image(release: &str) -> Vec<u8> {
    let mut bytes = vec![0; 0x1000];
    bytes[0x38..0x3c].copy_from_slice(b"ARM\x64");
    // The words stand in messages, too.
    bytes.extend_from_slice(b"Linux version %s (%s)\0");
    bytes.extend_from_slice(format!("Linux version {release} (builder@example)\n").as_bytes());
    bytes
}

fn elf(machine: u16, release: &str) -> Vec<u8> {
    let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
    bytes.resize(0x400, 0);
    bytes[18..20].copy_from_slice(&machine.to_le_bytes());
    bytes.extend_from_slice(format!("Linux version {release} (builder@example)\n").as_bytes());
    bytes
}

fn write(path: &Path, bytes: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// A cached kernel, as `get` leaves it.
fn cached(cache: &Cache, series: &str, release: &str, version: &str) -> PathBuf {
    let folder = cache.root().join("kernels/x86_64").join(release);
    let image = bzimage(release);
    let name = format!("boot/vmlinuz-{release}");
    write(&folder.join(&name), &image);
    write(
        &folder.join("lib/modules").join(release).join("modules.dep"),
        "",
    );
    let sum = nearfar_lab::packages::sha256_of_file(&folder.join(&name)).unwrap();
    let record = serde_json::json!({
        "series": series, "arch": "x86_64", "release": release, "package": format!("linux-image-{release}"),
        "version": version, "package_sha256": "", "image": name, "image_bytes": image.len(), "image_sha256": sum,
    });
    write(&folder.join("record.json"), record.to_string());
    folder
}

#[test]
fn images_tell_architecture_and_release() {
    let parsed = |bytes: &[u8]| {
        image::parse(bytes).map(|image| (image.arch, image.release.unwrap_or_default()))
    };
    let release = "6.12.107+deb12-amd64";
    assert_eq!(
        parsed(&bzimage(release)),
        Some((Arch::X86_64, release.to_owned()))
    );
    assert_eq!(
        parsed(&arm_image("6.12.1-arm64")),
        Some((Arch::Aarch64, "6.12.1-arm64".to_owned()))
    );
    assert_eq!(
        parsed(&elf(21, "6.1.0-50-p")),
        Some((Arch::Powerpc64le, "6.1.0-50-p".to_owned()))
    );
    assert_eq!(
        parsed(&elf(62, "7.0")),
        Some((Arch::X86_64, "7.0".to_owned()))
    );
    assert_eq!(parsed(&elf(8, "6.1.0")), None, "MIPS");
    assert_eq!(parsed(b"#!/bin/sh\n"), None);
    let packed = {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut packer, &arm_image("6.12.2")).unwrap();
        packer.finish().unwrap()
    };
    assert_eq!(
        parsed(&packed),
        Some((Arch::Aarch64, "6.12.2".to_owned())),
        "Image.gz"
    );
    let mut zboot = vec![0; 0x100];
    zboot[..8].copy_from_slice(b"MZ\0\0zimg");
    zboot[8..12].copy_from_slice(&0x100_u32.to_le_bytes());
    zboot[12..16].copy_from_slice(&(packed.len() as u32).to_le_bytes());
    zboot[24..28].copy_from_slice(b"gzip");
    zboot[0x3c..0x40].copy_from_slice(&0x40_u32.to_le_bytes());
    zboot[0x44..0x46].copy_from_slice(&0xaa64_u16.to_le_bytes());
    zboot.extend(packed);
    assert_eq!(
        parsed(&zboot),
        Some((Arch::Aarch64, "6.12.2".to_owned())),
        "vmlinuz.efi"
    );
}

#[test]
fn a_release_that_is_a_path_is_none() {
    for word in ["../../etc", "6.1/../..", "6..1", "/6.1", "6", "-6.1", ""] {
        assert!(!image::is_release(word), "{word}");
    }
    assert_eq!(image::parse(&bzimage("../../6.1")).unwrap().release, None);
}

#[test]
fn an_extracted_package_is_found_with_its_modules_from_its_folder_as_from_its_image() {
    let folder = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(folder.path()).unwrap();
    write(&root.join("boot/vmlinuz-6.12.1-x"), bzimage("6.12.1-x"));
    write(&root.join("boot/config-6.12.1-x"), "");
    write(&root.join("usr/lib/modules/6.12.1-x/modules.dep"), "");
    for named in [root.clone(), root.join("boot/vmlinuz-6.12.1-x")] {
        let kernel = own::at_path(&named, Arch::X86_64).unwrap();
        assert_eq!(kernel.release, "6.12.1-x");
        assert_eq!(kernel.image, root.join("boot/vmlinuz-6.12.1-x"));
        assert_eq!(kernel.modules, Some(root.join("usr/lib/modules/6.12.1-x")));
    }
}

#[test]
fn a_build_tree_is_found_and_a_stale_image_in_it_refused() {
    let folder = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(folder.path()).unwrap();
    write(&root.join("include/config/kernel.release"), "6.13.0-rc1+\n");
    let problem = own::at_path(&root, Arch::X86_64).unwrap_err().to_string();
    assert!(problem.contains("run make"), "{problem}");
    write(&root.join("arch/x86/boot/bzImage"), bzimage("6.13.0-rc1+"));
    let kernel = own::at_path(&root, Arch::X86_64).unwrap();
    assert_eq!(
        (kernel.release.as_str(), kernel.modules),
        ("6.13.0-rc1+", None),
        "all built in"
    );
    write(&root.join("lib/modules/6.13.0-rc1+/modules.dep"), "");
    assert!(own::at_path(&root, Arch::X86_64).unwrap().modules.is_some());
    write(&root.join("arch/x86/boot/bzImage"), bzimage("6.12.0"));
    let problem = own::at_path(&root, Arch::X86_64).unwrap_err().to_string();
    assert!(
        problem.contains("6.12.0") && problem.contains("6.13.0-rc1+"),
        "{problem}"
    );
}

#[test]
fn what_is_no_kernel_of_the_architecture_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let problem = |path: &Path, arch| own::at_path(path, arch).unwrap_err().to_string();
    assert!(problem(path, Arch::X86_64).contains("no kernel in this folder"));
    assert!(
        problem(&path.join("absent"), Arch::X86_64).contains("6.12"),
        "says what a kernel is"
    );
    write(&path.join("boot/vmlinuz-6.1"), "text");
    assert!(problem(path, Arch::X86_64).contains("not a kernel image"));
    write(&path.join("boot/vmlinuz-6.1"), bzimage("6.1"));
    assert!(problem(path, Arch::Aarch64).contains("--arch x86_64"));
    write(&path.join("lib/modules/6.1/kernel/a.ko"), "");
    assert!(problem(path, Arch::X86_64).contains("depmod -b"));
    write(&path.join("boot/vmlinuz-6.2"), bzimage("6.2"));
    assert!(problem(path, Arch::X86_64).contains("several kernels"));
}

#[test]
fn the_newest_whole_kernel_of_a_series_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path());
    let found = |spec: Option<&str>| {
        kernels::find_in(&cache, spec, Arch::X86_64).map(|kernel| kernel.release)
    };
    let problem = found(None).unwrap_err().to_string();
    assert!(
        problem.contains("nearfar lab kernels get 6.12"),
        "{problem}"
    );
    cached(&cache, "6.1", "6.1.0-56-amd64", "6.1.192-2");
    cached(&cache, "6.12", "6.12.95+deb12-amd64", "6.12.95-1~bpo12+1");
    let newest = cached(&cache, "6.12", "6.12.107+deb12-amd64", "6.12.107-1~deb12u1");
    assert_eq!(found(None).unwrap(), "6.12.107+deb12-amd64");
    assert_eq!(found(Some("6.12")).unwrap(), "6.12.107+deb12-amd64");
    assert_eq!(found(Some("6.1")).unwrap(), "6.1.0-56-amd64");
    assert_eq!(
        found(Some("6.12.95+deb12-amd64")).unwrap(),
        "6.12.95+deb12-amd64"
    );
    let problem = found(Some("5.10")).unwrap_err().to_string();
    assert!(
        problem.contains("nearfar lab kernels get 5.10"),
        "{problem}"
    );
    let problem = kernels::find_in(&cache, Some("6.12"), Arch::Aarch64)
        .unwrap_err()
        .to_string();
    assert!(problem.contains("--arch aarch64"), "{problem}");

    fs::remove_file(newest.join("lib/modules/6.12.107+deb12-amd64/modules.dep")).unwrap();
    assert_eq!(
        found(Some("6.12")).unwrap(),
        "6.12.95+deb12-amd64",
        "a damaged one is passed over"
    );
}

#[test]
fn the_list_shows_what_is_cached_what_is_damaged_and_what_could_be_fetched() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path());
    assert_eq!(kernels::list(&cache).len(), kernels::KNOWN.len());
    cached(&cache, "6.1", "6.1.0-56-amd64", "6.1.192-2");
    let damaged = cached(&cache, "6.12", "6.12.95+deb12-amd64", "6.12.95-1");
    let image = damaged.join("boot/vmlinuz-6.12.95+deb12-amd64");
    let mut altered = fs::read(&image).unwrap();
    altered[0] ^= 1;
    fs::write(&image, &altered).unwrap();
    assert_eq!(
        kernels::verify(&cache),
        [(
            damaged,
            "boot/vmlinuz-6.12.95+deb12-amd64 was altered".to_owned()
        )]
    );
    fs::write(&image, &altered[1..]).unwrap();
    let list = kernels::list(&cache);
    let seen: Vec<_> = list
        .iter()
        .map(|it| {
            (
                it.series.to_string(),
                it.arch,
                it.cached,
                it.damage.is_some(),
            )
        })
        .collect();
    let wanted = [
        ("6.12", Arch::X86_64, false, true),
        ("6.1", Arch::X86_64, true, false),
        ("6.12", Arch::Aarch64, false, false),
        ("6.12", Arch::Powerpc64le, false, false),
        ("6.1", Arch::Powerpc64le, false, false),
    ];
    assert_eq!(
        seen,
        wanted.map(|(series, arch, cached, damaged)| (series.to_owned(), arch, cached, damaged))
    );
    assert_eq!(
        list[1].package.as_deref(),
        Some("linux-image-6.1.0-56-amd64 6.1.192-2")
    );
    // A record that is no record is no kernel.
    write(
        &cache.root().join("kernels/x86_64/6.9/record.json"),
        "{\"series\": \"six\"}",
    );
    assert_eq!(kernels::list(&cache).len(), 5);
}

#[test]
fn a_cached_kernel_is_got_without_asking_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path());
    cached(&cache, "6.1", "6.1.0-56-amd64", "6.1.192-2");
    let kernel = kernels::get(&cache, Series::V6_1, Arch::X86_64, &mut |step| {
        panic!("{step:?}")
    })
    .unwrap();
    assert_eq!(kernel.release, "6.1.0-56-amd64");
}

#[test]
fn a_second_process_waits_for_the_first_and_sweeps_what_killed_ones_left() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path().join("new"));
    let lock = cache.lock(&mut || panic!("it is free")).unwrap();
    let workshop = lock.workshop().unwrap();
    let left_behind = workshop.keep();
    write(&left_behind.join("half/a.ko"), "");
    let (waits, has_to_wait) = mpsc::channel();
    let released = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // Each opening of the file has a lock of its own, in one process as in two.
            let _second = cache.lock(&mut || waits.send(()).unwrap()).unwrap();
            assert!(released.load(Ordering::SeqCst), "the lock was given twice");
            assert!(!left_behind.exists());
        });
        has_to_wait.recv().unwrap();
        assert!(left_behind.exists(), "swept while it was worked on");
        released.store(true, Ordering::SeqCst);
        drop(lock);
    });
}

#[test]
fn a_finished_folder_takes_the_place_of_an_older_one() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path());
    let lock = cache.lock(&mut || {}).unwrap();
    let place = cache.root().join("kernels/x86_64/6.1");
    for content in ["old", "new"] {
        let workshop = lock.workshop().unwrap();
        write(&workshop.path().join("made/file"), content);
        lock.put(&workshop.path().join("made"), &place).unwrap();
    }
    assert_eq!(fs::read_to_string(place.join("file")).unwrap(), "new");
    let left: Vec<_> = fs::read_dir(cache.root())
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn series_are_read_as_they_are_written() {
    assert_eq!("6.12".parse::<Series>().unwrap(), Series::V6_12);
    assert_eq!(Series::of_release("6.1.0-56-amd64"), Some(Series::V6_1));
    assert_eq!(Series::of_release("6.12+x"), Some(Series::V6_12));
    for text in [
        "6",
        "6.",
        ".1",
        "6.1.2",
        "+6.1",
        "6.x",
        "99999999.1",
        "six.one",
        "",
    ] {
        assert!(text.parse::<Series>().is_err(), "{text}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_as_an_image_without_harm(
        start in prop::sample::select(vec![&b"MZ\0\0zimg"[..], b"\x7fELF\x02\x01", b"\x1f\x8b\x08\0", b""]),
        mut bytes in prop::collection::vec(any::<u8>(), 0..1200),
        bz in any::<bool>(),
    ) {
        let length = start.len().min(bytes.len());
        bytes[..length].copy_from_slice(&start[..length]);
        if bz && bytes.len() > 0x206 {
            bytes[0x202..0x206].copy_from_slice(b"HdrS");
        }
        if let Some(release) = image::parse(&bytes).and_then(|image| image.release) {
            prop_assert!(image::is_release(&release));
        }
    }

    #[test]
    fn a_series_is_read_back_as_it_was_printed(major in any::<u16>(), minor in any::<u16>()) {
        let series = Series { major, minor };
        prop_assert_eq!(series.to_string().parse::<Series>().unwrap(), series);
        prop_assert_eq!(Series::of_release(&format!("{series}.3-amd64")), Some(series));
    }
}

/// A repository whose makefile makes a kernel image without compiling one: its text is what the image says.
struct Toy(tempfile::TempDir);

impl Toy {
    const MAKEFILE: &str = "\
allnoconfig:
\t@mkdir -p $(O)/include/config
\t@cp $(KCONFIG_ALLCONFIG) $(O)/.config
bzImage: broken.c
\t@echo '  CC      init/main.o'
\t@if grep -q wrong $<; then echo 'broken.c:1:1: error: a wrong line'; exit 1; fi
\t@mkdir -p $(O)/arch/x86/boot
\t@(head -c 514 /dev/zero; printf HdrS; head -c 8 /dev/zero; printf '\\000\\003'; head -c 752 /dev/zero; \\
\t  printf '6.12.0%s (x@x) \\000' $(LOCALVERSION); head -c 4096 /dev/zero) > $(O)/arch/x86/boot/bzImage
\t@printf '6.12.0%s' $(LOCALVERSION) > $(O)/include/config/kernel.release
";

    fn new() -> Self {
        let toy = Self(tempfile::tempdir().unwrap());
        write(&toy.path().join("Makefile"), Self::MAKEFILE);
        toy.git(&["init", "--quiet"]);
        toy.commit("a good line\n", "good");
        toy.commit("a wrong line\n", "bad");
        toy.commit("a good line again\n", "fixed");
        toy
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn git(&self, arguments: &[&str]) -> String {
        let output = std::process::Command::new("git")
            .arg("-C")
            .arg(self.path())
            .args([
                "-c",
                "user.name=a",
                "-c",
                "user.email=a@b",
                "-c",
                "commit.gpgsign=false",
            ])
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn commit(&self, line: &str, tag: &str) {
        write(&self.path().join("broken.c"), line);
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--message", tag]);
        self.git(&["tag", tag]);
    }

    /// The release of a built kernel, and how often something was compiled for it.
    fn build(&self, cache: &Cache, spec: &str) -> Result<(String, usize), String> {
        let source = build::GitSource::of(spec, self.path())?;
        let mut compiled = 0;
        let mut progress = |it: nearfar_lab::packages::Progress<'_>| {
            compiled += usize::from(matches!(
                it,
                nearfar_lab::packages::Progress::Compiling { .. }
            ));
        };
        let kernel = build::get(cache, &source, None, Arch::X86_64, &mut progress);
        let kernel = kernel.map_err(|error| error.to_string())?;
        assert!(
            kernel.modules.is_none() && kernel.image.is_file(),
            "{kernel:?}"
        );
        Ok((kernel.release, compiled))
    }
}

#[test]
fn a_revision_of_a_repository_is_built_once_and_the_repository_stays_as_it_is() {
    if Arch::host() != Some(Arch::X86_64) {
        return println!("skipped: arch: the toy's compiler is the host's");
    }
    let (toy, folder) = (Toy::new(), tempfile::tempdir().unwrap());
    let cache = Cache::at(folder.path());
    let before = (
        toy.git(&["status", "--porcelain"]),
        toy.git(&["for-each-ref"]),
    );
    let (release, compiled) = toy.build(&cache, "git:good").unwrap();
    assert!(
        release.starts_with("6.12.0-g") && compiled == 1,
        "{release}"
    );
    assert_eq!(
        toy.build(&cache, "git:HEAD~2").unwrap(),
        (release.clone(), 0)
    );
    // By its release it is what --kernel takes; by its series it is not: that is the distribution's.
    let found = kernels::find_in(&cache, Some(&release), Arch::X86_64).unwrap();
    assert_eq!(found.release, release);
    assert!(kernels::find_in(&cache, Some("6.12"), Arch::X86_64).is_err());

    let error = toy.build(&cache, "git:bad").unwrap_err();
    assert!(
        error.contains("broken.c:1:1: error: a wrong line"),
        "{error}"
    );
    assert!(error.contains("make.log"), "{error}");

    // A mailbox or a diff on top is another kernel.
    let files = tempfile::tempdir().unwrap();
    let (mail, diff) = (files.path().join("a.mbox"), files.path().join("b.diff"));
    // An answer of the thread has no patch.
    let answer = "From b Mon Sep 17 00:00:00 2001\nFrom: b <b@b>\nSubject: Re: a\n\n> +a good line\nFine.\n---\nbase-commit: 1\n\n";
    let patch = toy.git(&["format-patch", "--stdout", "bad..fixed"]);
    write(&mail, format!("{answer}{patch}"));
    write(&diff, toy.git(&["diff", "bad", "good"]));
    let patched = |base: &str, patch: &Path| format!("git:{base}+{}", patch.display());
    let (mailed, _) = toy.build(&cache, &patched("bad", &mail)).unwrap();
    let (differs, _) = toy.build(&cache, &patched("bad", &diff)).unwrap();
    assert!(mailed != release && differs != release && mailed != differs);
    for (patch, name) in [(&mail, "a.mbox"), (&diff, "b.diff")] {
        let error = toy.build(&cache, &patched("good", patch)).unwrap_err();
        assert!(error.contains(&format!("{name} does not apply")), "{error}");
    }
    // What did not apply leaves nothing behind.
    let (fixed, compiled) = toy.build(&cache, "git:fixed").unwrap();
    assert!(compiled == 1 && fixed != mailed, "{fixed}");

    for spec in ["git:none", "git:good+none.mbox", "git:"] {
        let error = toy.build(&cache, spec).unwrap_err();
        assert!(error.contains("no revision"), "{spec}: {error}");
    }
    let after = (
        toy.git(&["status", "--porcelain"]),
        toy.git(&["for-each-ref"]),
    );
    assert_eq!(before, after);
    let kinds: Vec<_> = cache
        .entries()
        .unwrap()
        .iter()
        .map(|it| it.kind.name())
        .collect();
    assert_eq!(kinds, ["build", "kernel", "kernel", "kernel", "kernel"]);
}

#[test]
fn a_bisection_finds_the_first_commit_that_is_marked_bad_and_leaves_the_repository_alone() {
    if Arch::host() != Some(Arch::X86_64) {
        return println!("skipped: arch: the toy's compiler is the host's");
    }
    let (toy, folder) = (Toy::new(), tempfile::tempdir().unwrap());
    for number in 1..=9 {
        toy.commit(&format!("line {number}\n"), &format!("c{number}"));
    }
    let cache = Cache::at(folder.path());
    let before = toy.git(&["for-each-ref"]);
    let source = |spec: &str| build::GitSource::of(spec, toy.path()).unwrap();
    let begun = |good: &str, bad: &str, continues| {
        let (good, bad) = (source(good), source(bad));
        Bisection::begin(&cache, (&good, &bad), "key", continues)
    };
    let number = |commit: &Commit| -> u32 { commit.subject[1..].parse().unwrap() };
    // From a number on commits are bad; some cannot be tested.
    let found = |first_bad: u32, skipped: &[u32]| {
        let mut tested = 0;
        let mut bisection = begun("git:c1", "git:c9", false).unwrap();
        loop {
            match bisection.next().unwrap() {
                Next::Test { commit, left } => {
                    tested += 1;
                    assert!(tested < 9 && left > 0);
                    let mark = match number(&commit) {
                        number if skipped.contains(&number) => Mark::Skip,
                        number if number < first_bad => Mark::Good,
                        _ => Mark::Bad,
                    };
                    bisection.mark(&commit, mark).unwrap();
                }
                Next::First(commit) => return vec![number(&commit)],
                Next::AnyOf(commits) => return commits.iter().map(number).collect(),
            }
            drop(bisection);
            bisection = begun("git:c1", "git:c9", true).unwrap();
        }
    };
    for first_bad in 2..=9 {
        assert_eq!(found(first_bad, &[]), [first_bad]);
    }
    assert_eq!(found(5, &[7, 8]), [5]);
    let mut any_of = found(5, &[4, 5]);
    any_of.sort();
    assert_eq!(any_of, [4, 5, 6]);

    let problem = |good: &str, bad: &str, continues| begun(good, bad, continues).unwrap_err();
    assert!(
        problem("git:c9", "git:c1", false)
            .contains("git:c1 does not come after git:c9, but before")
    );
    let left = std::fs::read_dir(cache.root().join("builds")).unwrap();
    let left = left.map(|it| it.unwrap().file_name().into_string().unwrap());
    assert_eq!(
        left.filter(|it| it.starts_with("bisection-")).count(),
        1,
        "of what was begun"
    );
    assert!(problem("git:c2", "git:c9", true).contains("none of this command"));
    let held = begun("git:c1", "git:c9", false).unwrap();
    assert!(problem("git:c1", "git:c9", false).contains("another process"));
    drop(held);
    let patch = folder.path().join("a.patch");
    write(&patch, "");
    let patched = format!("git:c9+{}", patch.display());
    assert!(problem("git:c1", &patched, false).contains("a bisection is of commits"));

    assert_eq!(toy.git(&["for-each-ref"]), before);
    assert!(!toy.path().join(".git/BISECT_LOG").exists());
    let commit = source("git:c3").described().unwrap();
    assert_eq!((commit.subject.as_str(), commit.short().len()), ("c3", 12));
}

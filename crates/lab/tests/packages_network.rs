//! Really fetches, where `NEARFAR_NETWORK_TESTS=1` allows it. Into the user's own cache, so that the next run and the
//! guests of other tests have it.

use std::time::Instant;

use nearfar_lab::arch::Arch;
use nearfar_lab::cache::Cache;
use nearfar_lab::packages::Progress;
use nearfar_lab::{foreign, kernels};

fn allowed() -> bool {
    let allowed = std::env::var_os("NEARFAR_NETWORK_TESTS").is_some_and(|value| value == "1");
    if !allowed {
        println!(
            "skipped: network: fetches from the network, which NEARFAR_NETWORK_TESTS=1 would allow"
        );
    }
    allowed
}

#[test]
fn every_known_kernel_is_fetched_whole_with_its_modules() {
    if !allowed() {
        return;
    }
    let cache = Cache::of_user().unwrap();
    for (series, arch) in kernels::KNOWN {
        let (start, mut bytes) = (Instant::now(), 0);
        let mut progress = |step: Progress<'_>| {
            if let Progress::Download { done, total, .. } = step {
                assert!(done <= total, "{done} of {total}");
                bytes = total;
            }
        };
        let kernel = kernels::get(&cache, series, arch, &mut progress).unwrap();
        println!(
            "{series} {arch}: {} in {:.1} s, package of {bytes} bytes",
            kernel.release,
            start.elapsed().as_secs_f32()
        );
        let image = kernels::image::read(&kernel.image).unwrap().unwrap();
        assert_eq!(image.arch, arch);
        // The image of 6.12 for arm64 may be packed in a way that hides it.
        assert!(
            image
                .release
                .is_none_or(|release| release == kernel.release)
        );
        assert!(
            std::fs::metadata(kernel.modules.unwrap().join("modules.dep"))
                .unwrap()
                .len()
                > 100_000
        );
        let again = kernels::find_in(&cache, Some(&series.to_string()), arch).unwrap();
        assert_eq!(again.image, kernel.image);
    }
    assert_eq!(kernels::verify(&cache), []);
}

#[test]
fn static_programs_for_foreign_guests_are_fetched() {
    if !allowed() {
        return;
    }
    let cache = Cache::of_user().unwrap();
    for arch in Arch::ALL
        .into_iter()
        .filter(|arch| Some(*arch) != Arch::host())
    {
        let start = Instant::now();
        let foreign = foreign::get(&cache, arch).unwrap();
        println!(
            "{arch}: {foreign:?} in {:.1} s",
            start.elapsed().as_secs_f32()
        );
        assert!(
            foreign::is_static(&foreign.busybox, arch)
                && foreign::is_static(&foreign.user_emulator, arch)
        );
        assert_eq!(foreign::cached(&cache, arch), Some(foreign));
    }
}

#[test]
fn drmgr_and_its_libraries_are_fetched() {
    if !allowed() {
        return;
    }
    let cache = Cache::of_user().unwrap();
    let folder = foreign::get_drmgr(&cache, &mut |_| {}).unwrap();
    for file in [
        "drmgr",
        "ld64.so.2",
        "libc.so.6",
        "librtas.so.2",
        "libnuma.so.1",
    ] {
        assert!(folder.join(file).is_file(), "{file}");
    }
    assert_eq!(foreign::cached_drmgr(&cache), Some(folder));
}

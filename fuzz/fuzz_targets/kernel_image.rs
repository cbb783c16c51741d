//! The first bytes of kernel images, packed ones as well.
#![no_main]
use libfuzzer_sys::fuzz_target;
use nearfar_lab::kernels::image;

fuzz_target!(|bytes: &[u8]| {
    if let Some(image) = image::parse(bytes) {
        // It becomes part of paths.
        assert!(image.release.is_none_or(|release| image::is_release(&release)));
    }
});

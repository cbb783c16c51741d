//! Where apt gets packages, in both forms, and lists of packages with their versions.
#![no_main]
use libfuzzer_sys::fuzz_target;
use nearfar_lab::packages::sources::{deb822, one_line};
use nearfar_lab::packages::control::{self, Version};

fuzz_target!(|text: &str| {
    for source in one_line(text).into_iter().chain(deb822(text)) {
        assert!(!source.uris.is_empty());
        assert!(source.uris.iter().all(|uri| uri.contains(":/") && !uri.starts_with("cdrom:")));
    }
    let packages = control::packages(text);
    for package in &packages {
        assert!(package.sha256.len() == 64 && !package.package.contains('/') && !package.package.starts_with('-'));
    }
    for pair in packages.windows(2) {
        let (one, other) = (Version::new(&pair[0].version), Version::new(&pair[1].version));
        assert_eq!(one.cmp(&other), other.cmp(&one).reverse());
        assert!(one.cmp(&one).is_eq());
    }
});

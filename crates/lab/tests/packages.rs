//! Debian's formats: sources of both forms, package lists, versions.

use std::fs;
use std::path::Path;

use nearfar_lab::packages::control::{Version, packages, paragraphs};
use nearfar_lab::packages::sha256_of_file;
use nearfar_lab::packages::sources::{Archive, Source, deb822, one_line};
use proptest::prelude::*;

fn system(os_release: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("etc/apt/sources.list.d")).unwrap();
    fs::write(root.path().join("etc/os-release"), os_release).unwrap();
    for (name, text) in files {
        fs::write(root.path().join("etc/apt").join(name), text).unwrap();
    }
    root
}

const DEBIAN_12: &str =
    "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nVERSION_CODENAME=bookworm\nID=debian\n";

#[test]
fn one_line_sources_are_read_with_their_options() {
    let text = "# a comment\n\
                deb cdrom:[Debian GNU/Linux 12 _Bookworm_]/ bookworm main\n\
                deb-src http://mirror.example/debian bookworm main\n\
                deb [arch=amd64 signed-by=/k.gpg trusted=yes] http://mirror.example/debian bookworm main contrib # here\n\
                deb\thttps://security.example/debian-security  bookworm-security main\n\
                deb http://too.short\n";
    let source = |uri: &str, suite: &str, signed_by: Option<&str>| Source {
        uris: vec![uri.to_owned()],
        suites: vec![suite.to_owned()],
        signed_by: signed_by.map(str::to_owned),
        check_valid_until: None,
    };
    let wanted = [
        source("http://mirror.example/debian", "bookworm", Some("/k.gpg")),
        source(
            "https://security.example/debian-security",
            "bookworm-security",
            None,
        ),
    ];
    assert_eq!(one_line(text), wanted);
}

#[test]
fn sources_in_paragraphs_are_read_with_a_key_of_several_lines() {
    let text = "Types: deb deb-src\nuris: http://mirror.example/debian\nSuites: trixie trixie-updates\nComponents: main\n\
                # between fields\nSigned-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQINBF\n\n\
                Enabled: no\nTypes: deb\nURIs: http://off.example/debian\nSuites: trixie\n\n\
                Types: deb-src\nURIs: http://src.example/debian\nSuites: trixie\n";
    let sources = deb822(text);
    assert_eq!(sources.len(), 1);
    assert_eq!(sources[0].suites, ["trixie", "trixie-updates"]);
    let key = "\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQINBF";
    assert_eq!(sources[0].signed_by.as_deref(), Some(key));
}

#[test]
fn the_archive_is_the_mirror_of_the_machines_own_release() {
    let list = "deb http://tools.example/apt stable main\ndeb http://mirror.example/debian bookworm main\n";
    let security = "Types: deb\nURIs: http://security.example/debian-security\nSuites: bookworm-security\nSigned-By: /k.gpg\n";
    let root = system(
        DEBIAN_12,
        &[
            ("sources.list", list),
            ("sources.list.d/s.sources", security),
        ],
    );
    let archive = Archive::of_system(root.path()).unwrap();
    assert_eq!(archive.codename, "bookworm");
    assert_eq!(archive.main.uris, ["http://mirror.example/debian"]);
    assert!(!archive.has_backports);
    let file = archive.sources_file("bookworm", "arm64");
    assert!(
        file.contains("Suites: bookworm bookworm-updates bookworm-backports\n"),
        "{file}"
    );
    assert!(
        file.contains("URIs: http://security.example/debian-security\nSuites: bookworm-security\n"),
        "{file}"
    );
    assert_eq!(file.matches("Architectures: arm64\n").count(), 2);
    assert_eq!(file.matches("Signed-By: /k.gpg\n").count(), 1);
    // What is written can be read, and apt reads paragraphs as we do.
    assert_eq!(deb822(&file).len(), 2);
}

#[test]
fn options_that_lower_apts_guard_are_not_taken_over() {
    let list = "deb [trusted=yes allow-insecure=yes allow-weak=yes] http://mirror.example/debian bookworm main\n";
    let root = system(DEBIAN_12, &[("sources.list", list)]);
    let file = Archive::of_system(root.path())
        .unwrap()
        .sources_file("bookworm", "amd64");
    let lower = file.to_ascii_lowercase();
    assert!(
        !lower.contains("trusted") && !lower.contains("insecure") && !lower.contains("weak"),
        "{file}"
    );
}

#[test]
fn moving_names_of_suites_stand_for_the_release() {
    let root = system(
        DEBIAN_12,
        &[(
            "sources.list",
            "deb http://mirror.example/debian oldstable main\n",
        )],
    );
    assert_eq!(
        Archive::of_system(root.path()).unwrap().main.suites,
        ["oldstable"]
    );
}

#[test]
fn other_systems_and_machines_without_a_mirror_are_told_apart() {
    let ubuntu = "PRETTY_NAME=\"Ubuntu 24.04 LTS\"\nID=ubuntu\nVERSION_CODENAME=noble\n";
    let problem = Archive::of_system(system(ubuntu, &[]).path())
        .unwrap_err()
        .to_string();
    assert!(problem.contains("Ubuntu 24.04 LTS"), "{problem}");
    let problem = Archive::of_system(system(DEBIAN_12, &[]).path())
        .unwrap_err()
        .to_string();
    assert!(problem.contains("no source of bookworm"), "{problem}");
    let problem = Archive::of_system(Path::new("/nowhere"))
        .unwrap_err()
        .to_string();
    assert!(problem.contains("os-release"), "{problem}");
}

#[test]
fn packages_without_a_good_sum_or_with_a_name_that_is_an_option_are_left_out() {
    let sum = "C".repeat(64);
    let good = format!(
        "Package: busybox\nVersion: 1:1.35~x-4+b1\nSize: 12\nSHA256: {sum}\nDescription: a\n b\n"
    );
    let list = format!(
        "{good}\nPackage: x\nVersion: 1\nSize: 12\n\nPackage: -o=x\nVersion: 1\nSize: 1\nSHA256: {sum}\n\n\
         Package: y\nVersion: 1\nSize: 1\nSHA256: {}\n",
        &sum[1..]
    );
    let packages = packages(&list);
    assert_eq!(packages.len(), 1);
    assert_eq!(
        (packages[0].package.as_str(), packages[0].version.as_str()),
        ("busybox", "1:1.35~x-4+b1")
    );
    assert_eq!(
        (packages[0].bytes, packages[0].sha256.clone()),
        (12, "c".repeat(64))
    );
}

#[test]
fn versions_are_ordered_as_debian_orders_them() {
    let ascending = [
        "1.0~~",
        "1.0~~a",
        "1.0~",
        "1.0",
        "1.0a",
        "1.0+",
        "1.0.1",
        "1.2",
        "1.10",
        "6.1.176-1",
        "6.1.192-2",
        "6.12.95-1~bpo12+1",
        "6.12.95-1",
        "6.12.107-1~deb12u1",
        "6.12.117-1~deb12u1",
        "20250101000000000000000000000",
        "1:0.1",
    ];
    for (low, high) in ascending.iter().zip(&ascending[1..]) {
        assert!(Version::new(low) < Version::new(high), "{low} < {high}");
    }
    assert_eq!(Version::new("0:1.00"), Version::new("1.0"));
}

#[test]
fn the_sum_of_a_file_is_its_sha256() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "abc").unwrap();
    let of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(sha256_of_file(file.path()).unwrap(), of_abc);
}

proptest! {
    #[test]
    fn any_text_is_read_without_harm(text in ".*|(?s)(deb|Types:|URIs:|Suites:|[ \\[\\]=:/#\na-z]){0,60}") {
        let _ = one_line(&text);
        let _ = deb822(&text);
        let _ = packages(&text);
        for paragraph in paragraphs(&text) {
            prop_assert!(paragraph.get("no such field \0").is_none());
        }
    }

    #[test]
    fn no_value_of_a_source_begins_a_field_of_its_own(text in "(?s)(Types: deb\n|URIs: a:/b\n|Suites: s\n|Signed-By:|Trusted: yes|[ \n\tx]){0,30}") {
        for source in deb822(&text) {
            for line in source.signed_by.unwrap_or_default().lines().skip(1) {
                prop_assert!(line.starts_with([' ', '\t']), "{line:?}");
            }
        }
    }

    #[test]
    fn the_order_of_versions_is_one(texts in prop::collection::vec("[0-9a-c~.+:-]{0,8}", 3)) {
        let [a, b, c] = [0, 1, 2].map(|index| Version::new(&texts[index]));
        prop_assert_eq!(a.cmp(&b), b.cmp(&a).reverse());
        if a <= b && b <= c {
            prop_assert!(a <= c);
        }
    }
}

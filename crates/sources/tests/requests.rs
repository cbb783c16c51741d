//! Finding and recognising sources.

use std::io::Write;
use std::path::{Path, PathBuf};

use nearfar_machine::{Machine, SourceKind};
use nearfar_proc::{cgroup, mountinfo};
use nearfar_sources::{
    Request, SourceError, TaskScope, Want, gallery, hwloc_xml, read, read_bytes, snapshot, text,
};
use proptest::prelude::*;

const KUNPENG: &str = include_str!("fixtures/kunpeng-numactl.txt");

fn kunpeng() -> Machine {
    text::parse(KUNPENG, "kunpeng").unwrap()
}

fn from(source: &Path) -> Result<Machine, SourceError> {
    read(&Request::source(
        source.display().to_string(),
        Want::topology(),
    ))
}

fn error_of(content: &[u8]) -> String {
    read_bytes(content, "input").unwrap_err().to_string()
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn a_files_kind_is_told_by_its_content() {
    let folder = tempfile::tempdir().unwrap();
    let mut taken = Vec::new();
    snapshot::write(&kunpeng(), &mut taken).unwrap();
    let xml = hwloc_xml::render(&kunpeng());
    let described = nearfar_sources::gallery_text("kunpeng").unwrap();
    for (content, kind) in [
        (taken, SourceKind::NumactlText),
        (KUNPENG.as_bytes().to_vec(), SourceKind::NumactlText),
        (gzip(KUNPENG.as_bytes()), SourceKind::NumactlText),
        (xml.clone().into_bytes(), SourceKind::HwlocXml),
        (gzip(xml.as_bytes()), SourceKind::HwlocXml),
        (described.as_bytes().to_vec(), SourceKind::Description),
    ] {
        let file = folder.path().join("topo.txt");
        std::fs::write(&file, content).unwrap();
        let machine = from(&file).unwrap();
        // A snapshot says what it was taken of.
        assert_eq!(machine.origin.kind, kind);
        assert_eq!((machine.nodes.len(), machine.cpus.len()), (4, 96));
    }
}

#[test]
fn what_is_no_source_says_what_it_is_and_what_to_do() {
    for (content, words) in [
        (b"\xfd7zXZ\0abc".to_vec(), "damaged or truncated"),
        (b"\x28\xb5\x2f\xfdabc".to_vec(), "damaged or truncated"),
        (b"PK\x03\x04".to_vec(), "zip"),
        (b"\x7fELF\0".to_vec(), "program"),
        (b"\xff\xfea\0".to_vec(), "iconv"),
        (vec![0; 100], "binary"),
        (Vec::new(), "empty"),
        (b"hello\nworld\n".to_vec(), "numactl -H"),
        (b"{}".to_vec(), "nearfar_snapshot"),
        (b"{\"a\"".to_vec(), "does not hold a nearfar snapshot"),
        (b"<html>".to_vec(), "is text without"),
        (b"<?xml version=\"1.0\"?><html/>".to_vec(), "<html>"),
        (b"[[node]]\ncpus = 1 # \xff\n".to_vec(), "line 2"),
        (gzip(KUNPENG.as_bytes())[..60].to_vec(), "truncated"),
    ] {
        let error = error_of(&content);
        assert!(
            error.contains("input") && error.contains(words),
            "{words}: {error}"
        );
    }
}

#[test]
fn sources_are_found_by_name() {
    let by_name = |source: &str| read(&Request::source(source, Want::topology()));
    assert_eq!(
        by_name("kunpeng").unwrap().origin.place,
        "machines/kunpeng.toml"
    );
    assert_eq!(
        by_name("node:2 core:4").unwrap().origin.kind,
        SourceKind::Synthetic
    );
    assert!(
        by_name("node:2 core:x")
            .unwrap_err()
            .to_string()
            .contains("\"x\"")
    );
    let error = by_name("no-such-file.xml").unwrap_err().to_string();
    for words in ["no-such-file.xml", "kunpeng", "node:2 core:4"] {
        assert!(error.contains(words), "{error}");
    }
    assert!(gallery().iter().all(|entry| error.contains(entry.name)));
    assert!(by_name("").unwrap_err().to_string().contains("no file"));
}

#[test]
fn a_root_and_a_source_are_two_machines() {
    let request = Request {
        root: Some(PathBuf::from("/")),
        ..Request::source("kunpeng", Want::topology())
    };
    assert!(read(&request).unwrap_err().to_string().contains("give one"));
    let nowhere = Request {
        root: Some(PathBuf::from("/no/such/root")),
        ..Request::live(Want::topology())
    };
    assert!(
        read(&nowhere)
            .unwrap_err()
            .to_string()
            .contains("/no/such/root")
    );
}

/// Whichever versions of control groups this host has mounted, and wherever.
#[test]
fn the_group_of_a_task_is_as_the_kernel_names_it() {
    let mounts = mountinfo::of_this_process().unwrap();
    if mounts
        .iter()
        .any(|it| it.kind == "cgroup2" && it.root != Path::new("/"))
    {
        return println!(
            "skipped: kernel: control groups are mounted from outside of this container"
        );
    }
    let want = Want {
        tasks: TaskScope::Of(vec![std::process::id().cast_signed()]),
        ..Want::topology()
    };
    let machine = read(&Request::live(want)).unwrap();
    let group = machine.tasks.get().unwrap()[0].group.get().unwrap();
    let kernel = std::fs::read("/proc/self/cgroup").unwrap();
    let mut paths = cgroup::groups(&kernel).map(|it| it.path);
    assert!(paths.any(|path| path == Path::new(group)), "{group}");
}

#[test]
fn fake_nodes_lie_over_any_source_and_a_bad_layout_is_told_first() {
    let fake = |source: &str, spec: &str| {
        read(&Request {
            fake: Some(spec.into()),
            ..Request::source(source, Want::topology())
        })
    };
    let machine = fake("kunpeng", "2U").unwrap();
    assert_eq!(machine.nodes.len(), 8);
    assert_eq!(machine.origin.overlays, ["fake: 2U"]);
    assert!(
        fake("no-such-file", "x")
            .unwrap_err()
            .to_string()
            .contains("--fake")
    );
}

#[test]
fn what_has_no_end_is_refused() {
    let error = from(Path::new("/dev/zero")).unwrap_err().to_string();
    assert!(error.contains("binary data"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let large = folder.path().join("large");
    std::fs::write(&large, "words\n".repeat(20_000)).unwrap();
    let file = std::fs::File::options().write(true).open(&large).unwrap();
    file.set_len(2 << 30).unwrap();
    assert!(from(&large).unwrap_err().to_string().contains("1024 MiB"));
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = read_bytes(&bytes, "file");
        let _ = read_bytes(&gzip(&bytes), "file");
    }
}

#[test]
fn nodes_that_lose_their_cpus_to_an_earlier_source_have_unknown_ones() {
    let folder = tempfile::tempdir().unwrap();
    let [two, four] = ["two.txt", "four.txt"].map(|name| folder.path().join(name));
    std::fs::write(
        &two,
        "available: 2 nodes (0-1)\nnode 0 cpus: 0 1 2 3\nnode 1 cpus: 4 5 6 7\n",
    )
    .unwrap();
    std::fs::write(
        &four,
        "available: 4 nodes (0-3)\nnode 0 cpus: 0 1\nnode 1 cpus: 2 3\nnode 2 cpus: 4 5\nnode 3 cpus: 6 7 8\n",
    )
    .unwrap();
    let request = Request {
        sources: [&two, &four].map(|it| it.display().to_string()).to_vec(),
        ..Request::source("", Want::all())
    };
    let machine = read(&request).unwrap();
    let known = machine.nodes.iter();
    let known: Vec<Option<String>> = known
        .map(|node| node.cpus.get().map(ToString::to_string))
        .collect();
    let some = |cpus: &str| Some(cpus.to_owned());
    assert_eq!(known, [some("0-3"), some("4-7"), None, None]);
    let reason = machine.nodes[2].cpus.unknown_reason().unwrap();
    assert!(reason.contains("gives it CPUs 4-5, which "), "{reason}");
    assert!(reason.ends_with("two.txt has on other nodes"), "{reason}");
}

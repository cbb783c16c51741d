//! The archive of a guest's first root, judged by cpio itself.

use std::io::Write;
use std::process::{Command, Stdio};

use nearfar_lab::guest::CpioArchive;

#[test]
fn cpio_lists_and_unpacks_what_was_put_in() {
    let mut archive = CpioArchive::new();
    archive.folder("bin");
    archive.file("bin/tool", 0o755, b"odd length!");
    archive.link("bin/alias", "tool");
    archive.file("empty", 0o644, b"");
    let bytes = archive.finish();
    let folder = tempfile::tempdir().expect("a folder");
    let run = |options: &[&str]| {
        let mut child = Command::new("cpio")
            .args(options)
            .current_dir(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        child
            .stdin
            .take()
            .expect("a pipe")
            .write_all(&bytes)
            .expect("cpio reads all");
        Some(child.wait_with_output().expect("cpio ends"))
    };
    let Some(listed) = run(&["-t", "--quiet"]) else {
        println!("skipped: tools: no cpio");
        return;
    };
    assert!(listed.status.success());
    assert_eq!(
        String::from_utf8_lossy(&listed.stdout),
        "bin\nbin/tool\nbin/alias\nempty\n"
    );
    assert!(
        run(&["-i", "--quiet"])
            .expect("it was there")
            .status
            .success()
    );
    assert_eq!(
        std::fs::read(folder.path().join("bin/alias")).expect("a link to a file"),
        b"odd length!"
    );
    assert_eq!(
        std::fs::read(folder.path().join("empty")).expect("a file"),
        b""
    );
}

//! The man pages are ones that man renders without a warning.

use std::process::{Command, Stdio};

#[test]
fn man_pages_render_without_warnings() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
    let made = command
        .args(["man", "--directory"])
        .arg(directory.path())
        .output()
        .unwrap();
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    let mut pages: Vec<_> = std::fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    pages.sort();
    assert!(pages.len() > 25, "{} pages", pages.len());
    let mut groff = Command::new("groff");
    let rendered = groff
        .args(["-man", "-Tutf8", "-ww", "-P-c", "-P-b", "-P-u"])
        .args(&pages)
        .stdin(Stdio::null())
        .output();
    match rendered {
        Ok(rendered) => {
            let warnings = String::from_utf8_lossy(&rendered.stderr);
            assert!(
                rendered.status.success() && warnings.is_empty(),
                "{warnings}"
            );
            let text = String::from_utf8_lossy(&rendered.stdout);
            assert!(text.contains("EXIT STATUS") && text.contains("SEE ALSO"));
        }
        Err(error) => println!("skipped: tools: groff: {error}"),
    }
}

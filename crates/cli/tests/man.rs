//! The man pages are ones that man renders without a warning.

use std::process::{Command, Stdio};

use crate::harness::Sandbox;

#[test]
fn man_pages_render_without_warnings() {
    let sandbox = Sandbox::new();
    sandbox
        .nearfar(["man", "--directory", "."])
        .run()
        .succeeded();
    let mut pages: Vec<_> = std::fs::read_dir(sandbox.path(""))
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

//! Writes every kind of output for the sample machines into a directory, to be looked at.
//!
//! `cargo run -p nearfar-report --example gallery -- DIRECTORY`

#[path = "../tests/samples/mod.rs"]
mod samples;

use std::fs;
use std::path::PathBuf;

use nearfar_machine::Known;
use nearfar_report::{Style, audit, checkup, latency, topo};

fn main() -> std::io::Result<()> {
    let directory = PathBuf::from(
        std::env::args_os()
            .nth(1)
            .unwrap_or_else(|| "gallery".into()),
    );
    fs::create_dir_all(&directory)?;
    let style = Style {
        colour: true,
        width: 100,
    };
    for (name, machine) in samples::all() {
        fs::write(directory.join(format!("{name}.svg")), topo::svg(&machine))?;
        fs::write(directory.join(format!("{name}.dot")), topo::dot(&machine))?;
        let survey = latency::survey(&samples::surveys::survey(&machine), &machine, true);
        fs::write(
            directory.join(format!("{name}-latency.svg")),
            survey.to_svg(),
        )?;
        let text = topo::document(&machine).to_text(&style) + &survey.to_text(&style);
        fs::write(directory.join(format!("{name}.txt")), text)?;
        let checkup = samples::checkup(machine, if name == "large" { 500 } else { 8 });
        fs::write(
            directory.join(format!("{name}.html")),
            checkup::page(&checkup).to_html(),
        )?;
        let text = checkup::screen(&checkup, style.width).to_text(&style)
            + &audit::document(&checkup.machine, &checkup.audit, false, "").to_text(&style);
        fs::write(directory.join(format!("{name}-checkup.txt")), text)?;
    }
    // The largest machine there can be, as a page alone.
    let huge = samples::huge(|a, b| if a == b { 10 } else { 14 + 4 * (a ^ b).ilog2() });
    let huge = checkup::Checkup {
        probe: Known::no("the sample has none"),
        ..samples::checkup(huge, 64)
    };
    fs::write(directory.join("huge.html"), checkup::page(&huge).to_html())?;
    fs::write(directory.join("huge.svg"), topo::svg(&huge.machine))
}

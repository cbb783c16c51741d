//! Prints what collecting and showing many simulated hosts takes: `cargo run --release -p nearfar-fleet --example many_hosts [HOSTS...]`
//! (1,000, 3,000 and 10,000). With KEEP=DIR in the environment answers and datasets stay in DIR.

#[path = "../tests/simulated/mod.rs"]
mod simulated;

use std::collections::BTreeSet;
use std::time::Instant;

use nearfar_fleet::dataset::{Selection, collect, load};
use nearfar_fleet::survey::{SurveyOptions, survey};
use simulated::{Planted, name, simulate};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let asked: Result<Vec<usize>, _> = std::env::args().skip(1).map(|it| it.parse()).collect();
    let mut sizes = asked?;
    if sizes.is_empty() {
        sizes = vec![1_000, 3_000, 10_000];
    }
    println!(
        "{:>7} {:>12} {:>9} {:>9} {:>12} {:>7} {:>7} {:>10}",
        "hosts", "answers MiB", "collect s", "show s", "show MiB", "named", "missed", "not planted"
    );
    for hosts in sizes {
        let directory = match std::env::var_os("KEEP") {
            Some(directory) => tempfile::Builder::new()
                .disable_cleanup(true)
                .tempdir_in(directory)?,
            None => tempfile::tempdir()?,
        };
        let planted = Planted::among(hosts);
        let folder = simulate(&directory.path().join("answers"), hosts, &planted, 1);
        let mut bytes = 0;
        for entry in std::fs::read_dir(folder.path().join("hosts"))? {
            bytes += entry?.metadata()?.len();
        }
        let dataset = directory.path().join("dataset");
        let begun = Instant::now();
        collect(&folder, &dataset)?;
        let collected = begun.elapsed().as_secs_f64();
        // Since Linux 2.6.22 this makes the peak that of now (proc(5), clear_refs).
        std::fs::write("/proc/self/clear_refs", "5")?;
        let begun = Instant::now();
        let survey = survey(
            &load(&dataset, &Selection::default())?,
            &SurveyOptions::default(),
        );
        let shown = begun.elapsed().as_secs_f64();
        let named: BTreeSet<String> = survey
            .groups
            .iter()
            .flat_map(|group| group.deviants())
            .map(str::to_owned)
            .collect();
        let expected: BTreeSet<String> = planted
            .deviants()
            .into_iter()
            .map(|it| name(it).to_string())
            .collect();
        println!(
            "{hosts:>7} {:>12} {collected:>9.1} {shown:>9.1} {:>12} {:>7} {:>7} {:>10}",
            bytes >> 20,
            peak_mib()?,
            named.len(),
            expected.difference(&named).count(),
            named.difference(&expected).count(),
        );
    }
    Ok(())
}

/// The largest resident size of this process since it was set, in MiB.
fn peak_mib() -> Result<u64, Box<dyn std::error::Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line
        .and_then(|line| line.split_whitespace().next())
        .ok_or("no VmHWM")?;
    Ok(kib.parse::<u64>()? >> 10)
}

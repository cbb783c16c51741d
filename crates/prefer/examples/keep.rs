//! Keeps processes or a command on node 0 of a made-up machine whose nodes have one CPU each; for tests without NUMA.
//!
//! ```text
//! keep LEASES PID...                   until standard input ends; prints "kept", and "settled" two looks after each line
//! keep LEASES -- COMMAND...
//! keep lease-guard LEASES OWNER        the guard, where GUARDED is set
//! ```
//!
//! Where OBSERVE is set forks and changes of affinity are observed. Where CONFINE is set no task is released.

use std::error::Error;
use std::io::{BufRead as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nearfar_change::lease::{self as lease, Leases};
use nearfar_machine::NodeId;
use nearfar_prefer::rule::RuleOptions;
use nearfar_prefer::{Keeper, KeeperOptions, Targets};
use nearfar_sources::{Request, Want};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if let ["lease-guard", directory, owner] = words[..] {
        lease::guard(Path::new(directory), owner.parse()?)?;
        return Ok(());
    }
    if std::env::var_os("GUARDED").is_some() {
        lease::guard_with(std::env::current_exe()?);
    }
    let sources = vec!["node:2 core:1 pu:1".to_owned()];
    let machine = nearfar_sources::read(&Request {
        sources,
        root: None,
        fake: None,
        want: Want::topology(),
    })?;
    let [directory, rest @ ..] = &words[..] else {
        return Err("no directory".into());
    };
    let leases = Some(Leases::at(PathBuf::from(directory)));
    let mut rule = RuleOptions::default();
    if std::env::var_os("CONFINE").is_some() {
        rule.looks = u32::MAX;
    }
    let options = KeeperOptions {
        leases,
        rule,
        observe: std::env::var_os("OBSERVE").is_some(),
        ..KeeperOptions::default()
    };
    let report = match rest {
        ["--", program, arguments @ ..] => {
            let mut command = Command::new(program);
            command.args(arguments);
            let (keeper, mut child) = Keeper::spawn(command, None, NodeId(0), &machine, options)?;
            child.wait()?;
            keeper.stop()?
        }
        pids => {
            let pids: Result<Vec<i32>, _> = pids.iter().map(|pid| pid.parse()).collect();
            let keeper = Keeper::start(Targets::Pids(pids?), NodeId(0), &machine, options)?;
            println!("kept");
            for line in std::io::stdin().lock().lines() {
                line?;
                settle(&keeper)?;
                println!("settled");
                std::io::stdout().flush()?;
            }
            keeper.stop()?
        }
    };
    eprintln!("{report}");
    Ok(())
}

/// Until two looks have begun and ended since.
fn settle(keeper: &Keeper) -> Result<(), Box<dyn Error>> {
    let enough = keeper.report()?.looks + 3;
    while keeper.report()?.looks < enough {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

//! Holds a lease on a file until standard input ends or it is killed; for tests.
//!
//! ```text
//! hold_lease DIRECTORY FILE VALUE...        the values in turn, again and again with --for-ever before them
//! hold_lease DIRECTORY --task TID CPUS
//! hold_lease lease-guard DIRECTORY OWNER    the guard, where GUARDED is set
//! ```

use std::error::Error;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use nearfar_change::lease::{self as lease, Leases};
use nearfar_proc::tasks;

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
    let [directory, rest @ ..] = &words[..] else {
        return Err("no directory".into());
    };
    let mut lease = Leases::at(PathBuf::from(directory)).take("a test")?;
    match rest {
        ["--task", tid, cpus] => {
            lease.set_affinity(tasks::stat(tid.parse()?)?.id, &cpus.parse()?)?
        }
        ["--for-ever", file, values @ ..] => {
            println!("held");
            loop {
                values
                    .iter()
                    .try_for_each(|value| lease.set_file(Path::new(file), value.as_bytes()))?;
            }
        }
        [file, values @ ..] => {
            values
                .iter()
                .try_for_each(|value| lease.set_file(Path::new(file), value.as_bytes()))?;
        }
        [] => {}
    }
    println!("held");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    lease.release()?;
    Ok(())
}

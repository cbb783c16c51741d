//! Makes short-lived threads at a rate, each of which says where it may run; for tests and for measuring the keeper.
//!
//! `short_threads RATE COUNT` prints `ready`, waits for a line, makes COUNT threads, at most RATE a second, and prints how many
//! of them had other CPUs than the first thread has, and that thread's CPUs.

use std::error::Error;
use std::time::{Duration, Instant};

use nearfar_proc::affinity;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [rate, count] = &words[..] else {
        return Err("short_threads RATE COUNT".into());
    };
    let (rate, count): (f64, usize) = (rate.parse()?, count.parse()?);
    println!("ready");
    std::io::stdin().read_line(&mut String::new())?;
    let own = affinity::get(0)?;
    let begun = Instant::now();
    let mut threads = Vec::with_capacity(count);
    while threads.len() < count {
        let due = (rate * begun.elapsed().as_secs_f64()) as usize;
        while threads.len() < count.min(due) {
            let own = own.clone();
            threads.push(std::thread::spawn(move || {
                let elsewhere = affinity::get(0).is_ok_and(|mask| mask != own);
                // It lives for some milliseconds, so that several are there at any time.
                std::thread::sleep(Duration::from_millis(5));
                elsewhere
            }));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut elsewhere = 0;
    for thread in threads {
        elsewhere += u64::from(thread.join().map_err(|_| "a thread panicked")?);
    }
    println!("{elsewhere} {own}");
    Ok(())
}

//! Makes short-lived threads at a rate, each of which says where it may run; for tests and for measuring the keeper.
//!
//! `short_threads RATE SECONDS` prints `ready`, waits for a line, works, and prints how many threads it made and how many of
//! them had other CPUs than the first thread has.

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nearfar_proc::affinity;

static MADE: AtomicU64 = AtomicU64::new(0);
static ELSEWHERE: AtomicU64 = AtomicU64::new(0);

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [rate, seconds] = &words[..] else {
        return Err("short_threads RATE SECONDS".into());
    };
    let (rate, seconds): (f64, f64) = (rate.parse()?, seconds.parse()?);
    println!("ready");
    std::io::stdin().read_line(&mut String::new())?;
    let own = affinity::get(0)?;
    let begun = Instant::now();
    while begun.elapsed().as_secs_f64() < seconds {
        while (MADE.load(Ordering::Relaxed) as f64) < rate * begun.elapsed().as_secs_f64() {
            MADE.fetch_add(1, Ordering::Relaxed);
            let own = own.clone();
            std::thread::spawn(move || {
                let elsewhere = affinity::get(0).is_ok_and(|mask| mask != own);
                ELSEWHERE.fetch_add(u64::from(elsewhere), Ordering::Relaxed);
                // It lives for some milliseconds, so that several are there at any time.
                std::thread::sleep(Duration::from_millis(5));
            });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    println!(
        "{} {} {own}",
        MADE.load(Ordering::Relaxed),
        ELSEWHERE.load(Ordering::Relaxed)
    );
    Ok(())
}

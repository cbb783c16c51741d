//! Simulated rates of false alarms and power of `compare` on a machine whose load comes and goes: docs/compare.md has the highest.
//!
//! `cargo run --release -p nearfar-statistics --example disturbed_rates [PAIRS]`, 1000 pairs unless another number is given.

#[path = "../tests/disturbed/mod.rs"]
#[allow(dead_code, reason = "the tests use all of it")]
mod disturbed;
#[path = "../tests/random/mod.rs"]
#[allow(dead_code, reason = "the tests use all of it")]
mod random;

use disturbed::{LOADS, Trial};
use random::Random;

fn main() {
    let pairs = std::env::args().nth(1).and_then(|it| it.parse().ok());
    let pairs: usize = pairs.unwrap_or(1000);
    let mut random = Random(20);
    println!("| load on | off | slower | runs a side | false alarms | change of 5 % found |");
    println!("|---|---|---|---|---|---|");
    for load in LOADS {
        for runs in [3, 5, 8, 12, 20] {
            let rates = [1.0, 1.05].map(|ratio| {
                let trial = Trial {
                    load,
                    run_s: 2.0,
                    runs,
                    ratio,
                };
                format!("{:.1} %", 100.0 * trial.judged(pairs, &mut random))
            });
            println!(
                "| {} s | {} s | {:.0} % | {runs} | {} | {} |",
                load.on_s,
                load.off_s,
                100.0 * (load.slowness - 1.0),
                rates[0],
                rates[1]
            );
        }
    }
}

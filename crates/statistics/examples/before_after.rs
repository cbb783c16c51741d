//! Is the second measurement better, and by how much? Twelve times before and after a change, in milliseconds.
//!
//! `cargo run -p nearfar-statistics --example before_after`

use nearfar_statistics::Summary;
use nearfar_statistics::compare::{Better, DEFAULT_MARGIN, Design, Question, compare};

fn main() {
    let before = [
        20.1, 20.4, 19.8, 20.9, 20.2, 20.0, 20.6, 19.9, 20.3, 20.5, 20.2, 20.7,
    ];
    let after = [
        17.9, 18.3, 18.0, 18.8, 18.1, 17.7, 18.4, 18.2, 18.6, 17.8, 18.5, 18.0,
    ];
    if let Some(summary) = Summary::of(&before) {
        println!("median before: {:.2} ms", summary.median);
    }
    let question = Question {
        a: vec![before.to_vec()],
        b: vec![after.to_vec()],
        design: Design::Independent,
        better: Some(Better::Lower),
    };
    for answer in compare(&[question], DEFAULT_MARGIN).into_iter().flatten() {
        let change = answer.change.map(|change| change.value * 100.0);
        println!("{:?}: {:+.1} %", answer.verdict, change.unwrap_or_default());
    }
}

//! The JSON of fio, with notices around it.
#![no_main]
use libfuzzer_sys::fuzz_target;
use nearfar_bench::io::Answer;

fuzz_target!(|bytes: &[u8]| {
    match Answer::parse(bytes) {
        Ok(answer) => assert!(answer.iops.is_finite() && answer.ios > 0),
        Err(error) => assert!(error.to_string().len() < bytes.len() * 10 + 1000),
    }
});

//! Published figures of tag allocators: CSV with comments.
#![no_main]
use libfuzzer_sys::fuzz_target;
use nearfar_bench::published::PublishedTable as _;
use nearfar_bench::tags::Published;

fuzz_target!(|bytes: &[u8]| {
    if let Err(error) = Published::read(bytes) {
        let message = error.to_string();
        assert!(!message.contains(char::is_control) && message.len() < bytes.len() * 10 + 300);
    }
});

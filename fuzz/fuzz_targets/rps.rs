//! Replies of servers that are measured, and what ethtool prints of a card.
#![no_main]
use libfuzzer_sys::fuzz_target;
use nearfar_bench::rps::{Rss, reply_length};

fuzz_target!(|content: &[u8]| {
    if let Ok(Some(length)) = reply_length(content) {
        assert!(length <= content.len());
    }
    let text = String::from_utf8_lossy(content);
    if let Ok(rss) = Rss::parse(&text, &text) {
        let (source, destination) = ("198.18.0.2:10000".parse().unwrap(), "198.18.0.1:6400".parse().unwrap());
        let _ = rss.queue(source, destination);
    }
});

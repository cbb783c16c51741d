//! Lists of hosts as Slurm writes them.
#![no_main]
use libfuzzer_sys::fuzz_target;
use nearfar_fleet::{HostName, parse_hosts};

fuzz_target!(|text: &str| {
    if let Ok(hosts) = parse_hosts(text) {
        // Each is a name of its own, and of no path.
        let names: Vec<&str> = hosts.iter().map(HostName::as_str).collect();
        assert!(names.iter().all(|name| !name.is_empty() && !name.contains('/')));
        assert_eq!(parse_hosts(&names.join(",")).expect("names are a list"), hosts);
    }
});

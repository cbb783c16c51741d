//! The service's configuration, and its patterns against what a task may look like.
#![no_main]
use libfuzzer_sys::fuzz_target;
use nearfar_prefer::{config, matching};

fuzz_target!(|text: &str| {
    match config::parse(text, "fuzz") {
        Ok(config) => {
            let part: String = text.chars().take(200).collect();
            let looks = matching::Looks {
                name: part.chars().take(15).collect(),
                executable: Some(format!("/usr/bin/{part}")),
                groups: vec![format!("/system.slice/{part}.service/worker")],
            };
            assert!(matching::matching(&config.rules, &looks).len() <= config.rules.len());
        }
        Err(error) => assert!(error.line <= text.lines().count() + 1),
    }
});

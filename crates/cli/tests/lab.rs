//! What `lab` and `ab` say to wrong usage, before any guest is made. None of this needs QEMU.

mod keys;

use std::process::{Command, Output};

fn nearfar(words: &[&str]) -> Output {
    // A cache of nobody's: what is not fetched here cannot be found.
    let cache = std::env::temp_dir().join("nearfar-tests-have-no-cache");
    Command::new(env!("CARGO_BIN_EXE_nearfar")).args(words).env("XDG_CACHE_HOME", cache).output().unwrap()
}

/// The command must be refused as wrong usage with a message that holds all of `says`.
fn refused(words: &[&str], says: &[&str]) {
    let output = nearfar(words);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{words:?}: {message}");
    for text in says {
        assert!(message.contains(text), "{words:?} does not say {text:?}:\n{message}");
    }
    assert!(output.stdout.is_empty(), "{words:?} printed an answer");
}

#[test]
fn a_side_of_ab_names_what_it_may_set() {
    refused(&["ab", "--a", "kernle=6.1", "--b", "kernel=6.12", "--", "true"], &["--a kernle", "kernel", "append"]);
    refused(&["ab", "--a", "kernel=6.1", "--b", "6.12", "--", "true"], &["--b 6.12", "KEY=VALUE"]);
    refused(&["ab", "--a", "arch=vax", "--b", "arch=arm64", "--", "true"], &["vax", "x86_64"]);
    refused(&["ab", "--a", "scale=cpus=0", "--b", "scale=cpus=1", "--", "true"], &["cpus=0"]);
    refused(&["ab", "--b", "kernel=6.12", "--", "true"], &["--a <KEY=VALUE>"]);
    refused(&["ab", "--a", "kernel=6.1", "--b", "kernel=6.12", "--runs", "0", "--", "true"], &["--runs"]);
}

#[test]
fn a_guest_that_cannot_be_is_refused_with_the_reason() {
    refused(&["lab", "run", "--machine", "no-such-machine", "--", "true"], &["no-such-machine", "kunpeng"]);
    refused(&["lab", "run", "--scale", "memory=much", "--", "true"], &["memory=much"]);
    refused(&["lab", "run", "--delay", "near=fast", "--", "true"], &["fast"]);
    refused(&["lab", "run", "--arch", "s390x", "--", "true"], &["s390x", "powerpc64le"]);
    refused(&["lab", "run"], &["COMMAND"]);
    refused(&["lab", "run", "--counts", "x.json", "--", "true"], &["--delay"]);
}

#[test]
fn a_kernel_that_is_not_cached_is_named_with_the_command_that_fetches_it() {
    let output = nearfar(&["lab", "kernels", "path", "6.12", "--arch", "x86_64"]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("nearfar lab kernels get 6.12"), "{message}");
    let list = nearfar(&["lab", "kernels", "list"]);
    assert!(list.status.success());
    let text = String::from_utf8_lossy(&list.stdout);
    assert!(text.contains("not cached") && text.contains("nearfar lab kernels get 6.1 --arch ppc64le"), "{text}");
}

#[test]
fn the_doctor_names_every_part_with_a_state() {
    let output = nearfar(&["lab", "doctor", "--format", "json"]);
    assert!(output.status.success());
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["schema"], "lab-doctor/1");
    let items = answer["items"].as_array().unwrap();
    assert!(items.len() >= 10, "only {} items", items.len());
    for item in items {
        assert!(["ok", "degraded", "missing"].contains(&item["state"].as_str().unwrap()), "{item}");
        let well = item["state"] == "ok";
        assert_eq!(
            item["consequence"].is_null(),
            well,
            "a consequence for what is not well, and only for that: {item}"
        );
    }
}

#[test]
fn every_key_of_the_labs_answers_is_documented() {
    let answers = ["kernels", "doctor", "machines"].map(|verb| {
        let list: &[&str] = if verb == "kernels" { &["list"] } else { &[] };
        let output = nearfar(&[&["lab", verb], list, &["--format", "json"]].concat());
        assert!(output.status.success(), "{verb}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    });
    keys::documented(&answers);
}

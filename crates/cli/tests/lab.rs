//! What `lab` and `ab` say to wrong usage, before any guest is made. None of this needs QEMU.

use crate::harness;
use crate::harness::{Answer, Sandbox};
use crate::keys;

/// The cache is empty, so no kernel and no guest can be found.
fn nearfar(words: &[&str]) -> Answer {
    harness::nearfar(words).run()
}

/// The command must be refused as wrong usage with a message that contains all of `says`.
#[track_caller]
fn refused(words: &[&str], says: &[&str]) {
    nearfar(words).refused(says);
}

#[test]
fn a_side_of_ab_names_what_it_may_set() {
    refused(
        &[
            "ab",
            "--a",
            "kernle=6.1",
            "--b",
            "kernel=6.12",
            "--",
            "true",
        ],
        &["--a kernle", "kernel", "append"],
    );
    refused(
        &["ab", "--a", "kernel=6.1", "--b", "6.12", "--", "true"],
        &["--b 6.12", "KEY=VALUE"],
    );
    refused(
        &["ab", "--a", "arch=vax", "--b", "arch=arm64", "--", "true"],
        &["vax", "x86_64"],
    );
    refused(
        &[
            "ab",
            "--a",
            "scale=cpus=0",
            "--b",
            "scale=cpus=1",
            "--",
            "true",
        ],
        &["cpus=0"],
    );
    let foreign = "ab --trace --a arch=powerpc64le --b arch=powerpc64le -- true";
    refused(
        &Vec::from_iter(foreign.split(' ')),
        &["--trace", "ppc64le", "cannot be traced"],
    );
    refused(
        &["ab", "--b", "kernel=6.12", "--", "true"],
        &["--a <KEY=VALUE>"],
    );
    refused(
        &[
            "ab",
            "--a",
            "kernel=6.1",
            "--b",
            "kernel=6.12",
            "--runs",
            "0",
            "--",
            "true",
        ],
        &["--runs"],
    );
}

#[test]
fn a_program_that_guests_do_not_have_is_said_before_their_kernels_are_built() {
    for verb in [
        "ab --a append=x --b append=y",
        "bisect --good HEAD --bad HEAD",
    ] {
        let words = Vec::from_iter(verb.split(" ").chain(["--", "no-such-program"]));
        let errors = nearfar(&words).exited(127).errors();
        assert!(errors.contains("cannot run no-such-program"), "{errors}");
    }
}

#[test]
fn a_guest_that_cannot_be_is_refused_with_the_reason() {
    refused(
        &["lab", "run", "--machine", "no-such-machine", "--", "true"],
        &["no-such-machine", "kunpeng"],
    );
    refused(
        &["lab", "run", "--scale", "memory=much", "--", "true"],
        &["memory=much"],
    );
    refused(
        &["lab", "run", "--delay", "near=fast", "--", "true"],
        &["fast"],
    );
    refused(
        &["lab", "run", "--arch", "s390x", "--", "true"],
        &["s390x", "powerpc64le"],
    );
    refused(&["lab", "run"], &["COMMAND"]);
    refused(
        &["lab", "run", "--counts", "x.json", "--", "true"],
        &["--delay"],
    );
}

#[test]
fn a_kernel_that_is_not_cached_is_named_with_the_command_that_fetches_it() {
    let output = nearfar(&["lab", "kernels", "path", "6.12", "--arch", "x86_64"]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(
        message.contains("nearfar lab kernels get 6.12"),
        "{message}"
    );
    let list = nearfar(&["lab", "kernels", "list"]);
    assert!(list.status.success());
    let text = String::from_utf8_lossy(&list.stdout);
    assert!(
        text.contains("not cached") && text.contains("nearfar lab kernels get 6.1 --arch ppc64le"),
        "{text}"
    );
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
        assert!(
            ["ok", "degraded", "missing"].contains(&item["state"].as_str().unwrap()),
            "{item}"
        );
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
        assert!(
            output.status.success(),
            "{verb}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    });
    keys::documented(&answers);
}

/// A machine on which nothing of the lab is installed, but apt is.
fn bare(words: &[&str]) -> Answer {
    use std::os::unix::fs::PermissionsExt as _;
    let sandbox = Sandbox::new();
    let apt = sandbox.write("bin/apt-get", "#!/bin/sh\nexit 1\n");
    std::fs::set_permissions(&apt, std::fs::Permissions::from_mode(0o755)).unwrap();
    sandbox
        .nearfar(words)
        .env("PATH", sandbox.path("bin"))
        .run()
}

#[test]
fn the_doctors_advice_is_that_of_the_errors() {
    let doctor: serde_json::Value =
        serde_json::from_slice(&bare(&["lab", "doctor", "--format", "json"]).stdout).unwrap();
    let advised = |what: &str| {
        let mut items = doctor["items"].as_array().unwrap().iter();
        let item = items.find(|item| item["what"].as_str().unwrap().starts_with(what));
        item.unwrap_or_else(|| panic!("the doctor has no {what}"))["command"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    for arch in ["x86_64", "aarch64", "ppc64le"] {
        let output = bare(&["lab", "run", "--arch", arch, "--", "true"]);
        let (message, command) = (
            String::from_utf8_lossy(&output.stderr),
            advised(&format!("QEMU for {arch}")),
        );
        assert!(
            message.contains(&command),
            "the doctor says {command:?}, the error {message:?}"
        );
        let output = bare(&["lab", "kernels", "path", "6.12", "--arch", arch]);
        let (message, command) = (
            String::from_utf8_lossy(&output.stderr),
            advised(&format!("kernel 6.12 for {arch}")),
        );
        assert!(
            message.contains(&format!("run: {command} (")),
            "the doctor says {command:?}, the error {message:?}"
        );
    }
}

#[test]
fn the_doctor_counts_what_is_there_and_fails_only_when_asked() {
    let output = bare(&["lab", "doctor"]);
    let (text, json) = (output.text(), bare(&["lab", "doctor", "--format", "json"]));
    assert_eq!(output.status.code(), Some(0));
    let answer: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let items = answer["items"].as_array().unwrap();
    let count = |state: &str| items.iter().filter(|item| item["state"] == state).count();
    let (ok, degraded, missing) = (count("ok"), count("degraded"), count("missing"));
    let counts = format!(
        "Lab  {ok} of {} parts ok, {degraded} degraded, {missing} missing\n",
        items.len()
    );
    assert!(text.starts_with(&counts), "{text}");
    assert!(missing > 0);
    for state in ["missing", "degraded"] {
        let output = bare(&["lab", "doctor", "--fail-on", state]);
        assert_eq!(output.status.code(), Some(1), "{state}");
        assert!(
            !output.stdout.is_empty() && output.stderr.is_empty(),
            "the answer says it all"
        );
    }
}

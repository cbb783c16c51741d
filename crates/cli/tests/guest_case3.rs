//! `nearfar case 3` in a guest, as small as it can be: the run made there is in the store afterwards.
//!
//! Needs what crates/cli/tests/guest_leftovers.rs needs; without it says so and passes.

mod guests;
mod harness;

use harness::Sandbox;
use serde_json::json;

#[test]
fn the_run_of_a_case_in_a_guest_is_in_the_store() {
    if guests::skipped() {
        return;
    }
    let _turn = guests::turn();
    let own = Sandbox::new();
    let store = own.file("runs.db");
    let words = "case 3 --samples 1 --format json -- --factor distance=alone --factor depth=248 \
                 --factor policy=stock,limit --seconds 0.2";
    let case = own
        .nearfar(words.split_whitespace())
        .env("NEARFAR_STORE", &store);
    let answer = case.with_user_cache().json();
    assert_eq!(answer["run"], json!(1));
    let shown = own
        .nearfar(["runs", "show", "1", "--store", &store, "--format", "json"])
        .json();
    assert_eq!(
        (&shown["state"], &shown["label"], &shown["experiment"]),
        (&json!("complete"), &json!("case-3"), &json!("tags"))
    );
    assert!(shown["emulation"]["delays"].is_object(), "{shown}");
}

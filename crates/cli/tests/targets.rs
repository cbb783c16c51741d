//! What does not exist is wrong usage in every verb: exit code 2, with a message that names it and what there is.

#[allow(dead_code, reason = "a unit test of the command reads the other items")]
mod table;

use crate::harness::Sandbox;
use crate::machines::Laid;
use nearfar_runs::Store;
use table::TARGETS;

#[test]
fn a_target_that_does_not_exist_is_wrong_usage_in_every_verb() {
    let tree = Laid::out("x86-queues-on-node-2");
    let own = Sandbox::new();
    let store = own.path("runs.db");
    drop(Store::open(&store).unwrap());
    let repository = own.file("repository");
    let commit = "-c user.name=a -c user.email=a@b commit --quiet --allow-empty --no-gpg-sign -m a";
    for words in ["init --quiet", commit] {
        std::fs::create_dir_all(&repository).unwrap();
        let mut git = std::process::Command::new("git");
        let git = git.args(["-C", &repository]).args(words.split(' '));
        assert!(git.status().unwrap().success(), "{words}");
    }
    let filled = |word: &str| {
        let word = word.replace("{repository}", &repository);
        let word = word.replace("{tree}", &tree.path("").display().to_string());
        word.replace("{store}", &store.display().to_string())
    };
    let mut wrong = Vec::new();
    for target in TARGETS {
        let output = own.nearfar(target.words.split(' ').map(filled)).run();
        let message = String::from_utf8_lossy(&output.stderr);
        let named = target.says.iter().all(|text| message.contains(text));
        if output.status.code() != Some(2)
            || !named
            || !output.stdout.is_empty()
            || message.contains("panicked")
        {
            wrong.push(format!(
                "nearfar {}: {}, wanted {:?}\n  {message}  {} bytes on standard output",
                target.words,
                output.status,
                target.says,
                output.stdout.len()
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        TARGETS.len(),
        wrong.join("\n")
    );
    let left: Vec<_> = std::fs::read_dir(own.path(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert!(
        !left.iter().any(|name| name == "nearfar-checkup.html"),
        "{left:?}"
    );
}

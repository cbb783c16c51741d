//! Which rule has a task, and what patterns match.

use nearfar_prefer::config::{self, Rule};
use nearfar_prefer::matching::Pattern;
use nearfar_prefer::matching::{TaskAttributes, matching};

fn rules(text: &str) -> Vec<Rule> {
    config::parse(text, "test").unwrap().rules
}

fn attributes(name: &str, executable: &str, group: &str) -> TaskAttributes {
    TaskAttributes {
        name: name.into(),
        executable: Some(executable.into()),
        groups: vec![group.into()],
    }
}

#[test]
fn a_command_is_the_tasks_name_or_its_executables() {
    let rules = rules("[[prefer]]\nname='r'\nnode=1\ncommand='redis-server*'");
    let of = |name, executable| !matching(&rules, &attributes(name, executable, "/")).is_empty();
    assert!(of("redis-server", "/usr/bin/redis-check-rdb"));
    assert!(of("io_thread", "/usr/bin/redis-server"));
    assert!(!of("redis-cli", "/usr/bin/redis-cli"));
    assert!(
        !of("sh", "/opt/redis-server/sh"),
        "a directory is no command"
    );
}

#[test]
fn a_command_with_a_slash_is_the_whole_path() {
    let rules = rules("[[prefer]]\nname='r'\nnode=1\ncommand='/opt/*/server'");
    let of = |executable| !matching(&rules, &attributes("server", executable, "/")).is_empty();
    assert!(of("/opt/a/server"));
    assert!(!of("/opt/a/b/server"), "a star stays within one part");
    assert!(!of("/usr/bin/server"));
}

#[test]
fn groups_hold_for_all_below_and_units_for_any_part() {
    let group = rules("[[prefer]]\nname='g'\nnode=0\ncgroup='/a.slice/*.service/'");
    let unit = rules("[[prefer]]\nname='u'\nnode=0\nunit='b@*.service'");
    let of = |rules: &[Rule], path| !matching(rules, &attributes("x", "/x", path)).is_empty();
    assert!(of(&group, "/a.slice/b@1.service") && of(&group, "/a.slice/b@1.service/worker/3"));
    assert!(!of(&group, "/a.slice") && !of(&group, "/z/a.slice/b@1.service"));
    assert!(of(&unit, "/a.slice/b@1.service") && of(&unit, "/a.slice/b@2.service/worker"));
    assert!(!of(&unit, "/a.slice/b.service"));
}

#[test]
fn all_given_fields_have_to_match_and_the_first_rule_has_the_task() {
    let rules = rules(
        "[[prefer]]\nname='both'\nnode=0\nunit='a.service'\ncommand='x'\n\
         [[prefer]]\nname='unit'\nnode=1\nunit='a.service'",
    );
    assert_eq!(
        matching(&rules, &attributes("x", "/x", "/a.service")),
        [0, 1]
    );
    assert_eq!(matching(&rules, &attributes("y", "/y", "/a.service")), [1]);
    assert_eq!(
        matching(&rules, &attributes("x", "/x", "/b.service")),
        [0; 0]
    );
}

fn is_match(pattern: &str, name: &str) -> bool {
    Pattern::new(pattern).unwrap().matches(name)
}

#[test]
fn stars_stay_within_one_part_and_two_stand_for_any_number() {
    assert!(is_match("/a/*", "/a/b") && !is_match("/a/*", "/a/b/c"));
    assert!(is_match("/a/**", "/a/b/c") && !is_match("/a/**", "/a"));
    assert!(is_match("/a/**/d", "/a/d") && is_match("/a/**/d", "/a/b/c/d"));
    assert!(is_match("b@[0-9].{service,scope}", "b@1.scope"));
    assert!(!is_match("b@[!0-9].service", "b@1.service"));
    assert!(
        is_match(r"a\x2db.*", r"a\x2db.service"),
        "a backslash is itself"
    );
}

/// Where a star has to stop at a slash, a matcher that tries all places of all stars never ends.
#[test]
fn many_stars_before_a_slash_take_no_time() {
    let name = "a".repeat(255);
    let stars = format!("/{}b", "*a".repeat(100));
    assert!(!is_match(&stars, &format!("/{name}/x")));
    assert!(!is_match(&format!("{stars}/x"), &format!("/{name}/x")));
    assert!(!is_match(
        &format!("{}/b", "/**/a".repeat(50)),
        &"/a".repeat(2000)
    ));
    assert!(is_match(
        &format!("/{}/x", "*a".repeat(100)),
        &format!("/{name}/x")
    ));
}

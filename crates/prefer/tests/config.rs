//! Configurations of the service: what is read, and what is said of one that is wrong.

use std::path::Path;
use std::time::Duration;

use nearfar_machine::NodeId;
use nearfar_prefer::Memory;
use nearfar_prefer::config::{Place, parse};
use nearfar_prefer::matching::Pattern;
use nearfar_prefer::service::load;
use proptest::prelude::*;

fn problem(text: &str) -> String {
    parse(text, "prefer.toml").unwrap_err().to_string()
}

#[test]
fn every_field_is_read() {
    let text = "scan_seconds = 2\n\n[[prefer]]\nname = 'web'\nnear = 'eth0'\nunit = 'nginx.service'\nmemory = 'follow'\n\n\
                [[prefer]]\nname = 'cache'\nnode = 1\ncgroup = '/cache/*'\ncommand = 'redis-server*'\n";
    let config = parse(text, "prefer.toml").unwrap();
    assert_eq!(config.scan, Duration::from_secs(2));
    let [web, cache] = &config.rules[..] else {
        panic!("{config:?}")
    };
    assert_eq!(
        (web.name.as_str(), web.line, web.memory),
        ("web", 3, Memory::Follow)
    );
    assert_eq!(web.place, Place::Near("eth0".to_owned()));
    assert_eq!(
        (cache.line, cache.memory, &cache.place),
        (9, Memory::Untouched, &Place::Node(NodeId(1)))
    );
    assert_eq!(
        cache.tasks.command,
        Some(Pattern::new("redis-server*").unwrap())
    );
}

#[test]
fn what_is_wrong_is_named_with_file_line_and_field() {
    let rule = |fields: &str| format!("[[prefer]]\nname = 'a'\n{fields}\n");
    let cases = [
        (String::new(), "prefer.toml:1: no rule"),
        (
            "[[prefer]]\nnode = 1\ncommand = 'x'".to_owned(),
            "prefer.toml:1: a rule needs a name",
        ),
        (
            rule("node = 1\ncommands = 'x'"),
            "prefer.toml:4: unknown field `commands`",
        ),
        (
            rule("node = 'one'\ncommand = 'x'"),
            "prefer.toml:3: invalid type: string \"one\"",
        ),
        (
            rule("node = -1\ncommand = 'x'"),
            "prefer.toml:3: node = -1: from 0 to 1023",
        ),
        (
            rule("node = 1\nnear = 'eth0'\ncommand = 'x'"),
            "prefer.toml:4: both node and near",
        ),
        (rule("command = 'x'"), "prefer.toml:1: where to?"),
        (rule("node = 1"), "prefer.toml:1: which tasks?"),
        (
            rule("node = 1\ncommand = '**'"),
            "prefer.toml:4: command = \"**\": that is everything",
        ),
        (
            rule("node = 1\ncommand = '/**/*'"),
            "prefer.toml:4: command = \"/**/*\": that is everything",
        ),
        (
            rule("node = 1\ncommand = 'a[b'"),
            "prefer.toml:4: command = \"a[b\": unclosed character class",
        ),
        (
            rule("node = 1\ncommand = 'a{b'"),
            "prefer.toml:4: command = \"a{b\": unclosed alternate group",
        ),
        (
            rule("node = 1\ncommand = \"a\\u001b[\""),
            "prefer.toml:4: command = \"a\u{fffd}[\": unclosed character class",
        ),
        (
            rule("near = \"\\u001b[2J\"\ncommand = 'x'"),
            "prefer.toml:3: near: a device such as",
        ),
        (
            rule("node = 1\ncgroup = 'system.slice'"),
            "prefer.toml:4: cgroup = \"system.slice\": a path from the root",
        ),
        (
            rule("node = 1\ncgroup = '/a/../b'"),
            "prefer.toml:4: cgroup = \"/a/../b\": no \"..\"",
        ),
        (rule("node = 1\ncgroup = '/'"), "that is everything"),
        (
            rule("node = 1\nunit = 'nginx'"),
            "prefer.toml:4: unit = \"nginx\": a service, scope or slice",
        ),
        (
            rule("node = 1\ncommand = 'x'\nmemory = 'bind'"),
            "prefer.toml:5: unknown variant `bind`, expected `untouched` or",
        ),
        (
            format!("scan_seconds = 0\n{}", rule("node = 1\ncommand = 'x'")),
            "prefer.toml:1: scan_seconds = 0: from 0.05",
        ),
        (
            format!("scan_seconds = nan\n{}", rule("node = 1\ncommand = 'x'")),
            "prefer.toml:1: scan_seconds = NaN",
        ),
        (
            rule("node = 1\ncommand = 'x'").repeat(2),
            "prefer.toml:5: name = \"a\": the rule of line 1 has it",
        ),
        ("[[prefer]\n".to_owned(), "prefer.toml:1: "),
    ];
    for (text, expected) in cases {
        let said = problem(&text);
        assert!(
            said.contains(expected),
            "{text}\nsaid:     {said}\nexpected: {expected}"
        );
    }
}

#[test]
fn a_message_does_not_hold_the_whole_file() {
    let long = "ä".repeat(100_000);
    for text in [
        format!("scan_seconds = '{long}'"),
        format!("[[prefer]]\nname='a'\nnode=0\nunit='{long}'"),
    ] {
        let said = problem(&text);
        assert!(said.len() < 1000 && said.ends_with("ä..."), "{said}");
    }
}

#[test]
fn a_rule_that_could_never_match_is_an_error() {
    let text =
        "[[prefer]]\nname='a'\nnode=0\ncommand='x'\n[[prefer]]\nname='b'\nnode=1\ncommand='x'\n";
    assert_eq!(
        problem(text),
        "prefer.toml:5: \"b\" matches what \"a\" (line 1) has already taken"
    );
}

/// As many rules as a mebibyte holds: no line is counted and no rule compared for each other rule.
#[test]
fn the_largest_file_is_read_rule_by_rule() {
    let rule =
        |number: usize| format!("[[prefer]]\nname='r{number}'\nnode=1\ncommand='c{number}'\n");
    let text: String = (0..20_000).map(rule).collect();
    let config = parse(&text, "f").unwrap();
    assert_eq!(
        (config.rules.len(), config.rules.last().unwrap().line),
        (20_000, 4 * 19_999 + 1)
    );
    let twice = text + &rule(7);
    assert!(
        problem(&twice).starts_with("prefer.toml:80001: name = \"r7\": the rule of line 29 has it")
    );
}

#[test]
fn what_is_not_a_file_or_too_large_is_refused_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let refused = |path: &Path, expected: &str| {
        let said = load(path).unwrap_err().to_string();
        assert!(said.contains(expected), "{}: {said}", path.display());
    };
    let fifo = directory.path().join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    refused(&fifo, "not a regular file");
    refused(Path::new("/dev/zero"), "not a regular file");
    refused(directory.path(), "not a regular file");
    refused(&directory.path().join("absent"), "No such file");
    let large = directory.path().join("large");
    std::fs::File::create(&large)
        .unwrap()
        .set_len(1 << 30)
        .unwrap();
    refused(&large, "larger than a mebibyte");
    std::fs::write(&large, [0xff; 9]).unwrap();
    refused(&large, "UTF-8");
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused_with_a_line_that_it_has(text in "(\\PC|\n){0,200}") {
        if let Err(error) = parse(&text, "f") {
            prop_assert!((1..=text.lines().count() + 1).contains(&error.line), "{error}");
        }
    }

    #[test]
    fn any_table_is_read_or_refused_with_a_line_that_it_has(
        fields in prop::collection::vec(("(name|node|near|cgroup|unit|command|memory|x)", "('[a-z/*.\\[-]{0,12}'|-?[0-9]{1,6})"), 0..8),
    ) {
        let lines: Vec<_> = fields.iter().map(|(key, value)| format!("{key} = {value}")).collect();
        let text = format!("[[prefer]]\n{}", lines.join("\n"));
        match parse(&text, "f") {
            Ok(config) => prop_assert_eq!(config.rules.len(), 1),
            Err(error) => prop_assert!((1..=lines.len() + 2).contains(&error.line), "{}", error),
        }
    }
}

//! `/proc/PID/numa_maps`: a line for each mapping, with its policy and its pages by node.
//!
//! ```text
//! 7f2c00000000 bind:0 anon=512 dirty=512 active=0 N0=512 kernelpagesize_kB=2048
//! 55754ff29000 default file=/usr/bin/cat mapped=2 N0=2 kernelpagesize_kB=4
//! ```
//!
//! Spaces and equals signs in a file's name are escaped (`\040`), so `file=...` is one word.

use std::io::{self, BufRead};

use nearfar_machine::{MAX_NUMBER, NodeId, NodeSet};

use crate::text;

/// One mapping.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping<'a> {
    /// Its first address.
    pub start: u64,
    /// Its memory policy: `default`, `bind:0-1`, `weighted interleave:0-1`, `prefer (many)=static:0`.
    pub policy: &'a [u8],
    /// Pages on each node that has some, in the unit of `page_bytes`.
    pub pages: Vec<(NodeId, u64)>,
    /// Of the page that most mappings of any process have (`mapmax`), how many; 1 where no other has one.
    pub most_mappings: u64,
    /// `kernelpagesize_kB`, in bytes; since Linux 3.8.
    pub page_bytes: Option<u64>,
    /// Whether it is one of huge pages. Without `page_bytes` their size is unknown.
    pub huge: bool,
}

impl<'a> Mapping<'a> {
    /// Of one line; `None` for what is none.
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        let mut words = text::words(line);
        let (start, policy) = (words.next()?, words.next()?);
        // The names of two modes are two words (policy_modes in mm/mempolicy.c).
        let policy = match policy {
            b"weighted" | b"prefer" => with_next(line, policy, words.next()?),
            policy => policy,
        };
        let mut mapping = Self {
            start: text::hexadecimal(start)?,
            policy,
            pages: Vec::new(),
            most_mappings: 1,
            page_bytes: None,
            huge: false,
        };
        for word in words {
            let Some(equals) = word.iter().position(|&byte| byte == b'=') else {
                mapping.huge |= word == b"huge";
                continue;
            };
            let (key, value) = (&word[..equals], &word[equals + 1..]);
            if key == b"kernelpagesize_kB" {
                mapping.page_bytes =
                    text::number(value).and_then(|kilobytes: u64| kilobytes.checked_mul(1024));
            } else if key == b"mapmax" {
                mapping.most_mappings = text::number(value).unwrap_or(1);
            } else {
                mapping.pages.extend(pages_on_node(key, value));
            }
        }
        Some(mapping)
    }
}

/// The part of a line from the begin of one word to the end of a later one.
fn with_next<'a>(line: &'a [u8], word: &[u8], next: &[u8]) -> &'a [u8] {
    let at = |word: &[u8]| word.as_ptr() as usize - line.as_ptr() as usize;
    &line[at(word)..at(next) + next.len()]
}

/// `N0=512`.
fn pages_on_node(key: &[u8], value: &[u8]) -> Option<(NodeId, u64)> {
    let node: u32 = text::number(key.strip_prefix(b"N")?)?;
    let pages: u64 = text::number(value)?;
    (node <= MAX_NUMBER && pages > 0).then_some((NodeId(node), pages))
}

/// Calls `take` for each mapping.
///
/// # Errors
/// When the text cannot be read: of another user's process it opens and then fails.
pub fn each(content: impl BufRead, mut take: impl FnMut(Mapping<'_>)) -> io::Result<()> {
    text::each_line(content, |line| {
        if let Some(mapping) = Mapping::parse(line) {
            take(mapping);
        }
    })
}

/// Whether a memory policy binds to nodes without this one: `bind:0-1`, `bind=static:0` (mpol_to_str in mm/mempolicy.c). A list
/// that cannot be read may be without it.
pub fn binds_elsewhere(policy: &str, node: NodeId) -> bool {
    let Some((mode, nodes)) = policy.split_once(':') else {
        return false;
    };
    let has_node = || NodeSet::parse_list(nodes).is_ok_and(|nodes| nodes.contains(node));
    mode.starts_with("bind") && !has_node()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_found_by_node_and_names_may_be_any_bytes() {
        let text = b"00400000 default file=/a\\040N0=9\xff mapped=3 mapmax=2 N0=1 N1=2 kernelpagesize_kB=4\n\
            7f0000000000 bind:0 huge anon=3 dirty=3 N2=3 kernelpagesize_kB=2048\nnothing\n\n7f2000000000 default\n";
        let mut found = Vec::new();
        each(&text[..], |it| {
            found.push((
                it.start,
                it.policy.to_vec(),
                it.pages,
                it.page_bytes,
                it.huge,
            ));
        })
        .unwrap();
        let (one, two) = (vec![(NodeId(0), 1), (NodeId(1), 2)], vec![(NodeId(2), 3)]);
        let expected = [
            (0x40_0000, b"default".to_vec(), one, Some(4096), false),
            (
                0x7f00_0000_0000,
                b"bind:0".to_vec(),
                two,
                Some(2 << 20),
                true,
            ),
            (0x7f20_0000_0000, b"default".to_vec(), vec![], None, false),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_policy_whose_name_is_two_words_is_read_with_its_nodes() {
        for policy in [
            "prefer:1",
            "prefer (many):0-1",
            "prefer (many)=static:0",
            "weighted interleave:0-1",
            "bind=static|balancing:0",
        ] {
            let line = format!("7f00 {policy} anon=1 N1=1");
            let mapping = Mapping::parse(line.as_bytes()).unwrap();
            assert_eq!(mapping.policy, policy.as_bytes());
            assert_eq!(mapping.pages, [(NodeId(1), 1)]);
        }
    }

    #[test]
    fn the_rest_of_an_overlong_line_is_not_a_mapping() {
        let text = format!(
            "00400000 default file=/{} N0=1\n7f00 default N1=2\n",
            "1 default N9=9 ".repeat(9000)
        );
        let mut starts = Vec::new();
        each(text.as_bytes(), |mapping| starts.push(mapping.start)).unwrap();
        assert_eq!(starts, [0x40_0000, 0x7f00]);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, text in "([0-9a-f]{1,4} [a-z:0-9]{1,9}( N[0-9]{1,12}=[0-9]{1,20})*\n){0,5}") {
            each(&bytes[..], |_| {}).unwrap();
            each(text.as_bytes(), |_| {}).unwrap();
        }
    }

    #[test]
    fn a_bind_policy_that_cannot_be_read_binds_elsewhere() {
        for (policy, elsewhere) in [
            ("bind:0-1", false),
            ("bind=relative:1", false),
            ("bind:0", true),
            ("bind:\u{fffd}", true),
            ("prefer:0", false),
            ("interleave:0", false),
            ("default", false),
        ] {
            assert_eq!(binds_elsewhere(policy, NodeId(1)), elsewhere, "{policy}");
        }
    }
}

//! Patterns of paths, compared part by part.
//!
//! ```text
//! /a.slice / *-*.scope / ** / x      pattern
//! /a.slice /  b-1.scope / c / x      path
//!    one      one         any  one
//! ```
//!
//! The glob crate compares a whole path as well, but where a star has to stop at a slash it tries every other place for all
//! stars before it: ten times as long for each star more (5 s for seven stars and a name of 60 letters), and the names of
//! groups and executables are their owners' to choose.
//! Within one part, and for `**` over the parts, what comes first is tried last only once.

use glob::{Pattern, PatternError};

/// A pattern with slashes: no `*`, `?` or `[...]` matches one, `**` stands for any number of parts.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct PathPattern {
    text: String,
    parts: Vec<Part>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Part {
    One(Pattern),
    /// Any number, at the end at least one: `/a/**` is what is below `/a`.
    Any,
}

impl PathPattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// What glob says of it, or of the part between two slashes that stops being a pattern.
    pub fn new(text: &str) -> Result<Self, PatternError> {
        // Positions in messages are those in the whole text, where that alone is wrong already.
        Pattern::new(text)?;
        let mut parts = Vec::new();
        for part in text.split('/') {
            match part {
                "**" if parts.last() == Some(&Part::Any) => {}
                "**" => parts.push(Part::Any),
                part => parts.push(Part::One(Pattern::new(part)?)),
            }
        }
        // `/a/**/` is `/a/**`: glob takes a slash behind two stars as part of them.
        if matches!(&parts[..], [.., Part::Any, Part::One(last)] if last.as_str().is_empty()) {
            parts.pop();
        }
        Ok(Self {
            text: text.to_owned(),
            parts,
        })
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it matches the path that has these parts (`/a` has an empty one and `a`).
    pub fn matches(&self, path: &[&str]) -> bool {
        let (mut at, mut of_path) = (0, 0);
        // Where to go on behind the last `**`, and the first part that it has not taken yet.
        let mut retry = None;
        while let Some(part) = path.get(of_path) {
            match self.parts.get(at) {
                Some(Part::Any) if at + 1 == self.parts.len() => return true,
                Some(Part::Any) => {
                    at += 1;
                    retry = Some((at, of_path));
                }
                Some(Part::One(pattern)) if pattern.matches(part) => {
                    at += 1;
                    of_path += 1;
                }
                _ => match &mut retry {
                    Some((behind, untaken)) => {
                        *untaken += 1;
                        (at, of_path) = (*behind, *untaken);
                    }
                    None => return false,
                },
            }
        }
        at == self.parts.len()
    }
}

#[cfg(test)]
mod tests {
    use glob::MatchOptions;
    use proptest::prelude::*;

    use super::*;

    /// What the glob crate makes of it.
    fn by_glob(pattern: &str, path: &str) -> bool {
        let paths = MatchOptions {
            case_sensitive: true,
            require_literal_separator: true,
            require_literal_leading_dot: false,
        };
        Pattern::new(pattern).unwrap().matches_with(path, paths)
    }

    fn here(pattern: &str, path: &str) -> bool {
        PathPattern::new(pattern)
            .unwrap()
            .matches(&path.split('/').collect::<Vec<_>>())
    }

    /// With glob on whole paths each of these takes longer than anybody waits.
    #[test]
    fn many_stars_before_a_slash_take_no_time() {
        let name = "a".repeat(255);
        let stars = format!("/{}b", "*a".repeat(100));
        assert!(!here(&stars, &format!("/{name}/x")));
        assert!(!here(&format!("{stars}/x"), &format!("/{name}/x")));
        let deep = format!("{}/b", "/**/a".repeat(50));
        assert!(!here(&deep, &"/a".repeat(2000)));
        assert!(here(
            &format!("/{}/x", "*a".repeat(100)),
            &format!("/{name}/x")
        ));
    }

    #[test]
    fn a_class_cannot_hold_a_slash() {
        assert!(PathPattern::new("/a[/]b").is_err());
        assert!(PathPattern::new("/a[!/]*").is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn a_path_matches_as_the_whole_would(
            parts in prop::collection::vec("[ab?*]{0,1}[ab?]{0,2}|\\*[ab]\\*|\\[!?ab\\]|\\*\\*", 0..5),
            path in prop::collection::vec("[abc.]{0,3}", 1..6),
        ) {
            let (pattern, path) = (parts.join("/"), path.join("/"));
            prop_assert_eq!(here(&pattern, &path), by_glob(&pattern, &path), "{} {}", pattern, path);
        }
    }
}

//! Patterns of names and paths, as a shell has them.
//!
//! ```text
//! *  ?  [a-z]  {a,b}    within one part of a path
//! **                    any number of parts: /a/** is everything below /a
//! ```

use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

use globset::{Glob, GlobBuilder, GlobMatcher};

/// A checked pattern. It becomes an automaton at its first use, so that matching takes linear time whatever the pattern and
/// the name are: the names of groups and executables are chosen by their owners.
#[derive(Clone, Debug)]
pub struct Pattern {
    glob: Glob,
    matcher: OnceLock<GlobMatcher>,
}

impl Pattern {
    /// # Errors
    /// What is wrong with the pattern, such as a bracket that is not closed.
    pub fn new(text: &str) -> Result<Self, globset::ErrorKind> {
        let glob = GlobBuilder::new(text)
            .literal_separator(true)
            // Names of systemd's units contain backslashes (`dev-disk-by\x2duuid`).
            .backslash_escape(false)
            .build()
            .map_err(|error| error.kind().clone())?;
        Ok(Self {
            glob,
            matcher: OnceLock::new(),
        })
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        self.glob.glob()
    }

    pub fn matches(&self, name: &str) -> bool {
        self.matcher
            .get_or_init(|| self.glob.compile_matcher())
            .is_match(name)
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Pattern {}

impl Hash for Pattern {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

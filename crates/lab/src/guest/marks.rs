//! What one command wrote, cut out of what a port carries.
//!
//! ```text
//! ... leftovers of a background process | TOKEN.begin.7. | the command's bytes | TOKEN.end.7. | ...
//! ```
//!
//! A port never ends while the guest lives, and bytes may be anything, so the agent marks begin and end with a token that
//! was drawn for this guest.

/// Where in a port's bytes we are.
#[derive(Debug)]
pub struct Cut {
    begin: Vec<u8>,
    end: Vec<u8>,
    state: State,
    /// Bytes that may be the start of a mark.
    held: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Before,
    Inside,
    After,
}

impl Cut {
    /// The bytes of the command with this number. A terminal has no mark at the begin.
    pub fn new(token: &str, id: u64, terminal: bool) -> Self {
        Self {
            begin: format!("{token}.begin.{id}.").into_bytes(),
            end: format!("{token}.end.{id}.").into_bytes(),
            state: if terminal {
                State::Inside
            } else {
                State::Before
            },
            held: Vec::new(),
        }
    }

    /// Takes what the port carried, gives what of it is the command's.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.held.extend_from_slice(bytes);
        if self.state == State::Before {
            self.skip_to_begin();
        }
        match self.state {
            State::Before | State::After => Vec::new(),
            State::Inside => self.pass_to_end(),
        }
    }

    /// Whether the command's last byte was seen.
    pub fn ended(&self) -> bool {
        self.state == State::After
    }

    fn skip_to_begin(&mut self) {
        if let Some(at) = find(&self.held, &self.begin) {
            self.held.drain(..at + self.begin.len());
            self.state = State::Inside;
        } else {
            let keep = unfinished(&self.held, &self.begin);
            self.held.drain(..self.held.len() - keep);
        }
    }

    fn pass_to_end(&mut self) -> Vec<u8> {
        if let Some(at) = find(&self.held, &self.end) {
            self.state = State::After;
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let passed = self.held.len() - unfinished(&self.held, &self.end);
        self.held.drain(..passed).collect()
    }
}

fn find(bytes: &[u8], mark: &[u8]) -> Option<usize> {
    bytes.windows(mark.len()).position(|window| window == mark)
}

/// How many bytes at the end may be the start of a mark.
fn unfinished(bytes: &[u8], mark: &[u8]) -> usize {
    (1..mark.len().min(bytes.len() + 1))
        .rev()
        .find(|count| bytes.ends_with(&mark[..*count]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_between_the_marks_comes_out_however_it_arrives(
            mut content in proptest::collection::vec(prop_oneof![Just(b't'), Just(b'.'), any::<u8>()], 0..200),
            cuts in proptest::collection::vec(1_usize..40, 1..40),
        ) {
            // Where the mark's own first byte stands before it, the mark begins there.
            if content.ends_with(b"t") {
                content.push(b'.');
            }
            let mut port = b"leftover tt.begin.6.".to_vec();
            port.extend_from_slice(b"tt.begin.7.");
            port.extend_from_slice(&content);
            port.extend_from_slice(b"tt.end.7.later");
            prop_assume!(find(&content, b"tt.end.7.").is_none());
            let mut cut = Cut::new("tt", 7, false);
            let mut seen = Vec::new();
            let mut rest = &port[..];
            for size in cuts.iter().cycle() {
                if rest.is_empty() || cut.ended() {
                    break;
                }
                let (piece, later) = rest.split_at((*size).min(rest.len()));
                seen.extend(cut.feed(piece));
                rest = later;
            }
            prop_assert!(cut.ended());
            prop_assert_eq!(seen, content);
        }
    }
}

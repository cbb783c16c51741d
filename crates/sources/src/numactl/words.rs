//! Undoes what mail does to text: quotation marks, quoted-printable line ends, foreign white space.
//!
//! ```text
//! > > node 0 cpus: 0 1 2=20=
//! > > 3 4                       ─►   node 0 cpus: 0 1 2 3 4       as words, each with its line
//! ```

pub(super) struct Word<'a> {
    pub text: &'a str,
    /// Its line, from 1.
    pub line: usize,
    /// Whether it stands first in its line, after quotation marks.
    pub first: bool,
}

/// A line without what mail put around it.
pub(super) struct Line {
    /// Its number in the file, from 1.
    number: usize,
    text: String,
}

/// The lines of a text. What quoted-printable encoding folded (a line that ends with `=`) is one line again.
pub(super) fn lines(text: &str) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut folded = false;
    for (number, raw) in (1..).zip(text.split('\n')) {
        let line = unquoted(raw.trim_end_matches('\r'), folded);
        let (line, folds) = line
            .strip_suffix('=')
            .map_or((line, false), |line| (line, true));
        let plain = line
            .replace("=20", " ")
            .replace("=A0", " ")
            .replace(is_space, " ");
        match lines.last_mut().filter(|_| folded) {
            Some(last) => last.text.push_str(&plain),
            None => lines.push(Line {
                number,
                text: plain,
            }),
        }
        folded = folds;
    }
    lines
}

/// A line without quotation marks. Where it goes on in the middle of a folded line, its spaces count.
fn unquoted(line: &str, goes_on: bool) -> &str {
    if !goes_on {
        return line.trim_start_matches(|c: char| c == '>' || c == '|' || is_space(c));
    }
    let mut rest = line;
    while let Some(inner) = rest.strip_prefix(['>', '|']) {
        rest = inner.strip_prefix(' ').unwrap_or(inner);
    }
    rest
}

/// The words of those lines.
pub(super) fn words(lines: &[Line]) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    for line in lines {
        let texts = line.text.split(' ').filter(|word| !word.is_empty());
        words.extend(texts.enumerate().map(|(at, text)| Word {
            text,
            line: line.number,
            first: at == 0,
        }));
    }
    words
}

/// White space in the widest sense: also what a Latin-1 no-break space becomes when it is read as UTF-8.
fn is_space(c: char) -> bool {
    c.is_whitespace()
        || c.is_control()
        || matches!(c, '\u{200b}' | '\u{2060}' | '\u{feff}' | '\u{fffd}')
}

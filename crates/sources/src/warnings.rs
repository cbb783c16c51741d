//! Collects what is odd about an input while it is read, without letting a hostile one grow the list for ever.

use nearfar_machine::{Distance, Machine, Warning};

/// How many warnings one input may cause; further ones are only counted.
const MOST: usize = 64;
/// How much of a foreign word a message repeats, in characters.
const LONGEST_EXCERPT: usize = 60;

pub(crate) struct Warnings {
    place: String,
    found: Vec<Warning>,
    left_out: usize,
}

impl Warnings {
    /// None yet, about this file or text.
    pub(crate) fn about(place: &str) -> Self {
        Self {
            place: place.to_owned(),
            found: Vec::new(),
            left_out: 0,
        }
    }

    /// Something odd about the input as a whole.
    pub(crate) fn note(&mut self, message: impl Into<String>) {
        self.push(self.place.clone(), message.into());
    }

    /// Something odd in one line, counted from 1.
    pub(crate) fn note_line(&mut self, line: usize, message: impl Into<String>) {
        self.push(format!("{}, line {line}", self.place), message.into());
    }

    /// All of them, in the order in which they were found.
    pub(crate) fn finish(mut self) -> Vec<Warning> {
        if self.left_out > 0 {
            let message = format!(
                "{} more oddities of this kind are not listed",
                self.left_out
            );
            self.found.push(Warning::new(self.place, message));
        }
        self.found
    }

    fn push(&mut self, place: String, message: String) {
        match self.found.len() < MOST {
            true => self.found.push(Warning::new(place, message)),
            false => self.left_out += 1,
        }
    }
}

/// Names the distances that no firmware should say; the table is kept as it is.
pub(crate) fn implausible_distances(mut machine: Machine) -> Machine {
    let mut warnings = Warnings::about(&format!("{}, distances", machine.origin.place));
    let table = machine.distances.get().into_iter();
    for (from, to, distance) in table.flat_map(|table| table.entries()) {
        match distance {
            Some(distance) if from != to && distance < Distance::LOCAL => warnings.note(format!(
                "from node {from} node {to} is at {distance}, nearer than a node is to itself (10)"
            )),
            Some(distance) if from == to && distance != Distance::LOCAL => warnings.note(format!(
                "node {from} is at {distance} from itself, not at 10"
            )),
            _ => {}
        }
    }
    // A snapshot brings those along that were found when it was taken.
    let known: Vec<&str> = machine
        .warnings
        .iter()
        .map(|it| it.message.as_str())
        .collect();
    let mut found = warnings.finish();
    found.retain(|warning| !known.contains(&warning.message.as_str()));
    machine.warnings.extend(found);
    machine
}

/// Foreign text, cut to what fits into a message.
pub(crate) fn excerpt(text: &str) -> String {
    match text.char_indices().nth(LONGEST_EXCERPT) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// The warning about the line where a second output of a program begins: of two machines in one text no one is made.
pub(crate) fn second_output(name: &str) -> String {
    format!(
        "a second output of {name} begins here; only the first one was read: cut the text in two to see the other"
    )
}

//! Lines that went from one vCPU to another, by the instruction that got them: what a program in the guest gets to know of it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;

/// Rows of the answer; the rest is in its sums. Instructions are summed up by function, lines are shown one by one, each with all of
/// its rows.
const MOST_INSTRUCTIONS: usize = 1000;
const MOST_ROWS_OF_LINES: usize = 1000;

/// The plugin's table at one moment, or what came since another one.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct TransferTable {
    /// By the addresses of instruction and line.
    pub rows: BTreeMap<(u64, u64), TransferRow>,
    /// Transfers that the table has no room for.
    pub lost: u64,
}

/// How often an instruction got a line from another vCPU. In JSON the list of its numbers: an answer is read byte by byte.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
#[serde(into = "[u64; 6]")]
pub struct TransferRow {
    /// Its virtual address.
    pub instruction: u64,
    /// The line's first virtual address; 0 for all that have no row of their own, or all there are.
    pub line: u64,
    /// The node of the line's memory.
    pub home: u64,
    /// Transfers from a vCPU of its node.
    pub same_node: u64,
    /// Transfers from other nodes.
    pub other_node: u64,
    /// What they took, in nanoseconds.
    pub ns: u64,
}

/// The answer to `lines MARK`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct TransferAnswer {
    /// Rows of instructions, those that took longest first.
    instructions: Vec<TransferRow>,
    /// By instruction and line, of the lines that took longest.
    lines: Vec<TransferRow>,
    /// Those of [`Self::all`] whose line is not known, as the table had no room for more.
    without_line: TransferRow,
    /// All rows together; its addresses and node are 0.
    all: TransferRow,
    lost: u64,
}

impl From<TransferRow> for [u64; 6] {
    fn from(row: TransferRow) -> Self {
        let TransferRow {
            instruction,
            line,
            home,
            same_node,
            other_node,
            ns,
        } = row;
        [instruction, line, home, same_node, other_node, ns]
    }
}

impl TransferRow {
    fn add(&mut self, other: &Self) {
        self.same_node += other.same_node;
        self.other_node += other.other_node;
        self.ns += other.ns;
    }
}

impl TransferTable {
    /// What came since then.
    pub fn since(&self, before: &Self) -> Self {
        let row = |(key, row): (&(u64, u64), &TransferRow)| {
            let old = before.rows.get(key).copied().unwrap_or_default();
            let new = TransferRow {
                same_node: row.same_node.saturating_sub(old.same_node),
                other_node: row.other_node.saturating_sub(old.other_node),
                ns: row.ns.saturating_sub(old.ns),
                ..*row
            };
            (new.same_node + new.other_node != 0).then_some((*key, new))
        };
        Self {
            rows: self.rows.iter().filter_map(row).collect(),
            lost: self.lost.saturating_sub(before.lost),
        }
    }

    pub fn answer(&self) -> TransferAnswer {
        let (mut all, mut without_line) = (TransferRow::default(), TransferRow::default());
        let mut lines = BTreeMap::<u64, Vec<TransferRow>>::new();
        let mut instructions = BTreeMap::<u64, TransferRow>::new();
        for row in self.rows.values() {
            all.add(row);
            let sum = instructions.entry(row.instruction).or_default();
            sum.instruction = row.instruction;
            sum.home = row.home;
            sum.add(row);
            match row.line {
                0 => without_line.add(row),
                line => lines.entry(line).or_default().push(*row),
            }
        }
        let mut instructions = Vec::from_iter(instructions.into_values());
        instructions.sort_by_key(|row| (Reverse(row.ns), row.instruction));
        instructions.truncate(MOST_INSTRUCTIONS);
        let mut lines = Vec::from_iter(lines);
        lines.sort_by_key(|(line, rows)| {
            (Reverse(rows.iter().map(|row| row.ns).sum::<u64>()), *line)
        });
        let mut room = MOST_ROWS_OF_LINES;
        let fit = lines.into_iter().map_while(|(_, mut rows)| {
            room = room.checked_sub(rows.len())?;
            rows.sort_by_key(|row| (Reverse(row.ns), row.instruction));
            Some(rows)
        });
        TransferAnswer {
            instructions,
            lines: fit.flatten().collect(),
            without_line,
            all,
            lost: self.lost,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[[u64; 5]]) -> TransferTable {
        let rows = rows
            .iter()
            .map(|&[instruction, line, same_node, other_node, ns]| {
                let row = TransferRow {
                    instruction,
                    line,
                    home: 1,
                    same_node,
                    other_node,
                    ns,
                };
                ((instruction, line), row)
            });
        TransferTable {
            rows: rows.collect(),
            lost: 7,
        }
    }

    #[test]
    fn the_answer_has_what_came_since_then_by_instruction_and_by_line() {
        let before = table(&[[10, 64, 1, 1, 100], [20, 64, 5, 5, 500]]);
        let now = table(&[
            [10, 64, 3, 1, 150],
            [10, 128, 1, 0, 40],
            [20, 64, 5, 5, 500],
            [30, 0, 0, 2, 200],
        ]);
        let answer = now.since(&before).answer();
        let by = |rows: &[TransferRow]| {
            let row = |it: &TransferRow| (it.instruction, it.line, it.ns);
            Vec::from_iter(rows.iter().map(row))
        };
        assert_eq!(by(&answer.instructions), [(30, 0, 200), (10, 0, 90)]);
        assert_eq!(by(&answer.lines), [(10, 64, 50), (10, 128, 40)]);
        assert_eq!((answer.all.same_node, answer.all.other_node), (3, 2));
        assert_eq!((answer.all.ns, answer.lost), (290, 0));
        assert_eq!(answer.without_line.ns, 200);
        // A line comes before another one by the sum of its rows, and with all of them.
        let spread = table(&[[1, 64, 1, 0, 30], [2, 64, 1, 0, 40], [3, 128, 1, 0, 60]]);
        assert_eq!(
            by(&spread.answer().lines),
            [(2, 64, 40), (1, 64, 30), (3, 128, 60)]
        );
    }
}

//! A POSIX shell script: makes the changes, or puts back with `--undo` what was there when the plan was made.

use nearfar_machine::shell_quoted;

use super::{Exported, comment, heading, writings};
use crate::change::Plan;

const USAGE: &str = r#"#
# Usage: sh FILE           makes the changes
#        sh FILE --undo    puts back what was there when the plan was made
# NEARFAR_ROOT=DIR works on the files below DIR instead of the live system. Interrupt numbers hold until the next boot.
# Exit status: 0 done, 2 wrong usage, 3 the system refused at least one change; the others are made.
# Unlike nearfar apply this keeps no journal and does not notice what has changed since the plan was made.
set -eu

root=${NEARFAR_ROOT:-}
status=0

# put FILE VALUE; a plan without changes calls it nowhere.
# shellcheck disable=SC2317,SC2329
put() {
    if printf '%s\n' "$2" > "$root$1"; then
        printf '%s <- %s\n' "$1" "$2"
    else
        printf '%s: %s was refused\n' "$1" "$2" >&2
        status=3
    fi
}
"#;

const LEFT_OUT: &str = "    printf 'a change is left out; %s says why\\n' \"$0\" >&2\n";

const END: &str = r#"
case ${1-} in
    '') make ;;
    --undo) undo ;;
    *)
        printf 'usage: %s [--undo]\n' "$0" >&2
        exit 2
        ;;
esac
exit "$status"
"#;

/// The plan as a shell script (POSIX, no tool but the shell). Each write is commented with its reason and the value it
/// replaces; a change that cannot be exported is a comment that says why.
pub fn script(plan: &Plan) -> String {
    let writings = writings(plan);
    let mut text = format!(
        "#!/bin/sh\n{}{USAGE}",
        heading(plan, "Puts what is far near")
    );
    text.push_str("\nmake() {\n    :\n");
    for writing in &writings {
        text.push_str(&make(writing));
    }
    text.push_str("}\n\nundo() {\n    :\n");
    for writing in writings.iter().rev() {
        text.push_str(&undo(writing));
    }
    text.push_str("}\n");
    for left in &plan.left_alone {
        let (subject, reason) = (comment(&left.subject), comment(&left.reason));
        text.push_str(&format!("# Left alone: {subject}: {reason}\n"));
    }
    text.push_str(END);
    text
}

fn make(writing: &Exported<'_>) -> String {
    let writing = match writing {
        Ok(writing) => writing,
        // Only as a comment: the text of a plan is no shell's.
        Err(left_out) => return format!("    # {left_out}\n{LEFT_OUT}"),
    };
    let mut text = String::new();
    for reason in writing.reasons() {
        text.push_str(&format!("    # {reason}\n"));
    }
    text.push_str(&format!(
        "    put {} {}\n",
        shell_quoted(&writing.file),
        shell_quoted(&writing.value)
    ));
    for line in writing.rebinding() {
        text.push_str(&format!("    # {line}\n"));
    }
    text
}

fn undo(writing: &Exported<'_>) -> String {
    let Ok(writing) = writing else {
        return String::new();
    };
    let Some(before) = writing.before() else {
        return format!("    # {}: the value before is not known\n", writing.file);
    };
    format!(
        "    put {} {}\n",
        shell_quoted(&writing.file),
        shell_quoted(before)
    )
}

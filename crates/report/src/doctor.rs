//! What the lab finds on a machine, and how to fix what is missing.

use nearfar_lab::doctor::{Doctor, Item, State};

use crate::amount::count;
use crate::layout::{Cell, Grid, Side, heading, paragraph, whole};
use crate::style::{Role, Style};

/// Every part with its state; below, for each that is not as it should be, the consequence and the command that fixes
/// it.
pub fn table(doctor: &Doctor, style: &Style) -> String {
    let (missing, degraded) = (doctor.count(State::Missing), doctor.count(State::Degraded));
    let remark = match (missing, degraded) {
        (0, 0) => "everything is there".to_owned(),
        _ => {
            let ok = doctor.count(State::Ok);
            format!(
                "{ok} of {} ok, {degraded} degraded, {missing} missing",
                count(doctor.items.len(), "part")
            )
        }
    };
    let mut out = heading(style, "Lab", &remark);
    let mut grid = Grid::new(&[("", Side::Left), ("part", Side::Left), ("", Side::Left)]);
    for item in &doctor.items {
        let (role, word) = look(item.state);
        grid.row(vec![
            Cell::new(role, word),
            Cell::new(Role::Subject, &item.what),
            Cell::from(&item.detail),
        ]);
    }
    out.push_str(&grid.render(style));
    if missing + degraded > 0 {
        out.push_str(&heading(style, "What to do", ""));
        // What is missing keeps people from more than what is degraded.
        for state in [State::Missing, State::Degraded] {
            doctor
                .items
                .iter()
                .filter(|item| item.state == state)
                .for_each(|item| out.push_str(&remedy(item, style)));
        }
    }
    whole(out)
}

fn look(state: State) -> (Role, &'static str) {
    match state {
        State::Ok => (Role::Local, "ok"),
        State::Degraded => (Role::Warning, "degraded"),
        State::Missing => (Role::Critical, "missing"),
    }
}

fn remedy(item: &Item, style: &Style) -> String {
    let (role, _) = look(item.state);
    let consequence = item.consequence.as_deref().unwrap_or_default();
    let mut out = paragraph(
        style,
        2,
        (role, &format!("{}: ", item.what)),
        Role::Plain,
        consequence,
    );
    for line in item
        .command
        .iter()
        .flat_map(|command| broken(command, style.columns().saturating_sub(8)))
    {
        out.push_str(&paragraph(
            &Style {
                width: usize::MAX,
                ..*style
            },
            4,
            (Role::Dim, ""),
            Role::Subject,
            &line,
        ));
    }
    out
}

/// A command in lines that can be pasted: broken between words with a backslash, never within quotation marks. A word
/// that is longer than a line stays whole, since a broken one would be another command.
fn broken(command: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in words(command) {
        let line = lines.last_mut().expect("never empty");
        if line.is_empty() {
            line.push_str(&word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(&word);
        } else {
            line.push_str(" \\");
            lines.push(format!("  {word}"));
        }
    }
    lines
}

/// The words of a command, quoted ones with their blanks.
fn words(command: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for c in command.chars() {
        quoted ^= c == '\'';
        match words.last_mut() {
            Some(word) if quoted || c != ' ' => word.push(c),
            _ => words.push(String::new()),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(what: &str, state: State, command: Option<&str>) -> Item {
        let consequence = (state != State::Ok).then(|| "guests are slower".to_owned());
        let command = command.map(str::to_owned);
        Item {
            what: what.to_owned(),
            state,
            detail: "seen".to_owned(),
            consequence,
            command,
        }
    }

    #[test]
    fn a_whole_lab_has_nothing_to_do() {
        let doctor = Doctor {
            items: vec![item("QEMU", State::Ok, None)],
        };
        assert_eq!(
            table(&doctor, &Style::default()),
            "Lab  everything is there\n      part\n  ok  QEMU  seen\n"
        );
    }

    #[test]
    fn what_is_missing_comes_first_with_its_command() {
        let doctor = Doctor {
            items: vec![
                item("KVM", State::Degraded, None),
                item("QEMU", State::Missing, Some("sudo apt-get install qemu")),
            ],
        };
        let text = table(&doctor, &Style::default());
        let wanted = "\nWhat to do\n  QEMU: guests are slower\n    sudo apt-get install qemu\n  KVM: guests are slower\n";
        assert!(text.ends_with(wanted), "{text}");
        assert!(
            text.starts_with("Lab  0 of 2 parts ok, 1 degraded, 1 missing\n"),
            "{text}"
        );
    }

    #[test]
    fn a_long_command_is_broken_where_a_shell_joins_it_again() {
        let command = "printf '%s\\n' 'Types: deb' 'URIs: http://mirror.example/debian' | sudo tee /etc/x && sudo apt-get update";
        let lines = broken(command, 40);
        assert!(
            lines.len() > 2 && lines.iter().all(|line| line.chars().count() <= 44),
            "{lines:#?}"
        );
        assert!(
            lines
                .iter()
                .any(|line| line.contains("'URIs: http://mirror.example/debian'")),
            "{lines:#?}"
        );
        let joined = lines.join("\n").replace(" \\\n ", "");
        assert_eq!(
            joined.split_whitespace().collect::<Vec<_>>(),
            command.split_whitespace().collect::<Vec<_>>()
        );
    }
}

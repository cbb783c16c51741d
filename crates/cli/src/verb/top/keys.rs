//! What keys and the mouse mean.

use crossterm::event::{
    Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEventKind,
};

use super::state::{Mode, Tab};

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    Quit,
    Suspend,
    /// Out of details, help or the filter.
    Back,
    Open,
    Help,
    Show(Tab),
    NextTab,
    /// By so many rows, down where positive.
    Move(isize),
    First,
    Last,
    NextOrder,
    Pause,
    LookNow,
    Slower,
    Faster,
    EditFilter,
    Type(char),
    Erase,
    /// On this column and row of the terminal.
    Click(u16, u16),
    /// What is on the terminal may be another program's.
    Repaint,
    Redraw,
}

/// Rows of a page key.
const PAGE: isize = 10;
/// Rows of a turn of the wheel.
const WHEEL: isize = 3;

/// Keys and what they do, for the help.
pub const HELP: [(&str, &str); 13] = [
    ("q, Ctrl-C", "quit"),
    ("1 2 3 4, Tab", "tasks, services, map of nodes, devices"),
    ("arrows, j k, PgUp PgDn", "select a row, scroll; Home, End"),
    ("Enter", "details of the task: memory, threads, remedy"),
    ("Esc", "back"),
    ("/", "only tasks with a text in their name"),
    ("s", "next order: cost cpu memory remote pid name"),
    ("p, space", "pause: keep the last look"),
    ("r", "look now"),
    ("+, -", "look twice as often, half as often"),
    ("Ctrl-Z", "stop; the shell's fg goes on"),
    ("?, h", "this help"),
    ("mouse", "click a row or a tab; the wheel scrolls"),
];

/// `None` for what means nothing.
pub fn action(event: &Event, mode: &Mode) -> Option<Action> {
    match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => pressed(key, mode),
        Event::Mouse(mouse) => match mouse.kind {
            MouseEventKind::ScrollDown => Some(Action::Move(WHEEL)),
            MouseEventKind::ScrollUp => Some(Action::Move(-WHEEL)),
            MouseEventKind::Down(MouseButton::Left) => Some(Action::Click(mouse.column, mouse.row)),
            _ => None,
        },
        Event::Resize(..) => Some(Action::Redraw),
        _ => None,
    }
}

fn pressed(key: &KeyEvent, mode: &Mode) -> Option<Action> {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c') => Some(Action::Quit),
            KeyCode::Char('z') => Some(Action::Suspend),
            KeyCode::Char('l') => Some(Action::Repaint),
            _ => None,
        };
    }
    if *mode == Mode::Filter {
        return match key.code {
            KeyCode::Char(character) => Some(Action::Type(character)),
            KeyCode::Backspace => Some(Action::Erase),
            KeyCode::Enter => Some(Action::Open),
            KeyCode::Esc => Some(Action::Back),
            _ => None,
        };
    }
    Some(match key.code {
        KeyCode::Char('q') => Action::Quit,
        KeyCode::Char('?' | 'h') | KeyCode::F(1) => Action::Help,
        KeyCode::Char('1') => Action::Show(Tab::Tasks),
        KeyCode::Char('2') => Action::Show(Tab::Services),
        KeyCode::Char('3') => Action::Show(Tab::Map),
        KeyCode::Char('4') => Action::Show(Tab::Devices),
        KeyCode::Tab => Action::NextTab,
        KeyCode::Down | KeyCode::Char('j') => Action::Move(1),
        KeyCode::Up | KeyCode::Char('k') => Action::Move(-1),
        KeyCode::PageDown => Action::Move(PAGE),
        KeyCode::PageUp => Action::Move(-PAGE),
        KeyCode::Home => Action::First,
        KeyCode::End => Action::Last,
        KeyCode::Enter => Action::Open,
        KeyCode::Esc => Action::Back,
        KeyCode::Char('s') => Action::NextOrder,
        KeyCode::Char('p' | ' ') => Action::Pause,
        KeyCode::Char('r') => Action::LookNow,
        KeyCode::Char('+') => Action::Faster,
        KeyCode::Char('-') => Action::Slower,
        KeyCode::Char('/') => Action::EditFilter,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(code: KeyCode, modifiers: KeyModifiers) -> Event {
        Event::Key(KeyEvent::new(code, modifiers))
    }

    #[test]
    fn letters_are_text_while_a_filter_is_typed_and_ctrl_c_always_quits() {
        let q = key(KeyCode::Char('q'), KeyModifiers::NONE);
        assert_eq!(action(&q, &Mode::Browse), Some(Action::Quit));
        assert_eq!(action(&q, &Mode::Filter), Some(Action::Type('q')));
        let ctrl_c = key(KeyCode::Char('c'), KeyModifiers::CONTROL);
        for mode in [Mode::Browse, Mode::Filter, Mode::Help, Mode::Details(1)] {
            assert_eq!(action(&ctrl_c, &mode), Some(Action::Quit));
        }
    }
}

//! What the screen shows: tab, order, filter, selection.

use std::time::Duration;

use nearfar_placement::tasks::{Filter, TaskPlacement};
use ratatui::layout::Rect;

use super::keys::Action;
use super::order::Order;

const MIN_INTERVAL: Duration = Duration::from_millis(100);
const MAX_INTERVAL: Duration = Duration::from_secs(3600);
/// Longer names of tasks do not exist (TASK_COMM_LEN of include/linux/sched.h), names of others neither.
const MAX_FILTER_CHARACTERS: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tab {
    Tasks,
    Services,
    Map,
    Devices,
}

impl Tab {
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Tasks, "1 Tasks"),
        (Self::Services, "2 Services"),
        (Self::Map, "3 Map"),
        (Self::Devices, "4 Devices"),
    ];

    fn next(self) -> Self {
        let at = Self::ALL.iter().position(|(tab, _)| *tab == self);
        Self::ALL[(at.unwrap_or(0) + 1) % Self::ALL.len()].0
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Browse,
    /// A text is typed.
    Filter,
    Help,
    /// Of this process.
    Details(i32),
}

/// What the caller has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    Draw,
    Repaint,
    Look,
    Suspend,
    Quit,
}

/// Where the last drawing has what can be clicked.
#[derive(Clone, Default, Debug)]
pub struct Areas {
    pub tabs: Vec<(Rect, usize)>,
    /// The rows of the table, and which is the first.
    pub rows: Rect,
    pub first_row: usize,
}

pub struct State {
    pub tab: Tab,
    pub mode: Mode,
    pub order: Order,
    pub filter: Filter,
    pub interval: Duration,
    /// Until the next look; longer than the interval where looks cost much.
    pub rest: Duration,
    pub is_paused: bool,
    /// The selected row.
    pub row: usize,
    /// The process of that row: it stays selected where it moves to another row.
    pub pid: Option<i32>,
    /// Lines that are scrolled out above details and help.
    pub scrolled: usize,
    pub areas: Areas,
}

impl State {
    pub fn new(filter: Filter, order: Order, interval: Duration) -> Self {
        Self {
            tab: Tab::Tasks,
            mode: Mode::Browse,
            order,
            filter,
            interval,
            rest: interval,
            is_paused: false,
            row: 0,
            pid: None,
            scrolled: 0,
            areas: Areas::default(),
        }
    }

    pub fn apply(&mut self, action: Action, tasks: &[TaskPlacement]) -> Next {
        match action {
            Action::Quit => return Next::Quit,
            Action::Suspend => return Next::Suspend,
            Action::LookNow => return Next::Look,
            Action::Repaint => return Next::Repaint,
            Action::Redraw => {}
            Action::Help => self.enter(Mode::Help),
            Action::Back => self.back(),
            Action::Open => self.open(tasks),
            Action::Show(tab) => self.show(tab),
            Action::NextTab => self.show(self.tab.next()),
            Action::Move(rows) => self.scroll(rows, tasks),
            Action::First => self.scroll(isize::MIN, tasks),
            Action::Last => self.scroll(isize::MAX, tasks),
            Action::NextOrder => self.order = self.order.next(),
            Action::Pause => self.is_paused = !self.is_paused,
            Action::Slower => self.interval = (self.interval * 2).min(MAX_INTERVAL),
            Action::Faster => self.interval = (self.interval / 2).max(MIN_INTERVAL),
            Action::EditFilter => self.enter(Mode::Filter),
            Action::Type(_) | Action::Erase => self.edit(action),
            Action::Click(column, row) => self.click(column, row, tasks),
        }
        Next::Draw
    }

    /// Puts the selection on the row where the selected process is now, or on the last row there is.
    pub fn follow(&mut self, tasks: &[TaskPlacement], rows: usize) {
        if self.tab == Tab::Tasks {
            let found = tasks.iter().position(|task| Some(task.pid) == self.pid);
            self.row = found.unwrap_or(self.row);
        }
        self.row = self.row.min(rows.saturating_sub(1));
    }

    fn enter(&mut self, mode: Mode) {
        self.mode = mode;
        self.scrolled = 0;
    }

    fn back(&mut self) {
        if self.mode == Mode::Filter {
            self.filter.name = None;
        }
        self.enter(Mode::Browse);
    }

    fn open(&mut self, tasks: &[TaskPlacement]) {
        let selected = self.pid.or(tasks.get(self.row).map(|task| task.pid));
        match (self.mode, self.tab, selected) {
            (Mode::Browse, Tab::Tasks, Some(pid)) => self.enter(Mode::Details(pid)),
            (Mode::Browse, ..) => {}
            _ => self.enter(Mode::Browse),
        }
    }

    fn show(&mut self, tab: Tab) {
        self.tab = tab;
        self.row = 0;
        self.enter(Mode::Browse);
    }

    fn scroll(&mut self, rows: isize, tasks: &[TaskPlacement]) {
        match self.mode {
            Mode::Browse | Mode::Filter => {
                self.row = self.row.saturating_add_signed(rows);
                if self.tab == Tab::Tasks {
                    self.row = self.row.min(tasks.len().saturating_sub(1));
                    self.pid = tasks.get(self.row).map(|task| task.pid);
                }
            }
            // The drawing keeps it within the lines there are.
            Mode::Help | Mode::Details(_) => {
                self.scrolled = self.scrolled.saturating_add_signed(rows);
            }
        }
    }

    fn edit(&mut self, action: Action) {
        let text = self.filter.name.get_or_insert_default();
        match action {
            Action::Type(character) if text.chars().count() < MAX_FILTER_CHARACTERS => {
                text.push(character);
            }
            Action::Erase => drop(text.pop()),
            _ => {}
        }
        if text.is_empty() {
            self.filter.name = None;
        }
    }

    fn click(&mut self, column: u16, row: u16, tasks: &[TaskPlacement]) {
        let is_in = |area: &Rect| area.contains((column, row).into());
        let tab = self.areas.tabs.iter().find(|(area, _)| is_in(area));
        if let Some((_, index)) = tab {
            self.show(Tab::ALL[*index].0);
        } else if self.mode == Mode::Browse && is_in(&self.areas.rows) {
            let clicked = self.areas.first_row + usize::from(row - self.areas.rows.y);
            let was = self.row;
            self.row = clicked;
            self.scroll(0, tasks);
            if clicked == was {
                self.open(tasks);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        State::new(Filter::default(), Order::Cost, Duration::from_secs(1))
    }

    #[test]
    fn a_text_is_typed_erased_and_left() {
        let mut state = state();
        for action in [
            Action::EditFilter,
            Action::Type('a'),
            Action::Type('b'),
            Action::Erase,
        ] {
            state.apply(action, &[]);
        }
        assert_eq!(state.filter.name.as_deref(), Some("a"));
        state.apply(Action::Open, &[]);
        assert_eq!(
            (state.mode, state.filter.name.as_deref()),
            (Mode::Browse, Some("a"))
        );
        state.apply(Action::EditFilter, &[]);
        state.apply(Action::Back, &[]);
        assert_eq!((state.mode, state.filter.name), (Mode::Browse, None));
    }

    #[test]
    fn intervals_stay_within_their_bounds_and_tabs_follow_each_other() {
        let mut state = state();
        for _ in 0..40 {
            state.apply(Action::Slower, &[]);
        }
        assert_eq!(state.interval, MAX_INTERVAL);
        for _ in 0..40 {
            state.apply(Action::Faster, &[]);
        }
        assert_eq!(state.interval, MIN_INTERVAL);
        let tabs = [(); 4].map(|()| {
            state.apply(Action::NextTab, &[]);
            state.tab
        });
        assert_eq!(tabs, [Tab::Services, Tab::Map, Tab::Devices, Tab::Tasks]);
    }

    #[test]
    fn a_selection_stays_within_the_rows() {
        let mut state = state();
        state.apply(Action::Last, &[]);
        assert_eq!((state.row, state.pid), (0, None));
        state.row = 7;
        state.follow(&[], 3);
        assert_eq!(state.row, 2);
        state.apply(Action::Open, &[]);
        assert_eq!(state.mode, Mode::Browse);
    }
}

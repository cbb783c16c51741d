//! `nearfar top`: what the running system does, look by look.
//!
//! ```text
//! LiveMachine ──look──► Look, Tasks ──► report::top ──┬─► screen (state: view, order, filter, selection; keys change it)
//!                                                      └─► --batch: a document or a JSON line a look
//! ```

mod screen;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use crossterm::event::{
    Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEventKind,
};
use nearfar_live::{LiveMachine, Look, Options};
use nearfar_machine::Machine;
use nearfar_placement::tasks::{self, Filter, NodePair, TaskPlacement, Tasks, UnknownMemory};
use nearfar_report::top::View;
use ratatui::layout::Rect;
use rustix::stdio::stdout;
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::args::TaskFilterArgs;
use crate::args::{Colour, Format, FormatArgs, seconds};
use crate::failure::{Failure, Outcome, input};
use crate::recorded::stored_latencies;
use crate::{output, signals};

const SCHEMA: &str = "top/1";
/// Between two looks at the flags of signals and the keys.
const MAX_WAIT: Duration = Duration::from_millis(200);

/// Watch tasks, nodes and interrupts live
///
/// Reads, and changes nothing. Looking takes at most 1.5 % of a CPU: on large machines looks become rarer than asked for.
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar top\n  nearfar top --name postgres --sort memory\n  \
                             nearfar top --batch --count 2\n  nearfar top --batch --format json --seconds 5"
)]
pub struct Top {
    #[command(flatten)]
    filter: TaskFilterArgs,
    /// Look again after this long
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    seconds: f64,
    /// Put tasks in this order
    #[arg(long, value_enum, value_name = "KEY", default_value_t = Order::Cost)]
    sort: Order,
    /// Print each look instead of drawing it: for logs and pipes
    #[arg(long)]
    batch: bool,
    /// End after this many looks
    #[arg(long, value_name = "LOOKS", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Print at most this many tasks of each look; 0 for all
    #[arg(long, value_name = "ROWS", default_value_t = 20, requires = "batch")]
    limit: usize,
    #[command(flatten)]
    format: FormatArgs,
}

/// One look as JSON.
#[derive(Serialize)]
struct TopAnswer<'a> {
    #[serde(flatten)]
    look: &'a Look,
    node_pairs: Vec<NodePair>,
    min_bytes: u64,
    tasks: &'a [TaskPlacement],
    unknown: &'a [UnknownMemory],
}

/// One look with its tasks.
struct Shown {
    look: Look,
    tasks: Tasks,
}

impl Shown {
    fn view<'a>(&'a self, machine: &'a Machine) -> View<'a> {
        View {
            machine,
            look: &self.look,
            tasks: &self.tasks,
        }
    }
}

impl Top {
    /// Draws or prints look after look, until it is ended.
    pub fn run(self, colour: Colour) -> Outcome {
        if !self.batch && self.format.format == Format::Json {
            return Err(input!(
                "--format json needs --batch: a screen has no format"
            ));
        }
        if !self.batch && !rustix::termios::isatty(stdout()) {
            return Err(input!(
                "standard output is not a terminal; --batch prints each look"
            ));
        }
        // Only this name says that a terminal cannot place text (terminfo(5)); crossterm asks for no more.
        if !self.batch && std::env::var_os("TERM").is_some_and(|name| name == "dumb") {
            return Err(input!(
                "cannot draw on a terminal of type dumb (TERM); --batch prints each look"
            ));
        }
        let ended = signals::flag_of(&[SIGINT, SIGTERM, SIGHUP, SIGQUIT]);
        let options = Options {
            min_bytes: self.filter.min_bytes(),
            pids: self.filter.pid.clone(),
            migrations: true,
            timing: stored_latencies(),
        };
        let mut live = LiveMachine::new(options).map_err(Failure::input)?;
        let filter = self.filter.filter(live.machine(), true)?;
        match self.batch {
            true => self.print(&mut live, &filter, &ended, colour),
            false => screen::run(&self, &mut live, filter, &ended, colour),
        }
    }

    fn interval(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// Looks, and leaves the tasks that were asked for in their order.
    fn look(
        &self,
        live: &mut LiveMachine,
        filter: &Filter,
        order: Order,
    ) -> Result<Shown, Failure> {
        let look = live.look().map_err(Failure::input)?;
        let tasks = self.tasks(live, &look, filter, order);
        Ok(Shown { look, tasks })
    }

    /// The tasks of a look that were asked for, in their order.
    fn tasks(&self, live: &LiveMachine, look: &Look, filter: &Filter, order: Order) -> Tasks {
        let mut tasks = live.tasks(look, filter);
        if !self.filter.pid.is_empty() {
            tasks
                .tasks
                .retain(|task| self.filter.pid.contains(&task.pid));
        }
        order.sort(&mut tasks.tasks);
        tasks
    }

    fn print(
        &self,
        live: &mut LiveMachine,
        filter: &Filter,
        ended: &AtomicBool,
        colour: Colour,
    ) -> Outcome {
        // The first look only says where counters stand.
        self.look(live, filter, self.sort)?;
        self.check(live)?;
        let mut printed = 0;
        while self.count.is_none_or(|count| printed < count) {
            if !rest(live.rest(self.interval()), ended) {
                break;
            }
            let shown = self.look(live, filter, self.sort)?;
            output::print(&self.text(&shown, live.machine(), colour)?)?;
            printed += 1;
        }
        Ok(())
    }

    fn text(&self, shown: &Shown, machine: &Machine, colour: Colour) -> Result<String, Failure> {
        if self.format.format == Format::Json {
            let answer = TopAnswer {
                look: &shown.look,
                node_pairs: tasks::by_node_pair(&shown.tasks),
                min_bytes: shown.tasks.min_bytes,
                tasks: &shown.tasks.tasks,
                unknown: &shown.tasks.unknown,
            };
            return output::json_line(SCHEMA, Some(&machine.origin), &answer);
        }
        let rows = match self.limit {
            0 => usize::MAX,
            rows => rows,
        };
        let document = shown.view(machine).document(rows);
        Ok(format!("{}\n", document.to_text(&output::style(colour))))
    }

    /// A process or group that is not there is a target that does not exist.
    fn check(&self, live: &LiveMachine) -> Outcome {
        let machine = live.machine();
        let known = machine.tasks.get().into_iter().flatten();
        let known: Vec<i32> = known.map(|task| task.pid).collect();
        if let Some(missing) = self.filter.pid.iter().find(|pid| !known.contains(pid)) {
            return Err(input!(
                "there is no process {missing}, or none that this user can see (ps -e lists those)"
            ));
        }
        self.filter.check_group(machine)
    }
}

/// Waits; returns whether the time passed without a signal.
fn rest(time: Duration, ended: &AtomicBool) -> bool {
    let until = Instant::now() + time;
    while !ended.load(Ordering::Relaxed) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(MAX_WAIT));
    }
    false
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Order {
    /// CPU time lost to far memory at most, the most first
    Cost,
    /// CPU time, the most first
    Cpu,
    /// Memory, the most first
    Memory,
    /// Remote share, the largest first
    Remote,
    /// Process number
    Pid,
    /// Name
    Name,
}

impl Order {
    /// As --sort has it.
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn next(self) -> Self {
        let all = Self::value_variants();
        let at = all.iter().position(|it| *it == self).unwrap_or(0);
        all[(at + 1) % all.len()]
    }

    /// Sorts; equal tasks stay as [`nearfar_placement::tasks::tasks`] has them.
    fn sort(self, tasks: &mut [TaskPlacement]) {
        let cost = |task: &TaskPlacement| task.at.remote.get().and_then(|it| it.cost_s);
        let remote = |task: &TaskPlacement| task.at.remote.get().map(|it| it.share);
        let descending = |a: Option<f64>, b: Option<f64>| {
            let (a, b) = (a.unwrap_or(-1.0), b.unwrap_or(-1.0));
            b.total_cmp(&a)
        };
        match self {
            Self::Cost => tasks.sort_by(|a, b| descending(cost(a), cost(b))),
            Self::Cpu => {
                let cpu = |task: &TaskPlacement| task.at.cpu_s.get().copied();
                tasks.sort_by(|a, b| descending(cpu(a), cpu(b)));
            }
            Self::Memory => tasks.sort_by_key(|task| std::cmp::Reverse(task.at.memory_bytes())),
            Self::Remote => tasks.sort_by(|a, b| descending(remote(a), remote(b))),
            Self::Pid => tasks.sort_by_key(|task| task.pid),
            Self::Name => tasks.sort_by(|a, b| a.name.cmp(&b.name)),
        }
    }
}

const MIN_INTERVAL: Duration = Duration::from_millis(100);
const MAX_INTERVAL: Duration = Duration::from_secs(3600);
/// Longer names of tasks do not exist (TASK_COMM_LEN of include/linux/sched.h), names of others neither.
const MAX_FILTER_CHARACTERS: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tab {
    Tasks,
    Services,
    Map,
    Devices,
}

impl Tab {
    const ALL: [(Self, &'static str); 4] = [
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
enum Mode {
    Browse,
    /// A text is typed.
    Filter,
    Help,
    /// Of this process.
    Details(i32),
}

/// What the caller has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    Draw,
    Repaint,
    Look,
    Suspend,
    Quit,
}

/// Where the last drawing has what can be clicked.
#[derive(Clone, Default, Debug)]
struct Areas {
    tabs: Vec<(Rect, usize)>,
    /// The rows of the table, and which is the first.
    rows: Rect,
    first_row: usize,
}

struct State {
    tab: Tab,
    mode: Mode,
    order: Order,
    filter: Filter,
    interval: Duration,
    /// Until the next look; longer than the interval where looks cost much.
    rest: Duration,
    is_paused: bool,
    /// The selected row.
    row: usize,
    /// The process of that row: it stays selected where it moves to another row.
    pid: Option<i32>,
    /// Lines that are scrolled out above details and help.
    scrolled: usize,
    areas: Areas,
}

impl State {
    fn new(filter: Filter, order: Order, interval: Duration) -> Self {
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

    fn apply(&mut self, action: Action, tasks: &[TaskPlacement]) -> Next {
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
    fn follow(&mut self, tasks: &[TaskPlacement], rows: usize) {
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

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
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
const HELP: [(&str, &str); 13] = [
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
fn action(event: &Event, mode: &Mode) -> Option<Action> {
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

//! The screen: drawn after each look and each key.
//!
//! ```text
//! nearfar top   host                         time, interval
//! summary
//! nodes                                      map, where there is room
//! tabs
//! tasks, services, map, devices; details and help in their place
//! keys
//! ```

use std::io::{self, Stdout};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossterm::cursor::Show;
use crossterm::event::{self, DisableMouseCapture, EnableMouseCapture};
use crossterm::execute;
use crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use nearfar_live::LiveMachine;
use nearfar_placement::tasks::{Filter, by_group};
use nearfar_report::document::{Align, Table, Text};
use nearfar_report::top::View;
use nearfar_report::{Role, Style as ReportStyle, bytes};
use ratatui::Frame;
use ratatui::backend::CrosstermBackend;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};
use rustix::process::Signal;
use signal_hook::consts::SIGTSTP;

use super::{Areas, HELP, MAX_WAIT, Mode, Next, Shown, State, Tab, Top, action};
use crate::args::Colour;
use crate::failure::{Failure, Outcome};
use crate::{output, signals};

/// Nothing useful fits into less.
const MIN_COLUMNS: u16 = 40;
const MIN_LINES: u16 = 10;
const MAX_SUMMARY_LINES: usize = 4;
/// From so many columns the map stands next to the nodes.
const WIDE: u16 = 150;
/// Columns of the table of nodes.
const NODES_COLUMNS: u16 = 96;
/// The part of the lines that nodes may take, one of so many.
const NODES_PART: u16 = 3;
const MIN_WAIT: Duration = Duration::from_millis(1);
const KEYS: &str = "q quit  ? help  / filter  s order  Enter details  Tab view  p pause";

/// Draws until it is ended.
pub fn run(
    top: &Top,
    live: &mut LiveMachine,
    filter: Filter,
    ended: &AtomicBool,
    colour: Colour,
) -> Outcome {
    // Messages about what was asked for belong before the screen.
    top.look(live, &filter, top.sort)?;
    top.check(live)?;
    let stopped = signals::flag_of(&[SIGTSTP]);
    let mut terminal = Terminal::enter().map_err(refused)?;
    let look = Look {
        has_colour: output::style(colour).colour,
    };
    let mut state = State::new(filter, top.sort, top.interval());
    let mut shown = top.look(live, &state.filter, state.order)?;
    let (mut last, mut looks) = (Instant::now(), 0);
    while !ended.load(Ordering::Relaxed) {
        let view = shown.view(live.machine());
        state.rest = live.rest(state.interval);
        let drawn = terminal
            .screen
            .draw(|frame| draw(frame, &view, &mut state, look));
        drawn.map_err(refused)?;
        match wait(live, &shown, &mut state, (last, ended, &stopped))? {
            Next::Quit => break,
            Next::Repaint => terminal.repaint().map_err(refused)?,
            Next::Suspend => terminal.suspend().map_err(refused)?,
            // The same look, maybe with another filter or order.
            Next::Draw => shown.tasks = top.tasks(live, &shown.look, &state.filter, state.order),
            Next::Look => {
                if top.count.is_some_and(|count| looks >= count) {
                    break;
                }
                shown = top.look(live, &state.filter, state.order)?;
                (last, looks) = (Instant::now(), looks + 1);
            }
        }
    }
    Ok(())
}

/// Waits for a key, a signal, or the next look.
fn wait(
    live: &LiveMachine,
    shown: &Shown,
    state: &mut State,
    (last, ended, stopped): (Instant, &AtomicBool, &AtomicBool),
) -> Result<Next, Failure> {
    loop {
        if ended.load(Ordering::Relaxed) {
            return Ok(Next::Quit);
        }
        if stopped.swap(false, Ordering::Relaxed) {
            return Ok(Next::Suspend);
        }
        let left = live.rest(state.interval).saturating_sub(last.elapsed());
        let is_due = left.is_zero() && !state.is_paused;
        let wait = match state.is_paused {
            true => MAX_WAIT,
            // crossterm does not look for keys in no time at all.
            false => left.clamp(MIN_WAIT, MAX_WAIT),
        };
        // Keys first: on a busy machine a look is always due.
        if event::poll(wait).map_err(refused)? {
            let event = event::read().map_err(refused)?;
            if let Some(action) = action(&event, &state.mode) {
                return Ok(state.apply(action, &shown.tasks.tasks));
            }
        } else if is_due {
            return Ok(Next::Look);
        }
    }
}

fn refused(error: io::Error) -> Failure {
    Failure::Refused(anyhow::Error::new(error).context("cannot use the terminal"))
}

fn draw(frame: &mut Frame<'_>, view: &View<'_>, state: &mut State, look: Look) {
    let area = frame.area();
    if area.width < MIN_COLUMNS || area.height < MIN_LINES {
        let text = format!("{MIN_COLUMNS} columns and {MIN_LINES} lines are needed; q quits");
        let text = Paragraph::new(text).wrap(Wrap { trim: true });
        frame.render_widget(text, area);
        return;
    }
    let summary = view.summary();
    let nodes = table_lines(&view.nodes(), usize::from(area.width), None, look);
    let most = usize::from(area.height / NODES_PART).max(2);
    let node_lines = (1 + nodes.1.len()).min(most);
    // The help takes all lines.
    let [summary_lines, node_lines, tab_lines] = match state.mode {
        Mode::Help => [0; 3],
        _ => [summary.len().min(MAX_SUMMARY_LINES), node_lines, 1],
    };
    let length = |lines: usize| Constraint::Length(lines as u16);
    let [title, summary_area, nodes_area, tabs, body, keys] = Layout::vertical([
        length(1),
        length(summary_lines),
        length(node_lines),
        length(tab_lines),
        Constraint::Min(1),
        length(1),
    ])
    .areas(area);
    state.areas = Areas::default();
    draw_title(frame, title, view, state, look);
    let summary: Vec<Line<'_>> = summary.iter().map(|line| look.line(line)).collect();
    frame.render_widget(Paragraph::new(summary), summary_area);
    draw_nodes(frame, nodes_area, view, look);
    draw_tabs(frame, tabs, state, look);
    match state.mode {
        Mode::Help => draw_lines(frame, body, help(look), state),
        Mode::Details(pid) => {
            let lines = details(view, pid, body.width);
            draw_lines(frame, body, lines, state);
        }
        Mode::Browse | Mode::Filter => draw_table(frame, body, view, state, look),
    }
    let text = match (&state.mode, &state.filter.name) {
        (Mode::Filter, name) => format!(
            "tasks with this in their name: {}_   Enter keeps it, Esc ends it",
            name.as_deref().unwrap_or_default()
        ),
        (Mode::Details(_) | Mode::Help, _) => "Esc back  arrows scroll  q quit".to_owned(),
        (Mode::Browse, _) => KEYS.to_owned(),
    };
    let keys_line = Line::styled(text, look.style(Role::Dim));
    frame.render_widget(Paragraph::new(keys_line), keys);
}

fn draw_title(frame: &mut Frame<'_>, area: Rect, view: &View<'_>, state: &State, look: Look) {
    let origin = &view.machine.origin;
    let place = origin.host.as_ref().unwrap_or(&origin.place);
    let interval = state.interval.as_secs_f64();
    // Looks are rarer than asked for where they cost much.
    let rest = match state.rest > state.interval {
        true => format!(" (now {:.1} s)", state.rest.as_secs_f64()),
        false => String::new(),
    };
    let paused = if state.is_paused { "  paused" } else { "" };
    let right = format!("{}  every {interval} s{rest}{paused}", view.time());
    let left = format!("nearfar top  {place}");
    let width = usize::from(area.width);
    let free = width.saturating_sub(left.chars().count() + right.chars().count());
    let text = format!("{left}{}{right}", " ".repeat(free.max(1)));
    let style = look.style(Role::Heading).add_modifier(Modifier::REVERSED);
    frame.render_widget(Paragraph::new(Line::styled(text, style)), area);
}

/// The map stands next to the nodes where both fit.
fn draw_nodes(frame: &mut Frame<'_>, area: Rect, view: &View<'_>, look: Look) {
    let whole = |table: &Table, area: Rect| {
        let (head, rows) = table_lines(table, usize::from(area.width), None, look);
        let lines = [vec![head], rows].concat();
        Paragraph::new(lines)
    };
    if area.width < WIDE {
        frame.render_widget(whole(&view.nodes(), area), area);
        return;
    }
    let halves = [Constraint::Length(NODES_COLUMNS), Constraint::Min(1)];
    let [left, right] = Layout::horizontal(halves).areas(area);
    frame.render_widget(whole(&view.nodes(), left), left);
    frame.render_widget(whole(&view.map(), right), right);
}

fn draw_tabs(frame: &mut Frame<'_>, area: Rect, state: &mut State, look: Look) {
    let mut spans = Vec::new();
    let mut x = area.x;
    for (index, (tab, name)) in Tab::ALL.iter().enumerate() {
        let is_shown = *tab == state.tab;
        // Brackets as well: reverse video is not on each terminal.
        let text = if is_shown {
            format!("[{name}]")
        } else {
            format!(" {name} ")
        };
        let style = match is_shown {
            true => Style::default().add_modifier(Modifier::BOLD | Modifier::REVERSED),
            false => Style::default(),
        };
        let width = text.len() as u16;
        let place = Rect::new(x, area.y, width, 1).intersection(area);
        state.areas.tabs.push((place, index));
        x = x.saturating_add(width);
        spans.push(Span::styled(text, style));
    }
    let shown = match state.tab {
        Tab::Devices => String::new(),
        _ => format!("  {}", about_tasks(state)),
    };
    spans.push(Span::styled(shown, look.style(Role::Dim)));
    frame.render_widget(Paragraph::new(Line::from(spans)), area);
}

/// Which tasks are shown or in sums, and in which order.
fn about_tasks(state: &State) -> String {
    let order = (state.tab == Tab::Tasks).then(|| format!("by {}", state.order.name()));
    let least = state.filter.min_bytes;
    let size = (least > 0).then(|| format!("tasks from {}", bytes(least)));
    let name = state.filter.name.as_ref();
    let name = name.map(|name| format!("name has {name:?}"));
    let parts: Vec<String> = [order, size, name].into_iter().flatten().collect();
    parts.join(", ")
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, view: &View<'_>, state: &mut State, look: Look) {
    let tables = match state.tab {
        Tab::Tasks => vec![view.tasks(&view.tasks.tasks)],
        Tab::Services => vec![view.groups(&by_group(view.tasks))],
        Tab::Map => vec![view.map()],
        Tab::Devices => vec![view.devices(), view.nvme_paths()],
    };
    let rows: usize = tables.iter().map(|table| table.rows().len()).sum();
    if rows == 0 {
        let text = Line::styled(empty(view, state.tab), look.style(Role::Dim));
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    state.follow(&view.tasks.tasks, rows);
    let is_selectable = state.tab == Tab::Tasks;
    let selected = is_selectable.then_some(state.row);
    let width = usize::from(area.width);
    let mut lines: Vec<Line<'_>> = Vec::new();
    let (head, first) = table_lines(&tables[0], width, selected, look);
    lines.extend(first);
    for table in tables[1..].iter().filter(|table| !table.is_empty()) {
        let (head, rows) = table_lines(table, width, None, look);
        lines.extend([vec![Line::default(), head], rows].concat());
    }
    if state.tab == Tab::Map {
        let about = [
            "",
            " CPU time by where its memory is, in percent of a CPU,",
            " if each task uses its pages alike",
        ];
        lines.extend(about.map(|text| Line::styled(text, look.style(Role::Dim))));
    }
    let visible = usize::from(area.height.saturating_sub(1));
    let first = match is_selectable {
        true => state.row.saturating_sub(visible.saturating_sub(1)),
        false => state.row.min(lines.len().saturating_sub(visible)),
    };
    let body = Rect {
        y: area.y + 1,
        height: area.height.saturating_sub(1),
        ..area
    };
    state.areas.rows = if is_selectable { body } else { Rect::default() };
    state.areas.first_row = first;
    frame.render_widget(Paragraph::new(head), Rect { height: 1, ..area });
    let lines: Vec<Line<'_>> = lines.into_iter().skip(first).take(visible).collect();
    frame.render_widget(Paragraph::new(lines), body);
}

fn empty(view: &View<'_>, tab: Tab) -> String {
    match (tab, view.look.devices.unknown_reason()) {
        (Tab::Devices, Some(reason)) => format!(" unknown: {reason}"),
        (Tab::Devices, None) => " no interrupt of a PCI device fired".to_owned(),
        _ => " no task matches".to_owned(),
    }
}

fn details(view: &View<'_>, pid: i32, width: u16) -> Vec<Line<'static>> {
    let task = view.tasks.tasks.iter().find(|task| task.pid == pid);
    let Some(task) = task else {
        let text = format!(" process {pid} has ended, or the filter leaves it out");
        return vec![Line::from(text)];
    };
    let style = ReportStyle {
        colour: false,
        width: usize::from(width),
    };
    let text = view.details(task).to_text(&style);
    text.lines()
        .map(|line| Line::from(line.to_owned()))
        .collect()
}

fn help(look: Look) -> Vec<Line<'static>> {
    let keys = HELP.iter().map(|(key, what)| {
        Line::from(vec![
            Span::styled(format!(" {key:<24}"), look.style(Role::Subject)),
            Span::raw(*what),
        ])
    });
    let notes = [
        "",
        " runs on  CPU time of the last seconds    is on  where its memory is",
        " remote   share of accesses to other nodes if all pages are used alike",
        " cost %   CPU time lost at most, if the task only waits for memory",
        " alloc/s  pages allocated on the node      other/s  by tasks on other nodes",
        " miss/s   wanted on another node           foreign/s  got another node",
        " node migrations/s  tasks moved to another node; 3+ where not all are seen",
    ];
    keys.chain(notes.map(Line::from)).collect()
}

/// Lines that scroll, within what there is.
fn draw_lines(frame: &mut Frame<'_>, area: Rect, lines: Vec<Line<'static>>, state: &mut State) {
    let most = lines.len().saturating_sub(usize::from(area.height));
    state.scrolled = state.scrolled.min(most);
    let lines: Vec<Line<'_>> = lines.into_iter().skip(state.scrolled).collect();
    frame.render_widget(Paragraph::new(lines), area);
}

const GAP: usize = 2;
/// Text columns are not made narrower than this.
const MIN_TEXT: usize = 8;
/// The same for the first of them, which has names.
const MIN_NAME: usize = 16;
/// What stands before the selected row: colour alone says nothing to many.
const MARK: &str = ">";

/// How roles look.
#[derive(Clone, Copy)]
struct Look {
    has_colour: bool,
}

impl Look {
    fn style(self, role: Role) -> Style {
        let style = Style::default();
        let colour = |colour| match self.has_colour {
            true => style.fg(colour),
            false => style,
        };
        match role {
            Role::Plain | Role::Code | Role::Value => style,
            Role::Heading => style.add_modifier(Modifier::BOLD),
            Role::Dim => style.add_modifier(Modifier::DIM),
            Role::Subject => colour(Color::Cyan),
            Role::Local | Role::Near => colour(Color::Green),
            Role::Middling => colour(Color::Yellow),
            Role::Far => colour(Color::Red).add_modifier(Modifier::BOLD),
            Role::Notice => colour(Color::Blue),
            Role::Warning => colour(Color::Yellow),
            Role::Critical => colour(Color::Red),
        }
    }

    /// A text as a line.
    fn line(self, text: &Text) -> Line<'static> {
        Line::from_iter(self.spans(text))
    }

    fn spans(self, text: &Text) -> Vec<Span<'static>> {
        let span = |it: &nearfar_report::document::Span| {
            Span::styled(it.text.clone(), self.style(it.role))
        };
        text.spans().iter().map(span).collect()
    }
}

/// The line of headings and the rows, in `width` columns; the columns that do not fit are left out from the right.
fn table_lines(
    table: &Table,
    width: usize,
    selected: Option<usize>,
    look: Look,
) -> (Line<'static>, Vec<Line<'static>>) {
    let widths = widths(table, width.saturating_sub(MARK.len()));
    let heads = table
        .columns()
        .iter()
        .map(|(head, _)| Role::Heading.text(head));
    let heads: Vec<Text> = heads.collect();
    let row = |cells: &[Text], is_selected: bool| {
        let mark = if is_selected { MARK } else { " " };
        let mut spans = vec![Span::raw(mark)];
        for ((cell, &width), (_, align)) in cells.iter().zip(&widths).zip(table.columns()) {
            spans.extend(padded(cell, width, *align, look));
        }
        let line = Line::from(spans);
        match is_selected {
            true => line.style(Style::default().add_modifier(Modifier::REVERSED)),
            false => line,
        }
    };
    let rows = table.rows().iter().enumerate();
    let rows = rows.map(|(index, cells)| row(cells, selected == Some(index)));
    (row(&heads, false), rows.collect())
}

fn padded(cell: &Text, width: usize, align: Align, look: Look) -> Vec<Span<'static>> {
    let is_cut = cell.columns() > width;
    let first = match is_cut {
        true => cut(cell, width),
        false => cell.clone(),
    };
    let free = width.saturating_sub(first.columns());
    let (before, after) = match align {
        Align::Right => (free, GAP),
        Align::Left => (0, free + GAP),
    };
    let mut spans = vec![Span::raw(" ".repeat(before))];
    spans.extend(look.spans(&first));
    spans.push(Span::raw(" ".repeat(after)));
    spans
}

/// The begin of a text and a mark that there is more.
fn cut(text: &Text, width: usize) -> Text {
    const MORE: &str = "+";
    let mut rest = width.saturating_sub(MORE.len());
    let mut out = Text::default();
    for span in text.spans() {
        let mut part = String::new();
        for character in span.text.chars() {
            let columns = Text::from(character).columns();
            if columns > rest {
                return out.then(span.role, format!("{part}{MORE}"));
            }
            rest -= columns;
            part.push(character);
        }
        out = out.then(span.role, part);
    }
    out
}

/// The widths of the columns from the left that fit: text gets narrower before a column is left out.
fn widths(table: &Table, room: usize) -> Vec<usize> {
    let wanted = |column: usize| {
        let cells = table.rows().iter().filter_map(|row| row.get(column));
        let head = Text::from(&table.columns()[column].0).columns();
        cells.map(Text::columns).max().unwrap_or(0).max(head)
    };
    let mut widths: Vec<usize> = (0..table.columns().len()).map(wanted).collect();
    let is_text = |(_, align): &(String, Align)| *align == Align::Left;
    let names = table.columns().iter().position(is_text);
    let least = |column: usize, width: usize| match table.columns()[column].1 {
        Align::Left if Some(column) == names => width.min(MIN_NAME),
        Align::Left => width.min(MIN_TEXT),
        Align::Right => width,
    };
    let sum = |widths: &[usize]| widths.iter().map(|width| width + GAP).sum::<usize>();
    let narrowest = |widths: &[usize]| -> Vec<usize> {
        let widths = widths.iter().enumerate();
        widths
            .map(|(column, &width)| least(column, width))
            .collect()
    };
    let is_empty = |column: usize| {
        let mut cells = table.rows().iter().filter_map(|row| row.get(column));
        cells.all(Text::is_empty)
    };
    while widths.len() > 1 && !table.is_empty() && is_empty(widths.len() - 1) {
        widths.pop();
    }
    while widths.len() > 1 && sum(&narrowest(&widths)) > room + GAP {
        widths.pop();
    }
    let mut over = sum(&widths).saturating_sub(room + GAP);
    while over > 0 {
        let widest = (0..widths.len())
            .filter(|&column| widths[column] > least(column, widths[column]))
            .max_by_key(|&column| widths[column]);
        let Some(widest) = widest else { break };
        widths[widest] -= 1;
        over -= 1;
    }
    widths
}

/// A terminal that shows a screen. Leaves it when dropped, and before a panic is printed.
struct Terminal {
    screen: ratatui::Terminal<CrosstermBackend<Stdout>>,
}

impl Terminal {
    /// # Errors
    /// When standard output is not a terminal, or it is gone.
    fn enter() -> io::Result<Self> {
        leave_before_panics();
        enter()?;
        let screen = ratatui::Terminal::new(CrosstermBackend::new(io::stdout()));
        match screen {
            Ok(screen) => Ok(Self { screen }),
            Err(error) => {
                leave();
                Err(error)
            }
        }
    }

    /// Stops this process, as the shell's Ctrl-Z does, and draws all again when it goes on.
    ///
    /// # Errors
    /// When the terminal is gone.
    fn suspend(&mut self) -> io::Result<()> {
        leave();
        // SIGSTOP: a handler of SIGTSTP is what asked for this.
        rustix::process::kill_process(rustix::process::getpid(), Signal::STOP)?;
        enter()?;
        self.repaint()
    }

    /// Draws all again with the next drawing. `clear` of ratatui asks where the cursor is, which not each terminal answers.
    ///
    /// # Errors
    /// When the terminal is gone.
    fn repaint(&mut self) -> io::Result<()> {
        let size = self.screen.size()?;
        self.screen.resize(Rect::new(0, 0, size.width, size.height))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        leave();
    }
}

fn enter() -> io::Result<()> {
    enable_raw_mode()?;
    let entered = execute!(io::stdout(), EnterAlternateScreen, EnableMouseCapture);
    if entered.is_err() {
        leave();
    }
    entered
}

/// A terminal that is gone needs none of it.
fn leave() {
    // In this order: a terminal that shows the shell again takes lines again.
    let _ = disable_raw_mode();
    let _ = execute!(
        io::stdout(),
        DisableMouseCapture,
        LeaveAlternateScreen,
        Show
    );
}

/// A program that aborts on panic drops nothing.
fn leave_before_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            leave();
            before(panic);
        }));
    });
}

#[cfg(test)]
mod tests;

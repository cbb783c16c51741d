use std::time::Duration;

use crossterm::event::{Event, KeyCode, KeyEvent, KeyModifiers};
use nearfar_live::{Cost, DeviceActivity, Look as Activity, MemoryAge, NodeActivity, Numastat};
use nearfar_machine::{CpuId, CpuTime, Known, Machine, NodeBytes, NodeId, Task, Thread};
use nearfar_placement::tasks::{self, Tasks};
use nearfar_sources::{Request, Want};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::super::{Action, Order};
use super::*;

fn task(pid: i32, name: &str, cpu: u32, cpu_ms: u64, memory: [u64; 2]) -> Task {
    let nodes = (0..).zip(memory).map(|(node, mib)| NodeBytes {
        node: NodeId(node),
        bytes: mib << 20,
    });
    Task {
        cpu_ms: Known::Yes(cpu_ms),
        cpu_times: Known::Yes(vec![CpuTime {
            cpu: CpuId(cpu),
            ms: cpu_ms,
        }]),
        memory: Known::Yes(nodes.collect()),
        group: Known::Yes("/system.slice/redis.service".to_owned()),
        user: Known::Yes(999),
        threads: vec![Thread {
            tid: pid + 1,
            name: "io_thd_1".to_owned(),
            start: 7,
            last_cpu: Known::Yes(CpuId(cpu)),
            cpu_ms,
        }],
        ..Task::new(pid, name)
    }
}

/// A machine of two nodes with four CPUs each: a far task, a near one, one whose memory is unknown.
fn seen() -> (Machine, Activity, Tasks) {
    let request = Request::source("node:2 core:4 pu:1 distance:10,21", Want::all());
    let mut machine = nearfar_sources::read(&request).expect("a machine");
    let unknown = Task {
        memory: Known::no("/proc/9/numa_maps: permission denied"),
        ..task(9, "other\u{7}user", 1, 10, [0, 0])
    };
    machine.tasks = Known::Yes(vec![
        task(4711, "redis-server", 0, 900, [0, 300]),
        task(812, "postgres", 4, 400, [1, 8000]),
        unknown,
    ]);
    let node = |node: u32, busy_s: f64| NodeActivity {
        node: NodeId(node),
        cpus: 4,
        busy_s,
        total_bytes: Some(64 << 30),
        free_bytes: Some(3 << 30),
        file_bytes: None,
        allocated: Some(Numastat {
            local: 1000,
            other: 50_000,
            ..Numastat::default()
        }),
    };
    let look = Activity {
        at_s: 45_296.0,
        seconds: 1.0,
        nodes: vec![node(0, 3.9), node(1, 0.4)],
        balancing: Known::no("a kernel without NUMA balancing"),
        balancing_since: Known::no("a kernel without NUMA balancing"),
        devices: Known::Yes(vec![DeviceActivity {
            device: "0000:41:00.0".parse().expect("an address"),
            names: vec!["eth0".to_owned()],
            node: Some(NodeId(1)),
            near: 10,
            far: 990,
        }]),
        nvme_paths: Vec::new(),
        processes: 214,
        threads: 1200,
        node_changes: 3,
        node_migrations: Known::no("the kernel does not let you trace"),
        memory_ages: vec![MemoryAge {
            pid: 4711,
            seconds: 8.2,
        }],
        cost: Cost::default(),
    };
    let tasks = tasks::tasks(&machine, &Filter::default(), Some(1.0));
    (machine, look, tasks.known().expect("tasks"))
}

/// The screen after these keys.
fn screen(columns: u16, lines: u16, keys: &[KeyCode]) -> String {
    let (machine, look, tasks) = seen();
    let view = View {
        machine: &machine,
        look: &look,
        tasks: &tasks,
    };
    let mut state = State::new(Filter::default(), Order::Cost, Duration::from_secs(1));
    let backend = TestBackend::new(columns, lines);
    let mut terminal = Terminal::new(backend).expect("a screen");
    let mut redraw = |state: &mut State| {
        let look = Look { has_colour: false };
        let drawn = terminal.draw(|frame| draw(frame, &view, state, look));
        drawn.expect("a screen");
    };
    redraw(&mut state);
    for key in keys {
        let event = Event::Key(KeyEvent::new(*key, KeyModifiers::NONE));
        let action = action(&event, &state.mode).expect("a key with a meaning");
        state.apply(action, &tasks.tasks);
        redraw(&mut state);
    }
    terminal.backend().to_string()
}

#[test]
fn a_terminal_of_80_columns_has_the_tasks_with_their_cost() {
    insta::assert_snapshot!(screen(80, 24, &[]));
}

#[test]
fn a_wide_terminal_has_the_map_next_to_the_nodes() {
    insta::assert_snapshot!(screen(200, 16, &[]));
}

#[test]
fn details_help_map_services_and_devices_are_a_key_away() {
    let characters = |keys: &str| keys.chars().map(KeyCode::Char).collect::<Vec<_>>();
    let details = [KeyCode::Down, KeyCode::Up, KeyCode::Enter];
    insta::assert_snapshot!("details", screen(80, 24, &details));
    insta::assert_snapshot!("help", screen(80, 24, &characters("?")));
    insta::assert_snapshot!("services", screen(80, 14, &characters("2")));
    insta::assert_snapshot!("map", screen(80, 14, &characters("3")));
    insta::assert_snapshot!("devices", screen(80, 14, &characters("4")));
    insta::assert_snapshot!("filter", screen(80, 14, &characters("/red")));
}

#[test]
fn any_size_can_be_drawn() {
    let all = ["", "1", "2", "3", "4", "?", "/x"];
    for (columns, lines) in [
        (1, 1),
        (39, 40),
        (40, 10),
        (41, 11),
        (80, 9),
        (150, 12),
        (500, 200),
    ] {
        for keys in all {
            let keys: Vec<KeyCode> = keys.chars().map(KeyCode::Char).collect();
            let text = screen(columns, lines, &keys);
            assert!(!text.contains('\u{7}'), "{text}");
        }
    }
}

#[test]
fn a_click_selects_a_row_and_a_second_one_opens_it() {
    let (machine, look, tasks) = seen();
    let view = View {
        machine: &machine,
        look: &look,
        tasks: &tasks,
    };
    let mut state = State::new(Filter::default(), Order::Cost, Duration::from_secs(1));
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).expect("a screen");
    let mut redraw = |state: &mut State| {
        let look = Look { has_colour: true };
        let drawn = terminal.draw(|frame| draw(frame, &view, state, look));
        drawn.expect("a screen");
    };
    redraw(&mut state);
    let second = state.areas.rows.y + 1;
    let click = Action::Click(5, second);
    state.apply(click, &tasks.tasks);
    assert_eq!((state.row, state.mode), (1, Mode::Browse));
    redraw(&mut state);
    state.apply(click, &tasks.tasks);
    assert_eq!(state.mode, Mode::Details(tasks.tasks[1].pid));
    let (tab, _) = state.areas.tabs[3];
    state.apply(Action::Click(tab.x, tab.y), &tasks.tasks);
    assert_eq!((state.tab, state.mode), (Tab::Devices, Mode::Browse));
}

fn table() -> Table {
    let mut table = Table::of([">pid", "task", ">CPU %", "kept by"]);
    let cells = ["17", "a-task-of-15-by", "100.0", "affinity CPUs 0-63"];
    table.row(cells.map(Text::from));
    table
}

fn text(line: &Line<'_>) -> String {
    line.spans
        .iter()
        .map(|span| span.content.as_ref())
        .collect()
}

#[test]
fn text_gets_narrower_and_columns_that_do_not_fit_are_left_out() {
    let look = Look { has_colour: false };
    let shown = |width| {
        let (head, rows) = table_lines(&table(), width, Some(0), look);
        (
            text(&head).trim_end().to_owned(),
            text(&rows[0]).trim_end().to_owned(),
        )
    };
    assert_eq!(
        shown(80).1,
        "> 17  a-task-of-15-by  100.0  affinity CPUs 0-63"
    );
    assert_eq!(shown(40).1, "> 17  a-task-of-15-by  100.0  affinity +");
    assert_eq!(shown(24).0, " pid  task");
    assert_eq!(shown(3).0, " pid");
}

proptest::proptest! {
    #[test]
    fn no_width_panics_and_what_is_left_fits(width in 30usize..300, cell in "\\PC{0,40}") {
        let mut table = table();
        table.row(["1".to_owned(), cell.clone(), "2".to_owned(), cell].map(Text::from));
        let (_, rows) = table_lines(&table, width, None, Look { has_colour: true });
        for row in rows {
            proptest::prop_assert!(row.width() <= width + GAP);
        }
    }
}

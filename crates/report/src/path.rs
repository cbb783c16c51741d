//! Which path of an NVMe subsystem I/O takes from a CPU.

use nearfar_machine::{Known, NodeId};
use nearfar_placement::path::{NamespacePaths, PathAnswer, PathView, PolicyChoice, Standing};

use crate::layout::{Cell, Grid, Side, heading, paragraph, whole};
use crate::style::{Role, Style};

/// The paths to each namespace as seen from the CPU, and what each policy would choose and why.
pub fn table(answer: &PathAnswer, style: &Style) -> String {
    let node = answer
        .node
        .map_or_else(|| "on no node".to_owned(), |node| format!("node {node}"));
    let policy = match &answer.policy {
        Known::Yes(policy) => format!("iopolicy {policy}"),
        Known::No { unknown_reason } => format!("iopolicy unknown: {unknown_reason}"),
    };
    let mut out = heading(
        style,
        &answer.subsystem,
        &format!("from CPU {}, {node}; {policy}", answer.cpu),
    );
    if answer.namespaces.is_empty() {
        out.push_str(&paragraph(
            style,
            2,
            (Role::Plain, ""),
            Role::Plain,
            "the subsystem has no namespaces",
        ));
    }
    for namespace in &answer.namespaces {
        out.push_str(&heading(style, &namespace.namespace, ""));
        out.push_str(&views(namespace, style));
        out.push_str(&choices(&namespace.choices, style));
    }
    whole(out)
}

fn views(namespace: &NamespacePaths, style: &Style) -> String {
    let columns = [
        ("path", Side::Left),
        ("through", Side::Left),
        ("state", Side::Left),
        ("kernel node", Side::Right),
        ("distance", Side::Right),
        ("where it is", Side::Left),
        ("", Side::Left),
    ];
    let mut grid = Grid::new(&columns);
    for path in &namespace.paths {
        grid.row(view(path, namespace.nearest.contains(&path.name)));
    }
    grid.render(style)
}

fn view(path: &PathView, nearest: bool) -> Vec<Cell> {
    let state = match path.standing {
        Standing::Optimized => Cell::new(Role::Local, "optimized"),
        Standing::NonOptimized => Cell::new(Role::Middling, "non-optimized"),
        Standing::Unusable => Cell::new(Role::Far, "unusable"),
    };
    let kernel = match &path.kernel_node {
        Known::Yes(Some(node)) => Cell::new(Role::Heading, NodeId::to_string(node)),
        Known::Yes(None) => Cell::new(Role::Warning, "none"),
        Known::No { .. } => Cell::new(Role::Dim, "?"),
    };
    let mut remarks: Vec<&str> = nearest.then_some("nearest").into_iter().collect();
    remarks.extend(path.because.as_deref());
    vec![
        Cell::new(Role::Subject, &path.name),
        Cell::from(&path.controller),
        state,
        kernel,
        Cell::new(
            if nearest { Role::Local } else { Role::Plain },
            path.distance
                .map_or_else(|| "?".to_owned(), |distance| distance.to_string()),
        ),
        Cell::new(
            Role::Dim,
            path.locality
                .as_ref()
                .map_or_else(String::new, ToString::to_string),
        ),
        Cell::new(
            if nearest { Role::Local } else { Role::Dim },
            remarks.join("; "),
        ),
    ]
}

fn choices(choices: &[PolicyChoice], style: &Style) -> String {
    let columns = [
        ("policy", Side::Left),
        ("takes", Side::Left),
        ("because", Side::Left),
    ];
    let mut grid = Grid::new(&columns);
    for choice in choices {
        let policy = format!(
            "{}{}",
            choice.policy,
            if choice.current { " (now)" } else { "" }
        );
        let takes = match (choice.paths.as_slice(), choice.certain) {
            ([], _) => "none".to_owned(),
            (paths, true) => paths.join(", "),
            (paths, false) => format!("one of {}", paths.join(", ")),
        };
        grid.row(vec![
            Cell::new(
                if choice.current {
                    Role::Heading
                } else {
                    Role::Plain
                },
                policy,
            ),
            Cell::new(Role::Subject, takes),
            Cell::new(Role::Dim, &choice.because),
        ]);
    }
    format!("\n{}", grid.render(style))
}

//! Simulated rates of false alarms, power, coverage and cost of `outliers`: the tables of its documentation.
//!
//! `cargo run --release -p nearfar-statistics --example outlier_rates [GROUPS]`, which takes about 3 minutes with 2000 groups.

#[path = "../tests/alike/mod.rs"]
mod alike;

use std::time::Instant;

use alike::{Group, Planted, Random, Shape, judge};
use nearfar_statistics::outliers::Thresholds;

const HOSTS: [usize; 8] = [4, 5, 8, 16, 50, 200, 1000, 10_000];
const CELLS: [usize; 3] = [1, 4, 16];
/// Values that are drawn for one figure, where that is fewer than the groups asked for.
const MAX_VALUES: usize = 8_000_000;

fn main() {
    let groups = std::env::args().nth(1).and_then(|it| it.parse().ok());
    let groups = groups.unwrap_or(2000);
    false_alarms(groups);
    shapes(groups);
    power(groups);
    cost();
}

fn trials(group: &Group, groups: usize) -> usize {
    groups.min(MAX_VALUES / (group.hosts * group.cells)).max(20)
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn false_alarms(groups: usize) {
    let mut thresholds = Thresholds::new(1);
    println!(
        "Groups of alike hosts with a false alarm, at most 5 % (normal noise, 5 samples of 1 %)\n"
    );
    println!(
        "| hosts | cells | groups | independent | shared effect | no difference of hosts | 1 sample | 1 sample, shared |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for hosts in HOSTS {
        for cells in CELLS {
            let group = Group::new(hosts, cells);
            let trials = trials(&group, groups);
            let variants = [
                Group {
                    between: 0.01,
                    ..group
                },
                Group {
                    between: 0.01,
                    is_shared: true,
                    ..group
                },
                Group {
                    between: 0.0,
                    ..group
                },
                Group {
                    samples: 1,
                    ..group
                },
                Group {
                    samples: 1,
                    noise: 0.0,
                    between: 0.01,
                    is_shared: true,
                    ..group
                },
            ];
            let rates = variants.map(|it| percent(it.false_alarms(trials, 1, &mut thresholds)));
            println!("| {hosts} | {cells} | {trials} | {} |", rates.join(" | "));
        }
    }
}

fn shapes(groups: usize) {
    let mut thresholds = Thresholds::new(2);
    println!("\nThe same with other distributions (1 % of a sample, 1 % between hosts, 4 cells)\n");
    println!(
        "| hosts | groups | noise: heavy tails | noise: skewed | hosts: heavy tails | hosts: skewed | noise of hosts 0.5 to 2 % | with 30 samples | last cell 10 times |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for hosts in HOSTS {
        let group = Group {
            between: 0.01,
            ..Group::new(hosts, 4)
        };
        let trials = trials(&group, groups);
        let variants = [
            Group {
                between: 0.0,
                noise_shape: Shape::HeavyTails,
                ..group
            },
            Group {
                between: 0.0,
                noise_shape: Shape::Skewed,
                ..group
            },
            Group {
                between_shape: Shape::HeavyTails,
                ..group
            },
            Group {
                between_shape: Shape::Skewed,
                ..group
            },
            Group {
                between: 0.003,
                noise_range: 2.0,
                ..group
            },
            Group {
                between: 0.003,
                noise_range: 2.0,
                samples: 30,
                ..group
            },
            Group {
                samples: 1,
                last_cell: 10.0,
                ..group
            },
        ];
        let rates = variants.map(|it| percent(it.false_alarms(trials, 2, &mut thresholds)));
        println!("| {hosts} | {trials} | {} |", rates.join(" | "));
    }
}

fn power(groups: usize) {
    println!("\nPlanted deviations\n");
    println!(
        "| hosts | cells | deviating | groups | found | all found | another host named | another cell named | coverage |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let small = Group {
        samples: 6,
        noise: 0.02,
        between: 0.0,
        ..Group::new(4, 4)
    };
    let one_side = |hosts, cells, ratio| Planted {
        hosts,
        cells,
        ratio,
        is_two_sided: false,
    };
    let two_sides = |hosts, cells, ratio| Planted {
        is_two_sided: true,
        ..one_side(hosts, cells, ratio)
    };
    let cases = [
        (Group::new(10_000, 16), one_side(20, 16, 1.05)),
        (Group::new(10_000, 16), two_sides(500, 16, 1.05)),
        (Group::new(10_000, 16), one_side(3333, 16, 1.1)),
        (small, one_side(1, 2, 1.3)),
        (
            Group {
                is_shared: true,
                between: 0.01,
                ..small
            },
            one_side(1, 2, 1.3),
        ),
        (small, one_side(1, 2, 1.15)),
        (Group { hosts: 5, ..small }, one_side(1, 2, 1.15)),
        (Group { hosts: 8, ..small }, one_side(1, 2, 1.1)),
        (Group::new(6, 4), one_side(2, 4, 1.1)),
        (Group::new(8, 4), one_side(2, 4, 1.1)),
        (Group::new(9, 4), two_sides(3, 4, 1.1)),
        (Group::new(16, 4), one_side(5, 4, 1.1)),
        (Group::new(50, 4), one_side(16, 4, 1.1)),
        (
            Group {
                samples: 1,
                ..Group::new(50, 4)
            },
            one_side(5, 4, 1.1),
        ),
        (
            Group {
                samples: 2,
                ..Group::new(50, 4)
            },
            one_side(5, 4, 1.1),
        ),
        (Group::new(200, 16), two_sides(66, 16, 1.1)),
        (Group::new(1000, 16), one_side(20, 4, 1.05)),
        (Group::new(12, 16), one_side(2, 4, 1.1)),
    ];
    for (group, planted) in cases {
        let trials = trials(&group, groups);
        let power = group.power(planted, trials, 3);
        let sides = if planted.is_two_sided { "±" } else { "" };
        println!(
            "| {} | {} | {} by {sides}{:.0} % in {} | {trials} | {} | {} | {} | {} | {} |",
            group.hosts,
            group.cells,
            planted.hosts,
            (planted.ratio - 1.0) * 100.0,
            planted.cells,
            percent(power.found()),
            percent(power.all_found()),
            percent(power.other_hosts()),
            percent(power.other_cells()),
            percent(power.coverage()),
        );
    }
}

fn cost() {
    println!("\n| hosts | cells | deviating | seconds |\n|---|---|---|---|");
    for (hosts, cells, deviating) in [
        (4, 64, 1),
        (31, 64, 5),
        (1000, 64, 0),
        (10_000, 64, 0),
        (10_000, 64, 3333),
    ] {
        let planted = |host, _| if host < deviating { 0.1 } else { 0.0 };
        let (values, _) = Group::new(hosts, cells).draw(&mut Random::new(4), planted);
        let start = Instant::now();
        let found = judge(&values, &mut Thresholds::new(0));
        let seconds = start.elapsed().as_secs_f64();
        let named = found.deviations.len();
        println!("| {hosts} | {cells} | {deviating} ({named} named) | {seconds:.3} |");
    }
}

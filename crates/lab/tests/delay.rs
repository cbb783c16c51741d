//! Delays: what `--delay` takes, what becomes of it for a machine, and what labels say.

use std::path::Path;

use nearfar_lab::delay::{self, DelayError, DelaySetup, DelaySpec, DelaySpecError, far_for_ratio};
use nearfar_lab::design::Design;
use nearfar_lab::{Arch, repeat};
use nearfar_machine::{
    CacheModel, DelayFault, Distance, Latency, LineDelay, NodeId, SimulatedTime, Timing,
};
use nearfar_sources::{Request, Want, read};
use proptest::prelude::*;

/// Four nodes with two CPUs each, at the distances of case 4, as a synthetic string.
const FOUR: &str = "node:4 core:2 pu:1 distance:10,16,25,32";

fn design(machine: &str) -> Design {
    let machine = read(&Request::source(machine.to_owned(), Want::audit())).unwrap();
    Design::with_firmware(&machine, Arch::X86_64, None).unwrap()
}

fn setup(machine: &str, asked: &str) -> Result<DelaySetup, DelayError> {
    let asked: DelaySpec = asked.parse().unwrap();
    delay::setup(&design(machine), &asked, None, Path::new("/p.so"))
}

fn delays(setup: &DelaySetup) -> Vec<&str> {
    setup
        .config
        .lines()
        .filter_map(|line| line.strip_prefix("delay "))
        .collect()
}

#[test]
fn delays_follow_the_distances_four_times_slower_than_hardware() {
    let setup = setup("node:2 core:1 pu:1", "auto").unwrap();
    assert_eq!(delays(&setup), ["0 0 400", "0 1 800", "1 0 800", "1 1 400"]);
    assert_eq!(
        setup.delays.as_ref().unwrap().to_string(),
        "delays 10: 400 ns, 20: 800 ns; last-level caches 8M/16; transfer 500/2000 ns"
    );
}

#[test]
fn a_base_is_made_up_for_so_that_what_is_measured_is_in_the_ratio_of_the_distances() {
    let setup = setup("node:2 core:1 pu:1", "base=200").unwrap();
    assert_eq!(
        delays(&setup),
        ["0 0 400", "0 1 1000", "1 0 1000", "1 1 400"]
    );
}

#[test]
fn pairs_win_over_distances_and_distances_over_near_and_far() {
    let setup = setup("node:2 core:1 pu:1", "near=100,far=300,10=110,1:0=700").unwrap();
    assert_eq!(delays(&setup), ["0 0 110", "0 1 300", "1 0 700", "1 1 110"]);
    assert!(
        setup
            .delays
            .as_ref()
            .unwrap()
            .to_string()
            .starts_with("delays 0:0: 110 ns, 0:1: 300 ns, 1:0: 700 ns, 1:1: 110 ns; "),
        "{}",
        setup.delays.as_ref().unwrap()
    );
}

#[test]
fn a_pair_with_a_dash_holds_both_ways() {
    let setup = setup(FOUR, "0-3=5000").unwrap();
    assert!(delays(&setup).contains(&"0 3 5000") && delays(&setup).contains(&"3 0 5000"));
}

#[test]
fn the_scale_holds_for_memory_and_transfers() {
    let setup = setup("node:2 core:1 pu:1", "scale=2,cache=24M/12").unwrap();
    assert_eq!(delays(&setup)[..2], ["0 0 200", "0 1 400"]);
    assert!(
        setup.config.contains("\ncache 25165824 12 0\n")
            && setup.config.ends_with("\ntransfer 250 250 1000\n")
    );
}

#[test]
fn transfers_by_distance_are_in_proportion_to_the_nearest_other_node() {
    let setup = setup(FOUR, "transfer=500/2000/distance").unwrap();
    for line in [
        "transfer 500 500 2000",
        "transfer_pair 0 1 2000",
        "transfer_pair 0 3 4000",
    ] {
        assert!(
            setup.config.lines().any(|it| it == line),
            "{}",
            setup.config
        );
    }
    let label = setup.delays.as_ref().unwrap().to_string();
    assert!(label.ends_with("transfer 500/2000/distance ns"), "{label}");
}

#[test]
fn bandwidth_becomes_picoseconds_a_line_and_needs_simulated_time() {
    let asked = "near=80,far=140,cache=1M/16/20,transfer=25/90/190,bandwidth=20,link=10,stream=12";
    let design = design(FOUR);
    let spec: DelaySpec = asked.parse().unwrap();
    let of = |time| delay::setup(&design, &spec, time, Path::new("plugin.so"));
    assert_eq!(of(None), Err(DelayError::NeedsSimulatedTime));
    let made = of(Some(SimulatedTime::default())).unwrap();
    for line in [
        "cache 1048576 16 20",
        "transfer 25 90 190",
        "bandwidth 3 3200",
        "link 6400",
        "stream 15000",
    ] {
        let mut lines = made.config.lines();
        assert!(lines.any(|it| it == line), "{line} in\n{}", made.config);
    }
    assert!(!made.config.contains("\npackage "));
    let window = |spec: &str| {
        let made = delay::setup(
            &design,
            &spec.parse().unwrap(),
            Some(SimulatedTime::default()),
            Path::new("/p.so"),
        );
        let time = made.unwrap().time.unwrap();
        (time.window_ns.unwrap(), time.wide_window_ns)
    };
    let windows = [asked, "auto", "off", "transfer=0/900"].map(window);
    let wide = Some(1000);
    assert_eq!(windows, [(12, wide), (62, wide), (200, None), (200, wide)]);
    let delays = made.delays.unwrap();
    let label = delays.to_string();
    assert!(
        label.ends_with("transfer 25/90/190 ns; GB/s: bandwidth=20,link=10,stream=12"),
        "{label}"
    );
    // What was asked for is what a stored run asks for again.
    let again: DelaySpec = repeat::delay_spec(&delays, true).parse().unwrap();
    let again = delay::setup(&design, &again, made.time, Path::new("plugin.so")).unwrap();
    assert_eq!(again.delays, Some(delays));
    // Items without a limit of memory or links do not need it.
    assert!(setup(FOUR, "stream=12").is_ok());
}

#[test]
fn links_are_between_packages_and_shared_by_their_nodes() {
    let machine = "xeon-8269cy-snc";
    let spec: DelaySpec = "auto".parse().unwrap();
    let time = Some(SimulatedTime::default());
    let made = delay::setup(&design(machine), &spec, time, Path::new("/p.so")).unwrap();
    let lines = |key: &str| -> Vec<String> {
        let lines = made.config.lines();
        let lines = lines.filter_map(|line| line.strip_prefix(key));
        lines.map(str::to_owned).collect()
    };
    // 50.5 GB/s.
    assert_eq!(lines("link "), ["1267"]);
    assert_eq!(lines("transfer_home "), ["61"]);
    assert_eq!(lines("package "), ["0 0", "1 0", "2 1", "3 1"]);
    // Nodes of one package have each their own link, and no memory of another package.
    let one = "package:1 node:2 core:2 pu:1";
    assert!(
        !setup(one, "transfer=48/110+61")
            .unwrap()
            .config
            .contains("package")
    );
    assert!(
        made.delays
            .unwrap()
            .to_string()
            .contains("48/11:48/21:110+61 ns")
    );
}

#[test]
fn lines_between_threads_of_a_core_take_their_own_time_where_there_are_such() {
    for (text, again) in [
        ("8/25/90/190", "8/25/90/190"),
        ("8/25/90/12:110/32:190+60", "8/25/90/12:110/32:190+60"),
        ("25/90/190/distance", "25/90/190/distance"),
    ] {
        assert_eq!(text.parse::<LineDelay>().unwrap().to_string(), again);
    }
    let threads = "node:2 core:2 pu:2";
    let made = setup(threads, "transfer=8/25/90/190").unwrap();
    assert!(
        made.config
            .contains("\ntransfer 25 90 190\ntransfer_core 8 0 0 1 1 2 2 3 3\n"),
        "{}",
        made.config
    );
    let without = [
        setup(threads, "transfer=25/90/190"),
        setup(FOUR, "transfer=8/25/90/190"),
    ];
    assert!(
        without
            .iter()
            .all(|it| !it.as_ref().unwrap().config.contains("transfer_core"))
    );
}

#[test]
fn lines_of_other_nodes_take_what_their_distance_takes() {
    // Distances 16, 25, 32 and 33.
    let made = setup(FOUR, "transfer=25/90/16:110/32:190+60").unwrap();
    let pairs = |from: &str| -> Vec<String> {
        let lines = made.config.lines();
        let pairs =
            lines.filter_map(|line| line.strip_prefix("transfer_pair ")?.strip_prefix(from));
        pairs.map(|pair| pair.trim().to_owned()).collect()
    };
    assert_eq!(pairs("0"), ["1 110", "2 190", "3 190"]);
    assert!(
        made.config.contains("\ntransfer 25 90 110\n"),
        "{}",
        made.config
    );
    let delays = made.delays.unwrap();
    assert_eq!(delays.transfer.to_string(), "25/90/16:110/32:190+60");
    let spec = repeat::delay_spec(&delays, false);
    assert!(spec.contains("transfer=25/90/16:110/32:190+60"), "{spec}");
    for wrong in [
        "25/16:",
        "25/90/32:5/16:5",
        "25/90/16:5/16:6",
        "16:5",
        "25/16:5/distance",
        "25/90+",
        "25/90+5+6",
        "25+5/90",
        "1/2/3/4/5",
        "1/2/3/4/16:5",
    ] {
        assert!(wrong.parse::<LineDelay>().is_err(), "{wrong}");
    }
    let unknown = setup(FOUR, "transfer=90/16:110/21:190");
    assert!(
        matches!(unknown, Err(DelayError::UnknownDistance { .. })),
        "{unknown:?}"
    );
}

/// A guest's CPUs are those of its first nodes, so a node without CPUs has another number there.
#[test]
fn figures_of_a_machine_go_with_its_nodes() {
    let text = "distances = [[10, 20, 30], [20, 10, 20], [30, 20, 10]]\n\
                [[node]]\nmemory = \"1G\"\n[[node]]\ncpus = 1\nmemory = \"1G\"\n[[node]]\ncpus = 1\nmemory = \"1G\"\n\
                [timing]\nlatency = [[\"-\", \"-\", \"-\"], [333, 77.4, 155], [444, 166, 88]]\n";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("machine.toml");
    std::fs::write(&file, text).unwrap();
    let machine = read(&Request::source(
        file.to_str().unwrap().to_owned(),
        Want::audit(),
    ))
    .unwrap();
    let design = Design::with_firmware(&machine, Arch::X86_64, None).unwrap();
    let time = Some(SimulatedTime::default());
    let asked: DelaySpec = "auto".parse().unwrap();
    let setup = delay::setup(&design, &asked, time, Path::new("/p.so")).unwrap();
    // The guest's node 2 is the described node 0.
    assert_eq!(
        delays(&setup),
        [
            "0 0 77", "0 1 155", "0 2 333", "1 0 166", "1 1 88", "1 2 444"
        ]
    );
}

#[test]
fn a_machine_in_simulated_time_has_its_own_figures() {
    let mut machine = read(&Request::source(FOUR.to_owned(), Want::audit())).unwrap();
    let latency = |cpu, memory, ns| Latency {
        cpu_node: NodeId(cpu),
        memory_node: NodeId(memory),
        ns,
    };
    machine.timing = Some(Timing {
        latencies: vec![latency(0, 0, 81), latency(0, 1, 139)],
        cache: Some("1M/8/20".parse().unwrap()),
        transfer: Some("25/90/190".parse().unwrap()),
        instruction_ps: Some(400),
        ..Timing::default()
    });
    let design = Design::with_firmware(&machine, Arch::X86_64, None).unwrap();
    let of = |asked: &str, time| {
        let asked: DelaySpec = asked.parse().unwrap();
        delay::setup(&design, &asked, time, Path::new("/p.so")).unwrap()
    };
    let time = Some(SimulatedTime::default());
    let own = of("auto", time);
    assert!(own.config.contains("\ntime 400 "), "{}", own.config);
    assert_eq!(own.time.unwrap().instruction_ps, Some(400));
    // Derived from the distance where there is no figure.
    assert_eq!(delays(&own)[..3], ["0 0 81", "0 1 139", "0 2 250"]);
    let pairs = &own.delays.as_ref().unwrap().pairs;
    let estimates = pairs[..3].iter().map(|pair| pair.is_estimate);
    assert!(estimates.eq([false, false, true]));
    assert!(own.config.contains("\ncache 1048576 8 20\n"));
    assert!(own.config.contains("\ntransfer 25 90 190\n"));
    let asked = of("0:1=150,transfer=50/100", time);
    assert_eq!(delays(&asked)[..2], ["0 0 81", "0 1 150"]);
    assert!(asked.config.contains("\ntransfer 50 50 100\n"));
    // Not where a scale is asked for, nor in the host's time, which is four times as slow.
    assert_eq!(delays(&of("scale=1", time))[0], "0 0 100");
    assert_eq!(delays(&of("auto", None))[0], "0 0 400");
}

#[test]
fn doorbells_are_delayed_by_the_nodes_of_cpu_and_controller() {
    let devices = |asked: &str| {
        let setup = setup("x86-case1", asked).unwrap();
        let lines = setup.config.lines();
        let devices = lines.filter_map(|line| line.strip_prefix("device "));
        let devices: Vec<String> = devices.map(str::to_owned).collect();
        (devices, setup.controllers > 0)
    };
    let written = |lines: [&str; 6]| (lines.map(str::to_owned).to_vec(), true);
    assert_eq!(devices("auto"), (Vec::new(), false));
    // The controllers are on nodes 0 and 2, at distances 10 and 40 from node 0, 20 and 17 from node 1.
    assert_eq!(
        devices("device=5/17000"),
        written([
            "0 0 5",
            "0 1 17000",
            "0 2 17000",
            "1 0 17000",
            "1 1 5",
            "1 2 17000"
        ])
    );
    assert_eq!(
        devices("device=5/17000/distance"),
        written([
            "0 0 5",
            "0 1 20000",
            "0 2 40000",
            "1 0 20000",
            "1 1 5",
            "1 2 17000"
        ])
    );
    let setup = setup("x86-case1", "device=5/17000").unwrap();
    let label = setup.delays.as_ref().unwrap().to_string();
    assert!(
        label.ends_with("; NVMe doorbell writes 5/17000 ns, a stand-in for remote devices"),
        "{label}"
    );
}

#[test]
fn what_the_machine_has_not_is_refused() {
    assert_eq!(
        setup(FOUR, "21=900"),
        Err(DelayError::UnknownDistance {
            wanted: Distance(21),
            known: vec![10, 16, 25, 32],
        })
    );
    assert_eq!(
        setup(FOUR, "0-9=900"),
        Err(DelayError::UnknownNode(NodeId(9)))
    );
    assert!(setup(FOUR, "scale=1000,near=1").is_ok());
}

#[test]
fn what_is_no_delay_is_refused_and_named() {
    let refused = |text: &str| text.parse::<DelaySpec>().unwrap_err();
    let part = |key: &str, value: &str, fault| DelaySpecError::Part {
        key: key.to_owned(),
        value: value.to_owned(),
        fault,
    };
    for text in ["", "on", "near"] {
        assert_eq!(refused(text), DelaySpecError::Item(text.to_owned()));
    }
    for value in ["", "-1", "1.5", "2000000"] {
        let error = DelaySpecError::Nanoseconds(value.to_owned());
        assert_eq!(refused(&format!("near={value}")), error);
    }
    for value in ["0", "nan", "x"] {
        let error = DelaySpecError::Scale(value.to_owned());
        assert_eq!(refused(&format!("scale={value}")), error);
    }
    for value in ["4M", "4M/0", "4T/16", "64/2", "99999G/16"] {
        let fault = DelayFault::Cache;
        assert_eq!(
            refused(&format!("cache={value}")),
            part("cache", value, fault)
        );
    }
    for key in ["0-", "-1", "color"] {
        let error = DelaySpecError::Key(key.to_owned());
        assert_eq!(refused(&format!("{key}=5")), error);
    }
    for value in ["500", "1/2/3/4/5/6", "1/2/x", "1/2/3/near"] {
        let fault = DelayFault::Line;
        assert_eq!(
            refused(&format!("transfer={value}")),
            part("transfer", value, fault)
        );
    }
    for value in ["0", "nan", "20G", "-1"] {
        let fault = DelayFault::Bandwidth;
        assert_eq!(
            refused(&format!("link={value}")),
            part("link", value, fault)
        );
    }
    assert_eq!(
        refused("device=500"),
        part("device", "500", DelayFault::Node)
    );
}

#[test]
fn the_far_delay_for_a_ratio_takes_emulation_into_account() {
    let far = far_for_ratio(400.0, 200.0, 1.5);
    assert_eq!(far, 700.0);
    assert_eq!((far + 200.0) / (400.0 + 200.0), 1.5);
    assert_eq!(
        far_for_ratio(0.0, 200.0, 0.5),
        0.0,
        "there is no waiting backwards"
    );
}

#[test]
fn qemu_is_given_the_plugin_and_the_descriptor() {
    let mut setup = setup("node:2 core:1 pu:1", "auto").unwrap();
    setup.plugin = "/a,b/p.so".into();
    assert_eq!(setup.arguments(7), ["-plugin", "file=/a,,b/p.so,region=7"]);
}

proptest! {
    #[test]
    fn any_text_is_a_delay_or_an_error(text in "[a-z0-9=,:/. -]{0,40}") {
        let _ = text.parse::<DelaySpec>();
    }

    #[test]
    fn a_cache_reads_as_it_is_written(lines in 64u64..(1 << 26), ways in 1u32..65, hit_ns in 0u32..100) {
        let cache = CacheModel { bytes: lines * 64, ways, hit_ns };
        let DelaySpec::On(asked) = format!("cache={cache}").parse().unwrap() else {
            panic!("delays");
        };
        prop_assert_eq!(asked.cache, Some(cache));
    }
}

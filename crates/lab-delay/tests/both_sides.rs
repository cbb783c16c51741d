// SPDX-License-Identifier: GPL-2.0-or-later
//! The host's side of the region and of its text (the crate nearfar-lab, of another licence) against the plugin's.

use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use nearfar_lab::Arch;
use nearfar_lab::delay::{self, DelaySetup, DelaySpec};
use nearfar_lab::design::Design;
use nearfar_lab::scale::scaled;
use nearfar_lab_delay::config::{Config, TimeConfig};
use nearfar_lab_delay::model::Model;
use nearfar_lab_delay::region::transfers::LineTransfer;
use nearfar_lab_delay::region::{Count, Region, RegionError, State};
use nearfar_machine::{NodeId, NodeLimits, SimulatedTime};
use nearfar_sources::{Request, Want, gallery, read};
use proptest::prelude::*;

fn setup(cpus: &[u32], nodes: &[u32], config: &str) -> DelaySetup {
    DelaySetup {
        plugin: "plugin.so".into(),
        config: config.to_owned(),
        delays: None,
        time: None,
        cpu_nodes: cpus.iter().copied().map(NodeId).collect(),
        nodes: nodes.iter().copied().map(NodeId).collect(),
        controllers: 2,
    }
}

#[test]
fn what_the_plugin_counts_is_what_the_host_reads() {
    let host = setup(&[0, 2], &[0, 2, 5], "nearfar-delay 3\n")
        .start()
        .unwrap();
    let plugin = Region::map(host.as_fd().as_raw_fd()).unwrap();
    assert_eq!((plugin.vcpus(), plugin.nodes()), (2, 3));
    plugin.set_state(State::Open);
    let counters = plugin.counters(1);
    for (amount, count) in [
        (100, Count::Accesses),
        (1, Count::CacheHits),
        (2, Count::Near),
        (3, Count::Far),
        (4, Count::TransfersSame),
    ] {
        counters.add(count, amount);
    }
    counters.add(Count::TransfersOther, 5);
    counters.add(Count::DoorbellsNear, 8);
    counters.add(Count::DoorbellsFar, 9);
    counters.add(Count::DelayNs, 6);
    counters.add(Count::TransfersSameNode, 10);
    counters.add(Count::WaitNs, 11);
    counters.miss_to(2, 1500);
    counters.miss_to(2, 600);
    counters.transfer_from(1);
    let counts = host.counts();
    let vcpu = &counts.vcpus[1];
    assert!(counts.counting);
    assert_eq!((vcpu.node, vcpu.accesses, vcpu.hits), (NodeId(2), 100, 76));
    assert_eq!(
        (
            vcpu.near,
            vcpu.far,
            vcpu.transfers_same_cache,
            vcpu.transfers_same_node,
            vcpu.transfers_other_node,
            vcpu.wait_ns,
        ),
        (2, 3, 4, 14, 5, 11)
    );
    assert_eq!(
        (
            vcpu.delay_ns,
            vcpu.misses[&NodeId(0)],
            vcpu.misses[&NodeId(5)]
        ),
        (6, 0, 2)
    );
    let by_node = |counts: [u64; 3]| [0, 2, 5].map(NodeId).into_iter().zip(counts).collect();
    assert_eq!(vcpu.waits_ns, by_node([0, 0, 2]));
    assert_eq!(vcpu.transfers, by_node([0, 1, 0]));
    assert_eq!(counts.simulated_ns, None);
    assert_eq!((vcpu.doorbells_near, vcpu.doorbells_far), (8, 9));
    assert_eq!(counts.vcpus[0].accesses, 0);
}

#[test]
fn transfers_are_read_by_instruction_and_line_also_when_there_are_too_many_lines() {
    let host = setup(&[0, 2], &[0, 2], "").start().unwrap();
    let plugin = Region::map(host.as_fd().as_raw_fd()).unwrap();
    let (one, other) = (plugin.transfers(), plugin.transfers());
    let transfer = |instruction, line, is_from_other_node, ps| LineTransfer {
        instruction,
        line,
        home: 2,
        is_from_other_node,
        ps,
    };
    one.note(transfer(0x10, 0x40, false, 1500));
    assert_eq!(host.transfers().rows.len(), 0, "nothing is asked for yet");
    host.begin_transfers();
    one.note(transfer(0x10, 0x40, false, 1500));
    other.note(transfer(0x10, 0x40, true, 2500));
    one.note(transfer(0x10, 0x80, true, 1000));
    let found = host.transfers();
    assert_eq!((found.rows.len(), found.lost), (2, 0));
    let row = found.rows[&(0x10, 0x40)];
    assert_eq!((row.same_node, row.other_node), (1, 1));
    assert_eq!((row.ns, row.home), (4, 2));
    // More lines than there are slots: what has none counts for its instruction, and nothing is missing.
    let many = 300_000;
    for number in 0..many {
        one.note(transfer(0x20 + number % 9, (number + 2) * 64, true, 1000));
    }
    let new = host.transfers().since(&found);
    let lines = new.rows.values().map(|row| row.other_node);
    assert_eq!((lines.sum::<u64>(), new.lost), (many, 0));
    assert_eq!(new.rows.keys().filter(|(_, line)| *line == 0).count(), 9);
    // Nor do more instructions than that go unnoticed.
    for instruction in 0..many {
        one.note(transfer(1 << 20 | instruction, 64, false, 1000));
    }
    let last = host.transfers().since(&new);
    let counted = last.rows.values().map(|row| row.same_node).sum::<u64>();
    assert!(last.lost > 0);
    assert_eq!(counted + last.lost, many + 1);
    host.begin_transfers();
    let (rows, lost) = (host.transfers().rows, host.transfers().lost);
    assert_eq!((rows.len(), lost), (0, 0));
}

#[test]
fn the_host_opens_and_closes_the_gate() {
    let host = setup(&[0], &[0], "").start().unwrap();
    let plugin = Region::map(host.as_fd().as_raw_fd()).unwrap();
    assert!(!plugin.gate());
    host.open();
    assert!(plugin.gate());
    host.close();
    assert!(!plugin.gate());
}

#[test]
fn a_descriptor_that_is_no_region_is_refused() {
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert!(Region::map(file.as_raw_fd()).is_err());
    assert!(matches!(
        Region::map(-1),
        Err(RegionError::Map { fd: -1, .. })
    ));
}

proptest! {
    #[test]
    fn the_text_arrives_as_it_was_sent(config in "[ -~\n]{0,600}", cpus in 1usize..9, nodes in 1usize..40) {
        let (cpus, nodes): (Vec<u32>, Vec<u32>) = (vec![0; cpus], (0..nodes as u32).collect());
        let host = setup(&cpus, &nodes, &config).start().unwrap();
        let plugin = Region::map(host.as_fd().as_raw_fd()).unwrap();
        prop_assert_eq!(plugin.config().unwrap(), config.as_str());
        plugin.counters(cpus.len() - 1).miss_to(nodes.len() - 1, 0);
        prop_assert_eq!(plugin.config().unwrap(), config.as_str());
    }
}

#[test]
fn what_the_host_writes_for_the_gallery_the_plugin_takes() {
    for entry in gallery() {
        let machine = read(&Request::source(entry.name, Want::all())).unwrap();
        let arch = Arch::of(&machine).unwrap_or(Arch::X86_64);
        let scale: NodeLimits = "cpus=2,memory=256M".parse().unwrap();
        let design = Design::with_firmware(&scaled(&machine, scale).unwrap(), arch, None).unwrap();
        let asked: DelaySpec = "device=0/30000/distance".parse().unwrap();
        let time = SimulatedTime {
            instruction_ps: Some(250),
            window_ns: Some(40),
            wide_window_ns: Some(200),
            seed: 7,
            jumps_when_idle: true,
            disk_ns: Some(20_000),
        };
        let setup = delay::setup(&design, &asked, Some(time), Path::new("plugin.so")).unwrap();
        let config: Config = setup
            .config
            .parse()
            .unwrap_or_else(|error| panic!("{error} in\n{}", setup.config));
        let expected = TimeConfig {
            ps_per_instruction: 250,
            window_ps: 40_000,
            wide_window_ps: 200_000,
            seed: 7,
            jumps_when_idle: true,
            disk_ps: 20_000_000,
        };
        assert_eq!(config.time, Some(expected));
        let model = Model::new(&config).unwrap();
        let nodes: Vec<NodeId> = model.nodes().iter().copied().map(NodeId).collect();
        assert_eq!(
            (model.places().len(), nodes),
            (setup.cpu_nodes.len(), setup.nodes)
        );
    }
}

//! From commands to who took the nearest path.

use nearfar_machine::{CpuId, Known, Machine, NodeId};
use nearfar_sources::{Request, Want};
use nearfar_trace::format::Format;
use nearfar_trace::nvme::{
    Commands, Decoder, Kinds, NodeTraffic, NvmeAnswer, NvmeTraceError, answer, subsystems,
};
use nearfar_trace::records::Sample;

const FORMAT: &str = include_str!("formats/nvme_setup_cmd-6.12");

fn machine(name: &str) -> Machine {
    let request = Request {
        sources: vec![name.to_owned()],
        root: None,
        fake: None,
        want: Want::audit(),
    };
    nearfar_sources::read(&request).unwrap()
}

/// Commands to be counted, as bytes of kernel 6.12.
struct Trace(Commands);

impl Trace {
    fn new() -> Self {
        Self(Commands::new(
            Decoder::new(&Format::parse(FORMAT).unwrap()).unwrap(),
        ))
    }

    fn submit(
        &mut self,
        cpu: u32,
        disk: &str,
        controller: i32,
        queue: i32,
        opcode: u8,
        times: usize,
    ) {
        let mut event = vec![0; 88];
        event[8..8 + disk.len()].copy_from_slice(disk.as_bytes());
        event[40..44].copy_from_slice(&controller.to_ne_bytes());
        event[44..48].copy_from_slice(&queue.to_ne_bytes());
        event[48] = opcode;
        for _ in 0..times {
            let pid = 100 + cpu.cast_signed();
            self.0.take(CpuId(cpu), &Sample::new(pid, pid, 1, &event));
        }
    }

    fn answer(&self, machine: &Machine) -> NvmeAnswer {
        answer(&self.0, machine, None).unwrap()
    }
}

const FLUSH: u8 = 0;
const WRITE: u8 = 1;
const READ: u8 = 2;
const DISCARD: u8 = 9;

fn of_node(answer: &NvmeAnswer, node: u32) -> &NodeTraffic {
    answer.namespaces[0]
        .nodes
        .iter()
        .find(|traffic| traffic.node == Some(NodeId(node)))
        .unwrap()
}

/// Case 1: controller nvme1 is on node 2, which is not online; distances 0-2 are 40, 1-2 are 17, 0-1 are 20. The kernel
/// sends everything through nvme1.
#[test]
fn the_controller_on_a_node_that_is_not_online_is_near_for_one_node_and_far_for_the_other() {
    let machine = machine("x86-case1");
    let mut trace = Trace::new();
    trace.submit(0, "nvme0c1n1", 1, 1, READ, 30);
    trace.submit(1, "nvme0c1n1", 1, 2, WRITE, 10);
    trace.submit(2, "nvme0c1n1", 1, 3, READ, 60);
    let found = trace.answer(&machine);
    assert_eq!(
        of_node(&found, 0).nearest,
        Known::Yes(vec!["nvme0c0n1".to_owned()])
    );
    assert_eq!(
        of_node(&found, 1).nearest,
        Known::Yes(vec!["nvme0c1n1".to_owned()])
    );
    assert_eq!(of_node(&found, 0).nearest_share, Known::Yes(0.0));
    assert_eq!(of_node(&found, 1).nearest_share, Known::Yes(1.0));
    assert_eq!(
        found.namespaces[0].nearest_share,
        Known::Yes(0.6),
        "60 of 100"
    );
    assert_eq!(of_node(&found, 0).cpus.to_string(), "0-1");
    let through: Vec<_> = of_node(&found, 0)
        .through
        .iter()
        .map(|t| {
            (
                t.controller.as_str(),
                t.distance.unwrap().0,
                t.commands.total(),
            )
        })
        .collect();
    assert_eq!(through, [("nvme0", 10, 0), ("nvme1", 40, 40)]);
    assert_eq!(
        found.namespaces[0].controllers[1].kernel_node,
        Known::Yes(None),
        "the kernel has none for it"
    );
}

#[test]
fn kinds_of_commands_are_counted_apart_and_admin_commands_aside() {
    let machine = machine("nvme-two-controllers");
    let mut trace = Trace::new();
    for (opcode, times) in [(FLUSH, 1), (WRITE, 2), (READ, 3), (DISCARD, 4)] {
        trace.submit(0, "nvme0c0n1", 0, 1, opcode, times);
    }
    trace.submit(0, "", 0, 0, 6, 5);
    let found = trace.answer(&machine);
    assert_eq!(
        found.namespaces[0].commands,
        Kinds {
            flushes: 1,
            writes: 2,
            reads: 3,
            others: 4
        }
    );
    assert_eq!(found.admin_commands, 5);
    assert!(found.unplaced.is_empty());
}

#[test]
fn where_neither_kernel_nor_firmware_tells_the_share_is_not_known() {
    let mut machine = machine("x86-case1");
    machine.host_bridges = Known::no("not read");
    let mut trace = Trace::new();
    trace.submit(0, "nvme0c0n1", 0, 1, READ, 1);
    let found = trace.answer(&machine);
    assert_eq!(
        found.namespaces[0].nearest_share.unknown_reason(),
        Some("nothing tells where nvme1 is")
    );
    assert_eq!(
        of_node(&found, 0).commands.total(),
        1,
        "what was submitted is known all the same"
    );
}

#[test]
fn cpus_without_a_node_are_a_row_of_their_own() {
    let mut machine = machine("nvme-two-controllers");
    machine.cpus[0].node = None;
    let mut trace = Trace::new();
    trace.submit(0, "nvme0c0n1", 0, 1, READ, 1);
    let found = trace.answer(&machine);
    let row = found.namespaces[0]
        .nodes
        .iter()
        .find(|traffic| traffic.node.is_none())
        .unwrap();
    assert_eq!(
        (row.commands.total(), row.cpus.to_string()),
        (1, "0".to_owned())
    );
    assert!(row.nearest_share.unknown_reason().is_some());
}

#[test]
fn nodes_that_submit_nothing_are_there_and_have_no_share() {
    let machine = machine("nvme-two-controllers");
    let mut trace = Trace::new();
    trace.submit(0, "nvme0c0n1", 0, 1, READ, 1);
    let found = trace.answer(&machine);
    assert_eq!(
        of_node(&found, 1).nearest_share.unknown_reason(),
        Some("nothing was submitted from here")
    );
    assert_eq!(found.namespaces[0].nearest_share, Known::Yes(1.0));
    assert!(
        Trace::new().answer(&machine).namespaces[0]
            .nearest_share
            .unknown_reason()
            .is_some()
    );
}

#[test]
fn a_disk_that_the_machine_does_not_list_is_told_apart() {
    let machine = machine("nvme-two-controllers");
    let mut trace = Trace::new();
    trace.submit(0, "nvme9n1", 9, 1, READ, 3);
    trace.submit(0, "nvme0c0n1", 1, 1, READ, 1);
    let found = trace.answer(&machine);
    let unplaced: Vec<_> = found
        .unplaced
        .iter()
        .map(|u| (u.disk.as_str(), u.controller.as_str(), u.commands.total()))
        .collect();
    assert_eq!(
        unplaced,
        [("nvme0c0n1", "nvme1", 1), ("nvme9n1", "nvme9", 3)],
        "a path of another controller is none"
    );
}

#[test]
fn processes_are_named_and_the_busiest_comes_first() {
    let machine = machine("nvme-two-controllers");
    let mut trace = Trace::new();
    trace.submit(0, "nvme0c0n1", 0, 1, READ, 1);
    trace.submit(1, "nvme0c0n1", 0, 1, READ, 5);
    trace.0.name(|pid| (pid == 101).then(|| "fio".to_owned()));
    let found = trace.answer(&machine);
    let who: Vec<_> = found
        .submitters
        .iter()
        .map(|s| (s.pid, s.name.as_deref(), s.commands.total()))
        .collect();
    assert_eq!(who, [(101, Some("fio"), 5), (100, None, 1)]);
}

#[test]
fn one_subsystem_is_answered_about_alone_and_a_wrong_name_is_said() {
    let machine = machine("nvme-two-controllers");
    let mut trace = Trace::new();
    trace.submit(0, "nvme9n1", 9, 1, READ, 3);
    trace.submit(0, "nvme0c0n1", 0, 1, READ, 1);
    let found = answer(&trace.0, &machine, Some("nvme-subsys0")).unwrap();
    assert_eq!(
        (
            found.namespaces.len(),
            found.unplaced.len(),
            found.submitters.len()
        ),
        (1, 0, 1)
    );
    assert_eq!(
        found.submitters[0].commands.total(),
        1,
        "what went elsewhere is left out"
    );
    let error = subsystems(&machine, Some("nvme-subsys7")).unwrap_err();
    assert!(
        error.to_string().contains("there are: nvme-subsys0"),
        "{error}"
    );
    let mut unseen = machine;
    unseen.nvme = Known::no("no permission");
    assert!(matches!(
        answer(&trace.0, &unseen, None),
        Err(NvmeTraceError::NotKnown { .. })
    ));
}

#[test]
fn events_too_short_for_a_command_are_counted() {
    let mut trace = Trace::new();
    trace.0.take(CpuId(0), &Sample::new(1, 1, 1, &[0; 40]));
    assert_eq!(trace.answer(&machine("nvme-two-controllers")).unreadable, 1);
}

//! What a container that forbids to place memory makes of a measurement.

use std::time::Duration;

use nearfar_bench::latency::{LatencyOptions, Warning, measure};
use nearfar_machine::{CpuSet, Node, NodeId};

use crate::here::this_system;

/// Has the kernel answer EPERM to mbind and move_pages for the calling thread and those it starts (seccomp(2)).
fn forbid_placing() -> bool {
    let op = |code: u32, jump: u8, value: u32| libc::sock_filter {
        code: code as u16,
        jt: jump,
        jf: 0,
        k: value,
    };
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    // seccomp_data begins with the number of the system call.
    let filter = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        op(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            2,
            libc::SYS_mbind as u32,
        ),
        op(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            1,
            libc::SYS_move_pages as u32,
        ),
        op(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
        op(libc::BPF_RET | libc::BPF_K, 0, refuse),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: the first call takes numbers only; the second reads the program, which outlives it.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
    }
}

#[test]
fn memory_that_may_not_be_bound_is_touched_first_from_its_node_and_that_is_said() {
    // Filters stay with a thread for good: this one ends with the test.
    let tested = std::thread::spawn(|| {
        if !forbid_placing() {
            return println!("skipped: kernel: the kernel takes no seccomp filter here");
        }
        let mut machine = this_system();
        machine.nodes.push(Node::new(NodeId(1), CpuSet::new()));
        let options = LatencyOptions {
            budget: Duration::from_secs(2),
            buffer_bytes: Some(8 << 20),
            max_samples: 7,
            ..LatencyOptions::default()
        };
        let matrix = measure(&machine, &options).unwrap().answer;
        assert!(
            matrix
                .pairs
                .iter()
                .all(|pair| pair.memory_node == NodeId(0))
                && !matrix.pairs.is_empty()
        );
        let said = |says: fn(&Warning) -> bool| matrix.warnings.iter().any(says);
        assert!(
            said(|warning| matches!(
                warning,
                Warning::BindRefused {
                    node: NodeId(0),
                    ..
                }
            )),
            "{:?}",
            matrix.warnings
        );
        assert!(
            said(|warning| matches!(
                warning,
                Warning::Unverified {
                    node: NodeId(0),
                    ..
                }
            )),
            "{:?}",
            matrix.warnings
        );
        let skipped = matrix
            .skipped
            .iter()
            .find(|skipped| skipped.memory_node == Some(NodeId(1)))
            .unwrap();
        assert!(
            skipped.reason.contains("cannot be bound"),
            "{}",
            skipped.reason
        );
    });
    tested.join().unwrap();
}

//! Exported plans: what they say, that other programs take them, and that nothing in a plan breaks out of them.

use std::path::Path;
use std::process::{Command, Output};

use crate::support::*;
use nearfar_change::export::{script, systemd, udev};
use nearfar_change::{Change, LeftAlone, Owner, Plan};
use nearfar_machine::IoPolicy;
use proptest::prelude::*;

/// A plan that says what could go wrong: text that tries to leave its comment, names that try to leave their quotes.
fn hostile(text: &str) -> Plan {
    let mut plan = plan_of_all_kinds();
    plan.host = Some(text.into());
    plan.left_alone.push(LeftAlone {
        subject: text.into(),
        rule: text.into(),
        reason: text.into(),
    });
    for planned in &mut plan.changes {
        planned.reason = text.into();
        planned.rule = text.into();
        planned.before = Some(text.into());
        let text_only = Some(text.to_owned());
        planned.owner = Some(Owner {
            interface: text_only.clone(),
            controller: text_only.clone(),
            nqn: text_only.clone(),
            pci_id: text_only.clone(),
            mac: text_only,
            ..Owner::default()
        });
        match &mut planned.change {
            Change::InterruptAffinity { name, .. } => *name = Some(text.into()),
            Change::Xps { interface, .. } | Change::Rps { interface, .. } => {
                *interface = text.into()
            }
            Change::NvmeIoPolicy { policy, .. } => *policy = IoPolicy::Other(text.into()),
            Change::DeviceNode { rebind, .. } => *rebind = Some(text.into()),
            Change::Sysctl { value, .. } | Change::SchedulerDebug { value, .. } => {
                *value = text.into();
            }
            Change::Cpuset { group, .. } | Change::CpusetMemory { group, .. } => {
                *group = text.into();
            }
            Change::TaskMemory { .. } => {}
        }
    }
    plan
}

/// Owners as `nearfar plan` gives them: an interrupt of each kind of device.
fn golden() -> Plan {
    let mut plan = plan_of_all_kinds();
    let device = Some("0000:3b:00.0".parse().unwrap());
    let named = |name: &str| Some(name.to_owned());
    let owners = [
        Some(Owner {
            device,
            interface: named("eth0"),
            ..Owner::default()
        }),
        Some(Owner {
            device,
            controller: named("nvme0"),
            ..Owner::default()
        }),
        Some(Owner {
            device,
            ..Owner::default()
        }),
        Some(Owner {
            device,
            ..Owner::default()
        }),
        None,
        Some(Owner {
            nqn: named("nqn.2014-08.org.nvmexpress:uuid:1"),
            ..Owner::default()
        }),
    ];
    for (planned, owner) in plan.changes.iter_mut().zip(owners) {
        planned.owner = owner;
    }
    plan.left_alone.push(LeftAlone {
        subject: "interrupt 42 (nvme0q3)".into(),
        rule: "irq-managed".into(),
        reason: "the kernel manages it".into(),
    });
    plan
}

#[test]
fn the_exports_read_as_they_did() {
    let exported = |export: fn(&Plan) -> String| {
        export(&golden()).replace(env!("CARGO_PKG_VERSION"), "VERSION")
    };
    insta::assert_snapshot!("script", exported(script));
    insta::assert_snapshot!("systemd", exported(systemd));
    insta::assert_snapshot!("udev", exported(udev));
}

/// Runs a checker on a text; `None`, counted as skipped, where it is not installed.
fn checked(checker: &[&str], name: &str, text: &str) -> Option<Output> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join(name);
    std::fs::write(&file, text).unwrap();
    match Command::new(checker[0])
        .args(&checker[1..])
        .arg(&file)
        .output()
    {
        Ok(output) => Some(output),
        Err(error) => {
            println!("skipped: tools: {}: {error}", checker[0]);
            None
        }
    }
}

#[test]
fn shells_and_checkers_take_the_exports() {
    for plan in [
        golden(),
        plan(Vec::new()),
        hostile("x\ny"),
        hostile("a'b\"c$(d)`e`\\"),
    ] {
        let script = script(&plan);
        for checker in [
            &["sh", "-n"][..],
            &["bash", "--posix", "-n"],
            &["shellcheck", "--shell=sh", "--norc"],
        ] {
            if let Some(output) = checked(checker, "plan.sh", &script) {
                assert!(output.status.success(), "{checker:?}: {output:?}\n{script}");
            }
        }
        if let Some(output) = checked(
            &["systemd-analyze", "verify"],
            "nearfar-placement.service",
            &systemd(&plan),
        ) {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(
                !said.contains("nearfar-placement.service:"),
                "{said}\n{}",
                systemd(&plan)
            );
        }
        if let Some(output) = checked(&["udevadm", "verify"], "99-nearfar.rules", &udev(&plan)) {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let old = said.contains("Unknown command verb") || said.contains("unrecognized");
            assert!(output.status.success() || old, "{said}\n{}", udev(&plan));
        }
    }
}

fn sh(script: &Path, tree: &Tree, arguments: &[&str]) -> Output {
    let mut command = Command::new("sh");
    command
        .arg(script)
        .args(arguments)
        .env("NEARFAR_ROOT", tree.root())
        .current_dir(tree.root());
    command.output().unwrap()
}

#[test]
fn the_script_makes_the_changes_of_a_tree_and_undoes_them() {
    let outside_dir = tempfile::tempdir().unwrap();
    let file = outside_dir.path().join("plan.sh");
    let mut plan = plan_of_all_kinds();
    plan.changes[2].before = Some("0-7".into());
    std::fs::write(&file, script(&plan)).unwrap();
    let (by_script, by_apply) = (Tree::machine(), Tree::machine());
    // The script writes masks as wide as the plan saw them; apply looks at the file.
    by_script.put("/sys/class/net/eth0/queues/rx-0/rps_cpus", "0\n");
    by_apply.put("/sys/class/net/eth0/queues/rx-0/rps_cpus", "0\n");
    let before = by_script.files().into_values().collect::<Vec<_>>();
    let output = sh(&file, &by_script, &[]);
    assert!(output.status.success(), "{output:?}");
    nearfar_change::apply(&plan, &by_apply.target(), &Default::default()).unwrap();
    let values = |tree: &Tree| tree.files().into_values().collect::<Vec<_>>();
    assert_eq!(values(&by_script), values(&by_apply));
    assert!(sh(&file, &by_script, &["--undo"]).status.success());
    assert_eq!(values(&by_script), before);
    assert_eq!(sh(&file, &by_script, &["--frob"]).status.code(), Some(2));
    std::fs::remove_dir_all(by_script.at("/proc/irq/10")).unwrap();
    let output = sh(&file, &by_script, &[]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert_eq!(
        by_script.get("/proc/irq/11/smp_affinity_list"),
        "0-3,5,7\n",
        "the others are made"
    );
}

/// What systemd runs, after its own unquoting, finds an interrupt by its name.
/// The shell command of a unit's first write, as systemd passes it on (systemd.service(5), systemd.unit(5)).
fn first_command(unit: &str) -> String {
    let line = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart=-/bin/sh -c \""))
        .unwrap();
    line.strip_suffix('"')
        .unwrap()
        .replace("$$", "$")
        .replace("%%", "%")
}

#[test]
fn the_unit_finds_interrupts_by_name() {
    let tree = Tree::machine();
    tree.put(
        "/proc/interrupts",
        "   CPU0\n 17:  5  PCI-MSI 1-edge   eth0-TxRx-100\n 11:  5  PCI-MSI 2-edge   eth0-TxRx-10\n",
    );
    let unit = systemd(&plan(vec![planned(interrupt(10, "4"), None)]));
    let command = first_command(&unit);
    let command = command.replace("/proc/", &format!("{}/proc/", tree.root().display()));
    assert!(
        Command::new("sh")
            .args(["-c", &command])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(
        tree.get("/proc/irq/11/smp_affinity_list"),
        "4\n",
        "the number it has now"
    );
    assert_eq!(
        tree.get("/proc/irq/10/smp_affinity_list"),
        "0-7\n",
        "the number it had then"
    );
    let nameless = Change::InterruptAffinity {
        irq: nearfar_machine::Irq(10),
        cpus: cpus("4"),
        near: None,
        name: Some("two, handlers".into()),
    };
    let unit = systemd(&plan(vec![planned(nameless, None)]));
    assert!(
        unit.contains("# left out: /proc/irq/10/smp_affinity_list <- 4: interrupt numbers change"),
        "{unit}"
    );
}

/// The unit's command, run on a tree: a name that another device's interrupt has now is not enough.
#[test]
fn an_interrupt_of_another_device_with_the_same_name_is_left() {
    let tree = Tree::machine();
    tree.put(
        "/proc/interrupts",
        "   CPU0\n 10:  5  PCI-MSI 1-edge   virtio0-input.0\n",
    );
    tree.put("/sys/bus/pci/devices/0000:3b:00.0/msi_irqs/11", "msix\n");
    let mut planned = planned(interrupt(10, "4"), None);
    if let Change::InterruptAffinity { name, .. } = &mut planned.change {
        *name = Some("virtio0-input.0".into());
    }
    planned.owner = Some(Owner {
        device: Some("0000:3b:00.0".parse().unwrap()),
        ..Owner::default()
    });
    let run = || {
        let unit = systemd(&plan(vec![planned.clone()]));
        let command = first_command(&unit);
        let root = tree.root().display().to_string();
        let command = command
            .replace("/proc/", &format!("{root}/proc/"))
            .replace("/sys/", &format!("{root}/sys/"));
        assert!(
            Command::new("sh")
                .args(["-c", &command])
                .status()
                .unwrap()
                .success()
        );
        tree.get("/proc/irq/10/smp_affinity_list")
    };
    assert_eq!(run(), "0-7\n");
    tree.put("/sys/bus/pci/devices/0000:3b:00.0/msi_irqs/10", "msix\n");
    assert_eq!(run(), "4\n");
}

/// Lines that are not comments must be ones that a harmless plan produces too, but for what check lets through.
fn commands(text: &str) -> Vec<&str> {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect()
}

proptest! {
    #[test]
    fn no_text_in_a_plan_leaves_its_comment(text in r"(\PC|[\n\r\x00\x0b\x0c\x1b\u{85}\u{2028}'$`\\%#]){0,40}") {
        // A character that no name and no value may hold, so that every changed field must be left out.
        let text = format!("{text}\u{7f}\ntouch broken; \\");
        let plain = hostile("\n");
        for export in [script, systemd, udev] {
            let (got, expected) = (export(&hostile(&text)), export(&plain));
            prop_assert_eq!(commands(&got), commands(&expected), "{}", got);
            prop_assert!(got.bytes().all(|b| b == b'\n' || (b' '..=b'~').contains(&b)), "{}", got);
            prop_assert!(got.lines().all(|line| !line.ends_with('\\')), "{}", got);
        }
    }
}

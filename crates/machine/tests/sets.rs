//! The two formats of sets: what the kernel writes is read, what is written is read back, what is neither says where.

use std::collections::BTreeSet;

use nearfar_machine::{CpuId, CpuSet, MAX_NUMBER, NodeSet, SetError};
use proptest::prelude::*;

fn cpus(numbers: &[u32]) -> CpuSet {
    numbers.iter().copied().map(CpuId).collect()
}

#[test]
fn lists_as_the_kernel_writes_them() {
    for list in ["", "0", "0-3", "0-3,8", "0,2,4,6", "5-7,64-127,8191"] {
        assert_eq!(CpuSet::parse_list(list).unwrap().to_string(), list);
    }
    assert_eq!(CpuSet::parse_list(" 3 , 1-2,\n").unwrap(), cpus(&[1, 2, 3]));
    assert_eq!(
        CpuSet::parse_list("0-9:2/4").unwrap(),
        cpus(&[0, 1, 4, 5, 8, 9])
    );
}

#[test]
fn masks_as_the_kernel_writes_them() {
    // 6 CPUs need two digits, 96 need three words; LSI-era kernels write every word in full.
    assert_eq!(cpus(&[0, 1, 2, 3, 4, 5]).to_mask(6), "3f");
    assert_eq!(cpus(&[72]).to_mask(96), "00000100,00000000,00000000");
    assert_eq!(cpus(&[]).to_mask(40), "00,00000000");
    assert_eq!(cpus(&[63]).to_mask(4), "80000000,00000000");
    assert_eq!(
        CpuSet::parse_mask("00000100,00000000,00000000\n").unwrap(),
        cpus(&[72])
    );
    assert_eq!(
        CpuSet::parse_mask("0x10000000000000001").unwrap(),
        cpus(&[0, 64])
    );
    assert_eq!(CpuSet::parse_mask("").unwrap(), cpus(&[]));
}

#[test]
fn what_is_not_a_set_names_the_place() {
    let error = CpuSet::parse_list("0-3,x7").unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"CPU list "0-3,x7": "x7" at character 4 is not a number or a range such as 0-3"#
    );
    assert!(matches!(
        CpuSet::parse_list("3-1"),
        Err(SetError::Backwards { .. })
    ));
    assert!(matches!(
        NodeSet::parse_list("0-4294967295"),
        Err(SetError::TooHigh { noun: "node", .. })
    ));
    assert!(matches!(
        CpuSet::parse_list("99999999999999999999999"),
        Err(SetError::TooHigh { .. })
    ));
    for text in [
        "-1", "1-", "--", "+3", "1:2", "0-3:0/4", "0-3:5/4", "0-3:1/0", "٣",
    ] {
        assert!(CpuSet::parse_list(text).is_err(), "{text}");
    }
    for text in ["g", "0,,0", "123456789,0", "ä", "-1", "0x"] {
        let answer = CpuSet::parse_mask(text);
        assert!(answer.is_err() || answer.unwrap().is_empty(), "{text}");
    }
    assert!(matches!(
        CpuSet::parse_mask(&format!("1{}", "0".repeat(20_000))),
        Err(SetError::TooHigh { .. })
    ));
}

proptest! {
    #[test]
    fn a_set_behaves_like_a_set(a: BTreeSet<u16>, b: BTreeSet<u16>, probe: u16) {
        let set = |numbers: &BTreeSet<u16>| numbers.iter().map(|&n| CpuId(n.into())).collect::<CpuSet>();
        let numbers = |set: &CpuSet| set.iter().map(|cpu| cpu.0 as u16).collect::<BTreeSet<_>>();
        let (x, y) = (set(&a), set(&b));
        prop_assert_eq!(numbers(&x), a.clone());
        prop_assert_eq!(x.len(), a.len());
        prop_assert_eq!(numbers(&x.union(&y)), &a | &b);
        prop_assert_eq!(numbers(&x.intersection(&y)), &a & &b);
        prop_assert_eq!(numbers(&x.difference(&y)), &a - &b);
        prop_assert_eq!(x.is_subset(&y), a.is_subset(&b));
        prop_assert_eq!(x.intersects(&y), !a.is_disjoint(&b));
        prop_assert_eq!(x.contains(CpuId(probe.into())), a.contains(&probe));
        prop_assert_eq!(x.first().map(|c| c.0 as u16), a.first().copied());
        prop_assert_eq!(x.last().map(|c| c.0 as u16), a.last().copied());
        let mut without = x.clone();
        prop_assert_eq!(without.remove(CpuId(probe.into())), a.contains(&probe));
        prop_assert_eq!(&without, &x.difference(&CpuSet::single(CpuId(probe.into()))));
    }

    #[test]
    fn both_formats_are_read_back(numbers: BTreeSet<u16>, width in 0u32..9000) {
        let set: CpuSet = numbers.iter().map(|&n| CpuId(n.into())).collect();
        prop_assert_eq!(&CpuSet::parse_list(&set.to_string()).unwrap(), &set);
        prop_assert_eq!(&CpuSet::parse_mask(&set.to_mask(width)).unwrap(), &set);
    }

    #[test]
    fn ranges_hold_what_they_say(first in 0u32..=MAX_NUMBER, length in 0u32..500) {
        let last = (first + length).min(MAX_NUMBER);
        let range = CpuSet::range(CpuId(first), CpuId(last));
        prop_assert_eq!(range, (first..=last).map(CpuId).collect::<CpuSet>());
    }

    #[test]
    fn no_text_panics(text in "[-0-9,:/a-fx \\n]{0,40}|\\PC{0,40}") {
        let _ = CpuSet::parse_list(&text);
        let _ = CpuSet::parse_mask(&text);
    }
}

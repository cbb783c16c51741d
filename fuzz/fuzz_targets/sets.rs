//! CPU and node sets in both formats, and PCI addresses: what is read is written and read again.
#![no_main]
use libfuzzer_sys::fuzz_target;
use nearfar_machine::{CpuSet, PciAddress};

fuzz_target!(|text: &str| {
    if let Ok(set) = CpuSet::parse_list(text) {
        assert_eq!(CpuSet::parse_list(&set.to_string()).as_ref(), Ok(&set));
    }
    if let Ok(set) = CpuSet::parse_mask(text) {
        assert_eq!(CpuSet::parse_mask(&set.to_mask(64)).as_ref(), Ok(&set));
    }
    if let Ok(address) = text.parse::<PciAddress>() {
        assert_eq!(address.to_string().parse(), Ok(address));
    }
});

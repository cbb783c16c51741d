//! Which boot of the host this is.

/// `/proc/sys/kernel/random/boot_id`, which every boot draws anew; `None` where it cannot be read.
pub(crate) fn boot_id() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .ok()
        .map(|text| text.trim().to_owned())
}

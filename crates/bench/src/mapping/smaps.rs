//! What `/proc/PID/smaps` says of transparent huge pages (Documentation/filesystems/proc.rst).

/// Bytes of transparent huge pages in the areas of `smaps` that overlap an address range; `None` when none does.
/// Areas are counted whole: neighbours that the kernel merged into one have the same owner here.
pub(super) fn huge_bytes(smaps: &str, start: u64, end: u64) -> Option<u64> {
    let (mut inside, mut found, mut huge) = (false, false, 0u64);
    for line in smaps.lines() {
        if let Some((from, to)) = address_range(line) {
            inside = from < end && to > start;
            found |= inside;
        } else if inside && let Some(size) = line.strip_prefix("AnonHugePages:") {
            let kilobytes = size
                .trim()
                .strip_suffix("kB")
                .and_then(|size| size.trim().parse::<u64>().ok());
            huge = huge.saturating_add(kilobytes.unwrap_or(0).saturating_mul(1024));
        }
    }
    found.then_some(huge)
}

fn address_range(line: &str) -> Option<(u64, u64)> {
    let (from, to) = line.split_whitespace().next()?.split_once('-')?;
    Some((
        u64::from_str_radix(from, 16).ok()?,
        u64::from_str_radix(to, 16).ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "7f0000000000-7f0000400000 rw-p 00000000 00:00 0 \n\
        Size:               4096 kB\nAnonHugePages:      2048 kB\nVmFlags: rd wr\n\
        7f0000400000-7f0000600000 rw-p 00000000 00:00 0\nAnonHugePages:      2048 kB\n";

    #[test]
    fn huge_pages_are_counted_in_the_areas_that_overlap() {
        assert_eq!(
            huge_bytes(SMAPS, 0x7f0000000000, 0x7f0000400000),
            Some(2 << 20)
        );
        assert_eq!(
            huge_bytes(SMAPS, 0x7f0000200000, 0x7f0000600000),
            Some(4 << 20)
        );
        assert_eq!(huge_bytes(SMAPS, 0x1000, 0x2000), None);
        assert_eq!(huge_bytes("", 0, u64::MAX), None);
    }
}

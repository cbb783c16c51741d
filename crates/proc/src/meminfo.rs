//! `/proc/meminfo` and the `meminfo` of a node: a line for each size (proc_meminfo(5)).

use crate::text;

/// A size in bytes, such as `MemAvailable`. One that was cut off, before `kB`, is none.
pub fn bytes(content: &[u8], name: &str) -> Option<u64> {
    text::kilobytes(value(content, name)?)
}

/// A count, such as `HugePages_Total`.
pub fn count(content: &[u8], name: &str) -> Option<u64> {
    text::number(value(content, name)?)
}

/// What follows the name. Lines of a node's file begin with `Node 0`.
fn value<'a>(content: &'a [u8], name: &str) -> Option<&'a [u8]> {
    text::lines(content).find_map(|line| {
        let line = match line.strip_prefix(b"Node ") {
            Some(rest) => {
                let space = rest.iter().position(|&byte| byte == b' ')?;
                rest[space..].trim_ascii_start()
            }
            None => line,
        };
        line.strip_prefix(name.as_bytes())?.strip_prefix(b":")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_the_system_and_of_a_node_are_in_bytes() {
        let content = b"MemTotal:  9 kB\nMemAvailable:    4 kB\nHugepagesize: 2048 kB\n";
        assert_eq!(bytes(content, "MemAvailable"), Some(4096));
        assert_eq!(bytes(content, "Mem"), None);
        assert_eq!(
            bytes(b"Node 0 MemTotal: 3 kB\nNode 0 MemFree: 2 kB\n", "MemFree"),
            Some(2048)
        );
        let pages = b"Node 0 HugePages_Total:     2\n";
        assert_eq!(
            (
                count(pages, "HugePages_Total"),
                bytes(pages, "HugePages_Total")
            ),
            (Some(2), None)
        );
        for cut in [
            "Node 0 MemTotal:  163696",
            "MemTotal:",
            "MemTotal: -4 kB",
            "MemTotal: 18446744073709551615 kB",
        ] {
            assert_eq!(bytes(cut.as_bytes(), "MemTotal"), None, "{cut}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(content: Vec<u8>, line in "(Node [0-9]* )?MemFree:\\PC*") {
            let _ = (bytes(&content, "MemFree"), bytes(line.as_bytes(), "MemFree"), count(&content, "MemFree"));
        }
    }
}

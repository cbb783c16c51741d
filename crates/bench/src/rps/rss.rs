//! Receive side scaling: which queue of a card a connection's packets come in by, as `ethtool -x` and the hash of Toeplitz tell.
//!
//! ```text
//!  RX flow hash indirection table for eth1 with 8 RX ring(s):
//!      0:      0     0     1     1
//!  RSS hash key:
//!  6d:5a:56:da:...
//!  RSS hash function:
//!      toeplitz: on
//! ```
//!
//! Documentation/networking/scaling.rst; the hash is that of Microsoft's RSS specification, over addresses and ports.

use std::net::SocketAddrV4;

/// Shorter keys do not cover addresses and ports: 12 bytes and the 4 of the window.
const MIN_KEY_BYTES: usize = 16;
/// More entries than any card's table has; a bound on what hostile text allocates.
const MAX_ENTRIES: usize = 1 << 16;
/// Ports of a client are taken from here on: below are those of services, above those that the kernel gives.
const FIRST_PORT: u16 = 10_000;
const LAST_PORT: u16 = 32_000;

/// How a card chooses queues.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rss {
    /// A queue for each value of the hash's last bits.
    table: Vec<u32>,
    key: Vec<u8>,
}

/// Why a connection's queue is unknown.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RssError {
    #[error("the card shows no indirection table")]
    NoTable,
    #[error("the card does not say its hash key")]
    NoKey,
    #[error("the card hashes by {0}, not by toeplitz")]
    Function(String),
}

impl Rss {
    /// Reads what `ethtool -x` prints. `host_key` stands for the key of a driver that does not say it:
    /// `/proc/sys/net/core/netdev_rss_key`, of which drivers take the first bytes.
    ///
    /// # Errors
    /// When the table is missing, the key is neither there nor given, or another hash is used.
    pub fn parse(text: &str, host_key: &str) -> Result<Self, RssError> {
        let mut lines = text.lines();
        let (mut table, mut key, mut function) = (Vec::new(), None, None);
        while let Some(line) = lines.next() {
            let line = line.trim();
            match line {
                "RSS hash key:" => key = lines.next().and_then(hexadecimal),
                _ if line.ends_with(": on") => function = line.strip_suffix(": on"),
                _ => table.extend(entries(line)),
            }
            table.truncate(MAX_ENTRIES);
        }
        if table.is_empty() {
            return Err(RssError::NoTable);
        }
        if let Some(other) = function.filter(|it| *it != "toeplitz") {
            return Err(RssError::Function(other.chars().take(32).collect()));
        }
        let is_long = |key: &Vec<u8>| key.len() >= MIN_KEY_BYTES && key.iter().any(|&it| it != 0);
        let key = key
            .filter(is_long)
            .or_else(|| hexadecimal(host_key).filter(is_long));
        Ok(Self {
            table,
            key: key.ok_or(RssError::NoKey)?,
        })
    }

    /// The queue of the packets from `source` to `destination`.
    pub fn queue(&self, source: SocketAddrV4, destination: SocketAddrV4) -> u32 {
        let hash = toeplitz(&self.key, &tuple(source, destination));
        self.table[hash as usize % self.table.len()]
    }

    /// Ports of `source` whose packets come in by the queue, lowest first.
    pub fn ports(
        &self,
        source: SocketAddrV4,
        destination: SocketAddrV4,
        queue: u32,
    ) -> impl Iterator<Item = u16> {
        (FIRST_PORT..LAST_PORT).filter(move |&port| {
            let source = SocketAddrV4::new(*source.ip(), port);
            self.queue(source, destination) == queue
        })
    }
}

/// The queues of a row: `8: 0 0 1 1`.
fn entries(line: &str) -> Vec<u32> {
    let Some((first, queues)) = line.split_once(':') else {
        return Vec::new();
    };
    let queues = queues
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>();
    match first.parse::<u32>() {
        Ok(_) => queues.unwrap_or_default(),
        Err(_) => Vec::new(),
    }
}

/// `6d:5a:56`.
fn hexadecimal(line: &str) -> Option<Vec<u8>> {
    let byte = |text| u8::from_str_radix(text, 16).ok();
    line.trim().split(':').map(byte).collect()
}

/// What is hashed: both addresses, then both ports, each most significant byte first.
fn tuple(source: SocketAddrV4, destination: SocketAddrV4) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&source.ip().octets());
    bytes[4..8].copy_from_slice(&destination.ip().octets());
    bytes[8..10].copy_from_slice(&source.port().to_be_bytes());
    bytes[10..].copy_from_slice(&destination.port().to_be_bytes());
    bytes
}

/// For each bit that is set in the input, the 32 bits of the key from there on.
fn toeplitz(key: &[u8], input: &[u8]) -> u32 {
    let bit = |bytes: &[u8], at: usize| {
        bytes
            .get(at / 8)
            .is_some_and(|it| it & (0x80 >> (at % 8)) != 0)
    };
    let mut window = u32::from_be_bytes([key[0], key[1], key[2], key[3]]);
    let mut hash = 0;
    for at in 0..input.len() * 8 {
        if bit(input, at) {
            hash ^= window;
        }
        window = window << 1 | u32::from(bit(key, at + 32));
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "6d:5a:56:da:25:5b:0e:c2:41:67:25:3d:43:a3:8f:b0:d0:ca:2b:cb:ae:7b:30:b4:77:cb:2d:a3:80:30:f2:0c:6a:42:b7:3b:be:ac:01:fa";

    fn printed(key: &str, function: &str) -> String {
        format!(
            "RX flow hash indirection table for eth1 with 4 RX ring(s):\n    0:      0     1     2     3\n    \
             4:      0     1     2     3\nRSS hash key:\n{key}\nRSS hash function:\n    toeplitz: {function}\n    crc32: off\n"
        )
    }

    /// The vectors of Microsoft's specification.
    #[test]
    fn the_hash_is_that_of_the_specification() {
        for (source, destination, expected) in [
            ("66.9.149.187:2794", "161.142.100.80:1766", 0x51cc_c178),
            ("199.92.111.2:14230", "65.69.140.83:4739", 0xc626_b0ea),
            ("24.19.198.95:12898", "12.22.207.184:38024", 0x5c2b_394a),
        ] {
            let input = tuple(source.parse().unwrap(), destination.parse().unwrap());
            assert_eq!(toeplitz(&hexadecimal(KEY).unwrap(), &input), expected);
        }
    }

    #[test]
    fn ports_lead_to_the_queue_that_is_asked_for() {
        let rss = Rss::parse(&printed(KEY, "on"), "").unwrap();
        let (source, destination) = (
            "198.18.0.2:0".parse().unwrap(),
            "198.18.0.1:6379".parse().unwrap(),
        );
        for queue in 0..4 {
            let ports: Vec<u16> = rss.ports(source, destination, queue).take(3).collect();
            assert_eq!(ports.len(), 3);
            let of = |port| SocketAddrV4::new(*source.ip(), port);
            assert!(
                ports
                    .iter()
                    .all(|&port| rss.queue(of(port), destination) == queue)
            );
        }
        assert_eq!(rss.ports(source, destination, 4).count(), 0);
    }

    #[test]
    fn a_driver_without_a_key_has_the_kernels() {
        let unsaid = printed("Operation not supported", "on");
        assert_eq!(Rss::parse(&unsaid, "00:00:00\n"), Err(RssError::NoKey));
        assert_eq!(
            Rss::parse(&unsaid, KEY),
            Rss::parse(&printed(KEY, "on"), "")
        );
        assert_eq!(Rss::parse("", KEY), Err(RssError::NoTable));
        let other = printed(KEY, "off").replace("crc32: off", "crc32: on");
        assert_eq!(
            Rss::parse(&other, KEY),
            Err(RssError::Function("crc32".into()))
        );
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in "(RSS hash key:\n|[0-9]{1,4}:( [0-9]{1,12}){0,9}\n|.{0,20}\n|([0-9a-f]{2}:){0,50}0\n){0,6}", key: String) {
            if let Ok(rss) = Rss::parse(&text, &key) {
                rss.queue("1.2.3.4:5".parse().unwrap(), "6.7.8.9:10".parse().unwrap());
            }
        }
    }
}

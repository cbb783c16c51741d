//! Network interfaces that are used for a while: a card that moves to another network namespace, one that gets an address.
//!
//! A namespace that only the maker's threads hold needs no record: the kernel removes it with the last of them, and with it its
//! virtual interfaces. Its cards come back to the first namespace, but down. Addresses and states are put back here.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nearfar_proc::child;
use serde::{Deserialize, Serialize};

use crate::lease::UndoStatus;

/// The kernel's IFNAMSIZ, with the zero at the end (include/uapi/linux/if.h).
const MAX_NAME_BYTES: usize = 16;
/// 198.18.0.0/15, which RFC 2544 keeps for benchmarks: the only addresses that a lease gives and takes.
const BENCHMARK_NET: [u8; 2] = [198, 18];
/// How long a card may take to come back from a namespace that is gone.
const BACK_WITHIN: Duration = Duration::from_secs(5);
const BACK_CHECK: Duration = Duration::from_millis(20);
/// include/uapi/linux/if.h.
const IFF_UP: u32 = 1;

/// An interface that is changed for a while.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Interface {
    pub(crate) name: String,
    /// The address that it gets.
    pub(crate) address: Option<Ipv4Addr>,
    /// Whether it was up before.
    pub(crate) was_up: bool,
}

impl Interface {
    /// The interface as it is now.
    ///
    /// # Errors
    /// Where there is none of this name.
    pub(super) fn now(name: &str, address: Option<Ipv4Addr>) -> io::Result<Self> {
        let name = name.to_owned();
        let was_up = is_up(&name)?;
        let made = Self {
            name,
            address,
            was_up,
        };
        match made.is_good() {
            true => Ok(made),
            false => Err(io::Error::other(
                "not an interface's name, or an address outside 198.18.0.0/15",
            )),
        }
    }

    /// Whether a lease can have changed it.
    pub(super) fn is_good(&self) -> bool {
        let name = self.name.as_bytes();
        let in_benchmark_net = |address: Ipv4Addr| {
            let [first, second, ..] = address.octets();
            [first, second & 0xfe] == BENCHMARK_NET
        };
        (1..MAX_NAME_BYTES).contains(&name.len())
            && !name.starts_with(b"-")
            && name
                .iter()
                .all(|&byte| byte.is_ascii_graphic() && byte != b'/')
            && ![".", ".."].contains(&self.name.as_str())
            && self.address.is_none_or(in_benchmark_net)
    }

    /// Adds the address, with a network of 256 addresses around it, and starts the interface.
    pub(super) fn set(&self) -> io::Result<()> {
        if let Some(address) = self.address {
            ip(&[
                "address",
                "add",
                &format!("{address}/24"),
                "dev",
                &self.name,
            ])?;
        }
        ip(&["link", "set", "dev", &self.name, "up"])
    }

    pub(super) fn restore(&self) -> io::Result<UndoStatus> {
        let until = Instant::now() + BACK_WITHIN;
        while is_up(&self.name).is_err() {
            if Instant::now() > until {
                return Ok(UndoStatus::Gone);
            }
            sleep(BACK_CHECK);
        }
        if let Some(address) = self.address {
            // One that is gone already is as wanted: what is left is asked below.
            let removed = ip(&[
                "address",
                "del",
                &format!("{address}/24"),
                "dev",
                &self.name,
            ]);
            if let (Err(error), true) = (removed, has_address(&self.name, address)?) {
                return Err(error);
            }
        }
        let state = if self.was_up { "up" } else { "down" };
        if is_up(&self.name)? != self.was_up {
            ip(&["link", "set", "dev", &self.name, state])?;
        }
        Ok(UndoStatus::Removed)
    }
}

fn is_up(name: &str) -> io::Result<bool> {
    let path = Path::new("/sys/class/net").join(name).join("flags");
    let flags = fs::read_to_string(path)?;
    let digits = flags.trim().trim_start_matches("0x");
    let flags = u32::from_str_radix(digits, 16).map_err(|_| {
        io::Error::other(format!("its flags are {digits:?}, which is not a number"))
    })?;
    Ok(flags & IFF_UP != 0)
}

/// Whether any interface has an address. Undoing would take it from there.
pub(super) fn is_taken(address: Ipv4Addr) -> io::Result<bool> {
    let address = address.to_string();
    let words = ["-oneline", "-4", "address", "show", "to", &address];
    Ok(!child::output("ip", &words)?.trim().is_empty())
}

fn has_address(name: &str, address: Ipv4Addr) -> io::Result<bool> {
    let mut command = Command::new("ip");
    command.args(["-oneline", "-4", "address", "show", "dev", name]);
    // It may be gone meanwhile, and has none then.
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.contains(&format!(" {address}/")))
}

/// Runs `ip` of iproute2.
fn ip(words: &[&str]) -> io::Result<()> {
    child::output("ip", words).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_cannot_take_away_addresses_that_no_lease_gave() {
        let good = |name: &str, address: Option<&str>| {
            let address = address.map(|it| it.parse().unwrap());
            let name = name.to_owned();
            let was_up = false;
            Interface {
                name,
                address,
                was_up,
            }
            .is_good()
        };
        assert!(good("eth0", None) && good("enp0s31f6", Some("198.19.255.1")));
        for name in ["", "..", "-f", "a/b", "a b", "a234567890123456"] {
            assert!(!good(name, None), "{name}");
        }
        for address in ["198.20.0.1", "192.168.0.1", "127.0.0.1"] {
            assert!(!good("eth0", Some(address)), "{address}");
        }
    }

    #[test]
    fn an_interface_that_is_not_there_cannot_be_changed() {
        assert!(Interface::now("nearfar-none", None).is_err());
    }
}

//! The end of a reply in redis' protocol (RESP2).

/// Longest value that redis has.
const MAX_VALUE_BYTES: usize = 512 << 20;
/// The longest line of a length or a status that is waited for.
const MAX_LINE_BYTES: usize = 4096;

/// A reply that is not one.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReplyError {
    #[error("the server answers with an error: {0}")]
    Refused(String),
    #[error("the server does not speak redis' protocol: its reply begins with {0:?}")]
    Unknown(String),
}

/// Bytes of the reply at the start of `bytes`; `None` while it is incomplete.
///
/// # Errors
/// When the server answers with an error, or what it sends is no status, number or value.
pub fn length(bytes: &[u8]) -> Result<Option<usize>, ReplyError> {
    let unknown = || ReplyError::Unknown(shown(bytes));
    let Some(&kind) = bytes.first() else {
        return Ok(None);
    };
    if !b"+-:$".contains(&kind) {
        return Err(unknown());
    }
    let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else {
        return match bytes.len() > MAX_LINE_BYTES {
            true => Err(unknown()),
            false => Ok(None),
        };
    };
    let (line, after) = (&bytes[1..end], end + 2);
    match kind {
        b'-' => Err(ReplyError::Refused(shown(line))),
        b'$' if line == b"-1" => Ok(Some(after)),
        b'$' => {
            let text = std::str::from_utf8(line).map_err(|_| unknown())?;
            let value: usize = text.parse().map_err(|_| unknown())?;
            if value > MAX_VALUE_BYTES {
                return Err(unknown());
            }
            let all = after + value + 2;
            Ok((bytes.len() >= all).then_some(all))
        }
        _ => Ok(Some(after)),
    }
}

fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_ends_where_its_kind_says() {
        for (bytes, expected) in [
            (&b""[..], None),
            (b"+OK", None),
            (b"+OK\r\n+OK\r\n", Some(5)),
            (b":12\r\n", Some(5)),
            (b"$-1\r\n", Some(5)),
            (b"$3\r\nab", None),
            (b"$3\r\nabc\r", None),
            (b"$3\r\nabc\r\n$", Some(9)),
            (b"$0\r\n\r\n", Some(6)),
        ] {
            assert_eq!(length(bytes), Ok(expected), "{bytes:?}");
        }
    }

    #[test]
    fn what_is_no_reply_is_an_error() {
        let refused = length(b"-NOAUTH Authentication required.\r\n").unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the server answers with an error: NOAUTH Authentication required."
        );
        for bytes in [
            &b"HTTP/1.1 400"[..],
            b"$x\r\n",
            b"$-2\r\n",
            b"$99999999999\r\n",
            b"*1\r\n",
        ] {
            assert!(
                matches!(length(bytes), Err(ReplyError::Unknown(_))),
                "{bytes:?}"
            );
        }
        assert!(length(&[b'+'; 5000]).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, line in "[-+:$][0-9-]{0,12}\r\n.{0,20}") {
            for bytes in [bytes.as_slice(), line.as_bytes()] {
                if let Ok(Some(length)) = length(bytes) {
                    assert!(length <= bytes.len());
                }
            }
        }
    }
}

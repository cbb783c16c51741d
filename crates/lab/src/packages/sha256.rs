//! SHA-256 of files.

use std::fmt::Write;
use std::fs::File;
use std::io;
use std::path::Path;

use sha2::{Digest, Sha256};

/// The sum of a file, in lower case hexadecimal digits.
pub fn of_file(path: &Path) -> io::Result<String> {
    let mut hasher = Sha256::new();
    let mut file = File::open(path)?;
    let mut block = vec![0; 1 << 20];
    loop {
        match io::Read::read(&mut file, &mut block)? {
            0 => break,
            length => hasher.update(&block[..length]),
        }
    }
    Ok(digits(hasher))
}

/// The sum of some bytes.
pub fn of_bytes(bytes: &[u8]) -> String {
    digits(Sha256::new_with_prefix(bytes))
}

fn digits(hasher: Sha256) -> String {
    hasher
        .finalize()
        .iter()
        .fold(String::new(), |mut text, byte| {
            // Writing to a string never fails.
            let _ = write!(text, "{byte:02x}");
            text
        })
}

//! Who may read the metrics, and how: the web configuration file that Prometheus' own exporters take (`--web.config.file`,
//! docs/web-configuration.md of prometheus/exporter-toolkit).
//!
//! Of its settings, those for certificates, versions of TLS, clients with a certificate, users and headers are here. A file with another
//! one is refused: a restriction that is asked for and ignored would be none.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bcrypt::HashParts;
use nearfar_proc::error_text;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};
use serde::{Deserialize, Deserializer};

/// A password whose hash costs more holds up all other clients for more than a second.
const MAX_COST: u32 = 14;
/// Headers that may be added to answers.
const HEADERS: [&str; 5] = [
    "Content-Security-Policy",
    "X-Frame-Options",
    "X-Content-Type-Options",
    "X-XSS-Protection",
    "Strict-Transport-Security",
];

/// What the server asks of its clients, and adds to its answers. By itself nothing: plain HTTP for all.
#[derive(Clone, Debug, Default)]
pub struct WebConfig {
    pub(crate) tls: Option<Arc<ServerConfig>>,
    needs_certificate: bool,
    /// Names with hashes of bcrypt; without any, all may read.
    users: BTreeMap<String, String>,
    /// Lines of an answer's head.
    pub(crate) headers: String,
    files: Files,
}

/// The files that were read.
#[derive(Clone, Debug, Default)]
struct Files(Vec<(PathBuf, Option<Stamp>)>);

/// What changes when a file is written or replaced: device, inode, size, time of change.
type Stamp = (u64, u64, u64, i64, i64);

impl Files {
    /// The stamp is that of the content or of an older one: what is written meanwhile is noticed later.
    fn read(&mut self, path: &Path) -> Result<Vec<u8>, WebConfigError> {
        self.0.push((path.to_owned(), stamp(path)));
        fs::read(path).map_err(|error| WebConfigError::File {
            path: path.to_owned(),
            error,
        })
    }

    fn certificates(
        &mut self,
        path: &Path,
    ) -> Result<Vec<CertificateDer<'static>>, WebConfigError> {
        let text = self.read(path)?;
        let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
        match all {
            Ok(all) if !all.is_empty() => Ok(all),
            Ok(_) => Err(not_pem(path, "certificate", &pem::Error::NoItemsFound)),
            Err(error) => Err(not_pem(path, "certificate", &error)),
        }
    }

    fn key(&mut self, path: &Path) -> Result<PrivateKeyDer<'static>, WebConfigError> {
        let text = self.read(path)?;
        PrivateKeyDer::from_pem_slice(&text).map_err(|error| not_pem(path, "private key", &error))
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let of = fs::metadata(path).ok()?;
    Some((of.dev(), of.ino(), of.size(), of.ctime(), of.ctime_nsec()))
}

fn not_pem(path: &Path, what: &str, error: &pem::Error) -> WebConfigError {
    let reason = match error {
        pem::Error::NoItemsFound => "there is none".to_owned(),
        pem::Error::MissingSectionEnd { .. } => "it is cut off".to_owned(),
        error => error.to_string(),
    };
    WebConfigError::Content {
        path: path.to_owned(),
        reason: format!("no {what} in PEM: {reason}"),
    }
}

/// Why a file is refused.
#[derive(Debug, thiserror::Error)]
pub enum WebConfigError {
    #[error("{}: {}", path.display(), error_text(error))]
    File { path: PathBuf, error: io::Error },
    #[error("{}: {reason}", path.display())]
    Content { path: PathBuf, reason: String },
}

/// What is there has content: a file that is just being written must not ask for less than it will.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    #[serde(default, deserialize_with = "with_content")]
    tls_server_config: Option<Tls>,
    #[serde(default, deserialize_with = "with_content")]
    http_server_config: Option<Http>,
    #[serde(default, deserialize_with = "with_content")]
    basic_auth_users: Option<BTreeMap<String, String>>,
}

fn with_content<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    value: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(value).map(Some)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tls {
    cert_file: PathBuf,
    key_file: PathBuf,
    #[serde(default)]
    client_auth_type: ClientAuth,
    client_ca_file: Option<PathBuf>,
    #[serde(default)]
    min_version: Option<Version>,
    #[serde(default)]
    max_version: Option<Version>,
}

/// As Go's crypto/tls names them; those that take a certificate without verifying it are refused.
#[derive(Clone, Copy, PartialEq, Eq, Default, Deserialize)]
enum ClientAuth {
    #[default]
    NoClientCert,
    VerifyClientCertIfGiven,
    RequireAndVerifyClientCert,
}

/// What TLS can be here; older versions are broken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
enum Version {
    #[serde(rename = "TLS12")]
    Tls12,
    #[serde(rename = "TLS13")]
    Tls13,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Http {
    /// The server speaks HTTP/1.1 only, with or without.
    #[serde(default, rename = "http2")]
    _http2: Option<bool>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
}

impl WebConfig {
    /// Reads the file and those that it names, relative ones from its own directory.
    ///
    /// # Errors
    /// When one of them cannot be read, or has what cannot be done.
    pub fn read(path: &Path) -> Result<Self, WebConfigError> {
        let wrong = |reason: String| WebConfigError::Content {
            path: path.to_owned(),
            reason,
        };
        let mut files = Files::default();
        let content = files.read(path)?;
        // Lines of the file are no part of an error: hashes stand in them, and passwords that were taken for hashes.
        let options = serde_saphyr::options! { with_snippet: false };
        let content: Content = serde_saphyr::from_slice_with_options(&content, options)
            .map_err(|error| wrong(error.to_string()))?;
        let (tls, http, users) = (
            content.tls_server_config,
            content.http_server_config,
            content.basic_auth_users,
        );
        if tls.is_none() && http.is_none() && users.is_none() {
            return Err(wrong("it has no configuration".to_owned()));
        }
        let users = users.unwrap_or_default();
        for (user, hash) in &users {
            check_user(user, hash).map_err(wrong)?;
        }
        let base = path.parent().unwrap_or(Path::new(""));
        let server = tls.as_ref().map(|tls| tls.server(path, base, &mut files));
        let config = Self {
            needs_certificate: tls.as_ref().is_some_and(Tls::needs_certificate),
            tls: server.transpose()?.map(Arc::new),
            users,
            headers: header_lines(&http.unwrap_or_default().headers).map_err(wrong)?,
            files,
        };
        match config.is_current() {
            true => Ok(config),
            false => Err(wrong("it changed while it was read".to_owned())),
        }
    }

    /// Reads the file again.
    ///
    /// # Errors
    /// As [`WebConfig::read`]; and when it asks for less than it did: for no TLS, no certificate of clients or no password any more.
    pub fn read_again(&self, path: &Path) -> Result<Self, WebConfigError> {
        let new = Self::read(path)?;
        let less = [
            ("TLS", self.tls.is_some() && new.tls.is_none()),
            (
                "a certificate of clients",
                self.needs_certificate && !new.needs_certificate,
            ),
            ("a password", self.has_users() && !new.has_users()),
        ];
        match less.iter().find(|(_, is_less)| *is_less) {
            None => Ok(new),
            Some((what, _)) => Err(WebConfigError::Content {
                path: path.to_owned(),
                reason: format!("it no longer asks for {what}: that takes a restart"),
            }),
        }
    }

    /// Whether a client with this `Authorization` header may read.
    pub(crate) fn admits(&self, authorization: Option<&[u8]>) -> bool {
        // Whether there is such a user is not seen from the time that it takes, if all hashes cost the same.
        let Some(any) = self.users.values().next() else {
            return true;
        };
        let Some((user, password)) = authorization.and_then(basic) else {
            return false;
        };
        let hash = self.users.get(&user);
        bcrypt::verify(password, hash.unwrap_or(any)).is_ok_and(|is_it| is_it && hash.is_some())
    }

    /// Whether the files are as they were read.
    pub fn is_current(&self) -> bool {
        let mut files = self.files.0.iter();
        files.all(|(path, read)| stamp(path) == *read)
    }

    /// Whether clients need a password.
    pub(crate) fn has_users(&self) -> bool {
        !self.users.is_empty()
    }

    /// Whether passwords can be read on their way.
    pub fn has_open_passwords(&self) -> bool {
        self.has_users() && self.tls.is_none()
    }

    /// `https` or `http`.
    pub fn scheme(&self) -> &'static str {
        match self.tls {
            Some(_) => "https",
            None => "http",
        }
    }
}

/// User and password of `Basic dXNlcjpwYXNzd29yZA==` (RFC 7617).
fn basic(header: &[u8]) -> Option<(String, Vec<u8>)> {
    let (scheme, encoded) = header.split_at_checked(6)?;
    let is_basic = scheme.eq_ignore_ascii_case(b"Basic ");
    let decoded = STANDARD.decode(encoded.trim_ascii()).ok()?;
    let colon = decoded.iter().position(|&byte| byte == b':')?;
    let user = String::from_utf8(decoded[..colon].to_vec()).ok()?;
    is_basic.then(|| (user, decoded[colon + 1..].to_vec()))
}

fn check_user(user: &str, hash: &str) -> Result<(), String> {
    let parts: HashParts = hash.parse().map_err(|_| {
        format!(
            "basic_auth_users: {user}: no hash of bcrypt, as `htpasswd -nBC 10 {user}` makes one"
        )
    })?;
    match parts.get_cost() <= MAX_COST {
        true => Ok(()),
        false => Err(format!(
            "basic_auth_users: {user}: a hash of cost {} takes too long, {MAX_COST} is the most",
            parts.get_cost()
        )),
    }
}

fn header_lines(headers: &BTreeMap<String, String>) -> Result<String, String> {
    let mut lines = String::new();
    for (name, value) in headers {
        if !HEADERS.contains(&name.as_str()) {
            return Err(format!(
                "http_server_config: headers: {name} is none of {}",
                HEADERS.join(", ")
            ));
        }
        if value.chars().any(char::is_control) {
            return Err(format!(
                "http_server_config: headers: {name}: no text of one line"
            ));
        }
        if !value.is_empty() {
            lines += &format!("{name}: {value}\r\n");
        }
    }
    Ok(lines)
}

impl Tls {
    fn needs_certificate(&self) -> bool {
        self.client_auth_type == ClientAuth::RequireAndVerifyClientCert
    }

    fn server(
        &self,
        path: &Path,
        base: &Path,
        files: &mut Files,
    ) -> Result<ServerConfig, WebConfigError> {
        let wrong = |reason: String| WebConfigError::Content {
            path: path.to_owned(),
            reason: format!("tls_server_config: {reason}"),
        };
        let certificates = files.certificates(&base.join(&self.cert_file))?;
        let key = files.key(&base.join(&self.key_file))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let (from, to) = (self.min_version, self.max_version);
        let versions: Vec<&SupportedProtocolVersion> = [
            (Version::Tls12, &rustls::version::TLS12),
            (Version::Tls13, &rustls::version::TLS13),
        ]
        .into_iter()
        .filter(|(version, _)| from.is_none_or(|it| it <= *version))
        .filter(|(version, _)| to.is_none_or(|it| it >= *version))
        .map(|it| it.1)
        .collect();
        if versions.is_empty() {
            return Err(wrong("min_version is above max_version".to_owned()));
        }
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&versions)
            .map_err(|error| wrong(error.to_string()))?;
        let builder = match (self.client_auth_type, &self.client_ca_file) {
            (ClientAuth::NoClientCert, None) => builder.with_no_client_auth(),
            (ClientAuth::NoClientCert, Some(_)) => {
                return Err(wrong(
                    "client_ca_file without client_auth_type: no client needs a certificate"
                        .to_owned(),
                ));
            }
            (_, None) => return Err(wrong("client_auth_type without client_ca_file".to_owned())),
            (kind, Some(ca)) => {
                let mut roots = RootCertStore::empty();
                let ca = base.join(ca);
                for certificate in files.certificates(&ca)? {
                    roots
                        .add(certificate)
                        .map_err(|error| wrong(format!("{}: {error}", ca.display())))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = match kind {
                    ClientAuth::VerifyClientCertIfGiven => verifier.allow_unauthenticated(),
                    _ => verifier,
                };
                let verifier = verifier.build().map_err(|error| wrong(error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        builder
            .with_single_cert(certificates, key)
            .map_err(|error| {
                let (certificate, key) = (self.cert_file.display(), self.key_file.display());
                wrong(match error {
                    rustls::Error::InconsistentKeys(_) => {
                        format!("{key} is not the key of {certificate}")
                    }
                    error => format!("{certificate}: {error}"),
                })
            })
    }
}

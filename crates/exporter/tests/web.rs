//! The server with a web configuration: TLS, certificates of clients, passwords, headers; and files that are refused.
//!
//! The certificates in `web/` were made by openssl for these tests and are valid until 2126; the hash is libcrypt's.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nearfar_exporter::{Page, Running, Server, Shared, WebConfig};
use proptest::prelude::*;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// Of `far away`.
const HASH: &str = "$2y$04$abcdefghijklmnopqrstuuY5vsNbwHdX77hfuPssCAcQiQw4DLNQS";
const TLS: &str = "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n";

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/web")
        .join(name)
}

/// A directory with the certificates and a configuration.
fn directory(content: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    for name in ["ca.pem", "server.pem", "server.key"] {
        fs::copy(fixture(name), directory.path().join(name)).unwrap();
    }
    let file = directory.path().join("web.yml");
    fs::write(&file, content).unwrap();
    (directory, file)
}

fn read(content: &str) -> Result<WebConfig, String> {
    let (_directory, file) = directory(content);
    let within = format!("{}/", file.parent().unwrap().display());
    WebConfig::read(&file).map_err(|error| error.to_string().replace(&within, ""))
}

struct Served {
    address: SocketAddr,
    config: Shared<WebConfig>,
    _running: Running,
}

fn serve(config: WebConfig, page: &str) -> Served {
    let server = Server::bind(([127, 0, 0, 1], 0).into()).unwrap();
    let address = server.address().unwrap();
    let config = Shared::new(config);
    let running = server.start(Page::new(page), config.clone()).unwrap();
    Served {
        address,
        config,
        _running: running,
    }
}

fn request(headers: &str) -> String {
    format!("GET /metrics HTTP/1.1\r\nHost: a\r\n{headers}\r\n")
}

/// A client that waits for no answer that does not come.
fn connect(served: &Served) -> TcpStream {
    let stream = TcpStream::connect(served.address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    stream
}

fn plain(served: &Served, headers: &str) -> String {
    let mut stream = connect(served);
    stream.write_all(request(headers).as_bytes()).unwrap();
    let mut answer = Vec::new();
    // What is no answer may be a reset as well.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

type Secure = StreamOwned<ClientConnection, TcpStream>;

/// A session over TLS, with or without the certificate of a client.
fn session(
    served: &Served,
    has_certificate: bool,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> Secure {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(fixture("ca.pem")).unwrap())
        .unwrap();
    let builder =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_protocol_versions(versions).unwrap();
    let builder = builder.with_root_certificates(roots);
    let client = match has_certificate {
        false => builder.with_no_client_auth(),
        true => {
            let certificate = CertificateDer::from_pem_file(fixture("client.pem")).unwrap();
            let key = PrivateKeyDer::from_pem_file(fixture("client.key")).unwrap();
            builder
                .with_client_auth_cert(vec![certificate], key)
                .unwrap()
        }
    };
    let session = ClientConnection::new(Arc::new(client), "localhost".try_into().unwrap()).unwrap();
    StreamOwned::new(session, connect(served))
}

/// The answer over TLS.
fn secure(
    served: &Served,
    has_certificate: bool,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> std::io::Result<String> {
    let mut stream = session(served, has_certificate, versions);
    // More than one record, and more than one read of the server.
    let long = format!("X: {}\r\n", "y".repeat(5000));
    stream.write_all(request(&long).as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(String::from_utf8(answer).unwrap())
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_default()
}

#[test]
fn a_page_of_megabytes_is_read_by_tls_of_each_version_and_by_none_without() {
    let page = "nearfar_x 1\n".repeat(200_000);
    let served = serve(read(TLS).unwrap(), &page);
    for version in [&TLS12, &TLS13] {
        let answer = secure(&served, false, &[version]).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert_eq!(status(head), "200");
        assert!(body == page, "{} bytes", body.len());
    }
    assert!(!plain(&served, "").contains("nearfar_x"));
    let only_new = read(&format!("{TLS}  min_version: TLS13\n")).unwrap();
    served.config.replace(only_new);
    assert!(secure(&served, false, &[&TLS12]).is_err());
    assert!(secure(&served, false, &[&TLS13]).is_ok());
}

/// The page is larger than what the sockets hold, so the server waits for the client, who sends no more.
#[test]
fn a_slow_client_that_has_ended_its_side_reads_all() {
    let page = "nearfar_x 1\n".repeat(2_000_000);
    let served = serve(read(TLS).unwrap(), &page);
    let mut stream = session(&served, false, &[&TLS13]);
    stream.write_all(request("").as_bytes()).unwrap();
    let mut begin = [0; 15];
    stream.read_exact(&mut begin).unwrap();
    assert_eq!(&begin, b"HTTP/1.1 200 OK");
    stream.sock.shutdown(Shutdown::Write).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.ends_with(page.as_bytes()), "{} bytes", answer.len());
}

#[test]
fn a_client_needs_a_certificate_where_one_is_required() {
    let with = |kind: &str| {
        read(&format!(
            "{TLS}  client_ca_file: ca.pem\n  client_auth_type: {kind}\n"
        ))
        .unwrap()
    };
    let served = serve(with("RequireAndVerifyClientCert"), "page\n");
    let ask = |has_certificate| secure(&served, has_certificate, &[&TLS13]);
    assert_eq!(status(&ask(true).unwrap()), "200");
    assert!(ask(false).is_err());
    served.config.replace(with("VerifyClientCertIfGiven"));
    assert_eq!(status(&ask(true).unwrap()), "200");
    assert_eq!(status(&ask(false).unwrap()), "200");
}

#[test]
fn who_has_no_password_reads_nothing() {
    let users = format!("basic_auth_users:\n  prometheus: {HASH}\n");
    let served = serve(read(&users).unwrap(), "page\n");
    let ask = |credentials: &str| {
        plain(
            &served,
            &format!("authorization: basic {}\r\n", encoded(credentials)),
        )
    };
    for _ in 0..2 {
        assert!(ask("prometheus:far away").ends_with("\r\n\r\npage\n"));
    }
    let refused = plain(&served, "");
    assert!(
        refused.contains("\r\nWWW-Authenticate: Basic\r\n"),
        "{refused}"
    );
    assert!(!refused.contains("page"), "{refused}");
    for wrong in [
        "prometheus:far",
        "prometheus:",
        "other:far away",
        ":far away",
        "prometheus",
    ] {
        assert_eq!(status(&ask(wrong)), "401", "{wrong}");
    }
    assert_eq!(
        status(&plain(&served, "Authorization: Bearer x\r\n")),
        "401"
    );
    // Who has left is not remembered.
    let others = format!("basic_auth_users:\n  other: {HASH}\n");
    served.config.replace(read(&others).unwrap());
    assert_eq!(status(&ask("prometheus:far away")), "401");
    assert_eq!(status(&ask("other:far away")), "200");
}

fn encoded(credentials: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(credentials)
}

#[test]
fn headers_are_added_to_each_answer() {
    let headers = "http_server_config:\n  http2: false\n  headers:\n    X-Frame-Options: deny\n    \
                   X-Content-Type-Options: nosniff\n    Content-Security-Policy: ''\n";
    let served = serve(read(headers).unwrap(), "page\n");
    let answer = plain(&served, "");
    assert!(answer.contains("\r\nX-Frame-Options: deny\r\n"), "{answer}");
    assert_eq!(
        answer.matches("X-Content-Type-Options").count(),
        1,
        "{answer}"
    );
    assert!(!answer.contains("Content-Security-Policy"), "{answer}");
}

#[test]
fn what_cannot_be_done_is_refused_with_its_name() {
    for (content, expected) in [
        (
            "tls_server_config:\n  cert_file: server.pem\n",
            "missing field `key_file`",
        ),
        (
            &format!("{TLS}  client_allowed_sans: [a]\n"),
            "client_allowed_sans",
        ),
        (&format!("{TLS}  min_version: TLS10\n"), "TLS10"),
        (
            &format!("{TLS}  min_version: TLS13\n  max_version: TLS12\n"),
            "min_version is above max_version",
        ),
        (
            &format!("{TLS}  client_auth_type: RequireAnyClientCert\n"),
            "RequireAnyClientCert",
        ),
        (
            &format!("{TLS}  client_auth_type: RequireAndVerifyClientCert\n"),
            "client_auth_type without client_ca_file",
        ),
        (
            &format!("{TLS}  client_ca_file: ca.pem\n"),
            "client_ca_file without client_auth_type",
        ),
        (
            &TLS.replace("server.key", "gone.key"),
            "gone.key: No such file or directory",
        ),
        (
            &TLS.replace("server.key", "ca.pem"),
            "ca.pem: no private key in PEM",
        ),
        (
            &TLS.replace("server.pem", "server.key"),
            "server.key: no certificate in PEM: there is none",
        ),
        (
            &TLS.replace("server.pem", "ca.pem"),
            "tls_server_config: server.key is not the key of ca.pem",
        ),
        (
            "basic_auth_users:\n  a: secret\n",
            "basic_auth_users: a: no hash of bcrypt",
        ),
        (
            &format!("basic_auth_users:\n  a: {}\n", HASH.replace("$04$", "$20$")),
            "basic_auth_users: a: a hash of cost 20 takes too long, 14 is the most",
        ),
        ("rate_limit:\n  interval: 1s\n", "rate_limit"),
        (
            "http_server_config:\n  headers:\n    X-Other: a\n",
            "X-Other is none of",
        ),
        (
            "http_server_config:\n  headers:\n    X-Frame-Options: \"a\\r\\nb\"\n",
            "no text of one line",
        ),
        ("a: [", "web.yml"),
        ("", "it has no configuration"),
        ("# only a comment\n", "it has no configuration"),
        ("tls_server_config:\n", "web.yml"),
        ("basic_auth_users:\n", "web.yml"),
        (
            &format!("basic_auth_users:\n  prometheus: {HASH}\nrate_limit: {{}}\n"),
            "rate_limit",
        ),
        ("basic_auth_users:\n  prometheus: @secret\n", "web.yml"),
        ("basic_auth_users:\n  a: \"\u{0}\"", "web.yml"),
    ] {
        let error = read(content).expect_err(content);
        assert!(error.contains(expected), "{content}: {error}");
        assert!(!error.contains("os error"), "{error}");
        assert!(
            !error.contains("secret") && !error.contains("$2y"),
            "{error}"
        );
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    let missing = WebConfig::read(Path::new("/nowhere/web.yml")).unwrap_err();
    assert_eq!(
        missing.to_string(),
        "/nowhere/web.yml: No such file or directory"
    );
}

#[test]
fn a_file_that_was_replaced_is_no_longer_current() {
    let (directory, file) = directory(TLS);
    let config = WebConfig::read(&file).unwrap();
    assert!(config.is_current());
    let key = directory.path().join("server.key");
    fs::copy(&key, directory.path().join("new")).unwrap();
    fs::rename(directory.path().join("new"), &key).unwrap();
    assert!(!config.is_current());
    let config = WebConfig::read(&file).unwrap();
    assert!(config.is_current());
    fs::remove_file(directory.path().join("server.pem")).unwrap();
    assert!(!config.is_current());
    assert!(WebConfig::default().is_current());
}

#[test]
fn a_file_that_asks_for_less_takes_a_restart() {
    let (_directory, file) = directory("");
    let all = format!(
        "{TLS}  client_ca_file: ca.pem\n  client_auth_type: RequireAndVerifyClientCert\n\
         basic_auth_users:\n  a: {HASH}\n"
    );
    fs::write(&file, &all).unwrap();
    let config = WebConfig::read(&file).unwrap();
    assert!(config.read_again(&file).is_ok());
    let users = all.find("basic_auth_users").unwrap();
    for less in [
        &all[..users],
        TLS,
        &all[users..],
        &all.replace("RequireAnd", "")
            .replace("VerifyClientCert", "VerifyClientCertIfGiven"),
    ] {
        fs::write(&file, less).unwrap();
        assert!(WebConfig::read(&file).is_ok(), "{less}");
        let error = config.read_again(&file).unwrap_err().to_string();
        assert!(error.contains("that takes a restart"), "{less}: {error}");
    }
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes: Vec<u8>, text in "(tls_server_config|basic_auth_users|http_server_config)?:?\\PC{0,40}\n?\\PC{0,40}") {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("web.yml");
        for content in [&bytes[..], text.as_bytes()] {
            fs::write(&file, content).unwrap();
            let _ = WebConfig::read(&file);
        }
    }
}

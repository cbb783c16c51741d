//! `nearfar exporter`: what a scraper gets, what clients that behave badly cannot do, textfiles, and how it ends.
//!
//! tests/exporter_prometheus.rs has the same with Prometheus itself.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::time::{Duration, Instant};

use crate::exporting;
use crate::exporting::{Exporting, PATIENCE, status, value};
use crate::harness;
use crate::harness::Sandbox;
use crate::tasks;
use crate::tasks::Waiting;
use rustix::process::Signal;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_scrape_has_each_metric_with_its_help_and_type() {
    let exporter = Exporting::start(&["--min-memory", "0"]);
    let answer = exporter.get("/metrics");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(
        answer.contains("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"),
        "{answer}"
    );
    let metrics = exporter.metrics();
    let mut known = "";
    for line in metrics.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').unwrap();
            assert!(
                help.ends_with('.') && name.starts_with("nearfar_"),
                "{line}"
            );
            known = name;
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let is_counter = known.ends_with("_total");
            let expected = if is_counter { "counter" } else { "gauge" };
            assert_eq!(kind, format!("{known} {expected}"));
        } else {
            let name = line.split(['{', ' ']).next().unwrap();
            assert_eq!(name, known, "{metrics}");
        }
    }
    let version = format!(
        "nearfar_build_info{{version=\"{}\"}}",
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(value(&metrics, &version), Some(1.0), "{metrics}");
}

#[test]
fn why_tls_is_refused_is_logged() {
    let certificates = concat!(env!("CARGO_MANIFEST_DIR"), "/../exporter/tests/web");
    let files =
        format!("cert_file: {certificates}/server.pem\n  key_file: {certificates}/server.key");
    let sandbox = Sandbox::new();
    let config = sandbox.write("web.yml", format!("tls_server_config:\n  {files}\n"));
    let config = config.to_str().unwrap();
    let mut exporter = Exporting::start(&["--verbose", "--web.config.file", config]);
    let mut client = exporter.connect();
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    exporter.running.wait_for_error("TLS refused client=");
}

#[test]
fn totals_do_not_decrease_and_scans_go_on() {
    let exporter = Exporting::start(&["--min-memory", "0"]);
    let mut before = exporter.metrics();
    let until = Instant::now() + PATIENCE;
    let mut scans = 0;
    while scans < 3 {
        assert!(Instant::now() < until, "{scans} scans");
        let now = exporter.metrics();
        for line in now
            .lines()
            .filter(|it| it.contains("_total") && !it.starts_with('#'))
        {
            let (key, count) = line.rsplit_once(' ').unwrap();
            let earlier = value(&before, key).unwrap_or(0.0);
            assert!(
                count.parse::<f64>().unwrap() >= earlier,
                "{line} after {earlier}"
            );
        }
        let time = |text: &str| value(text, "nearfar_scan_timestamp_seconds").unwrap();
        scans += i32::from(time(&now) > time(&before));
        before = now;
    }
}

#[test]
fn requests_are_answered_as_the_protocol_says() {
    let exporter = Exporting::start(&[]);
    let long = "a".repeat(100_000);
    for (request, expected) in [
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), "200"),
        ("GET /metrics/x HTTP/1.1\r\n\r\n".to_owned(), "404"),
        ("DELETE /metrics HTTP/1.1\r\n\r\n".to_owned(), "405"),
        ("no request\r\n\r\n".to_owned(), "400"),
        (format!("GET /{long} HTTP/1.1\r\n\r\n"), "431"),
        (format!("GET / HTTP/1.1\r\nX: {long}\r\n\r\n"), "431"),
    ] {
        let answer = exporter.ask(request.as_bytes());
        assert_eq!(status(&answer), expected, "{answer}");
    }
    let head = exporter.ask(b"HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.ends_with("\r\n\r\n"), "{head}");
    let (_, length) = head.split_once("Content-Length: ").unwrap();
    let length: usize = length.split("\r\n").next().unwrap().parse().unwrap();
    assert!(length > 100, "{head}");
}

#[test]
fn clients_that_send_nothing_keep_no_scraper_out() {
    let exporter = Exporting::start(&[]);
    let idle: Vec<TcpStream> = (0..200).map(|_| exporter.connect()).collect();
    let mut slow = exporter.connect();
    slow.write_all(b"GET /metr").unwrap();
    // When the oldest is closed for the next: the unit tests of the server.
    assert_eq!(status(&exporter.get("/metrics")), "200");
    drop(idle);
}

/// In the slow tier: it takes ten seconds. The unit tests of connections have the same with a clock of their own.
#[test]
fn a_client_that_does_not_read_or_end_its_request_is_closed() {
    let exporter = Exporting::start(&[]);
    let mut slow = exporter.connect();
    let begun = Instant::now();
    // A byte now and then is no way to stay.
    let mut ended = false;
    slow.write_all(b"GET /metrics HTTP/1.1\r\nX: ").unwrap();
    while begun.elapsed() < PATIENCE {
        std::thread::sleep(SECOND / 4);
        if slow.write_all(b"y").is_err() {
            ended = true;
            break;
        }
    }
    assert!(ended, "it was served for {:?}", begun.elapsed());
    assert!(begun.elapsed() > 9 * SECOND, "{:?}", begun.elapsed());
    assert_eq!(status(&exporter.get("/metrics")), "200");
}

#[test]
fn two_hundred_scrapers_at_once_all_get_the_metrics() {
    let exporter = Exporting::start(&[]);
    let scrapers: Vec<_> = (0..200)
        .map(|_| {
            let address = exporter.address;
            std::thread::spawn(move || exporting::ask(address, b"GET /metrics HTTP/1.1\r\n\r\n"))
        })
        .collect();
    for scraper in scrapers {
        let answer = scraper.join().unwrap();
        assert_eq!(status(&answer), "200", "{answer}");
        assert!(answer.contains("nearfar_build_info{"), "{answer}");
    }
}

#[test]
fn it_ends_at_sigterm_and_sigint_and_frees_its_port() {
    for signal in [Signal::TERM, Signal::INT] {
        let exporter = Exporting::start(&[]);
        let mut open = exporter.connect();
        let address = exporter.address;
        exporter.running.end_by(signal).succeeded();
        assert!(TcpStream::connect(address).is_err());
        assert_eq!(open.read(&mut [0; 16]).unwrap_or(0), 0);
    }
}

/// In the slow tier: an end that waited for the client would take ten seconds, many times what one without a client takes.
#[test]
fn an_open_connection_delays_no_end() {
    let time = |has_client: bool| {
        let exporter = Exporting::start(&[]);
        let client = has_client.then(|| exporter.connect());
        assert_eq!(status(&exporter.get("/metrics")), "200");
        let begun = Instant::now();
        exporter.running.end_by(Signal::TERM).succeeded();
        drop(client);
        begun.elapsed()
    };
    let (mut with, mut without) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..5 {
        with += time(true);
        without += time(false);
    }
    println!("5 ends: {with:.3?} with a client, {without:.3?} without");
    assert!(with < 10 * without, "{with:?} and {without:?}");
}

#[test]
fn an_address_in_use_is_an_error_that_names_it() {
    let taken = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let answer = harness::nearfar(["exporter", "--listen", &address]).run();
    answer
        .exited(3)
        .says(&["cannot listen on", &address, "in use"]);
    for wrong in ["localhost", "127.0.0.1", "127.0.0.1:99999"] {
        let answer = harness::nearfar(["exporter", "--listen", wrong]).run();
        answer.refused(&["--listen", wrong]);
    }
}

#[test]
fn two_writers_of_a_textfile_never_show_half_of_it() {
    let sandbox = Sandbox::new();
    let file = sandbox.file("nearfar.prom");
    let start = || {
        let arguments = ["exporter", "--seconds", "0.1", "--textfile", &file];
        let nearfar = sandbox.nearfar(arguments).configure(|command| {
            // SAFETY: umask(2) is safe between fork and exec.
            unsafe {
                command.pre_exec(|| {
                    let _ = rustix::process::umask(0o077.into());
                    Ok(())
                })
            };
        });
        nearfar.start()
    };
    let writers = [start(), start()];
    let until = Instant::now() + PATIENCE;
    // Reads, and how many files were there one after the other.
    let (mut reads, mut files, mut last_file) = (0, 0, None);
    while reads < 1000 || files < 20 {
        assert!(Instant::now() < until, "{reads} reads of {files} files");
        let Ok(text) = fs::read_to_string(&file) else {
            continue;
        };
        let metadata = fs::metadata(&file).unwrap();
        let this_file = Some((metadata.ino(), metadata.mtime_nsec()));
        files += i32::from(std::mem::replace(&mut last_file, this_file) != this_file);
        assert!(
            text.starts_with("# HELP nearfar_service_memory_bytes "),
            "{text}"
        );
        let last = text.lines().last().unwrap();
        assert!(last.starts_with("nearfar_build_info{"), "{text}");
        reads += 1;
    }
    // Readable for node_exporter whatever the umask.
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
    for writer in writers {
        // Without --listen there is no server. Memory that root may not read is this machine's: of its init in some containers, which
        // is scanned while it is large.
        let said = writer.end_by(Signal::TERM).succeeded().errors();
        let is_of_memory = |line: &str| line.starts_with("nearfar: the memory of ");
        assert!(said.lines().all(is_of_memory), "{said}");
    }
    let left = fs::read_dir(sandbox.path("")).unwrap().count();
    assert_eq!(left, 1, "temporary files stay");
}

#[test]
fn a_textfile_that_cannot_be_written_is_an_error_that_names_it() {
    let sandbox = Sandbox::new();
    let missing = sandbox.file("missing/nearfar.prom");
    let answer = sandbox.nearfar(["exporter", "--textfile", &missing]).run();
    answer
        .exited(3)
        .says(&["cannot write", &missing, "No such file"]);
    // A read-only directory is none to root; /proc is to everyone.
    let answer = sandbox.nearfar(["exporter", "--once", "--textfile", "/proc/nearfar.prom"]);
    answer
        .run()
        .exited(3)
        .says(&["cannot write /proc/nearfar.prom"]);
    fs::create_dir(sandbox.path("directory.prom")).unwrap();
    let directory = sandbox.file("directory.prom");
    let answer = sandbox.nearfar(["exporter", "--once", "--textfile", &directory]);
    answer.run().exited(3).says(&["cannot write", &directory]);
    let other = sandbox.file("nearfar.txt");
    let answer = sandbox.nearfar(["exporter", "--textfile", &other]).run();
    answer.refused(&["--textfile", ".prom"]);
}

#[test]
fn once_prints_what_needs_no_second_scan() {
    let text = harness::nearfar(["exporter", "--once", "--min-memory", "0"]).prints();
    assert!(text.contains("\nnearfar_service_memory_bytes{"), "{text}");
    assert!(text.contains("\nnearfar_node_distance{from="), "{text}");
    for since_start in ["nearfar_service_cpu_seconds_total", "nearfar_scan_cpu"] {
        assert!(!text.contains(since_start), "{text}");
    }
}

#[test]
fn a_service_with_any_bytes_in_its_name_has_a_series() {
    let Some(group) = tasks::control_group(&format!("nearfar-exporter-{}", std::process::id()))
    else {
        return;
    };
    let below = group.join(OsStr::from_bytes(b"a\"b\\c\xff.service"));
    fs::create_dir(&below).unwrap();
    let task = Waiting::start("cat");
    fs::write(below.join("cgroup.procs"), task.id().to_string()).unwrap();
    let text = harness::nearfar(["exporter", "--once", "--min-memory", "0"]).prints();
    drop(task);
    fs::remove_dir(below).unwrap();
    fs::remove_dir(group).unwrap();
    let series = "nearfar_service_tasks{service=\"a\\\"b\\\\c\u{fffd}.service\"}";
    assert_eq!(value(&text, series), Some(1.0), "{text}");
}

#[test]
fn without_root_it_says_once_what_is_missing() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: root: only root has processes of two users");
    }
    let sandbox = Sandbox::new();
    let binary = sandbox.root().join("nearfar");
    fs::copy(harness::NEARFAR, &binary).unwrap();
    fs::set_permissions(sandbox.root(), fs::Permissions::from_mode(0o755)).unwrap();
    let _root = Waiting::start("cat");
    let words = [
        "exporter",
        "--seconds",
        "0.1",
        "--min-memory",
        "0",
        "--listen",
        "127.0.0.1:0",
    ];
    let nearfar = sandbox.program(&binary).args(words).configure(|command| {
        command.uid(65534).gid(65534).current_dir("/");
    });
    let mut running = nearfar.start();
    running.wait_for_error("CAP_SYS_PTRACE");
    std::thread::sleep(SECOND);
    let errors = running.end_by(Signal::TERM).succeeded().errors();
    assert_eq!(errors.matches("CAP_SYS_PTRACE").count(), 1, "{errors}");
    assert!(errors.contains("is unknown: /proc/PID/"), "{errors}");
}

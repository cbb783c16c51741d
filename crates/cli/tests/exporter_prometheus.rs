//! `nearfar exporter` with Prometheus: promtool takes its metrics and the rules of docs/exporter, Prometheus scrapes it, and the
//! dashboard, the alerts and docs/exporter.md name metrics that there are.

use std::collections::BTreeSet;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::exporting::{Exporting, ask};
use crate::harness;
use crate::harness::{Owned, Sandbox};
use serde_json::Value;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// Many times what a start and two scrapes take.
const PATIENCE: Duration = Duration::from_secs(120);

fn page(name: &str) -> PathBuf {
    Path::new(ROOT).join("docs").join(name)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A program of Prometheus: installed, or where tools/install-prometheus puts it.
fn program(name: &str) -> Option<PathBuf> {
    let own = Path::new(ROOT).join("target/prometheus").join(name);
    let all = [PathBuf::from(name), own];
    let starts = |program: &PathBuf| Command::new(program).arg("--version").output().is_ok();
    all.into_iter().find(starts)
}

/// The same; says why there is none.
fn program_or_skip(name: &str) -> Option<PathBuf> {
    let found = program(name);
    if found.is_none() {
        println!("skipped: tools: {name} is not installed (tools/install-prometheus)");
    }
    found
}

#[track_caller]
fn check_metrics(promtool: &Path, metrics: &str) {
    let sandbox = Sandbox::new();
    let answer = sandbox.program(promtool).args(["check", "metrics"]);
    let answer = answer.stdin(metrics).run().succeeded();
    // What it recommends is on standard error, with 0.
    assert_eq!(answer.errors(), "", "{answer}");
}

#[test]
fn promtool_has_nothing_against_the_metrics() {
    let Some(promtool) = program_or_skip("promtool") else {
        return;
    };
    let exporter = Exporting::start(&["--min-memory", "0"]);
    check_metrics(&promtool, &exporter.metrics());
    let once = harness::nearfar(["exporter", "--once", "--min-memory", "0"]).prints();
    check_metrics(&promtool, &once);
}

#[test]
fn alerts_and_recording_rules_give_what_they_should() {
    let Some(promtool) = program_or_skip("promtool") else {
        return;
    };
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exporting");
    for name in ["alerts.yml", "fleet-rules.yml"] {
        let rules = page("exporter").join(name);
        for (verb, file) in [("check", rules), ("test", tests.join(name))] {
            let answer = Sandbox::new().program(&promtool).args([verb, "rules"]);
            answer.arg(file).run().succeeded();
        }
    }
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    listener.local_addr().unwrap().port()
}

/// Prometheus with the alerts, which scrapes an exporter each second; `how` is of its scrape configuration.
fn start(program: &Path, sandbox: &Sandbox, exporter: SocketAddr, port: u16, how: &str) -> Owned {
    let rules = page("exporter/alerts.yml").canonicalize().unwrap();
    let config = format!(
        "global:\n  scrape_interval: 1s\n  evaluation_interval: 1s\nrule_files: [\"{}\"]\nscrape_configs:\n  \
         - job_name: nearfar\n{how}    static_configs:\n      - targets: [\"{exporter}\"]\n",
        rules.display()
    );
    let config = sandbox.write("prometheus.yml", config);
    let child = Command::new(program)
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", sandbox.file("data")))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .current_dir(sandbox.path(""))
        .stdout(Stdio::null())
        .stderr(fs::File::create(sandbox.path("log")).unwrap())
        .spawn();
    Owned(child.unwrap())
}

/// The data of an answer of Prometheus' API, if it has one by now.
fn api(port: u16, path: &str) -> Option<Value> {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    std::net::TcpStream::connect(address).ok()?;
    let request = format!("GET /api/v1/{path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
    let answer = ask(address, request.as_bytes());
    let (_, body) = answer.split_once("\r\n\r\n")?;
    let body: Value = serde_json::from_str(body).ok()?;
    (body["status"] == "success").then(|| body["data"].clone())
}

/// Asks until there is what is wanted.
#[track_caller]
fn until<T>(sandbox: &Sandbox, look: impl Fn() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        let log = || read(&sandbox.path("log"));
        assert!(begun.elapsed() < PATIENCE, "{}", log());
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn wait_until_it_is_scraped(sandbox: &Sandbox, port: u16) {
    let targets = until(sandbox, || {
        let targets = api(port, "targets")?;
        (targets["activeTargets"][0]["health"] == "up").then_some(targets)
    });
    assert_eq!(targets["activeTargets"][0]["lastError"], "", "{targets}");
}

/// With the certificates and the password of crates/exporter/tests/web.rs.
#[test]
fn prometheus_scrapes_it_over_tls_with_a_password_and_a_certificate() {
    let Some(program) = program_or_skip("prometheus") else {
        return;
    };
    let certificates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../exporter/tests/web");
    let file = |name: &str| certificates.join(name).display().to_string();
    let (sandbox, port) = (Sandbox::new(), free_port());
    let config = format!(
        "tls_server_config:\n  cert_file: {}\n  key_file: {}\n  client_ca_file: {}\n  \
         client_auth_type: RequireAndVerifyClientCert\nbasic_auth_users:\n  \
         prometheus: $2y$04$abcdefghijklmnopqrstuuY5vsNbwHdX77hfuPssCAcQiQw4DLNQS\n",
        file("server.pem"),
        file("server.key"),
        file("ca.pem"),
    );
    let config = sandbox.write("web.yml", config);
    let config = config.to_str().unwrap();
    let mut exporter = Exporting::start(&["--min-memory", "0", "--web.config.file", config]);
    let how = format!(
        "    scheme: https\n    basic_auth: {{username: prometheus, password: far away}}\n    \
         tls_config: {{ca_file: \"{}\", cert_file: \"{}\", key_file: \"{}\"}}\n",
        file("ca.pem"),
        file("client.pem"),
        file("client.key"),
    );
    let _prometheus = start(&program, &sandbox, exporter.address, port, &how);
    wait_until_it_is_scraped(&sandbox, port);
    // A file that is wrong changes nothing, and one that is right again is said.
    let right = std::fs::read(config).unwrap();
    std::fs::write(config, "rate_limit: {}\n").unwrap();
    exporter.running.wait_for_error("rate_limit");
    std::fs::write(config, &right).unwrap();
    exporter
        .running
        .wait_for_error("the files of --web-config are right again");
    // Who has left is shut out.
    let others = String::from_utf8(right)
        .unwrap()
        .replace("  prometheus:", "  other:");
    std::fs::write(config, others).unwrap();
    let error = until(&sandbox, || {
        let targets = api(port, "targets")?;
        let error = targets["activeTargets"][0]["lastError"]
            .as_str()?
            .to_owned();
        (!error.is_empty()).then_some(error)
    });
    assert!(error.contains("401"), "{error}");
}

#[test]
fn prometheus_scrapes_it_and_evaluates_the_alerts() {
    let Some(program) = program_or_skip("prometheus") else {
        return;
    };
    let exporter = Exporting::start(&["--min-memory", "0"]);
    let (sandbox, port) = (Sandbox::new(), free_port());
    let _prometheus = start(&program, &sandbox, exporter.address, port, "");
    wait_until_it_is_scraped(&sandbox, port);
    let query = "query?query=sum(increase(nearfar_scan_cpu_seconds_total[1m]))";
    until(&sandbox, || {
        let sum = api(port, query)?;
        let value = sum["result"][0]["value"][1].as_str()?.parse::<f64>().ok()?;
        (value > 0.0).then_some(())
    });
    let rules = until(&sandbox, || {
        let rules = api(port, "rules")?["groups"][0]["rules"].clone();
        let all = rules.as_array()?;
        let is_done = !all.is_empty() && all.iter().all(|rule| rule["health"] == "ok");
        is_done.then_some(rules)
    });
    assert!(rules.as_array().unwrap().len() >= 5, "{rules}");
}

/// Names of metrics in a text.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let names = words.filter(|word| word.starts_with("nearfar_"));
    names.map(str::to_owned).collect()
}

/// Names of the metrics in the sources: the first string after each `.family(`.
fn metrics_of_sources() -> BTreeSet<String> {
    let sources = Path::new(ROOT).join("crates/exporter/src");
    let files = fs::read_dir(sources)
        .unwrap()
        .map(|file| file.unwrap().path());
    // Without unit tests, which have metrics of their own.
    let code = |text: String| text.split("#[cfg(test)]").next().map(str::to_owned);
    let text: String = files.filter_map(|file| code(read(&file))).collect();
    let quoted = text.split('"').filter(|part| part.starts_with("nearfar_"));
    let is_name = |part: &&str| part.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    quoted.filter(is_name).map(str::to_owned).collect()
}

#[test]
fn the_page_has_each_metric_and_dashboard_and_alerts_no_other() {
    let known = metrics_of_sources();
    assert!(known.len() > 15, "{known:?}");
    let text = read(&page("exporter.md"));
    let rows = text.lines().filter(|line| line.starts_with("| `nearfar_"));
    let listed: BTreeSet<String> = rows
        .flat_map(|row| metrics_in(row.split('|').nth(1).unwrap()))
        .collect();
    assert_eq!(listed, known);
    for file in [
        "exporter/dashboard.json",
        "exporter/alerts.yml",
        "exporter/fleet-rules.yml",
    ] {
        // What is recorded has the names of its rules: instance:nearfar_...
        let text = read(&page(file)).replace("instance:nearfar_", "instance:");
        let used = metrics_in(&text);
        assert!(used.len() > 3 && used.is_subset(&known), "{file}: {used:?}");
    }
}

#[test]
fn the_dashboard_is_one_that_grafana_imports() {
    let dashboard: Value = serde_json::from_str(&read(&page("exporter/dashboard.json"))).unwrap();
    assert!(dashboard["schemaVersion"].as_u64().unwrap() >= 30);
    assert_eq!(dashboard["templating"]["list"][0]["type"], "datasource");
    let panels = dashboard["panels"].as_array().unwrap();
    let promtool = program_or_skip("promtool");
    let mut ids = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        let targets = panel["targets"].as_array();
        for target in targets.into_iter().flatten() {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{panel}");
            let expression = target["expr"].as_str().unwrap();
            if let Some(promtool) = &promtool {
                check_expression(promtool, expression);
            }
        }
        assert!(
            panel["type"] == "row" || targets.is_some_and(|it| !it.is_empty()),
            "{panel}"
        );
    }
}

/// promtool reads an expression as that of a rule, once Grafana's variables have values.
fn check_expression(promtool: &Path, expression: &str) {
    let expression = expression
        .replace("$__rate_interval", "5m")
        .replace("$instance", ".*")
        .replace("$service", ".*");
    let rules = format!(
        "groups: [{{name: a, rules: [{{record: a, expr: {}}}]}}]",
        Value::from(expression)
    );
    let sandbox = Sandbox::new();
    let file = sandbox.write("rules.yml", rules);
    let file = file.to_str().unwrap();
    let check = sandbox.program(promtool).args(["check", "rules", file]);
    check.run().succeeded();
}

#[test]
fn systemd_has_nothing_against_the_unit() {
    if program("systemd-analyze").is_none() {
        return println!("skipped: tools: systemd-analyze is not installed");
    }
    let unit = Path::new(ROOT).join("tools/systemd/nearfar-exporter.service");
    let nearfar = format!("\"{}\"", harness::NEARFAR);
    let text = read(&unit).replace("/usr/local/bin/nearfar", &nearfar);
    let sandbox = Sandbox::new();
    let file = sandbox.write("nearfar-exporter.service", text);
    let words = [
        "verify",
        "--man=no",
        "--recursive-errors=no",
        file.to_str().unwrap(),
    ];
    let answer = sandbox
        .program("systemd-analyze")
        .args(words)
        .run()
        .succeeded();
    assert!(
        !answer.errors().contains("nearfar-exporter.service:"),
        "{answer}"
    );
}

#[test]
fn the_manifest_has_options_that_there_are_and_a_root_without_a_machine_is_refused() {
    let manifest = fs::read_to_string(page("exporter/daemonset.yaml")).unwrap();
    let args = manifest
        .lines()
        .find_map(|line| line.trim().strip_prefix("args: "));
    let args: Vec<String> = serde_json::from_str(args.unwrap()).unwrap();
    let empty = tempfile::tempdir().unwrap();
    let root = format!("--root={}", empty.path().display());
    let replaced = args
        .iter()
        .map(|arg| if arg == "--root=/host" { &root } else { arg });
    let args: Vec<&str> = replaced.map(String::as_str).collect();
    assert!(args.contains(&root.as_str()));
    let output = harness::nearfar(&args).run();
    output.exited(2).says(&["no proc and sys of a machine"]);
}

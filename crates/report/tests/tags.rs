//! A run of tags as text, mail and page: the published shape, findings that are claimed and those that are not.

use crate::html;
use crate::stored;
use nearfar_report::document::Document;
use nearfar_report::{Style, runs};

/// The published table, without the cells of far and high.
const PUBLISHED: &str = "scenario,variant,kiops,sys_percent\n\
    near-low,stock,1009.5,55.78\nnear-low,limit,1084.4,54.47\nnear-low,limit+topology,1058.1,52.42\n\
    near-high,stock,949.1,75.12\nnear-high,limit,980.7,64.74\nnear-high,limit+topology,1010.1,70.27\n\
    far-low,stock,600.0,72.28\nfar-low,limit,761.7,71.17\nfar-low,limit+topology,762.5,74.48\n";

fn own(stored: &stored::Stored) -> runs::Own {
    stored.shown().own(None).unwrap().unwrap()
}

#[test]
fn the_published_shape_as_text() {
    let text = own(&stored::case_3()).text.to_text(&Style::default());
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
    insta::assert_snapshot!(text);
}

#[test]
fn a_mail_has_machine_command_table_finding_and_what_is_not_claimed_in_72_columns() {
    let stored = stored::case_3();
    let mail = runs::mail(
        Document::new(),
        &stored.shown(),
        Some(own(&stored).mail),
        None,
    );
    assert!(
        mail.lines().all(|line| line.chars().count() <= 72),
        "{mail}"
    );
    insta::assert_snapshot!(mail);
}

#[test]
fn a_run_of_any_experiment_as_a_mail() {
    let stored = stored::two_metrics();
    let mail = runs::mail(Document::new(), &stored.shown(), None, None);
    assert!(mail.contains("nearfar bench mock") && mail.contains("throughput"));
    assert!(mail.lines().all(|line| line.chars().count() <= 72));
    assert!(mail.contains("1 failed, 1 have warnings"), "{mail}");
}

#[test]
fn rank_correlation_with_a_published_table() {
    let stored = stored::case_3();
    let file = runs::PublishedFile {
        name: "tag-allocator.csv",
        input: &mut PUBLISHED.as_bytes(),
    };
    let own = stored.shown().own(Some(file)).unwrap().unwrap();
    assert_eq!(
        own.published.unwrap()[0]["cells"].as_array().unwrap().len(),
        9
    );
    let text = own.text.to_text(&Style::default());
    let (_, published) = text.split_once("\nPublished figures").unwrap();
    insta::assert_snapshot!(format!("Published figures{published}"));
}

#[test]
fn the_page_has_scenarios_findings_and_steals() {
    let stored = stored::case_3();
    let page = runs::page(&stored.shown(), own(&stored).page).to_html();
    if let Some(folder) = std::env::var_os("NEARFAR_PICTURES") {
        std::fs::write(std::path::Path::new(&folder).join("case-3.html"), &page).unwrap();
    }
    let elements = html::page(&page).unwrap();
    let headings = elements.iter().filter(|it| it.name == "h2");
    let headings: Vec<&str> = headings.map(|it| it.text.as_str()).collect();
    for heading in ["Findings", "Steals", "Where the time goes"] {
        assert!(headings.contains(&heading), "{heading}: {headings:?}");
    }
    assert!(page.contains("far-high: ") && page.contains("limit_topology"));
}

#[test]
fn a_run_without_samples_claims_nothing() {
    let mut stored = stored::case_3();
    stored.samples.clear();
    stored.cells = nearfar_runs::summarise(&stored.detail, &[]);
    let text = own(&stored).text.to_text(&Style::default());
    assert!(
        text.contains("no round has a sample of both cells"),
        "{text}"
    );
    for claim in ["the published order:", "better than all three in near"] {
        assert!(!text.contains(claim), "{claim}\n{text}");
    }
}

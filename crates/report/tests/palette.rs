//! The colours of pictures and pages against the rules of WCAG 2.2 for contrast, for light and dark.

use std::collections::BTreeMap;

/// The colours of pictures and pages.
const THEME: &str = include_str!("../src/topo/svg/theme.css");

/// What text of ordinary size needs (success criterion 1.4.3).
const TEXT: f64 = 4.5;
/// What a shape needs that means something (1.4.11).
const SHAPE: f64 = 3.0;

/// The variables of a scheme: those of the light one, with what the dark one has instead.
fn scheme(dark: bool) -> BTreeMap<&'static str, u32> {
    let mut blocks = THEME
        .split(".nearfar-map{")
        .skip(1)
        .map(|block| block.split('}').next().unwrap());
    let (light, other) = (blocks.next().unwrap(), blocks.next().unwrap());
    let both = light.split(';').chain(other.split(';').filter(|_| dark));
    both.filter_map(|line| line.strip_prefix("--")?.split_once(":#"))
        .map(|(name, hex)| (name, colour(hex)))
        .collect()
}

fn colour(hex: &str) -> u32 {
    let long: String = if hex.len() == 3 {
        hex.chars().flat_map(|digit| [digit, digit]).collect()
    } else {
        hex.to_owned()
    };
    u32::from_str_radix(&long, 16).unwrap()
}

/// Relative luminance, from 0 for black to 1 for white.
fn luminance(colour: u32) -> f64 {
    let channel = |shift: u32| {
        let share = f64::from(colour >> shift & 255) / 255.0;
        if share <= 0.04045 {
            share / 12.92
        } else {
            ((share + 0.055) / 1.055).powf(2.4)
        }
    };
    0.2126 * channel(16) + 0.7152 * channel(8) + 0.0722 * channel(0)
}

fn contrast(a: u32, b: u32) -> f64 {
    let (a, b) = (luminance(a), luminance(b));
    (a.max(b) + 0.05) / (a.min(b) + 0.05)
}

fn check(needed: f64, pairs: &[(&str, &[&str])]) {
    for dark in [false, true] {
        let colours = scheme(dark);
        for (front, grounds) in pairs {
            for ground in *grounds {
                let found = contrast(colours[front], colours[ground]);
                assert!(
                    found >= needed,
                    "{front} on {ground}, dark {dark}: {found:.2} instead of {needed}"
                );
            }
        }
    }
}

#[test]
fn contrast_is_computed_as_wcag_does() {
    assert!((contrast(0, 0xff_ffff) - 21.0).abs() < 1e-9);
    assert!((contrast(0x77_7777, 0xff_ffff) - 4.478).abs() < 0.001);
}

#[test]
fn text_can_be_read_on_all_that_is_below_it_in_both_schemes() {
    check(
        TEXT,
        &[
            ("ink", &["paper", "box", "group", "warn-bg"]),
            ("dim", &["paper", "box", "group", "warn-bg", "hole"]),
            ("warn", &["paper", "box", "warn-bg"]),
            ("cpu-ink", &["cpu", "kept", "paper"]),
            ("cool-ink", &["h0", "h1", "h2", "h3", "h4", "h5", "h6"]),
            ("hot-ink", &["h7", "h8", "h9"]),
            ("critical-ink", &["critical"]),
            ("warning-ink", &["warning"]),
            ("notice-ink", &["notice"]),
            ("fact-ink", &["fact"]),
        ],
    );
}

#[test]
fn marks_can_be_seen_on_the_cells_they_are_on() {
    check(
        SHAPE,
        &[
            ("warn", &["cpu", "kept", "group", "box"]),
            ("cpu-ink", &["cpu", "kept"]),
            ("port", &["box"]),
        ],
    );
}

/// Without hue, on a grey printer or for the colour-blind, the darker of two is the farther.
#[test]
fn what_is_farther_is_darker_and_looks_the_same_in_both_schemes() {
    let steps = |dark| {
        (0..=9)
            .map(move |step| scheme(dark)[format!("h{step}").as_str()])
            .collect::<Vec<u32>>()
    };
    assert_eq!(steps(false), steps(true));
    let luminances: Vec<f64> = steps(false).into_iter().map(luminance).collect();
    assert!(
        luminances.windows(2).all(|pair| pair[0] > 1.05 * pair[1]),
        "{luminances:?}"
    );
    let channels = |step: usize| [16, 8, 0].map(|shift| steps(false)[step] >> shift & 255);
    let (local, far) = (channels(0), channels(9));
    assert!(
        local[1] > local[0] && local[1] > local[2],
        "10 is green: {local:?}"
    );
    assert!(
        far[0] > 4 * far[1] && far[0] > 4 * far[2],
        "20 is red: {far:?}"
    );
}

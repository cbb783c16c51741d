//! A good file of JSON with changes.

use serde_json::{Value, json};

/// The changes are three bytes each: where (2), to what (1).
pub fn mutated(good: &str, changes: &[u8]) -> Vec<u8> {
    let mut file: Value = serde_json::from_str(good).expect("a good file");
    for change in changes.chunks_exact(3).take(20) {
        let mut places = Vec::new();
        walk(&file, String::new(), &mut places);
        let place = &places[usize::from(u16::from_le_bytes([change[0], change[1]])) % places.len()];
        let other = file.pointer(&places[usize::from(change[2]) * 7 % places.len()]).cloned();
        if let Some(value) = file.pointer_mut(place) {
            apply(value, change[2], other);
        }
    }
    file.to_string().into_bytes()
}

fn apply(value: &mut Value, what: u8, other: Option<Value>) {
    *value = match what % 16 {
        0 => Value::Null,
        1 => json!(-1),
        2 => json!(0),
        3 => json!(u64::MAX),
        4 => json!(i64::MIN),
        5 => json!(1e308),
        6 => json!(-1e-308),
        7 => json!(u32::MAX),
        8 => json!(""),
        9 => json!("\u{1b}[31m\n\"\u{0}\u{202e}"),
        10 => json!([]),
        11 => json!({}),
        12 => json!(true),
        13 => match &*value {
            Value::Array(items) => [items.clone(), items.clone()].concat().into(),
            Value::Object(members) => members.iter().skip(1).map(|(key, value)| (key.clone(), value.clone())).collect(),
            other => other.clone(),
        },
        14 => json!({"unknown_reason": "fuzz"}),
        _ => other.unwrap_or_default(),
    };
}

/// The JSON pointer (RFC 6901) of everything in a value.
fn walk(value: &Value, path: String, places: &mut Vec<String>) {
    match value {
        Value::Object(members) => members.iter().for_each(|(key, value)| {
            walk(value, format!("{path}/{}", key.replace('~', "~0").replace('/', "~1")), places);
        }),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, value)| walk(value, format!("{path}/{index}"), places));
        }
        _ => {}
    }
    places.push(path);
}

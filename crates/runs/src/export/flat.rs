//! The scalars of a sample's JSON, each by its path.

use serde_json::Value;

/// Lists longer than this are one text of JSON instead of a column an element.
const LONGEST_LIST: usize = 16;

/// Calls `found` with the path and value of each scalar that is not null.
pub(super) fn leaves(value: &Value, found: &mut dyn FnMut(&[String], Value)) {
    walk(value, &mut Vec::new(), found);
}

fn walk(value: &Value, path: &mut Vec<String>, found: &mut dyn FnMut(&[String], Value)) {
    let mut below = |name: String, value: &Value| {
        path.push(name);
        walk(value, path, found);
        path.pop();
    };
    match value {
        Value::Null => {}
        Value::Object(members) => members
            .iter()
            .for_each(|(name, value)| below(name.clone(), value)),
        Value::Array(items) if items.len() <= LONGEST_LIST => {
            items
                .iter()
                .enumerate()
                .for_each(|(index, value)| below(index.to_string(), value));
        }
        Value::Array(_) => found(path, Value::String(value.to_string())),
        scalar => found(path, scalar.clone()),
    }
}
